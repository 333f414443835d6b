"""What is kept of a model's traces, and whether model and questions can give it."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from transformers import PreTrainedConfig, PreTrainedModel

from store.errors import NotFoundError, SchemaError, closest
from store.format.schema import Column, Schema
from store.sources.huggingface.attention_scores import ON_CONTEXT
from store.sources.huggingface.generation import Decoding
from store.sources.huggingface.load import EAGER, can_give_maps, implementation_of
from store.sources.huggingface.prompts import EncodedQuestion
from store.sources.questions import Question
from store.traces.columns import BY_HAND, TRACE_COLUMNS, columns_of
from store.traces.fields import NO_FIELDS, Fields
from store.traces.layers import choose_layers, parse_layers
from store.traces.trace_ids import number_trace

__all__ = [
    "DEFAULT",
    "NOT_BY_DEFAULT",
    "Kept",
    "build_schema",
    "check_contexts",
    "check_model",
    "check_questions",
    "choose_columns",
]

DEFAULT = "default"  # a name for all columns that are kept unless others are named
NOT_BY_DEFAULT = columns_of(command=BY_HAND)


def build_schema(
    n_layers: int, n_heads: int, hidden_size: int, top_k: int, state_dtype: str = "float16"
) -> Schema:
    """Build the schema of a trace.

    `state_dtype`: 'float16' or 'bfloat16', of the hidden states.

    Returns columns of one trace; T tokens are the axis "tokens", T * (T + 1) / 2 pairs of tokens
    the axis "pairs", all T * T the axis "squares".
    """
    sizes = {
        "layers": n_layers,
        "heads": n_heads,
        "hidden": hidden_size,
        "candidates": top_k,
        "ends": 2,
    }
    names = columns_of(command="extract")
    return Schema({name: TRACE_COLUMNS[name].stored(sizes, state_dtype) for name in names})


def choose_columns(columns: Sequence[str] | None, every: Schema) -> Schema:
    """The columns to keep, with the question's id, which a split needs.

    `columns`: names, of which 'default' stands for all but those of `NOT_BY_DEFAULT`; so does None.
    A name after a minus takes a column away, or those that begin with it: '-attn' is '-attn_mean'
    etc. `every`: what `build_schema` returned.

    Raises NotFoundError: there is no such column.
    """
    for name in columns or ():
        if not _named(name, every.columns):
            raise NotFoundError(
                f"columns: expected some of {list(every.columns)}, found {name!r:.200}"
                f"{closest(name.removeprefix('-'), every.columns)}"
            )
    kept = {"question_id"} | _kept(columns, every.columns)
    return Schema({name: column for name, column in every.columns.items() if name in kept})


def _kept(columns: Sequence[str] | None, every: Collection[str]) -> set[str]:
    """Return which of all columns are kept: names are added and taken away from left to right."""
    names = [DEFAULT] if columns is None else list(columns)
    if names and names[0].startswith("-"):
        names.insert(0, DEFAULT)
    kept: set[str] = set()
    for name in names:
        kept = kept - _named(name, every) if name.startswith("-") else kept | _named(name, every)
    return kept


def _named(name: str, every: Collection[str]) -> set[str]:
    if name == DEFAULT:
        return set(every).difference(NOT_BY_DEFAULT)
    if name.startswith("-"):
        return {one for one in every if one == name[1:] or one.startswith(f"{name[1:]}_")}
    return {name}.intersection(every)


class Chosen(NamedTuple):
    """What is kept of one model's traces: its layers, ascending, and their columns."""

    layers: list[int]
    top_k: int
    schema: Schema


