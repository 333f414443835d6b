"""From a question to the token ids of its prompt: a template, the tokenizer's chat template.

A question whose prompt the model cannot take is left out and named, as is one whose given response
does not fit behind it; the others are asked.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from store.errors import SchemaError
from store.reports import LeftOut
from store.sources.huggingface.teacher_forcing import (
    appends_tokens,
    go_on,
    tokenize,
)
from store.sources.huggingface.token_labels import label_tokens, tokens_of
from store.sources.huggingface.turns import Chat, Examples, PlainText, Turn
from store.sources.prompt_templates import (
    Rendered,
    check_prompt_template,
    render,
    template_fields,
)
from store.sources.questions import Question

__all__ = [
    "ForcedAnswer",
    "Prompt",
    "PromptError",
    "Prompts",
    "check_prompt_template",
    "cut_contexts",
    "encode_fitting",
    "take_fitting",
    "template_values",
]

NO_CONTEXT = (-1, 0)


class PromptError(ValueError):
    """A question whose prompt, or whose response, the model cannot take."""


class Prompt(NamedTuple):
    """The tokens of a prompt.

    Attributes
    ----------
    context
        The first token of the context, and how many there are; (-1, 0) without one.
    """

    ids: list[int]
    context: tuple[int, int]


class ForcedAnswer(NamedTuple):
    """A prompt, and the tokens of the response that is given.

    Attributes
    ----------
    token_label
        int8 (T,), of prompt and response: `token_labels.label_tokens`.
    """

    prompt: Prompt
    ids: list[int]
    token_label: NDArray[np.int8]


class Prompts:
    """Makes prompts for one model.

    Parameters
    ----------
    tokenizer : PreTrainedTokenizerBase
        Adds its special tokens; with a chat template those in the template instead.
    model : PreTrainedModel
        Its configuration has the number of tokens that it takes.
    template : str
        Format string with `{question}`, `{context}` and further fields of the questions.
    max_new_tokens : int
        Room that every prompt leaves for the answer.
    few_shot : sequence of Question
        Questions with answers (`turns.Examples`) that every prompt begins with; in a chat they are
        turns before the question. A prompt has no example that is its own question: none with its
        message, or with its id and an answer of its own; ids alone may be numbers of records.
    max_context_tokens : int, optional
        Where `cut_contexts` cuts the contexts of questions, before they are asked.

    Raises
    ------
    ValueError
        The template asks every question the same, or is no format string; an example of `few_shot`
        has no answer, or lacks a field, or none is right.
    SchemaError
        The tokenizer has no chat template, or one that cannot take what is asked.
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
        max_context_tokens: int | None = None,
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
        self.system = system
        self.max_context_tokens = max_context_tokens
        self.appends = not chat and appends_tokens(tokenizer)
        self.examples = Examples(few_shot, lambda question: self._message(question).text)
        self.form = Chat(tokenizer, system, self.turns) if chat else PlainText(tokenizer)
        config = model.config.get_text_config()
        self.longest = getattr(config, "max_position_embeddings", None)
        self.n_ids = config.vocab_size

    @property
    def turns(self) -> list[Turn]:
        """The message and the answer of each example."""
        return self.examples.turns

    def render(self, question: Question) -> Rendered:
        """The prompt of a question, and where its context is (`places["context"]`).

        Raises
        ------
        PromptError
            The question lacks a field of the template.
        """
        message = self._message(question)
        text = self.form.text(self.examples.before(question, message.text), message.text)
        place = message.places.get("context") or _context_in_question(question, message)
        start = _find_message(text, message.text)
        if place is None or start is None:
            return Rendered(text, {})
        return Rendered(text, {"context": (start + place[0], start + place[1])})

    def text(self, question: Question) -> str:
        """The prompt of a question."""
        return self.render(question).text

    def encode(self, question: Question) -> Prompt:
        """Token ids of a question's prompt.

        Raises
        ------
        PromptError
            The tokenizer cannot take the prompt, or its ids leave no room for an answer.
        """
        where = f"question {question['question_id']!r}"
        rendered = self.render(question)
        place = rendered.places.get("context")
        try:
            ids, offsets = tokenize(
                self.tokenizer,
                rendered.text,
                special=self.form.adds_special,
                offsets=place is not None,
            )
        except Exception as error:  # the tokenizers library raises nothing narrower
            raise PromptError(
                f"{where}: expected a prompt that the tokenizer can take, found: {error}"
            ) from error
        if not ids:
            raise PromptError(f"{where}: expected a prompt with tokens, found none")
        if self.longest is not None and len(ids) + self.max_new_tokens > self.longest:
            raise PromptError(
                f"{where}: the model takes {self.longest} tokens, found {len(ids)} of the prompt "
                f"and up to {self.max_new_tokens} of the answer; shorten the prompt or lower "
                "max_new_tokens"
            )
        self._check_ids(where, ids)
        return Prompt(ids, tokens_of(offsets, place) if place else NO_CONTEXT)

    def force(self, question: Question) -> ForcedAnswer:
        """Token ids of a question's prompt and of the response that it comes with.

        Raises
        ------
        PromptError
            The tokenizer cannot take them, the response has no tokens, or the model takes fewer.
        """
        where = f"trace {question['trace_id']!r}"
        rendered = self.render(question)
        response = question["response"]
        prompt = rendered.text
        told = self.form.separator(prompt, response) + response
        try:
            tokens, first = go_on(self.tokenizer, prompt, told, special=self.form.adds_special)
        except Exception as error:  # the tokenizers library raises nothing narrower
            raise PromptError(
                f"{where}: expected a prompt and a response that the tokenizer can take, "
                f"found: {error}"
            ) from error
        ids, offsets = tokens
        end = len(ids)
        if not first or first == end:
            what = "response" if first else "prompt"
            raise PromptError(f"{where}: expected a {what} with tokens, found none")
        if self.longest is not None and end > self.longest:
            advice = "; cut its context (--max-context-tokens)" if "context" in question else ""
            raise PromptError(
                f"{where}: the model takes {self.longest} tokens, found {first} of the prompt and "
                f"{end - first} of the response{advice}"
            )
        self._check_ids(where, ids)
        place = rendered.places.get("context")
        context = tokens_of(offsets[:first], place) if place else NO_CONTEXT
        n_chars = len(prompt) + len(told)
        spans = _shifted_spans(question, n_chars - len(response))
        labels = label_tokens(offsets, first, spans, n_chars)
        return ForcedAnswer(Prompt(ids[:first], context), ids[first:], labels)

    def cut_context(self, question: Question, n_tokens: int) -> Question:
        """The question with a context of at most so many tokens; itself if it has no more.

        Raises
        ------
        PromptError
            The context is in no place of the prompt where it could be cut.
        """
        context = question.get("context")
        if not context:
            return question
        tokens = tokenize(self.tokenizer, context, special=False)
        if len(tokens.ids) <= n_tokens:
            return question
        # a character of several tokens stays only with all of them
        cut = context[: min(tokens.offsets[n_tokens - 1][1], tokens.offsets[n_tokens][0])]
        shorter = question.copy()
        shorter["context"] = cut
        if "context" not in template_fields(self.template):  # it is a part of the question
            if context not in question["question"]:
                raise PromptError(
                    f"question {question['question_id']!r}: expected the context word for word in "
                    "the question, or {context} in the prompt template, found neither"
                )
            shorter["question"] = question["question"].replace(context, cut, 1)
        return shorter

    def describe(self) -> dict[str, Any]:
        """What decides the prompts; of a chat template the text it makes, which may have a date."""
        limit = self.max_context_tokens
        cut = {} if limit is None else {"max_context_tokens": limit}
        if not isinstance(self.form, Chat):
            # examples are a part of the template, where stores are compared
            shots = self.form.text(self.turns, "")
            return {"prompt_template": _escape(shots) + self.template, **cut}
        names = template_fields(self.template)
        message = render(self.template, {name: f"{{{name}}}" for name in names})
        described: dict[str, Any] = {"prompt_template": self.template, **cut}
        if self.system:
            described["system"] = self.system
        if self.turns:
            described["few_shot"] = [list(turn) for turn in self.turns]
        return described | {"chat_prompt": self.form.text(self.turns, message.text)}

    def is_example(self, question: Question) -> bool:
        """Whether an example is the question itself, so that its prompt is without it."""
        message = self._message(question).text
        return len(self.examples.before(question, message)) < len(self.turns)

    def _message(self, question: Question) -> Rendered:
        try:
            return render(self.template, template_values(question))
        except KeyError as error:
            raise PromptError(
                f"question {question['question_id']!r}: expected the field {error} of the prompt "
                "template, found none; give it one, or a prompt template without it"
            ) from error

    def _check_ids(self, where: str, ids: list[int]) -> None:
        if max(ids) >= self.n_ids:
            raise PromptError(
                f"{where}: expected token ids below {self.n_ids}, as the model has, "
                f"found {max(ids)}"
            )


