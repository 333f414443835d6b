"""Keys of a store's provenance, and names of its columns, that say how labels came about. Pure."""

from collections.abc import Mapping
from typing import TypeVar

from store.format.schema import Schema

__all__ = [
    "LABELS_BEFORE",
    "LABEL_KEYS",
    "LABEL_NAMES_KEY",
    "LABEL_RULES_KEY",
    "NORMALIZATION_KEY",
    "RULE_BEFORE_KEY",
    "RULE_COLUMN",
    "RULE_KEY",
    "THRESHOLD_KEY",
    "VERDICTS",
    "without_labelling",
    "without_rule_columns",
]

T = TypeVar("T")

VERDICTS = "judge_verdicts"  # how often a judge of the answers said what
NORMALIZATION_KEY = "label_normalization"  # how texts of answers and references are compared
RULE_KEY = "label_rule"
RULE_BEFORE_KEY = "label_rule_before"  # of rows that kept their labels
THRESHOLD_KEY = "score_threshold"
# of the columns `label` and `score`
LABEL_KEYS = (RULE_KEY, RULE_BEFORE_KEY, THRESHOLD_KEY, NORMALIZATION_KEY, VERDICTS)
LABEL_RULES_KEY = "label_rules"  # the rules of the columns `label_RULE`, and the judge among them
LABEL_NAMES_KEY = "label_names"  # what 0 and 1 are called: {"0": "right", "1": "hallucination"}
RULE_COLUMN = "label_"  # begins the names of those columns
LABELS_BEFORE = "labels_before"  # what was replaced last, once a store was labelled again


def without_labelling(provenance: Mapping[str, T]) -> dict[str, T]:
    """What `store label` never changes of a provenance."""
    labelling = {*LABEL_KEYS, LABEL_RULES_KEY, LABEL_NAMES_KEY, LABELS_BEFORE}
    return {key: value for key, value in provenance.items() if key not in labelling}


def without_rule_columns(schema: Schema, made: Schema) -> Schema:
    """A schema without the columns `label_RULE` that `made`, of the store's source, lacks."""
    added = {name for name in schema.columns if name.startswith(RULE_COLUMN)} - made.columns.keys()
    return Schema({name: schema.columns[name] for name in schema.columns if name not in added})
