"""Requests that an engine has answered become traces, without holding it up; then the responses."""

import itertools
import json
import shutil
import threading
from dataclasses import replace

import numpy as np
import pytest
import torch
from faults import Faulty, full_disk
from small import refused

from store import SchemaError, StoreWriter, TraceStore
from store.cli.main import main
from store.sources import recorder as module
from store.sources.recorder import Recorder, Request, Settings, client_id, schema_of
from store.write.files import DISK

PROVENANCE = {"source": "vLLM", "model": "tiny", "layers": [1, 3], "final_norm": False}
COLUMNS = ("hs_prompt", "hs_last", "hs_mean")
SCHEMA = schema_of(COLUMNS, "bfloat16", 2, 4)


def request(number, prompt_len=3, made=2, value=1.0):
    kept = dict.fromkeys(COLUMNS, torch.full((2, 4), value, dtype=torch.bfloat16))
    tokens = np.arange(prompt_len + made, dtype=np.int32)
    own_id = f"cmpl-{number}-0-0123abcd"
    return Request(client_id(own_id), own_id, tokens, prompt_len, "stop", lambda: kept)


@pytest.fixture
def record(tmp_path):
    said = []

    def open_one(schema=SCHEMA, provenance=PROVENANCE, commit_s=30.0, files=DISK):
        path = tmp_path / "s.zarr"
        recorder = Recorder(path, schema, provenance, commit_s, said.append, files)
        recorder.said = said
        return recorder

    return open_one


def test_requests_become_traces_and_a_later_run_appends(record):
    """Under the ids of the client; where one is taken, the engine's own."""
    recorder = record()
    for number in (1, 2, 2):
        recorder.put(request(number, value=number))
    recorder.close()
    later = record()
    later.put(request(3))
    later.close()
    store = TraceStore.open(recorder.path)
    assert store.ids[:] == ["cmpl-1", "cmpl-2", "cmpl-2-0-0123abcd", "cmpl-3"]
    trace = store["cmpl-2"]
    assert (int(trace["prompt_len"]), int(trace["answer_len"])) == (3, 2)
    assert (trace["tokens"].tolist(), trace["finish_reason"]) == ([0, 1, 2, 3, 4], "stop")
    assert trace["hs_mean"].tolist() == [[2.0] * 4] * 2
    assert (recorder.n_written, recorder.n_left_out, recorder.said) == (3, 0, [])


def test_a_commit_comes_in_time_however_many_requests_come(record):
    """Readers see rows while requests never pause."""
    recorder = record(commit_s=0.05)
    number = 0
    while not len(TraceStore.open(recorder.path)):
        recorder.put(request(number))
        number += 1
    recorder.close()
    assert len(TraceStore.open(recorder.path)) == number


def test_states_of_zeros_are_left_out_by_name(record):
    """Engines have kept none of hybrid models; the others are written."""
    recorder = record()
    recorder.put(request(1, value=0.0))
    recorder.put(request(2))
    recorder.close()
    assert TraceStore.open(recorder.path).ids[:] == ["cmpl-2"]
    assert recorder.said == [
        f"{recorder.path}: request cmpl-1-0-0123abcd is left out: hs_prompt: expected states, "
        "found zeros: the engine kept none"
    ]


def test_what_does_not_fit_is_left_out_by_name(record):
    """Of another shape, or with both its ids taken; it does not cost the others."""
    recorder = record()
    recorder.put(request(1))
    recorder.put(replace(request(2), tokens=np.zeros((2, 2), np.int32)))
    recorder.put(replace(request(1), own_id="cmpl-1"))
    recorder.put(request(3))
    recorder.close()
    assert TraceStore.open(recorder.path).ids[:] == ["cmpl-1", "cmpl-3"]
    assert (recorder.n_written, recorder.n_left_out, recorder.has_stopped) == (2, 2, False)
    shape, taken = recorder.said
    assert "request cmpl-2-0-0123abcd is left out: trace 'cmpl-2', column 'tokens'" in shape
    assert "request cmpl-1 is left out: trace_id 'cmpl-1': expected a new id" in taken


