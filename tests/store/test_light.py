"""What `pip install .` gives without an extra: every command here runs with torch out of reach."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MAKE = """
import sys
import ml_dtypes
import numpy as np
from store import Column, Schema, StoreWriter

states = Column("float16", (2, 8), axis="tokens", axis_names=("layers", "hidden"))
texts = dict.fromkeys(["question_id", "question", "answer", "references"], Column("utf8"))
numbers = {"prompt_len": "int32", "answer_len": "int32", "half": "bfloat16", "score": "float32"}
columns = {"hidden_states": states, **texts, **{name: Column(d) for name, d in numbers.items()}}
draw = np.random.default_rng(0)
with StoreWriter.create("a.zarr", Schema({**columns, "label": Column("int8")})) as writer:
    for i in range(8):
        row = {
            "hidden_states": draw.normal(size=(5, 2, 8)).astype(np.float16),
            "question_id": f"q{i // 2}",
            "question": "where",
            "answer": f"here {i % 3}",
            "references": '["here 1"]',
            "prompt_len": 2,
            "answer_len": 3,
            "half": ml_dtypes.bfloat16(1.5),
            "score": float("-inf") if i == 3 else i,
            "label": i % 2,
        }
        writer.append(f"t{i}", row)
"""
COMMANDS = [
    "info a.zarr",
    "get a.zarr t3",
    "get a.zarr t3 --json",
    "verify a.zarr --json",
    "export a.zarr --to a.jsonl",
    "export a.zarr --to a.csv",
    "label a.zarr --scores scores.csv",
    "label a.zarr --labels contains",
    "label a.zarr --undo",
    "derive a.zarr hs_last hs_mean hs_prompt lexical_similarity",
    "derive a.zarr eigenscore",
    "project a.zarr --column hs_last --layer 1 --method pca --name map",
    "subset b.zarr a.zarr --ids ids.txt",
    "tokens c.zarr a.zarr --column hidden_states,label --tokens answer --layers 2 --shuffle",
    "repair b.zarr",
]
RUN = """
import sys
sys.modules["torch"] = None
from store.cli.main import main
for command in sys.argv[1:]:
    status = main(command.split())
    assert status == 0, command

from store import NotFoundError, TraceLoader, TraceStore
assert TraceStore.open("a.zarr").view()._repr_html_()
loader = TraceLoader("a.zarr", batch_size=3, shuffle=True, num_workers=2, arrays="numpy")
assert sorted(int(row) for batch in loader for row in batch.rows) == list(range(8))
for ask in (lambda: TraceLoader("a.zarr"), lambda: loader.store.read([0])):
    try:
        ask()
        raise AssertionError("expected torch to be missed")
    except NotFoundError as error:
        assert 'arrays="torch": the package torch is not installed' in str(error)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Where all of the commands ran, one after the other."""
    folder = tmp_path_factory.mktemp("light")
    (folder / "ids.txt").write_text("t1\nt2\n")
    scores = "".join(f"t{i},{i / 8}\n" for i in range(8))
    (folder / "scores.csv").write_text(f"trace_id,score\n{scores}")
    for arguments in ([MAKE], [RUN, *COMMANDS]):
        done = subprocess.run(
            [sys.executable, "-c", *arguments],
            cwd=folder,
            env={"PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_commands_run_without_torch(folder):
    assert {"a.jsonl", "a.csv", "b.zarr"} <= {path.name for path in folder.iterdir()}


def test_what_is_exported_is_json(folder):
    """Without the words for infinity and NaN that JSON does not have."""

    def refuse(word):
        raise AssertionError(word)

    lines = (folder / "a.jsonl").read_text().splitlines()
    records = [json.loads(line, parse_constant=refuse) for line in lines]
    assert [record["half"] for record in records] == [1.5] * 8
    assert records[3]["score"] == float("-inf")
    assert records[3]["references"] == ["here 1"]
