"""Arrays, tables and vLLM's files, as they are typed: what comes in, and what is refused."""

import io
import json
import math
import pickle
import re
import shlex
import shutil
import sys
import zipfile
from pathlib import Path

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
        return main(["import", *map(str, arguments)]), *self.capsys.readouterr()

    def refused(self, *arguments):
        return refused(self.capsys, "import", *arguments)


@pytest.fixture
def run(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return Import(capsys)


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


TENSORS = [torch.from_numpy(states) for states in HIDDEN]


def arrow_table():
    pa = pytest.importorskip("pyarrow")
    columns = {key: [row[key] for row in ROWS] for key in COLUMNS}
    columns["h"] = pa.array(HIDDEN.tolist(), pa.list_(pa.list_(pa.float32())))
    return pa.table(columns)


def write_npy(folder, arrays):
    folder.mkdir()
    for key, array in arrays.items():
        np.save(folder / f"{key}.npy", array)


def write_arrow(path, table):
    with pytest.importorskip("pyarrow").ipc.new_stream(str(path), table.schema) as writer:
        writer.write_table(table, max_chunksize=20)


def write_dataset(folder, table):
    """As `Dataset.save_to_disk` does, below the folder that is given."""
    (folder / "train").mkdir(parents=True)
    for name in ("state.json", "dataset_info.json"):
        (folder / "train" / name).write_text("{}")
    write_arrow(folder / "train/data-00000-of-00001.arrow", table)


def write_parquet(path, table):
    pytest.importorskip("pyarrow.parquet").write_table(table, path, row_group_size=70)


def write_hdf5(path, values):
    """Arrays, compressed, texts, and lists of token ids."""
    h5py = pytest.importorskip("h5py")
    with h5py.File(path, "w") as file:
        for key, value in values.items():
            if key == "h":
                file.create_dataset(key, data=value, compression="gzip")
            elif key == "tok":
                tokens = file.create_dataset(key, (len(value),), h5py.vlen_dtype("i4"))
                for i, row in enumerate(value):
                    tokens[i] = row
            else:
                file[key] = value


def write_json_lines(path, rows):
    lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
    path.write_text("\n".join(lines))


WRITERS = {
    "": write_npy,
    ".ds": write_dataset,
    ".jsonl": write_json_lines,
    ".csv": lambda path, text: path.write_text(text),
    ".pkl": lambda path, value: path.write_bytes(pickle.dumps(value)),
    ".pt": lambda path, value: torch.save(value, path),
    ".npz": lambda path, arrays: np.savez(path, **arrays),
    ".safetensors": lambda path, arrays: path.write_bytes(safetensors_bytes(arrays)),
    ".arrow": write_arrow,
    ".parquet": write_parquet,
    ".h5": write_hdf5,
}
LISTS = {"meta": {"model": "m"}, "y": LABELS}
IN_HDF5 = {key: array.tolist() for key, array in TEXTS.items()}
IN_HDF5 |= ARRAYS | {"tok": [row["tok"] for row in ROWS]}
FORMATS = {  # file -> kind, keys, and what makes its content
    "f.npz": ("npz", "h y id q", lambda: ARRAYS | TEXTS),
    "npy": ("npy", "h y id q", lambda: ARRAYS | TEXTS),
    "f.safetensors": ("safetensors", "h y", lambda: ARRAYS),
    "f.jsonl": ("JSON lines", "id h y q tok", lambda: [r | {"h": r["h"].tolist()} for r in ROWS]),
    "f.arrow": ("Arrow", "id h y q tok", arrow_table),
    "f.ds": ("Arrow", "id h y q tok", arrow_table),
    "f.parquet": ("Parquet", "id h y q tok", arrow_table),
    "f.h5": ("HDF5", "h y id q tok", lambda: IN_HDF5),
    "rows.pkl": ("pickle", "id h y q tok", lambda: ROWS),
    "rows.pt": (
        *("pickle", "id h y q tok"),
        lambda: [row | {"h": states} for row, states in zip(ROWS, TENSORS, strict=True)],
    ),
    "arrays.pt": (
        *("pickle", "h y"),
        lambda: LISTS | {"h": torch.stack(TENSORS), "y": torch.tensor(LABELS)},
    ),
    "lists.pkl": ("pickle", "h y", lambda: LISTS | {"h": TENSORS}),
}


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_gives_the_same_rows(run, tmp_path, name):
    """Nested, ragged and missing values too; a file that is cut is never a shorter one."""
    kind, keys, content = FORMATS[name]
    WRITERS[Path(name).suffix](tmp_path / name, content())
    _, out, _ = run("--inspect", name)
    assert f": {kind}, {N} records" in out
    assert re.search(r"  h: \w+ \((150, )?2, 4\)\n", out)
    assert "label=y" in out
    if kind == "pickle":
        assert "--inspect shows a --map for other arrays" in run.refused("o.zarr", name)
    mapped = ",".join(f"{COLUMNS[key]}={key}" for key in keys.split())
    assert run("o.zarr", name, "--map", mapped)[0] == 0
    store = TraceStore.open("o.zarr")
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


@pytest.mark.parametrize("kind", ["lines", "arrays", "files"])
def test_what_becomes_of_files(run, tmp_path, golden_lines, kind):
    """By a map, or by each that --inspect proposes: the columns, the values of each trace, which
    may be shapes, and what is said, left out or refused."""
    names = {"io": io, "np": np, "torch": torch, "pa": pytest.importorskip("pyarrow")}

    def say(case):
        for path in tmp_path.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        *typed, files = case
        for name, content in files.items():
            file = tmp_path / name
            file.parent.mkdir(exist_ok=True)
            if isinstance(content, str) and file.suffix != ".csv":
                content = eval(content, names)  # noqa: S307 - it is written beside this file
            if isinstance(content, bytes):
                file.write_bytes(content)
            else:
                WRITERS[file.suffix](file, content)
        if typed:
            return told(typed)
        _, out, _ = run("--inspect", *files)
        commands = [shlex.split(line) for line in out.splitlines() if "python -m" in line]
        return " or ".join(told(command[5:]) for command in commands)

    def told(typed):
        shutil.rmtree(tmp_path / "o.zarr", ignore_errors=True)
        status, out, err = run("o.zarr", *typed) if "--inspect" not in typed else run(*typed)
        if status == 2:
            assert not (tmp_path / "o.zarr").exists()
            return err.strip()
        said = [str(status), *(line.strip()[:99] for line in out.splitlines())]
        if "--inspect" in typed:
            return "; ".join(said)
        store = TraceStore.open("o.zarr")
        columns = {
            name: shown(column)
            for name, column in store.schema.columns.items()
            if name not in ("question_id", "source_file")
        }
        values = [[trace.id, *(plain(trace[name]) for name in columns)] for trace in store]
        shortened = values if len(values) < 20 else [*values[:2], "...", *values[-2:]]
        found = [json.dumps(one, ensure_ascii=False) for one in (columns, *shortened)]
        return "; ".join([*said, *found])

    golden_lines(f"imported_{kind}.txt", say)


def shown(column):
    along = [f"along {column.axis}"] if column.axis else []
    return " ".join([column.dtype, *map(str, column.item_shape), *along, *column.axis_names])


def plain(value):
    if isinstance(value, str):
        return value
    return value.tolist() if math.prod(value.shape) < 9 else f"shape {tuple(value.shape)}"


@pytest.fixture
def features():
    """Seven rows of several arrays in one file."""
    rng = np.random.default_rng(0)
    arrays = {
        "layers": rng.normal(size=(7, 4, 8)).astype("f4"),
        "y": np.arange(7) % 2,
        "qid": np.array([f"q{i // 2}" for i in range(7)]),
        "extra": rng.normal(size=(7, 3)),
    }
    np.savez("f.npz", **arrays)


@pytest.mark.parametrize("name", ["f.npz", "npy/f.npy", "f.safetensors"])
def test_rows_without_bytes_are_refused(run, tmp_path, name):
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
    for column in ("mine", "question_id", "references", "tokens", "hs_last"):
        run.refused("o.zarr", name, "--map", f"{column}=f")
        assert not (tmp_path / "o.zarr").exists()
    assert run("--inspect", name)[0] in (0, 1)


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


def test_files_that_are_not_as_their_request_says_are_left_out(run, tmp_path, golden_lines):
    """With the reason; responses that are none are refused."""
    for name in ("r0", "r2"):
        vllm_file(tmp_path / "v", name, 8)

    def say(requests):
        write_lines(tmp_path / "req.jsonl", [{"id": "r0", "prompt_len": 3}, *requests])
        shutil.rmtree(tmp_path / "o.zarr", ignore_errors=True)
        status, out, err = run(*VLLM)
        if status == 2:
            return err.strip().partition("Error: ")[0]  # Python's own words
        store = TraceStore.open("o.zarr")
        if not status:
            return f"{store['r2']['prompt_len']} and {store['r2']['answer_len']} tokens"
        assert list(store.ids) == ["r0"]
        [line] = [line for line in out.splitlines() if "r2.safetensors" in line]
        return line

    golden_lines("requests.txt", say)


def test_requests_and_files_without_the_other_are_named(run, tmp_path):
    """Once, also where the import is of parts that are merged; every file is in one of them."""
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
    said = [run(f"p{k}.zarr", *VLLM[1:], "--part", f"{k}/2")[1] for k in (1, 2)]
    assert "".join(said).count("request 'r3': ") == 1
    assert main(["merge", "m.zarr", "p1.zarr", "p2.zarr"]) == 0
    assert sorted(TraceStore.open("m.zarr").ids) == ["r0", "r4"]


@pytest.mark.parametrize("kind", ["vllm", "rows"])
def test_a_stopped_import_goes_on_to_the_same_store(run, tmp_path, monkeypatch, kind):
    """After every row, with records that were left out before and after it."""
    if kind == "vllm":
        vllm_folder(tmp_path)
        (tmp_path / "v" / "r1.safetensors").write_bytes(b"cut")
        command = ("v", "--requests", "req.jsonl")
    else:
        for part in "ab":
            lines = [{"id": f"{part}{i}", "hs": [[1.0 * i] * 4] * 2} for i in (0, 1, 1, 2)]
            write_lines(tmp_path / f"{part}.jsonl", lines)
        command = ("[ab].jsonl", "--map", "trace_id=id,hs_last=hs")
    _, whole, _ = run("whole.zarr", *command)
    expected = [(trace.id, dict(trace)) for trace in TraceStore.open("whole.zarr")]
    append = StoreWriter.append

    def stop_after(n):
        n_appended = 0

        def stopped(self, trace_id, row):
            nonlocal n_appended
            if n_appended == n:
                raise KeyboardInterrupt
            n_appended += 1
            append(self, trace_id, row)

        return stopped

    for stop in (1, 2, 3):
        out = tmp_path / f"{stop}.zarr"
        with monkeypatch.context() as patched:
            patched.setattr(StoreWriter, "append", stop_after(stop))
            run(out.name, *command)
        assert not out.exists()
        status, said, _ = run(out.name, *command)
        assert (status, said.replace(out.name, "whole.zarr")) == (1, whole)
        assert_store(out, expected)


def test_mistakes_are_one_line(run, features, tmp_path, golden_lines):
    """With exit status 2, and nothing written."""
    (tmp_path / "q.csv").write_text("Name,score\na,1\n")  # some pickles begin so
    write_lines(tmp_path / "q.jsonl", [{"question": "a"}])
    before = sorted(tmp_path.iterdir())
    golden_lines("wrong_imports.txt", lambda typed: run.refused("o.zarr", *typed).strip())
    assert sorted(tmp_path.iterdir()) == before


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


def test_hdf5_reads_no_other_file(run, tmp_path):
    """Neither by a link nor by data that lies elsewhere; nor lists of lists, as nothing in the file
    bounds what they unpack to. Other keys are imported."""
    h5py = pytest.importorskip("h5py")
    (tmp_path / "secret").write_bytes(bytes(8))
    with h5py.File(tmp_path / "other.h5", "w") as file:
        file["x"] = np.ones(4)
    with h5py.File(tmp_path / "f.h5", "w") as file:
        file.create_dataset("v", (3,), h5py.vlen_dtype(h5py.vlen_dtype("i4")))
        file["model/y"] = np.zeros(3, int)  # a key is the path of a dataset
        file["x"] = h5py.ExternalLink("other.h5", "x")
    assert "expected a key 'x'" in run.refused("o.zarr", "f.h5", "--map", "score=x")
    err = run.refused("o.zarr", "f.h5", "--map", "mine=v")
    assert "'v': expected numbers, texts or lists of numbers, found object" in err
    assert run("o.zarr", "f.h5", "--map", "label=model/y")[0] == 0
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


def test_a_state_that_names_other_files_is_refused(run, saved):
    """In one line, and nothing outside the folder is read."""
    for state in STATES:
        (saved / "state.json").write_text(state)
        assert "ds/state.json" in run.refused("o.zarr", "ds", "--map", "trace_id=id")
