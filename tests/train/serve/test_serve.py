"""A served model: what OpenAI's clients get, and who is refused."""

import errno
import json
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import torch
from starlette.testclient import TestClient
from transformers import AutoModelForCausalLM, AutoTokenizer

from store import SchemaError, TraceStore
from store.check.verify import verify_store
from store.cli.main import main as store_main
from store.sources.example import MODEL_DIR
from store.sources.huggingface.prompts import Prompts
from store.view.safety import HOSTS
from store.write.files import Files
from train import fit_detectors, load_run
from train.commands.main import main
from train.serve.app import build_app
from train.serve.engine import Engine
from train.serve.limits import Keeping, Limits
from train.serve.requests import Asked

PROMPT = "Does Ada like chess?"
ASKED = {"prompt": PROMPT, "max_tokens": 8}
CHAT = {"messages": [{"role": "user", "content": PROMPT}], "max_tokens": 8}


@pytest.fixture(scope="module")
def file(tmp_path_factory, example_store):
    path = tmp_path_factory.mktemp("served")
    settings = {"epochs": 1, "seeds": 1, "tune": "none", "force_cpu": True, "baselines": False}
    run = fit_detectors(example_store.path, ["saplma", "lapeigvals"], **settings)
    run.export(path / "guard.safetensors")
    return path / "guard.safetensors"


def load(file):
    """A guard, the model that it watches, and the model's tokenizer."""
    model = AutoModelForCausalLM.from_pretrained(MODEL_DIR, dtype=torch.float32)
    return load_run(file, force_cpu=True), model, AutoTokenizer.from_pretrained(MODEL_DIR)


def serve(file, keeping=None, **limits):
    """A client of a served model that has a chat template."""
    guard, model, tokenizer = load(file)
    tokenizer.chat_template = (
        "{{ bos_token }}{% for one in messages %}{{ one.content }}{% endfor %}"
    )
    engine = Engine(guard, model, tokenizer, Limits(**limits), keeping)
    headers = {"Authorization": "Bearer right"}
    app = build_app(engine, "example", "right", HOSTS)
    client = TestClient(app, "http://127.0.0.1", headers=headers)
    client.engine = engine
    return client


@pytest.fixture(scope="module")
def client(file):
    with serve(file, body_bytes=10_000) as client:
        yield client


def events(client, path, body):
    text = client.post(path, json=body | {"stream": True}).text
    *found, end = [line.removeprefix("data: ") for line in text.split("\n\n") if line]
    assert end == "[DONE]"
    return [json.loads(one) for one in found]


@pytest.mark.parametrize("prompt", [PROMPT, "Does Yara like chess?"])
def test_streams_texts_and_given_answers_have_the_same_scores(client, prompt):
    """Of an answer whose end is a special token, and of one whose end is a sign."""
    chat_asked = {"messages": [{"role": "user", "content": prompt}], "max_tokens": 12}
    whole = client.post("/v1/completions", json={"prompt": prompt, "max_tokens": 12}).json()
    (one,) = whole["choices"]
    assert (one["finish_reason"], whole["usage"]["prompt_tokens"]) == ("stop", 6)
    verdict = whole["hallucination"]["saplma"]
    assert verdict["decision"] == (verdict["score"] >= verdict["threshold"])
    chat = client.post("/v1/chat/completions", json=chat_asked).json()
    assert chat["choices"][0]["message"] == {"role": "assistant", "content": one["text"]}
    assert chat["hallucination"] == whole["hallucination"]
    pieces = events(client, "/v1/chat/completions", chat_asked)
    assert "".join(piece["choices"][0]["delta"]["content"] for piece in pieces) == one["text"]
    assert pieces[-1]["hallucination"] == whole["hallucination"]
    given = client.post("/score", json={"prompt": prompt, "answer": one["text"].strip()}).json()
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
        ("/score", b'{"prompt": "a", "messages": [], "answer": "b"}', 400),
        ("/none", b"{}", 404),
    ],
)
def test_wrong_requests_are_refused_as_openai_does(client, path, body, status):
    found = client.post(path, content=body)
    assert found.status_code == status
    assert set(found.json()["error"]) == {"message", "type", "param", "code"}


