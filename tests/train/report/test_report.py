"""The report of a run, as it is written."""

import copy
import dataclasses
import math
import re

import numpy as np
import pytest
import small
from rich.console import Console
from runs import train

from store import Column
from train.errors import OutputError
from train.evaluate.results import Cut, Epoch
from train.report import build_sections, write_pages
from train.report.console import print_results
from train.report.render import in_words

TITLES = (
    "Verdict|Metrics on test|Costs|At fixed error rates|Paired tests|ROC|Precision and recall|"
    "Calibration|Risk and coverage|Scores by class|Learning curves|"
    "Where in the layers the signal lies|Most confident mistakes|The run"
)
FIGURES = "calibration forest histograms layers learning_curves precision_recall risk_coverage roc"


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory):
    """A run on a store whose texts are hostile."""
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
    return path / "out"


def headings(text):
    return [line.removeprefix("## ") for line in text.splitlines() if line.startswith("## ")]


def test_every_section_is_there(run_dir):
    """In Markdown and in HTML, and every figure that Markdown shows."""
    markdown, page = ((run_dir / f"report.{kind}").read_text() for kind in ("md", "html"))
    assert headings(markdown) == TITLES.split("|")
    assert all(f"<h2>{title}</h2>" in page for title in TITLES.split("|"))
    figures = sorted((run_dir / "figures").iterdir())
    assert [path.stem for path in figures] == FIGURES.split()
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in figures)
    assert all(f"](figures/{path.name})" in markdown for path in figures)


def test_texts_of_traces_are_texts(run_dir):
    """Trace ids, questions and answers, escaped for either kind."""
    markdown, page = ((run_dir / f"report.{kind}").read_text() for kind in ("md", "html"))
    assert "<script" not in page
    assert "&lt;script&gt;q" in page
    assert "<i>" not in page
    assert "| \\<i>t" in markdown
    assert "a\\|" in markdown
    lines = markdown.partition("## Most confident mistakes")[2].partition("\n## ")[0].splitlines()
    rows = [line.replace("\\|", "") for line in lines if line.startswith("|")]
    assert {line.count("|") for line in rows} == {7}


def test_the_limit_of_a_test_is_said(run_dir):
    """DeLong's test errs more often than it says where questions are few."""
    text = " ".join((run_dir / "report.md").read_text().split())
    assert "fewer than about 30 questions of a class DeLong's test finds too many" in text


@pytest.mark.usefixtures("undrawn")
def test_the_verdict_is_the_same_everywhere(make_evidence, tmp_path, capsys):
    """On the terminal, in both reports, and as comments above the table for a paper."""
    evidence = make_evidence()
    evidence.results.split.test.questions = evidence.results.split.test.rows
    write_pages(evidence, tmp_path)
    print_results(evidence.results, Console(width=500))
    pages = [(tmp_path / name).read_text() for name in ("report.md", "report.html", "table.tex")]
    sentences = in_words("verdict", evidence.results).splitlines()
    assert len(sentences) == 3
    for page in (*pages, capsys.readouterr().out):
        assert all(sentence in page for sentence in sentences)


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize("models, baselines, n_runs", [(2, 0, 1), (0, 2, 1), (1, 1, 2)])
def test_what_is_missing_is_left_out(make_evidence, tmp_path, models, baselines, n_runs):
    """No baselines, no detectors, several seeds: a report of what there is."""
    evidence = make_evidence(models, baselines, n_runs)
    write_pages(evidence, tmp_path)
    text = (tmp_path / "report.md").read_text()
    assert ("Paired tests" in headings(text)) == (models > 0 and baselines > 0)
    assert ("There is no baseline to compare with." in text) == (not (models and baselines))
    assert ("Learning curves" in headings(text)) == (models > 0)
    assert ("means over the seeds" in text) == (n_runs > 1)


def test_numbers_that_are_none_break_nothing(make_evidence, tmp_path):
    """NaN and None among the metrics, the layers and the histories."""
    evidence = make_evidence()
    results = copy.deepcopy(evidence.results)
    first, second = results.models.values()
    for name, value in vars(second.test).items():
        if isinstance(value, float):
            setattr(second.test, name, math.nan)
    second.test.auroc_ci = [None, math.nan]
    first.layers = [1, 2, 3]
    first.layer_val_auroc = [None, 0.7, math.nan]
    first.runs[0].history[1] = Epoch(1, math.nan, 0.5)
    results.comparisons[0].p_holm = None
    results.label_sensitivity = [Cut(0.5, 1, 1, {"model_0": None})]
    write_pages(dataclasses.replace(evidence, results=results), tmp_path)
    assert "nan" not in (tmp_path / "report.md").read_text()
    assert (tmp_path / "figures" / "layers.png").exists()


def section_of(evidence, title):
    (found,) = (section for section in build_sections(evidence) if section.title == title)
    return found


@pytest.mark.usefixtures("undrawn")
def test_every_short_header_of_the_metrics_is_explained(make_evidence):
    """Beside the table, in the words of the field."""
    section = section_of(make_evidence(n_runs=2), "Metrics on test")
    for header in section.tables[0].header[1:]:
        name = header.removesuffix(" [95%]")
        assert re.search(rf"\b{name}( is|:|\))", section.text + section.notes), name


@pytest.mark.usefixtures("undrawn")
def test_unlabelled_traces_are_counted_where_there_are_some(make_evidence):
    evidence = make_evidence()
    assert "label" not in section_of(evidence, "The run").text
    evidence.results.split.unlabelled = 1
    assert "1 trace without a label is left out." in section_of(evidence, "The run").text
    evidence.results.split.unlabelled = 1200
    assert "1,200 traces without a label are left out." in section_of(evidence, "The run").text


def test_a_place_that_cannot_be_written(make_evidence, tmp_path):
    """One line, as for every other file."""
    (tmp_path / "figures").write_text("")
    with pytest.raises(OutputError, match="figures: expected a directory"):
        write_pages(make_evidence(), tmp_path)
