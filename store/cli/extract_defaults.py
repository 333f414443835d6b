"""What `python -m store extract` does where an option is left out.

Defaults that changed are the earlier ones where a build goes on that an earlier version began: its
traces would otherwise be of two kinds, or the build could not go on.
"""

import argparse
from collections.abc import Mapping
from typing import Any

from store.sources.prompt_templates import PLAIN_TEMPLATES, SHORT_CHAT_TEMPLATES

__all__ = ["asks_briefly", "settle_labels", "settle_stop"]

NEW_LINE = "\n"
NO_STOP = ("", "none")  # of --stop: the end-of-sequence token alone


def asks_briefly(begun: Mapping[str, Any]) -> bool:
    """Whether a chat model is asked for a short answer by default.

    Parameters
    ----------
    begun
        The provenance of what a stopped extraction has committed; empty if there is nothing.
    """
    earlier = SHORT_CHAT_TEMPLATES.values()
    return begun.get("prompt_template") not in earlier


def settle_stop(args: argparse.Namespace, template: str, begun: Mapping[str, Any]) -> str | None:
    """The text that ends an answer: a new line with the plain templates, by default; else None."""
    if args.stop is not None:
        return None if args.stop in NO_STOP else str(args.stop).replace(r"\n", "\n")
    decoding = begun.get("decoding")
    began_without = isinstance(decoding, dict) and decoding.get("stop", NEW_LINE) is None
    is_plain = template in PLAIN_TEMPLATES and not args.chat_template
    return NEW_LINE if is_plain and not began_without else None


def settle_labels(
    args: argparse.Namespace, begun: Mapping[str, Any], exact_text: str, *, is_given: bool
) -> list[str]:
    """The rules that label the answers: `contains` for chats and given answers, else `exact`.

    Parameters
    ----------
    args
        Of the command: `labels` and `chat_template`.
    begun
        The provenance of what a stopped extraction has committed; empty if there is nothing.
    exact_text
        How the provenance describes the rule `exact`.
    is_given
        Whether the answers exist already.
    """
    if args.labels is not None:
        return list(args.labels)
    goes_on = str(begun.get("label_rule", "")).endswith(exact_text)
    return ["contains"] if (args.chat_template or is_given) and not goes_on else ["exact"]
