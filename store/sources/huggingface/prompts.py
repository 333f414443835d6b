"""From a question to the token ids of its prompt: a template, examples before it, the tokenizer's
chat template.

A question whose prompt the model cannot take is left out and named, as is one whose given response
does not fit behind it; the others are asked.
"""

import json
import math
import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from store.errors import SchemaError
from store.labels.answer_scores import as_thought, ends_thought, opens_thought
from store.labels.grading import Case, Grade
from store.labels.normalization import normalize_answer
from store.labels.rule import label_scores
from store.reports import LeftOut
from store.sources.huggingface.tokenization import (
    NO_LABEL,
    Tokens,
    appends_tokens,
    go_on,
    knows_spaces,
    label_tokens,
    special_tokens,
    tokenize,
    tokens_of,
)
from store.sources.prompt_templates import (
    Rendered,
    check_prompt_template,
    render,
    template_fields,
)
from store.sources.questions import Question

__all__ = [
    "Chat",
    "ChatTextError",
    "EncodedQuestion",
    "EncodedQuestions",
    "PlainText",
    "PromptError",
    "Prompts",
    "chat_messages",
    "encode_questions",
]

Turn = tuple[str, str]  # a message and its answer
Message = dict[str, str]  # of a chat: its role and its content

NO_CONTEXT = (-1, 0)
# punctuation that ends a word, which is none of a calculation's, and quotes that begin one
_ENDS = re.compile(r"""[?.,;:"'”’]+(?!\S)|(?<!\S)["'“‘]+""")
_PROBE = "answer"  # stands for an answer where a chat template is tried


class PromptError(ValueError):
    """A question whose prompt, or whose response, the model cannot take."""


class ChatTextError(SchemaError):
    """A chat template that leaves out the text of a turn."""


class PromptText(NamedTuple):
    """The text of a prompt."""

    text: str
    # the characters of the context, from start to before end; None where it is not in the text
    context: tuple[int, int] | None
    is_example: bool  # whether an example is the question itself, so that the prompt is without it


class EncodedQuestion(NamedTuple):
    """A question as a model gets it, and the answer to it once there is one."""

    question: Question
    # token ids, int32. A given answer comes with the question; that of a model comes later
    prompt: NDArray[np.int32]
    # the first token of the context, and how many there are; (-1, 0) without one
    context: tuple[int, int]
    is_example: bool  # whether an example is the question itself, so that the prompt is without it
    answer: NDArray[np.int32]
    # int8, of prompt and answer: 1 in a hallucinated span of the answer, 0 outside, -1 without
    # annotations, as in the prompt
    token_label: NDArray[np.int8]
    trace_id: str  # of the trace of the answer; empty without one
    text: str  # the answer as it is compared with the references
    is_thought: bool  # whether it begins within a thought, which the prompt has opened
    grade: Grade = Grade(math.nan, {})  # what rules say of the answer, once they were asked

    def answered(self, trace_id: str, ids: list[int], text: str) -> "EncodedQuestion":
        unlabelled = np.full(len(self.prompt) + len(ids), NO_LABEL, np.int8)
        answer = np.array(ids, np.int32)
        return self._replace(trace_id=trace_id, answer=answer, text=text, token_label=unlabelled)

    @property
    def tokens(self) -> list[int]:
        """Prompt and answer, T tokens."""
        return [*self.prompt.tolist(), *self.answer.tolist()]

    @property
    def case(self) -> Case:
        answer = as_thought(self.text) if self.is_thought else self.text
        return Case(self.question["question"], self.question["answers"], answer)

    @property
    def is_labelled(self) -> bool:
        """Whether the answer comes with a label or a score, which win over every rule."""
        return "label" in self.question or "score" in self.question

    def columns(self) -> dict[str, Any]:
        """What is known without a model and without rules: texts, numbers, `tokens` int32 (T,)."""
        context_start, context_len = self.context
        return {
            "question_id": self.question["question_id"],
            "question": self.question["question"],
            "answer": self.text,
            "context": self.question.get("context", ""),
            "references": json.dumps(self.question["answers"], ensure_ascii=False),
            "tokens": np.concatenate([self.prompt, self.answer]),
            "prompt_len": len(self.prompt),
            "answer_len": len(self.answer),
            "context_start": context_start,
            "context_len": context_len,
            "token_label": self.token_label,
        }

    def given_labels(self, threshold: float) -> dict[str, float | int]:
        """The score and the label that the answer comes with; empty if it has neither."""
        question = self.question
        if "label" in question:
            return {"score": question.get("score", math.nan), "label": question["label"]}
        if "score" in question:
            score = question["score"]
            return {"score": score, "label": int(label_scores(score, threshold))}
        return {}


