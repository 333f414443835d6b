"""Which tokens of a trace stand for its graphs, and their states on one scale.

- `mean`: all tokens.
- `answer`: the tokens of the answer; all tokens of a trace whose prompt is of unknown length, or
  whose answer is empty.
- `last`: the last token.
- `last+skip`: the last token, and beside its vector its own state without any convolution.
"""

import torch
from torch import Tensor

from models.tokens import answer_tokens, count_by_trace, mean_or_zero, trace_of_token
from store import Batch

__all__ = ["READOUTS", "check_readout", "mean_by_trace_of", "readout_tokens", "signed_log"]

READOUTS = ("last+skip", "last", "answer", "mean")


def check_readout(readout: str) -> None:
    if readout not in READOUTS:
        raise ValueError(f"readout: expected one of {', '.join(READOUTS)}, found {readout!r}")


def readout_tokens(readout: str, batch: Batch, offsets: Tensor) -> Tensor:
    """Packed tokens that are read, in their order, (R,) int64; none of a trace without tokens.

    `readout` is one of `READOUTS`; "answer" reads `prompt_len` and `answer_len` of the batch.
    `offsets`, (B + 1,) int64, say where the tokens of each trace begin.
    """
    if readout == "answer":
        is_read = answer_tokens(batch, offsets)
        is_empty = count_by_trace(is_read, offsets) == 0  # (B,)
        return (is_read | is_empty[trace_of_token(offsets)]).nonzero().squeeze(1)
    if readout == "mean":
        return torch.arange(len(trace_of_token(offsets)), device=offsets.device)
    return offsets[1:][offsets.diff() > 0] - 1


def mean_by_trace_of(vectors: Tensor, tokens: Tensor, offsets: Tensor) -> Tensor:
    """Mean of the vectors (R, ...) of tokens (R,), by trace: (B, ...) float32, 0 where none is.

    The tokens are in rising order, as `readout_tokens` gives them.
    """
    return mean_or_zero(vectors, torch.searchsorted(tokens, offsets))


def signed_log(x: Tensor) -> Tensor:
    """sign(x) log(1 + |x| / m), with m the mean of |x| over the last axis: the same shape.

    States of language models differ in scale from layer to layer, and have a few dimensions that
    are a hundred times the others (massive activations, arXiv:2402.17762). The mean of absolute
    values is near the scale of the others, where a root mean square would be that of the outliers;
    the logarithm leaves these at about five times the others. No statistics of the training rows
    are needed.
    """
    scale = x.abs().mean(dim=-1, keepdim=True)
    scaled = x / scale.clamp(min=torch.finfo(x.dtype).tiny)
    return scaled.sign() * scaled.abs().log1p()
