"""How the traces of a store were made, in words: what its provenance says that a reader needs."""

import json
from collections.abc import Mapping
from typing import Any

from store.traces.origin import records_of

__all__ = ["describe_traces"]

WORDS = {  # key of the provenance -> what it is called
    "source": "made by",
    "model": "model",
    "architecture": "architecture",
    "dtype": "precision of the model",
    "quantization": "quantization",
    "prompt_template": "prompt",
    "chat_prompt": "chat prompt",
    "decoding": "decoding",
    "label_rule": "labels",
    "label_rules": "labels of each rule",
    "judge": "judge",
    "score_threshold": "label threshold of the score",
    "questions": "questions",
    "layer_convention": "layers",
}
N_CHARACTERS = 600


def describe_traces(provenance: Mapping[str, Any]) -> dict[str, str]:
    """What is recorded of the traces: name -> text, for a table.

    Of stores that were merged each is looked at, and different values of a key are joined. The
    result is in the order of `WORDS`, and empty where nothing is recorded.
    """
    records = list(records_of(provenance))
    described = {}
    for key, name in WORDS.items():
        values = [in_words(record[key]) for record in records if record.get(key) is not None]
        if values:
            described[name] = "; ".join(dict.fromkeys(values))[:N_CHARACTERS]
    return described


def in_words(value: Any) -> str:
    """A text as it is, an object as NAME = VALUE without what is null, anything else as JSON."""
    if isinstance(value, str):
        return value
    if isinstance(value, Mapping):
        return ", ".join(
            f"{name} = {in_words(part)}" for name, part in value.items() if part is not None
        )
    return json.dumps(value, ensure_ascii=False)
