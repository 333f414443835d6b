"""What every detector is: a module from a packed batch of traces to one logit per trace, with its
own loss.

It does so in two steps: `encode` makes features of one size of traces of any length, `classify`
makes logits of them.

A detector names the columns it reads (`columns`) and the settings it takes (`options`); a training
loop needs nothing else to build, feed and train it, so it never asks which detector it holds. A
positive logit means hallucination.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from models.losses import ClassificationLoss
from models.mixup import Mixup

if TYPE_CHECKING:
    from store import Batch

__all__ = ["Detector", "Outputs"]


class Outputs(NamedTuple):
    """What a forward pass gives: `logits` (B,) float32. A detector with more to say returns a
    NamedTuple of its own."""

    logits: Tensor


class Detector(nn.Module):
    """Base of the detectors. Subclasses set `columns` and `options`, and define `encode` and
    `classify`.

    Attributes
    ----------
    columns : tuple of str
        Columns of the store that `encode` reads; the last axis of the first one is the hidden size
        d.
    options : tuple of str
        Settings that the constructor takes by name, beside the hidden size.
    criterion : nn.Module
        (logits (B,), labels (B,) float32 in [0, 1]) -> scalar. Replace it to weigh examples
        differently.
    layer_read : int or None
        Of a detector that reads one layer: its position among those that it is given.
    recompute : bool
        Do the parts that `self.run` runs a second time in the backward pass, in place of keeping
        what they computed: less memory, more time, the same numbers.
    """

    columns: ClassVar[tuple[str, ...]]
    options: ClassVar[tuple[str, ...]]
    layer_read: int | None = None

    def __init__(self) -> None:
        super().__init__()
        self.criterion: nn.Module = ClassificationLoss()
        self.recompute = False

    @classmethod
    def build(
        cls, item_shapes: Mapping[str, tuple[int, ...]], settings: Mapping[str, Any]
    ) -> Detector:
        """Construct from the item shapes of a store's columns and a mapping that holds at least
        `options`.

        A setting that names a layer comes as the layer's position among those that are read.
        """
        hidden_size = item_shapes[cls.columns[0]][-1]
        return cls(hidden_size, **{name: settings[name] for name in cls.options})

    def encode(self, batch: Batch) -> Tensor:
        """Features of each trace, (B, ...) float32."""
        raise NotImplementedError

    def classify(self, features: Tensor) -> Any:
        """Give `Outputs`, or a NamedTuple with `logits` (B,) among its fields."""
        raise NotImplementedError

    def forward(self, batch: Batch, mixup: Mixup | None = None) -> Any:
        """What `classify` gives for the features of a batch, or for mixtures of them."""
        features = self.encode(batch)
        return self.classify(features if mixup is None else mixup(features))

    def loss(self, outputs: Any, labels: Tensor) -> Tensor:
        """Scalar float32 loss to minimise; `labels` is (B,) with 1 = hallucination, mixed as the
        features were."""
        return self.criterion(outputs.logits, labels.to(outputs.logits.dtype))

    def run(self, part: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
        """`part(*inputs)`, kept for the backward pass or done again there, as `recompute` says."""
        if self.recompute and self.training:
            return checkpoint(part, *inputs, use_reentrant=False)
        return part(*inputs)

    def n_parameters(self) -> int:
        """Count of trained numbers."""
        return sum(parameter.numel() for parameter in self.parameters())
