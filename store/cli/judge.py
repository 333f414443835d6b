"""A judge, in `label` and `extract`: a model that is asked whether answers are right.

transformers and torch are imported when it is loaded.
"""

import argparse
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from store.errors import SchemaError
from store.extras import needs_extra

if TYPE_CHECKING:
    from store.labels.grading import Judge

__all__ = ["check_judge_options", "load_judge"]


def check_judge_options(args: argparse.Namespace, rules: Sequence[str]) -> None:
    """Raise SchemaError for a rule judge without a model, or a model without the rule."""
    if "judge" in rules and args.judge_model is None:
        raise SchemaError("--labels judge asks a model: name it with --judge-model")
    given = [
        option
        for option, value in (
            ("--judge-model", args.judge_model),
            ("--judge-template", args.judge_template),
        )
        if value is not None
    ]
    if given and "judge" not in rules:
        raise SchemaError(
            f"{given[0]} has no effect without the rule judge: add it to --labels, e.g. --labels "
            f"{','.join([*(rule for rule in rules if rule != 'none'), 'judge'])}"
        )


def load_judge(
    args: argparse.Namespace,
    rules: Sequence[str],
    loaded: Mapping[str, tuple[Any, Any]] | None = None,
) -> "Judge | None":
    """Load the judge of --judge-model; None without the rule judge.

    Parameters
    ----------
    args
        Of the command: `judge_model`, `judge_template`, `dtype`, `device`, `batch_size`.
    loaded
        Name -> model and tokenizer that are in memory: a model may judge its own answers.

    Raises
    ------
    NotFoundError, SchemaError
        The model or its template cannot be used, or transformers is missing.
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
