"""The report of an extraction: what the store holds, what was left out, how traces are labelled."""

from pathlib import Path

from store.read.store import TraceStore
from store.reports import LeftOut, count
from store.sources.huggingface.label_report import label_report
from store.sources.huggingface.source import HuggingFaceSource

__all__ = ["extraction_report"]


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
    lines += label_report(store, source.grader.rules, source.max_new_tokens)
    if skipped.n:
        lines += [f"  {count(skipped.n, 'question')} left out", *skipped.lines()]
    if source.left_out.n:
        lines += [f"  {count(source.left_out.n, 'trace')} left out", *source.left_out.lines()]
        lines.append(f"  to have all: {source.advice}, into a new store")
    return "\n".join(lines)
