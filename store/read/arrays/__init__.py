"""The bytes of one column: mapped, raw or compressed, cached, checked, copied into a batch.

- `array` is what every array offers, `file_array` what those whose shards are files have in common.
- `raw_array` copies from maps, by `copies`; `compressed_array` decodes, through `chunk_cache`.
- `item_location` says in which shard and chunk an item lies.
- `shard` is one file of an array, or many as one memory, `mapped_file` its map; `file_reads` reads
  what is cold.
- `chunk_sums` are the checksums, `buffers` recycled memory, `read_options` how to read.
"""
