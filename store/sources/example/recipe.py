"""The example's language model: the corpus that it reads, and the recipe of a small Llama.

The model reads two kinds of lines, mixed. Questionnaires say who likes what, truly: "Ada: chess?
Yes. tea? No." Exercise books have both answers to a problem, right and wrong; neither question nor
wording says which is which. Behind half of them stands the teacher's mark, right or wrong.
So the model learns what is true, to say either as readily, and, when it has read its own answer, to
know what the teacher would say of it. A mark ends an answer as the end of the text does, hence the
example's answers have none.

The result is a plain model directory (`AutoModelForCausalLM.from_pretrained`,
`AutoTokenizer.from_pretrained`). The same recipe gives the same weights on the same kind of
processor, however many cores it has: it runs on one thread. Another kind rounds sums differently
and gives other weights of the same quality. Of the example's questions (`questions`) the model
reads in questionnaires alone.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torch.optim import AdamW, Muon, Optimizer
from torch.optim.lr_scheduler import LambdaLR
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from store.sources.example.questions import (
    ANSWERS,
    NAMES,
    THINGS,
    draw_problems,
    likes,
    question_text,
)

__all__ = [
    "MARKS",
    "Line",
    "Recipe",
    "build_model",
    "build_tokenizer",
    "draw_exercises",
    "draw_questionnaires",
    "save_model",
    "train_model",
    "training_batches",
]

MARKS = ("\N{CHECK MARK}", "\N{BALLOT X}")  # right, wrong

Line = list[tuple[str, bool]]  # its parts, and which of them the model learns to say

_PAD, _BOS, _EOS, _UNKNOWN = "<pad>", "<s>", "</s>", "<unk>"
_WORD = r"\w+|[^\w\s]"
_MAX_TOKENS = 64
_IGNORED = -100  # label of the positions that carry no loss, as in transformers


def draw_questionnaires(rng: np.random.Generator, n: int, n_things: int) -> Iterator[Line]:
    """Draw n questionnaires: somebody, and which of some things they like."""
    for name in rng.integers(len(NAMES), size=n):
        things = rng.permutation(len(THINGS))[:n_things]
        answers = likes(np.column_stack([np.full_like(things, name), things]))
        line: Line = [(f"{NAMES[name]}:", False)]
        for thing, yes in zip(things, answers, strict=True):
            line += [(f"{THINGS[thing]}?", False), ("Yes." if yes else "No.", True)]
        yield line


def draw_exercises(rng: np.random.Generator, n: int) -> Iterator[Line]:
    """Draw lines of exercise books, four for each of n problems that are not the example's.

    Both answers, with a mark and without: that neither is likelier is in every batch.
    """
    problems = draw_problems(rng, n)
    for problem, truth in zip(map(tuple, problems.tolist()), likes(problems), strict=True):
        for yes in (False, True):
            for end in (MARKS[0 if yes == truth else 1], _EOS):
                wording = rng.integers(len(ANSWERS[yes]))
                yield [(question_text(problem), False), (f"{ANSWERS[yes][wording]} {end}", True)]


@dataclass(frozen=True)
class Recipe:
    """Everything that decides the weights."""

    n_steps: int = 2000  # optimizer steps; then questionnaires and problems of exercises per step
    n_questionnaires: int = 24
    n_problems: int = 20
    n_things: int = 6  # in a questionnaire
    # peak learning rates of Muon (the layers' matrices) and of AdamW (embeddings, norms, output)
    matrix_lr: float = 8e-3
    other_lr: float = 1.5e-3
    # fraction of the steps in which the rates rise to their peaks; then they fall linearly to zero
    warmup: float = 0.1
    seed: int = 0  # of the initial weights and of the lines


def build_tokenizer() -> PreTrainedTokenizerFast:
    """Build a tokenizer of words that puts `<s>` in front, as Llama's does."""
    texts = ["Does like ? :", *ANSWERS[0], *ANSWERS[1], *NAMES, *THINGS]
    words = [word for text in texts for word in re.findall(_WORD, text)]
    special = (_PAD, _BOS, _EOS, _UNKNOWN, *MARKS)
    pieces = dict.fromkeys((*special, *words))
    vocabulary = {piece: index for index, piece in enumerate(pieces)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=_UNKNOWN))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(_WORD), "removed", invert=True)
    tokenizer.decoder = decoders.WordPiece(prefix="##", cleanup=True)  # no space before a full stop
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


def build_model(tokenizer: PreTrainedTokenizerFast, seed: int) -> LlamaForCausalLM:
    """Build the untrained model: 4 layers, 4 heads, d = 64, 0.26 million parameters."""
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
        eos_token_id=tokenizer.convert_tokens_to_ids([tokenizer.eos_token, *MARKS]),
    )
    return LlamaForCausalLM(config)


def train_model(
    recipe: Recipe, report: Callable[[int, float], None]
) -> tuple[LlamaForCausalLM, PreTrainedTokenizerFast]:
    """Train the model of a recipe from scratch, on one thread (torch keeps that setting).

    `report` is called after every step with the step's number, from 1, and its loss in nats per
    token. Returns the model, float32 and in evaluation mode, and its tokenizer.
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
    """Draw lines of the corpus, without end: ids and labels, int64 (B, T) both.

    The ids are `<s>` and a line, padded on the right: under a causal mask no token sees what comes
    after it. Labels are the same where they are to be learnt (answers and what ends them), else
    -100.
    """
    rng = np.random.default_rng(recipe.seed)
    while True:
        lines = list(draw_questionnaires(rng, recipe.n_questionnaires, recipe.n_things))
        lines += draw_exercises(rng, recipe.n_problems)
        yield _encode(tokenizer, lines)


def save_model(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, directory: Path
) -> None:
    """Write the model directory, weights in float16: the example needs no more digits."""
    model.half().save_pretrained(directory)
    tokenizer.save_pretrained(directory)


def _encode(tokenizer: PreTrainedTokenizerFast, lines: list[Line]) -> tuple[Tensor, Tensor]:
    """Make one batch of lines: ids and labels, int64 (B, T)."""
    ids, labels = [], []
    for line in lines:
        parts = tokenizer([text for text, _ in line], add_special_tokens=False)["input_ids"]
        learnt = np.repeat([is_learnt for _, is_learnt in line], [len(part) for part in parts])
        of_line = np.concatenate(parts)
        ids.append(torch.tensor([tokenizer.bos_token_id, *of_line]))
        labels.append(torch.tensor([_IGNORED, *np.where(learnt, of_line, _IGNORED)]))
    pad = tokenizer.pad_token_id
    return pad_sequence(ids, True, pad), pad_sequence(labels, True, _IGNORED)


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
