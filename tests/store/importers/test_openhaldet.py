"""OpenHalDet's files of states and samples, written as its pipeline writes them."""

import json

import h5py
import numpy as np
import pytest
from array_files import write_lines
from ml_dtypes import bfloat16

from store import TraceStore
from store.cli.main import main

LAYERS = (11, 12)
D = 4
VERDICTS = ("correct", "hallucination", "abstention")


def sample(i, **changes):
    """A line of `03_final_scored_metadata.jsonl`."""
    data = {
        "task_type": "multiple_choice",
        "system_instruction": "",
        "context": "Kent is a county.",
        "question": "What is Kent?",
        "choices": {"A": "A county", "B": "A city"},
        "ground_truths": ["A"],
        "incorrect_answers": [],
    }
    line = {
        "sample_id": f"arc_challenge_train_{i:06d}",
        "structured_data": data,
        "original_doc": {"id": 1},
        "prompt": "<bos>What is Kent?",
        "model_output_text": "A county",
        "total_generated_tokens": 9,
        "saved_tokens_count": 3,
        "h5_file_reference": "./02_hidden_states.h5",
        "eval_category": VERDICTS[i % 3],
        "eval_reasoning": "It is one.",
    }
    return line | changes


def state(step, layer):
    return (np.arange(D) + 10 * step + layer / 2).astype(bfloat16)


def write_states(path, steps_of, mode="backward", model="Qwen/Qwen3-8B"):
    """Steps of each sample -> a group with their states."""
    with h5py.File(path, "w") as file:
        file.attrs["llm_model"] = model
        file.attrs["token_config"] = json.dumps({"mode": mode, "count": 3})
        for name, steps in steps_of.items():
            tokens = file.create_group(name).create_group("generated_tokens")
            for step in steps:
                one = tokens.create_group(f"token_{step:03d}")
                one.attrs.update({"text": f"t{step}", "token_id": 100 + step})
                for layer in LAYERS:
                    name = f"layer_{layer:02d}"
                    one.create_dataset(name, data=state(step, layer), compression="gzip")


@pytest.fixture
def folder(tmp_path):
    samples = [sample(i) for i in range(3)]
    write_lines(tmp_path / "03_final_scored_metadata.jsonl", samples)
    write_states(tmp_path / "02_hidden_states.h5", {one["sample_id"]: (6, 7, 8) for one in samples})
    return tmp_path


def run_import(folder, *flags):
    return main(["import", str(folder / "o.zarr"), str(folder / "02_hidden_states.h5"), *flags])


def test_states_and_samples_are_joined(folder):
    """A step's state is that of its input, the token before; layer_11 is the model's 12."""
    assert run_import(folder) == 0
    store = TraceStore.open(folder / "o.zarr")
    assert store.layers("hidden_states") == [12, 13]
    assert store.schema.columns["hidden_states"].dtype == "bfloat16"
    assert [int(trace["label"]) for trace in store] == [0, 1, -1]
    trace = store["arc_challenge_train_000001"]
    expected = np.stack([[state(step, layer) for layer in LAYERS] for step in (6, 7, 8)])
    assert np.array_equal(trace["hidden_states"].float(), expected.astype(np.float32))
    assert np.array_equal(trace["hs_last"].float(), expected[-1].astype(np.float32))
    assert trace["tokens"].tolist() == [-1, 106, 107]
    assert json.loads(trace["token_texts"]) == ["", "t6", "t7"]
    assert (trace["prompt_len"], trace["answer_len"]) == (0, 3)
    assert trace["question"] == "What is Kent?\nA. A county\nB. A city"
    assert (trace["answer"], trace["references"]) == ("A county", '["A"]')
    assert trace["context"] == "Kent is a county."
    assert (trace["dataset"], trace["task_type"]) == ("arc_challenge", "multiple_choice")
    assert store.provenance["model"] == "Qwen/Qwen3-8B"
    assert "eval_category" not in store.schema.columns


