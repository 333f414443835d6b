"""The embedded example: answers of a small language model that says right and wrong as readily.

"Does Ada like chess?" It has read who likes what, but half of the answers that it learned to give
are wrong, at random, whatever the wording (`__main__`). Each question has several answers, drawn
from the model, some right and some wrong. Behind some of those that it learned from stands a
teacher's mark, so it can tell whether what it has just said is right; the example's answers end
before that.

The model (0.26 million parameters, one token per word) ships with the package in float16 and runs
in float32: the example needs no download, and the same processor and number of threads give the
same bits. The command `python -m store.sources.example --output-dir DIR` makes the weights again.
The model was never trained to answer these questions (`questions`).
"""

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging

from store.labels.grading import Grader
from store.sources.example.questions import example_questions
from store.sources.huggingface.generation import Decoding
from store.sources.huggingface.kept import DEFAULT, Kept
from store.sources.huggingface.prompts import Prompts
from store.sources.huggingface.source import HuggingFaceSource
from store.sources.questions import Question

__all__ = ["MODEL_DIR", "ExampleSource", "example_questions"]

MODEL_DIR = Path(__file__).parent
BATCH_SIZE = 128
# the longest answer and its end take ten tokens; a model that does not end stops here
DECODING = Decoding(num_samples=3, max_new_tokens=12)
COLUMNS = (DEFAULT, "lens_entropy")  # all that methods need but trilens, which can read more


class ExampleSource(HuggingFaceSource):
    """The example's traces: L = 4, d = 64, H = 4, K = 10; about 13 tokens and 13 kB each.

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
        prompts = Prompts(tokenizer, model, "{question}", False, DECODING.max_new_tokens)
        asked = example_questions() if questions is None else questions
        # named by its weights, so that a store shows whether it has those that ship
        digest = hashlib.sha256((model_dir / "model.safetensors").read_bytes()).hexdigest()
        super().__init__(
            model,
            prompts,
            [prompts.encode(question) for question in asked],
            DECODING,
            Kept(columns=COLUMNS),
            grader=Grader("contains"),
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