class EncodedText(NamedTuple):
    """The tokens of a prompt, and of the response after it."""

    tokens: Tokens
    n_prompt: int  # of the tokens
    n_chars: int  # of both texts


class PlainText:
    """Puts the turns of a chat one after the other, with an empty line after each answer."""

    # whether the tokenizer adds its special tokens; a chat template has them
    adds_special = True

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self.tokenizer = tokenizer
        self._spaces = knows_spaces(tokenizer)
        self._special = special_tokens(tokenizer)

    def prompt(self, messages: Sequence[Message], response: str | None = None) -> str:
        """The text that the model goes on, or that a given response follows."""
        *before, last = [message["content"] for message in messages]
        shots = (
            f"{question}{self.separator(question, answer)}{answer}\n\n"
            for question, answer in zip(before[::2], before[1::2], strict=True)
        )
        return "".join(shots) + last

    def separator(self, prompt: str, response: str) -> str:
        """What comes between a prompt and a response: a space, where neither has one, or nothing.

        Behind special tokens a model goes on without a space; some tokenizers have none.
        """
        has_one = prompt[-1:].isspace() or response[:1].isspace()
        is_special = any(prompt.endswith(token) for token in self._special)
        return " " if self._spaces and prompt and not has_one and not is_special else ""

    def encode(
        self, prompt: str, response: str | None = None, *, offsets: bool = False
    ) -> "EncodedText":
        """Tokenise a prompt, without a response with `offsets`, or a prompt and its response.

        A tokenizer may raise anything for texts that it cannot take.
        """
        special = self.adds_special
        if response is None:
            tokens = tokenize(self.tokenizer, prompt, special=special, offsets=offsets)
            return EncodedText(tokens, len(tokens.ids), len(prompt))
        answer = self.separator(prompt, response) + response
        tokens, n_prompt = go_on(self.tokenizer, prompt, answer, special=special)
        return EncodedText(tokens, n_prompt, len(prompt) + len(answer))


def chat_messages(system: str | None, turns: Sequence[Turn], message: str) -> list[Message]:
    """A chat up to an answer; the system's message is left out if it is None."""
    messages = [] if system is None else [{"role": "system", "content": system}]
    for question, answer in turns:
        messages.append({"role": "user", "content": question})
        messages.append({"role": "assistant", "content": answer})
    return [*messages, {"role": "user", "content": message}]


