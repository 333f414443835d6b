"""Arrays, vLLM's files and `--inspect`, as they are typed."""

import json
import pickle
import re
import shlex
import sys
import zipfile

import numpy as np
import pytest
import torch
from array_files import safetensors_bytes, vllm_file, with_header, write_lines
from damage import assert_store
from small import refused

from store import TraceStore
from store.cli.main import main
from store.importers.arrays.contents import Table
from store.importers.files import find_given
from store.write.writer import StoreWriter


class Import:
    """Runs `import` in an empty folder."""

    def __init__(self, capsys):
        self.capsys = capsys

    def __call__(self, *arguments):
        """The status, the output and the complaints."""
        status = main(["import", *map(str, arguments)])
        captured = self.capsys.readouterr()
        return status, captured.out, captured.err

    def made(self, out, *arguments):
        """The store that is made."""
        status, _, err = self(out, *arguments)
        assert status == 0, err
        return TraceStore.open(out)

    def refused(self, *arguments):
        """The line that says why nothing is made."""
        return refused(self.capsys, "import", *arguments)


@pytest.fixture
def run(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return Import(capsys)


@pytest.fixture
def features(tmp_path):
    """Seven rows of several arrays in one file."""
    rng = np.random.default_rng(0)
    arrays = {
        "layers": rng.normal(size=(7, 4, 8)).astype("f4"),
        "y": np.arange(7) % 2,
        "qid": np.array([f"q{i // 2}" for i in range(7)]),
        "extra": rng.normal(size=(7, 3)),
    }
    np.savez(tmp_path / "f.npz", **arrays)
    return arrays


N = 150  # rows: several batches of the formats that have them
HIDDEN = np.random.default_rng(0).normal(size=(N, 2, 4)).astype("f4")
LABELS = [-1, *(i % 2 for i in range(1, N))]  # the first has none
ROWS = [
    {"id": f"t{i}", "h": HIDDEN[i], "y": None if y < 0 else y, "q": f"é{i}", "tok": [*range(i % 3)]}
    for i, y in enumerate(LABELS)
]
ARRAYS = {"h": HIDDEN, "y": np.array(LABELS)}
TEXTS = {key: np.array([row[key] for row in ROWS]) for key in ("id", "q")}
COLUMNS = {"id": "trace_id", "h": "hs_last", "y": "label", "q": "question", "tok": "tokens"}


def write_npy(folder):
    folder.mkdir()
    for key, array in (ARRAYS | TEXTS).items():
        np.save(folder / f"{key}.npy", array)


def arrow_table():
    pa = pytest.importorskip("pyarrow")
    columns = {key: [row[key] for row in ROWS] for key in COLUMNS}
    columns["h"] = pa.array(HIDDEN.tolist(), pa.list_(pa.list_(pa.float32())))
    return pa, pa.table(columns)


def write_arrow(path, table=None):
    pa, given = arrow_table()
    table = table or given
    with pa.ipc.new_stream(str(path), table.schema) as writer:
        writer.write_table(table, max_chunksize=20)


def write_dataset(folder):
    """As `Dataset.save_to_disk` does, below the folder that is given."""
    (folder / "train").mkdir(parents=True)
    for name in ("state.json", "dataset_info.json"):
        (folder / "train" / name).write_text("{}")
    write_arrow(folder / "train/data-00000-of-00001.arrow")


def write_parquet(path):
    pytest.importorskip("pyarrow.parquet").write_table(arrow_table()[1], path, row_group_size=70)


def write_hdf5(path):
    h5py = pytest.importorskip("h5py")
    with h5py.File(path, "w") as file:
        file.create_dataset("h", data=HIDDEN, compression="gzip")
        file["y"] = LABELS
        for key in TEXTS:
            file[key] = TEXTS[key].tolist()
        tokens = file.create_dataset("tok", (N,), h5py.vlen_dtype("i4"))
        for i, row in enumerate(ROWS):
            tokens[i] = row["tok"]


TENSORS = [torch.from_numpy(states) for states in HIDDEN]
FORMATS = {  # file -> kind, keys, and what writes it
    "f.npz": ("npz", "h y id q", lambda path: np.savez(path, **ARRAYS, **TEXTS)),
    "npy": ("npy", "h y id q", write_npy),
    "f.safetensors": (
        *("safetensors", "h y"),
        lambda path: path.write_bytes(safetensors_bytes(ARRAYS)),
    ),
    "f.jsonl": (
        *("JSON lines", "id h y q tok"),
        lambda path: write_lines(path, [row | {"h": row["h"].tolist()} for row in ROWS]),
    ),
    "f.arrow": ("Arrow", "id h y q tok", write_arrow),
    "ds": ("Arrow", "id h y q tok", write_dataset),
    "f.parquet": ("Parquet", "id h y q tok", write_parquet),
    "f.h5": ("HDF5", "h y id q tok", write_hdf5),
    "rows.pkl": ("pickle", "id h y q tok", lambda path: path.write_bytes(pickle.dumps(ROWS))),
    "rows.pt": ("pickle", "id h y q tok", lambda path: torch.save(
        [row | {"h": states} for row, states in zip(ROWS, TENSORS, strict=True)], path
    )),
    "arrays.pt": ("pickle", "h y", lambda path: torch.save(
        {"h": torch.stack(TENSORS), "y": torch.tensor(LABELS), "meta": {"model": "m"}}, path
    )),
    "lists.pkl": ("pickle", "h y", lambda path: path.write_bytes(
        pickle.dumps({"h": TENSORS, "y": LABELS, "meta": {"model": "m"}})
    )),
}  # fmt: skip


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_gives_the_same_rows(run, tmp_path, name):
    """Nested, ragged and missing values too; a file that is cut is never a shorter one."""
    kind, keys, write = FORMATS[name]
    write(tmp_path / name)
    _, out, _ = run("--inspect", name)
    assert f": {kind}, {N} records" in out
    assert re.search(r"  h: \w+ \((150, )?2, 4\)\n", out)
    assert "label=y" in out
    if kind == "pickle":
        assert "--inspect shows a --map for other arrays" in run.refused("o.zarr", name)
    mapped = ",".join(f"{COLUMNS[key]}={key}" for key in keys.split())
    store = run.made("o.zarr", name, "--map", mapped)
    assert store.schema.columns["hs_last"].dtype == "float32"
    assert list(store.column("label")) == LABELS
    for row, trace in zip(ROWS, store, strict=True):
        assert np.array_equal(trace["hs_last"], row["h"])
        if "id" in keys:
            assert (trace.id, trace["question"]) == (row["id"], row["q"])
        if "tok" in keys:
            assert trace["tokens"].tolist() == row["tok"]
    if kind not in ("safetensors", "JSON lines", "Arrow"):  # which are mapped, or read line by line
        assert run("p.zarr", name, "--map", mapped, "--max-file-gb", "1e-8")[0] == 2
    for path in [tmp_path / name, *(tmp_path / name).rglob("*.*[yw]")]:
        if path.is_file():
            path.write_bytes(path.read_bytes()[: path.stat().st_size // 3])
    status, out, err = run("p.zarr", name, "--map", mapped)
    assert status == (1 if kind in ("JSON lines", "Arrow") else 2)
    assert "expected " in out + err


def test_files_of_one_trace_have_ragged_axes(run, tmp_path):
    """An unknown array as well, if its axis is named."""
    for i in range(3):
        states = np.full((4 + i, 2, 8), i, "f2")
        tokens = np.arange(4 + i)
        (tmp_path / "per").mkdir(exist_ok=True)
        np.savez(f"per/t{i}.npz", s=states, t=tokens, y=i % 2, mine=tokens * 0.5, same=np.ones(2))
    mapped = "hidden_states=s[tokens,layers,hidden],tokens=t,label=y,mine:mine=mine,same=same"
    store = run.made("o.zarr", "per", "--map", mapped)
    assert list(store.ids) == ["t0", "t1", "t2"]
    assert store["t2"]["hidden_states"].shape == (6, 2, 8)
    assert store["t1"]["mine"].tolist() == [0, 0.5, 1, 1.5, 2]
    assert store.schema.columns["same"].item_shape == (2,)


@pytest.fixture
def states(tmp_path):
    """Forty records of one label and (4, 8) states, in several kinds of files."""
    hidden = np.random.default_rng(0).normal(size=(40, 4, 8)).astype("f4")
    label = np.arange(40) % 2
    np.savez(tmp_path / "s.npz", hidden_states=hidden, label=label)
    rows = zip(hidden.tolist(), label.tolist(), strict=True)
    write_lines(tmp_path / "s.jsonl", [{"hidden_states": row, "label": one} for row, one in rows])
    return hidden


def test_scores_of_other_traces_are_counted(run, tmp_path):
    """Also where none fits: then the import did not do what was asked."""
    lines = [{"id": f"q{i}", "hs": [0.5, 1.5]} for i in range(3)]
    write_lines(tmp_path / "s.jsonl", lines)
    mapped = ("--map", "trace_id=id,hs_last=hs", "--layers", "1")
    (tmp_path / "some.csv").write_text("question_id,score\nq0,1\nq9,0\n")
    (tmp_path / "none.csv").write_text("question_id,score\nx,1\ny,0\n")
    status, out, _ = run("some.zarr", "s.jsonl", *mapped, "--scores", "some.csv")
    assert (status, "1 score of traces or questions that are not there" in out) == (0, True)
    status, out, _ = run("none.zarr", "s.jsonl", *mapped, "--scores", "none.csv")
    assert (status, "none of its ids ('x', 'y') is of a trace here (questions" in out) == (1, True)


MAPPED = "hidden_states=hidden_states,label=label"


@pytest.mark.parametrize("name", ["s.npz", "s.jsonl"])
def test_layers_are_not_guessed_to_be_tokens(run, states, tmp_path, name):
    """Nothing is imported until the map names the axes, as --inspect proposes both ways."""
    err = run.refused("o.zarr", name, "--map", MAPPED)
    assert "nothing tells tokens from layers" in err
    assert not (tmp_path / "o.zarr").exists()
    _, out, _ = run("--inspect", name)
    commands = [shlex.split(line)[4:] for line in out.splitlines() if "python -m" in line]
    assert len(commands) == 2
    for command in commands:
        assert f"'{command[-1].partition(',label')[0]}'" in err
        assert run(f"{command[0]}.{len(command[-1])}", *command[1:])[0] == 0
    tokens, layers = (TraceStore.open(f"OUT.zarr.{len(command[-1])}") for command in commands)
    assert tokens["7"]["hidden_states"].shape == (4, 1, 8)
    assert np.array_equal(tokens["7"]["hidden_states"][:, 0], states[7])
    assert "hidden_states" not in layers.schema.columns
    assert layers.schema.columns["hs_last"].axis_names == ("layers", "hidden")
    assert np.array_equal(layers["7"]["hs_last"], states[7])


def test_labels_that_contradict_scores_are_refused(run, tmp_path):
    """With the records, their number, and what to do; where they agree all is imported."""
    correct = np.array([1, 0, 1, np.nan, 0])
    np.savez("f.npz", hs=np.ones((5, 2, 4)), y=[1, 0, 0, 1, -1], correct=correct)
    err = run.refused("o.zarr", "f.npz", "--map", "hs_last=hs,label=y,score=correct")
    assert "contradict each other in 2 of 3 traces ('f.npz, record 0', 'f.npz, record 1')" in err
    assert "--score-threshold" in err
    assert not (tmp_path / "o.zarr").exists()
    np.savez("f.npz", hs=np.ones((5, 2, 4)), y=[0, 1, 0, 1, -1], correct=correct)
    status, out, _ = run("o.zarr", "f.npz", "--map", "hs_last=hs,label=y,score=correct")
    assert (status, out.splitlines()[-1]) == (0, "  labels: 2 hallucinations, 2 right")


def test_labels_of_requests_that_contradict_their_scores_are_refused(run, tmp_path):
    vllm_file(tmp_path / "v", "r1", 5)
    write_lines(tmp_path / "req.jsonl", [{"id": "r1", "label": 1, "score": 0.9}])
    err = run.refused("o.zarr", "v", "--requests", "req.jsonl")
    assert "contradict each other in 1 of 1 trace ('r1')" in err


@pytest.mark.parametrize("name", ["correct", "is_correct"])
def test_what_is_correct_is_proposed_as_a_score(run, tmp_path, name):
    """Its 1 is right, where that of a label is a hallucination; each is said."""
    np.savez("f.npz", hs_last=np.ones((4, 2, 4)), **{name: np.arange(4) > 0})
    _, out, _ = run("--inspect", "f.npz")
    assert f"  score={name}: higher is better\n" in out
    store = run.made("o.zarr", *shlex.split(out.splitlines()[-1])[5:])
    assert list(store.column("label")) == [1, 0, 0, 0]


def test_json_lines_become_traces(run, tmp_path):
    """A null label is none; a line that does not fit is left out and named."""
    records = [
        {"id": "a", "hs": [[0.5] * 8] * 2, "y": 1, "refs": ["x"]},
        {"id": "b", "hs": [[0.25] * 8] * 2, "y": None, "refs": []},
        {"id": "b", "hs": [[0.25] * 8] * 2, "y": 0, "refs": []},
        {"id": "c", "hs": [[1.0] * 7] * 2, "y": 0, "refs": []},
        {"id": "d", "y": 0, "refs": []},
        {"id": "e", "hs": [[2.0] * 8] * 2, "y": 5, "refs": []},
    ]
    write_lines(tmp_path / "t.jsonl", records)
    mapped = "trace_id=id,hs_last=hs,label=y,references=refs"
    status, out, _ = run("o.zarr", "t.jsonl", "--map", mapped)
    assert status == 1
    lines = out.splitlines()
    assert lines[:2] == ["o.zarr: 2 traces", "  4 files or records left out"]
    assert "  1 without a label" in lines
    assert "t.jsonl, record 2: trace_id: expected a new id, found 'b' again" in lines
    assert re.search(r"record 3.*expected shape \(2, 8\)", out)
    assert re.search(r"record 4.*found none", out)
    assert "record 5: label: expected 1" in out
    assert TraceStore.open("o.zarr")["a"]["references"] == '["x"]'


@pytest.mark.parametrize("bad", ['{"id": "b", "y": 0, "y": 1}', '{"id": "b", "y"'])
@pytest.mark.parametrize("at", range(3))
def test_a_line_that_is_no_record_is_left_out_alone(run, tmp_path, bad, at):
    lines = [json.dumps({"id": one, "h": [1.0], "y": 0, "score": 1}) for one in "ac"]
    lines.insert(at, bad)
    (tmp_path / "t.jsonl").write_text("\n".join(lines))
    mapped = "trace_id=id,hs_last=h,label=y,score=score"
    status, out, _ = run("o.zarr", "t.jsonl", "--map", mapped)
    assert (status, list(TraceStore.open("o.zarr").ids)) == (1, ["a", "c"])
    assert f"t.jsonl, record {at}: line {at + 1}: expected" in out
    (tmp_path / "t.jsonl").write_text(bad)
    assert "t.jsonl: line 1: expected" in run.refused("p.zarr", "t.jsonl", "--map", mapped)


def test_a_record_that_cannot_be_read_is_left_out_alone(run, tmp_path):
    pa = pytest.importorskip("pyarrow")
    columns = {"id": ["a", "b", "c"], "h": [[1.0, 2.0], [None, 1.0], [3.0, 4.0]]}
    write_arrow(tmp_path / "f.arrow", pa.table(columns))
    status, out, _ = run("o.zarr", "f.arrow", "--map", "trace_id=id,mine=h")
    assert (status, "f.arrow, record 1: " in out) == (1, True)
    assert list(TraceStore.open("o.zarr").ids) == ["a", "c"]


def test_values_of_arrow_are_those_that_their_types_stand_for(run, tmp_path):
    """A category, nanoseconds, a tensor; a list with a null, which no map names, is no obstacle."""
    pa = pytest.importorskip("pyarrow")
    tensors = np.arange(12.0).reshape(2, 2, 3)
    columns = {
        "mine": pa.FixedShapeTensorArray.from_numpy_ndarray(tensors),
        "group": pa.array([5, 7]).dictionary_encode(),
        "at": pa.array([1, 2], pa.timestamp("ns")),
        "lists": [[None, 0.5]] * 2,
    }
    write_arrow(tmp_path / "f.arrow", pa.table(columns))
    store = run.made("o.zarr", "f.arrow", "--map", "mine=mine")
    assert np.array_equal(store.column("mine"), tensors)
    assert store.schema.columns["mine"].dtype == "float64"
    assert store.column("group").tolist() == [5, 7]
    assert store[1]["at"] == "1970-01-01 00:00:00.000000002"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--map", "hs_last=layer"], "'layer' for column 'hs_last'; closest: 'layers'"),
        (["--map", "hs_last"], "--map: expected COLUMN=KEY"),
        (["--map", "hs_last=layers,score=extra"], r"'extra': expected the axes \(\) of"),
        (["--map", "hs_last=layers", "--layers", "1,2"], "--layers: expected 4 numbers"),
        (["--map", "hs_last=layers", "--layers", "-2"], "--layers: expected numbers"),
        (["--map", "hs_last=layers", "--keep-attention"], "older formats"),
        (["--map", "hs_last=layers", "--requests", "x"], "give one"),
        (["--map", "hs_last=layers", "--columns", "hs_lst"], "closest: 'hs_last'"),
        ([], r"expected --map COLUMN=KEY for a npz file, found none; .*--inspect f.npz"),
        (["--requests", "x"], "x: expected requests in JSON lines|expected safetensors"),
    ],
)
def test_mistakes_are_one_line(run, features, tmp_path, options, message):
    """With exit status 2, and nothing written."""
    err = run.refused("o.zarr", "f.npz", *options)
    assert re.search(message, err), err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["f.npz"]


def test_arrays_of_unequal_lengths_are_named(run, tmp_path):
    np.savez("f.npz", a=np.ones((7, 2, 4)), y=np.ones(6, int))
    err = run.refused("o.zarr", "f.npz", "--map", "hs_last=a,label=y")
    assert "f.npz: expected arrays with one row for each record, found a (7, 2, 4), y (6,)" in err


@pytest.mark.parametrize("column", ["mine", "question_id", "references", "tokens", "hs_last"])
@pytest.mark.parametrize("name", ["f.npz", "npy/f.npy", "f.safetensors"])
def test_rows_without_bytes_are_refused(run, tmp_path, name, column):
    """A small file may declare any number of them."""
    if name == "f.safetensors":
        entry = {"dtype": "F32", "shape": [2**60, 0], "data_offsets": [0, 0]}
        (tmp_path / name).write_bytes(with_header({"f": entry}, b""))
    else:
        header = {"descr": "<U0", "fortran_order": False, "shape": (10**12,)}
        (tmp_path / "npy").mkdir()
        with (tmp_path / "npy" / "f.npy").open("wb") as file:
            np.lib.format.write_array_header_1_0(file, header)
        with zipfile.ZipFile(tmp_path / "f.npz", "w") as archive:
            archive.write(tmp_path / "npy" / "f.npy", "f.npy")
    run.refused("o.zarr", name, "--map", f"{column}=f")
    assert not (tmp_path / "o.zarr").exists()
    assert run("--inspect", name)[0] in (0, 1)


def test_damaged_pickles_are_named_by_their_suffix(run, tmp_path):
    """Also beside arrays that a map imports; other files of a folder do not count."""
    (tmp_path / "d").mkdir()
    (tmp_path / "d/a.pkl").write_bytes(pickle.dumps([{"id": "a", "y": 1}]))
    (tmp_path / "d/b.pkl").write_bytes(b"")
    (tmp_path / "d/c.pt").write_bytes(bytes(100))
    (tmp_path / "d/notes").write_bytes(b"Nothing")
    status, out, _ = run("o.zarr", "d", "--map", "trace_id=id,label=y")
    assert (status, list(TraceStore.open("o.zarr").ids)) == (1, ["a"])
    assert "  2 files or records left out\n" in out
    assert "d/b.pkl: expected" in out
    assert "d/c.pt: expected" in out


def test_texts_are_not_called_pickles(run, tmp_path):
    """A table of scores begins as some pickles do."""
    (tmp_path / "q.csv").write_text("Name,score\na,1\n")
    assert "q.csv: expected traces, found a text file" in run.refused("o.zarr", "q.csv")
    write_lines(tmp_path / "q.jsonl", [{"question": "a"}])
    _, _, err = run("o.zarr", "q.jsonl")
    assert "--inspect q.jsonl proposes a --map" in err


REQUESTS = [
    {"id": f"r{i}", "question": "what?", "response": "that", "label": i % 2, "prompt_len": 3}
    for i in range(5)
]


def vllm_folder(tmp_path):
    written = {f"r{i}": vllm_file(tmp_path / "v", f"r{i}", 6 + i) for i in range(5)}
    write_lines(tmp_path / "req.jsonl", REQUESTS)
    return written


VLLM = ("o.zarr", "v", "--requests", "req.jsonl", "--layers", "2,5,9")


def test_vllm_files_become_traces(run, tmp_path):
    """bfloat16 stays as it is; the mean is of the answer's tokens, in float32."""
    written = vllm_folder(tmp_path)
    labels = "  labels: 2 hallucinations, 3 right\n"
    assert run(*VLLM)[:2] == (0, f"o.zarr: 5 traces\n{labels}")
    store = TraceStore.open("o.zarr")
    assert store.layers("hs_mean") == [2, 5, 9]
    for name, (state_bits, tokens) in written.items():
        trace = store[name]
        states = torch.from_numpy(state_bits.view(np.int16)).view(torch.bfloat16)
        assert torch.equal(trace["hidden_states"], states)
        assert torch.equal(trace["hs_last"], states[-1])
        assert torch.equal(trace["hs_prompt"], states[2])
        assert torch.equal(trace["hs_mean"], states[3:].float().mean(0).bfloat16())
        assert np.array_equal(trace["tokens"], tokens)
        assert (trace["prompt_len"], trace["answer_len"]) == (3, len(tokens) - 3)
        assert (trace["question"], trace["answer"]) == ("what?", "that")
    assert list(store.column("label")) == [0, 1, 0, 1, 0]


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        ({"prompt_len": 8}, "expected more tokens than the 8 of the prompt, found 8"),
        ({"prompt_len": 3, "answer_len": 4}, "expected 3 \\+ 4 tokens"),
        ({"prompt_len": -1}, "prompt_len: expected a number of tokens"),
        ({"prompt_len": 3, "token_ids": [1, 2]}, "expected the 2 tokens"),
        ({"prompt_len": 3, "label": 7}, "label: expected"),
        ({"prompt_len": 3, "question": 7}, "question: expected a text"),
        ({"references": ["a", 7]}, "references: expected a list of texts, found other"),
    ],
)
def test_files_that_are_not_as_their_request_says_are_left_out(run, tmp_path, request_, message):
    vllm_folder(tmp_path)
    requests = [*REQUESTS]
    requests[2] = {"id": "r2", **request_}
    write_lines(tmp_path / "req.jsonl", requests)
    status, out, _ = run(*VLLM)
    assert status == 1
    assert list(TraceStore.open("o.zarr").ids) == ["r0", "r1", "r3", "r4"]
    [line] = [line for line in out.splitlines() if "r2.safetensors" in line]
    assert re.search(message, line), line


