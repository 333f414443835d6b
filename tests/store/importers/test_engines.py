"""States as serving engines and tools of interpretability write them, by a map."""

import base64

import numpy as np
import pytest
import torch
from array_files import write_lines

from store import TraceStore
from store.cli.main import main

D = 4


def made(tmp_path, name, mapped, *flags):
    out = tmp_path / "o.zarr"
    status = main(["import", str(out), str(tmp_path / name), "--map", mapped, *flags])
    return status, TraceStore.open(out)


def test_sglang(tmp_path):
    """The prompt's block and the steps behind it are the states of one trace, of the last layer."""
    states = np.arange(3 * 5 * D, dtype=np.float32).reshape(3, 5, D)
    records = [
        {
            "text": "Kent",
            "label": i % 2,
            "Question": f"Where is {i}?",
            "output_ids": [7, 8],
            "meta_info": {
                "id": f"r{i}",
                "finish_reason": {"type": "stop", "matched": 2},
                "prompt_tokens": 3,
                "completion_tokens": 2,
                "hidden_states": [one[:3].tolist(), *one[3 : 5 - i % 2].tolist()],
            },
        }
        for i, one in enumerate(states)
    ]
    write_lines(tmp_path / "r.jsonl", records)
    mapped = (
        "hidden_states=meta_info.hidden_states[tokens,hidden],trace_id=meta_info.id,answer=text"
    )
    mapped += ",prompt_len=meta_info.prompt_tokens"
    status, store = made(tmp_path, "r.jsonl", mapped, "--layers", "28", "--fields", "all")
    assert status == 0
    assert store.column("label").tolist() == [0, 1, 0]  # by their names
    assert store["r1"]["question"] == "Where is 1?"
    assert np.array_equal(store["r0"]["hidden_states"][:, 0], states[0])
    assert np.array_equal(store["r1"]["hidden_states"][:, 0], states[1][:4])
    assert store.layers("hidden_states") == [28]
    assert store["r2"]["meta_info_finish_reason_type"] == "stop"  # a field
    assert store.where("n_tokens < 5").tolist() == [1]


def test_a_label_is_no_field(tmp_path):
    """Neither with none of them, nor where a file lacks it."""
    labelled = [{"hs": [i, 1], "label": i % 2, "task": "a"} for i in (0, 1)]
    write_lines(tmp_path / "a.jsonl", labelled)
    write_lines(tmp_path / "b.jsonl", [{"hs": [2, 1], "question": "b"}])
    status, store = made(tmp_path, "[ab].jsonl", "hs_last=hs", "--fields", "none")
    assert (status, store.column("label").tolist()) == (0, [0, 1, -1])
    assert "task" not in store.schema.columns


@pytest.mark.parametrize("dtype", ["float32", "torch.bfloat16"])
def test_vllm_lens(tmp_path, dtype):
    """Layers come before positions; bytes that are not those of the shape are named."""
    states = [torch.arange(2 * n * D).reshape(2, n, D).float() for n in (3, 5)]
    kind = getattr(torch, dtype.removeprefix("torch."))

    def encoded(one):
        data = one.to(kind).view(torch.uint8).numpy().tobytes()
        return {"data": base64.b64encode(data).decode(), "dtype": dtype, "shape": [*one.shape]}

    records = [
        {"id": f"r{i}", "activations": {"residual_stream": encoded(one)}, "dataset": "d"}
        for i, one in enumerate(states)
    ]
    short = {"data": "AAAA", "dtype": dtype, "shape": [2, 3, D]}
    bad = {"id": "bad", "activations": {"residual_stream": short}}
    write_lines(tmp_path / "r.jsonl", [*records, bad])
    mapped = "hidden_states=activations.residual_stream[layers,tokens,hidden],trace_id=id"
    status, store = made(tmp_path, "r.jsonl", mapped, "--layers", "9,17")
    assert status == 1
    for i, one in enumerate(states):
        found = torch.as_tensor(store.read([i], ["hidden_states"])["hidden_states"].values)
        assert torch.equal(found.float(), one.permute(1, 0, 2))
    assert store.layers("hidden_states") == [9, 17]
    assert store["r0"]["dataset"] == "d"
