"""The record of a store, mutated at random: an error that says so, or the same content."""

import copy
import json
import math
import os
import resource
import signal
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from damage import Whole, edit_record, in_child, verified
from oracle import bits

from store import StoreError, TraceStore

SECONDS, GROWTH_BYTES, SPACE_BYTES = 10, 200e6, 8 * 2**30
NAMES = [
    "",
    ".",
    "..",
    "../x",
    "/abs",
    "a/b",
    "a\0",
    "zarr.json",
    "_tmp",
    "_offsets/t",
    "n" * 64,
    "n" * 70_000,
    "ñ",
]
NAMES += [
    "x",
    "z",
    "t",
    "label",
    "trace_id",
    "n_rows",
    "generation",
    "layers",
    "\ud800",
    "x\n",
    " ",
    "con",
    "x@1",
]
ARRAYS = [
    "label@1",
    "label@01",
    "label@" + "9" * 30,
    "label@../../x",
    "label@1/../../x",
    "label@1\n",
    "/label@1",
]
CODECS = [
    "zstd",
    "zstd:99",
    "gzip",
    "gzip:-1",
    "blosc",
    "blosc:zstd:3:none",
    "zstd:" + "9" * 5000,
    "zstd:\u0663",
    ":",
]
DTYPES = ["utf8", "bfloat16", "bool", "int64", "float64", "object", "<i4", "complex128", "V8"]
COUNTS = [
    0,
    1,
    2,
    3,
    4,
    7,
    8,
    2**16,
    2**18,
    2**31,
    2**32,
    2**40 - 1,
    2**40,
    2**47,
    2**48 - 1,
    2**48,
    2**63,
    10**400,
]
NUMBERS = [-1, -(2**63), 0.5, 1.0, -0.0, math.nan, math.inf, 1e300, True, False, None]
SHAPES = [
    [],
    [1] * 70,
    [2**31],
    [2**16, 2**15],
    [2**40],
    [0],
    [-1],
    ["2"],
    [[2]],
    5,
    {"2": 2},
    [2.0],
    [True],
]
ODD = [
    *NAMES,
    *ARRAYS,
    *CODECS,
    *DTYPES,
    *COUNTS,
    *NUMBERS,
    *SHAPES,
    {},
    [[]],
    {"": {}},
    [None],
    [[0, 7]],
    [[0, 3], [4, 7]],
]


def places(value: object) -> Iterator[tuple[dict | list, object]]:
    """Every (container, key) inside a JSON value."""
    for key in (
        list(value)
        if isinstance(value, dict)
        else range(len(value) if isinstance(value, list) else 0)
    ):
        yield value, key
        yield from places(value[key])


def nested(depth: int) -> list:
    """A list in a list in a list."""
    value: list = []
    for _ in range(depth):
        value = [value]
    return value


def mutate(record: dict, rng: np.random.Generator) -> None:
    """Change one to three things in the record."""
    for _ in range(rng.integers(1, 4)):
        found = list(places(record))
        container, key = found[rng.integers(len(found))]
        kind, odd = rng.integers(6), copy.deepcopy(ODD[rng.integers(len(ODD))])
        if rng.integers(200) == 0:
            odd = nested(int(rng.integers(1, 1200)))
        if kind == 0:
            del container[key]
        elif kind == 1 and isinstance(container, dict):
            container[str(odd)] = container.pop(key)
        elif kind == 2 and isinstance(container, dict):
            container[str(odd)] = copy.deepcopy(container[key])
        elif kind == 3 and isinstance(container, list):
            container.insert(key, odd)
        elif kind == 4 and type(container[key]) is int:
            container[key] += int(rng.choice([-1, 1, 2, 4, 8, 2**16, 2**33]))
        else:
            container[key] = odd


def _rename_axis(record: dict, name: str) -> None:
    record["n_items"][name] = record["n_items"].pop("t")
    for column in ("x", "z"):
        record["schema"][column]["axis"] = name


def _scale(record: dict, column: str, factor: int) -> None:
    for key in ("chunk_items", "shard_items"):
        record["schema"][column][key] *= factor