def test_requests_and_files_without_the_other_are_named(run, tmp_path):
    vllm_folder(tmp_path)
    (tmp_path / "v" / "r3.safetensors").unlink()
    vllm_file(tmp_path / "v", "zz", 5)
    wrong = safetensors_bytes({"hidden_states": np.ones((2, 3), "f4"), "token_ids": np.arange(2)})
    (tmp_path / "v" / "r1.safetensors").write_bytes(wrong)
    (tmp_path / "v" / "r2.safetensors").write_bytes(b"cut")
    status, out, _ = run(*VLLM)
    assert status == 1
    assert "v/zz.safetensors, record 0: expected a request with the id 'zz'" in out
    assert "request 'r3': expected the file r3.safetensors, found none" in out
    assert "v/r1.safetensors: hidden_states: expected float16 or bfloat16 or float32" in out
    assert "v/r2.safetensors: expected a header" in out
    assert run(*VLLM)[0] == 1  # as the first time
    assert list(TraceStore.open("o.zarr").ids) == ["r0", "r4"]


@pytest.mark.parametrize("references", ["Paris", ["Paris"], '["Paris"]'])
def test_references_can_be_labelled_by(run, tmp_path, references):
    """One text or several, from a request or by a map."""
    vllm_file(tmp_path / "v", "r1", 5)
    texts = {"id": "r1", "question": "?", "answer": "Paris", "references": references}
    write_lines(tmp_path / "req.jsonl", [texts])
    mapped = "trace_id=id,question=question,answer=answer,references=references"
    assert run("v.zarr", "v", "--requests", "req.jsonl")[0] == 0
    assert run("m.zarr", "req.jsonl", "--map", mapped)[0] == 0
    for name in ("v.zarr", "m.zarr"):
        assert main(["label", name, "--labels", "exact"]) == 0
        assert TraceStore.open(name)["r1"]["label"] == 0


