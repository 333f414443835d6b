"""Columns that follow from hidden states, against the same arithmetic in float64."""

import numpy as np
import pytest
import torch
from damage import flip
from oracle import bits
from small import make_store, refused

from store import Column, NotFoundError, SchemaError, StoreWriter, TraceStore
from store.cli.main import main
from store.traces.states import DERIVED
from store.transform.derive import derive_columns

LENGTHS = (2, 7, 31)


def make(path, dtype="float16", lengths=LENGTHS, prompt_len=1, **options):
    states = Column(dtype, (3, 4), "tokens", ("layers", "hidden"), **options)
    rng = np.random.default_rng(0)
    rows = {}
    for i, n_tokens in enumerate(lengths):
        numbers = torch.from_numpy(rng.normal(size=(n_tokens, 3, 4))).to(getattr(torch, dtype))
        rows[f"t{i}"] = {"hidden_states": numbers, "prompt_len": prompt_len}
    columns = {"hidden_states": states, "prompt_len": "int32"}
    return make_store(path, columns, rows, {"source": "test"})


def tensor(value):
    """A copy: torch warns of arrays that cannot be written."""
    return value if isinstance(value, torch.Tensor) else torch.from_numpy(np.array(value))


@pytest.mark.parametrize(
    "dtype, options",
    [("float16", {}), ("bfloat16", {"codec": "zstd:3"}), ("float32", {"split": ("layers",)})],
)
def test_derived_columns_are_the_states_and_their_mean(tmp_path, dtype, options):
    """In the dtype of the states, however they are stored; nothing else changes."""
    before = make(tmp_path / "s.zarr", dtype, **options)
    with StoreWriter.open(tmp_path / "s.zarr") as writer:
        derive_columns(writer, list(DERIVED))
    store = TraceStore.open(tmp_path / "s.zarr", check=True)
    assert store.schema.columns["hs_mean"].axis_names == ("layers", "hidden")
    assert store.provenance["source"] == "test"
    for trace, old in zip(store, before, strict=True):
        states = tensor(old["hidden_states"])
        assert bits(trace["hidden_states"]) == bits(old["hidden_states"])
        assert torch.equal(tensor(trace["hs_last"]), states[-1])
        assert torch.equal(tensor(trace["hs_prompt"]), states[0])
        mean = states[1:].double().mean(0)
        found = tensor(trace["hs_mean"])
        assert found.dtype == states.dtype
        assert torch.allclose(found.double(), mean, rtol=1e-2, atol=1e-2)


def test_columns_that_are_there_stay(tmp_path, capsys):
    """A second command has nothing to do, and one with more adds the rest."""
    make(tmp_path / "s.zarr")
    path = str(tmp_path / "s.zarr")
    assert main(["derive", path, "hs_last"]) == 0
    generation = TraceStore.open(path).generation
    assert main(["derive", path, "hs_last"]) == 0
    assert "nothing to do" in capsys.readouterr().out
    assert TraceStore.open(path).generation == generation
    assert main(["derive", path, "hs_last,hs_mean"]) == 0
    assert "hs_mean of 3 traces added" in capsys.readouterr().out


@pytest.mark.parametrize(("lengths", "prompt_len"), [((3, 0), 1), ((3, 2), 2), ((3,), 0)])
def test_a_trace_without_an_answer_is_named_and_nothing_changes(tmp_path, lengths, prompt_len):
    store = make(tmp_path / "s.zarr", lengths=lengths, prompt_len=prompt_len)
    named = pytest.raises(SchemaError, match=f"trace 't{len(lengths) - 1}': ")
    with StoreWriter.open(tmp_path / "s.zarr") as writer, named:
        derive_columns(writer, ["hs_mean"])
    assert TraceStore.open(tmp_path / "s.zarr").generation == store.generation
    assert {path.name for path in (tmp_path / "s.zarr").iterdir()} >= {"hidden_states"}
    assert not (tmp_path / "s.zarr" / "hs_mean").exists()


def test_damaged_states_are_no_column(tmp_path, capsys):
    """A valid checksum of what follows from them would hide it."""
    make(tmp_path / "s.zarr")
    flip(tmp_path / "s.zarr/hidden_states/c/0/0/0")
    error = refused(capsys, "derive", tmp_path / "s.zarr", "hs_last")
    assert "array 'hidden_states', shard 0, chunk 0: expected checksum" in error


def test_names_that_cannot_be_derived_are_refused(tmp_path, capsys):
    make(tmp_path / "s.zarr")
    named = pytest.raises(NotFoundError, match="closest: 'hs_last'")
    with StoreWriter.open(tmp_path / "s.zarr") as writer, named:
        derive_columns(writer, ["hs_lst"])
    make_store(tmp_path / "o.zarr", {"x": "int8"}, {})
    error = refused(capsys, "derive", tmp_path / "o.zarr", "hs_last")
    assert "hs_last is made from column 'hidden_states', found only x" in error


def test_a_command_that_stops_has_added_nothing_and_goes_on(tmp_path, monkeypatch):
    """Ctrl-C in the middle of the rows."""
    make(tmp_path / "s.zarr")
    path = str(tmp_path / "s.zarr")

    def stopped(name, states, prompt_len):
        if len(states) == LENGTHS[1]:
            raise KeyboardInterrupt
        return states[-1]

    with monkeypatch.context() as patched:
        patched.setattr("store.transform.derive.derive_states", stopped)
        assert main(["derive", path, "hs_last"]) == 130
    assert "hs_last" not in TraceStore.open(path).schema.columns
    assert main(["derive", path, "hs_last"]) == 0
    store = TraceStore.open(path, check=True)
    for trace in store:
        assert np.array_equal(trace["hs_last"], trace["hidden_states"][-1])