class Chat(PlainText):
    """Puts messages into a tokenizer's chat template.

    `messages`: those of a prompt; others are some of them with another last one. Raises SchemaError
    for a tokenizer without a template, or with one that cannot take them or leaves out a text:
    some take lists of parts, or no system's message, and say nothing.
    """

    adds_special = False

    def __init__(self, tokenizer: PreTrainedTokenizerBase, messages: Sequence[Message]) -> None:
        if not tokenizer.chat_template:
            raise SchemaError(
                "chat template: expected one with the tokenizer, found none; use a prompt template"
            )
        super().__init__(tokenizer)
        self._messages = messages
        self._check_texts()

    def prompt(self, messages: Sequence[Message], response: str | None = None) -> str:
        """The text that the model goes on, or that a given response follows.

        If it opens a thought that the response has not, it is what the template has before an
        answer.
        """
        text = self._apply(messages, add_generation_prompt=True)
        if response is None or not opens_thought(text) or ends_thought(response):
            return text
        return self._with_answer(messages).rpartition(_PROBE)[0] or text

    def separator(self, prompt: str, response: str) -> str:
        if self._before_answers is None:
            return super().separator(prompt, response)
        return "" if response[0].isspace() else self._before_answers

    def _apply(self, messages: Sequence[Message], *, add_generation_prompt: bool) -> str:
        """The text of a chat; raises SchemaError if the template cannot take it."""
        try:
            prompt = self.tokenizer.apply_chat_template(
                list(messages), tokenize=False, add_generation_prompt=add_generation_prompt
            )
        except Exception as error:  # a chat template may raise anything
            roles = ", ".join(dict.fromkeys(message["role"] for message in messages))
            raise SchemaError(
                f"chat template: expected one that takes turns of {roles}, found: {error}"
            ) from error
        return str(prompt)

    def _with_answer(self, messages: Sequence[Message]) -> str:
        answered = [*messages, {"role": "assistant", "content": _PROBE}]
        return self._apply(answered, add_generation_prompt=False)

    def _check_texts(self) -> None:
        """Raise SchemaError unless the text of each message is in the prompt, in whatever case."""
        n = len(self._messages)
        marks = [f"{_PROBE}{i}{_PROBE}" for i in range(n)]
        marked = [
            {**message, "content": mark}
            for message, mark in zip(self._messages, marks, strict=True)
        ]
        prompt = self._apply(marked, add_generation_prompt=True).lower()
        for i, mark in enumerate(marks):
            if mark not in prompt:
                raise ChatTextError(
                    "chat template: expected one that writes the text of each turn, found one that "
                    f"leaves out that of turn {i + 1} of {n} (role {self._messages[i]['role']}); "
                    "use a prompt template, or leave that turn out"
                )

    @cached_property
    def _before_answers(self) -> str | None:
        """The space that the template puts before an answer; None if it is no mere space."""
        prompt = self.prompt(self._messages, _PROBE)
        whole = self._with_answer(self._messages)
        before = whole.removeprefix(prompt).partition(_PROBE)[0]
        is_known = whole.startswith(prompt) and not before.strip()
        return before if is_known else None


class Example(NamedTuple):
    """A question whose answer stands before others."""

    turn: Turn
    question: Question

    def gives_away(self, question: Question, message: str) -> bool:
        """Whether it is that question, which has that message: its prompt would have the answer."""
        own_message, own_answer = self.turn
        if _as_compared(message) == _as_compared(own_message):
            return True
        is_same = question["question_id"] == self.question["question_id"]  # or of the same number
        return is_same and normalize_answer(own_answer) in map(
            normalize_answer, question["answers"]
        )


def find_examples(
    questions: Sequence[Question], message_of: Callable[[Question], str]
) -> list[Example]:
    """The questions that come before others; of those that are asked the same, the first.

    The first answer of a question is used, or its response; of those with labels, only right ones
    (0) count. Raises ValueError if one has no answer or no message, or none is right.
    """
    right = [question for question in questions if question.get("label", 0) == 0]
    if questions and not right:
        raise ValueError(
            f"few_shot: expected an example that is right (label 0), found none of {len(questions)}"
        )
    found: dict[str, Example] = {}
    for question in right:
        answer = next(iter(question["answers"]), None) or question.get("response")
        if answer is None:
            raise ValueError(
                f"few_shot: question {question['question_id']!r}: expected an answer, found none"
            )
        try:
            message = message_of(question)
        except ValueError as error:
            raise ValueError(f"few_shot: {error}") from error
        found.setdefault(message, Example((message, answer), question))
    return list(found.values())


@lru_cache
def _as_compared(message: str) -> str:
    """A message without what tells no question from another: case, space, ends of sentences."""
    plain = unicodedata.normalize("NFKC", message).casefold()
    return " ".join(_ENDS.sub(" ", plain).split())


class EncodedQuestions(NamedTuple):
    """What a model is asked of some questions."""

    questions: list[EncodedQuestion]
    skipped: LeftOut  # questions that it cannot take


