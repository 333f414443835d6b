"""`python -m store plan`, against what the extraction of the example writes."""

import json

import pytest
from small import refused

from store import TraceStore
from store.cli.main import main
from store.sources.example import MODEL_DIR, example_questions

N = 48
EXAMPLE = ["--model", str(MODEL_DIR), "--prompt-template", "{question}", "--max-new-tokens", "12"]
EXAMPLE += ["--columns", "default,attn_edges,attn_edge_ends", "--labels", "exact,contains"]
EXAMPLE += ["--batch-size", "48"]


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
    """Column -> bytes of the values in a store."""
    columns = store.schema.stored
    return {name: store.n_items(name) * column.item_bytes for name, column in columns.items()}


def test_bytes_with_given_answers_are_those_of_the_store(folder, capsys):
    """Every column but that of the tokens' texts, and edges, which are bounded, to the byte."""
    store = TraceStore.open(folder / "made.zarr")
    found, status = plan(capsys, folder / "x.zarr", *EXAMPLE, "--questions", folder / "given.jsonl")
    assert status == 0
    assert found["certainty"] == "given"
    assert found["rows"] == N
    sizes = written(store)
    assert found["columns"].keys() == sizes.keys()
    for name in ("attn_edges", "attn_edge_ends"):
        assert found["columns"].pop(name) >= sizes.pop(name)
    assert found["columns"].pop("token_texts") == pytest.approx(sizes.pop("token_texts"), rel=0.2)
    assert found["columns"] == sizes
    assert found["seconds"] is None
    weights = sum(file.stat().st_size for file in MODEL_DIR.glob("*.safetensors"))
    assert found["memory"]["weights"] == pytest.approx(weights, rel=0.05)
    assert not (folder / "x.zarr").exists()


def test_a_sample_tells_bytes_and_time(folder, capsys):
    """Of all questions here, so that answers are exact."""
    asked = ["--questions", folder / "asked.jsonl", "--sample", N, "--workers", 2]
    found, status = plan(capsys, folder / "x.zarr", *EXAMPLE, *asked)
    assert status == 0
    assert found["certainty"] == "sample"
    sizes = written(TraceStore.open(folder / "made.zarr"))
    for name in ("tokens", "hidden_states", "answer"):
        assert found["columns"][name] == sizes[name]
    speed = found["sample"]
    assert found["seconds"] == pytest.approx(speed["load_s"] + N / 2 * speed["question_s"])
    assert "standard error" in found["remarks"][-1]


def test_without_either_numbers_are_upper_bounds(folder, tmp_path, capsys):
    """No weights are needed; a sample of a model without them is left out, with a remark."""
    for file in MODEL_DIR.glob("*.json"):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    arguments = [*EXAMPLE, "--model", tmp_path, "--questions", folder / "asked.jsonl"]
    found, status = plan(capsys, folder / "x.zarr", *arguments, "--sample", 1)
    assert status == 0
    assert found["certainty"] == "longest"
    sizes = written(TraceStore.open(folder / "made.zarr"))
    assert all(found["columns"][name] >= sizes[name] for name in sizes if name != "token_texts")
    assert found["seconds"] is None
    assert "the weights" in found["remarks"][-1]


def test_a_disk_that_is_too_small(folder, capsys, monkeypatch):
    """Exit status 1, and the table says so."""
    monkeypatch.setattr("store.write.space.free_bytes", lambda path: 1000)
    arguments = [str(folder / "x.zarr"), *EXAMPLE, "--questions", str(folder / "given.jsonl")]
    assert main(["plan", *arguments]) == 1
    printed = capsys.readouterr().out
    assert "IT DOES NOT FIT" in printed
    assert "hidden_states" in printed
    assert "time: not known" in printed


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
    places = {"{asked}": folder / "asked.jsonl"}
    for name, n_layers in (("broken", "four"), ("deep", 10**9)):
        places[f"{{{name}}}"] = folder / name
        (folder / name).mkdir(exist_ok=True)
        text = json.dumps(config | {"num_hidden_layers": n_layers})
        (folder / name / "config.json").write_text(text)
    typed = [places.get(argument, argument) for argument in arguments]
    assert message in refused(capsys, "plan", folder / "none.zarr", *typed)
