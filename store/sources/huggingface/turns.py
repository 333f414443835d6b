"""What comes before a message in a prompt: examples, each a message and its answer; and how they
become one text, plainly or in the tokenizer's chat template.
"""

import re
import unicodedata
from collections.abc import Callable, Sequence
from typing import NamedTuple

from transformers import PreTrainedTokenizerBase

from store.errors import SchemaError
from store.labels.answer_scores import ends_thought, opens_thought
from store.labels.normalization import normalize_answer
from store.sources.huggingface.tokenization import knows_spaces, special_tokens
from store.sources.questions import Question

__all__ = ["Chat", "Examples", "PlainText", "Turn"]

Turn = tuple[str, str]  # a message and its answer

# punctuation that ends a word, which is none of a calculation's, and quotes that begin one
_ENDS = re.compile(r"""[?.,;:"'”’]+(?!\S)|(?<!\S)["'“‘]+""")
_PROBE = "answer"  # stands for an answer where a chat template is tried


class PlainText:
    """Puts turns before a message, with an empty line behind each."""

    # whether the tokenizer adds its special tokens; a chat template has them
    adds_special = True

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._spaces = knows_spaces(tokenizer)
        self._special = special_tokens(tokenizer)

    def text(self, turns: Sequence[Turn], message: str) -> str:
        shots = (
            f"{question}{self.separator(question, answer)}{answer}\n\n"
            for question, answer in turns
        )
        return "".join(shots) + message

    def text_before(self, response: str, turns: Sequence[Turn], message: str) -> str:
        """The text that a given response stands behind."""
        return self.text(turns, message)

    def separator(self, prompt: str, response: str) -> str:
        """What comes between a prompt and a response: a space, where neither has one, or nothing.

        Behind special tokens a model goes on without a space; some tokenizers have none.
        """
        has_one = prompt[-1:].isspace() or response[:1].isspace()
        is_special = any(prompt.endswith(token) for token in self._special)
        return " " if self._spaces and prompt and not has_one and not is_special else ""


class Chat(PlainText):
    """Puts turns and a message into a tokenizer's chat template.

    Raises SchemaError for a tokenizer without one, or with one that cannot take these turns.
    """

    adds_special = False

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, system: str | None, turns: Sequence[Turn]
    ) -> None:
        if not tokenizer.chat_template:
            raise SchemaError(
                "chat template: expected one with the tokenizer, found none; use a prompt template"
            )
        super().__init__(tokenizer)
        self._tokenizer = tokenizer
        self._system = system
        try:
            self._before_answers = self._try_answer(turns)
        except Exception as error:  # a chat template may raise anything
            takes = "a question and a system's message" if system else "a question"
            raise SchemaError(
                f"chat template: expected one that takes {takes}, found: {error}"
            ) from error

    def text(self, turns: Sequence[Turn], message: str) -> str:
        return self._apply(self._messages(turns, message), add_generation_prompt=True)

    def text_before(self, response: str, turns: Sequence[Turn], message: str) -> str:
        """That of a question; if it opens a thought that the response has not, what the template
        has before an answer.
        """
        text = self.text(turns, message)
        if not opens_thought(text) or ends_thought(response):
            return text
        answered = [*self._messages(turns, message), {"role": "assistant", "content": _PROBE}]
        return self._apply(answered, add_generation_prompt=False).rpartition(_PROBE)[0] or text

    def separator(self, prompt: str, response: str) -> str:
        if self._before_answers is None:
            return super().separator(prompt, response)
        return "" if response[0].isspace() else self._before_answers

    def _messages(self, turns: Sequence[Turn], message: str) -> list[dict[str, str]]:
        messages = [{"role": "system", "content": self._system}] if self._system else []
        for question, answer in turns:
            messages.append({"role": "user", "content": question})
            messages.append({"role": "assistant", "content": answer})
        return [*messages, {"role": "user", "content": message}]

    def _apply(self, messages: list[dict[str, str]], *, add_generation_prompt: bool) -> str:
        prompt = self._tokenizer.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=add_generation_prompt
        )
        return str(prompt)

    def _try_answer(self, turns: Sequence[Turn]) -> str | None:
        """The space that the template puts before an answer; None if it is no mere space."""
        messages = self._messages(turns, "{question}")
        prompt = self.text_before(_PROBE, turns, "{question}")
        answered = [*messages, {"role": "assistant", "content": _PROBE}]
        whole = self._apply(answered, add_generation_prompt=False)
        before = whole.removeprefix(prompt).partition(_PROBE)[0]
        is_known = whole.startswith(prompt) and not before.strip()
        return before if is_known else None


class _Example(NamedTuple):
    """A turn, and what it is compared by."""

    turn: Turn
    text: str
    answer: str
    question_id: str

    def gives_away(self, question: Question, text: str) -> bool:
        """Whether it is that question, which has that text: its prompt would have the answer."""
        if text == self.text or question["question_id"] != self.question_id:
            return text == self.text
        return self.answer in map(normalize_answer, question["answers"])


class Examples:
    """The turns that prompts begin with; no prompt has one that is its own question.

    The first answer of a question is used, or its response. Those that are asked the same are one,
    the first; of those with labels, only right ones (0) count. `message_of` gives the message of a
    question. Raises ValueError if one has no answer or no message, or none is right.
    """

    def __init__(
        self, questions: Sequence[Question], message_of: Callable[[Question], str]
    ) -> None:
        right = [question for question in questions if question.get("label", 0) == 0]
        if questions and not right:
            raise ValueError(
                f"few_shot: expected an example that is right (label 0), found none of "
                f"{len(questions)}"
            )
        found: dict[str, _Example] = {}  # files have several responses to a question
        for question in right:
            message, answer = turn = _turn(question, message_of)
            compared = (_as_compared(message), normalize_answer(answer), question["question_id"])
            found.setdefault(message, _Example(turn, *compared))
        self._examples = list(found.values())
        self.turns = [one.turn for one in self._examples]

    def before(self, question: Question, message: str) -> list[Turn]:
        """The turns before the message of a question."""
        text = _as_compared(message) if self._examples else ""
        return [one.turn for one in self._examples if not one.gives_away(question, text)]


def _turn(question: Question, message_of: Callable[[Question], str]) -> Turn:
    answer = next(iter(question["answers"]), None) or question.get("response")
    if answer is None:
        raise ValueError(
            f"few_shot: question {question['question_id']!r}: expected an answer, found none"
        )
    try:
        return message_of(question), answer
    except ValueError as error:
        raise ValueError(f"few_shot: {error}") from error


def _as_compared(message: str) -> str:
    """A message without what tells no question from another: case, space, ends of sentences."""
    plain = unicodedata.normalize("NFKC", message).casefold()
    return " ".join(_ENDS.sub(" ", plain).split())