@pytest.mark.parametrize("kind", ["vllm", "rows"])
@pytest.mark.parametrize("stop", [2, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 3))])
def test_a_stopped_import_goes_on_to_the_same_store(run, tmp_path, monkeypatch, kind, stop):
    """After every row, with records that were left out before and after it."""
    if kind == "vllm":
        vllm_folder(tmp_path)
        (tmp_path / "v" / "r1.safetensors").write_bytes(b"cut")
        command = ("v", "--requests", "req.jsonl")
    else:
        for part in "ab":
            lines = [{"id": f"{part}{i}", "hs": [[1.0 * i] * 4] * 2} for i in (0, 1, 1, 2)]
            write_lines(tmp_path / f"{part}.jsonl", lines)
        command = ("*.jsonl", "--map", "trace_id=id,hs_last=hs")
    _, whole, _ = run("whole.zarr", *command)
    append = StoreWriter.append
    n_appended = []

    def stopped(self, trace_id, row):
        if len(n_appended) == stop:
            raise KeyboardInterrupt
        n_appended.append(trace_id)
        append(self, trace_id, row)

    with monkeypatch.context() as patched:
        patched.setattr(StoreWriter, "append", stopped)
        run("o.zarr", *command)
    assert not (tmp_path / "o.zarr").exists()
    status, out, _ = run("o.zarr", *command)
    assert (status, out.replace("o.zarr", "whole.zarr")) == (1, whole)
    expected = [(trace.id, dict(trace)) for trace in TraceStore.open("whole.zarr")]
    assert_store(tmp_path / "o.zarr", expected)


