"""Options that several commands have, and what is done with them.

transformers and torch are imported when a judge is loaded.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from store.cli.arguments import expand, finite, names, part, path
from store.cli.command import Command, argument, flag, option
from store.errors import SchemaError
from store.extras import needs_extra
from store.labels import answer_scores
from store.labels.rule import ScoreTable
from store.labels.score_file import read_scores
from store.launch.completed_parts import Record, publish
from store.launch.job import arguments_digest, questions_digest
from store.read.store import TraceStore
from store.reports import say

if TYPE_CHECKING:
    from store.labels.grading import Case, Judge

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
SCORE_THRESHOLD = option(
    "label 1 (hallucination) below this score", "S", finite, answer_scores.SCORE_THRESHOLD
)

JUDGE_MODEL = option(
    "model that judges, with --labels judge: a directory, or a name on the Hugging Face Hub; a "
    "chat model is asked in its chat template",
    "NAME_OR_PATH",
    expand,
)
JUDGE_TEMPLATE = option(
    "what the judge is asked, with {question}, {references} and {answer} in it; it asks for yes "
    "if the answer is right, else no; without {references} answers that have none are judged too "
    "(default: whether the answer means the same as one of the right answers, yes or no)",
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


COLUMN_OPTIONS = ("score_column", "label_column", "higher_is_better", "lower_is_better")


def read_given_scores(args: Command) -> ScoreTable | None:
    """Read the file of `--scores` as `read_scores` does; None if there is none.

    Raises SchemaError for options on how to read a file that is not given.
    """
    if args.scores is not None:
        return read_scores(
            args.scores,
            score_column=args.score_column,
            label_column=args.label_column,
            lower_is_better=args.lower_is_better or (False if args.higher_is_better else None),
            threshold=score_threshold(args),
        )
    args.refuse("says how a file of scores is read: give it with --scores", *COLUMN_OPTIONS)
    return None


def score_threshold(args: Command) -> float:
    """The threshold of scores; of `label`, where it is seen whether one was given."""
    given: float | None = args.score_threshold
    return answer_scores.SCORE_THRESHOLD if given is None else given


def understood_lines(table: ScoreTable, examples: Iterable[str]) -> list[str]:
    """How a file of scores was read, with some of its values; one line each."""
    return [f"{table.source}: {table.understood}", *(f"  {example}" for example in examples)]


def check_judge_options(args: Command, rules: Sequence[str]) -> None:
    """Raise SchemaError for a rule judge without a model, or a model without the rule."""
    if "judge" in rules and args.judge_model is None:
        raise SchemaError("--labels judge asks a model: name it with --judge-model")
    if "judge" not in rules:
        added = ",".join([*(rule for rule in rules if rule != "none"), "judge"])
        why = f"has no effect without the rule judge: add it to --labels, e.g. --labels {added}"
        args.refuse(why, "judge_model", "judge_template")


def load_judge(
    args: Command,
    rules: Sequence[str],
    loaded: Mapping[str, tuple[Any, Any]] | None = None,
) -> "Judge | None":
    """Load the judge of --judge-model; None without the rule judge.

    `loaded` has, by name, models and tokenizers that are in memory: a model may judge its own
    answers. Raises StoreError if the model or its template cannot be used.
    """
    if "judge" not in rules:
        return None
    with needs_extra("extract"):
        from store.sources.huggingface import load
        from store.sources.huggingface.judge import HuggingFaceJudge, read_template
    template = read_template(args.judge_template)
    name = args.judge_model
    if loaded and name in loaded:
        model, tokenizer = loaded[name]
    else:
        device = load.choose_device(args.device)
        model, tokenizer = load.load_model(name, args.dtype, device, maps=False)
    return HuggingFaceJudge(model, tokenizer, template, batch_size=args.batch_size, name=name)


def try_judge(judge: "Judge", cases: Iterable["Case"]) -> None:
    """Try a judge as `check_judge` does, and say so where there is nothing to try it on."""
    from store.labels.grading import check_judge

    if not check_judge(judge, cases):
        say(
            "warning: no references, on which --judge-template could be tried: if it asks the "
            "reverse, all labels are inverted; read some of them"
        )


def publish_part(args: Command, store: TraceStore, n_left_out: int) -> None:
    """Publish the completion record of a part that was made; nothing for a whole store.

    `n_left_out` are the files and records that the import or extraction could not use.
    """
    part, n_parts = args.part
    if n_parts == 1:
        return
    if args.command == "extract":
        inputs = questions_digest(args.questions)
    else:  # their names, sizes and times, those of the other parts included
        inputs = str(store.provenance["files_sha256"])
    record = Record(
        command=args.command,
        arguments_sha256=arguments_digest(args),
        inputs_sha256=inputs,
        part=part,
        n_parts=n_parts,
        n_rows=len(store),
        n_left_out=n_left_out,
        uuid=store.uuid,
    )
    if not publish(args.store, record):
        say(f"  part {part}/{n_parts} was published by another attempt, whose record stands")
