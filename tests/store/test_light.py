"""What `pip install .` gives without an extra: every command here runs with torch out of reach."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
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
import ml_dtypes
import numpy as np
from small import store_columns
from store import Column, NotFoundError, TraceLoader, TraceStore

draw = np.random.default_rng(0)
layers = Column("float16", (2, 8), axis="tokens", axis_names=("layers", "hidden"))
store_columns(
    "a.zarr",
    {
        "hidden_states": (layers, draw.normal(size=(8, 5, 2, 8)).astype(np.float16)),
        "question_id": ("utf8", [f"q{i // 2}" for i in range(8)]),
        "question": ("utf8", ["where"] * 8),
        "answer": ("utf8", [f"here {i % 3}" for i in range(8)]),
        "references": ("utf8", ['["here 1"]'] * 8),
        "prompt_len": ("int32", [2] * 8),
        "answer_len": ("int32", [3] * 8),
        "half": ("bfloat16", [ml_dtypes.bfloat16(1.5)] * 8),
        "score": ("float32", [float("-inf") if i == 3 else i for i in range(8)]),
        "label": ("int8", [i % 2 for i in range(8)]),
    },
)
from store.cli.main import main
for command in sys.argv[1:]:
    status = main(command.split())
    assert status == 0, command

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
    done = subprocess.run(
        [sys.executable, "-c", RUN, *COMMANDS],
        cwd=folder,
        env={"PYTHONPATH": f"{ROOT}:{Path(__file__).parent}"},
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