def _escape(text: str) -> str:
    """A text as a format string has it."""
    return text.replace("{", "{{").replace("}", "}}")


def template_values(question: Question) -> Mapping[str, str]:
    """The texts that fill a template."""
    values = {**question.get("fields", {}), "question": question["question"]}
    if "context" in question:
        values["context"] = question["context"]
    return values


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


def _shifted_spans(question: Question, n_before: int) -> list[tuple[int, int]] | None:
    """The spans of a response, in the text that it stands in; None without annotations."""
    if "spans" not in question:
        return None
    spans = question["spans"]
    return [(n_before + span["start"], n_before + span["end"]) for span in spans]


def cut_contexts(
    questions: Sequence[Question], prompts: Prompts
) -> tuple[list[Question], int, LeftOut]:
    """Cut contexts of more than `prompts.max_context_tokens`, if that is set.

    Returns
    -------
    list of Question
        All of them.
    int
        How many contexts were cut.
    LeftOut
        Those that could not be cut, and stay whole.
    """
    n_tokens = prompts.max_context_tokens
    whole = LeftOut()
    if n_tokens is None:
        return list(questions), 0, whole
    n_cut = 0
    asked: list[Question] = []
    for question in questions:
        try:
            cut = prompts.cut_context(question, n_tokens)
        except PromptError as error:
            whole.add(str(error))
            cut = question
        n_cut += cut is not question
        asked.append(cut)
    return asked, n_cut, whole


def take_fitting(questions: Sequence[Question], prompts: Prompts) -> tuple[list[Question], LeftOut]:
    """The questions whose prompts the model can take, and a report on the others.

    Raises SchemaError if it can take none.
    """
    skipped = LeftOut()
    fitting = [question for question, _ in encode_fitting(questions, prompts, skipped)]
    if questions and not fitting:
        raise SchemaError(
            "expected questions whose prompts the model can take, "
            f"found none of {len(questions)}: {skipped.messages[0]}"
        )
    return fitting, skipped


def encode_fitting(
    questions: Sequence[Question], prompts: Prompts, skipped: LeftOut
) -> Iterator[tuple[Question, Prompt | ForcedAnswer]]:
    """The questions whose prompts the model can take, with their tokens; others are `skipped`."""
    for question in questions:
        try:
            encoded: Prompt | ForcedAnswer
            if "response" in question:
                encoded = prompts.force(question)
            else:
                encoded = prompts.encode(question)
        except PromptError as error:
            skipped.add(str(error))
        else:
            yield question, encoded
