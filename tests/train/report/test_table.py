"""Tables as texts: numbers are short, the best are marked, and a terminal cuts nothing. What is in
them is in the whole reports of test_report.py."""

import copy
import math
from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console

from train.evaluate.calibrate import fit_temperature
from train.evaluate.results import Metrics, PairedTest
from train.report import tables
from train.report.console import print_table
from train.report.numbers import clean_text, p_value, short, short_p
from train.report.render import Table, render_latex


def p_of(**tests):
    return p_value(PairedTest(a="x", b="y", difference=0.1, ci=[0.0, 0.2], **tests))


@pytest.mark.parametrize(
    "found, text",
    [
        (short(0.9174), ".917"),
        (short(-0.0361), "-.036"),
        (short(1.0), "1.000"),
        (short(0.9996), "1.000"),
        (short(0.0), ".000"),
        (short(-1.25), "-1.250"),
        (short(None), "–"),
        (short(math.nan), "–"),
        (short(-math.inf), "–"),
        (short_p(0.0004), "<.001"),
        (short_p(0.0), "<.001"),
        (short_p(0.001), ".001"),
        (short_p(None), "–"),
        (p_of(p_bootstrap=0.002, p_bootstrap_least=0.002), "≤.002"),
        (p_of(p_bootstrap=0.004, p_bootstrap_least=0.002), ".004"),
        (p_of(p=0.0004), "<.001"),
        (p_of(p=0.5), ".500"),
        (clean_text("two\n lines\tand  more"), "two lines and more"),
        (clean_text("a\x1b[31mred\u202eback"), "a�[31mred�back"),
        (clean_text("x" * 200), "x" * 200),
        (clean_text("x" * 201), "x" * 199 + "…"),
    ],
)
def test_numbers_and_texts_are_short_and_clean(found, text):
    """A p is never rounded to 0, and is a bound where no resample could make it smaller."""
    assert found == text


def test_a_temperature_at_an_end_of_its_search_is_no_number():
    """Of scores that rank the wrong way round, and of those that are never wrong."""
    labels, scores = np.array([0, 1] * 50), np.tile([0.45, 0.55], 50)
    for of_scores, text in ((1 - scores, ">148"), (scores, "<.007"), (0 * scores + 0.6, None)):
        found = Metrics(0.5, temperature=fit_temperature(labels, of_scores))
        table = tables.build_numbers({"x": found}, {"T": "temperature"})
        assert (table.rows[0][1] == text) == (text is not None)


def best_of(results, changes, columns):
    """Column -> the names whose number is marked as the best, where tests have these changes."""
    results = copy.deepcopy(results)
    for name, entry in results.entries.items():
        entry.test = replace(entry.test, **changes.get(name, {}))
        entry.control = name == "base_1"
    table = tables.build_metrics(results)
    return {
        column: {table.rows[row][0] for row, at in table.best if table.header[at] == column}
        for column in columns
    }


def test_the_best_of_each_metric_is_marked(make_evidence):
    """The highest, or the lowest of errors; equal as shown, all of them; never a constant score, a
    control or chance."""
    results = make_evidence().results
    equal = {"auroc": 0.7, "auroc_ci": [0.6, 0.9], "f1": 0.5, "ece": 0.3, "mcc": math.nan}
    changes = {
        "model_0": {"f1": 0.6, "mcc": 0.1},
        "model_1": {"auroc": 0.7001, "ece": 0.2},
        "base_0": {"ece": 0.1, "auroc_ci": [0.49, 0.6]},
        "base_1": {"ece": 0.0, "f1": 0.9},
        "majority": {"ece": 0.0, "auroc_ci": [0.5, 0.5]},
    }
    changes = {name: equal | own for name, own in changes.items()}
    found = best_of(results, changes, ("AUROC [95%]", "F1", "ECE", "MCC"))
    two = {"model_0", "model_1"}
    assert found == {"AUROC [95%]": two, "F1": {"model_0"}, "ECE": {"model_1"}, "MCC": set()}


def test_the_terminal_shows_texts_as_they_are(capsys):
    """No text is markup; where there is no room headers of numbers give way first, then words are
    folded, never numbers."""
    table = Table(("name", "n"), [("[red]a long name[/red]", "1.234"), ("b", "5")])
    print_table(replace(table, groups={1: "[b]"}), Console(width=18), "[bold]title")
    out = capsys.readouterr().out
    assert all(text in out for text in ("[bold]title", "[red]a long", "[b]", "1.234"))
    assert "…" not in out
    table = Table(("", "ECE (isotonic)", "Brier (isotonic)"), [("a_long_name", ".123", ".456")])
    for width, header in ((44, "ECE (isotonic) Brier (isotonic)"), (36, "(isotonic) (isotonic)")):
        print_table(table, Console(width=width), "")
        *_, shown, row, _ = capsys.readouterr().out.splitlines()
        assert shown.strip() == header
        assert row.split() == ["a_long_name", ".123", ".456"]


def test_special_characters_of_latex_are_texts():
    text = render_latex(Table(("x",), [("\\{}$#^~",), ("a&b_–",)]), "On 50% of x_y")
    assert r"\textbackslash{}\{\}\$\#\textasciicircum{}\textasciitilde{}" in text
    assert r"a\&b\_--" in text
    assert r"\caption{On 50\% of x\_y}" in text
