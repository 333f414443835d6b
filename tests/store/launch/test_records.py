"""Completion records: published once, by one of two attempts, and never believed blindly."""

import json
import threading

import pytest

from store.errors import CorruptError, SchemaError
from store.launch.completed_parts import Record, publish, read_record, record_path

RECORD = {
    "command": "import",
    "arguments_sha256": "a" * 64,
    "inputs_sha256": "b" * 64,
    "part": 2,
    "n_parts": 3,
    "n_rows": 10,
    "n_left_out": 1,
    "uuid": "first",
}


def test_of_many_attempts_one_publishes(tmp_path):
    """The others learn that they were not first; nothing else is left."""
    store = tmp_path / "p.zarr"
    won = {}

    def attempt(name):
        won[name] = publish(store, Record(**RECORD | {"uuid": name}))

    attempts = [threading.Thread(target=attempt, args=(f"{n}",)) for n in range(8)]
    for thread in attempts:
        thread.start()
    for thread in attempts:
        thread.join()
    (winner,) = (name for name, is_first in won.items() if is_first)
    assert read_record(record_path(store)).uuid == winner
    assert [path.name for path in tmp_path.iterdir()] == ["p.zarr.part.json"]
    assert publish(store, Record(**RECORD | {"uuid": winner}))  # the same attempt again


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ({"part": 1}, "expected the record of part 2, found that of part 1; remove it"),
        ({"n_parts": 4}, "found part 2/4 of the same"),
        ({"arguments_sha256": "c" * 64}, "found part 2/3 of another command"),
    ],
)
def test_a_record_of_something_else_stands(tmp_path, change, found):
    publish(tmp_path / "p.zarr", Record(**RECORD | change))
    with pytest.raises(SchemaError, match=found):
        publish(tmp_path / "p.zarr", Record(**RECORD))


@pytest.mark.parametrize(
    "content",
    [
        *("", "[" * 20_000, "x" * 70_000, "[]", '{"part": 1}', {"more": 1}, {"uuid": None}),
        *({"part": 0}, {"part": 4}, {"part": True}, {"n_rows": -1}, {"n_rows": 1e3}),
        *({"n_parts": 2**40}, {"inputs_sha256": "../x"}),
    ],
)
def test_what_is_no_record_is_refused(tmp_path, content):
    """In one line."""
    text = content if isinstance(content, str) else json.dumps(RECORD | content)
    path = tmp_path / "p.zarr.part.json"
    path.write_text(text)
    with pytest.raises(CorruptError, match=r"p\.zarr\.part\.json: expected") as caught:
        read_record(path)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400
