"""`python -m store record`: traces of a model that vLLM serves."""

import json
import shlex
import sys
from pathlib import Path

from store.cli.arguments import names, path, seconds
from store.cli.command import Command, argument, option
from store.errors import SchemaError
from store.importers.vllm_requests import join_responses, read_requests
from store.reports import count, say
from store.sources.recorder import DEFAULT_STATES, STATES, Settings
from store.write.writer import StoreWriter

__all__ = ["Record"]

EXAMPLES = """\
vLLM serves as always, and appends the states of each answered request to the store: the prompt's
last token, the answer's last one and the answer's mean, of the chosen layers, or all tokens
(--columns hidden_states). A trace has the id of the response. Layer i is the input of block i. An
answer of one token has no state and is left out; so is what was aborted. If the disk is full, the
recording stops and says so, serving goes on. A kill loses what came after the last commit. Each
data-parallel rank has a store of its own, which python -m store merge joins.

vLLM does not tell a connector texts and log-probabilities: ask with "logprobs": 0 and
"return_token_ids": true, keep the responses, one JSON object a line, with what you know of each
(question, label, ...) beside it, and join them in the end (examples/record.py does it). A line:
  {"question": "...", "label": 1, "response": {"id": "cmpl-...", "choices": [...], "usage": ...}}

examples:
  python -m store record traces.zarr --vllm Qwen/Qwen3-8B --layers 12,18,24
  python -m store record traces.zarr --responses responses.jsonl
"""
CONNECTOR = "TraceStoreConnector"
MODULE = "store.sources.vllm_connector"
SHUTDOWN_S = 60  # what is served is committed within it


class Record(Command):
    """Print how vLLM is started so that it records traces; join its responses afterwards."""

    epilog = EXAMPLES
    store: Path = argument("path of the store", "STORE", path)
    vllm: str | None = option(
        "print the command that serves it", "MODEL", either="step", required=True
    )
    responses: Path | None = option(
        "add texts, log-probabilities, labels and fields", "FILE", path, either="step"
    )
    layers: list[str] = option("numbers of layers, with --vllm", "I,I,...", names, default=None)
    columns: list[str] = option(
        f"states to keep: {', '.join(STATES)} (default: {','.join(DEFAULT_STATES)})",
        "NAME,...",
        names,
        default=list(DEFAULT_STATES),
    )
    commit_s: float = option("seconds between commits", "S", seconds, default=Settings.commit_s)
    fields: list[str] | None = option(
        "other values beside the responses: all, none, names, or -NAME (default: all)",
        "NAME,...",
        names,
    )

    def run(self) -> int:
        if self.responses is None:
            self.refuse("is for --responses", "fields")
            say(shlex.join(self._serve()))
            return 0
        self.refuse("is for --vllm", "layers", "columns", "commit_s")

        requests = read_requests(self.responses)
        with StoreWriter.open(self.store) as writer:
            joined = join_responses(writer, requests, self.fields)
        for text in joined.contradicted:
            say(f"{self.store}: {text}; its response is left out", file=sys.stderr)
        say(
            f"{self.store}: {joined.n_joined:,} of {count(joined.n_traces, 'trace')} have a "
            f"response; {count(joined.n_left, 'response')} without a trace"
        )
        for line in joined.remarks:
            say(line)
        return 0

    def _serve(self) -> list[str]:
        """The command that serves the model and records."""
        if not self.layers or not all(layer.isdecimal() for layer in self.layers):
            raise SchemaError(
                "--layers: expected numbers of layers, as 12,18,24, found "
                f"{','.join(self.layers or ()) or 'none'}"
            )
        settings = Settings(str(self.store.absolute()), tuple(self.columns), self.commit_s)
        speculative = {
            "method": "extract_hidden_states",
            "num_speculative_tokens": 1,
            "draft_model_config": {
                "hf_config": {"eagle_aux_hidden_state_layer_ids": [int(one) for one in self.layers]}
            },
        }
        transfer = {
            "kv_connector": CONNECTOR,
            "kv_connector_module_path": MODULE,
            "kv_role": "kv_producer",
            "kv_connector_extra_config": vars(settings),
        }
        return [
            *("vllm", "serve", str(self.vllm), "--shutdown-timeout", str(SHUTDOWN_S)),
            *("--speculative-config", json.dumps(speculative)),
            *("--kv-transfer-config", json.dumps(transfer)),
        ]
