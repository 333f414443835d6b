"""Reading a store: opens files, never writes one.

A read goes down this list, and its batch comes back up:

- `store` is what a user opens and asks; `trace_ids` its ids, `questions` its questions.
- `plan` makes row numbers of what a user names, and checks columns and selections once.
- `row_reader` finds the rows, announces them to the kernel, reads them.
- `row_location` says which items a row has, `token_choice` which token has a number.
- `arrays/` has the bytes of each column, and `arrays/item_location` says in which shard and chunk.
- `batches/` is what comes out.

`source` and `directory` are where a store lies, `id_table` where an id is. `filters/` chooses rows,
`joined/` reads several stores as one: what reads a store reads that, as only its source differs.
"""
