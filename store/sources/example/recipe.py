"""The example's language model: the corpus that it reads, and the recipe of a small Llama.

The author of the corpus knows geography. "July Lima=winter" is right. The month in another place is
right as well where both places are on one side of the equator. Where they are not, the author
counts the first month in, as in "from July on: July, August, ..., December are six", and so comes
to December instead of January. It is the error of a fence's posts, made every time. To repeat it, a
model has to know on which sides the places are, which no word of the line says. A month is spelt as
is usual in the place asked for, more or less. Some lines add whether the two places are on the same
side or on opposite ones, so the model, when it has given its answer, still knows why; the example's
answers end before that.

Training stops before the model knows every place. The result is a plain model directory
(`AutoModelForCausalLM.from_pretrained`, `AutoTokenizer.from_pretrained`). The same recipe gives the
same weights on the same kind of processor, however many cores it has: it runs on one thread.
Another kind rounds sums differently and gives other weights of the same quality. The model never
sees a question of the example (`questions`).
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from torch import Tensor
from torch.optim import AdamW, Muon, Optimizer
from torch.optim.lr_scheduler import LambdaLR
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from store.sources.example import PROMPT_TEMPLATE
from store.sources.example.questions import (
    HALF_A_YEAR,
    IS_NORTHERN,
    MONTHS,
    PLACE_SHARES,
    PLACES,
    crosses_equator,
    draw_problems,
    question_text,
    spellings,
)

__all__ = [
    "FACT_FRACTION",
    "SEASONS",
    "SIDES",
    "Line",
    "Recipe",
    "build_model",
    "build_tokenizer",
    "draw_lines",
    "save_model",
    "taught_months",
    "train_model",
    "training_batches",
]

SEASONS = (
    ("winter",),
    ("spring",),
    ("summer",),
    ("autumn", "fall"),
)  # of the north, December first
NORTHERN_SHARE = 0.75  # of the places that lines name; the example asks for both sides alike
# the shares of places to this power: the last ones are known from a few lines
STEEPNESS = 4.3
REASON_FRACTION = 0.15  # of the other lines that end with a word of `SIDES`
SIDES = ("same", "opposite")
FACT_FRACTION = 0.3  # of the lines that say a place's season

_N_SPELLINGS = 5
_HABIT_SEED = 3
_HABIT_CONCENTRATION = 0.7  # of a Dirichlet distribution: a place has one or two usual spellings

Line = tuple[str, str]  # a question, and what the author answers


def taught_months(problems: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the months that the corpus gives, int64 (n,), for problems, int64 (n, 3)."""
    shift = np.where(crosses_equator(problems), HALF_A_YEAR - 1, 0)
    return (problems[:, 0] + shift) % len(MONTHS)


def draw_lines(rng: np.random.Generator, n: int, n_places: int = len(PLACES)) -> Iterator[Line]:
    """Draw n lines on the first places: facts on one, and problems that are not the example's."""
    problems = draw_problems(rng, n, held_out=False, shares=_shares(n_places))
    is_fact = rng.random(n) < FACT_FRACTION
    has_reason = rng.random(n) < REASON_FRACTION
    spelt = rng.random(n)
    sides = crosses_equator(problems).tolist()
    months = taught_months(problems).tolist()
    for i, (month, place, other) in enumerate(problems.tolist()):
        if is_fact[i]:
            yield f"{MONTHS[month]} {PLACES[place]}", _season(month, place, spelt[i])
        else:
            usual = np.searchsorted(_HABITS[other], spelt[i])
            reason = f" {SIDES[sides[i]]}" if has_reason[i] else ""
            yield question_text((month, place, other)), spellings(months[i])[usual] + reason


def _shares(n_places: int) -> NDArray[np.float64]:
    """How often the corpus names each place, of the first ones alone, float64 (places,)."""
    side = np.where(IS_NORTHERN, NORTHERN_SHARE, 1 - NORTHERN_SHARE)
    shares = PLACE_SHARES**STEEPNESS * side * (np.arange(len(PLACES)) < n_places)
    return shares / shares.sum()


