"""Files that vLLM's server wrote (tests/data/vllm), and what is done to them."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from array_files import safetensors_bytes, vllm_file, write_lines
from served_llama import build_llama

from store import TraceStore
from store.cli.main import main
from store.importers.arrays.array_files import open_safetensors
from store.traces.origin import TRACE_CONVENTION

SAMPLE = Path(__file__).parents[2] / "data" / "vllm"
CONVENTION = ("trace_convention", TRACE_CONVENTION)
LAYERS = ["--layers", "1,3,4"]  # as they lie in the files, though the engine was given 4,1,3


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    """The served model, and its directory."""
    folder = tmp_path_factory.mktemp("served")
    model, tokenizer = build_llama()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return model, folder


def records(kind):
    return [json.loads(line) for line in (SAMPLE / f"{kind}.jsonl").read_text().splitlines()]


def run_import(out, folder, requests, *flags):
    return main(["import", str(out), str(folder), "--requests", str(requests), *flags])


def extract(folder, questions, out):
    """A store of the same prompts, with answers as given ones."""
    write_lines(out.with_suffix(".jsonl"), questions)
    flags = ["--model", str(folder), "--questions", str(out.with_suffix(".jsonl"))]
    columns = "--columns=tokens,prompt_len,answer_len,hidden_states,hs_prompt,hs_mean,logprob"
    template = ["--prompt-template", "{question}", "--dtype=fp32", "--device=cpu"]
    assert main(["extract", str(out), *flags, *template, *LAYERS, columns]) == 0
    return TraceStore.open(out)


def given(kind):
    """Name of a file -> question and answer, of the responses whose answer has a text."""
    found = {}
    for record in records(kind):
        [path] = (SAMPLE / kind).glob(f"{record['id']}-*")
        answer = record["choices"][0]["text"]
        name = path.stem if record["kv_transfer_params"] else record["id"]
        if answer:
            found[name] = {"question": record["question"], "response": answer}
    return found


def assert_equal_to_extracted(trace, extracted, norm):
    """The same tokens and states; the last layer once the model's norm is applied."""
    n_tokens = len(trace["tokens"])
    assert np.array_equal(trace["tokens"], extracted["tokens"][:n_tokens])
    found, expected = trace["hidden_states"], extracted["hidden_states"][:n_tokens]
    with torch.no_grad():
        normed = norm(torch.tensor(np.array(found[:, 2]))).numpy()
    close = {"rtol": 1e-3, "atol": 1e-3}  # of float16
    np.testing.assert_allclose(found[:, :2], expected[:, :2], **close)
    np.testing.assert_allclose(normed, expected[:, 2], **close)
    assert not np.allclose(found[:, 2], expected[:, 2], atol=0.1)


def test_what_requests_know_comes_along(tmp_path):
    """Their own keys and the server's model, but not when and as what it answered."""
    found = [record | {"dataset": "d", "context": "c"} for record in records("answers")]
    write_lines(tmp_path / "r.jsonl", found)
    assert run_import(tmp_path / "v.zarr", SAMPLE / "answers", tmp_path / "r.jsonl") == 1
    row = TraceStore.open(tmp_path / "v.zarr")[0]
    assert (row["dataset"], row["context"], row["model"]) == ("d", "c", found[0]["model"])
    assert not {"created", "object", "id"} & {*dict(row)}
    out = tmp_path / "w.zarr"
    flags = ["--fields", "none"]
    assert run_import(out, SAMPLE / "answers", tmp_path / "r.jsonl", *flags) == 1
    assert "dataset" not in TraceStore.open(out).schema.columns