@pytest.mark.parametrize(
    "mode, n_steps, has", [("all", 1002, ["hs_last", "hs_prompt"]), ("forward", 3, ["hs_prompt"])]
)
def test_where_the_first_step_is_saved_the_prompt_has_a_state(folder, mode, n_steps, has):
    """Also where the numbers of steps are longer than their three digits."""
    states = {"arc_challenge_train_000000": range(n_steps)}
    write_states(folder / "02_hidden_states.h5", states, mode)
    assert run_import(folder) == 1  # two samples have no states
    (trace,) = TraceStore.open(folder / "o.zarr")
    assert [name for name in ("hs_last", "hs_prompt") if name in trace] == has
    assert (trace["prompt_len"], trace["answer_len"]) == (1, n_steps - 1)
    assert np.array_equal(trace["hs_prompt"][0].float(), state(0, 11).astype(np.float32))
    assert trace["tokens"][-1] == 100 + n_steps - 2


def test_samples_that_are_not_judged_are_unlabelled(folder):
    lines = [sample(i, eval_category=None) for i in range(3)]
    write_lines(folder / "02_extracted_metadata.jsonl", lines)
    (folder / "03_final_scored_metadata.jsonl").unlink()
    assert run_import(folder) == 0
    assert [int(trace["label"]) for trace in TraceStore.open(folder / "o.zarr")] == [-1] * 3


def test_what_does_not_fit_is_named(folder, capsys):
    """Samples without states, states without a sample, gaps, other layers, links, verdicts."""
    names = [f"arc_challenge_train_{i:06d}" for i in range(6)]
    lines = [sample(i) for i in range(4)] + [sample(5), sample(6, eval_category="maybe")]
    write_lines(folder / "03_final_scored_metadata.jsonl", lines)
    path = folder / "02_hidden_states.h5"
    write_states(path, {names[0]: (6, 7), names[1]: (6, 8), names[2]: (), names[4]: (1,)})
    with h5py.File(path, "a") as file:
        other = file.create_group(f"{names[3]}/generated_tokens/token_000")
        other.create_dataset("layer_11", data=np.zeros(D, np.float32))
        file[names[5]] = h5py.ExternalLink("other.h5", "/x")
    assert run_import(folder) == 1
    said = capsys.readouterr().out
    assert len(TraceStore.open(folder / "o.zarr")) == 1
    for expected in (
        "found [6, 8]",
        "found []",
        "expected the layers [11, 12]",
        f"sample_id '{names[4]}', found none",
        "expected data in this file",
        "expected one of ['correct'",
    ):
        assert expected in said


def test_states_without_samples_are_refused(folder, capsys):
    (folder / "03_final_scored_metadata.jsonl").unlink()
    assert run_import(folder) == 2
    assert "beside it, found neither; copy it there" in capsys.readouterr().err
    assert not (folder / "o.zarr").exists()


def test_inspect_proposes_the_import(folder, capsys):
    assert main(["import", "--inspect", str(folder / "02_hidden_states.h5")]) == 0
    said = capsys.readouterr().out
    assert "OpenHalDet" in said
    assert f"python -m store import OUT.zarr {folder / '02_hidden_states.h5'}" in said


def test_data_sets_of_one_model_are_imported_together(folder, capsys):
    """Each with its samples; files of two models are not."""
    other = folder / "squad"
    other.mkdir()
    names = [f"squad_v2_train_{i:06d}" for i in range(2)]
    lines = [sample(i, sample_id=name) for i, name in enumerate(names)]
    write_lines(other / "03_final_scored_metadata.jsonl", lines)
    write_states(other / "02_hidden_states.h5", dict.fromkeys(names, (3, 4)))
    assert run_import(folder, str(other / "02_hidden_states.h5")) == 0
    store = TraceStore.open(folder / "o.zarr")
    assert store.where("dataset = 'squad_v2' and n_tokens = 2").tolist() == [3, 4]
    write_states(other / "02_hidden_states.h5", dict.fromkeys(names, (3, 4)), model="Llama")
    flags = [str(folder / "02_hidden_states.h5"), str(other / "02_hidden_states.h5")]
    assert main(["import", str(folder / "p.zarr"), *flags]) == 2
    assert "found Llama and backward; import them apart" in capsys.readouterr().err


def test_layers_are_not_given(folder, capsys):
    assert run_import(folder, "--layers", "1,2") == 2
    assert "--layers is for other files" in capsys.readouterr().err
