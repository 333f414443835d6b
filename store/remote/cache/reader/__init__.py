"""What runs in readers of a cached store.

`mirrored_source` opens it, `mirrored_array` reads it: it copies `chunks`, and says to the fetching
process what it needs, by a `mirror`.
"""