LIES = {
    "an axis called n_rows": lambda r: (_rename_axis(r, "n_rows"), r.update(n_rows=7.0)),
    "an axis called generation": lambda r: (
        _rename_axis(r, "generation"),
        r.update(generation="new"),
    ),
    "an axis called like a run": lambda r: (_rename_axis(r, "n_rows"), r.update(n_rows=-1)),
    "a run from 0.0": lambda r: r.update(runs=[[0.0, 7]], run_sums={"0.0-7": r["run_sums"]["0-7"]}),
    "items without end": lambda r: r["n_items"].update(t=2**47),
    "ids without end": lambda r: r["n_items"].update(trace_id=2**47),
    "rows without end": lambda r: r.update(
        n_rows=2**38, runs=[[0, 2**38]], n_items=dict.fromkeys(r["n_items"], 2**47)
    ),
    "an empty store with items": lambda r: r.update(
        n_rows=0, runs=[], n_items={"t": 2**47, "trace_id": 2**47}
    ),
    "an empty store with axes": lambda r: r.update(n_rows=0, runs=[], n_items={"../x": 2**47}),
    "one item a shard": lambda r: (
        r["n_items"].update(t=2**47),
        r["schema"]["x"].update(chunk_items=1, shard_items=1),
    ),
    "a shard too many": lambda r: r["n_items"].update(t=8 * 2**17 + 1),
    "many shards": lambda r: (
        r["n_items"].update(t=2**14),
        r["schema"]["x"].update(chunk_items=1, shard_items=1),
    ),
    "many axes": lambda r: r["schema"]["label"].update(item_shape=[1] * 70),
    "a million axes": lambda r: r["schema"]["label"].update(item_shape=[1] * 1_000_000),
    "large items": lambda r: r["schema"]["label"].update(item_shape=[2**31]),
    "large ragged items": lambda r: r["schema"]["x"].update(item_shape=[2**29]),
    "many planes": lambda r: r["schema"]["label"].update(
        item_shape=[2**31], axis_names=["a"], split=["a"]
    ),
    "large compressed items": lambda r: r["schema"]["z"].update(item_shape=[2**29]),
    "large chunks": lambda r: _scale(r, "label", 2**37),
    "large compressed chunks": lambda r: _scale(r, "z", 2**35),
    "large shards": lambda r: r["schema"]["label"].update(shard_items=2**39),
    "large compressed shards": lambda r: r["schema"]["z"].update(shard_items=2**39),
    "a generation without end": lambda r: r.update(generation=2**48 - 1),
    "sums that are true": lambda r: r.update(run_sums={"0-7": True}),
    "tails of another length": lambda r: r["tails"].update(x=[1, 2, 3]),
    "tails of none": lambda r: r.update(tails={}),
    "sums of none": lambda r: r.update(run_sums={}),
    "a thousand columns": lambda r: r["schema"].update(
        {f"c{i}": r["schema"]["label"] for i in range(1000)}
    ),
    "more runs than rows": lambda r: r.update(runs=[[i, i + 1] for i in range(8)]),
    "a deep provenance": lambda r: r.update(provenance={"a": nested(900)}),
    "no text": lambda r: r.update(provenance={"\ud800": "\udfff"}),
}


def read_all(path: Path) -> list:
    """All that a reader can be asked, of the first rows of whatever the record promises;
    StoreErrors among it."""
    try:
        store = TraceStore.open(path, check=True)
    except StoreError as error:
        return [error]
    n = min(len(store), 9)
    questions = [
        lambda: store.ids[:n],
        lambda: store.row_of("trace 3 é"),
        lambda: "absent" in store,
        store.reader.id_table.hashes,
    ]
    for name in store.schema.stored:
        questions.append(lambda name=name: bits(store.lengths(name)))
        questions += [
            lambda name=name, row=row: bits(store[row].store.read_value(name, row))
            for row in range(n)
        ]
        questions.append(
            lambda name=name: [bits(row[name]) for row in store.read(range(n), [name])]
        )
    found = [len(store)]
    for ask in questions:
        try:
            found.append(ask())
        except StoreError as error:
            found.append(error)
    return found


class Fuzz:
    """Judges a store with another record, in a process that may not grow, hang, or look outside the
    store."""

    def __init__(self, path: Path) -> None:
        self.path, self.text, self.counts = path, (path / "zarr.json").read_bytes(), Counter()
        Whole(path)  # and everything is imported
        self.expected = list(map(repr, read_all(path)))
        self.opened: list[str] = []
        space = _mapped() + SPACE_BYTES
        resource.setrlimit(resource.RLIMIT_AS, (space, space))
        sys.addaudithook(self._hear)
        signal.signal(signal.SIGALRM, _too_late)
        self.grown = _resident()

    def _hear(self, event: str, arguments: tuple) -> None:
        if event in ("open", "os.listdir", "os.scandir", "os.mkdir", "os.rename", "os.remove"):
            self.opened.append(os.fspath(arguments[0]) if not isinstance(arguments[0], int) else "")

    def judge(self, signed: bool) -> None:
        """Read everything and verify; the same content, or an error (or, if the checksum is right,
        a report)."""
        self.opened.clear()
        signal.alarm(SECONDS)
        report, found = verified(self.path), read_all(self.path)
        signal.alarm(0)
        outside = [str(name) for name in self.opened if name and not _is_inside(name, self.path)]
        assert not outside, outside
        assert _resident() - self.grown < GROWTH_BYTES
        same = list(map(repr, found)) == self.expected
        wrong = any(isinstance(answer, StoreError) for answer in found)
        reported = isinstance(report, StoreError) or bool(report.problems)
        assert same or wrong or (signed and reported)
        self.counts[
            "same content"
            if same
            else "refused"
            if isinstance(found[0], StoreError)
            else "error later"
        ] += 1


