"""The fetching process of a cache directory: `python -m store.remote.cache.fetcher DIRECTORY`.

`server` answers readers, `fetch_queue` says what is fetched next, `fetched_store` and
`fetched_column` fetch files and chunks. `inventory` gives slots (`slab`), and
takes them from the chunks that are needed last (`use_times`); `writable_index` has the state of
each chunk.
"""
