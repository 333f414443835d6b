"""Tables as texts: numbers as they are in the results, dashes for those that are none, texts cut
and cleaned."""

import copy
import math
from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console
from runs import make_results

from train.evaluate.calibrate import fit_temperature
from train.evaluate.results import Counts, Cut, LeftOut, Metrics, Transfer
from train.report import tables
from train.report.console import print_table
from train.report.evidence import find_mistakes
from train.report.numbers import clean_text, short, short_p, with_interval
from train.report.render import Table


@pytest.mark.parametrize(
    "number, text",
    [
        (0.9174, ".917"),
        (-0.0361, "-.036"),
        (1.0, "1.000"),
        (0.9996, "1.000"),
        (0.0, ".000"),
        (-1.25, "-1.250"),
        (None, "–"),
        (math.nan, "–"),
        (-math.inf, "–"),
    ],
)
def test_numbers_are_short(number, text):
    assert short(number) == text


def test_a_temperature_at_an_end_of_its_search_is_no_number():
    """Of scores that rank the wrong way round, and of those that are never wrong."""
    labels, scores = np.array([0, 1] * 50), np.tile([0.45, 0.55], 50)
    for of_scores, text in ((1 - scores, ">148"), (scores, "<.007"), (0 * scores + 0.6, None)):
        found = Metrics(0.5, temperature=fit_temperature(labels, of_scores))
        table = tables.build_numbers({"x": found}, {"T": "temperature"})
        assert (table.rows[0][1] == text) == (text is not None)


def test_what_was_left_out_says_on_how_many_traces_it_rests():
    """All of the value, and those of them that a run on all values tests, too."""
    value = LeftOut("squad", Counts(150, 75, 60), 32, {"x": Transfer(0.7, [0.6, 0.8])})
    table = tables.build_transfer(make_results(transfer=[value]))
    assert table.groups == {0: "squad (150 traces, 32 of them in domain)"}


@pytest.mark.parametrize(
    "p, text", [(0.0004, "<.001"), (0.0, "<.001"), (0.001, ".001"), (1.0, "1.000"), (None, "–")]
)
def test_p_values_are_never_rounded_to_zero(p, text):
    assert short_p(p) == text


@pytest.mark.parametrize(
    "text, shown",
    [
        ("two\n lines\tand  more", "two lines and more"),
        ("a\x1b[31mred\u202eback", "a�[31mred�back"),
        ("x" * 200, "x" * 200),
        ("x" * 201, "x" * 199 + "…"),
        ("", ""),
    ],
)
def test_texts_are_one_clean_line(text, shown):
    assert clean_text(text) == shown


def test_the_best_of_each_metric_is_marked(make_evidence):
    """The highest, or the lowest of errors; equal as shown, all of them; never a constant score."""
    results = make_evidence(models=1, baselines=1).results
    changes = {name: {} for name in results.entries} | {
        "model_0": {"f1": 0.6, "ece": 0.3, "mcc": 0.1},
        "base_0": {"auroc": 0.7001},
        "majority": {"ece": 0.0, "auroc_ci": [0.5, 0.5]},
    }
    equal = {"auroc": 0.7, "f1": 0.5, "ece": 0.2, "mcc": math.nan}
    for name, entry in results.entries.items():
        entry.test = replace(entry.test, **(equal | changes[name]))
    table = tables.build_metrics(results)
    found = {
        column: {row for row, at in table.best if table.header[at] == column}
        for column in ("AUROC [95%]", "F1", "ECE", "MCC")
    }
    assert found == {"AUROC [95%]": {0, 1}, "F1": {0}, "ECE": {1}, "MCC": set()}
    assert table.groups == {0: "detectors", 1: "baselines"}


def test_neither_a_control_nor_chance_is_the_best(make_evidence):
    """Whatever number they have."""
    results = copy.deepcopy(make_evidence(models=2, baselines=2).results)
    changes = {"model_0": {"ece": 0.2}, "model_1": {"ece": 0.3}, "base_1": {"ece": 0.0}}
    changes["base_0"] = {"ece": 0.0, "auroc_ci": [0.49, 0.6]}
    for name, numbers in changes.items():
        entry = results.entries[name]
        entry.test = replace(entry.test, **({"auroc_ci": [0.6, 0.9]} | numbers))
    results.baselines["base_1"].control = True
    table = tables.build_metrics(results)
    best = {table.rows[row][0] for row, at in table.best if table.header[at] == "ECE"}
    assert best == {"model_0"}


def test_rates_and_calibration_have_intervals(make_evidence):
    """A dash for what so few traces cannot have; no line for a constant."""
    results = make_evidence().results
    test = results.models["model_0"].test
    rates, calibration = (
        tables.build_grouped(results, columns) for columns in (tables.RATES, tables.CALIBRATION)
    )
    assert [row[0] for row in rates.rows] == ["model_0", "model_1", "base_0", "base_1"]
    assert rates.rows[0][1] == "–"
    assert rates.rows[0][3] == with_interval(test.recall_at_10, test.recall_at_10_ci)
    assert calibration.rows[0][1] == with_interval(test.ece, test.ece_ci)
    assert calibration.rows[0][-1] == short(test.isotonic_brier)
    assert rates.groups == calibration.groups == {0: "detectors", 2: "baselines"}