@pytest.mark.parametrize("source", [".", "*"])
def test_a_store_among_the_files_is_refused(run, features, tmp_path, source):
    """It would be one of them when the import goes on, or is repeated."""
    err = run.refused("o.zarr", source, "--map", "hs_last=layers")
    assert f"o.zarr: expected a path outside of what is imported, found it within {source};" in err
    assert not (tmp_path / "o.zarr").exists()


def test_inspect_shows_what_files_hold_and_writes_nothing(run, features, tmp_path):
    """The command that it proposes works as it stands."""
    vllm_folder(tmp_path)
    (tmp_path / "old.pkl").write_bytes(pickle.dumps([{"a": 1}])[:-3])
    (tmp_path / "notes.txt").write_text("Some words\n")
    before = sorted(tmp_path.rglob("*"))
    status, out, _ = run("--inspect", "f.npz", "v", "notes.txt", "req.jsonl", "old.pkl")
    assert status == 1  # old.pkl is damaged
    assert "f.npz: npz, 7 records" in out
    assert "  layers: float32 (7, 4, 8)" in out
    assert "... and 2 more safetensors files" in out
    assert "notes.txt: a text file" in out
    assert "old.pkl: pickle, cannot be read: " in out
    assert sorted(tmp_path.rglob("*")) == before
    commands = [line.split()[4:] for line in out.splitlines() if line.startswith("  python")]
    [command] = [arguments for arguments in commands if arguments[1] == "f.npz"]
    assert run(*command)[0] == 0
    assert set(TraceStore.open("OUT.zarr").schema.columns) >= {"hs_last", "label", "extra"}


