"""The code of the README and of the other documents runs as it stands, and their links lead
somewhere."""

import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
from contextlib import chdir
from importlib import import_module
from itertools import groupby, takewhile
from pathlib import Path

import pytest

from docs.generate import METHODS, method_sections
from models import BASELINES, CONTROLS, DETECTORS, PROBES, find
from store.cli.arguments import attach_values
from store.cli.main import main as store_main
from store.cli.main import parse
from train.commands.main import main as train_main
from train.config import parse_arguments
from train.data.requirements import roles_of
from train.outside import forget
from train.run.plan import open_data

pytestmark = pytest.mark.usefixtures("one_core")
ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
DOCUMENTS = [README, ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]

MAINS = {"python -m store": store_main, "python -m train": train_main}
PROGRAM = re.compile(r"\b(python -m \w+|trace-store|trace-train)\b(.*)")


def blocks(document, language):
    """The code blocks of a document in one language."""
    found = re.findall(r"^```(\w*)\n(.*?)^```", document.read_text(), re.DOTALL | re.MULTILINE)
    return [code for name, code in found if name == language]


def name_of(document):
    return str(document.relative_to(ROOT))


def documents_with(language):
    return [document for document in DOCUMENTS if blocks(document, language)]


def commands_of(document):
    """The command lines of our programs in a document: program and arguments."""
    code = [code for language in ("sh", "bash") for code in blocks(document, language)]
    for line in "\n".join(code).replace("\\\n", " ").replace("{}", "1").splitlines():
        if PROGRAM.search(line):
            text = shlex.join(shlex.split(line, comments=True))
            for program, typed in PROGRAM.findall(text):
                yield program, list(takewhile(lambda word: word != "|", shlex.split(typed)))


def run_python_blocks(document, folder):
    """One after the other, in this process."""
    script = folder / f"{document.stem}.py"
    script.write_text("\n".join(blocks(document, "python")))
    with chdir(folder):
        runpy.run_path(str(script))


@pytest.fixture(scope="module")
def tour(tmp_path_factory):
    """A folder in which the Python blocks of the README have run."""
    folder = tmp_path_factory.mktemp("tour")
    run_python_blocks(README, folder)
    return folder


@pytest.mark.parametrize("document", documents_with("python")[1:], ids=name_of)
def test_python_blocks_run(document, tour, tmp_path):
    """In a folder of their own; docs/python.md goes on with the store of the README."""
    shutil.copytree(tour / "traces.zarr", tmp_path / "traces.zarr")
    run_python_blocks(document, tmp_path)


def test_the_store_of_the_tour_can_be_trained_on(tour):
    """By the command that the README gives, with the detectors whose columns the store has."""
    (command,) = re.findall(r"^python -m train (--store .*?) +#", README.read_text(), re.MULTILINE)
    config = parse_arguments(command.split()).config
    assert config.store == "traces.zarr"
    names = "lstm_solo saplma clap layer_transitions act_conv act_vit logreg_pca mahalanobis "
    names += "relative_mahalanobis haloscope haloscope_projection"
    assert open_data(config, [tour / config.store]).names == names.split()


def test_each_method_is_listed_with_its_columns():
    """Detectors and probes in the site, where their docstrings follow."""
    text = (ROOT / "docs" / "detectors.md").read_text()
    assert METHODS in text
    rows = f"{method_sections()}\n{text[text.index('| baseline |') :]}".splitlines()
    for name in [*DETECTORS, *PROBES, *BASELINES, *CONTROLS]:
        row = next(row for row in rows if re.match(rf"\| [^|]*`{name}`", row))
        assert set(roles_of(find(name))) - {"question_id"} <= set(re.findall(r"`(\w+)`", row)), name
        assert f"`{name}`" in text


FEWER = {
    "example_questions(400)": "example_questions(80)",
    "--epochs 5": "--epochs 1 --seeds 1 --tune none",
}


