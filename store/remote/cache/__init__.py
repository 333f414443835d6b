"""The cache of stores at addresses: a directory that all readers of a node share.

`reader` is what runs in each reader, `fetcher` the one process that fetches and evicts, and alone
writes. Both have `messages`, `location`, the directory, and `chunk_index`, what is where.
"""