ODD = {
    "names that are read as something else": [
        {"id": "a", "h[x]": 1.5, "a,b": 2, " s": 3, "two\nlines": 4, "c=d": 5, "": 6}
    ],
    "values that no column takes": [{"id": "a", "meta": {"m": 1}, "pairs": [[1], [1, 2]], "n": 1}],
    "names of the field for other things": [
        {"id": "a", "y": "yes", "features": 0.5, "output": 7, "tokens": ["a", "b"], "n": 1}
    ],
    "a value that the first record lacks": [{"id": "a", "y": None}, {"id": "b", "y": 1}],
}


@pytest.mark.parametrize("records", ODD.values(), ids=list(ODD))
def test_inspect_proposes_what_can_be_imported(run, tmp_path, records):
    """Keys that no map names, and values that no column takes, are left out of it."""
    write_lines(tmp_path / "f.jsonl", records)
    status, out, _ = run("--inspect", "f.jsonl")
    assert status == 0
    command = shlex.split(out.splitlines()[-1])
    assert run(*command[4:])[0] == 0
    assert len(TraceStore.open("OUT.zarr")) == len(records)


def test_inspect_proposes_what_can_be_imported_of_arrays(run, tmp_path):
    """Of a dtype that no column has, or under a name of the field for something else."""
    times = np.zeros(4, "M8[s]")
    np.savez("f.npz", hs=np.ones((4, 2, 8)), t=times, y=np.array(list("abcd")), x=np.ones((4, 2)))
    _, out, _ = run("--inspect", "f.npz")
    assert run(*shlex.split(out.splitlines()[-1])[4:])[0] == 0
    store = TraceStore.open("OUT.zarr")
    assert store["3"]["y"] == "d"
    assert store["3"]["t"] == "1970-01-01 00:00:00"  # a field, as a text


def test_fields_of_tables_and_arrays_come_along(run, tmp_path):
    """Single values that no map names: of rows, of one file a trace, and of requests."""
    records = [
        {"id": f"t{i}", "h": [1.0, i], "dataset": "squad", "level": i, "hard": i > 0, "docs": ["d"]}
        | {"meta": {}, "logits": [0.5] * i}
        for i in range(3)
    ]
    records[1] |= {"level": None, "note": "x" * 2000}
    records[0] |= {"note": ""}
    write_lines(tmp_path / "f.jsonl", records)
    status, out, _ = run("o.zarr", "f.jsonl", "--map", "trace_id=id,mine=h", "--columns", "mine")
    assert (status, "are cut in the fields note" in out) == (0, True)
    store = TraceStore.open("o.zarr")
    row = store["t1"]
    lists = run.made("l.zarr", "f.jsonl", "--map", "trace_id=id,mine=h", "--fields", "docs")
    assert lists["t1"]["docs"] == '["d"]'
    assert (row["dataset"], bool(row["hard"]), len(row["note"])) == ("squad", True, 1000)
    assert np.isnan(row["level"])
    assert store.where("level >= 2 and hard == true").tolist() == [2]
    assert not {"meta", "logits", "docs"} & store.schema.columns.keys()
    none = run.made("p.zarr", "f.jsonl", "--map", "mine=h", "--fields", "none")
    assert none.schema.columns.keys() == {"question_id", "score", "label", "source_file", "mine"}
    np.savez("f.npz", h=np.ones((3, 2)), level=np.arange(3), task=np.array(list("abc")))
    arrays = run.made("q.zarr", "f.npz", "--map", "mine=h", "--fields", "level")
    assert [trace["level"].item() for trace in arrays] == [0, 1, 2]
    assert "task" not in arrays.schema.columns
    error = run.refused("r.zarr", "f.npz", "--map", "task=h")
    assert "field 'task': --map makes the column 'task'" in error