def test_a_full_disk_stops_the_recording_and_no_request(record):
    """What was committed stays; whoever serves is told once, and never waits."""
    files = Faulty(0, full_disk, lasting=True)
    recorder = record(commit_s=0.01, files=files)
    recorder.put(request(1))
    while not recorder._writer.generation:  # readers see the row before its commit has ended
        pass
    files.begin()
    for number in range(2, 6):
        recorder.put(request(number))
    recorder.close()
    assert TraceStore.open(recorder.path).ids[:] == ["cmpl-1"]
    assert (recorder.n_written, recorder.n_left_out, recorder.has_stopped) == (1, 4, True)
    [said] = recorder.said
    assert "recording has stopped, serving goes on: OSError(28" in said


def test_what_waits_is_bounded(record, monkeypatch):
    """A disk that is too slow costs requests, never memory without end."""
    monkeypatch.setattr(module, "MAX_WAITING", 2)
    recorder = record()
    going = threading.Event()
    slow = replace(request(0), states=lambda: going.wait() and request(0).states())
    recorder.put(slow)
    while recorder._waiting.qsize():
        pass
    for number in range(1, 5):
        recorder.put(request(number))
    going.set()
    recorder.close()
    assert (recorder.n_written, recorder.n_left_out) == (3, 2)
    assert "2 requests wait for the disk" in recorder.said[0]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"schema": schema_of(("hs_last",), "bfloat16", 2, 4)}, "as this engine gives them, found"),
        ({"schema": schema_of(COLUMNS, "float16", 2, 4)}, "as this engine gives them, found"),
        ({"provenance": PROVENANCE | {"model": "other"}}, "expected model 'tiny', found 'other'"),
        (
            {"provenance": PROVENANCE | {"weights_sha256": "ab"}},
            "expected weights_sha256 None, found 'ab'",
        ),
        ({"provenance": PROVENANCE | {"layers": [1, 2]}}, "expected layers [1, 3], found [1, 2]"),
    ],
)
def test_another_engine_does_not_append(record, changed, message):
    """Before it serves; the store stays free for the right one."""
    record().close()
    with pytest.raises(SchemaError) as error:
        record(**changed)
    assert message in str(error.value)
    record().close()


def test_a_model_is_its_weights_however_its_path_is_spelled(record):
    known = PROVENANCE | {"weights_sha256": "ab", "weights_crc32c": "cd"}
    record(provenance=known).close()
    record(provenance=known | {"model": "./tiny/"}).close()
    with pytest.raises(SchemaError, match="expected weights_crc32c 'cd', found 'ef'"):
        record(provenance=known | {"weights_crc32c": "ef"})


def test_a_data_parallel_rank_has_a_store_of_its_own():
    assert Settings("a/s.zarr").part(0, 1).as_posix() == "a/s.zarr"
    assert Settings("a/s.zarr").part(1, 4).as_posix() == "a/s.2-of-4.zarr"
    with pytest.raises(SchemaError, match=r"expected some of hs_prompt, .* found \['hs'\]"):
        Settings("s.zarr", ("hs",))


def response(number, **own):
    choice = {
        "text": f"answer {number}",
        "finish_reason": "stop",
        "logprobs": {"token_logprobs": [-0.5, -0.25, -1.0]},
        "prompt_token_ids": [0, 1, 2],
        "token_ids": [3, 4, 5],
    }
    usage = {"prompt_tokens": 3, "completion_tokens": 3}
    return {"response": {"id": f"cmpl-{number}", "choices": [choice], "usage": usage}, **own}


@pytest.fixture
def recorded(record):
    recorder = record()
    for number in range(3):
        recorder.put(request(number))
    recorder.close()
    return recorder.path