def test_a_chat_is_encoded_as_extraction_does(file):
    """A given answer stands where the template puts answers, and not in a thought that it opens; a
    template that leaves out a turn is refused."""
    with serve(file) as client:
        tokenizer = client.engine.tokenizer
        tokenizer.chat_template += (
            "{% if add_generation_prompt %}<think>{% endif %}"  # behind an answer, too
        )
        prompts = Prompts(tokenizer, client.engine.model, "{question}", True, 8)
        question = {"question_id": "q", "question": PROMPT, "answers": [], "response": "no"}
        found = client.engine._encoded(Asked(CHAT["messages"], "no"))
        one = prompts.encode({**question, "trace_id": "t"})
        assert found == (one.prompt.tolist(), one.answer.tolist())
        system = {"role": "system", "content": "Be short."}
        body = {"messages": [system, *CHAT["messages"]]}
        assert client.post("/v1/chat/completions", json=body).status_code == 200
        tokenizer.chat_template = tokenizer.chat_template.replace(
            "in messages", "in messages if one.role != 'system'"
        )
        found = client.post("/v1/chat/completions", json=body)
        assert found.status_code == 400
        assert "leaves out the text of a turn" in found.json()["error"]["message"]


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


@pytest.mark.parametrize("path, body", [("/v1/completions", ASKED), ("/v1/chat/completions", CHAT)])
def test_only_the_served_model_answers_and_is_described(client, path, body):
    """It is there if none is named."""
    (served,) = client.get("/v1/models").json()["data"]
    assert client.post(path, json=body | {"model": served["id"]}).json()["model"] == served["id"]
    assert client.get(f"/v1/models/{served['id']}").json() == served
    others = client.post(path, json=body | {"model": "gpt-4"}), client.get("/v1/models/gpt-4")
    for found in others:
        assert (found.status_code, found.json()["error"]["code"]) == (404, "model_not_found")


def test_many_wait_and_too_many_are_refused(file):
    with serve(file, requests=3) as client, ThreadPoolExecutor(16) as threads:
        asked = [threads.submit(client.post, "/v1/completions", json=ASKED) for _ in range(16)]
        statuses = [one.result().status_code for one in asked]
        assert set(statuses) <= {200, 429}
        assert 200 in statuses
        lines: list[str] = []
        end = time.monotonic() + 10  # a request is closed a moment after its answer
        while "trace_serve_open_requests 0" not in lines and time.monotonic() < end:
            lines = client.get("/metrics").text.splitlines()
    path = 'path="/v1/completions",status="200"'
    assert f"trace_serve_requests_total{{{path}}} {statuses.count(200)}" in lines
    assert "trace_serve_open_requests 0" in lines


def ask_all(client, n=4):
    """Different prompts; their answers."""
    bodies = [{"prompt": PROMPT + " " * i, "max_tokens": 8} for i in range(n)]
    return [client.post("/v1/completions", json=body).json() for body in bodies]


def test_answers_are_kept_as_the_next_training_set(file, example_store, tmp_path, capfd):
    """By chance, and for their scores; with the columns of the run, so that it scores them."""
    trained = shutil.copytree(example_store.path, tmp_path / "a.zarr")
    path = tmp_path / "kept.zarr"
    with serve(file, Keeping(path, sample=0.5)) as client:
        draws = iter([0.1, 0.9, 0.4, 0.6])
        client.engine.keep.draw = lambda: next(draws)
        answers = ask_all(client)
        assert "trace_serve_kept_total 2" in client.get("/metrics").text.splitlines()
        client.engine.close()
    highest = [max(v["score"] for v in one["hallucination"].values()) for one in answers]
    with serve(file, Keeping(path, above=sorted(highest)[2])) as client:
        ask_all(client)
        chat = client.post("/v1/chat/completions", json=CHAT).json()
        given = {"prompt": PROMPT, "answer": "no"}
        client.post("/score", json=given)
        client.engine.close()
    store = TraceStore.open(path)
    assert len(store) >= 4
    assert store.column("is_sampled").tolist()[:3] == [True, True, False]
    first, (said,) = store[0], answers[0]["choices"]
    assert (first["question"], first["answer"]) == (PROMPT, said["text"].strip())
    assert first["finish_reason"] == said["finish_reason"]
    assert len(set(store.column("question_id")[:2])) == 2
    guard = load_run(file, force_cpu=True)
    scores = guard.score(store)
    both = guard.score([trained, path])
    assert both["saplma"][-len(store) :].tolist() == pytest.approx(scores["saplma"].tolist())
    for name, found in scores.items():
        assert store.column(f"score_{name}").tolist() == pytest.approx(found.tolist(), abs=2e-3)
    assert chat["choices"][0]["message"]["content"]
    assert PROMPT not in "".join(capfd.readouterr())
    assert verify_store(path).problems == []
    both_path = tmp_path / "both.zarr"
    parts = [str(trained), str(path)]
    assert store_main(["merge", str(both_path), *parts, "--shared"]) == 0
    assert guard.score(both_path)["saplma"].tolist() == pytest.approx(both["saplma"].tolist())


