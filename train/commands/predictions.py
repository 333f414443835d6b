"""Scores of traces and of their tokens as they are written: CSV, JSON lines, or columns."""

import csv
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

import numpy as np
from numpy.typing import NDArray

from store import Column, StoreWriter, TraceStore
from store.reports import count
from train.data.batches import TrainingData
from train.errors import ConfigError
from train.evaluate.metrics import Scores
from train.files import replace_file
from train.fit.token_scores import token_columns
from train.run.scoring import Scorer

__all__ = [
    "names_with_tokens",
    "open_output",
    "score_tokens",
    "write_csv",
    "write_json_lines",
    "write_to_store",
]


@dataclass(frozen=True)
class ScoredTokens:
    """Scores of all tokens of a store by one method."""

    # float32 (n_tokens,): mean over the run's seeds; NaN where the method has none, as for a token
    # without a prediction
    scores: NDArray[np.float32]
    offsets: NDArray[np.int64]  # int64 (n_rows + 1,): where the tokens of each trace begin
    axis: str  # the ragged axis of the store that they are on

    def rows(self) -> Iterator[NDArray[np.float32]]:
        """The scores of each trace (T,), views."""
        for start, stop in zip(self.offsets[:-1], self.offsets[1:], strict=True):
            yield self.scores[start:stop]


ScoresByName = dict[str, Scores]  # detector, probe or baseline -> (n_rows,)
TokensByName = dict[str, ScoredTokens]  # detector, probe or baseline -> its scores


def names_with_tokens(names: Sequence[str], data: TrainingData) -> list[str]:
    """Those of the names that score the tokens of this store; ConfigError if none does."""
    found = [name for name in names if token_columns(name, data)]
    if not found:
        raise ConfigError(
            f"--tokens: expected a method that scores tokens, found {', '.join(names)}, which "
            f"cannot in {data.store.location}; most need its column hidden_states, of the layers "
            "that they read, and baselines such as mean_logprob are named with --models"
        )
    return found


def score_tokens(scorer: Scorer, names: Sequence[str]) -> TokensByName:
    """Scores of every token of the store, by the names of `names_with_tokens`."""
    data = scorer.data
    found = {}
    for name in names:
        role = token_columns(name, data)[0]
        column = data.column(role)
        axis = data.store.schema.axis_of(column)
        assert axis is not None  # `check_columns` has them ragged
        offsets = np.append(0, np.cumsum(data.store.lengths(column)))
        found[name] = ScoredTokens(scorer.score_tokens(name), offsets, axis)
    return found


def write_to_store(store: TraceStore, scores: ScoresByName, tokens: TokensByName) -> str:
    """Write the scores of traces and tokens as float32 columns, all or none; say what was written.

    Those of an earlier run are replaced.
    """
    columns = {f"score_{name}": Column("float32") for name in scores}
    columns |= {
        f"score_token_{name}": Column("float32", axis=one.axis) for name, one in tokens.items()
    }
    values: list[Iterable[object]] = [one.astype(np.float32) for one in scores.values()]
    values += [one.rows() for one in tokens.values()]
    rows = (dict(zip(columns, row, strict=True)) for row in zip(*values, strict=True))
    with StoreWriter.open(store.path) as writer:
        now = TraceStore.open(store.path)
        if (now.uuid, len(now)) != (store.uuid, len(store)):
            what = "appended" if now.uuid == store.uuid else "put another store there"
            raise ConfigError(
                f"{store.location}: expected the {len(store)} traces that were scored, "
                f"found {len(now)}: another writer {what} meanwhile; run the command again"
            )
        writer.set_columns(columns, rows)
    replaced = [column for column in columns if column in store.schema.columns]
    text = (
        f"{store.location}: scores of {count(len(store), 'trace')} written as {', '.join(columns)}"
    )
    return f"{text} (replaced: {', '.join(replaced)})" if replaced else text


def write_json_lines(
    file: TextIO,
    store: TraceStore,
    scores: ScoresByName,
    tokens: TokensByName,
    splits: Sequence[str],
) -> None:
    """An object per trace: trace_id, split, and by name its score and those of its tokens.

    A score that is missing is null.
    """
    rows = zip(*(one.rows() for one in tokens.values()), strict=True)
    of_traces = zip(*(values.tolist() for values in scores.values()), strict=True)
    for trace_id, split, values, row in zip(store.ids, splits, of_traces, rows, strict=True):
        line = {
            "trace_id": trace_id,
            "split": split,
            "scores": dict(zip(scores, values, strict=True)),
            "token_scores": {
                name: [number if np.isfinite(number) else None for number in one.tolist()]
                for name, one in zip(tokens, row, strict=True)
            },
        }
        file.write(json.dumps(line, allow_nan=False) + "\n")


def write_csv(file: TextIO, store: TraceStore, scores: ScoresByName, splits: Sequence[str]) -> None:
    """A line per trace: trace_id, split, and a score for each name."""
    writer = csv.writer(file)
    writer.writerow(["trace_id", "split", *scores])
    columns = [values.tolist() for values in scores.values()]
    writer.writerows(zip(store.ids, splits, *columns, strict=True))


@contextmanager
def open_output(path: Path | None) -> Iterator[TextIO]:
    """The terminal, or a file that is written whole or not at all."""
    if path is None:
        yield sys.stdout
        return
    with replace_file(path) as temporary, temporary.open("w", newline="") as file:
        yield file