@dataclass(frozen=True)
class Kept:
    """What is to be kept of traces."""

    # numbers, or a text as in `store.traces.layers`; 0 is the embedding. 1 to L by default
    layers: Sequence[int] | str | None = None
    columns: Sequence[str] | None = None  # besides `question_id`; see `choose_columns`
    top_k: int = 10  # candidates for each predicted token
    fields: Fields = NO_FIELDS  # columns of fields of the questions
    has_context: bool = False  # whether a question has a context, for the column of its text

    @property
    def needs_maps(self) -> bool:
        """Whether attention maps must be computed, which takes the eager implementation."""
        return bool(_kept(self.columns, columns_of("attention")))

    def choose(
        self, config: PreTrainedConfig, dtype: torch.dtype, label_columns: Mapping[str, Column]
    ) -> Chosen:
        """What that is of a model, with the label columns of several rules.

        States of a model that runs in bfloat16 are kept as they are. Raises SchemaError or
        NotFoundError where there is no such layer or column.
        """
        n_layers, n_heads, hidden_size = _model_sizes(config, self.needs_maps)
        chosen = _layers_to_keep(self.layers, n_layers)
        n_candidates = min(self.top_k, config.vocab_size)
        state_dtype = "bfloat16" if dtype == torch.bfloat16 else "float16"
        made = build_schema(len(chosen), n_heads, hidden_size, n_candidates, state_dtype)
        every: dict[str, Column] = {}
        for name, column in made.columns.items():
            every[name] = column
            if name == "label":
                every |= label_columns
        if not self.has_context:
            del every["context"]
        kept = choose_columns(self.columns, Schema(every))
        for name in () if self.has_context else ON_CONTEXT.keys() & kept.columns.keys():
            raise SchemaError(
                f"columns: {name}: expected questions with a context, found none; give records the "
                "key context, or leave the column out"
            )
        for name in self.fields.columns.keys() & every.keys():
            raise SchemaError(
                f"field {self.fields.names[name]!r:.80}: the column {name!r} is made already; "
                f"leave the field out (--fields all,-{self.fields.names[name]:.80})"
            )
        return Chosen(chosen, n_candidates, Schema({**kept.columns, **self.fields.columns}))


def _model_sizes(config: PreTrainedConfig, wants_maps: bool) -> tuple[int, int, int]:
    """Layers, heads and hidden size; raises SchemaError for a model that has none."""
    heads = getattr(config, "num_attention_heads", None)
    if heads is None and wants_maps:
        raise SchemaError(
            "columns: expected a model with attention, found one without; leave out the attn_ "
            "columns and icr"
        )
    try:
        return config.num_hidden_layers, heads or 1, config.hidden_size
    except AttributeError as error:
        raise SchemaError(
            f"model: expected num_hidden_layers and hidden_size in its config, found: {error}"
        ) from error


def _layers_to_keep(layers: Sequence[int] | str | None, n_layers: int) -> list[int]:
    """The layers to keep, as the model numbers them, ascending.

    A range without a beginning begins with layer 1, unless 0 is named.
    """
    if layers is None:
        return list(range(1, n_layers + 1))
    text = layers if isinstance(layers, str) else ",".join(map(str, layers))
    has_embedding = any(0 in (wanted.first, wanted.last) for wanted in parse_layers(text))
    every = list(range(0 if has_embedding else 1, n_layers + 1))
    return [every[i] for i in choose_layers(text, every, "layers: the model")]


def check_model(model: PreTrainedModel, wants_maps: bool) -> None:
    """Raise ValueError for a model that would give no attention maps, or random values."""
    if wants_maps and not can_give_maps(model):
        raise ValueError(
            f"model: expected attn_implementation {EAGER!r}, or one that can be changed, found "
            f"{implementation_of(model)!r} of {type(model).__name__}; load it with that argument"
        )
    if model.training:
        raise ValueError("model: expected evaluation mode, found training mode; call model.eval()")


def check_contexts(questions: Sequence[EncodedQuestion], schema: Schema) -> None:
    """Raise SchemaError if attention on contexts is kept, and no prompt has its context."""
    contexts = [one.context for one in questions if one.question.get("context")]
    wanted = [name for name in schema.columns if name in ON_CONTEXT]
    if wanted and contexts and not any(n_tokens for _, n_tokens in contexts):
        raise SchemaError(
            f"columns: {wanted[0]}: expected prompts with their contexts, found none in "
            f"{len(contexts)}; write {{context}} into --prompt-template, or leave the column out"
        )


def check_questions(questions: Sequence[Question], decoding: Decoding) -> bool:
    """Whether the answers are given.

    Raises ValueError if only some are, or others are wanted, or if two traces, numbered samples
    included, would share an id.
    """
    n_given = sum("response" in question for question in questions)
    if 0 < n_given < len(questions):
        raise ValueError(
            f"questions: expected responses to all {len(questions)} or to none, found {n_given}"
        )
    if n_given and not decoding.is_default:
        raise ValueError(
            "decoding: expected none, because the answers are given, found beams or samples; leave "
            "them out, or have the model answer (--generate)"
        )
    seen = set()
    for question in questions:
        for k in range(1, decoding.num_samples + 1):
            trace_id = question.get("trace_id") or number_trace(question["question_id"], k)
            if trace_id in seen:
                raise ValueError(
                    f"questions: expected different question_ids, found {trace_id!r} twice"
                )
            seen.add(trace_id)
    return n_given > 0
