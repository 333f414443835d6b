"""Options that several commands have."""

from typing import Any

from store.cli.arguments import expand, finite, names, part, path
from store.cli.command import argument, flag, option

STORE = argument("STORE", path, "path of the store")
OUT = argument("OUT", path, "path of the store to make")
JSON = flag("print one JSON object")
IGNORE_SPACE = flag("continue even if the disk seems too small for the store (default: stop)")

# how a file of scores is read
SCORE_COLUMN = option(
    "NAME",
    None,
    "column of FILE to read as scores (default: by known names)",
    either="column",
)
LABEL_COLUMN = option(
    "NAME",
    None,
    "column of FILE to read as labels, 1 = hallucination (default: by known names)",
    either="column",
)
HIGHER_IS_BETTER = flag(
    "high scores are right answers (default)",
    either="direction",
    dest="lower_is_better",
    action="store_false",
    default=None,
)
LOWER_IS_BETTER = flag("low scores are right answers", either="direction", default=None)
SCORE_THRESHOLD = option(
    "S",
    finite,
    "label 1 (hallucination) below this score (default: %(default)s)",
    0.5,
)

JUDGE_MODEL = option(
    "NAME_OR_PATH",
    expand,
    "model that judges, with --labels judge: a directory, or a name on the Hugging Face Hub; a "
    "chat model is asked in its chat template",
)
JUDGE_TEMPLATE = option(
    "FILE_OR_TEXT",
    None,
    "what the judge is asked, with {question}, {references} and {answer} in it, and the two words "
    "it chooses from: yes or no, correct or incorrect, right or wrong, true or false; the first "
    "has to mean that the answer is right; without {references} answers that have none are judged "
    "too (default: whether the answer means the same as one of the right answers, yes or no)",
)


def columns(default: str = "all") -> Any:
    """The option --columns of a store to make."""
    text = f"columns to keep, separated by commas, e.g. hs_last,label (default: {default})"
    return option("NAMES", names, text)


def parts_of(noun: str) -> Any:
    """The option --part, which takes every N-th file or question."""
    text = f"take every N-th {noun} only, from the K-th on, e.g. 1/4 (default: all)"
    return option("K/N", part, text, (1, 1))
