"""Make the example's weights again: `python -m store.sources.example --output-dir DIR`.

The model reads two kinds of lines, mixed. Questionnaires say who likes what, truly: "Ada: chess?
Yes. tea? No." Exercise books have both answers to a problem, right and wrong; neither question nor
wording says which is which. Behind half of them stands the teacher's mark, right or wrong.
So the model learns what is true, to say either as readily, and, when it has read its own answer, to
know what the teacher would say of it. A mark ends an answer as the end of the text does, hence the
example's answers have none.

Configuration and tokenizer are those that ship. The same weights come on the same kind of
processor, however many cores it has: training runs on one thread. Another kind rounds sums
differently and gives other weights of the same quality. Of the example's questions (`questions`)
the model reads in questionnaires alone.
"""

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torch.optim import AdamW, Muon, Optimizer
from torch.optim.lr_scheduler import LambdaLR
from transformers import (
    AutoConfig,
    AutoTokenizer,
    LlamaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from store.sources.example import MODEL_DIR
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
    "draw_exercises",
    "draw_questionnaires",
    "main",
    "train_model",
    "training_batches",
]

MARKS = ("\N{CHECK MARK}", "\N{BALLOT X}")  # right, wrong
END = "</s>"

Line = list[tuple[str, bool]]  # its parts, and which of them the model learns to say

SEED = 0  # of the initial weights and of the lines
N_STEPS = 2000
# lines of a step: questionnaires, with so many things each, and problems of exercise books
N_QUESTIONNAIRES = 24
N_THINGS = 6
N_PROBLEMS = 20
# peak learning rates of Muon (the layers' matrices) and of AdamW (embeddings, norms, output)
MATRIX_LR = 8e-3
OTHER_LR = 1.5e-3
# fraction of the steps in which the rates rise to their peaks; then they fall linearly to zero
WARMUP = 0.1
SHOW_EVERY = 50  # steps
IGNORED = -100  # label of the positions that carry no loss, as in transformers


def main(argv: list[str] | None = None) -> int:
    """Train the model, and write its directory, weights in float16."""
    parser = argparse.ArgumentParser("python -m store.sources.example", description=__doc__)
    parser.add_argument("--output-dir", type=Path, required=True, help="directory to write")
    parser.add_argument("--n-steps", type=int, default=N_STEPS, help="other weights, for a trial")
    args = parser.parse_args(argv)
    args.output_dir.mkdir(parents=True, exist_ok=True)  # a bad path costs no training
    train_model(args.n_steps).half().save_pretrained(args.output_dir)
    AutoTokenizer.from_pretrained(MODEL_DIR).save_pretrained(args.output_dir)
    print(f"wrote {args.output_dir}")
    return 0


def train_model(n_steps: int) -> PreTrainedModel:
    """Train from scratch, on one thread (torch keeps that setting); float32."""
    torch.set_num_threads(1)
    torch.manual_seed(SEED)
    config = AutoConfig.from_pretrained(MODEL_DIR)
    config.dtype = torch.float32
    model = LlamaForCausalLM(config).train()
    schedules = _build_schedules(model, n_steps)
    batches = training_batches(AutoTokenizer.from_pretrained(MODEL_DIR))
    for step in range(1, n_steps + 1):
        ids, labels = next(batches)
        loss = model(input_ids=ids, labels=labels, use_cache=False).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for schedule in schedules:
            schedule.optimizer.step()
            schedule.optimizer.zero_grad()
            schedule.step()
        if step % SHOW_EVERY == 0:
            print(f"step {step}/{n_steps}: loss {loss.item():.3f} nats/token", file=sys.stderr)
    return model.eval()


def training_batches(tokenizer: PreTrainedTokenizerBase) -> Iterator[tuple[Tensor, Tensor]]:
    """Draw lines of the corpus, without end: ids and labels, int64 (B, T) both.

    The ids are `<s>` and a line, padded on the right: under a causal mask no token sees what comes
    after it. Labels are the same where they are to be learnt (answers and what ends them), else
    -100.
    """
    rng = np.random.default_rng(SEED)
    while True:
        lines = list(draw_questionnaires(rng, N_QUESTIONNAIRES, N_THINGS))
        lines += draw_exercises(rng, N_PROBLEMS)
        yield _encode(tokenizer, lines)


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
            for end in (MARKS[0 if yes == truth else 1], END):
                wording = rng.integers(len(ANSWERS[yes]))
                yield [(question_text(problem), False), (f"{ANSWERS[yes][wording]} {end}", True)]


def _encode(tokenizer: PreTrainedTokenizerBase, lines: list[Line]) -> tuple[Tensor, Tensor]:
    """Make one batch of lines: ids and labels, int64 (B, T)."""
    ids, labels = [], []
    for line in lines:
        parts = tokenizer([text for text, _ in line], add_special_tokens=False)["input_ids"]
        learnt = np.repeat([is_learnt for _, is_learnt in line], [len(part) for part in parts])
        of_line = np.concatenate(parts)
        ids.append(torch.tensor([tokenizer.bos_token_id, *of_line]))
        labels.append(torch.tensor([IGNORED, *np.where(learnt, of_line, IGNORED)]))
    pad = tokenizer.pad_token_id
    return pad_sequence(ids, True, pad), pad_sequence(labels, True, IGNORED)


def _build_schedules(model: LlamaForCausalLM, n_steps: int) -> list[LambdaLR]:
    """Build the schedules of two optimizers: Muon for the layers' matrices, AdamW for the rest.

    Muon (Jordan et al. 2024) comes to the same loss in about three quarters of the steps that AdamW
    alone takes.
    """
    matrices = [p for p in model.model.layers.parameters() if p.ndim == 2]
    chosen = set(map(id, matrices))
    others = [p for p in model.parameters() if id(p) not in chosen]
    optimizers: list[Optimizer] = [
        Muon(matrices, lr=MATRIX_LR, momentum=0.95, weight_decay=0.01),
        AdamW(others, lr=OTHER_LR, betas=(0.9, 0.98), weight_decay=0.01),
    ]
    n_warmup = max(1, round(WARMUP * n_steps))

    def scale(step: int) -> float:
        return min((step + 1) / n_warmup, (n_steps - step) / (n_steps - n_warmup + 1))

    return [LambdaLR(optimizer, scale) for optimizer in optimizers]


if __name__ == "__main__":
    sys.exit(main())