def test_metrics_have_a_line_for_everything(make_evidence):
    """Of several seeds with their spread, which baselines do not have."""
    results = make_evidence(n_runs=2).results
    table = tables.build_metrics(results)
    assert table.header[:4] == ("", "AUROC [95%]", "sd", "AUPRC")
    assert [row[0] for row in table.rows] == list(results.entries)
    assert {len(row) for row in table.rows} == {len(table.header)}
    test = results.models["model_0"].test
    low, high = map(short, test.auroc_ci)
    expected = (f"{short(test.auroc)} [{low}, {high}]", short(test.auroc_sd), short(test.auprc))
    assert table.rows[0][1:4] == expected
    assert table.rows[-1][2] == ""


def test_what_is_no_number_is_a_dash(make_evidence):
    results = copy.deepcopy(make_evidence().results)
    numbers = {"auroc": math.nan, "auroc_ci": [math.nan, None], "ece": None}
    results.models["model_0"].test = replace(results.models["model_0"].test, **numbers)
    assert tables.build_metrics(results).rows[0][1] == "– [–, –]"
    results.comparisons[0].p_delong = math.nan
    assert tables.build_comparisons(results.comparisons).rows[0][4] == "–"


def test_facts_tell_what_is_not_the_default(make_evidence):
    rows = dict(tables.build_facts(make_evidence(n_runs=2).results).rows)
    assert rows["settings that are not the defaults"] == "epochs = 4"
    assert rows["store"] == "/data/traces.zarr"
    # 1.5 s for each of two seeds of two models, and two baselines
    assert rows["training and scoring"] == "9 s"
    assert "Python 3" in rows["versions"]


def test_split_has_base_rates(make_evidence):
    results = make_evidence().results
    n = results.split.test.hallucinations
    assert tables.build_split(results).rows[2] == ("test", "60", "30", str(n), short(n / 60))


def test_sensitivity_has_a_column_per_threshold():
    cuts = [Cut(0.3 + i / 10, 9, n, {"x": n / 10, "y": None}) for i, n in enumerate([3, 5])]
    table = tables.build_sensitivity(cuts)
    assert table.header[1:] == ("0.3", "0.4")
    assert table.rows[1:] == [("hallucinations", "3", "5"), ("x", ".300", ".500"), ("y", "–", "–")]


def test_mistakes_have_the_texts_of_their_rows(make_evidence):
    evidence = make_evidence(trace_id="t", question="What?", answer="x" * 300)
    mistakes = find_mistakes(evidence, "base_0", n=5)
    table = tables.build_mistakes(evidence, "base_0", n=5)
    assert table.header == ("trace", "label", "score", "question", "answer")
    assert [row[0] for row in table.rows] == [f"t{one.position}" for one in mistakes]
    assert [row[3] for row in table.rows] == [f"What? {one.position}" for one in mistakes]
    assert {len(row[4]) for row in table.rows} == {200}


def test_the_terminal_shows_texts_as_they_are(capsys):
    """No text is markup, and where there is no room words are folded, never numbers."""
    table = Table(("name", "n"), [("[red]a long name[/red]", "1.234"), ("b", "5")])
    print_table(replace(table, groups={1: "[b]"}), Console(width=18), "[bold]title")
    out = capsys.readouterr().out
    assert "[bold]title" in out
    assert "[red]a long" in out
    assert "[b]" in out
    assert "1.234" in out
    assert "…" not in out


def test_comparisons_with_controls_are_marked(make_evidence):
    """Those of one split, and those over several."""
    tests = [replace(one) for one in make_evidence().results.comparisons[:2]]
    tests[1].control = True
    over_splits = [replace(one, differences=[0.1, 0.2], p=0.5) for one in tests]
    for rows in (tables.build_comparisons(tests).rows, tables.build_comparisons(over_splits).rows):
        assert [row[1] for row in rows] == ["base_0", "base_1 (control)"]


def test_headers_of_numbers_give_way_before_names_do(capsys):
    """Of a table that is too wide; one with room has them on one line."""
    table = Table(("", "ECE (isotonic)", "Brier (isotonic)"), [("a_long_name", ".123", ".456")])
    for width, header in ((44, "ECE (isotonic) Brier (isotonic)"), (36, "(isotonic) (isotonic)")):
        print_table(table, Console(width=width), "")
        *_, shown, row, _ = capsys.readouterr().out.splitlines()
        assert shown.strip() == header
        assert row.split() == ["a_long_name", ".123", ".456"]
