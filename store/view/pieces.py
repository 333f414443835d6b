"""The texts of tokens, as a store holds them: by the ids that its traces have."""

from collections.abc import Sequence
from functools import cached_property

from store.read.store import TraceStore
from store.text_records import parse_list

__all__ = ["StoredPieces", "stored_pieces"]

TOKENS, TEXTS = "tokens", "token_texts"
N_TOKENS = 200_000  # of the first traces, whose texts are kept by their ids
BLOCK_ROWS = 64


def stored_pieces(text: str | None, n_tokens: int) -> list[str] | None:
    """The texts of a trace's tokens from its column `token_texts`, a JSON list of that length.

    None for anything else.
    """
    texts = parse_list(text)
    return None if texts is None or len(texts) != n_tokens else [*map(str, texts)]


class StoredPieces:
    """Turns the ids of tokens into their texts, as far as the store's traces show them."""

    def __init__(self, store: TraceStore) -> None:
        self._store = store

    @cached_property
    def _known(self) -> dict[int, str]:
        """Those of the first traces; a later row adds its own."""
        known: dict[int, str] = {}
        n_read = 0
        for start in range(0, len(self._store), BLOCK_ROWS):
            rows = range(start, min(start + BLOCK_ROWS, len(self._store)))
            n_read += self._add(known, rows)
            if n_read >= N_TOKENS:
                break
        return known

    def _add(self, known: dict[int, str], rows: Sequence[int]) -> int:
        """Add the texts of some rows' tokens; returns the number of these tokens."""
        columns = self._store.schema.columns
        axis = columns[TOKENS].axis if {TOKENS, TEXTS} <= columns.keys() else None
        if axis is None:
            return N_TOKENS  # there is nothing to read
        batch = self._store.read_arrays(rows, [TOKENS, TEXTS])
        ids = batch.numbers(TOKENS).tolist()
        starts = self._store.offsets(axis)[rows[0] : rows[-1] + 2]
        starts = (starts - starts[0]).tolist()
        for i, text in enumerate(batch.texts(TEXTS)):
            mine = ids[starts[i] : starts[i + 1]]
            known |= zip(mine, stored_pieces(text, len(mine)) or [], strict=False)
        return len(ids)

    def with_row(self, row: int) -> "StoredPieces":
        """The same, which knows the texts of this row's tokens too."""
        self._add(self._known, [row])
        return self

    def texts(self, ids: Sequence[int]) -> list[str | None]:
        """The text of each id, None where no trace shows it."""
        return [self._known.get(token_id) for token_id in ids]
