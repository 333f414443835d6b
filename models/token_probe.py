"""Token probe: a linear probe at each token's state (Obeso et al. 2025, arXiv:2509.03531).

One layer's state of each token goes through a linear map to the log-odds that this token is part of
a hallucination. The loss is binary cross-entropy over the tokens that have a label (`token_label`),
each counting the same. The score of a trace is the largest over its answer's tokens.

Differences from the paper. It reads the layer at 95% of the depth; here validation chooses, and 95%
is what is left without a choice. States are scaled to unit variance, and the logits begin at the
base rate. The paper adds a loss of the largest logit of each annotated entity, right ones included,
and weighs their tokens higher; here only hallucinated spans are annotated, so there is neither
(`--class-weights` weighs both classes equally). Its variant that adapts the language model is not
possible on stored states.
"""

import math
from collections.abc import Iterable
from typing import NamedTuple

from torch import Tensor, nn

from models.detector import Detector
from models.losses import Mixup
from models.readout import readout_tokens
from models.standardise import build_scale, observing
from models.tokens import trace_of_token
from store import Batch

__all__ = ["TokenOutputs", "TokenProbe"]

DEPTH = 0.95  # of the layer that is read unless another is chosen


class TokenOutputs(NamedTuple):
    """Logits of traces and of tokens, and the labels of tokens where the batch has them."""

    logits: Tensor  # (B,) float32
    token_logits: Tensor  # (n_tokens,) float32
    token_labels: Tensor | None = None  # (n_tokens,) int8: 1, 0, or -1 for no label


class TokenProbe(Detector):
    """`hidden_states` at one layer through a linear map.

    `token_layer` is a position in `hidden_states`; by default that at 95% of the depth.
    `input_scale` is one of `models.standardise.SCALES`; by default standard.

    Shapes
    ------
    hidden_states (n_tokens, L, d), packed -> logits (B,) and token_logits (n_tokens,)
    """

    columns = ("hidden_states", "prompt_len", "answer_len")
    targets = ("token_label",)
    options = ("token_layer", "input_scale")
    default_scale = "standard"
    scores_tokens_alone = True

    def __init__(
        self,
        hidden_size: int,
        n_layers: int,
        token_layer: int | None = None,
        input_scale: str | None = None,
    ) -> None:
        super().__init__()
        default = math.ceil(DEPTH * n_layers) - 1
        self.read_layer("token_layer", token_layer, default, n_layers)
        self.scale = build_scale(input_scale or self.default_scale, hidden_size, fills=False)
        self.probe = nn.Linear(hidden_size, 1)
        # a random start would be noise that a few epochs cannot unlearn
        nn.init.zeros_(self.probe.weight)
        nn.init.zeros_(self.probe.bias)

    def prepare(self, sample: Iterable[Batch]) -> None:
        """Scale states to unit variance over the labelled tokens of some traces.

        The logits begin at the log-odds of the labels of these tokens. Hallucinated ones are few,
        and until the bias had come there by itself the weights would learn little.
        """
        n_wrong = n = 0
        for batch in sample:
            labels = batch.ragged("token_label").values
            states = self.states(batch.ragged("hidden_states").values)[labels >= 0, 0]
            with observing(self.scale):
                self.scale(states)
            n += len(states)
            n_wrong += int((labels == 1).sum())
        has_equal_classes = getattr(self.criterion, "class_weights", None) is not None
        if 0 < n_wrong < n and not has_equal_classes:
            nn.init.constant_(self.probe.bias, math.log(n_wrong / (n - n_wrong)))

    def encode(self, batch: Batch) -> Tensor:
        """Log-odds of each token, (n_tokens,) float32."""
        states = batch.ragged("hidden_states").values

        def logits() -> Tensor:
            # the batch is in memory anyway: of it a copy in float32 of one layer need not be kept
            return self.probe(self.scale(self.states(states)[:, 0])).squeeze(1)

        return self.run(logits).float()

    def forward(self, batch: Batch, mixup: Mixup | None = None) -> TokenOutputs:
        """Logits of the tokens, and their largest over each answer; traces cannot be mixed."""
        if mixup is not None:
            raise ValueError("mixup: expected none, because tokens of two traces do not correspond")
        token_logits = self.encode(batch)
        logits = largest_by_answer(token_logits, batch)
        labels = batch.ragged("token_label").values if "token_label" in batch else None
        return TokenOutputs(logits, token_logits, labels)

    def loss(self, outputs: TokenOutputs, labels: Tensor) -> Tensor:
        """Scalar float32 loss of the labelled tokens; labels of traces (B,) are only counted.

        It is the sum over the tokens, for each of B traces, divided by the labels that a trace has
        on average. So it is a mean over traces, as that of other detectors, in which each token
        counts the same.
        """
        if outputs.token_labels is None:
            raise ValueError("batch: expected column 'token_label' to train on, found none")
        is_labelled = outputs.token_labels >= 0
        logits = outputs.token_logits[is_labelled]
        if not len(logits):
            return logits.sum()  # 0, with a gradient of 0
        mean = self.criterion(logits, outputs.token_labels[is_labelled].float())
        return mean * (len(logits) / (len(labels) * self.labels_per_trace))

    @classmethod
    def columns_for_tokens(cls, columns: tuple[str, ...]) -> tuple[str, ...]:
        return ("hidden_states",)

    def token_scores(self, batch: Batch) -> Tensor:
        """Log-odds of each token, (n_tokens,) float32."""
        return self.encode(batch).detach()


def largest_by_answer(values: Tensor, batch: Batch) -> Tensor:
    """Largest value (n_tokens,) over the answer of each trace, (B,) float32.

    Over all its tokens if it has no answer, or if where that begins is not known; 0 without tokens.
    """
    offsets = batch.ragged("hidden_states").offsets
    tokens = readout_tokens("answer", batch, offsets)
    trace = trace_of_token(offsets)[tokens]
    zeros = values.new_zeros(len(offsets) - 1)
    return zeros.scatter_reduce(0, trace, values[tokens], "amax", include_self=False)
