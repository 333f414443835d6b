"""Tables of differences of AUROC and their tests: of one split, and of several."""

from train.files import Json
from train.report.numbers import bootstrap_p, short, short_p, with_interval
from train.report.table import Table

__all__ = ["P_VALUES", "build_comparisons", "comparison_cells", "split_cells"]

P_VALUES = ("p_bootstrap", "p_delong", "p_holm")


def build_comparisons(comparisons: list[Json]) -> Table:
    """Paired tests, a line per pair."""
    if comparisons and "differences" in comparisons[0]:
        return build_split_comparisons(comparisons)
    rows = [(test["a"], name_rival(test), *comparison_cells(test)) for test in comparisons]
    header = "detector", "against", "difference of AUROC [95%]", "p bootstrap", "p DeLong", "p Holm"
    return Table(header, rows, n_left=2)


def build_split_comparisons(comparisons: list[Json]) -> Table:
    """Tests over several splits, a line per pair."""
    rows = [(test["a"], name_rival(test), *split_cells(test)) for test in comparisons]
    header = "detector", "against", "mean difference of AUROC [95%]", "in the splits", "p", "p Holm"
    return Table(header, rows, n_left=2)


def split_cells(test: Json) -> list[str]:
    """A mean difference of AUROCs with its interval, the least and the largest, and p values."""
    least, largest = min(test["differences"]), max(test["differences"])
    mean = with_interval(test["difference"], test["ci"])
    p_values = [short_p(test[key]) for key in ("p", "p_holm")]
    return [mean, f"{short(least)} to {short(largest)}", *p_values]


def name_rival(test: Json) -> str:
    """What a detector was compared with; a control is marked."""
    return f"{test['b']} (control)" if test.get("control") else str(test["b"])


def comparison_cells(test: Json) -> list[str]:
    """A difference of AUROCs with its interval, and its p values."""
    _, *p_values = [short_p(test[key]) for key in P_VALUES]
    return [with_interval(test["difference"], test["ci"]), bootstrap_p(test), *p_values]