FRACTIONS = [[1, 2.5], [0.5, 2], [[1, 2], [1, 2.5]], [[1, 2.5], [3, 4]]]


@pytest.mark.parametrize(
    ("values", "dtype"), [*((values, "float32") for values in FRACTIONS), ([1, 2**40], "int64")]
)
def test_numbers_without_a_dtype_have_one_for_all_records(run, tmp_path, values, dtype):
    """Whether the first has a fraction or not."""
    write_lines(tmp_path / "f.jsonl", [{"v": value} for value in values])
    store = run.made("o.zarr", "f.jsonl", "--map", "mine=v")
    assert store.schema.columns["mine"].dtype == dtype
    assert [trace["mine"].tolist() for trace in store] == values


def test_integers_that_no_type_holds_together_are_not_rounded(run, tmp_path):
    """NumPy makes floats of such a list."""
    lists = [[1, 2], [2**63 + 1, 5], [2.0**63, 5.5]]
    write_lines(tmp_path / "f.jsonl", [{"v": value} for value in lists])
    status, out, err = run("o.zarr", "f.jsonl", "--map", "mine=v")
    assert (status, "expected integers that int64 holds" in out + err) == (1, True)
    assert [trace["mine"].tolist() for trace in TraceStore.open("o.zarr")] == [lists[0], lists[2]]


@pytest.mark.parametrize(
    "values", [[np.float64(0.1), 0.3], [0.3, np.float64(0.1)], [1, np.float64(0.1)]]
)
def test_single_numbers_of_numpy_are_not_rounded(run, tmp_path, values):
    """Nor Python's own beside them."""
    (tmp_path / "f.pkl").write_bytes(pickle.dumps([{"v": value} for value in values]))
    store = run.made("o.zarr", "f.pkl", "--map", "mine=v")
    assert [trace["mine"].item() for trace in store] == values


@pytest.mark.parametrize(
    ("later", "dtypes"), [(2.5, ("float32", "float64")), ("x", ("utf8", "utf8"))]
)
def test_a_record_far_behind_may_have_another_type(run, tmp_path, later, dtypes):
    """Mapped or a field: it decides the column too, and no value is lost."""
    values = [*range(150), later]
    write_lines(tmp_path / "f.jsonl", [{"h": [0.5], "v": value} for value in values])
    for map_, name, dtype in zip(("hs=h,mine=v", "hs=h"), ("mine", "v"), dtypes, strict=True):
        store = run.made(f"{name}.zarr", "f.jsonl", "--map", map_)
        assert store.schema.columns[name].dtype == dtype
        expected = [str(value) for value in values] if dtype == "utf8" else values
        assert [trace[name] for trace in store] == expected


def test_states_of_integers_are_floating(run, tmp_path):
    """JSON may spell 1.0 as 1; an integer that float32 would round is left out."""
    states = [[[1, 2]], [[0.5, 1]], [[2**24 + 1, 0]], [[]]]
    write_lines(tmp_path / "f.jsonl", [{"h": one} for one in states])
    status, out, _ = run("o.zarr", "f.jsonl", "--map", "hs_last=h")
    assert (status, "record 2: 'h': expected numbers that float32 holds" in out) == (1, True)
    store = TraceStore.open("o.zarr")
    assert [trace["hs_last"].tolist() for trace in store] == states[:2]
    assert store.schema.columns["hs_last"].dtype == "float32"


def sequences(*ids):
    """The content of a preprocessed file of the older formats."""
    n = len(ids)
    return {"sequences": torch.zeros(n, 2, 4), "labels": torch.zeros(n), "question_ids": [*ids]}


def test_inspect_of_an_older_file_names_its_command(run, tmp_path):
    """Its kind, keys and number of traces, through the reader that runs nothing."""
    torch.save(sequences("q0", "q1", "q2"), tmp_path / "old.pt")
    status, out, _ = run("--inspect", "old.pt")
    assert status == 0
    assert "old.pt: " in out
    assert "3 records" in out
    assert "  hs_last: " in out
    assert out.endswith("  python -m store import OUT.zarr old.pt\n")
    assert run("OUT.zarr", "old.pt")[0] == 0


def test_older_traces_beside_arrays_are_imported_as_before(run, tmp_path):
    """A folder may hold a model's weights, and tables of scores."""
    (tmp_path / "d").mkdir()
    torch.save(sequences("q"), tmp_path / "d" / "old.pt")
    (tmp_path / "d" / "model.safetensors").write_bytes(safetensors_bytes({"w": np.ones(2, "f4")}))
    (tmp_path / "d" / "scores.csv").write_text("question_id,score\nq,1\n")
    assert len(run.made("o.zarr", "d")) == 1


@pytest.mark.parametrize(
    ("dtype", "value"),
    [("f2", np.nan), ("f4", np.inf), ("f8", -np.inf), ("bfloat16", np.nan), ("bfloat16", -np.inf)],
)
def test_traces_that_are_not_finite_are_kept_and_counted(run, tmp_path, dtype, value):
    """In every precision of states."""
    states = np.full((3, 2, 4), 60_000, "f4")
    states[1, 1, 2] = value
    bits_ = (states.view("<u4") >> 16).astype("<u2")
    arrays = {"hs": bits_} if dtype == "bfloat16" else {"hs": states.astype(dtype)}
    if dtype == "f8":
        np.savez("f.npz", **arrays)
    else:
        (tmp_path / "f.safetensors").write_bytes(safetensors_bytes(arrays))
    status, out, _ = run("o.zarr", "f.*", "--map", "hs_last=hs", "--layers", "1-2")
    assert status == 0
    assert "  1 with a NaN or an infinity (kept)\n" in out
    store = TraceStore.open("o.zarr")
    assert list(store.ids) == ["0", "1", "2"]  # positions, where no key has ids
    assert np.array_equal(float(store["1"]["hs_last"][1, 2]), value, equal_nan=True)
    assert (list(store.column("label")), store.layers("hs_last")) == ([-1] * 3, [1, 2])


def test_parts_are_merged_to_the_whole(run, tmp_path):
    """Every file is in one part, and a request without a file is told once."""
    vllm_folder(tmp_path)
    (tmp_path / "v" / "r3.safetensors").unlink()
    status = [run(f"p{k}.zarr", *VLLM[1:], "--part", f"{k}/2")[0] for k in (1, 2)]
    assert status == [1, 0]
    assert main(["merge", "o.zarr", "p1.zarr", "p2.zarr"]) == 0
    assert sorted(TraceStore.open("o.zarr").ids) == ["r0", "r1", "r2", "r4"]


