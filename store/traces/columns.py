"""The columns of a trace, each described once.

Extraction, imports, plans, training, the help texts and the documents read this table. To add a
column, add it here, and what computes it to a source.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial

from store.format.schema import Column

__all__ = [
    "BY_HAND",
    "RAGGED",
    "SIZES",
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
BOTH = ("extract", "import")
FROM_STATES = ("extract", "vLLM", "derive")
LABELLED = (*ALL, "label")


@dataclass(frozen=True)
class TraceColumn:
    """What a column holds, and who writes it."""

    doc: str
    dtype: str  # NumPy's name, 'utf8', or `STATE_DTYPES`
    # all axes of a trace's value; a first one of `RAGGED` is not of the items
    axes: tuple[str, ...] = ()
    made_by: tuple[str, ...] = ("extract",)  # the commands that write it
    # what it is computed from: 'states', 'attention', 'predictions' or 'lens'; '' is the record
    of: str = ""
    codec: str | None = None
    in_table: bool = True  # whether the page's table of traces has it without being asked for it

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


MODEL_STATES = ("layers", "hidden")
CANDIDATES = ("tokens", "candidates")
_text = partial(TraceColumn, dtype="utf8", made_by=ALL)
_state = partial(TraceColumn, dtype=STATE_DTYPES, axes=MODEL_STATES, of="states")
# of every token, layer and head
_of_heads = partial(
    TraceColumn, dtype="float16", axes=("tokens", "layers", "heads"), of="attention"
)
# the same, which only `BY_HAND` makes
_of_heads_by_hand = partial(_of_heads, made_by=(BY_HAND,))
_prediction = partial(TraceColumn, dtype="float32", of="predictions")
_lens = partial(
    TraceColumn, dtype="float32", axes=("tokens", "layers"), made_by=(BY_HAND,), of="lens"
)
_of_samples = partial(TraceColumn, dtype="float32", made_by=("derive",))

TRACE_COLUMNS: dict[str, TraceColumn] = {
    "question_id": _text("traces of one question stay in one split", in_table=False),
    "tokens": TraceColumn("token ids of prompt and answer", "int32", ("tokens",), ALL),
    "token_texts": _text("JSON list of the texts of the tokens", made_by=BOTH, in_table=False),
    "prompt_len": TraceColumn("tokens of the prompt", "int32", (), ALL, in_table=False),
    "answer_len": TraceColumn("tokens of the answer", "int32", (), ALL),
    "question": _text("as it was asked"),
    "answer": _text("what the model answered"),
    "context": _text(
        "text that the answer is to be taken from", in_table=False, codec="zstd:3"
    ),  # traces of a question lie side by side: a chunk has their context once
    "references": _text("JSON list of right answers", in_table=False),
    "score": TraceColumn("of the answer, higher is better; NaN: none", "float32", (), LABELLED),
    "label": TraceColumn("1 = hallucination, 0 = right, -1 = unlabelled", "int8", (), LABELLED),
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
    "hs_last": _state("states of the last token", made_by=(*ALL, "derive")),
    "hs_prompt": _state("states of the last token of the prompt", made_by=FROM_STATES),
    "hs_mean": _state("mean of the states over the answer's tokens", made_by=FROM_STATES),
    "hidden_states": _state("states of every token", axes=("tokens", *MODEL_STATES), made_by=ALL),
    "attn_mean": TraceColumn(
        "mean of the maps over heads, lower triangle row by row",
        "float16",
        ("pairs", "layers"),
        BOTH,
        "attention",
    ),
    "attn_diag": _of_heads("attention of each token to itself", made_by=BOTH),
    "attn_colsum": _of_heads("attention that each token receives, summed", made_by=BOTH),
    "attn_pmass": _of_heads("attention mass on the prompt", made_by=BOTH),
    "attn_amass": _of_heads("attention mass on the answer"),
    "attn_prev": _of_heads("attention of each token to the one before; NaN for the first"),
    "attn_entropy": _of_heads_by_hand("entropy of each token's attention, in nats"),
    "attn_cmass": _of_heads_by_hand("attention mass on the context; NaN without one"),
    "attn_centropy": _of_heads_by_hand(
        "entropy of the shares of the context's tokens in attn_cmass, in nats; 0 where that is 0"
    ),
    "attn_ccosine": _of_heads_by_hand(
        "mean cosine similarity of a head's attention to the context's tokens with that of the "
        "layer's other heads"
    ),
    "attn_cjs": _of_heads_by_hand(
        "Jensen-Shannon distance of a head's attention from the mean of the layer's heads, all "
        "that is outside the context as one place"
    ),
    "icr": TraceColumn(
        "Jensen-Shannon divergence, in nats, of what the layer adds to a token's state, projected "
        "on the states of the 20 tokens with the most attention, from that attention; NaN at layer "
        "0",
        "float32",
        ("tokens", "layers"),
        (BY_HAND,),
        "attention",
    ),
    "logprob": _prediction(
        "of each token, in nats; NaN at token 0, which nothing predicted, and where a response has "
        "none",
        axes=("tokens",),
        made_by=("extract", "vLLM"),
    ),
    "entropy": _prediction(
        "of the distribution that predicted each token, in nats", axes=("tokens",)
    ),
    "topk_logprob": _prediction(
        "of the K most likely tokens, falling", dtype="float16", axes=CANDIDATES
    ),
    "topk_id": _prediction("these tokens; -1 at token 0", dtype="int32", axes=CANDIDATES),
    "eos_logprob": _prediction("of the end of the text behind the last token"),
    "lens_entropy": _lens(
        "entropy of the next token's distribution by each layer's state (logit lens); not shifted "
        "as entropy is"
    ),
    "lens_entropy_attention": _lens(
        "the same, of what the layer's attention adds to the state; NaN at layer 0"
    ),
    "lens_entropy_mlp": _lens(
        "the same, of what the layer's feed-forward part adds; NaN at layer 0"
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
    "eigenscore": _of_samples(
        "log-determinant of the covariance of the samples' states at a layer, divided by their "
        "number, in nats"
    ),
    "lexical_similarity": _of_samples("mean ROUGE-L F1 over the pairs of samples, 0 to 1"),
    "semantic_entropy": _of_samples(
        "entropy of the meanings of the samples, by the likelihood of each, in nats"
    ),
    "semantic_entropy_discrete": _of_samples(
        "entropy of the meanings of the samples, by their number, in nats"
    ),
    "selfcheck_nli": _of_samples(
        "mean P(contradiction) of the answer's sentences by each other sample, 0 to 1"
    ),
    "finish_reason": _text(
        "why the answer ended: stop, or length", made_by=("record",), in_table=False
    ),
    "source_file": _text("file that the trace was in", made_by=("import", "vLLM"), in_table=False),
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
