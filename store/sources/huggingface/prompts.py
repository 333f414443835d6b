"""From a question to the token ids that the model is asked: a template, the tokenizer's chat
template, and limits."""

from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from store.errors import SchemaError
from store.sources.questions import Question

__all__ = ["PromptError", "Prompts", "check_prompt_template"]


class PromptError(ValueError):
    """A question whose prompt the model cannot take."""


class Prompts:
    """Makes prompts for one model.

    Parameters
    ----------
    tokenizer : PreTrainedTokenizerBase
        Adds the special tokens that it adds by default; with a chat template those that the
        template spells.
    model : PreTrainedModel
        Its configuration says how many tokens it takes.
    template : str
        Format string with `{question}`.
    chat : bool
        Put the result into the tokenizer's chat template, as what the user says.
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
        self.tokenizer, self.template, self.chat, self.max_new_tokens = (
            tokenizer,
            template,
            chat,
            max_new_tokens,
        )
        config = model.config.get_text_config()
        self.longest, self.n_ids = (
            getattr(config, "max_position_embeddings", None),
            config.vocab_size,
        )
        if chat:
            self._try_template()

    def _try_template(self) -> None:
        try:
            self.text("{question}")
        except Exception as error:  # a template may raise whatever it likes
            raise SchemaError(
                f"chat template: expected one that takes a question, found: {error}"
            ) from error

    def text(self, question: str) -> str:
        """The prompt of a question."""
        text = self.template.format(question=question)
        if not self.chat:
            return text
        messages = [{"role": "user", "content": text}]
        return self.tokenizer.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=True
        )

    def encode(self, question: Question) -> list[int]:
        """Token ids of a question's prompt; raises PromptError if they leave no room for an
        answer."""
        where = f"question {question['question_id']!r}"
        try:
            ids = self.tokenizer(self.text(question["question"]), add_special_tokens=not self.chat)[
                "input_ids"
            ]
        except Exception as error:  # the tokenizers library raises nothing narrower
            raise PromptError(
                f"{where}: expected a prompt that the tokenizer can take, found: {error}"
            ) from error
        if self.longest is not None and len(ids) + self.max_new_tokens > self.longest:
            raise PromptError(
                f"{where}: the model takes {self.longest} tokens, found {len(ids)} of the "
                f"prompt and up to {self.max_new_tokens} of the answer; shorten the prompt or lower max_new_tokens"
            )
        if ids and max(ids) >= self.n_ids:
            raise PromptError(
                f"{where}: expected token ids below {self.n_ids}, as the model has, found {max(ids)}"
            )
        if not ids:
            raise PromptError(f"{where}: expected a prompt with tokens, found none")
        return ids

    def describe(self) -> dict[str, Any]:
        """What decides the prompts; of a chat template the text that it makes, which may name the
        day."""
        described = {"prompt_template": self.template}
        return described | {"chat_prompt": self.text("{question}")} if self.chat else described


def check_prompt_template(template: str) -> None:
    """Refuse a template that would ask every time the same, or that is no format string."""
    try:
        different = template.format(question="a") != template.format(question="b")
    except (KeyError, IndexError, ValueError, AttributeError) as error:
        raise ValueError(
            f"prompt_template: expected {{question}} and no other braces (write {{{{ for one), found {template!r}"
        ) from error
    if not different:
        raise ValueError(
            f"prompt_template: expected a format string with {{question}}, found {template!r}"
        )
