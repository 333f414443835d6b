"""The cache of stores at addresses: a directory that all readers of a node share.

In readers: `cached_array` copies chunks, `fetcher_client` says what is needed, `location` is the
directory. In the fetching process: `fetcher` answers, `fetch_queue` says what is fetched next and
`wants` what is announced, `cached_store` and `cached_column` fetch files and chunks
(`byte_requests`), `inventory` knows what is where (`slab`, `chunk_index`), and evicts what by
`eviction` is needed last. Both sides: `messages`, `chunk_index`.
"""
