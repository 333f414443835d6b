"""What `python -m store extract` does where an option is left out. Pure."""

import argparse

from store.sources.prompt_templates import PLAIN_TEMPLATES

__all__ = ["settle_labels", "settle_stop"]

NEW_LINE = "\n"
NO_STOP = ("", "none")  # of --stop: the end-of-sequence token alone


def settle_stop(args: argparse.Namespace, template: str) -> str | None:
    """The text that ends an answer: a new line with the plain templates, by default; else None."""
    if args.stop is not None:
        return None if args.stop in NO_STOP else str(args.stop).replace(r"\n", "\n")
    is_plain = template in PLAIN_TEMPLATES and not args.chat_template
    return NEW_LINE if is_plain else None


def settle_labels(args: argparse.Namespace, *, is_given: bool) -> list[str]:
    """The rules that label the answers: `contains` for chats and given answers, else `exact`."""
    if args.labels is not None:
        return list(args.labels)
    return ["contains"] if args.chat_template or is_given else ["exact"]