class Prompts:
    """Makes prompts for one model.

    `tokenizer` adds its special tokens; with a chat template those in the template instead. `model`
    has in its configuration how many tokens it takes. `template` is a format string with
    `{question}`, `{context}` and further fields of the questions. Every prompt leaves room for an
    answer of `max_new_tokens`, and begins with the questions of `few_shot` and their answers
    (`find_examples`); in a chat they are turns before the question. A prompt has no example that
    is its own question: none with its message, or with its id and an answer of its own; ids alone
    may be numbers of records.

    Raises ValueError: the template asks every question the same, or is no format string; an example
    of `few_shot` has no answer, or lacks a field, or none is right; SchemaError: the tokenizer has
    no chat template, or one that cannot take what is asked.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        model: PreTrainedModel,
        template: str,
        chat: bool,
        max_new_tokens: int,
        *,
        system: str | None = None,
        few_shot: Sequence[Question] = (),
    ) -> None:
        check_prompt_template(template)
        if system and not chat:
            raise SchemaError(
                "system: expected a chat template, where its message goes; add --chat-template, "
                "or write it into the prompt template"
            )
        self.tokenizer = tokenizer
        self.template = template
        self.max_new_tokens = max_new_tokens
        self.system = system if chat else None
        self.appends = not chat and appends_tokens(tokenizer)
        self.examples = find_examples(few_shot, lambda question: self._message(question).text)
        self.turns = [one.turn for one in self.examples]
        self.form = PlainText(tokenizer)
        if chat:
            self.form = Chat(tokenizer, chat_messages(system, self.turns, "{question}"))
        config = model.config.get_text_config()
        self.longest = getattr(config, "max_position_embeddings", None)
        self.n_ids = config.vocab_size

    def render(self, question: Question) -> PromptText:
        """The prompt of a question.

        Raises PromptError: it lacks a field of the template, or the chat template refuses it.
        """
        message = self._message(question)
        turns = [one.turn for one in self.examples if not one.gives_away(question, message.text)]
        try:
            text = self._text(turns, message.text, question.get("response"))
        except SchemaError as error:
            raise PromptError(f"{_name(question)}: {error}") from error
        place = message.places.get("context") or _context_in_question(question, message)
        start = _find_message(text, message.text)
        context = None
        if place is not None and start is not None:
            context = start + place[0], start + place[1]
        return PromptText(text, context, len(turns) < len(self.turns))

    def encode(self, question: Question) -> EncodedQuestion:
        """Token ids of a question's prompt, and of the response that it may come with.

        Raises PromptError: the tokenizer or the model cannot take them, or one of them has no
        tokens.
        """
        rendered = self.render(question)
        prompt = rendered.text
        response = question.get("response")
        has_offsets = rendered.context is not None
        try:
            tokens, n, n_chars = self.form.encode(prompt, response, offsets=has_offsets)
        except Exception as error:  # the tokenizers library raises nothing narrower
            what = "a prompt" if response is None else "a prompt and a response"
            raise PromptError(
                f"{_name(question)}: expected {what} that the tokenizer can take, found: {error}"
            ) from error
        self._check(question, tokens.ids, n)
        labels = np.full(n, NO_LABEL, np.int8)
        if response is not None:
            before = n_chars - len(response)
            spans = None  # without annotations
            if "spans" in question:
                spans = [(before + one["start"], before + one["end"]) for one in question["spans"]]
            labels = label_tokens(tokens.offsets, n, spans, n_chars)
        ids = np.array(tokens.ids, np.int32)
        place = rendered.context
        return EncodedQuestion(
            question,
            prompt=ids[:n],
            context=tokens_of(tokens.offsets, place) if place else NO_CONTEXT,
            is_example=rendered.is_example,
            answer=ids[n:],
            token_label=labels,
            trace_id=question.get("trace_id", ""),
            text=response or "",
            is_thought=response is None and opens_thought(prompt),
        )

    def describe(self, *, given: bool = False) -> dict[str, object]:
        """What decides the prompts; of a chat template the text it makes, which may have a date.

        `given`: of prompts that given responses stand behind.
        """
        if not isinstance(self.form, Chat):
            # examples are a part of the template, where stores are compared
            shots = self._text(self.turns, "", None).replace("{", "{{").replace("}", "}}")
            return {"prompt_template": shots + self.template}
        names = template_fields(self.template)
        message = render(self.template, {name: f"{{{name}}}" for name in names})
        described: dict[str, object] = {"prompt_template": self.template}
        if self.system is not None:
            described["system"] = self.system
        if self.turns:
            described["few_shot"] = [list(turn) for turn in self.turns]
        text = self._text(self.turns, message.text, "" if given else None)
        return described | {"chat_prompt": text}

    def _text(self, turns: Sequence[Turn], message: str, response: str | None) -> str:
        """The text of a prompt, to which a response may be given."""
        return self.form.prompt(chat_messages(self.system, turns, message), response)

    def _message(self, question: Question) -> Rendered:
        try:
            return render(self.template, template_values(question))
        except KeyError as error:
            where = f"question {question['question_id']!r}"
            if error.args == ("context",):  # a record's empty context is read as none
                raise PromptError(
                    f"{where}: expected a context for {{context}} of the prompt template, found "
                    "an empty one or none; give the record one, leave it out, or use a prompt "
                    "template without {context}"
                ) from error
            raise PromptError(
                f"{where}: expected the field {error} of the prompt template, found none; "
                "give it one, or a prompt template without it"
            ) from error

    def _check(self, question: Question, ids: list[int], n_prompt: int) -> None:
        """Raise PromptError unless the model can take a prompt, and the response if it is given."""
        where = _name(question)
        n_answer = len(ids) - n_prompt
        is_given = "response" in question
        if not n_prompt or (is_given and not n_answer):
            what = "response" if n_prompt else "prompt"
            raise PromptError(f"{where}: expected a {what} with tokens, found none")
        n_tokens = len(ids) if is_given else n_prompt + self.max_new_tokens
        if self.longest is not None and n_tokens > self.longest:
            found = f"{n_answer} of the response"
            advice = "; shorten its context" if "context" in question else ""
            if not is_given:
                found = f"up to {self.max_new_tokens} of the answer"
                advice = "; shorten the prompt or lower max_new_tokens"
            raise PromptError(
                f"{where}: the model takes {self.longest} tokens, found {n_prompt} of the prompt "
                f"and {found}{advice}"
            )
        if max(ids) >= self.n_ids:
            raise PromptError(
                f"{where}: expected token ids below {self.n_ids}, as the model has, "
                f"found {max(ids)}"
            )


def _name(question: Question) -> str:
    """What an error is about: a question, or the trace of a given response."""
    kind = "trace" if "response" in question else "question"
    name = question["trace_id"] if "response" in question else question["question_id"]
    return f"{kind} {name!r}"


def template_values(question: Question) -> Mapping[str, str]:
    fields = question.get("fields", {})
    values = {name: _as_text(value) for name, value in fields.items() if value is not None}
    values["question"] = question["question"]
    if "context" in question:
        values["context"] = question["context"]
    return values


def _as_text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _context_in_question(question: Question, message: Rendered) -> tuple[int, int] | None:
    """Where the context is a part of the question; None if it is not."""
    context = question.get("context")
    place = message.places.get("question")
    found = question["question"].find(context) if context else -1
    if context is None or place is None or found < 0:
        return None
    start = place[0] + found
    return start, start + len(context)


def _find_message(text: str, message: str) -> int | None:
    """Where a message begins in a prompt; chat templates may strip it. None if it is not there."""
    start = text.rfind(message)
    if start >= 0:
        return start
    start = text.rfind(message.strip())
    n_stripped = len(message) - len(message.lstrip())
    return start - n_stripped if start >= 0 else None


def encode_questions(questions: Sequence[Question], prompts: Prompts) -> EncodedQuestions:
    """Encode the questions that the model can take; raises SchemaError if it can take none."""
    encoded = EncodedQuestions([], LeftOut())
    for question in questions:
        try:
            encoded.questions.append(prompts.encode(question))
        except PromptError as error:
            encoded.skipped.add(str(error))
    if questions and not encoded.questions:
        raise SchemaError(
            "expected questions whose prompts the model can take, "
            f"found none of {len(questions)}: {encoded.skipped.messages[0]}"
        )
    return encoded
