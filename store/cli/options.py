"""Options that several commands have."""

from typing import Any

from store.cli.arguments import expand, finite, names, part, path
from store.cli.command import argument, flag, option

STORE = argument("path of the store", "STORE", path)
OUT = argument("path of the store to make", "OUT", path)
JSON = flag("print one JSON object")
IGNORE_SPACE = flag("continue even if the disk seems too small for the store (default: stop)")

# how a file of scores is read
SCORE_COLUMN = option(
    "column of FILE to read as scores (default: by known names)", "NAME", either="column"
)
LABEL_COLUMN = option(
    "column of FILE to read as labels, 1 = hallucination (default: by known names)",
    "NAME",
    either="column",
)
HIGHER_IS_BETTER = flag("high scores are right answers (default)", either="direction")
LOWER_IS_BETTER = flag("low scores are right answers", either="direction")
SCORE_THRESHOLD = option("label 1 (hallucination) below this score", "S", finite, 0.5)

JUDGE_MODEL = option(
    "model that judges, with --labels judge: a directory, or a name on the Hugging Face Hub; a "
    "chat model is asked in its chat template",
    "NAME_OR_PATH",
    expand,
)
JUDGE_TEMPLATE = option(
    "what the judge is asked, with {question}, {references} and {answer} in it, and the two words "
    "it chooses from: yes or no, correct or incorrect, right or wrong, true or false; the first "
    "has to mean that the answer is right; without {references} answers that have none are judged "
    "too (default: whether the answer means the same as one of the right answers, yes or no)",
    "FILE_OR_TEXT",
)


def columns(default: str = "all") -> Any:
    text = f"columns to keep, separated by commas, e.g. hs_last,label (default: {default})"
    return option(text, "NAMES", names)


def where(text: str, **settings: Any) -> Any:
    example = "e.g. \"label == 1 and dataset in ('squad', 'coqa') and len(answer) > 20\""
    return option(f"{text}, {example}; see docs/filters.md", "FILTER", **settings)


FIELDS = option(
    "what else the records know (task, data set, model, split, ...), as columns: all, none, or "
    "names, separated by commas; -NAME leaves one out. Texts of fields that are not named are cut "
    "at 1,000 characters (default: all)",
    "NAMES",
    names,
)


def parts_of(noun: str) -> Any:
    text = f"take every N-th {noun} only, from the K-th on, e.g. 1/4 (default: all)"
    return option(text, "K/N", part, (1, 1))


def dtype(of: str) -> Any:
    text = f"dtype of {of}; auto: as in the checkpoint"
    return option(text, default="auto", choices=("bf16", "fp16", "fp32", "auto"))


def device(text: str, **settings: Any) -> Any:
    return option(f"{text}, e.g. cuda:1 (default: cuda if there is one, else cpu)", **settings)
