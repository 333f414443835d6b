"""`python -m store plan`, against what the extraction of the example writes."""

import json
import shutil

import pytest

from store import TraceStore
from store.cli.main import main
from store.sources.example import MODEL_DIR, example_questions

N = 48
EXAMPLE = [
    "--model",
    str(MODEL_DIR),
    "--prompt-template",
    "{question}",
    "--max-new-tokens",
    "12",
    "--batch-size",
    "48",
    "--columns",
    "default,attn_edges,attn_edge_ends",
    "--labels",
    "exact,contains",
]


def write_lines(path, records):
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return str(path)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The example's first questions, the store that extract makes of them, and its answers."""
    path = tmp_path_factory.mktemp("plan")
    questions = example_questions(N)
    questions = [{**one, "month": i, "note": "é" * i} for i, one in enumerate(questions)]
    asked = write_lines(path / "asked.jsonl", questions)
    assert main(["extract", str(path / "made.zarr"), *EXAMPLE, "--questions", asked]) == 0
    answers = TraceStore.open(path / "made.zarr").column("answer")
    given = zip(questions, answers, strict=True)
    records = [{**question, "response": str(answer)} for question, answer in given]
    write_lines(path / "given.jsonl", records)
    return path


def plan(capsys, *arguments):
    """What the command prints as JSON, and its exit status."""
    capsys.readouterr()
    status = main(["plan", *map(str, arguments), "--json"])
    return json.loads(capsys.readouterr().out), status


def written(store):
    """Column -> bytes of its array on disk."""
    folders = {name: store.path / store.schema.layout(name).path for name in store.schema.stored}
    return {name: bytes_of(path) for name, path in folders.items()}


def bytes_of(path):
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())


def disk_bytes_of(path):
    """Blocks of 4 KiB: those of the files, and one of each folder."""
    places = [path, *path.rglob("*")]
    sizes = [place.stat().st_size if place.is_file() else 1 for place in places]
    return sum(-(-size // 4096) * 4096 for size in sizes)


def test_bytes_with_given_answers_are_those_of_the_store(folder, capsys):
    """Every raw column but that of the tokens' texts to the byte; all files within 2%."""
    store = TraceStore.open(folder / "made.zarr")
    found, status = plan(capsys, folder / "x.zarr", *EXAMPLE, "--questions", folder / "given.jsonl")
    assert status == 0
    assert found["certainty"] == "given"
    assert found["rows"] == N
    sizes = written(store)
    for name, column in store.schema.stored.items():
        if column.codec is None and name not in ("token_texts", "attn_edge_ends"):
            assert found["columns"][name]["bytes"] == sizes[name], name
    assert found["columns"].keys() == sizes.keys()
    assert found["files"] == sum(file.is_file() for file in store.path.rglob("*"))
    assert found["disk_bytes"] == pytest.approx(disk_bytes_of(store.path), rel=0.02)
    assert found["seconds"] is None
    assert found["memory"]["host"] is None
    weights = sum(file.stat().st_size for file in MODEL_DIR.glob("*.safetensors"))
    assert found["memory"]["weights"] == pytest.approx(weights, rel=0.05)
    assert not (folder / "x.zarr").exists()


def test_a_sample_tells_bytes_and_time(folder, capsys):
    """Of all questions here, so that only the compressed columns are not exact."""
    asked = ["--questions", folder / "asked.jsonl", "--sample", N, "--workers", 2]
    found, status = plan(capsys, folder / "x.zarr", *EXAMPLE, *asked)
    assert status == 0
    assert found["certainty"] == "sample"
    alone, _ = plan(capsys, folder / "x.zarr", *EXAMPLE, *asked[:-1], 1)
    assert alone["bytes"] == pytest.approx(bytes_of(folder / "made.zarr"), rel=0.02)
    assert found["bytes"] > alone["bytes"]  # two parts have two tails
    speed = found["sample"]
    assert found["seconds"] == pytest.approx(speed["load_s"] + N / 2 * speed["question_s"])
    assert speed["passes"].keys() == {"generation", "second pass"}
    assert found["memory"]["host"] > found["memory"]["weights"] + found["memory"]["columns"] > 0


def test_without_either_numbers_are_upper_bounds(folder, capsys):
    """From the configuration alone as well, which knows no tokens; no weights are needed."""
    asked = ["--questions", folder / "asked.jsonl"]
    made = bytes_of(folder / "made.zarr")
    for model in (MODEL_DIR, folder / "config.json"):
        if model != MODEL_DIR:
            shutil.copy(MODEL_DIR / "config.json", model)
        arguments = [folder / "x.zarr", *EXAMPLE, "--model", model, *asked, "--sample", 1]
        found, status = plan(capsys, *arguments[: -2 if model == MODEL_DIR else None])
        assert status == 0
        assert found["certainty"] == "longest"
        assert found["bytes"] > made
        assert found["seconds"] is None
    assert "four bytes count as a token" in found["remarks"][0]
    assert "the weights" in found["remarks"][-1]


def test_a_disk_that_is_too_small(folder, capsys, monkeypatch):
    """Exit status 1, and the table says so; --ignore-space goes on."""
    monkeypatch.setattr("store.write.space.free_bytes", lambda path: 1000)
    arguments = [str(folder / "x.zarr"), *EXAMPLE, "--questions", str(folder / "given.jsonl")]
    assert main(["plan", *arguments]) == 1
    printed = capsys.readouterr().out
    assert "IT DOES NOT FIT" in printed
    assert "hidden_states" in printed
    assert "time: not known" in printed
    assert main(["plan", *arguments, "--ignore-space"]) == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([*EXAMPLE, "--questions", "nowhere"], "expected a file of questions"),
        ([*EXAMPLE, "--model", "./nowhere", "--questions", "{asked}"], "found no such directory"),
        ([*EXAMPLE, "--layers", "9", "--questions", "{asked}"], "there is no layer 9"),
        ([*EXAMPLE, "--model", "{broken}", "--questions", "{asked}"], "num_hidden_layers"),
        ([*EXAMPLE, "--model", "{deep}", "--questions", "{asked}"], "at most 10000 layers"),
        ([*EXAMPLE, "--labels", "judge", "--questions", "{asked}"], "--judge-model"),
    ],
)
def test_a_mistake_is_one_line(arguments, message, folder, capsys):
    """And exit status 2."""
    config = json.loads((MODEL_DIR / "config.json").read_text())
    (folder / "broken.json").write_text(json.dumps(config | {"num_hidden_layers": "four"}))
    (folder / "deep.json").write_text(json.dumps(config | {"num_hidden_layers": 10**9}))
    places = {
        "{asked}": folder / "asked.jsonl",
        "{broken}": folder / "broken.json",
        "{deep}": folder / "deep.json",
    }
    typed = [str(places.get(argument, argument)) for argument in arguments]
    assert main(["plan", str(folder / "none.zarr"), *typed]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert message in error
