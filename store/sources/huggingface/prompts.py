"""From a question to the token ids of its prompt: a template, the tokenizer's chat template.

A question whose prompt the model cannot take is left out and named; the others are asked.
"""

from collections.abc import Sequence
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from store.errors import SchemaError
from store.reports import LeftOut
from store.sources.questions import Question

__all__ = ["PromptError", "Prompts", "check_prompt_template", "take_fitting"]


class PromptError(ValueError):
    """A question whose prompt the model cannot take."""


class Prompts:
    """Makes prompts for one model.

    Parameters
    ----------
    tokenizer : PreTrainedTokenizerBase
        Adds its special tokens; with a chat template those in the template instead.
    model : PreTrainedModel
        Its configuration has the number of tokens that it takes.
    template : str
        Format string with `{question}`.
    chat : bool
        Put the result into the tokenizer's chat template, as the user's message.
    max_new_tokens : int
        Room that every prompt leaves for the answer.

    Raises
    ------
    ValueError
        The template asks every question the same, or is no format string.
    SchemaError
        The tokenizer has no chat template.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        model: PreTrainedModel,
        template: str,
        chat: bool,
        max_new_tokens: int,
    ) -> None:
        check_prompt_template(template)
        if chat and not tokenizer.chat_template:
            raise SchemaError(
                "chat template: expected one with the tokenizer, found none; use a prompt template"
            )
        self.tokenizer = tokenizer
        self.template = template
        self.chat = chat
        self.max_new_tokens = max_new_tokens
        config = model.config.get_text_config()
        self.longest = getattr(config, "max_position_embeddings", None)
        self.n_ids = config.vocab_size
        try:
            self.text("{question}")
        except Exception as error:  # a chat template may raise anything
            raise SchemaError(
                f"chat template: expected one that takes a question, found: {error}"
            ) from error

    def text(self, question: str) -> str:
        """The prompt of a question."""
        text = self.template.format(question=question)
        if not self.chat:
            return text
        messages = [{"role": "user", "content": text}]
        prompt = self.tokenizer.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=True
        )
        return str(prompt)

    def encode(self, question: Question) -> list[int]:
        """Token ids of a question's prompt.

        Raises
        ------
        PromptError
            The tokenizer cannot take the prompt, or its ids leave no room for an answer.
        """
        where = f"question {question['question_id']!r}"
        try:
            text = self.text(question["question"])
            ids = self.tokenizer(text, add_special_tokens=not self.chat)["input_ids"]
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
        if max(ids) >= self.n_ids:
            raise PromptError(
                f"{where}: expected token ids below {self.n_ids}, as the model has, "
                f"found {max(ids)}"
            )
        return ids

    def describe(self) -> dict[str, Any]:
        """What decides the prompts; of a chat template the text it makes, which may have a date."""
        described = {"prompt_template": self.template}
        if self.chat:
            described["chat_prompt"] = self.text("{question}")
        return described


def check_prompt_template(template: str) -> None:
    """Raise ValueError for a template without the question, or that is no format string."""
    try:
        is_constant = template.format(question="a") == template.format(question="b")
    except (KeyError, IndexError, ValueError, AttributeError) as error:
        raise ValueError(
            "prompt_template: expected {question} and no other braces (write {{ for one), "
            f"found {template!r}"
        ) from error
    if is_constant:
        raise ValueError(
            f"prompt_template: expected a format string with {{question}}, found {template!r}"
        )


def take_fitting(questions: Sequence[Question], prompts: Prompts) -> tuple[list[Question], LeftOut]:
    """The questions whose prompts the model can take, and a report on the others.

    Raises SchemaError if it can take none.
    """
    fitting: list[Question] = []
    skipped = LeftOut()
    for question in questions:
        try:
            prompts.encode(question)
        except PromptError as error:
            skipped.add(str(error))
        else:
            fitting.append(question)
    if questions and not fitting:
        raise SchemaError(
            "expected questions whose prompts the model can take, "
            f"found none of {len(questions)}: {skipped.messages[0]}"
        )
    return fitting, skipped
