"""The base of the detectors: a module from a packed batch to one logit per trace, with its loss.

It has two steps: `encode` computes features of one size from traces of any length, `classify`
computes logits from them.

A detector names the columns it reads (`columns`) and the settings it takes (`options`); a training
loop needs nothing else to build, feed and train it, so it never asks which detector it holds. A
positive logit means hallucination.
"""

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar, NamedTuple, Self

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from models.losses import ClassificationLoss, Mixup
from models.reader import Reader
from models.standardise import SAMPLE_SIZE, observing
from models.token_scores import (
    STATES,
    columns_for_tokens,
    gradient_times_input,
    tokens_as_traces,
)
from store import Batch

__all__ = ["REDUCED", "Detector", "MlpDetector", "Outputs"]

REDUCED = "reduced"  # the column of a batch that holds `Detector.reduce` of its traces


class Outputs(NamedTuple):
    """The result of a forward pass; a detector with more to return has a NamedTuple of its own."""

    logits: Tensor  # (B,) float32


class Detector(nn.Module, Reader):
    """Base of the detectors: a subclass has `columns`, `options`, `encode` and `classify`."""

    # that `encode` reads, of an instance those of its settings (`columns_for`); the last axis of
    # the first is the hidden size d, which is 1 if that holds single numbers
    columns: tuple[str, ...]
    # that `loss` reads; batches have them in training alone, and `classify`, or `forward`, keeps
    # them in its result
    targets: ClassVar[tuple[str, ...]] = ()
    options: ClassVar[tuple[str, ...]] = ()  # of the constructor by name, after the hidden size
    layer_read: int | None = None  # of one that reads one layer: its position in the first column
    labels_per_trace: float = 1.0  # in `targets` of a training trace, on average
    default_scale: ClassVar[str] = "raw"  # of `input_scale`, unless another is given or chosen
    sample_size: ClassVar[int] = SAMPLE_SIZE  # training traces that `prepare` is given

    def __init__(self) -> None:
        super().__init__()
        # (logits (B,), labels (B,) float32 in [0, 1]) -> scalar; settings of the loss do not apply
        # to another
        self.criterion: nn.Module = ClassificationLoss()
        # whether the backward pass computes the activations of `self.run` again instead of keeping
        # them: less memory, more time, the same numbers
        self.recompute = False

    @classmethod
    def build(
        cls, item_shapes: Mapping[str, tuple[int, ...]], settings: Mapping[str, Any], **sizes: int
    ) -> Self:
        """Construct from the item shapes of a store's columns and settings, `options` among them.

        A setting that names a layer is the layer's position among those that are read. Of a first
        column of single numbers the hidden size is 1. A constructor that has `n_layers` gets those
        of the first column; `sizes` are others that a subclass reads from the shapes.
        """
        n_layers, hidden_size = (1, 1, *item_shapes[cls.columns[0]])[-2:]
        if "n_layers" in inspect.signature(cls).parameters:
            sizes["n_layers"] = n_layers
        construct: Callable[..., Self] = cls  # each subclass takes options of its own
        return construct(hidden_size, **sizes, **{name: settings[name] for name in cls.options})

    def read_layer(self, setting: str, position: int | None, default: int, n_layers: int) -> None:
        """Read one layer of the first column, at the position of a setting if it has one."""
        if position is None:
            position = default
        elif not 0 <= position < n_layers:
            raise ValueError(f"{setting}: expected 0 to {n_layers - 1}, found {position}")
        self.layer_read = position
        self.layers_read = [position]

    def prepare(self, sample: Iterable[Batch]) -> None:
        """Set what follows from the data, such as scales; called once before the first step.

        The batches of `sample` have `columns` and `targets` of `sample_size` training traces, or of
        all if there are fewer. What is set belongs into buffers or parameters, which are saved.

        Here every `Standardise` that `encode` runs through takes its scales from the sample.
        """
        was_training = self.training
        with torch.no_grad(), observing(self) as parts:
            if not parts:
                return
            self.eval()
            for batch in sample:
                self.encode(batch)
        self.train(was_training)

    @classmethod
    def columns_for(cls, settings: Mapping[str, Any]) -> tuple[str, ...]:
        """Columns that `encode` reads with these settings: `columns`, and maybe others."""
        return cls.columns

    def reduce(self, batch: Batch) -> Tensor | None:
        """What `encode` needs of each trace, (B, ...), computed without weights; None: all of it.

        It depends on the trace and on the options only, and on a CPU and a GPU it is equal bit for
        bit, so that a training loop may compute it once and keep it.
        """
        return None

    def reduced(self, batch: Batch) -> Tensor:
        """The result of `reduce` for a batch: as the batch brings it, or computed now."""
        found = batch.fixed(REDUCED) if REDUCED in batch else self.reduce(batch)
        if found is None:
            raise NotImplementedError(f"{type(self).__name__} has no reduce")
        return found

    def states(self, values: Tensor) -> Tensor:
        """Of values (n, L, d), or of values that lack other layers, those read: (n, n_read, d)."""
        layers = self.layers_read
        is_read = layers is None or values.shape[1] == len(layers)
        return values if is_read else values[:, layers]

    def encode(self, batch: Batch) -> Tensor:
        """Features of each trace, (B, ...) float32."""
        raise NotImplementedError

    def classify(self, features: Tensor) -> Any:
        """Return `Outputs`, or a NamedTuple with `logits` (B,) among its fields."""
        raise NotImplementedError

    def forward(self, batch: Batch, mixup: Mixup | None = None) -> Any:
        """The result of `classify` for the features of a batch, or for mixtures of them."""
        features = self.encode(batch)
        return self.classify(features if mixup is None else mixup(features))

    def loss(self, outputs: Any, labels: Tensor) -> Tensor:
        """Scalar float32 loss of labels (B,), 1 = hallucination, mixed as the features were."""
        return self.criterion(outputs.logits, labels.to(outputs.logits.dtype))

    @classmethod
    def columns_for_tokens(cls, columns: tuple[str, ...]) -> tuple[str, ...]:
        """Columns that `token_scores` reads, `columns` being those of `encode`; empty for None."""
        return columns_for_tokens(columns)

    def token_scores(self, batch: Batch) -> Tensor | None:
        """How much each token speaks for a hallucination, or None where that makes no sense.

        A detector of all states: gradient x input of the trace's logit. A detector of one state a
        trace: its logit for the state of each token.

        `batch` has the columns of `columns_for_tokens`; the scores are (n_tokens,) float32.
        """
        if not self.columns_for_tokens(self.columns):
            return None
        if STATES in self.columns:
            return gradient_times_input(lambda one: self(one).logits, batch)
        (column,) = self.columns
        with torch.no_grad():
            parts = [self(tokens).logits for tokens in tokens_as_traces(batch, column)]
        return torch.cat(parts) if parts else torch.zeros(0)

    def run(self, part: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
        """`part(*inputs)`; with `recompute`, its activations are computed again when needed."""
        if self.recompute and self.training:
            return checkpoint(part, *inputs, use_reentrant=False)
        return part(*inputs)

    def begin_at_zero(self) -> None:
        """Set the last linear layer of one output to 0, so that all logits are 0 before training.

        A detector on top of other log-odds then starts from them. One without such a layer stays
        as it is.
        """
        outputs = [part for part in self.modules() if isinstance(part, nn.Linear)]
        outputs = [part for part in outputs if part.out_features == 1]
        for parameter in outputs[-1].parameters() if outputs else ():
            nn.init.zeros_(parameter)

    @property
    def has_plain_loss(self) -> bool:
        """Whether `criterion` is the default, the cross-entropy alone."""
        criterion = self.criterion
        return type(criterion) is ClassificationLoss and criterion.is_plain

    def n_parameters(self) -> int:
        """Number of trained parameters."""
        return sum(parameter.numel() for parameter in self.parameters())


class MlpDetector(Detector):
    """Base of the detectors whose `mlp` computes the logits of the features."""

    mlp: nn.Module  # (B, ...) -> (B,)

    def classify(self, features: Tensor) -> Outputs:
        return Outputs(self.run(self.mlp, features))
