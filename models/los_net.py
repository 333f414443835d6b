"""LOS-Net: a transformer over what the model's output distributions were (arXiv:2503.14043)."""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from models.detector import Detector, Outputs
from models.standardise import Standardise
from models.tokens import (
    answer_or_all_tokens,
    keep_tokens,
    offsets_of_kept,
    positions,
    trace_of_token,
)
from store import Batch

__all__ = ["LosNet", "Signature", "read_signature"]

WIDTH = 128
N_HEADS = 8
N_BLOCKS = 2
MAX_TOKENS = 100  # of an answer, from its first on
MIN_SPREAD = 1e-6  # candidates that are all equally likely have no spread
LEAST = -20.0  # log-probabilities below are cut
# scale of the first weights of what is nearly the same in all answers, which the normalisation
# would else leave in place of what is not
START = 0.1


class Signature(NamedTuple):
    """The output signature of the answers, packed."""

    # (n_tokens, K) float32: probabilities of the K likeliest tokens, falling, standardised within
    # each step
    candidates: Tensor
    # (n_tokens,) float32: probability of the token that was taken, on the same scale
    actual: Tensor
    # (n_tokens, 1 + K) float32: log-probabilities of the token that was taken and of the
    # candidates, at least `LEAST`
    logprobs: Tensor
    # (n_tokens,) int64: its place among the candidates, from 0; K where it is none of them
    rank: Tensor
    offsets: Tensor  # (B + 1,) int64


def read_signature(batch: Batch) -> Signature:
    """The signature of each trace's answer, of its first 100 tokens at most.

    Tokens that nothing predicted (NaN, as at token 0) have no distribution, and are left out. Where
    the prompt's length is unknown, all tokens of a trace are its answer.
    """
    column = batch.ragged("topk_logprob")
    logprob = batch.ragged("logprob").values
    is_known = ~(logprob.isnan() | column.values.isnan().any(dim=1))
    is_read = is_known & answer_or_all_tokens(batch, column.offsets)
    is_read &= number_in_trace(is_read, column.offsets) < MAX_TOKENS
    values, offsets = keep_tokens(column, is_read)
    logprobs = values.float()  # (n, K)
    probabilities = logprobs.exp()
    mean = probabilities.mean(dim=1, keepdim=True)
    distance = probabilities - mean
    n_free = max(1, probabilities.shape[1] - 1)
    variance = distance.square().sum(dim=1, keepdim=True) / n_free
    spread = variance.sqrt().clamp(min=MIN_SPREAD)
    actual = logprob[is_read].float()
    return Signature(
        distance / spread,
        ((actual[:, None].exp() - mean) / spread).squeeze(1),
        torch.cat([actual[:, None], logprobs], dim=1).clamp(min=LEAST),
        rank_of(batch.ragged("tokens").values[is_read], batch.ragged("topk_id").values[is_read]),
        offsets,
    )


def number_in_trace(counted: Tensor, offsets: Tensor) -> Tensor:
    """How many tokens before each one are counted in its trace, (n_tokens,) int64."""
    n_before = counted.cumsum(0) - counted.long()
    return n_before - offsets_of_kept(counted, offsets)[trace_of_token(offsets)]


def rank_of(token: Tensor, candidates: Tensor) -> Tensor:
    """Place of each token (n,) among its candidates (n, K), from 0; K where it is none of them."""
    is_other = candidates.long() != token.long()[:, None]
    return is_other.cumprod(dim=1).sum(dim=1)


