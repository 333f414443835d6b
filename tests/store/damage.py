"""A store so small that every byte of it can be damaged in its turn, and what must hold of it
then."""

import json
import multiprocessing
import signal
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import zarr
from crc32c import crc32c
from oracle import assert_batch, assert_same_row, bits, make_rows, write_store

from store import Column, NotFoundError, Schema, StoreError, TraceStore
from store.check.report import Report
from store.check.verify import verify_store
from store.format import layout, schema

SMALL = Schema(
    {
        # raw, two planes, three shards
        "x": Column("int16", (2,), "t", ("layers",), ("layers",), chunk_items=4, shard_items=8),
        "z": Column("float32", axis="t", codec="zstd", chunk_items=8, shard_items=16),
        "label": Column("int8", chunk_items=2, shard_items=4),
    }
)
ROWS = make_rows(SMALL, 7, seed=3)  # of 1, 3, 1, 7, 1, 7 and 1 items
N_ASKED = 9  # rows, at most


def shrink(patch) -> None:
    """Tables and chunks of a few bytes instead of many KB, where a column does not choose."""
    patch.setattr(schema, "COMPRESSED_CHUNK_BYTES", 256)
    patch.setattr(layout, "SMALL_CHUNK_BYTES", 16)
    for module in (schema, layout):
        patch.setattr(module, "CHUNK_BYTES", 256)
        patch.setattr(module, "SHARD_BYTES", 1024)


def write_small(path: Path) -> Path:
    """Seven rows in two commits: 15 KB in 36 files."""
    return write_store(path, SMALL, ROWS, commits=2)


def files_in(path: Path) -> list[Path]:
    """Every file below a directory."""
    return sorted(file for file in path.rglob("*") if file.is_file())


def content(path: Path) -> dict[str, bytes]:
    """Every file below a directory, with its bytes."""
    return {str(file.relative_to(path)): file.read_bytes() for file in files_in(path)}


def flip(file: Path, position: int = 0) -> None:
    """Change one bit of a file."""
    data = bytearray(file.read_bytes())
    data[position] ^= 1
    file.write_bytes(data)


def swap(one: Path, other: Path) -> None:
    """Let two files change places."""
    between = one.with_name("between")
    one.rename(between)
    other.rename(one)
    between.rename(other)


def edit_json(file: Path, **changes: object) -> dict:
    """Change values of a file of JSON; what it was before."""
    before = json.loads(file.read_bytes())
    file.write_text(json.dumps(before | changes))
    return before


def questions(store: TraceStore) -> Iterator[tuple[str, Callable[[], object]]]:
    """Every way to read the small store, or the first rows of what another record promises."""
    rows = range(min(len(store), N_ASKED))
    yield "length", lambda: len(store)
    yield "ids", lambda: list(store.ids[: len(rows)])
    yield "hashes", lambda: [*map(bits, store.reader.id_table.hashes())]
    yield "absent", lambda: "another" in store
    for row, (trace_id, _) in enumerate(ROWS):
        yield f"row of {row}", partial(store.row_of, trace_id)
    for name in sorted(store.schema.stored):  # the order of keys has no checksum, nor a meaning
        yield f"lengths of {name}", lambda name=name: bits(store.lengths(name))
        yield (
            f"batch of {name}",
            lambda name=name: [bits(row[name]) for row in store.read(rows[::-1], [name])],
        )
        for row in rows:
            yield f"{name} in {row}", lambda name=name, row=row: bits(store[row][name])
    if store.schema == SMALL and len(store) > 5:
        yield "plane", lambda: bits(store.read([3, 5], ["x"], {"x": {"layers": 1}})["x"].values)


def answers(path: Path, check: bool) -> dict[str, object]:
    """What a reader answers, or the StoreError it raises; any other error is the caller's to
    see."""
    try:
        store = TraceStore.open(path, check=check)
    except StoreError as error:
        return {"open": error}
    found = {}
    for name, ask in questions(store):
        try:
            found[name] = ask()
        except StoreError as error:
            found[name] = error
    return found


def zarr_answers(path: Path) -> dict[str, bytes]:
    """What zarr-python reads of every array."""
    members = zarr.open_group(path, mode="r").members(max_depth=None)
    return {name: node[...].tobytes() for name, node in members if isinstance(node, zarr.Array)}


def verified(path: Path) -> Report | StoreError:
    """What `verify_store` finds, or why it cannot."""
    try:
        return verify_store(path)
    except StoreError as error:
        return error


class Whole:
    """What a whole store answers, and whether a damaged one keeps its promises."""

    def __init__(self, path: Path) -> None:
        self.path, self.answers, self.zarr = path, answers(path, check=True), zarr_answers(path)
        assert verify_store(path).problems == []
        assert not any(isinstance(answer, StoreError) for answer in self.answers.values())

    def judge(self, fault: str) -> bool:
        """Whether `verify` reports a fault; if it does not, nothing may depend on it."""
        report = verified(self.path)
        for name, answer in (found := answers(self.path, check=True)).items():
            wrongly_absent = name != "open" and isinstance(answer, NotFoundError)
            right = isinstance(answer, StoreError) or answer == self.answers[name]
            assert right and not wrongly_absent, f"{fault}: {name}: {answer!r:.200}"  # noqa: PT018
        answers(self.path, check=False)  # may be wrong, but comes back
        reported = isinstance(report, StoreError) or bool(report.problems or report.leftovers)
        if not reported:
            assert found == self.answers, f"{fault}: not reported"
            assert zarr_answers(self.path) == self.zarr, (
                f"{fault}: not reported, zarr-python reads something else"
            )
        return reported


def in_child(work: Callable[[], object], seconds: int = 280) -> object:
    """The result of `work` in a forked process, so that a crash is an error of one test."""
    context = multiprocessing.get_context("fork")
    receive, send = context.Pipe(duplex=False)

    def run() -> None:
        signal.alarm(seconds)
        try:
            send.send((work(), None))
        except BaseException as error:  # noqa: BLE001 - it is raised again by the parent
            send.send((None, f"{type(error).__name__}: {error}"))

    child = context.Process(target=run, daemon=True)  # it ends with a test that takes too long
    child.start()
    send.close()
    try:
        result, error = receive.recv()
    except EOFError:
        result, error = None, "no answer"
    child.join()
    assert not error, f"{error} (exit status {child.exitcode})"
    assert child.exitcode == 0
    return result


def assert_store(path: Path, rows: list[tuple[str, dict]]) -> None:
    """A store is whole, and holds these rows in checked reads: bit for bit, and by their ids."""
    store = TraceStore.open(path, check=True)
    assert list(store.ids) == [trace_id for trace_id, _ in rows]
    for i, (trace_id, row) in enumerate(rows):
        assert store.row_of(trace_id) == i
        assert_same_row(store[i], row)
    assert_batch(store.read(slice(None)), [row for _, row in rows])
    report = verify_store(path)
    assert report.problems == report.leftovers == []


def edit_record(path: Path, change: Callable[[dict], object]) -> None:
    """Change the record of a store in place, and make its checksum right again."""
    file = path / "zarr.json"
    group = json.loads(file.read_bytes())
    record = group["attributes"]["trace_store"]
    del record["crc32c"]
    change(record)
    canonical = json.dumps(record, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    record["crc32c"] = f"{crc32c(canonical.encode()):08x}"
    file.write_text(json.dumps(group))
