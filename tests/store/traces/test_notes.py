"""Filters by what was noted beside a store."""

import numpy as np
import pytest
from small import make_store

from store import Column, FormatError, StoreWriter, TraceStore
from store.labels.notes import write_note
from store.traces.notes import notes_path


@pytest.fixture
def path(tmp_path):
    rows = {f"q{i}": {"label": i % 2} for i in range(4)}
    return make_store(tmp_path / "s.zarr", {"label": "int8"}, rows).path


@pytest.fixture
def noted(path):
    place = notes_path(path)
    write_note(place, "q0", label="1", tags="odd", note="Look again")
    write_note(place, "q1", tags="oddly, late", note="")
    write_note(place, "q3", label="-1")
    write_note(place, "of another store", tags="odd", label="1")
    return path


TEXTS = [
    ('tag == "odd"', [0]),
    ('tag != "odd"', [1, 2, 3]),
    ('tag contains "ODD"', [0, 1]),
    ('tag in ("odd", "late")', [0, 1]),
    ('tag == ""', [2, 3]),
    ('note contains "look"', [0]),
    ("note != ''", [0]),
    ("noted == 1", [0]),
    ("noted < 1", [3]),
    ("noted == nan", [1, 2]),
    ("noted != label and noted >= 0", [0]),
    ('label == 1 and tag == "late"', [1]),
]


def test_a_filter_knows_what_was_noted(noted):
    """At once. Of several tags of a trace each one counts, and a trace without a note has none."""
    store = TraceStore.open(noted)
    for text, expected in TEXTS:
        assert store.where(text).tolist() == expected, text
    write_note(notes_path(noted), "q2", tags="new")
    assert store.where('tag == "new"').tolist() == [2]


def test_a_store_without_notes_has_no_tags(path):
    assert TraceStore.open(path).where('tag == ""').tolist() == [0, 1, 2, 3]


def test_a_column_of_the_store_comes_first(path):
    with StoreWriter.open(path) as writer:
        writer.add_column("note", Column("int8"), np.arange(4, dtype=np.int8))
    assert TraceStore.open(path).where("note > 2").tolist() == [3]


def test_notes_that_cannot_be_read_are_named(path):
    notes_path(path).write_text("trace_id,label,tags,note\nq0,maybe,,\n")
    with pytest.raises(FormatError, match="label of 'q0': expected 0, 1, -1 or nothing"):
        TraceStore.open(path).where('tag == "odd"')
