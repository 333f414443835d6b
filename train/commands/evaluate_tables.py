"""An evaluation of runs on stores, for readers: on the terminal and as HTML."""

from collections.abc import Iterator
from pathlib import Path

from rich.console import Console

from train.commands.evaluate_runs import BEST, Evaluation, Tested
from train.evaluate.results import Metrics
from train.files import write_text
from train.report.console import print_line, print_table
from train.report.numbers import clean_text, short, with_interval
from train.report.plots import Cell, draw_heat_map
from train.report.render import (
    Picture,
    Section,
    Table,
    in_words,
    render_html,
    sentence,
)
from train.report.tables import CALIBRATION, GUARANTEE, METRICS, RATES, build_numbers

__all__ = ["print_evaluation", "write_evaluation"]

ELSEWHERE = {"AUROC [95%]": "auroc", "own": "own_test_auroc"}  # header -> key
ELSEWHERE |= {header: key for header, key in METRICS.items() if not key.startswith("auroc")}
MAX_WIDTH = 100  # columns of a terminal that tables use
MAX_INTERVALS = 4  # stores in a matrix on the terminal whose intervals have room
N_OF_STORE = 17  # characters of a store's name above a column of numbers


def print_evaluation(evaluation: Evaluation, console: Console, *, is_matrix: bool) -> None:
    """Print the tables, in at most 100 columns."""
    console.width = min(console.width, MAX_WIDTH)
    if is_matrix:
        print_matrices(evaluation, console)
    else:
        print_metrics(evaluation, console)
    for note in in_words("evaluation_notes", is_matrix).splitlines():
        print_line(console, note)


def print_metrics(evaluation: Evaluation, console: Console) -> None:
    for tested in evaluation.results:
        print_line(console, f"{clean_text(tested.store)}: {in_words('judged', tested)}")
        for remark in tested.remarks:
            print_line(console, f"  {clean_text(remark, 1000)}")
        if tested.metrics:
            print_table(build_numbers(tested.metrics, ELSEWHERE, intervals=("auroc",)), console, "")
            print_table(build_numbers(tested.metrics, CALIBRATION), console, "")
            if has_guarantee(tested):
                print_table(build_numbers(tested.metrics, GUARANTEE), console, "")
        else:
            console.print()


def print_matrices(evaluation: Evaluation, console: Console) -> None:
    has_intervals = len(evaluation.stores) <= MAX_INTERVALS
    for name in names_of_matrices(evaluation):
        table = build_matrix(evaluation, name, intervals=has_intervals)
        print_table(table, console, f"AUROC of {name}")
    for tested in evaluation.results:
        pair = clean_text(f"{tested.run} on {tested.store}")
        parts = [in_words("judged", tested), *tested.remarks]
        print_line(console, f"{pair}: {clean_text('; '.join(parts), 2000)}")
    if not has_intervals:
        print_line(console, "--output and --json have the intervals")


def has_guarantee(tested: Tested) -> bool:
    return any(metrics.risk is not None for metrics in tested.metrics.values())


def names_of_matrices(evaluation: Evaluation) -> list[str]:
    """What there is a matrix of: the best of each run, then each name that all runs have.

    The best is left out where it has one name in all runs.
    """
    by_run: dict[str, dict[str, Metrics]] = {run: {} for run in evaluation.runs}
    for tested in evaluation.results:
        by_run[tested.run] |= tested.metrics
    first, *others = by_run.values()
    shared = [name for name in first if all(name in other for other in others)]
    is_one = len(set(evaluation.best.values())) == 1 and shared
    return shared if is_one else [BEST, *shared]


def cells_of(evaluation: Evaluation, name: str) -> dict[tuple[str, str], Cell]:
    """(run, store) -> AUROC and interval of a name, where there is one."""
    cells: dict[tuple[str, str], Cell] = {}
    for tested in evaluation.results:
        metrics = tested.metrics.get(evaluation.best[tested.run] if name == BEST else name)
        if metrics is not None:
            cells[tested.run, tested.store] = metrics.auroc, metrics.auroc_ci or ()
    return cells


def build_matrix(evaluation: Evaluation, name: str, *, intervals: bool) -> Table:
    """AUROCs of one name: a row a run, a column a store; a star where the store is the run's."""
    cells = cells_of(evaluation, name)
    rows = []
    for run in evaluation.runs:
        label = f"{run} ({evaluation.best[run]})" if name == BEST else run
        texts = []
        for pair in [(run, store) for store in evaluation.stores]:
            area, interval = cells.get(pair, (None, ()))
            text = with_interval(area, interval) if area is not None and intervals else short(area)
            texts.append(text + "*" * (pair in evaluation.own and pair in cells))
        rows.append((clean_text(label), *texts))
    return Table(("trained on", *store_headers(evaluation)), rows)


def store_headers(evaluation: Evaluation) -> list[str]:
    """Names above columns of numbers: short ones, still distinct."""
    names = [clean_text(name).removesuffix(".zarr") for name in evaluation.stores]
    cut = [name if len(name) <= N_OF_STORE else f"{name[: N_OF_STORE - 1]}…" for name in names]
    if len(set(cut)) == len(cut):
        return cut
    return [f"{i}: {name}"[:N_OF_STORE] for i, name in enumerate(names, 1)]


def write_evaluation(path: Path, evaluation: Evaluation, *, is_matrix: bool) -> None:
    """Write a page with the tables and the heat maps."""
    sections = list(build_sections(evaluation, is_matrix=is_matrix))
    write_text(path, render_html("Trained on one store, tested on others", sections))


def build_sections(evaluation: Evaluation, *, is_matrix: bool) -> Iterator[Section]:
    """What was tested on what, and the numbers."""
    paths = [
        (clean_text(name), clean_text(path))
        for group in (evaluation.runs, evaluation.stores)
        for name, path in group.items()
    ]
    about = in_words("evaluation_notes", is_matrix)
    yield Section("What was tested", about, [Table(("", "path"), paths, n_left=2)])
    if is_matrix:
        yield from build_matrix_sections(evaluation)
    for tested in evaluation.results:
        title = clean_text(f"{tested.run} on {tested.store}")
        lines = [
            sentence(clean_text(text, 1000))
            for text in [in_words("judged", tested), *tested.remarks]
        ]
        groups = [ELSEWHERE, RATES, CALIBRATION, *([GUARANTEE] if has_guarantee(tested) else [])]
        tables = [build_numbers(tested.metrics, columns) for columns in groups]
        yield Section(title, "\n".join(lines), tables if tested.metrics else [])


def build_matrix_sections(evaluation: Evaluation) -> Iterator[Section]:
    """Each matrix as a table, and as a picture where something was judged."""
    runs, stores = list(evaluation.runs), list(evaluation.stores)
    for i, name in enumerate(names_of_matrices(evaluation)):
        cells, picture = cells_of(evaluation, name), None
        if cells:
            figure = draw_heat_map(cells, runs, stores, evaluation.own)
            picture = Picture(f"heat_map_{i}", figure, "AUROC by run (rows) and store (columns)")
        table = build_matrix(evaluation, name, intervals=True)
        yield Section(f"AUROC of {name}", tables=[table], picture=picture)