def test_answers_of_the_server_are_those_of_extract(llama, tmp_path, capsys):
    """Ended by length, by the end of the text, and by a stop, which is not told its path."""
    model, folder = llama
    out = tmp_path / "v.zarr"
    assert run_import(out, SAMPLE / "answers", SAMPLE / "answers.jsonl", *LAYERS) == 1
    assert "expected more tokens than the 11 of the prompt, found 11" in capsys.readouterr().out
    store = TraceStore.open(out)
    for key, value in (("layers", [1, 3, 4]), ("final_norm", False), CONVENTION):
        assert store.provenance[key] == value
    asked = given("answers")
    assert sorted(store.ids) == sorted(asked)
    assert len(asked) == 4
    questions = [{"question_id": name, **texts} for name, texts in asked.items()]
    other = extract(folder, questions, tmp_path / "e.zarr")
    for key, value in (("final_norm", True), CONVENTION):
        assert other.provenance[key] == value
    n_whole = 0
    for name, texts in asked.items():
        trace, extracted = store[name], other[name]
        assert_equal_to_extracted(trace, extracted, model.model.norm)
        n_prompt = trace["prompt_len"]
        n_tokens = len(trace["tokens"])
        assert n_prompt == extracted["prompt_len"]
        assert trace["answer_len"] == n_tokens - n_prompt
        assert (trace["question"], trace["answer"]) == (texts["question"], texts["response"])
        found, expected = trace["logprob"], extracted["logprob"][:n_tokens]
        np.testing.assert_allclose(found[n_prompt:], expected[n_prompt:], atol=1e-4)
        is_of_prompt = texts["question"] == "5*25="  # asked with prompt_logprobs
        of_prompt = expected[:n_prompt] if is_of_prompt else np.full(n_prompt, np.nan)
        np.testing.assert_allclose(found[:n_prompt], of_prompt, atol=1e-4)
        if trace["answer_len"] == extracted["answer_len"]:  # the last token is that of the answer
            n_whole += 1
            np.testing.assert_allclose(
                trace["hs_mean"][:2], extracted["hs_mean"][:2], rtol=1e-3, atol=1e-3
            )
    assert n_whole == 3  # all but the one that ended by length


def test_prompts_of_the_server_are_those_of_extract(llama, tmp_path):
    """Of a prompt alone the store has the last state, and nothing of the answer but its text."""
    model, folder = llama
    out = tmp_path / "v.zarr"
    assert run_import(out, SAMPLE / "prompts", SAMPLE / "prompts.jsonl", *LAYERS) == 0
    store = TraceStore.open(out)
    assert store.provenance["trace_convention"] != TRACE_CONVENTION
    asked = given("prompts")
    questions = [{"question_id": name, **texts} for name, texts in asked.items()]
    other = extract(folder, questions, tmp_path / "e.zarr")
    assert not {"prompt_len", "answer_len", "hs_mean", "logprob"} & store.schema.columns.keys()
    for name in asked:
        assert_equal_to_extracted(store[name], other[name], model.model.norm)
        assert len(store[name]["tokens"]) == other[name]["prompt_len"]
        for column in ("hs_last", "hs_prompt"):
            assert np.array_equal(store[name][column], store[name]["hidden_states"][-1])


@pytest.fixture
def answers(tmp_path):
    """A copy of the files of answers, without the empty one, and of their responses."""
    folder = shutil.copytree(SAMPLE / "answers", tmp_path / "answers")
    kept = []
    for record in records("answers"):
        [path] = folder.glob(f"{record['id']}-*")
        if record["choices"][0]["text"]:
            kept.append(record)
        else:
            path.unlink()
    write_lines(tmp_path / "answers.jsonl", kept)
    return folder, kept


WRONG = (  # what becomes of states and tokens, in place or anew, and what is said of it
    (lambda states, _: states[3, 1].fill(0), "found zeros for token 3 of 9"),
    (lambda states, _: states.fill(0), "found zeros for token 0 of 9"),
    (
        lambda states, _: np.copyto(states[1], states[0]),
        "found those of token 0 again for token 1 of 9",
    ),
    (
        lambda states, tokens: (states[:-1], tokens),
        "expected as many states as tokens, found 8 states and 9 tokens",
    ),
    (
        lambda states, tokens: (states[:-1], tokens[:-1]),
        "expected 5 + 5 tokens, all but the last, or 5, found 8",
    ),
    (
        lambda _, tokens: np.copyto(tokens[2:3], tokens[2] + 1),
        "tokens that its request names, found 9 others",
    ),
)