def test_unlikely_files_are_inspected_without_a_traceback(run, tmp_path):
    (tmp_path / "a.npz").write_bytes(b"PK\x03\x04" + b"\0" * 30)
    (tmp_path / "b.safetensors").write_bytes(b"\xff" * 40)
    (tmp_path / "c.npy").write_bytes(b"\x93NUMPY\x01\x00\xff\xff")
    (tmp_path / "d.jsonl").write_text('{"a": [1, [2]]}\n{')
    (tmp_path / "e").write_bytes(b"\0\1\2")
    (tmp_path / "f.txt").write_text("")
    names = [path.name for path in tmp_path.iterdir()]
    status, out, err = run("--inspect", *names)
    assert (status, err) == (1, "")
    for name in names:
        assert f"{name}: " in out
    kinds = ".npz, .npy, .safetensors, Arrow, Parquet, HDF5"
    assert f"e: none of the kinds that are read: {kinds}" in out


def test_a_table_without_rows_has_no_keys(run, tmp_path):
    pa, table = arrow_table()
    with pa.ipc.new_stream(str(tmp_path / "f.arrow"), table.schema):
        pass
    err = run.refused("o.zarr", "f.arrow", "--map", "trace_id=id")
    assert "f.arrow: expected a key 'id' for column 'trace_id'; the keys are none" in err


def test_a_file_whose_texts_are_no_utf8_is_named(run, tmp_path):
    pa = pytest.importorskip("pyarrow")
    texts = pa.array([b"\xff", b"\xff"]).view(pa.string())
    write_arrow(tmp_path / "f.arrow", pa.table({"id": texts}))
    err = run.refused("o.zarr", "f.arrow", "--map", "trace_id=id")
    assert "f.arrow: expected a whole trace, found UnicodeDecodeError" in err


def test_too_little_memory_before_an_import_ends_it(run, tmp_path, monkeypatch):
    """Where labels are looked at: what they say of the map would be passed over."""
    mapped = "trace_id=id,label=y,score=s"
    write_lines(tmp_path / "f.jsonl", [{"id": "a", "y": 0, "s": 1}])
    assert run("o.zarr", "f.jsonl", "--map", mapped)[0] == 0

    records = Table.records
    errors = [RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried")]

    def fail_once(*arguments):
        if errors:
            raise errors.pop()
        return records(*arguments)

    monkeypatch.setattr(Table, "records", fail_once)
    assert "expected more memory" in run.refused("p.zarr", "f.jsonl", "--map", mapped)


@pytest.mark.parametrize("shape", [(1000,), (500, 2)])
@pytest.mark.parametrize(
    ("kind", "column", "value"),
    [("text", "references", "x" * 100_000), ("numbers", "tokens", np.zeros(25_000, "i4"))],
)
def test_hdf5_cannot_fill_the_memory_by_repeating(run, tmp_path, kind, column, value, shape):
    """The values of a data set may all be one place of the file."""
    h5py = pytest.importorskip("h5py")
    dtype = h5py.string_dtype() if kind == "text" else h5py.vlen_dtype("i4")
    with h5py.File(tmp_path / "f.h5", "w") as file:
        dataset = file.create_dataset("v", shape, dtype)
        dataset[(0,) * len(shape)] = value
        offset = dataset.id.get_offset()
    data = bytearray((tmp_path / "f.h5").read_bytes())
    data[offset : offset + 16_000] = data[offset : offset + 16] * 1000
    (tmp_path / "f.h5").write_bytes(data)
    err = run.refused("o.zarr", "f.h5", "--map", f"{column}=v", "--max-file-gb", "0.01")
    assert "v: expected at most 0.01 GB (--max-file-gb)" in err


def test_hdf5_lists_of_lists_are_not_read(run, tmp_path):
    """Nothing in the file bounds what they unpack to; other keys are imported."""
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "f.h5", "w") as file:
        file.create_dataset("v", (3,), h5py.vlen_dtype(h5py.vlen_dtype("i4")))
        file["model/y"] = np.zeros(3, int)  # a key is the path of a dataset
    err = run.refused("o.zarr", "f.h5", "--map", "mine=v")
    assert "'v': expected numbers, texts or lists of numbers, found object" in err
    assert run("o.zarr", "f.h5", "--map", "label=model/y")[0] == 0


def test_hdf5_reads_no_other_file(run, tmp_path):
    """Neither by a link nor by data that lies elsewhere."""
    h5py = pytest.importorskip("h5py")
    (tmp_path / "secret").write_bytes(bytes(8))
    with h5py.File(tmp_path / "other.h5", "w") as file:
        file["x"] = np.ones(4)
    with h5py.File(tmp_path / "f.h5", "w") as file:
        file["y"] = np.arange(4) % 2
        file["x"] = h5py.ExternalLink("other.h5", "x")
    assert "expected a key 'x'" in run.refused("o.zarr", "f.h5", "--map", "score=x")
    with h5py.File(tmp_path / "g.h5", "w") as file:
        file.create_dataset("x", (1,), "f8", external=[("secret", 0, 8)])
    assert "'x': expected data in this file" in run.refused("o.zarr", "g.h5", "--map", "score=x")


@pytest.mark.parametrize(("name", "module"), [("f.h5", "h5py"), ("f.parquet", "pyarrow")])
def test_a_missing_library_is_named_with_its_extra(run, tmp_path, monkeypatch, name, module):
    magics = {"h5py": b"\x89HDF\r\n\x1a\n", "pyarrow": b"PAR1"}
    (tmp_path / name).write_bytes(magics[module])
    monkeypatch.setitem(sys.modules, module, None)
    err = run.refused("o.zarr", name, "--map", "label=y")
    assert f"expected the extra arrays to read {'HDF5' if module == 'h5py' else 'Parquet'}" in err
    assert f"the package {module} is not installed" in err