def write(path, responses):
    path.write_text("".join(json.dumps(one) + "\n" for one in responses))
    return path


def test_responses_are_joined_by_id(recorded, tmp_path, capsys):
    """A trace without one has empty values; the numbers of both are printed, and what is cut."""
    lines = [
        response(0, question="q", label=1, task="qa", question_id="q0"),
        response(1, question="r", label=0, task="sum", page="p" * 3000),
        response(9, question="s", label=0),
    ]
    file = write(tmp_path / "r.jsonl", lines)
    assert main(["record", str(recorded), "--responses", str(file)]) == 0
    said = capsys.readouterr().out
    assert "2 of 3 traces have a response; 1 response without a trace" in said
    assert "texts of more than 1,000 characters are cut in the fields page;" in said
    store = TraceStore.open(recorded)
    assert store.column("answer") == ["answer 0", "answer 1", ""]
    assert store.column("question_id") == ["q0", "cmpl-1", "cmpl-2"]
    assert store.column("label").tolist() == [1, 0, -1]
    assert store.column("task") == ["qa", "sum", ""]
    logprob = np.asarray(store["cmpl-0"]["logprob"])
    assert np.isnan(logprob[:3]).all()
    assert logprob[3:].tolist() == [-0.5, -0.25]
    assert np.isnan(np.asarray(store["cmpl-2"]["logprob"])).all()
    assert "responses are joined once" in refused(capsys, "record", recorded, "--responses", file)


def test_responses_of_other_traces_are_refused(recorded, tmp_path, capsys):
    """The store stays as it was."""
    one = response(0)
    one["response"]["id"] = "other"
    file = write(tmp_path / "r.jsonl", [one])
    said = refused(capsys, "record", recorded, "--responses", file)
    assert "expected responses with ids of its traces, as 'cmpl-0', found 'other'" in said
    assert "found 'none at all'" in refused(
        capsys, "record", recorded, "--responses", write(file, [])
    )
    assert "answer" not in TraceStore.open(recorded).schema.columns
    StoreWriter.open(recorded).close()


def test_a_response_that_contradicts_its_trace_is_left_out(
    recorded, tmp_path, capsys, golden_lines
):
    """By name; the others are joined."""
    copies = itertools.count()

    def leave_out(changed):
        store = shutil.copytree(recorded, tmp_path / f"copy{next(copies)}.zarr")
        wrong = response(0, task="qa")
        wrong["response"] |= {"label": 1} | changed
        file = write(tmp_path / "r.jsonl", [wrong, response(1, task="qa", label=0)])
        assert main(["record", str(store), "--responses", str(file)]) == 0
        said = capsys.readouterr()
        assert "1 of 3 traces have a response" in said.out
        joined = TraceStore.open(store)
        assert joined.column("answer") == ["", "answer 1", ""]
        assert joined.column("label").tolist() == [-1, 0, -1]
        return said.err.replace(f"{store}", "s.zarr").removesuffix("\n")

    golden_lines("wrong_joined_responses.txt", leave_out)


def test_the_command_that_serves_is_printed(tmp_path, capsys):
    """With absolute paths, since the server may run elsewhere; wrong layers are refused."""
    store = tmp_path / "s.zarr"
    assert main(["record", str(store), "--vllm", "a/model", "--layers", "8,16"]) == 0
    line = capsys.readouterr().out
    assert line.startswith("vllm serve a/model --shutdown-timeout 60 --speculative-config ")
    assert '"eagle_aux_hidden_state_layer_ids": [8, 16]' in line
    assert f'"store": "{store}", "columns": ["hs_prompt", "hs_last", "hs_mean"]' in line
    for layers in ([], ["--layers", "a,b"]):
        said = refused(capsys, "record", store, "--vllm", "m", *layers)
        assert "--layers: expected numbers of layers" in said
    assert "--layers is for --vllm" in refused(
        capsys, "record", store, "--responses", "r", "--layers", "1"
    )