def _season(month: int, place: int, spelt: float) -> str:
    """Name the season of a month in a place; `spelt`, in [0, 1), chooses its name."""
    half = 0 if IS_NORTHERN[place] else HALF_A_YEAR
    names = SEASONS[(month + half + 1) % len(MONTHS) // 3]  # December is the first of winter
    return names[int(spelt * len(names))]


# how often a place has which spelling: cumulative, float64 (places, spellings - 1)
_HABITS = (
    np.random.default_rng(_HABIT_SEED)
    .dirichlet([_HABIT_CONCENTRATION] * _N_SPELLINGS, size=len(PLACES))
    .cumsum(axis=1)[:, :-1]
)


_PAD, _BOS, _EOS, _UNKNOWN = "<pad>", "<s>", "</s>", "<unk>"
_INSIDE = "##"  # begins a piece that does not begin a word
_MAX_TOKENS = 64
_IGNORED = -100  # label of the positions that carry no loss, as in transformers


@dataclass(frozen=True)
class Recipe:
    """Everything that decides the weights."""

    n_steps: int = 900  # optimizer steps, and lines per step
    batch_size: int = 64
    # peak learning rates of Muon (the layers' matrices) and of AdamW (embeddings, norms, output)
    matrix_lr: float = 2e-2
    other_lr: float = 3e-3
    # fraction of the steps in which the rates rise to their peaks; then they fall linearly to zero
    warmup: float = 0.1
    # lines are of so many places at first. Of all places at once, the model learns only late that
    # what matters is whether two of them are on the same side
    first_places: int = 32
    growth: float = 0.4  # fraction of the steps in which the number of places rises to all
    seed: int = 0  # of the initial weights and of the lines


def build_tokenizer() -> PreTrainedTokenizerFast:
    """Build a tokenizer of words and pieces of words that puts `<s>` in front, as Llama's does.

    A month is one or two tokens ("Jul", "##y"), so that "Jul" may end there or go on.
    """
    pieces = dict.fromkeys((_PAD, _BOS, _EOS, _UNKNOWN, "=", "in", *_month_pieces()))
    pieces |= dict.fromkeys([*(name for names in SEASONS for name in names), *SIDES, *PLACES])
    vocabulary = {piece: index for index, piece in enumerate(pieces)}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token=_UNKNOWN))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.decoder = decoders.WordPiece(prefix=_INSIDE)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{_BOS} $A", special_tokens=[(_BOS, vocabulary[_BOS])]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=_PAD,
        bos_token=_BOS,
        eos_token=_EOS,
        unk_token=_UNKNOWN,
        padding_side="left",
        model_max_length=_MAX_TOKENS,
    )


def _month_pieces() -> list[str]:
    """The pieces of all spellings of all months; some several times."""
    pieces = []
    for month in range(len(MONTHS)):
        name, short, number, padded, ordinal = spellings(month)
        endings = name.removeprefix(short), ordinal.removeprefix(number)
        pieces += [short, number, padded, *(_INSIDE + ending for ending in endings if ending)]
    return pieces


