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


@pytest.mark.parametrize("questions", ["asked", "given"])
def test_a_sample_of_all_questions_tells_the_bytes_of_the_store(folder, capsys, questions):
    """Every column, to the byte, whether answers are given or not; and nothing is written."""
    arguments = ["--questions", folder / f"{questions}.jsonl", "--sample", N, "--workers", 2]
    found, status = plan(capsys, folder / "x.zarr", *EXAMPLE, *arguments)
    assert status == 0
    assert found["rows"] == N
    assert found["columns"] == written(TraceStore.open(folder / "made.zarr"))
    assert found["seconds"] == found["load_seconds"] + N / 2 * found["question_seconds"] > 0
    assert found["memory"] > sum(file.stat().st_size for file in MODEL_DIR.glob("*.safetensors"))
    assert not (folder / "x.zarr").exists()


def test_the_sample_stands_for_all_questions(folder, capsys):
    """Evenly spread, so that sizes that grow along the file are met."""
    found, _ = plan(
        capsys, folder / "x.zarr", *EXAMPLE, "--questions", folder / "asked.jsonl", "--sample", 3
    )
    sizes = written(TraceStore.open(folder / "made.zarr"))
    assert found["columns"]["note"] == pytest.approx(sizes["note"], rel=0.1)
    assert found["bytes"] == pytest.approx(sum(sizes.values()), rel=0.1)


def test_questions_that_will_be_left_out_take_nothing(folder, capsys):
    """As many of all as of the sample."""
    questions = example_questions(8)
    for one in questions[::2]:
        one["question"] *= 500
    asked = write_lines(folder / "long.jsonl", questions)
    found, _ = plan(capsys, folder / "x.zarr", *EXAMPLE, "--questions", asked, "--sample", 8)
    assert (found["questions"], found["sample"], found["rows"]) == (8, 8, 4)
    assert found["seconds"] == found["load_seconds"] + 8 * found["question_seconds"]


def test_a_disk_that_is_too_small(folder, capsys, monkeypatch):
    """Exit status 1, and the table says so."""
    monkeypatch.setattr("store.write.space.free_bytes", lambda path: 1000)
    arguments = [str(folder / "x.zarr"), *EXAMPLE, "--questions", str(folder / "given.jsonl")]
    assert main(["plan", *arguments]) == 1
    printed = capsys.readouterr().out
    assert "IT DOES NOT FIT" in printed
    assert "hidden_states" in printed


def test_a_mistake_is_one_line(folder, capsys, golden_lines):
    """And exit status 2."""
    config = json.loads((MODEL_DIR / "config.json").read_text())
    (folder / "broken").mkdir()
    text = json.dumps(config | {"num_hidden_layers": "four"})
    (folder / "broken" / "config.json").write_text(text)
    places = {name: folder / name for name in ("asked.jsonl", "broken")}

    def say(arguments):
        typed = [places.get(argument, argument) for argument in arguments]
        line = refused(capsys, "plan", folder / "none.zarr", *EXAMPLE, *typed)
        return line.replace(f"{folder}/", "").partition("found: ")[0].strip()

    golden_lines("wrong_plans.txt", say)
