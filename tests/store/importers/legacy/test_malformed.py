"""A malformed record among whole ones: it is left out with its reason, or every value is right."""

import json
import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from raw_generations import GENERATIONS, Generated, open_older, write_pickle

COUNTS = ("prompt_length", "tokens_before_cutoff", "tokens_after_cutoff")


@st.composite
def changes(draw, letter):
    """A name and a function that changes a record."""
    record = Generated(0, numbered=True).record(letter)
    key = draw(st.sampled_from(sorted(record)))
    kind = draw(st.sampled_from(["drop", "none", "type", "length", "array", "layers", "count"]))
    size = draw(st.integers(0, 14))
    layer = draw(st.integers(0, 1))
    array = draw(st.sampled_from(sorted(ARRAYS)))
    name = draw(st.sampled_from(["hidden_states", "attentions"]))
    match kind:
        case "drop":
            return f"drop {key}", lambda r: r.pop(key)
        case "none":
            return f"none {key}", lambda r: r.update({key: None})
        case "type":
            return f"type {key}", lambda r: r.update({key: {"a": 1}})
        case "length":
            lists = [k for k in ("tokens", "tokens_full", "tokens_decoded") if k in record]
            which = lists[size % len(lists)]
            return f"{which} {size}", lambda r: r.update({which: resized(r[which], size)})
        case "array":
            return f"{name} {array}", lambda r: change_array(r[name], layer, ARRAYS[array], size)
        case "layers":
            return f"layers {name} {size}", lambda r: r.update({name: r[name][: size % 2]})
    counts = [k for k in COUNTS if k in record]
    if not counts:
        return "drop tokens", lambda r: r.pop("tokens")
    which = counts[size % len(counts)]
    return f"{which} {size}", lambda r: r.update({which: size - 2})


def resized(items, n):
    repeated = list(items) * 15
    return type(items)(repeated[:n]) if isinstance(items, list) else np.array(repeated[:n])


ARRAYS = {
    "rank less": lambda a: a[0],
    "rank more": lambda a: a[None],
    "shorter": lambda a: a[..., :-1, :],
    "narrower": lambda a: a[..., :-1],
    "flat": lambda a: a.reshape(-1),
    "integers": lambda a: a.astype(np.int32),
    "doubles": lambda a: a.astype(np.float64),
    "texts": lambda a: a.astype(str),
    "objects": lambda a: a.tolist(),
    "nothing": lambda a: None,
    "tensor": lambda a: torch.from_numpy(np.ascontiguousarray(a)),
    "empty": lambda a: a[:0],
}


def change_array(layers, layer, change, step):
    """Change the array of a layer, by step that of one step."""
    if isinstance(layers[layer], list):
        steps = layers[layer]
        steps[step % len(steps)] = change(steps[step % len(steps)])
    else:
        layers[layer] = change(layers[layer])


def assert_true_values(row, trace, letter):
    """Every value is that of the maker, or says that it is not known."""
    expected = trace.expected(letter)
    for name, value in expected.items():
        found = row[name]
        if name == "references":
            assert json.loads(found) in (value, [])
        elif name == "token_texts":
            assert json.loads(found) == value
        elif isinstance(value, str | int):
            assert found == value, name
        elif name == "tokens":
            assert found.tolist() == value.tolist()
        else:
            exact = value.astype(np.float16) if name.startswith("attn") else value
            assert np.array_equal(found, exact), name


@pytest.mark.parametrize("letter", GENERATIONS)
@given(st.data())
def test_a_malformed_record_never_gives_wrong_values(letter, data):
    _, change = data.draw(changes(letter), label="change")
    first = data.draw(st.booleans(), label="first")
    middle = data.draw(st.integers(0, 12), label="number")
    traces = [Generated(number, numbered=True) for number in (middle, 13, 14)]
    records = [trace.record(letter) for trace in traces]
    change(records[0])
    if not first:
        traces, records = [traces[i] for i in (1, 0, 2)], [records[i] for i in (1, 0, 2)]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "a.pkl"
        write_pickle(file, records)
        source = open_older(file)
        rows = [row for _, row in source.rows()]
        messages = source.report.skipped.messages
    changed = 0 if first else 1
    if len(rows) == 2:
        assert len(messages) == 1
        assert messages[0].startswith(f"{file}, record {changed}: ")
        assert "\n" not in messages[0]
        traces.pop(changed)
    else:
        assert not messages
    for trace, row in zip(traces, rows, strict=True):
        assert_true_values(row, trace, letter)
