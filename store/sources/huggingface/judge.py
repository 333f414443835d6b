"""A causal language model as a judge of answers: is this answer one of the right ones?

The judge reads question, references and answer, and its verdict is read off one distribution: that
of the first token behind the prompt. Of the two words, yes and no, the more
probable one is the verdict; if both words together have little of the probability, the model wants
to say something else, and there is no verdict. This is greedy decoding with a strict reading,
without its noise: a small model that begins with "Yes," or " yes" or "YES" says the same, one that
puts 40% on yes and 5% on no is understood where its most probable token is a blank, and the
probability of yes is a score. No token is generated, so that an answer costs one
pass over its prompt.
"""

import re
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from store.errors import SchemaError
from store.labels.answer_scores import without_thought
from store.labels.grading import Case, Verdict
from store.sources.huggingface.batching import Halving, run_apart
from store.sources.huggingface.generation import check_positions, go_together, next_logits
from store.sources.huggingface.prompts import Chat, chat_messages
from store.sources.huggingface.provenance import describe_model
from store.sources.huggingface.tokenization import tokenize

__all__ = ["JUDGE_TEMPLATE", "HuggingFaceJudge", "read_template"]

JUDGE_TEMPLATE = """\
Question: {question}
Right answers: {references}
Answer to judge: {answer}
Does the answer to judge mean the same as one of the right answers? Reply with one word: yes or no.\
"""
PLAIN_END = "\nVerdict:"  # what the default template ends in without a chat template
# of the probability, both verdict words together: below this, the model did not give a verdict
MIN_VERDICT_MASS = 0.1
# nearer to one half than this is a draw: rounding would decide
DRAW = 1e-3
WORDS = ("yes", "no")

SPACES = ("▁", "Ġ", " ")  # how vocabularies write a space: SentencePiece's, and those of bytes
_FIELD = re.compile(r"\{(question|references|answer)\}")
_DESCRIBED = (
    "model",
    "revision",
    "architecture",
    "dtype",
    "weights_sha256",
    "weights_crc32c",
    "config_sha256",
    "tokenizer_sha256",
)


def read_template(given: str | None) -> str | None:
    r"""The template of a judge: the content of a file of that name, or the text itself.

    Raises SchemaError: it has no {answer}, or does not ask for yes or no.
    """
    if given is None:
        return None
    text = given.replace(r"\n", "\n")
    path = Path(given)
    if "{" not in given:
        if not path.is_file():
            raise SchemaError(
                f"judge template: expected a text with {{answer}} or a file of one, "
                f"found {given!r:.100}, which is neither"
            )
        text = path.read_text(encoding="utf-8", errors="replace").strip("\n")
    if "{answer}" not in text:
        raise SchemaError(
            f"judge template: expected {{answer}} in it, and {{question}} and {{references}}, "
            f"found {text!r:.100}"
        )
    words = re.findall(r"\w+", _FIELD.sub(" ", text).casefold())
    if not {*WORDS} <= {*words}:
        raise SchemaError(
            "judge template: expected that it asks for one of two words, yes if the answer is "
            f"right, else no, found {text!r:.100}"
        )
    return text


