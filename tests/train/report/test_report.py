"""The report of a run, as it is written: whole ones beside this file, which `pytest --golden`
writes, and one of a run on hostile texts."""

import io
import math
import re
from dataclasses import replace

import numpy as np
import pytest
import small
from rich.console import Console
from runs import train

from store import Column
from train.errors import OutputError
from train.evaluate.over_splits import summarise_splits
from train.evaluate.results import Counts, Cut, Epoch, LeftOut, Transfer
from train.report import build_sections, write_pages
from train.report.console import print_results
from train.report.render import in_words

FIGURES = "calibration forest histograms layers learning_curves precision_recall risk_coverage roc"


def everything(make):
    """Of one split and one training: a control, texts, what was left out, other thresholds."""
    evidence = make(trace_id="t", question="What?", answer="x" * 300)
    results = evidence.results
    results.baselines["base_1"].control = True
    for test in results.comparisons:
        test.control = test.b == "base_1"
    results.split.unlabelled = 1
    results.split.test.questions = results.split.test.rows
    results.config["split"] = "dataset"
    transfer = {"model_0": Transfer(0.7, [0.6, 0.8])}
    results.transfer = [LeftOut("squad", Counts(150, 75, 60), 32, transfer)]
    areas = [{"model_0": area, "base_0": None} for area in (0.3, 0.5)]
    results.label_sensitivity = [Cut(0.3 + i / 10, 9, i, area) for i, area in enumerate(areas)]
    return evidence


def gaps(make):
    """Of two trainings: NaN and None among the metrics, the tests, the layers and the histories."""
    evidence = make(n_runs=2)
    results = evidence.results
    first, second = results.models.values()
    for name, value in vars(second.test).items():
        if isinstance(value, float):
            setattr(second.test, name, math.nan)
    second.test.auroc_ci = [None, math.nan]
    first.layers = [1, 2, 3]
    first.layer_val_auroc = [None, 0.7, math.nan]
    first.runs[0].history[1] = Epoch(1, math.nan, 0.5)
    results.comparisons[0].p_holm = results.comparisons[1].p_delong = None
    results.split.unlabelled = 1200
    return evidence


def splits(make):
    """Of two splits, the second of which lacks a baseline: it has no mean."""
    evidence = make(n_runs=2)
    results = evidence.results
    results.baselines["base_0"].layers = [1, 2]
    results.baselines["base_0"].layer_val_auroc = [0.6, 0.7]
    others = {name: one for name, one in results.baselines.items() if name != "base_0"}
    tests = [one for one in results.comparisons if one.b != "base_0"]
    left_out = {"base_0": "infinity"}
    second = replace(results, baselines=others, comparisons=tests, left_out=left_out)
    results.splits = summarise_splits([replace(results), second])
    return evidence


def detector_alone(make):
    """Of two splits and one training; there is no baseline."""
    evidence = make(models=1, baselines=0)
    evidence.results.splits = summarise_splits([replace(evidence.results)] * 2)
    return evidence


def baselines_alone(make):
    return make(models=0)


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize("make", [everything, gaps, splits])
def test_a_whole_report(make, make_evidence, golden, tmp_path):
    """The page, the table for a paper, and what is on the terminal; of versions only that they are
    there."""
    evidence = make(make_evidence)
    write_pages(evidence, tmp_path)
    screen = io.StringIO()
    print_results(evidence.results, Console(file=screen, width=100))
    shown = [line.rstrip() for line in screen.getvalue().splitlines()]
    pages = [(tmp_path / name).read_text() for name in ("report.md", "table.tex")]
    text = "\n\n".join([*pages, "\n".join(shown)]) + "\n"
    assert "nan" not in text
    golden(f"{make.__name__}.txt", re.sub(r"(Python 3)\S+ .*\|", r"\1 |", text))


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize("make", [detector_alone, baselines_alone])
def test_what_is_missing_is_left_out(make, make_evidence, golden):
    sections = build_sections(make(make_evidence))
    golden(f"{make.__name__}.txt", "".join(f"== {one.title}\n{one.text}\n\n" for one in sections))


@pytest.mark.usefixtures("undrawn")
def test_every_short_header_of_the_metrics_is_explained(make_evidence):
    """Beside the table, in the words of the field."""
    _, section, *_ = build_sections(make_evidence(n_runs=2))
    for header in section.tables[0].header[1:]:
        name = header.removesuffix(" [95%]")
        assert re.search(rf"\b{name}( is|:|\))", section.text + section.notes), name


@pytest.mark.usefixtures("undrawn")
def test_the_verdict_is_the_same_on_the_page(make_evidence, tmp_path):
    evidence = make_evidence()
    write_pages(evidence, tmp_path)
    sentences = in_words("verdict", evidence.results).splitlines()
    assert len(sentences) == 3
    for name in ("report.md", "report.html", "table.tex"):
        assert all(sentence in (tmp_path / name).read_text() for sentence in sentences)


def test_a_place_that_cannot_be_written(make_evidence, tmp_path):
    """One line, as for every other file."""
    (tmp_path / "figures").write_text("")
    with pytest.raises(OutputError, match="figures: expected a directory"):
        write_pages(make_evidence(), tmp_path)


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """The folder of a run on a store whose texts are hostile, and both of its reports."""
    path, rng = tmp_path_factory.mktemp("report"), np.random.default_rng(0)
    columns = dict.fromkeys(("question_id", "question", "answer", "references"), "utf8")
    columns |= {"label": "int8", "score": "float32", "hs_last": Column("float16", (2, 8))}
    rows = {}
    for i in range(200):
        label = int(rng.integers(0, 2))
        states = (rng.normal(size=(2, 8)) + 0.3 * label).astype(np.float16)
        row = {"label": label, "score": 0.9 - 0.8 * label, "hs_last": states}
        texts = {"question": f"<script>q{i}</script>", "answer": f"a|{i}\nb", "references": "[]"}
        rows[f"<i>t{i}|</i>"] = row | texts | {"question_id": f"q{i}"}
    small.make_store(path / "s.zarr", columns, rows)
    train(path / "s.zarr", path / "out", "--only=lstm_solo,logreg_first,logreg_best,majority")
    return path / "out", *((path / "out" / f"report.{kind}").read_text() for kind in ("md", "html"))


def test_every_section_and_figure_is_there(pages):
    """The same titles in both reports, and every figure that Markdown shows."""
    path, markdown, page = pages
    titles = re.findall("^## (.*)", markdown, re.MULTILINE)
    assert (titles[0], titles[-1], len(titles)) == ("Verdict", "The run", 14)
    assert re.findall("<h2>(.*?)</h2>", page) == titles
    figures = sorted((path / "figures").iterdir())
    assert [figure.stem for figure in figures] == FIGURES.split()
    assert all(figure.read_bytes().startswith(b"\x89PNG") for figure in figures)
    assert all(f"](figures/{figure.name})" in markdown for figure in figures)


def test_texts_of_traces_are_texts(pages):
    """Trace ids, questions and answers, escaped for either kind."""
    _, markdown, page = pages
    assert "<script" not in page
    assert "&lt;script&gt;q" in page
    assert "<i>" not in page
    assert "| \\<i>t" in markdown
    assert "a\\|" in markdown
    lines = markdown.partition("## Most confident mistakes")[2].partition("\n## ")[0].splitlines()
    rows = [line.replace("\\|", "") for line in lines if line.startswith("|")]
    assert {line.count("|") for line in rows} == {7}
