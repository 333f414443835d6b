"""A judge, in `label` and `extract`: a model that is asked whether answers are right.

transformers and torch are imported when it is loaded.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from store.cli.command import Command
from store.errors import SchemaError
from store.extras import needs_extra

if TYPE_CHECKING:
    from store.labels.grading import Judge

__all__ = ["check_judge_options", "load_judge"]


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
