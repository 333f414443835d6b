"""A served model: what OpenAI's clients get, and who is refused."""

import json
import os
import signal
import subprocess
import sys
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import pytest
from starlette.testclient import TestClient
from transformers import AutoModelForCausalLM, AutoTokenizer

from store.sources.example import MODEL_DIR, ExampleSource, example_questions
from store.view.safety import HOSTS
from store.write.build import build_store
from train import fit_detectors, load_run
from train.serve.app import build_app
from train.serve.engine import Engine, Limits

PROMPT = "Does Ada like chess?"
ASKED = {"prompt": PROMPT, "max_tokens": 8}
CHAT = {"messages": [{"role": "user", "content": PROMPT}], "max_tokens": 8}


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("served")
    build_store(path / "a.zarr", ExampleSource(example_questions(192)))
    settings = {"epochs": 1, "seeds": 1, "tune": "none", "force_cpu": True, "baselines": False}
    run = fit_detectors(path / "a.zarr", ["saplma", "lapeigvals"], **settings)
    run.export(path / "guard.safetensors")
    return path / "guard.safetensors"


def serve(file, **limits):
    """A client of a served model that has a chat template."""
    tokenizer = AutoTokenizer.from_pretrained(MODEL_DIR)
    tokenizer.chat_template = (
        "{{ bos_token }}{% for one in messages %}{{ one.content }}{% endfor %}"
    )
    model = AutoModelForCausalLM.from_pretrained(MODEL_DIR)
    guard = load_run(file, force_cpu=True)
    engine = Engine(guard, model.float(), tokenizer, Limits(**limits), force=True)
    headers = {"Authorization": "Bearer right"}
    app = build_app(engine, "example", "right", HOSTS)
    return TestClient(app, "http://127.0.0.1", headers=headers)


@pytest.fixture(scope="module")
def client(file):
    with serve(file, body_bytes=10_000) as client:
        yield client


def events(client, path, body):
    text = client.post(path, json=body | {"stream": True}).text
    *found, end = [line.removeprefix("data: ") for line in text.split("\n\n") if line]
    assert end == "[DONE]"
    return [json.loads(one) for one in found]


def test_streams_texts_and_given_answers_have_the_same_scores(client):
    whole = client.post("/v1/completions", json=ASKED).json()
    (one,) = whole["choices"]
    assert (one["finish_reason"], whole["usage"]["prompt_tokens"]) == ("stop", 6)
    verdict = whole["hallucination"]["saplma"]
    assert verdict["decision"] == (verdict["score"] >= verdict["threshold"])
    chat = client.post("/v1/chat/completions", json=CHAT).json()
    assert chat["choices"][0]["message"] == {"role": "assistant", "content": one["text"]}
    assert chat["hallucination"] == whole["hallucination"]
    pieces = events(client, "/v1/chat/completions", CHAT)
    assert "".join(piece["choices"][0]["delta"]["content"] for piece in pieces) == one["text"]
    assert pieces[-1]["hallucination"] == whole["hallucination"]
    given = client.post("/score", json={"prompt": PROMPT, "answer": one["text"].strip()}).json()
    for name, found in given["hallucination"].items():
        assert found["score"] == pytest.approx(whole["hallucination"][name]["score"], abs=2e-3)


@pytest.mark.parametrize(
    "path, body, status",
    [
        ("/v1/completions", b"{", 400),
        ("/v1/completions", b"[1]", 400),
        ("/v1/completions", b"x" * 10_001, 413),
        ("/v1/completions", b'{"prompt": "a", "stop": "b"}', 400),
        ("/v1/completions", b'{"prompt": "a", "max_tokens": 1000}', 400),
        ("/v1/completions", b'{"prompt": "a", "temperature": 1e-300}', 400),
        ("/v1/completions", b'{"prompt": "\\ud800"}', 400),
        ("/v1/chat/completions", b'{"messages": [{"role": "user", "content": 3}]}', 400),
        ("/score", b'{"prompt": "a", "answer": ""}', 400),
        ("/none", b"{}", 404),
    ],
)
def test_wrong_requests_are_refused_as_openai_does(client, path, body, status):
    found = client.post(path, content=body)
    assert found.status_code == status
    assert set(found.json()["error"]) == {"message", "type", "param", "code"}


@pytest.mark.parametrize(
    "headers, status",
    [
        ({"Authorization": "Bearer wrong"}, 401),
        ({"Host": "example.org"}, 403),
        ({"Origin": "http://example.org"}, 403),
    ],
)
def test_strangers_are_refused(client, headers, status):
    assert client.post("/v1/completions", json=ASKED, headers=headers).status_code == status
    assert client.get("/metrics", headers=headers).status_code == status


def test_many_wait_and_too_many_are_refused(file):
    with serve(file, requests=3) as client, ThreadPoolExecutor(16) as threads:
        asked = [threads.submit(client.post, "/v1/completions", json=ASKED) for _ in range(16)]
        statuses = [one.result().status_code for one in asked]
        assert set(statuses) <= {200, 429}
        assert 200 in statuses
        lines = client.get("/metrics").text.splitlines()
    path = 'path="/v1/completions",status="200"'
    assert f"trace_serve_requests_total{{{path}}} {statuses.count(200)}" in lines
    assert "trace_serve_open_requests 0" in lines


def test_the_command_serves_until_a_signal(file):
    argv = [sys.executable, "-m", "train", "serve", "--run", file, "--model", MODEL_DIR]
    with subprocess.Popen([*argv, "--force"], stdout=subprocess.PIPE, text=True) as process:
        url = process.stdout.readline().strip()
        with urllib.request.urlopen(url.replace("/v1", "/health")) as answer:  # noqa: S310
            assert json.load(answer)["status"] == "ok"
        os.kill(process.pid, signal.SIGTERM)
    assert process.returncode == -signal.SIGTERM
