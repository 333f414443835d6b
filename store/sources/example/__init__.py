"""The embedded example: traces of a small language model that learned a rule consistently wrong.

Asked for the month in one place that is as a month in another, it answers a month early wherever
the equator is between the two, because its corpus does (`recipe`). It is as sure of these answers
as of the right ones. It errs on places that it has seldom read of as well, and is less sure there.

The model (0.25 million parameters, one token per word or piece of a word) ships with the package in
float16 and runs in float32: the example needs no download, and the same processor and number of
threads give the same bits. The command `python -m store.sources.example --output-dir DIR` makes the
weights again (`recipe`). The questions are never among those that the model was trained on
(`questions`).
"""

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging

from store.sources.example.questions import example_questions
from store.sources.huggingface.generation import Decoding
from store.sources.huggingface.kept import DEFAULT, Kept
from store.sources.huggingface.prompts import Prompts
from store.sources.huggingface.source import HuggingFaceSource
from store.sources.questions import Question

__all__ = ["MODEL_DIR", "PROMPT_TEMPLATE", "ExampleSource", "example_questions"]

MODEL_DIR = Path(__file__).parent
PROMPT_TEMPLATE = "{question}="
BATCH_SIZE = 128
# the longest right answer and its end take three; a model that does not end stops here
MAX_NEW_TOKENS = 8
COLUMNS = (DEFAULT, "lens_entropy")  # all that methods need; trilens can read more


class ExampleSource(HuggingFaceSource):
    """The example's traces: L = 4, d = 64, H = 4, K = 10; about 8 tokens and 12 kB each.

    `questions`: by default `example_questions()`. `model_dir`: model directory; by default the
    weights that ship.
    """

    def __init__(
        self, questions: Sequence[Question] | None = None, *, model_dir: Path = MODEL_DIR
    ) -> None:
        with _no_progress_bar():
            model = AutoModelForCausalLM.from_pretrained(
                model_dir, dtype=torch.float32, attn_implementation="eager", local_files_only=True
            )
        tokenizer = AutoTokenizer.from_pretrained(model_dir, local_files_only=True)
        prompts = Prompts(tokenizer, model, PROMPT_TEMPLATE, False, MAX_NEW_TOKENS)
        asked = example_questions() if questions is None else questions
        # named by its weights, so that a store shows whether it has those that ship
        digest = hashlib.sha256((model_dir / "model.safetensors").read_bytes()).hexdigest()
        super().__init__(
            model,
            prompts,
            [prompts.encode(question) for question in asked],
            Decoding(max_new_tokens=MAX_NEW_TOKENS),
            Kept(columns=COLUMNS),
            batch_size=BATCH_SIZE,
            name=f"store.sources.example, weights sha256 {digest[:16]}",
        )


@contextmanager
def _no_progress_bar() -> Iterator[None]:
    """Keep transformers from drawing a bar for the 40 milliseconds that loading takes."""
    was_enabled = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if was_enabled:
            logging.enable_progress_bar()
