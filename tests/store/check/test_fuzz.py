"""The record of a store, mutated at random: an error that says so, or the same content."""

import copy
import json
import math
import os
import resource
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from damage import Whole, answers, edit_record, in_child, verified

from store import StoreError, TraceStore

SECONDS, GROWTH_BYTES, SPACE_BYTES = 10, 200e6, 8 * 2**30
NAMES = ["", ".", "..", "../x", "/abs", "a/b", "a\0", "zarr.json", "_tmp", "_offsets/t", "\ud800"]
NAMES += ["n" * 64, "n" * 70_000, "ñ", "x", "z", "t", "label", "trace_id", "n_rows", "generation"]
NAMES += ["layers", "x\n", " ", "con", "x@1"]
ARRAYS = ["", "0", "9" * 29, "/../../x", "\n"]
ARRAYS = [*(f"label@1{end}" for end in ARRAYS), "label@01", "label@../../x", "/label@1"]
CODECS = ["zstd", "zstd:99", "gzip", "gzip:-1", "blosc", "blosc:zstd:3:none", "zstd:\u0663", ":"]
CODECS += ["zstd:" + "9" * 5000]
DTYPES = ["utf8", "bfloat16", "bool", "int64", "float64", "object", "<i4", "complex128", "V8"]
COUNTS = [0, 1, 2, 3, 4, 7, 8, 2**40 - 1, 2**48 - 1, 10**400]
COUNTS += [2**n for n in (16, 18, 31, 32, 40, 47, 48, 63)]
NUMBERS = [-1, -(2**63), 0.5, 1.0, -0.0, math.nan, math.inf, 1e300, True, False, None]
SHAPES = [[], [1] * 70, [2**31], [2**16, 2**15], [2**40], [0], [-1], ["2"], [[2]], 5, {"2": 2}]
SHAPES += [[2.0], [True]]
ODD = [*NAMES, *ARRAYS, *CODECS, *DTYPES, *COUNTS, *NUMBERS, *SHAPES]
ODD += [{}, [[]], {"": {}}, [None], [[0, 7]], [[0, 3], [4, 7]]]


def places(value: object) -> Iterator[tuple[dict | list, object]]:
    """Every (container, key) inside a JSON value."""
    if not isinstance(value, dict | list):
        return
    for key in list(value) if isinstance(value, dict) else range(len(value)):
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


def _sets(column: str | None = None, items: int | None = None, **values) -> Callable:
    """A lie that sets values of a column, or of the record, and the items of the axis t."""

    def lie(record: dict) -> None:
        (record["schema"][column] if column else record).update(values)
        if items:
            record["n_items"]["t"] = items

    return lie


EACH = {"chunk_items": 1, "shard_items": 1}
ENDLESS = {"t": 2**47, "trace_id": 2**47}
LIES = {
    "an axis called n_rows": lambda r: (_rename_axis(r, "n_rows"), r.update(n_rows=7.0)),
    "an axis called generation": lambda r: (_rename_axis(r, "generation"), r.update(generation="")),
    "an axis called like a run": lambda r: (_rename_axis(r, "n_rows"), r.update(n_rows=-1)),
    "a run from 0.0": lambda r: r.update(runs=[[0.0, 7]], run_sums={"0.0-7": r["run_sums"]["0-7"]}),
    "items without end": _sets(items=2**47),
    "ids without end": lambda r: r["n_items"].update(trace_id=2**47),
    "rows without end": _sets(n_rows=2**38, runs=[[0, 2**38]], n_items=ENDLESS),
    "an empty store with items": _sets(n_rows=0, runs=[], n_items=ENDLESS),
    "an empty store with axes": _sets(n_rows=0, runs=[], n_items={"../x": 2**47}),
    "one item a shard": _sets("x", items=2**47, **EACH),
    "a shard too many": _sets(items=8 * 2**17 + 1),
    "many shards": _sets("x", items=2**12, **EACH),
    "many axes": _sets("label", item_shape=[1] * 70),
    "a million axes": _sets("label", item_shape=[1] * 1_000_000),
    "large items": _sets("label", item_shape=[2**31]),
    "large ragged items": _sets("x", item_shape=[2**29]),
    "many planes": _sets("label", item_shape=[2**31], axis_names=["a"], split=["a"]),
    "large compressed items": _sets("z", item_shape=[2**29]),
    "large chunks": lambda r: _scale(r, "label", 2**37),
    "large compressed chunks": lambda r: _scale(r, "z", 2**35),
    "large shards": _sets("label", shard_items=2**39),
    "large compressed shards": _sets("z", shard_items=2**39),
    "a generation without end": _sets(generation=2**48 - 1),
    "sums that are true": _sets(run_sums={"0-7": True}),
    "tails of another length": lambda r: r["tails"].update(x=[1, 2, 3]),
    "tails of none": _sets(tails={}),
    "sums of none": _sets(run_sums={}),
    "many columns": lambda r: r["schema"].update(
        {f"c{i}": r["schema"]["label"] for i in range(25)}
    ),
    "more runs than rows": _sets(runs=[[i, i + 1] for i in range(8)]),
    "a deep provenance": lambda r: r.update(provenance={"a": nested(900)}),
    "no text": _sets(provenance={"\ud800": "\udfff"}),
}