def test_states_that_the_engine_did_not_save_are_refused(answers, tmp_path, capsys):
    """By name, and the others go on."""
    folder, kept = answers
    record = next(record for record in kept if record["question"] == "413=")
    [path] = folder.glob(f"{record['id']}-*")
    whole = path.read_bytes()
    for i, (change, message) in enumerate(WRONG):
        path.write_bytes(whole)
        file = open_safetensors(path)
        arrays = [np.array(file.read(name)) for name in ("hidden_states", "token_ids")]
        states, tokens = change(*arrays) or arrays
        path.write_bytes(safetensors_bytes({"hidden_states": states, "token_ids": tokens}))
        assert run_import(tmp_path / f"{i}.zarr", folder, tmp_path / "answers.jsonl") == 1
        [line] = [line for line in capsys.readouterr().out.splitlines() if path.name in line]
        assert message in line
        assert len(TraceStore.open(tmp_path / f"{i}.zarr")) == len(kept) - 1


def test_states_again_are_refused_in_bfloat16_as_well(tmp_path, capsys):
    """But equal tokens may have equal states, as those of a prompt that is one token many times."""
    bits, tokens = vllm_file(tmp_path / "v", "a", 6)
    bits[4] = bits[1]
    states = np.ones((5, 2, 4), "f4")
    for folder, arrays, status in (("v", (bits, tokens), 2), ("w", (states, np.full(5, 7)), 0)):
        (tmp_path / folder).mkdir(exist_ok=True)
        data = safetensors_bytes(dict(zip(("hidden_states", "token_ids"), arrays, strict=True)))
        (tmp_path / folder / "a.safetensors").write_bytes(data)
        out = tmp_path / f"{folder}.zarr"
        assert main(["import", str(out), str(tmp_path / folder)]) == status
    assert "found those of token 1 again for token 4 of 6" in capsys.readouterr().err


def test_own_keys_stand_beside_a_response_or_around_it(answers, tmp_path):
    """They count more, but an answer around a response is the right one; a file is found by the
    path, or by the id that the engine added to."""
    folder, kept = answers
    around = [
        {"question_id": f"q{i}", "label": i % 2, "answer": "right", "response": record}
        for i, record in enumerate(kept)
    ]
    beside = [{**record, "question_id": f"q{i}"} for i, record in enumerate(kept)]
    for record in beside:
        record["kv_transfer_params"] = None
    for name, lines in (("around", around), ("beside", beside)):
        write_lines(tmp_path / f"{name}.jsonl", lines)
        assert run_import(tmp_path / name, folder, tmp_path / f"{name}.jsonl", *LAYERS) == 0
    first, other = (TraceStore.open(tmp_path / name) for name in ("around", "beside"))
    for i, record in enumerate(kept):
        [trace] = [trace for trace in first if trace["question_id"] == f"q{i}"]
        assert (trace["label"], trace["references"]) == (i % 2, '["right"]')
        assert trace["answer"] == record["choices"][0]["text"] == other[record["id"]]["answer"]
        assert np.array_equal(trace["hidden_states"], other[record["id"]]["hidden_states"])


def test_a_response_to_a_chat(answers, tmp_path):
    """Its text and its log-probabilities have other names; prompt_token_ids are of the response."""
    folder, kept = answers
    record = next(record for record in kept if record["question"] == "413=")
    [choice] = record["choices"]
    logprobs = choice["logprobs"]["token_logprobs"]
    chat = {key: record[key] for key in ("id", "usage", "kv_transfer_params")} | {
        "prompt_token_ids": choice["prompt_token_ids"],
        "choices": [
            {
                "message": {"role": "assistant", "content": choice["text"]},
                "logprobs": {"content": [{"token": "?", "logprob": one} for one in logprobs]},
                "token_ids": choice["token_ids"],
            }
        ],
    }
    write_lines(tmp_path / "chat.jsonl", [chat])
    [path] = folder.glob(f"{record['id']}-*")
    assert run_import(tmp_path / "o.zarr", path, tmp_path / "chat.jsonl") == 0
    [trace] = TraceStore.open(tmp_path / "o.zarr")
    assert trace["answer"] == choice["text"]
    np.testing.assert_allclose(trace["logprob"][5:], logprobs[:-1], rtol=1e-6)
