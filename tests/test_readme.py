"""The code of the README and of the other documents runs as it stands, and their links lead
somewhere."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from models import BASELINES, CONTROLS, DETECTORS, PROBES, find
from store.traces.columns import TRACE_COLUMNS
from train.config import parse_arguments
from train.data.requirements import kind_of, open_data, roles_of

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
GENERATED = [ROOT / "docs" / "cli.md"]  # of the site; `make docs` writes and checks them
DOCUMENTS = [README, ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]

# when torch-geometric 2.8 is imported
PYG = "ignore:`torch.jit.script` is deprecated:DeprecationWarning"


def blocks(document, language):
    """The code blocks of a document in one language."""
    found = re.findall(r"^```(\w*)\n(.*?)^```", document.read_text(), re.DOTALL | re.MULTILINE)
    return [code for name, code in found if name == language]


def name_of(document):
    return str(document.relative_to(ROOT))


@pytest.mark.parametrize("name", ["README.md", "docs/guide.md", "docs/detectors.md"])
def test_python_blocks_run(tmp_path, name):
    """One after the other, in an empty folder; those of the guide after those of the README."""
    documents = [ROOT / name] if name != "docs/guide.md" else [README, ROOT / name]
    code = "\n".join(code for document in documents for code in blocks(document, "python"))
    script = tmp_path / "blocks.py"
    script.write_text(f"import sys; sys.path.insert(0, {str(ROOT)!r})\n{code}")
    done = subprocess.run(
        [sys.executable, "-W", "error", "-W", PYG, script],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_the_store_of_the_tour_can_be_trained_on(tmp_path):
    """By the command that the README gives, with the detectors whose columns the store has."""
    script = tmp_path / "tour.py"
    tour = "\n".join(blocks(README, "python"))
    script.write_text(f"import sys; sys.path.insert(0, {str(ROOT)!r})\n{tour}")
    subprocess.run([sys.executable, script], cwd=tmp_path, capture_output=True, check=True)
    (command,) = re.findall(r"^python -m train (--store .*?) +#", README.read_text(), re.MULTILINE)
    config = parse_arguments(command.split()).config
    assert config.store == "traces.zarr"
    work = open_data(config, tmp_path / config.store)
    assert work.names == [
        "lstm_solo",
        "saplma",
        "clap",
        "act_conv",
        "act_vit",
        "logreg_pca",
    ]


def test_each_detector_is_listed_with_its_columns():
    """And each of these columns with its kind: text, fixed or ragged, with as many axes."""
    text = (ROOT / "docs" / "detectors.md").read_text()
    rows = [line.split(" | ") for line in text.splitlines() if line.startswith("| `")]
    needed = {"question_id", "label"}
    for name in [*DETECTORS, *PROBES, *BASELINES, *CONTROLS]:
        columns = set(roles_of(find(name)))
        needed |= columns
        listed = re.findall(r"`(\w+)`", " ".join(row_of(rows, name)))
        assert columns - {"question_id"} <= set(listed), name
    section = text.partition("## The columns")[2].partition("\n## ")[0]
    rows = [line.split(" | ") for line in section.splitlines() if line.startswith("| `")]
    shapes = {name: row[1] for row in rows for name in re.findall(r"`(\w+)`", row[0])}
    assert needed <= shapes.keys()
    for name, shape in shapes.items():
        column = TRACE_COLUMNS[name]
        known = kind_of(column.dtype, column.axis, len(column.item_axes))
        assert known == kind_of_shape(shape), name


def row_of(rows, name):
    """The first row of the tables that lists a detector."""
    return next(row for row in rows if f"`{name}`" in row[0])


def kind_of_shape(shape):
    """'(T, L, d), ragged' in the words of `kind_of`."""
    if shape == "text":
        return shape
    axes = re.search(r"\((.*)\)", shape)
    n_axes = len(re.sub(r"\(.*?\)", "", axes[1]).split(", ")) if axes else 0
    layout = "ragged" if shape.endswith("ragged") else "fixed"
    n_item_axes = n_axes - (layout == "ragged")
    return f"{layout} with {n_item_axes} item axes"


def test_no_python_block_is_left_out():
    """Documents that are not run have none."""
    with_python = {name_of(document) for document in DOCUMENTS if blocks(document, "python")}
    assert with_python == {"README.md", "docs/guide.md", "docs/detectors.md"}


def test_bash_blocks_run(tmp_path):
    """As a user runs them in a checkout, but leaving nothing there."""
    (tmp_path / "store").symlink_to(ROOT / "store")
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    codes = [code for document in DOCUMENTS for code in blocks(document, "bash")]
    assert codes
    for code in codes:
        done = subprocess.run(
            ["bash", "-euc", code],
            cwd=tmp_path,
            env=os.environ | {"PATH": path},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert "hidden_states" in done.stdout


def test_commands_exist():
    """Each `make` target and each `python -m` command that a document names answers."""
    text = "\n".join(code for document in DOCUMENTS for code in blocks(document, "sh"))
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert set(re.findall(r"make ([a-z-]+)", text)) <= set(targets)
    commands = set(
        re.findall(r"python -m (store \w+|train (?:compare|evaluate|predict)|train)", text)
    )
    assert {"store extract", "train", "train evaluate", "train predict"} <= commands
    for command in sorted(commands):
        arguments = [sys.executable, "-m", *command.split(), "--help"]
        subprocess.run(arguments, cwd=ROOT, capture_output=True, check=True)


@pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)
def test_links_lead_to_files(document):
    """Links and pictures, and the headings that they name."""
    for target in re.findall(r"\]\(([^)\s]+)\)", document.read_text()):
        if target.startswith("https://"):
            continue
        path, _, heading = target.partition("#")
        linked = (document.parent / path).resolve() if path else document
        assert linked.exists() or linked in GENERATED, target
        assert not heading or heading in headings(linked), target


def headings(document):
    """The anchors of a document's headings, as GitHub makes them."""
    lines = re.findall(r"^#+ (.*)$", document.read_text(), re.MULTILINE)
    kept = (re.sub(r"[^\w\- ]", "", line.lower()) for line in lines)
    return {line.replace(" ", "-") for line in kept}


@pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)
def test_benchmarks_that_are_cited_exist(document):
    """Scripts, and tables of results."""
    text = document.read_text().replace("my_question", "peers")  # of a recipe
    for name in re.findall(r"python -m benchmarks\.([a-z_]+)", text):
        assert (ROOT / "benchmarks" / f"{name}.py").exists(), name
    for name in re.findall(r"\b([a-z_]+\.(?:csv|png))\b", " ".join(re.findall("`(.*?)`", text))):
        if name not in ("scores.csv", "judged.csv", "ground_truth_scores.csv", "answers.csv"):
            assert (ROOT / "benchmarks" / "results" / name).exists(), name


@pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)
def test_files_that_are_named_exist(document):
    """Paths of files of this checkout; those of recipes have `my_` in their names."""
    text = document.read_text()
    for path in re.findall(r"`((?:store|models|train|tests|benchmarks|docs)/[\w./-]+)`", text):
        if "my_" not in path and not path.startswith("benchmarks/results/NAME"):
            assert (ROOT / path).exists(), path


def test_the_readme_is_short():
    assert README.read_text().count("\n") <= 150


def test_the_map_names_folders_that_exist():
    """Each folder of the map in CONTRIBUTING.md, below the one that it is indented under."""
    document = ROOT / "CONTRIBUTING.md"
    tree = next(block for block in blocks(document, "") if block.startswith("store/"))
    parents = {}
    for line in tree.splitlines():
        indent = len(line) - len(line.lstrip())
        parents[indent] = parents.get(indent - 2, ROOT) / line.split()[0]
        assert parents[indent].is_dir(), line