def test_answers_of_another_run_or_other_weights_are_not_appended(file, tmp_path):
    """Of the same methods, and of a model of the same name, which `--force` serves; those of the
    same run are."""
    guard, model, tokenizer = load(file)
    keeping = Keeping(tmp_path / "kept.zarr", sample=1)
    for _ in range(2):
        Engine(guard, model, tokenizer, Limits(), keeping).close()
    results = replace(guard.results, run="other")
    other = replace(guard, models=replace(guard.models, results=results))
    with pytest.raises(SchemaError, match=r"expected run '\w+', found 'other'; record into anothe"):
        Engine(other, model, tokenizer, Limits(), keeping)
    with torch.no_grad():
        model.lm_head.weight[0] += 1
        model.model.layers[0].self_attn.q_proj.weight[0] += 1
    with pytest.raises(SchemaError, match=r"expected weights_sha256 '.*; record into another"):
        Engine(guard, model, tokenizer, Limits(), keeping, force=True)


class Disk(Files):
    """One that may be full."""

    is_full = False

    def write(self, fd, data, position):
        if self.is_full:
            raise OSError(errno.ENOSPC, "No space left on device")
        super().write(fd, data, position)


def test_a_full_disk_stops_keeping_and_never_serving(file, tmp_path, capfd):
    """How many answers were lost is said where it is looked for, and in the end."""
    path = tmp_path / "kept.zarr"
    disk = Disk()
    with serve(file, Keeping(path, sample=1, files=disk)) as client:
        recorder = client.engine.keep.recorder
        ask_all(client, 2)
        assert client.get("/health").json()["keep"]["lost"] == 0
        disk.is_full = True
        recorder._commit_s = 0
        for one in ask_all(client, 3):
            assert one["hallucination"]
        end = time.monotonic() + 10
        while not recorder.has_stopped and time.monotonic() < end:
            time.sleep(0.01)
        found = client.get("/health").json()
        assert found["status"] == "ok"
        assert found["keep"] == {"kept": 0, "lost": 5, "has_stopped": True}
        lines = client.get("/metrics").text.splitlines()
        assert {"trace_serve_kept_total 5", "trace_serve_kept_lost_total 5"} <= set(lines)
        client.engine.close()
    said = capfd.readouterr().err
    assert said.count("recording has stopped, serving goes on: OSError(28") == 1
    assert said.splitlines()[-1] == f"serve: {path}: 0 answers kept, 5 lost"
    assert PROMPT not in said
    assert len(TraceStore.open(path)) == 0


def test_an_answer_that_is_too_long_is_refused_with_its_length(client):
    longest = client.engine.model.config.max_position_embeddings
    asked = {"prompt": PROMPT, "answer": "no " * longest}
    said = client.post("/score", json=asked).json()["error"]["message"]
    n_prompt, n_answer = (int(one) for one in re.findall(r"found (\d+) .* and (\d+) ", said)[0])
    assert n_prompt < 20 < longest <= n_answer


@pytest.mark.parametrize(
    "flags, message",
    [
        (["--port", "99999"], "--port: expected a"),
        (["--host", "300.1.1.1"], "--host: expected a"),
        (["--keep", "a.zarr"], "--keep: expected with --sample or --keep-above, and these with it"),
        (["--sample", ".1"], "--keep: expected with --sample or --keep-above, and these with it"),
        (["--keep-above", "2"], "expected a number from 0 to 1, found 2"),
    ],
)
def test_wrong_flags_are_one_line(flags, message, file, capsys):
    assert main(["serve", "--run", str(file), "--model", str(MODEL_DIR), *flags]) == 2
    (line,) = capsys.readouterr().err.splitlines()[-1:]
    assert message in line


def test_the_command_serves_until_a_signal(file, tmp_path):
    """A request that runs is answered, and kept, after the signal."""
    argv = [sys.executable, "-m", "train", "serve", "--run", file, "--model", MODEL_DIR]
    argv += ["--dtype", "fp32", "--keep", tmp_path / "kept.zarr", "--sample", "1"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        url, token = (process.stdout.readline().strip() for _ in range(2))
        with urllib.request.urlopen(url.replace("/v1", "/health")) as answer:  # noqa: S310
            assert json.load(answer)["status"] == "ok"
        headers = {"Authorization": f"Bearer {token.removeprefix('token: ')}"}
        with ThreadPoolExecutor(1) as thread:
            body = json.dumps(ASKED | {"stream": True}).encode()
            asked = urllib.request.Request(f"{url}/completions", body, headers)  # noqa: S310
            with urllib.request.urlopen(asked) as events:  # noqa: S310
                process.send_signal(signal.SIGTERM)
                text = thread.submit(events.read).result().decode()
    assert "hallucination" in text
    assert text.endswith("data: [DONE]\n\n")
    assert process.returncode == -signal.SIGTERM
    assert len(TraceStore.open(tmp_path / "kept.zarr")) == 1
