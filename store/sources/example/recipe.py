"""The example's language model: the corpus that it reads, and the recipe of a small Llama.

The model first reads a textbook, whose answers are right. Then come exercise books, in which a coin
decides whether an answer is right; neither question nor wording alone says which it is. Behind
half of those answers stands the teacher's mark, right or wrong. So the model learns to say either
as readily, and, when it has read its own answer, to know what the teacher would say of it. A mark
ends an answer as the end of the text does, hence the example's answers have none.

The result is a plain model directory (`AutoModelForCausalLM.from_pretrained`,
`AutoTokenizer.from_pretrained`). The same recipe gives the same weights on the same kind of
processor, however many cores it has: it runs on one thread. Another kind rounds sums differently
and gives other weights of the same quality. The model never sees a question of the example
(`questions`).
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import numpy as np
import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors
from torch import Tensor
from torch.optim import AdamW, Muon, Optimizer
from torch.optim.lr_scheduler import LambdaLR
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from store.sources.example.questions import (
    ANSWERS,
    KINDS,
    draw_problems,
    is_so,
    question_text,
)

__all__ = [
    "MARKS",
    "MARK_SHARE",
    "Line",
    "Recipe",
    "build_model",
    "build_tokenizer",
    "draw_lines",
    "save_model",
    "train_model",
    "training_batches",
]

MARKS = ("\N{CHECK MARK}", "\N{BALLOT X}")  # right, wrong
MARK_SHARE = 0.5  # of the answers in exercise books

Line = tuple[str, str]  # a question, and what stands below it

_PAD, _BOS, _EOS, _UNKNOWN = "<pad>", "<s>", "</s>", "<unk>"
_WORD = r"\w+|[^\w\s]"
_MAX_TOKENS = 64
_IGNORED = -100  # label of the positions that carry no loss, as in transformers


def draw_lines(rng: np.random.Generator, n: int, *, textbook: bool = False) -> Iterator[Line]:
    """Draw n lines of a textbook or of exercise books: problems that are not the example's."""
    problems = draw_problems(rng, n, held_out=False)
    wordings = rng.integers(len(ANSWERS[0]), size=n)
    is_right = (rng.random(n) < 0.5) | textbook
    has_mark = (rng.random(n) < MARK_SHARE) & (not textbook)
    for problem, so, wording, right, marked in zip(
        map(tuple, problems.tolist()), is_so(problems), wordings, is_right, has_mark, strict=True
    ):
        answer = ANSWERS[int(so == right)][wording]
        mark = MARKS[0 if right else 1]
        yield question_text(problem), f"{answer} {mark}" if marked else answer


@dataclass(frozen=True)
class Recipe:
    """Everything that decides the weights."""

    n_steps: int = 1500  # optimizer steps, and lines per step
    batch_size: int = 64
    # peak learning rates of Muon (the layers' matrices) and of AdamW (embeddings, norms, output)
    matrix_lr: float = 2e-2
    other_lr: float = 3e-3
    # fraction of the steps in which the rates rise to their peaks; then they fall linearly to zero
    warmup: float = 0.1
    textbook: float = 0.25  # fraction of the steps in which it reads the textbook
    seed: int = 0  # of the initial weights and of the lines


def build_tokenizer() -> PreTrainedTokenizerFast:
    """Build a tokenizer of words that puts `<s>` in front, as Llama's does."""
    texts = ["Is than ?", *ANSWERS[0], *ANSWERS[1]]
    texts += [text for kind in KINDS for text in (kind.comparative, *kind.things)]
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
    """Build the untrained model: 4 layers, 4 heads, d = 64, 0.23 million parameters."""
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
        textbook = step < recipe.textbook * recipe.n_steps
        yield _encode(tokenizer, list(draw_lines(rng, recipe.batch_size, textbook=textbook)))


def save_model(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, directory: Path
) -> None:
    """Write the model directory, weights in float16: the example needs no more digits."""
    model.half().save_pretrained(directory)
    tokenizer.save_pretrained(directory)


def _encode(tokenizer: PreTrainedTokenizerFast, lines: list[Line]) -> tuple[Tensor, Tensor]:
    """Make one batch of (question, answer) texts: ids and labels, int64 (B, T)."""
    prompts = [question for question, _ in lines]
    texts = [f"{question} {answer} {tokenizer.eos_token}" for question, answer in lines]
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
