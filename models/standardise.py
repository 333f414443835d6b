"""Scales of a detector's input: as it is, normalised by itself, or standardised by a sample.

A few dimensions of a language model's states are a hundred times larger than the others, in every
trace. Normalised over its dimensions (LayerNorm), a state is little but those; here each dimension
is scaled by its own spread over training rows, as the regressions of the baselines scale theirs.

The sample is seen once, before the first step (`Detector.prepare`): the scales are constants of the
training, the same for every batch, in every process, and after a stop.

No scale is best everywhere: where what counts varies most, dividing by the spread hides it among
all that does not.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

__all__ = ["LIMIT", "SAMPLE_SIZE", "SCALES", "LayerGate", "Standardise", "build_scale", "observing"]

SCALES = ("raw", "standard", "norm")  # the first is the cheapest

SAMPLE_SIZE = 256  # traces: a spread is then known to some percent
# larger values are cut: one broken trace must not decide what a step of the optimizer does
LIMIT = 10.0
GATE_SPEED = 300.0
DROPOUT = 0.5  # of standardised states of several layers
EPSILON = 1e-6
AT_ONCE = 2**22  # numbers


class Standardise(nn.Module):
    """(x - mean) / standard deviation of each feature, over the rows of `update`.

    The statistics are buffers, so they are saved with the weights and stay on the device. Before
    the first `update` the input passes as it is. A constant feature becomes 0.

    Values that are not finite count for nothing in the statistics.

    `shape` is that of a row; an axis of size 1 has one statistic. With `fills` NaN, for a missing
    value, becomes 0, the mean, and infinities and values beyond 10 the limit. Without, they pass:
    who reads the result reports them.

    Shapes
    ------
    (n, *shape) any float -> (n, *shape) float32
    """

    count: Tensor
    mean: Tensor
    var: Tensor

    def __init__(self, *shape: int, fills: bool = True) -> None:
        super().__init__()
        self.fills = fills
        self.is_observing = False
        self.register_buffer("count", torch.zeros(shape))
        self.register_buffer("mean", torch.zeros(shape))
        self.register_buffer("var", torch.ones(shape))

    def forward(self, values: Tensor) -> Tensor:
        if self.is_observing:
            self.update(values)
        # what never varied in the sample is not magnified if it does later
        scale = torch.where(self.var > 0, self.var + EPSILON, 1.0).rsqrt()
        scaled = (values.to(self.mean.dtype) - self.mean).mul_(scale)
        if not self.fills:
            return scaled
        return scaled.nan_to_num_(0.0, LIMIT, -LIMIT).clamp_(-LIMIT, LIMIT)

    @torch.no_grad()
    def update(self, values: Tensor) -> None:
        """Count rows (n, *shape) in, some at a time, so that their copies stay small."""
        for rows in values.split(max(1, AT_ONCE // max(1, values[:1].numel()))):
            self._merge(rows.to(self.mean.dtype))

    def _merge(self, values: Tensor) -> None:
        """Merge the moments of rows into those so far (Chan et al., 1979)."""
        shared = [axis for axis, size in enumerate(self.mean.shape, start=1) if size == 1]
        axes = [0, *shared]
        finite = values.isfinite()
        known = values.where(finite, 0.0)
        count = finite.sum(dim=axes, keepdim=True)[0]
        mean = known.sum(dim=axes, keepdim=True)[0] / count.clamp(min=1)
        distance = (known - mean).where(finite, 0.0)
        spread = distance.square().sum(dim=axes, keepdim=True)[0]

        n = self.count + count
        share = count / n.clamp(min=1)
        delta = mean - self.mean
        spread += self.count * self.var + delta.square() * self.count * share
        self.var.copy_(torch.where(n > 0, spread / n.clamp(min=1), self.var))
        self.mean.add_(delta * share)
        self.count.copy_(n)


class Unfitted(nn.Module):
    """States as they are, or each normalised over its dimensions.

    With `fills` NaN is 0 before a state is normalised, so that its other numbers stay.

    Shapes
    ------
    (..., d) any float -> (..., d) float32
    """

    def __init__(self, norm: nn.Module, fills: bool) -> None:
        super().__init__()
        self.norm = norm
        self.fills = fills

    def forward(self, values: Tensor) -> Tensor:
        values = values.float()
        known = values.nan_to_num(0.0, torch.inf, -torch.inf) if self.fills else values
        scaled: Tensor = self.norm(known)
        return scaled.nan_to_num(0.0, torch.inf, -torch.inf) if self.fills else scaled


class LayerGate(nn.Module):
    """Layers by trained weights, a softmax times L: all 1 before training.

    A network that reads all layers learns the noise of most by heart before it knows which one
    counts. These few weights find that first: they are learned `GATE_SPEED` times as fast.

    Shapes
    ------
    (..., L, d) -> (..., L, d)
    """

    def __init__(self, n_layers: int) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.zeros(n_layers, 1))

    def forward(self, values: Tensor) -> Tensor:
        return values * (len(self.weights) * (GATE_SPEED * self.weights).softmax(0))


def build_scale(how: str, *shape: int, fills: bool = True, dropout: float = DROPOUT) -> nn.Module:
    """A scale of states by its name in `SCALES`: raw, by a sample, or by a state's own mean and sd.

    `shape` is that of a row, d its last axis; `fills` is as in `Standardise`, but infinities and
    large values pass unless a sample says what is large. Several layers (L, d) have a gate, and in
    training half of their standardised numbers are dropped: each becomes its mean. That half is a
    constant; of a detector's `dropout` only 0 is followed, which drops none.
    """
    if how not in SCALES:
        raise ValueError(f"input_scale: expected one of {', '.join(SCALES)}, found {how!r}")
    scale = build_plain_scale(how, *shape, fills=fills)
    n_layers = shape[0] if len(shape) > 1 else 1
    if n_layers == 1:
        return scale
    share = DROPOUT if how == "standard" and dropout else 0.0
    return nn.Sequential(scale, nn.Dropout(share), LayerGate(n_layers))


def build_plain_scale(how: str, *shape: int, fills: bool) -> nn.Module:
    if how == "standard":
        return Standardise(*shape, fills=fills)
    is_raw = how == "raw"
    norm = nn.Identity() if is_raw else nn.LayerNorm(shape[-1], elementwise_affine=False)
    return Unfitted(norm, fills)


@contextmanager
def observing(module: nn.Module) -> Iterator[Sequence[Standardise]]:
    """The `Standardise` parts of a module, which learn from what they are given meanwhile."""
    parts = [part for part in module.modules() if isinstance(part, Standardise)]
    for part in parts:
        part.is_observing = True
    try:
        yield parts
    finally:
        for part in parts:
            part.is_observing = False