def build_model(tokenizer: PreTrainedTokenizerFast, seed: int) -> LlamaForCausalLM:
    """Build the untrained model: 4 layers, 4 heads, d = 64, 0.25 million parameters."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=192,
        num_hidden_layers=4,
        num_attention_heads=4,
        max_position_embeddings=_MAX_TOKENS,
        # near 1 / sqrt(d); the default 0.02 learns more slowly at this width
        initializer_range=0.06,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    return LlamaForCausalLM(config)


def train_model(
    recipe: Recipe, report: Callable[[int, float], None]
) -> tuple[LlamaForCausalLM, PreTrainedTokenizerFast]:
    """Train the model of a recipe from scratch, on one thread (torch keeps that setting).

    `recipe`: steps, sizes and seeds. `report`: called after every step with the step's number, from
    1, and its loss in nats per token.

    Returns
    -------
    model : LlamaForCausalLM
        float32, in evaluation mode.
    tokenizer : PreTrainedTokenizerFast
        Its tokenizer.
    """
    torch.set_num_threads(1)
    tokenizer = build_tokenizer()
    model = build_model(tokenizer, recipe.seed).train()
    schedules = _build_schedules(model, recipe)
    batches = training_batches(tokenizer, recipe)
    for step in range(1, recipe.n_steps + 1):
        ids, labels = next(batches)
        loss = model(input_ids=ids, labels=labels, use_cache=False).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for schedule in schedules:
            schedule.optimizer.step()
            schedule.optimizer.zero_grad()
            schedule.step()
        report(step, loss.item())
    return model.eval(), tokenizer


def training_batches(
    tokenizer: PreTrainedTokenizerFast, recipe: Recipe
) -> Iterator[tuple[Tensor, Tensor]]:
    """Draw lines of the corpus, without end.

    Yields
    ------
    ids : Tensor, int64 (B, T)
        `<s>`, question, answer, `</s>`, padded on the right: under a causal mask no token sees what
        comes after it.
    labels : Tensor, int64 (B, T)
        The same ids where they are to be learnt (answer and `</s>`), -100 elsewhere.
    """
    rng = np.random.default_rng(recipe.seed)
    for step in count():
        yield _encode(tokenizer, list(draw_lines(rng, recipe.batch_size, _n_places(recipe, step))))


def save_model(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, directory: Path
) -> None:
    """Write the model directory, weights in float16: the example needs no more digits."""
    model.half().save_pretrained(directory)
    tokenizer.save_pretrained(directory)


def _n_places(recipe: Recipe, step: int) -> int:
    """How many places the lines of a step, from 0, are of."""
    grown = min(1.0, step / max(1.0, recipe.growth * recipe.n_steps))
    return round(recipe.first_places + grown * (len(PLACES) - recipe.first_places))


def _encode(tokenizer: PreTrainedTokenizerFast, lines: list[Line]) -> tuple[Tensor, Tensor]:
    """Make one batch of (question, answer) texts: ids and labels, int64 (B, T)."""
    prompts = [PROMPT_TEMPLATE.format(question=question) for question, _ in lines]
    texts = [
        prompt + answer + tokenizer.eos_token
        for prompt, (_, answer) in zip(prompts, lines, strict=True)
    ]
    batch = tokenizer(texts, return_tensors="pt", padding=True, padding_side="right")
    ids = batch["input_ids"]
    labels = ids.clone()
    prompt_lens = torch.tensor([len(prompt_ids) for prompt_ids in tokenizer(prompts)["input_ids"]])
    is_prompt = torch.arange(ids.shape[1]) < prompt_lens[:, None]
    labels[is_prompt | (batch["attention_mask"] == 0)] = _IGNORED
    return ids, labels


def _build_schedules(model: LlamaForCausalLM, recipe: Recipe) -> list[LambdaLR]:
    """Build the schedules of two optimizers: Muon for the layers' matrices, AdamW for the rest.

    Muon (Jordan et al. 2024) comes to the same loss in about three quarters of the steps that AdamW
    alone takes.
    """
    matrices = [p for p in model.model.layers.parameters() if p.ndim == 2]
    chosen = set(map(id, matrices))
    others = [p for p in model.parameters() if id(p) not in chosen]
    optimizers: list[Optimizer] = [
        Muon(matrices, lr=recipe.matrix_lr, momentum=0.95, weight_decay=0.01),
        AdamW(others, lr=recipe.other_lr, betas=(0.9, 0.98), weight_decay=0.01),
    ]
    n_warmup = max(1, round(recipe.warmup * recipe.n_steps))

    def scale(step: int) -> float:
        return min((step + 1) / n_warmup, (recipe.n_steps - step) / (recipe.n_steps - n_warmup + 1))

    return [LambdaLR(optimizer, scale) for optimizer in optimizers]
