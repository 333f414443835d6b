"""The report of an extraction: what the store holds, what was left out, how traces are labelled."""

import json
from collections.abc import Iterator
from pathlib import Path

from store.read.store import TraceStore
from store.reports import LeftOut, count, count_lines
from store.sources.huggingface.source import HuggingFaceSource
from store.sources.labels.normalization import normalize_answer
from store.sources.labels.rule import LabelCounts
from store.sources.labels.stored import label_lines

__all__ = ["extraction_report"]

BLOCK_ROWS = 4096  # texts of so many rows are in memory at once


def extraction_report(
    path: Path, store: TraceStore, source: HuggingFaceSource, skipped: LeftOut
) -> str:
    """Describe the outcome of an extraction, with what looks wrong about the labels.

    Parameters
    ----------
    path
        The store, as it was named.
    store
        What was extracted.
    source
        What it was extracted from.
    skipped
        The questions that were not asked.
    """
    n_traces = count(len(store), "trace")
    lines = [f"{path}: {n_traces} of {count(len(source.questions), 'question')}"]
    if "label" in store.schema.columns and len(store):
        n_unlabelled = LabelCounts.of(store.column("label")).n_unlabelled
        lines += count_lines([(n_unlabelled, "without a label")])
        lines += label_lines(store, source.labels)
        lines += _chat_warning(store, source)
    if skipped.n:
        lines += [f"  {count(skipped.n, 'question')} left out", *skipped.lines()]
    if source.left_out.n:
        lines += [f"  {count(source.left_out.n, 'trace')} left out", *source.left_out.lines()]
        lines.append(f"  to have all: {source.advice}, into a new store")
    return "\n".join(lines)


def _chat_warning(store: TraceStore, source: HuggingFaceSource) -> list[str]:
    """A warning where exact match compares whole sentences with short references."""
    has_texts = {"answer", "references"} <= store.schema.columns.keys()
    if source.labels != "exact" or not source.prompts.chat or not has_texts:
        return []
    are_longer = list(_are_longer(store))
    n_longer = sum(are_longer)
    if n_longer <= len(are_longer) / 2:
        return []
    return [
        f"warning: {n_longer / len(are_longer):.0%} of the answers are longer than each of their "
        "references, and exact match counts all of those as wrong; use --labels f1, or let a judge "
        "score them: python -m store export, then python -m store label"
    ]


def _are_longer(store: TraceStore) -> Iterator[bool]:
    """Whether the answer of each trace with references has more words than any of them."""
    for first in range(0, len(store), BLOCK_ROWS):
        rows = range(first, min(first + BLOCK_ROWS, len(store)))
        batch = store.read(rows, ["answer", "references"])
        for answer, references in zip(
            batch.texts("answer"), batch.texts("references"), strict=True
        ):
            n_words = [_count_words(reference) for reference in json.loads(references)]
            if n_words:
                yield _count_words(answer) > max(n_words)


def _count_words(text: str) -> int:
    return len(normalize_answer(text).split())
