"""What every detector is: a module from a packed batch of traces to one logit per trace, with its own loss.

A detector names the columns it reads (`columns`) and the settings it takes (`options`); a training loop needs nothing
else to build, feed and train it, so it never asks which detector it holds. A positive logit means hallucination.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from torch import Tensor, nn

from models.losses import ClassificationLoss

if TYPE_CHECKING:
    from store import Batch

__all__ = ["Detector", "Outputs"]


class Outputs(NamedTuple):
    """What a forward pass gives: `logits` (B,) float32. A detector with more to say returns a NamedTuple of its own."""

    logits: Tensor


class Detector(nn.Module):
    """Base of the detectors. Subclasses set `columns` and `options`, and define `forward(batch)`.

    Attributes
    ----------
    columns : tuple of str
        Columns of the store that `forward` reads; the last axis of the first one is the hidden size d.
    options : tuple of str
        Settings that the constructor takes by name, beside the hidden size.
    criterion : nn.Module
        (logits (B,), labels (B,) float32 in [0, 1]) -> scalar. Replace it to weigh examples differently.
    """

    columns: ClassVar[tuple[str, ...]]
    options: ClassVar[tuple[str, ...]]

    def __init__(self) -> None:
        super().__init__()
        self.criterion = ClassificationLoss()

    @classmethod
    def build(cls, item_shapes: Mapping[str, tuple[int, ...]], settings: Mapping[str, Any]) -> Detector:
        """Construct from the item shapes of a store's columns and a mapping that holds at least `options`."""
        hidden_size = item_shapes[cls.columns[0]][-1]
        return cls(hidden_size, **{name: settings[name] for name in cls.options})

    def forward(self, batch: Batch) -> Any:
        """Give `Outputs`, or a NamedTuple with `logits` (B,) among its fields."""
        raise NotImplementedError

    def loss(self, outputs: Any, labels: Tensor) -> Tensor:
        """Scalar float32 loss to minimise; `labels` is (B,) with 1 = hallucination."""
        return self.criterion(outputs.logits, labels.to(outputs.logits.dtype))

    def n_parameters(self) -> int:
        """Count of trained numbers."""
        return sum(parameter.numel() for parameter in self.parameters())