class HuggingFaceJudge:
    """Asks a causal language model for verdicts.

    `tokenizer`: its tokenizer; if it has a chat template, the judge is asked in it. `template`:
    text with {answer} and, as a rule, {question} and {references}; other braces are text. A
    template without {references} lets the judge decide by what it knows; otherwise an answer
    without references is not judged. What an answer thinks (`<think>`) is left out.

    Raises SchemaError: the tokenizer has no yes or no, or the model generates from positions that
    are not its own.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        template: str | None = None,
        *,
        batch_size: int = 16,
        name: str | None = None,
    ) -> None:
        check_positions(model)
        self.model = model
        self.tokenizer = tokenizer
        self.name = name or str(model.name_or_path)
        self._halving = Halving(batch_size)
        self.is_chat = bool(tokenizer.chat_template)
        self.template = template or JUDGE_TEMPLATE + ("" if self.is_chat else PLAIN_END)
        self.needs_references = "{references}" in self.template
        config = model.config.get_text_config()
        self.n_ids: int = config.vocab_size
        self.longest = getattr(config, "max_position_embeddings", None)
        self._ids = _ids_of_words(tokenizer, self.n_ids)
        self._prompt(Case("question", ["reference"], "answer"))  # the template may not take it

    def verdicts(self, cases: Sequence[Case]) -> list[Verdict]:
        """Judge answers, a batch at a time.

        Returns 'right' or 'wrong' with P(right); 'neither' where the model says neither word, or
        both equally; 'too long' where it cannot take the prompt; 'no references'.
        """
        found = [Verdict("no references")] * len(cases)
        prompts: dict[int, list[int]] = {}
        for i, case in enumerate(cases):
            if self.needs_references and not case.references:
                continue
            ids = self._encode(case)
            if ids is None:
                found[i] = Verdict("too long")
            else:
                prompts[i] = ids
        said = self._halving.run(self._ask_apart, list(prompts.values()))
        for i, verdict in zip(prompts, said, strict=True):
            found[i] = verdict
        return found

    def describe(self) -> dict[str, object]:
        described = describe_model(self.model, self.tokenizer, self.name, None)
        return {
            **{key: described[key] for key in _DESCRIBED},
            "template": self.template,
            "chat_template": self.is_chat,
            "words": list(WORDS),
            "min_verdict_mass": MIN_VERDICT_MASS,
        }

    @cached_property
    def _chat(self) -> Chat:
        return Chat(self.tokenizer, chat_messages(None, [], self.template))

    def _prompt(self, case: Case) -> str:
        texts = _texts(case)
        text = _FIELD.sub(lambda field: texts[field[1]], self.template)
        if not self.is_chat:
            return text
        try:
            return self._chat.prompt(chat_messages(None, [], text))
        except SchemaError as error:
            raise SchemaError(f"judge {self.name!r}: {error}") from error

    def _encode(self, case: Case) -> list[int] | None:
        """Token ids of a prompt; None if the model cannot take them."""
        text = self._prompt(case)
        try:
            ids = tokenize(self.tokenizer, text, special=not self.is_chat, offsets=False).ids
        except Exception:  # noqa: BLE001 - the tokenizers library raises nothing narrower
            return None
        is_too_long = self.longest is not None and len(ids) >= self.longest
        return None if not ids or is_too_long or max(ids) >= self.n_ids else ids

    def _ask_apart(self, prompts: Sequence[list[int]]) -> list[Verdict]:
        return run_apart(self._ask, prompts, together=go_together(self.model, prompts, 1))

    def _ask(self, prompts: Sequence[list[int]]) -> list[Verdict]:
        return _read_verdicts(next_logits(self.model, prompts)[:, 0], *self._ids)


def _texts(case: Case) -> dict[str, str]:
    """What stands for each field of a template."""
    return {
        "question": case.question,
        "references": "; ".join(case.references),
        "answer": without_thought(case.answer) or "(no answer)",
    }


def _read_verdicts(logits: Tensor, right: Sequence[int], wrong: Sequence[int]) -> list[Verdict]:
    """Verdicts from logits `(B, V)` of the first token, and the ids that begin each word."""
    p = logits.float().softmax(dim=-1)
    p_right = p[:, list(right)].sum(dim=-1).double()
    mass = p_right + p[:, list(wrong)].sum(dim=-1).double()
    verdicts = []
    for share, total in zip((p_right / mass).tolist(), mass.tolist(), strict=True):
        # written so that NaN, of a model that overflows, is no verdict
        if not (total >= MIN_VERDICT_MASS and abs(share - 0.5) >= DRAW):
            verdicts.append(Verdict("neither"))
        else:
            verdicts.append(Verdict("right" if share > 0.5 else "wrong", share))
    return verdicts


def _ids_of_words(tokenizer: PreTrainedTokenizerBase, n_ids: int) -> list[list[int]]:
    """The ids of the tokens that are yes, and no: in any case, with or without a space before."""
    vocabulary = tokenizer.get_vocab().items()
    found = [
        sorted(id_ for token, id_ in vocabulary if _letters(token) == word and id_ < n_ids)
        for word in WORDS
    ]
    if not all(found):
        raise SchemaError(
            "judge: expected a tokenizer with a token of each of yes and no, found one without"
        )
    return found


def _letters(token: str) -> str:
    return token.lstrip("".join(SPACES)).casefold()
