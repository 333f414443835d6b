"""What `python -m store extract` does where an option is left out, as far as others decide it.

Defaults that changed are the earlier ones where a build goes on that an earlier version began: its
traces would otherwise be of two kinds, or the build could not go on.
"""

import argparse
from collections.abc import Mapping
from typing import Any, NamedTuple

__all__ = ["CHAT_TEMPLATE", "PLAIN_TEMPLATE", "PromptSettings", "settle_labels", "settle_prompt"]

PLAIN_TEMPLATE = "Question: {question}\nAnswer:"
CHAT_TEMPLATE = "{question}\nAnswer in a few words, without an explanation."
EARLIER_CHAT_TEMPLATE = "{question}"
NEW_LINE = "\n"
NO_STOP = ("", "none")  # of --stop: the end-of-sequence token alone


class PromptSettings(NamedTuple):
    """The template of the prompts, and the text that ends an answer, if any does."""

    template: str
    stop: str | None


def settle_prompt(args: argparse.Namespace, begun: Mapping[str, Any]) -> PromptSettings:
    """The template and the stop of an extraction.

    Parameters
    ----------
    args
        Of the command: `prompt_template`, `stop` and `chat_template`.
    begun
        The provenance of what a stopped extraction has committed; empty if there is nothing.
    """
    default = CHAT_TEMPLATE if args.chat_template else PLAIN_TEMPLATE
    if args.chat_template and begun.get("prompt_template") == EARLIER_CHAT_TEMPLATE:
        default = EARLIER_CHAT_TEMPLATE
    template = (args.prompt_template or default).replace(r"\n", "\n")
    if args.stop is not None:
        stop = None if args.stop in NO_STOP else args.stop.replace(r"\n", "\n")
        return PromptSettings(template, stop)
    decoding = begun.get("decoding")
    went_on = isinstance(decoding, dict) and decoding.get("stop", NEW_LINE) is None
    is_plain = template == PLAIN_TEMPLATE and not args.chat_template
    return PromptSettings(template, NEW_LINE if is_plain and not went_on else None)


def settle_labels(args: argparse.Namespace, begun: Mapping[str, Any], exact_text: str) -> list[str]:
    """The rules that label the answers: `contains` for chats, else `exact`.

    Parameters
    ----------
    args
        Of the command: `labels` and `chat_template`.
    begun
        The provenance of what a stopped extraction has committed; empty if there is nothing.
    exact_text
        How the provenance describes the rule `exact`.
    """
    if args.labels is not None:
        return list(args.labels)
    if not args.chat_template or begun.get("label_rule") == exact_text:
        return ["exact"]
    return ["contains"]
