"""The connector in vLLM itself, on the CPU: `make test-vllm` installs that and runs this file."""

import json
import os
import random
import shlex
import signal
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

pytest.importorskip("vllm")

import torch
from served_vllm import ask, make_model, post, serving

from store import TraceStore
from store.check.verify import verify_store
from store.cli.main import main

LAYERS = (1, 3, 4)
N_LAYERS = 4
COLUMNS = "hs_prompt,hs_last,hs_mean,hidden_states"
N_REQUESTS, N_CLIENTS = 200, 16


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    return folder, make_model(folder)


def recording(store, model, capsys, log):
    """vLLM, started as `store record` says."""
    arguments = ["--layers", "4,1,3", "--columns", COLUMNS, "--commit-s", "1"]
    assert main(["record", str(store), "--vllm", str(model), *arguments]) == 0
    command = shlex.split(capsys.readouterr().out)
    assert command[:3] == ["vllm", "serve", str(model)]
    return serving(model, command[3:], log)


def bodies(n):
    """Prompts in part alike, so that their beginnings are cached."""
    rng = random.Random(0)  # noqa: S311 - test data
    for i in range(n):
        digits = "".join(rng.choice("0123456789+*-") for _ in range(rng.randint(2, 40)))
        prompt = f"{digits if i % 3 else '12345678901234567890123'}{i % 7}="
        yield {"prompt": prompt, "max_tokens": rng.randint(1, 12), "temperature": 0}


def ask_fully(body):
    asked = {"logprobs": 0, "return_token_ids": True, **body}
    return {"question": body["prompt"], **ask(asked)}


def abort(body):
    """Ask for a stream, and leave."""
    post({"stream": True, **body}).close()


def expect_states(llama, trace, choice):
    """The states of transformers, over the same tokens."""
    ids = [*choice["prompt_token_ids"], *choice["token_ids"]][:-1]
    assert trace["tokens"].tolist() == ids
    with torch.no_grad():
        states = llama(torch.tensor([ids]), output_hidden_states=True).hidden_states
        found = torch.tensor(np.asarray(trace["hidden_states"]))
        last = llama.model.norm(found[:, LAYERS.index(N_LAYERS)])  # transformers norms the last one
    torch.testing.assert_close(last, states[N_LAYERS][0], atol=1e-4, rtol=1e-4)
    for place, layer in enumerate(LAYERS[:-1]):
        torch.testing.assert_close(found[:, place], states[layer][0], atol=1e-4, rtol=1e-4)
    prompt_len = len(choice["prompt_token_ids"])
    mean = found[prompt_len:].mean(0)
    torch.testing.assert_close(torch.tensor(np.asarray(trace["hs_mean"])), mean)
    for name, position in (("hs_last", -1), ("hs_prompt", prompt_len - 1)):
        assert np.array_equal(np.asarray(trace[name]), found[position].numpy())


@pytest.mark.slow
def test_every_answer_is_a_trace_once(tmp_path, model, capsys):
    """Many clients at once, chunked prompts, cached prefixes, clients that leave; then SIGTERM."""
    folder, llama = model
    path = tmp_path / "s.zarr"
    with (tmp_path / "log").open("wb") as log, recording(path, folder, capsys, log) as server:
        with ThreadPoolExecutor(N_CLIENTS) as pool:
            responses = list(pool.map(ask_fully, bodies(N_REQUESTS)))
            list(pool.map(abort, [{"prompt": "1+", "max_tokens": 40, "min_tokens": 40}] * 8))
        server.send_signal(signal.SIGTERM)
        assert server.wait(timeout=120) == 0
    with_states = [one for one in responses if one["usage"]["completion_tokens"] > 1]
    store = TraceStore.open(path)
    answered = {one["id"] for one in with_states}
    assert answered <= set(store.ids)
    assert len(store) - len(answered) <= 8  # whoever left may have been answered before
    assert len(with_states) > N_REQUESTS // 2
    assert not verify_store(path).problems
    for response in with_states:
        expect_states(llama, store[response["id"]], response["choices"][0])
    lines = tmp_path / "responses.jsonl"
    lines.write_text("".join(json.dumps(one) + "\n" for one in responses))
    assert main(["record", str(path), "--responses", str(lines)]) == 0
    store = TraceStore.open(path)
    for response in with_states:
        trace = store[response["id"]]
        assert (trace["question"], trace["answer"]) == (
            response["question"],
            response["choices"][0]["text"],
        )


@pytest.mark.slow
def test_a_kill_loses_at_most_what_came_after_the_last_commit(tmp_path, model, capsys):
    """And the next server appends to the same store."""
    folder, _ = model
    path = tmp_path / "s.zarr"
    with (tmp_path / "log").open("wb") as log:
        with recording(path, folder, capsys, log) as server:
            first = [ask_fully(body | {"max_tokens": 4, "min_tokens": 4}) for body in bodies(10)]
            time.sleep(3)  # a commit comes each second
            os.killpg(server.pid, signal.SIGKILL)
            server.wait()
        assert {one["id"] for one in first} == set(TraceStore.open(path).ids)
        with recording(path, folder, capsys, log) as server:
            second = [ask_fully(body | {"max_tokens": 4, "min_tokens": 4}) for body in bodies(3)]
            server.send_signal(signal.SIGTERM)
            assert server.wait(timeout=120) == 0
    assert TraceStore.open(path).ids[:] == [one["id"] for one in (*first, *second)]
    assert not verify_store(path).problems
