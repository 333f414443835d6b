"""The columns of a trace, each described once.

Extraction, imports, plans, training, the help texts and the documents read this table. To add a
column, add it here, and what computes it to a source.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from store.format.schema import Column

__all__ = [
    "BY_HAND",
    "SIZES",
    "STATE_DTYPES",
    "TABLE_FIRST",
    "TRACE_COLUMNS",
    "TraceColumn",
    "columns_of",
]

SIZES = {  # axis -> its length in the documents
    "tokens": "T",
    "pairs": "T(T+1)/2",
    "squares": "T*T",
    "edges": "E",
    "layers": "L",
    "hidden": "d",
    "heads": "H",
    "candidates": "K",
    "ends": "2",
}
RAGGED = ("tokens", "pairs", "squares", "edges")  # axes whose length differs from trace to trace
STATE_DTYPES = "float16 or bfloat16"  # as the model computes
# extraction makes what is computed slowly, or large, only where it is named
BY_HAND = "extract --columns"
ALL = ("extract", "import", "vLLM")  # `import` of the older formats, or of vLLM's files


@dataclass(frozen=True)
class TraceColumn:
    """What a column holds, and who writes it.

    Attributes
    ----------
    dtype
        NumPy's name, 'utf8', or `STATE_DTYPES`.
    axes
        Names of all axes of a trace's value; a first one of `RAGGED` is not of the items.
    made_by
        The commands that write it.
    of
        What it is computed from: 'states', 'attention', 'predictions' or 'lens'; '' is the record.
    in_table
        Whether the page's table of traces has it without being asked for it.
    """

    doc: str
    dtype: str
    axes: tuple[str, ...] = ()
    made_by: tuple[str, ...] = ("extract",)
    of: str = ""
    codec: str | None = None
    in_table: bool = True

    @property
    def axis(self) -> str | None:
        """The ragged axis, None if all values have one shape."""
        return self.axes[0] if self.axes and self.axes[0] in RAGGED else None

    @property
    def item_axes(self) -> tuple[str, ...]:
        return self.axes[1:] if self.axis else self.axes

    @property
    def shape(self) -> str:
        """As the documents have it: '(T, L, d)'."""
        return f"({', '.join(SIZES[name] for name in self.axes)})"

    def stored(self, sizes: Mapping[str, int], state_dtype: str = "float16") -> Column:
        """The column in a schema, where the item axes have these sizes."""
        column = Column(
            state_dtype if self.dtype == STATE_DTYPES else self.dtype,
            tuple(sizes[name] for name in self.item_axes),
            self.axis,
            self.item_axes,
        )
        # in chunks of the raw size: those of a decoder's grain would hold the edges of many traces
        return replace(column, codec=self.codec)


BY_HEAD = ("tokens", "layers", "heads")
CANDIDATES = ("tokens", "candidates")

TRACE_COLUMNS: dict[str, TraceColumn] = {
    "question_id": TraceColumn(
        "traces of one question stay in one split", "utf8", (), ALL, in_table=False
    ),
    "tokens": TraceColumn("token ids of prompt and answer", "int32", ("tokens",), ALL),
    "token_texts": TraceColumn(
        "JSON list of the texts of the tokens",
        "utf8",
        (),
        ("extract", "import"),
        in_table=False,
    ),
    "prompt_len": TraceColumn("tokens of the prompt", "int32", (), ALL, in_table=False),
    "answer_len": TraceColumn("tokens of the answer", "int32", (), ALL),
    "question": TraceColumn("as it was asked", "utf8", (), ALL),
    "answer": TraceColumn("what the model answered", "utf8", (), ALL),
    "references": TraceColumn("JSON list of right answers", "utf8", (), ALL, in_table=False),
    "score": TraceColumn(
        "of the answer, higher is better; NaN: none", "float32", (), (*ALL, "label")
    ),
    "label": TraceColumn(
        "1 = hallucination, 0 = right, -1 = unlabelled", "int8", (), (*ALL, "label")
    ),
    "context_start": TraceColumn(
        "position of the context's first token; -1 without a context", "int32", in_table=False
    ),
    "context_len": TraceColumn(
        "tokens of the context in the prompt; 0 without one", "int32", in_table=False
    ),
    "token_label": TraceColumn(
        "1 = in a hallucinated span, 0 = answer outside, -1 = prompt, or no spans",
        "int8",
        ("tokens",),
    ),
    "hs_last": TraceColumn(
        "states of the last token", STATE_DTYPES, ("layers", "hidden"), (*ALL, "derive"), "states"
    ),
    "hs_prompt": TraceColumn(
        "states of the last token of the prompt",
        STATE_DTYPES,
        ("layers", "hidden"),
        ("extract", "vLLM", "derive"),
        "states",
    ),
    "hs_mean": TraceColumn(
        "mean of the states over the answer's tokens",
        STATE_DTYPES,
        ("layers", "hidden"),
        ("extract", "vLLM", "derive"),
        "states",
    ),
    "hidden_states": TraceColumn(
        "states of every token", STATE_DTYPES, ("tokens", "layers", "hidden"), ALL, "states"
    ),
    "attn_mean": TraceColumn(
        "mean of the maps over heads, lower triangle row by row",
        "float16",
        ("pairs", "layers"),
        ("extract", "import"),
        "attention",
    ),
    "attn_diag": TraceColumn(
        "attention of each token to itself", "float16", BY_HEAD, ("extract", "import"), "attention"
    ),
    "attn_colsum": TraceColumn(
        "attention that each token receives, summed",
        "float16",
        BY_HEAD,
        ("extract", "import"),
        "attention",
    ),
    "attn_pmass": TraceColumn(
        "attention mass on the prompt", "float16", BY_HEAD, ("extract", "import"), "attention"
    ),
    "attn_amass": TraceColumn("attention mass on the answer", "float16", BY_HEAD, of="attention"),
    "attn_prev": TraceColumn(
        "attention of each token to the one before; NaN for the first",
        "float16",
        BY_HEAD,
        of="attention",
    ),
    "logprob": TraceColumn(
        "of each token, in nats; NaN at token 0, which nothing predicted, and where a response has "
        "none",
        "float32",
        ("tokens",),
        ("extract", "vLLM"),
        "predictions",
    ),
    "entropy": TraceColumn(
        "of the distribution that predicted each token, in nats",
        "float32",
        ("tokens",),
        of="predictions",
    ),
    "topk_logprob": TraceColumn(
        "of the K most likely tokens, falling", "float16", CANDIDATES, of="predictions"
    ),
    "topk_id": TraceColumn("these tokens; -1 at token 0", "int32", CANDIDATES, of="predictions"),
    "eos_logprob": TraceColumn(
        "of the end of the text behind the last token", "float32", of="predictions"
    ),
    "lens_entropy": TraceColumn(
        "entropy of the next token's distribution by each layer's state (logit lens); not shifted "
        "as entropy is",
        "float32",
        ("tokens", "layers"),
        (BY_HAND,),
        "lens",
    ),
    "lens_entropy_attention": TraceColumn(
        "the same, of what the layer's attention adds to the state; NaN at layer 0",
        "float32",
        ("tokens", "layers"),
        (BY_HAND,),
        "lens",
    ),
    "lens_entropy_mlp": TraceColumn(
        "the same, of what the layer's feed-forward part adds; NaN at layer 0",
        "float32",
        ("tokens", "layers"),
        (BY_HAND,),
        "lens",
    ),
    "attn_edges": TraceColumn(
        "attention of .05 and more of each token from the prompt's last one on to those before it; "
        "0 of heads with less",
        "float16",
        ("edges", "layers", "heads"),
        (BY_HAND,),
        "attention",
        codec="zstd:1",  # nearly all of an edge's heads are 0
    ),
    "attn_edge_ends": TraceColumn(
        "positions of the two tokens of each edge, the attending one first",
        "int32",
        ("edges", "ends"),
        (BY_HAND,),
        "attention",
    ),
    "attentions": TraceColumn(
        "the full maps, large",
        "float16",
        ("squares", "layers", "heads"),
        (BY_HAND, "import --keep-attention"),
        "attention",
    ),
    "eigenscore": TraceColumn(
        "log-determinant of the covariance of the samples' states at a layer, divided by their "
        "number, in nats",
        "float32",
        (),
        ("derive",),
    ),
    "lexical_similarity": TraceColumn(
        "mean ROUGE-L F1 over the pairs of samples, 0 to 1", "float32", (), ("derive",)
    ),
    "semantic_entropy": TraceColumn(
        "entropy of the meanings of the samples, by the likelihood of each, in nats",
        "float32",
        (),
        ("derive",),
    ),
    "semantic_entropy_discrete": TraceColumn(
        "entropy of the meanings of the samples, by their number, in nats",
        "float32",
        (),
        ("derive",),
    ),
    "selfcheck_nli": TraceColumn(
        "mean P(contradiction) of the answer's sentences by each other sample, 0 to 1",
        "float32",
        (),
        ("derive",),
    ),
    "source_file": TraceColumn(
        "file that the trace was in", "utf8", (), ("import", "vLLM"), in_table=False
    ),
}
TABLE_FIRST = ("label", "question", "answer")  # of the columns that the page's table has


def columns_of(of: str = "", *, command: str = "", by_default: bool = False) -> tuple[str, ...]:
    """Names of the columns that are computed from something, or that a command writes.

    `by_default` leaves out what extraction makes only where it is named.
    """
    return tuple(
        name
        for name, column in TRACE_COLUMNS.items()
        if of in ("", column.of)
        and any(one.startswith(command) for one in column.made_by)
        and not (by_default and BY_HAND in column.made_by)
    )