def _resident() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _mapped() -> int:
    """Bytes of addresses that the process has: it may be forked from one that has many."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    return pages * resource.getpagesize()


def _is_inside(name: object, path: Path) -> bool:
    full = Path(os.path.normpath(os.fsdecode(name)))
    # Python's own modules
    return any(full.is_relative_to(allowed) for allowed in (path, sys.prefix, sys.base_prefix))


def _too_late(*_: object) -> None:
    raise TimeoutError(f"not done after {SECONDS} s")


def fuzz_records(path: Path, seeds: range) -> Counter:
    """Structured mutations, the checksum made right."""
    fuzz = Fuzz(path)
    for seed in seeds:
        (path / "zarr.json").write_bytes(fuzz.text)
        try:
            edit_record(
                path, lambda record, seed=seed: mutate(record, np.random.default_rng([1, seed]))
            )
        except RecursionError:
            continue
        _judge(fuzz, signed=True, seed=seed)
    return fuzz.counts


def fuzz_bytes(path: Path, seeds: range) -> Counter:
    """Bytes replaced, removed, repeated and inserted anywhere."""
    fuzz = Fuzz(path)
    for seed in seeds:
        rng, data = np.random.default_rng([2, seed]), bytearray(fuzz.text)
        for _ in range(rng.integers(1, 5)):
            start, n = int(rng.integers(len(data))), int(rng.choice([1, 1, 2, 8, 100]))
            some = [
                rng.bytes(n),
                b"",
                data[start : start + n] * 2,
                rng.choice(list(b'0123456789-.e[]{}:,"\\ nN')).tobytes(),
            ]
            data[start : start + n * int(rng.integers(2))] = some[rng.integers(4)]
        (path / "zarr.json").write_bytes(data)
        _judge(fuzz, signed=False, seed=seed)
    return fuzz.counts


def _judge(fuzz: Fuzz, signed: bool, seed: int) -> None:
    try:
        fuzz.judge(signed)
    except BaseException as error:
        kept = json.dumps(str(fuzz.path))
        raise AssertionError(f"seed {seed}, {kept}: {type(error).__name__}: {error}") from error


@pytest.mark.parametrize("lie", LIES)
def test_a_lie_is_refused(small_store, lie):
    """Believable ones, which nothing but the files themselves contradicts."""

    def judge() -> None:
        fuzz = Fuzz(small_store)
        edit_record(small_store, LIES[lie])
        fuzz.judge(signed=True)

    in_child(judge, seconds=60)


def test_nested_without_end(small_store):
    """However deep: the content, or one error that says so."""
    edit_record(small_store, lambda record: record.update(provenance={"deep": "HERE"}))
    file = small_store / "zarr.json"
    text = file.read_text()
    for depth in range(500, 1000):
        file.write_text(text.replace('"HERE"', "[" * depth + "]" * depth))
        with pytest.raises(StoreError):
            TraceStore.open(small_store)


def test_some_records_mutated(small_store):
    """With a right checksum: hostile names, shapes, numbers, runs and tails end in an error or a
    report."""
    counts = in_child(lambda: fuzz_records(small_store, range(750)))
    assert counts["refused"] > 500


def test_some_metadata_bytes_mutated(small_store):
    """With any other byte: refused, or the same content."""
    assert in_child(lambda: fuzz_bytes(small_store, range(750)))["refused"] > 500


@pytest.mark.slow
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("fuzz", [fuzz_records, fuzz_bytes])
def test_many_mutations(small_store, fuzz):
    """15,000 of each kind."""
    counts = in_child(lambda: fuzz(small_store, range(15_000)), seconds=3000)
    print(f"\n{fuzz.__name__}, all survived: {counts.total():,} {dict(counts)}")
