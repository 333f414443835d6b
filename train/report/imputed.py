"""How many traces a method had to impute a number of, in words.

Probes and baselines have the mean over train for a number that a trace lacks; `train.fit.probes`
counts the traces. Detectors that are trained step by step treat gaps in their own way and count
none.
"""

from collections.abc import Sequence

from store.traces.question_split import SPLITS
from train.files import Json

__all__ = ["imputed_in_words"]

COUNTED = "traces_with_missing_numbers"


def imputed_in_words(results: Json) -> str:
    """Under the table of metrics: which methods have imputed numbers, and in how many traces.

    Of several splits it is the largest count of one. Empty where no number is imputed.
    """
    runs = results["splits"]["runs"] if results.get("splits") else [results]
    counts = count_imputed(runs)
    if not counts:
        return ""
    names_by_count: dict[int, list[str]] = {}
    for name, n in counts.items():
        names_by_count.setdefault(n, []).append(name)
    at_most = "at most " if len(runs) > 1 else ""
    n_traces = max(map(count_traces, runs))
    texts = [
        f"in {at_most}{n:,} of {n_traces:,} traces for {', '.join(names)}"
        for n, names in names_by_count.items()
    ]
    return f"Numbers that a trace lacks are imputed with the mean over train: {'; '.join(texts)}."


def count_imputed(runs: Sequence[Json]) -> dict[str, int]:
    """Name -> traces with an imputed number, the most of any split; without names of none."""
    counts: dict[str, int] = {}
    for run in runs:
        for name, entry in (run["models"] | run["baselines"]).items():
            n = entry.get(COUNTED, 0)
            if n:
                counts[name] = max(n, counts.get(name, 0))
    return counts


def count_traces(run: Json) -> int:
    """Labelled traces of a split's results, train, validation and test together."""
    return sum(int(run["split"][split]["rows"]) for split in SPLITS)