class Fuzz:
    """Judges a store with another record, where it may not grow, hang, or look outside."""

    def __init__(self, path: Path) -> None:
        self.path, self.text, self.counts = path, (path / "zarr.json").read_bytes(), Counter()
        self.expected = Whole(path).answers  # and everything is imported
        self.opened: list[str] = []
        space = _mapped() + SPACE_BYTES
        resource.setrlimit(resource.RLIMIT_AS, (space, space))
        sys.addaudithook(self._hear)
        signal.signal(signal.SIGPROF, _too_late)
        self.grown = _resident()

    def _hear(self, event: str, arguments: tuple) -> None:
        if event in ("open", "os.listdir", "os.scandir", "os.mkdir", "os.rename", "os.remove"):
            self.opened.append(os.fspath(arguments[0]) if not isinstance(arguments[0], int) else "")

    def judge(self) -> None:
        """Read everything and verify; the same content, an error, or a report."""
        self.opened.clear()
        signal.setitimer(signal.ITIMER_PROF, SECONDS)  # of its own time, however busy others are
        report, found = verified(self.path), answers(self.path, check=True)
        signal.setitimer(signal.ITIMER_PROF, 0)
        outside = [str(name) for name in self.opened if name and not _is_inside(name, self.path)]
        assert not outside, outside
        assert _resident() - self.grown < GROWTH_BYTES
        same = found == self.expected
        wrong = any(isinstance(answer, StoreError) for answer in found.values())
        reported = isinstance(report, StoreError) or bool(report.problems)
        assert same or wrong or reported
        kind = "refused" if "open" in found else "error later"
        self.counts["same content" if same else kind] += 1


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


def lie_at_random(path: Path, text: bytes, seed: int) -> None:
    """A structured mutation, the checksum made right."""
    rng = np.random.default_rng([1, seed])
    with suppress(RecursionError):  # the record as it was is judged then
        edit_record(path, lambda record: mutate(record, rng))


def tell_lie(path: Path, text: bytes, seed: int) -> None:
    """A believable one, which nothing but the files themselves contradicts."""
    edit_record(path, [*LIES.values()][seed])


def fuzz(path: Path, change: Callable[[Path, bytes, int], None], n: int) -> Counter:
    """Judge the store after each of so many changes of its record."""
    judge = Fuzz(path)
    for seed in range(n):
        (path / "zarr.json").write_bytes(judge.text)
        change(path, judge.text, seed)
        try:
            judge.judge()
        except BaseException as error:
            where = f"seed {seed}, {json.dumps(str(path))}"
            raise AssertionError(f"{where}: {type(error).__name__}: {error}") from error
    return judge.counts


def test_a_lie_is_refused(small_store):
    """Each in its turn; the process grows by less than the limit over all of them."""
    in_child(lambda: fuzz(small_store, tell_lie, len(LIES)))


def test_nested_without_end(small_store):
    """However deep: the content, or one error that says so."""
    edit_record(small_store, lambda record: record.update(provenance={"deep": "HERE"}))
    file = small_store / "zarr.json"
    text = file.read_text()
    for depth in range(500, 1000, 50):
        file.write_text(text.replace('"HERE"', "[" * depth + "]" * depth))
        with pytest.raises(StoreError):
            TraceStore.open(small_store)


@pytest.mark.timeout(3000)
@pytest.mark.parametrize("n", [250, pytest.param(15_000, marks=pytest.mark.slow)])
def test_mutated_records(small_store, n):
    """Hostile names, shapes, numbers, runs and tails under a right checksum end in an error or a
    report."""
    assert in_child(lambda: fuzz(small_store, lie_at_random, n), seconds=3000)["refused"] > 160
