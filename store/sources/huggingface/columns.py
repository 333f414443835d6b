"""The columns of a model's traces: which there are, and which are kept unless others are named."""

from collections.abc import Collection, Sequence
from dataclasses import replace

from store.errors import NotFoundError, closest
from store.format.schema import Column, Schema
from store.sources.huggingface.attention_columns import ATTENTION, EDGES

__all__ = ["DEFAULT", "NOT_BY_DEFAULT", "build_schema", "choose_columns", "needs_maps"]

DEFAULT = "default"  # a name for all columns that are kept unless others are named
LENS = ("lens_entropy", "lens_entropy_attention", "lens_entropy_mlp")
NOT_BY_DEFAULT = (*LENS, *EDGES, "attentions")  # slow to compute; large


def build_schema(
    n_layers: int, n_heads: int, hidden_size: int, top_k: int, state_dtype: str = "float16"
) -> Schema:
    """Build the schema of a trace.

    Parameters
    ----------
    n_layers : int
        L, layers that are kept.
    n_heads, hidden_size : int
        H and d of the model.
    top_k : int
        K, number of candidates kept for each predicted token.
    state_dtype : str
        'float16' or 'bfloat16', of the hidden states.

    Returns
    -------
    Schema
        Columns of one trace; T tokens are the axis "tokens", T * (T + 1) / 2 pairs of tokens the
        axis "pairs", all T * T the axis "squares".
    """
    state = Column(state_dtype, item_shape=(n_layers, hidden_size), axis_names=("layers", "hidden"))
    pairs = Column("float16", item_shape=(n_layers,), axis="pairs", axis_names=("layers",))
    per_head = Column(
        "float16",
        item_shape=(n_layers, n_heads),
        axis="tokens",
        axis_names=("layers", "heads"),
    )
    candidates = Column("float16", item_shape=(top_k,), axis="tokens", axis_names=("candidates",))
    return Schema(
        {
            "question_id": Column("utf8"),
            "tokens": Column("int32", axis="tokens"),
            "token_texts": Column("utf8"),
            "prompt_len": Column("int32"),
            "answer_len": Column("int32"),
            "question": Column("utf8"),
            "answer": Column("utf8"),
            "references": Column("utf8"),
            "score": Column("float32"),
            "label": Column("int8"),
            "context_start": Column("int32"),
            "context_len": Column("int32"),
            "token_label": Column("int8", axis="tokens"),
            "hs_last": state,
            "hs_prompt": state,
            "hs_mean": state,
            "hidden_states": replace(state, axis="tokens"),
            "attn_mean": pairs,
            "attn_diag": per_head,
            "attn_colsum": per_head,
            "attn_pmass": per_head,
            "attn_amass": per_head,
            "attn_prev": per_head,
            "logprob": Column("float32", axis="tokens"),
            "entropy": Column("float32", axis="tokens"),
            "topk_logprob": candidates,
            "topk_id": replace(candidates, dtype="int32"),
            "eos_logprob": Column("float32"),
            **dict.fromkeys(LENS, replace(pairs, dtype="float32", axis="tokens")),
            # nearly all of an edge's heads are 0
            "attn_edges": replace(per_head, axis="edges", codec="zstd:1"),
            "attn_edge_ends": Column("int32", (2,), axis="edges", axis_names=("ends",)),
            "attentions": replace(per_head, axis="squares"),
        }
    )


def choose_columns(columns: Sequence[str] | None, every: Schema) -> Schema:
    """The columns to keep, with the question's id, which a split needs.

    Parameters
    ----------
    columns : sequence of str, optional
        Names, of which 'default' stands for all but those of `NOT_BY_DEFAULT`; so does None. A name
        after a minus takes a column away, or those that begin with it: '-attn' is '-attn_mean' etc.
    every : Schema
        What `build_schema` returned.

    Raises
    ------
    NotFoundError
        There is no such column.
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


def needs_maps(columns: Sequence[str] | None) -> bool:
    """Whether attention maps must be computed, which takes the eager implementation."""
    return bool(_kept(columns, ATTENTION))