class SignatureEncoder(nn.Module):
    """The steps of an answer behind a class token, through transformer blocks.

    `n_candidates` is K of the signature.

    Shapes
    ------
    the fields of `Signature` -> the class token's vector (B, WIDTH)
    """

    def __init__(self, n_candidates: int) -> None:
        super().__init__()
        self.standardise = Standardise(MAX_TOKENS, 1 + n_candidates)
        self.project = nn.Linear(n_candidates, WIDTH // 2)
        self.by_logprobs = nn.Linear(1 + n_candidates, WIDTH, bias=False)
        self.of_place = nn.Embedding(MAX_TOKENS, WIDTH)
        self.by_probability = nn.Parameter(START * torch.randn(WIDTH // 2))
        self.by_rank = nn.Parameter(START * torch.randn(WIDTH // 2))
        self.class_token = nn.Parameter(START * torch.randn(WIDTH))
        self.position = nn.Embedding(1 + MAX_TOKENS, WIDTH)
        nn.init.normal_(self.position.weight, std=START)
        block = nn.TransformerEncoderLayer(
            WIDTH, N_HEADS, WIDTH, 0.0, batch_first=True, norm_first=True
        )
        self.blocks = nn.TransformerEncoder(
            block, N_BLOCKS, nn.LayerNorm(WIDTH), enable_nested_tensor=False
        )

    def forward(
        self, candidates: Tensor, actual: Tensor, logprobs: Tensor, rank: Tensor, offsets: Tensor
    ) -> Tensor:
        height = 1 - 2 * rank / candidates.shape[1]  # 1 for the likeliest, -1 for none of them
        taken = self.by_probability + height[:, None] * self.by_rank
        step = torch.cat([self.project(candidates).float(), actual[:, None] * taken], dim=1)
        lengths = offsets.diff()  # (B,)
        trace, number = trace_of_token(offsets), positions(offsets)
        by_place = logprobs.new_full((len(lengths), MAX_TOKENS, logprobs.shape[1]), torch.nan)
        by_place[trace, number] = logprobs
        mapped = self.by_logprobs(self.standardise(by_place)[trace, number]).float()
        step = step + mapped * self.of_place(number)
        place = torch.arange(1 + int(lengths.max()), device=offsets.device)  # 0: the class token
        steps = step.new_zeros(len(lengths), len(place), WIDTH)
        steps[:, 0] = self.class_token
        steps[trace, 1 + number] = step
        steps = steps + self.position(place)
        is_padding = place > lengths[:, None]
        encoded: Tensor = self.blocks(steps, src_key_padding_mask=is_padding)
        return encoded[:, 0]


class LosNet(Detector):
    """The output signature of the answer through a transformer, read at a class token.

    As in the authors' code: of each step the probabilities p of the K likeliest tokens, in falling
    order (the paper: K = 1,000, `extract --top-k 1000`), and the probability a and the rank r of
    the token that was taken. p and a are standardised by mean and standard deviation of the step. A
    step is the linear map of p, 64 wide, beside a u + a (1 - 2 r / V) v with trained u and v. A
    trained position is added; behind a class token the steps pass encoder blocks of width 128 (8
    heads, as wide between, ReLU, no dropout), and a linear map of the class token's vector gives
    the logit. Answers are read up to 100 tokens.

    Different from the paper: a linear map of the log-probabilities of the token and of its
    candidates, at least -20, is added to the step; each is standardised by its spread over training
    traces at that place of the answer. Of a model that is nearly sure p and a are the same at every
    step, whatever the others' probabilities are: a label that the least log-probability tells is
    missed without them (`benchmarks.known_signal`). The 128 numbers of that map are multiplied by
    as many trained ones of the place, since what a log-probability says depends on it. For the same
    reason u, v, the class token and the positions, which say nothing of an answer, begin as normal
    numbers times .1. Two blocks, with normalisation before the sums: of one, behind them, the class
    token sees no more than weighted sums of linear maps of the steps. Mean and standard deviation
    are of the K candidates that the store has, and ranks count in parts of K, not of the whole
    vocabulary of V tokens, which the store lacks; where K = V nothing differs. A token that is none
    of the candidates has rank K. Shorter answers are masked where the authors pad them with zeros.
    Of the sizes they searched (width 128 or 256, 1 or 2 blocks, dropout 0 or .3) the default of
    their code but for the blocks, 1 there, and the dropout, .3 there: in the few epochs of a run
    less is learned with it. The run's own optimizer and schedule (there AdamW, learning rate 1e-4,
    weight decay 1e-3, batches of 64, 300 epochs).

    An empty answer is the class token alone.

    `n_candidates` is K of `topk_logprob` and `topk_id`.

    Shapes
    ------
    batch["topk_logprob"], batch["topk_id"] (n_tokens, K), batch["logprob"], batch["tokens"]
    (n_tokens,) -> logits (B,)
    """

    columns = ("topk_logprob", "topk_id", "logprob", "tokens", "prompt_len", "answer_len")
    tokens_read = "answer"

    def __init__(self, n_candidates: int) -> None:
        super().__init__()
        self.encoder = SignatureEncoder(n_candidates)
        self.classifier = nn.Linear(WIDTH, 1)

    def encode(self, batch: Batch) -> Tensor:
        return self.run(self.encoder, *read_signature(batch))

    def classify(self, features: Tensor) -> Outputs:
        return Outputs(self.classifier(features).squeeze(1).float())
