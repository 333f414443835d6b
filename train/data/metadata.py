"""The fields of a store that the control `metadata` reads: known before an answer is judged.

A field is a column of one text or number that the registry of columns does not have. Names tell
which of them are labels, ids, or of the answer, and are left out unless --fields names them.
"""

import re
from collections.abc import Iterator

from store import TraceStore
from store.traces.columns import TRACE_COLUMNS
from store.traces.fields import ALL, NONE, choose_fields
from train.config import Config

__all__ = ["NO_METADATA", "check_fields", "metadata_columns"]

NO_METADATA = "the store has no field of questions (extract --fields)"
MOST_BYTES = 200  # of a text, on average: longer ones are no categories
# whoever wrote or judged, or what was asked; also where it is an id
GROUPS = {
    "model",
    "generator",
    "llm",
    "annotator",
    "worker",
    "rater",
    "dataset",
    "task",
    "language",
}
IDS = {"id", "ids", "uuid", "guid", "index", "idx", "hash", "key", "url", "path", "file"}
JUDGED = re.compile(  # words that begin so
    "label|scor|correct|incorrect|(wrong|right|match|acc|pass)$|hallucinat|tru(e|th)|fals|factual|"
    "faith|grade|verdict|judg|rating|accura|(f1|em|spans?|probs?)$|rouge|bleu|bert|nli|annotation|"
    "error|reward|passed|fail|quality|support|consisten|relevan|confiden|probab|logp|logit|perplex|"
    "entrop|uncertain"
)
OF_ANSWER = re.compile(
    "answer|response|output|completion|generat(ed|ion)|predict|reply|candidate|reference|sample|"
    "token|finish|latency|duration"
)


def metadata_columns(store: TraceStore, config: Config) -> list[str]:
    """The fields that are read, in the order of the store.

    What the store lacks is no field of it: it may be another than was trained on.
    """
    present = fields_of(store, config)
    wanted = names_in(config.fields)
    lacking = [name for one in wanted or () if (name := one.removeprefix("-")) not in (ALL, NONE)]
    chosen = choose_fields([*present, *lacking], [*read_by_default(store, config)], wanted)
    return [name for name in present if name in chosen]


def check_fields(store: TraceStore, config: Config) -> None:
    """Raise NotFoundError if --fields names a field that the store lacks."""
    choose_fields(fields_of(store, config), (), names_in(config.fields))


def names_in(text: str | None) -> list[str] | None:
    return None if text is None else [name.strip() for name in text.split(",")]


def fields_of(store: TraceStore, config: Config) -> list[str]:
    columns = store.schema.columns.items()
    others = {*TRACE_COLUMNS, *config.replaced.values()}
    return [name for name, column in columns if column.is_single and name not in others]


def read_by_default(store: TraceStore, config: Config) -> Iterator[str]:
    for name in fields_of(store, config):
        is_text = store.schema.columns[name].is_text
        is_long = is_text and store.lengths(name).sum() > MOST_BYTES * len(store)
        if name != config.second_label and is_metadata(name) and not is_long:
            yield name


def is_metadata(name: str) -> bool:
    """Whether a field says neither how good an answer is, nor what it is, nor which trace it is.

    Examples
    --------
    >>> [is_metadata(one) for one in ("annotatorId", "response_model", "doc_id", "score_model")]
    [True, True, False, False]
    """
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|[\W_]+", " ", name).lower().split()
    if any(map(JUDGED.match, words)):
        return False
    group = words[-2:-1] if words[-1] in IDS else words[-1:]
    is_group = not GROUPS.isdisjoint(group)
    return is_group or not (IDS.intersection(words) or any(map(OF_ANSWER.match, words)))
