"""vLLM's hidden states, recorded as traces while it serves: a connector that vLLM loads by name.

    vllm serve MODEL --kv-transfer-config '{"kv_connector": "TraceStoreConnector",
        "kv_connector_module_path": "store.sources.vllm_connector", ...}'

`python -m store record STORE --vllm MODEL` prints the whole command. vLLM's own method
`extract_hidden_states` keeps the states of the chosen layers beside the keys and values; where they
lie, and when their blocks are given back, is the business of its ExampleHiddenStatesConnector,
which this one extends. It decides what is taken from them, and where it goes.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import vllm
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorMetadata, KVConnectorRole
from vllm.distributed.kv_transfer.kv_connector.v1.example_hidden_states_connector import (
    ExampleHiddenStatesConnector,
)
from vllm.logger import init_logger
from vllm.v1.request import RequestStatus

from store.errors import VersionError
from store.sources.recorder import WHOLE, Recorder, Request, Settings, client_id, schema_of
from store.traces.origin import FINAL_NORM, TRACE_CONVENTION

__all__ = ["TraceStoreConnector"]

VERSIONS = ("0.31", "0.32")  # of vLLM, with which this was seen to work
KEPT = {  # how a request may end that has an answer
    RequestStatus.FINISHED_STOPPED: "stop",
    RequestStatus.FINISHED_LENGTH_CAPPED: "length",
}
logger = init_logger("vllm.store")


@dataclass(frozen=True)
class Ended:
    """A request whose blocks are held until its states are taken."""

    own_id: str
    tokens: list[int]  # that have states
    prompt_len: int
    finish_reason: str
    blocks: list[int]


@dataclass
class Metadata(KVConnectorMetadata):
    """What the scheduler tells the worker with a step."""

    ended: list[Ended] = field(default_factory=list)


class TraceStoreConnector(ExampleHiddenStatesConnector):
    """Records each answered request as a trace; of `kv_connector_extra_config` see `Settings`."""

    def __init__(self, vllm_config: object, role: KVConnectorRole, kv_cache_config: object) -> None:
        if not vllm.__version__.startswith(tuple(f"{version}." for version in VERSIONS)):
            raise VersionError(
                f"vLLM: expected version {' or '.join(VERSIONS)}, found {vllm.__version__}; "
                "import its files instead (docs/import.md)"
            )
        super().__init__(vllm_config, role, kv_cache_config)
        self._settings = Settings(**self._kv_transfer_config.kv_connector_extra_config)
        self._ended: list[Ended] = []  # of the scheduler: since the last step
        self._taken: set[str] = set()  # of the worker: blocks of these may be given back
        self._recorder: Recorder | None = None

    # The scheduler's side

    def request_finished(self, request: Any, block_ids: list[int]) -> tuple[bool, None]:
        """Hold the blocks of a request that has an answer with a state; forget others."""
        tokens = list(request.all_token_ids)[:-1]  # the last one was never an input
        reason = KEPT.get(request.status)
        if reason is None or not request.prompt_token_ids:
            return False, None
        if len(tokens) <= request.num_prompt_tokens:
            return False, None
        self._ended.append(
            Ended(request.request_id, tokens, request.num_prompt_tokens, reason, list(block_ids))
        )
        return True, None

    def build_connector_meta(self, scheduler_output: object) -> Metadata:
        """Hand over what has ended since the last step."""
        ended, self._ended = self._ended, []
        return Metadata(ended)

    # The worker's side

    def register_kv_caches(self, kv_caches: dict[str, torch.Tensor]) -> None:
        """Open the store, once it is known where the states lie and which rank this is."""
        super().register_kv_caches(kv_caches)
        if self._is_tp_rank_zero:
            self._recorder = self._open(self._kv_cache)

    def _open(self, cache: torch.Tensor) -> Recorder:
        config = self._vllm_config
        _, n_layers, _, hidden = cache.shape
        dtype = str(cache.dtype).removeprefix("torch.")
        draft = config.speculative_config.draft_model_config.hf_config
        provenance = {
            "source": "vLLM",
            "engine": f"vllm {vllm.__version__}",
            "model": config.model_config.model,
            "layers": sorted(draft.eagle_aux_hidden_state_layer_ids),
            FINAL_NORM: False,
            "trace_convention": TRACE_CONVENTION,
        }
        ranks = config.parallel_config
        path = self._settings.part(ranks.data_parallel_rank, ranks.data_parallel_size)
        schema = schema_of(self._settings.columns, dtype, n_layers, hidden)
        recorder = Recorder(path, schema, provenance, self._settings.commit_s, logger.error)
        logger.info("recording the states of layers %s into %s", provenance["layers"], path)
        return recorder

    def wait_for_save(self) -> None:
        """Nothing is promised to a client that waits."""

    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str] | None, None]:
        """Take the states of what has ended; say whose blocks may be given back.

        Later steps write into these blocks on the same stream, so behind what is read from them.
        """
        taken = set()
        if self.has_connector_metadata():
            for ended in self._get_connector_metadata().ended:
                self._take(ended)
                taken.add(ended.own_id)
        return taken or None, None

    def _take(self, ended: Ended) -> None:
        if self._recorder is None:
            return
        states = _states(self._kv_cache, self._block_size, ended, self._settings.columns)
        self._recorder.put(
            Request(
                client_id(ended.own_id),
                ended.own_id,
                np.array(ended.tokens, np.int32),
                ended.prompt_len,
                ended.finish_reason,
                _copied(states),
            )
        )

    def shutdown(self) -> None:
        """Commit what was served."""
        if self._recorder is not None:
            self._recorder.close()
            n_written, n_left_out = self._recorder.n_written, self._recorder.n_left_out
            logger.info("recorded %d requests, left out %d", n_written, n_left_out)
        super().shutdown()


def _states(
    cache: torch.Tensor, block_size: int, ended: Ended, columns: tuple[str, ...]
) -> dict[str, torch.Tensor]:
    """The columns of a request, on the device, from the cache (blocks, layers, block size, hidden).

    Only positions that some column reads are looked at.
    """
    n = len(ended.tokens)
    first = 0 if WHOLE in columns else ended.prompt_len - 1
    places = torch.arange(first, n, device=cache.device)
    blocks = torch.tensor(ended.blocks, device=cache.device)
    states = cache[blocks[places // block_size], :, places % block_size]  # (n - first, L, d)
    answer = states[ended.prompt_len - first :]
    made = {
        "hs_prompt": lambda: states[ended.prompt_len - 1 - first],
        "hs_last": lambda: states[-1],
        "hs_mean": lambda: answer.mean(0, dtype=torch.float32).to(states.dtype),
        WHOLE: lambda: states,
    }
    return {name: made[name]() for name in columns}


def _copied(states: dict[str, torch.Tensor]) -> Callable[[], dict[str, torch.Tensor]]:
    """Begin to copy tensors to memory; return what waits for that and gives them."""
    if all(tensor.device.type == "cpu" for tensor in states.values()):
        own = {name: tensor.clone() for name, tensor in states.items()}
        return lambda: own
    copies = {
        name: torch.empty_like(tensor, device="cpu", pin_memory=True).copy_(
            tensor, non_blocking=True
        )
        for name, tensor in states.items()
    }
    done = torch.cuda.Event()
    done.record()

    def wait() -> dict[str, torch.Tensor]:
        done.synchronize()
        return copies

    return wait