@pytest.mark.parametrize(
    ("name", "printed", "shorter"),
    [
        ("extract", "hidden_states", {}),
        ("tutorial", "lstm_solo", FEWER),
        pytest.param("tutorial", "lstm_solo", {}, marks=pytest.mark.slow),
    ],
)
def test_bash_blocks_run(tmp_path, monkeypatch, capsys, name, printed, shorter):
    """As a user runs them in a checkout, but leaving nothing there; our programs in this process,
    which spares their imports."""
    (tmp_path / "store").symlink_to(ROOT / "store")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    code = "\n".join(blocks(ROOT / "docs" / f"{name}.md", "bash")).replace("\\\n", " ")
    for long, short in shorter.items():
        assert long in code
        code = code.replace(long, short)
    for is_ours, lines in groupby(code.splitlines(), key=lambda line: bool(PROGRAM.match(line))):
        if is_ours:
            for program, typed in PROGRAM.findall("\n".join(lines)):
                assert MAINS[program](shlex.split(typed)) == 0
        else:
            shell = ["bash", "-euc", "\n".join(lines)]
            subprocess.run(shell, check=True, stdout=subprocess.DEVNULL)
    assert printed in capsys.readouterr().out


def test_no_block_is_left_out():
    named = {language: {*map(name_of, documents_with(language))} for language in ("python", "bash")}
    run = {f"docs/{name}.md" for name in ("guard", "import", "own_detector", "python")}
    assert named == {"python": {"README.md"} | run, "bash": {"docs/extract.md", "docs/tutorial.md"}}


def test_targets_of_make_exist():
    text = "\n".join(code for document in DOCUMENTS for code in blocks(document, "sh"))
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert set(re.findall(r"make ([a-z-]+)", text)) <= set(targets)


@pytest.mark.parametrize("document", documents_with("sh"), ids=name_of)
def test_commands_are_understood(document, tmp_path, monkeypatch):
    """Each command line, with its options, by the parser of its program; nothing is run."""
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    (tmp_path / "runs" / "traces").mkdir(parents=True)
    (tmp_path / "runs" / "traces" / "run.json").write_text('{"epochs": 3}')
    monkeypatch.chdir(tmp_path)
    for program, words in commands_of(document):
        if program in ("python -m store", "trace-store"):
            parse(attach_values(words))
            if "--" in words:  # of launch: the command that it cuts into parts
                parse(attach_values(words[words.index("--") + 1 :]))
        elif words and words[0] in ("compare", "evaluate", "predict", "serve"):
            import_module(f"train.commands.{words[0]}").build_parser().parse_args(words[1:])
        elif program in ("python -m train", "trace-train"):
            parse_arguments(words)
            forget()


@pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)
def test_links_lead_to_files(document):
    """Links and pictures, and the headings that they name."""
    for target in re.findall(r"\]\(([^)\s]+)\)", document.read_text()):
        if target.startswith("https://"):
            continue
        path, _, heading = target.partition("#")
        linked = (document.parent / path).resolve() if path else document
        assert linked.exists(), target
        assert not heading or heading in headings(linked), target


def headings(document):
    """The anchors of a document's headings, as GitHub makes them."""
    lines = re.findall(r"^#+ (.*)$", document.read_text(), re.MULTILINE)
    kept = (re.sub(r"[^\w\- ]", "", line.lower()) for line in lines)
    return {line.replace(" ", "-") for line in kept}


OF_USERS = {"scores", "questions", "judged", "ground_truth_scores", "answers", "notes"}


@pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)
def test_files_that_are_named_exist(document):
    """Paths of this checkout, benchmarks and their tables; those of recipes have `my_` in their
    names."""
    text = document.read_text().replace("my_question", "peers")
    paths = re.findall(r"`((?:store|models|train|tests|benchmarks|docs)/[\w./-]+)`", text)
    modules = re.findall(r"python -m benchmarks\.([a-z_]+)", text)
    tables = re.findall(r"\b([a-z_]+)\.(csv|png)\b", " ".join(re.findall("`(.*?)`", text)))
    paths += [f"benchmarks/{name}.py" for name in modules]
    paths += [f"benchmarks/results/{'.'.join(one)}" for one in tables if one[0] not in OF_USERS]
    for path in paths:
        if "my_" not in path and not path.startswith("benchmarks/results/NAME"):
            assert (ROOT / path).exists(), path


def test_documents_that_code_names_exist():
    for room in ("store", "models", "train", "benchmarks"):
        for path in (ROOT / room).rglob("*.py"):
            for name in re.findall(r"\bdocs/\w+\.md", path.read_text()):
                assert (ROOT / name).exists(), f"{path}: {name}"


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
