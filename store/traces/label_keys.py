"""Keys of a store's provenance, and names of its columns, that say how labels came about. Pure."""

from collections.abc import Mapping
from typing import TypeVar

from store.format.schema import Schema

__all__ = [
    "LABELS_BEFORE",
    "LABEL_KEYS",
    "LABEL_RULES_KEY",
    "NORMALIZATION_KEY",
    "RULE_COLUMN",
    "VERDICTS",
    "without_labelling",
    "without_rule_columns",
]

T = TypeVar("T")

# how often a judge of the answers said what
VERDICTS = "judge_verdicts"
# how texts of answers and references are compared
NORMALIZATION_KEY = "label_normalization"
# of the columns `label` and `score`
LABEL_KEYS = (
    "label_rule",
    "label_rule_before",
    "score_threshold",
    NORMALIZATION_KEY,
    VERDICTS,
)
# the rules of the columns `label_RULE`, and the judge among them
LABEL_RULES_KEY = "label_rules"
RULE_COLUMN = "label_"  # begins the names of those columns
# the labels that were replaced last, once a store was labelled again
LABELS_BEFORE = "labels_before"


def without_labelling(provenance: Mapping[str, T]) -> dict[str, T]:
    """What `store label` never changes of a provenance."""
    labelling = {*LABEL_KEYS, LABEL_RULES_KEY, LABELS_BEFORE}
    return {key: value for key, value in provenance.items() if key not in labelling}


def without_rule_columns(schema: Schema, made: Schema) -> Schema:
    """A schema without the columns `label_RULE` that `made`, of the store's source, lacks."""
    return Schema(
        {
            name: column
            for name, column in schema.columns.items()
            if name in made.columns or not name.startswith(RULE_COLUMN)
        }
    )