def test_a_tensor_alone_has_the_name_of_its_file(run, tmp_path):
    """And keeps bfloat16; records in a list may differ in length."""
    torch.save(torch.ones(3, 2, 4).bfloat16(), tmp_path / "hs.pt")
    store = run.made("o.zarr", "hs.pt", "--map", "hs_last=hs[records,layers,hidden]")
    assert store.schema.columns["hs_last"].dtype == "bfloat16"
    torch.save([torch.ones(n, 2, 4) for n in (3, 5)], tmp_path / "states.pt")
    named = "hidden_states=states[records,tokens,layers,hidden]"
    store = run.made("p.zarr", "states.pt", "--map", named)
    assert [len(trace["hidden_states"]) for trace in store] == [3, 5]
    torch.save([torch.ones(4, 8) for _ in range(2)], tmp_path / "same.pt")
    err = run.refused("q.zarr", "same.pt", "--map", "hidden_states=same")
    assert "'hs_last=same[records,layers,hidden]'" in err


@pytest.mark.parametrize(
    ("column", "value", "kept"),
    [
        *[("label", 1, 1), ("label", True, 1), ("score", 0.25, np.float32(0.25))],
        *[("tokens", [5, 6, 7], [5, 6, 7]), ("mine", [[1.0], [2.0]], [[1], [2]])],
        *[("references", ["x", "y"], '["x", "y"]'), ("token_texts", ["é"], '["é"]')],
        *[("references", "x", '["x"]'), ("references", [], "[]")],
    ],
)
def test_a_pickled_trace_has_plain_values(run, tmp_path, column, value, kept):
    """Numbers, texts and lists beside its arrays are of the one trace."""
    (tmp_path / "d").mkdir()
    for i in range(2):
        content = {"hs": np.full((3 + i, 3, 8), i, "f2"), "v": value}
        n = len(content["hs"])
        if column == "tokens":
            content["v"] = list(range(n))
        (tmp_path / "d" / f"t{i}.pkl").write_bytes(pickle.dumps(content))
    mapped = f"hidden_states=hs[tokens,layers,hidden],{column}=v"
    store = run.made("o.zarr", "d", "--map", mapped)
    assert [trace["hidden_states"].shape for trace in store] == [(3, 3, 8), (4, 3, 8)]
    assert np.array_equal(store["t1"][column], [0, 1, 2, 3] if column == "tokens" else kept)


def test_texts_in_a_list_do_not_make_rows_of_layers(run, tmp_path):
    """One trace may have as many references as layers."""
    content = {"hs": np.arange(24.0).reshape(3, 8), "refs": ["x", "y", "z"]}
    (tmp_path / "f.pkl").write_bytes(pickle.dumps(content))
    err = run.refused("o.zarr", "f.pkl", "--map", "hs_last=hs,references=refs")
    assert "one trace of many layers or many traces of one layer" in err
    expected = {"layers": ['["x", "y", "z"]'], "records": ['["x"]', '["y"]', '["z"]']}
    for name, references in expected.items():
        mapped = f"hs_last=hs[{name},hidden],references=refs"
        store = run.made(f"{name}.zarr", "f.pkl", "--map", mapped)
        assert list(store.column("references")) == references
    (tmp_path / "g.pkl").write_bytes(pickle.dumps(content | {"refs": ["x"]}))
    store = run.made("p.zarr", "g.pkl", "--map", "hs_last=hs,references=refs")
    assert store["g"]["hs_last"].shape == (3, 8)


def test_a_list_of_arrays_may_be_named_as_the_layers_of_one_trace(run, tmp_path):
    """Else each array in it is a record."""
    torch.save({"hs": [torch.full((8,), float(i)) for i in range(3)], "y": 1}, tmp_path / "f.pt")
    assert run("o.zarr", "f.pt", "--map", "hs_last=hs,label=y")[0] == 2
    store = run.made("o.zarr", "f.pt", "--map", "hs_last=hs[layers,hidden],label=y")
    assert store["f"]["hs_last"][:, 0].tolist() == [0, 1, 2]
    torch.save({"hs": [torch.ones(3, 8)] * 2, "y": [1, None], "a": [b"x", b"y"]}, tmp_path / "f.pt")
    store = run.made("p.zarr", "f.pt", "--map", "hs_last=hs,label=y,answer=a")
    assert list(store.column("label")) == [1, -1]


def test_lists_in_pickles_are_arrays(run, tmp_path):
    """Of numbers, as in JSON, or of the arrays of layers."""
    record = {"id": "a", "n": [[1.0, 2.0]] * 3, "h": [torch.ones(8)] * 4, "t": ["x", "y"]}
    (tmp_path / "f.pkl").write_bytes(pickle.dumps([record, record | {"id": "b"}]))
    mapped = "trace_id=id,hs_last=h,mine=n,token_texts=t"
    assert run("o.zarr", "f.pkl", "--map", mapped)[0] == 0
    trace = TraceStore.open("o.zarr")["b"]
    assert trace["hs_last"].shape == (4, 8)
    assert trace["mine"].tolist() == [[1, 2]] * 3
    assert json.loads(trace["token_texts"]) == ["x", "y"]


@pytest.fixture
def saved(tmp_path):
    """A folder of `Dataset.save_to_disk`, with a file of its cache and a shard of an older save."""
    folder = tmp_path / "ds"
    folder.mkdir()
    (folder / "dataset_info.json").write_text("{}")
    for name in ("data-0", "data-1", "cache-0123456789abcdef"):
        (folder / f"{name}.arrow").write_bytes(b"ARROW1")
    return folder


@pytest.mark.parametrize(
    ("state", "names"),
    [
        ({"_data_files": [{"filename": "data-1.arrow"}]}, ["data-1"]),
        ({"_data_files": [{"filename": f"data-{i}.arrow"} for i in (1, 0)]}, ["data-1", "data-0"]),
        ({}, ["data-0", "data-1"]),
    ],
)
def test_a_saved_dataset_is_the_files_that_its_state_names(saved, state, names):
    """In that order; without such names, all but its cache."""
    (saved / "state.json").write_text(json.dumps(state))
    (given,) = find_given([str(saved)])
    assert [file.stem for file in given.files] == names
    assert {file.parent for file in given.files} == {saved}


NO_FILES = ["gone.arrow", "../ds/data-0.arrow", "..", "a\0"]
STATES = ["{", "[]", "[" * 100_000, '{"_data_files": 1}', '{"_data_files": [{}]}']
STATES += [json.dumps({"_data_files": [{"filename": name}]}) for name in NO_FILES]


@pytest.mark.parametrize("state", STATES)
def test_a_state_that_names_other_files_is_refused(run, saved, state):
    """In one line, and nothing outside the folder is read."""
    (saved / "state.json").write_text(state)
    assert "ds/state.json" in run.refused("o.zarr", "ds", "--map", "trace_id=id")
