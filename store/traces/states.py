"""States of single tokens, and their mean, from the hidden states of a whole trace. Pure.

The names take no torch; only who has tensors, of bfloat16, needs it, and has it.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from store.errors import SchemaError

__all__ = ["DERIVED", "derive_states"]


def derive_states(name: str, states: Any, prompt_len: int | None) -> Any:
    """Make a column of `DERIVED` from `hidden_states`.

    `states` `(T, L, d)` are a floating array, or a bfloat16 tensor; the result `(L, d)` is of the
    same type. The mean is computed in float32. `hs_last` needs no `prompt_len`, tokens of the
    prompt. Raises SchemaError if there are no tokens, or the prompt leaves none for the answer.
    """
    if not len(states):
        raise SchemaError("hidden_states: expected some tokens, found none")
    if name != "hs_last" and (prompt_len is None or not 0 < prompt_len < len(states)):
        raise SchemaError(
            f"prompt_len: expected 1 to {len(states) - 1}, before the answer in {len(states)} "
            f"tokens, found {prompt_len}"
        )
    return DERIVED[name](states, prompt_len)


def _last(states: Any, prompt_len: int) -> Any:
    return states[-1]


def _prompt(states: Any, prompt_len: int) -> Any:
    return states[prompt_len - 1]


def _mean(states: Any, prompt_len: int) -> Any:
    answer = states[prompt_len:]
    if not hasattr(answer, "detach"):
        return answer.mean(axis=0, dtype=np.float32).astype(states.dtype)
    import torch

    # torch's threads wait for each other where the cores are busy; a bfloat16 is half a float32
    bits = answer.contiguous().view(torch.int16).numpy().view(np.uint16)
    numbers = (bits.astype(np.uint32) << 16).view(np.float32)
    return torch.from_numpy(numbers.mean(axis=0)).to(states.dtype)


DERIVED: dict[str, Callable[[Any, Any], Any]] = {  # column -> from states and prompt_len
    "hs_last": _last,
    "hs_prompt": _prompt,
    "hs_mean": _mean,
}
