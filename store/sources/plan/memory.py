"""The memory that an extraction needs at its peak: weights, and what one batch needs. Pure.

With B traces of at most T tokens (P of the prompt), and a model of L layers, H heads, G key-value
heads of size D, hidden size d, feed-forward size I, V ids, and e bytes a number:

    weights     = bytes of all parameters
    generation  = 2 L G D B' T e  +  B' P (8 d + 4 I) e  +  B' V (e + 8)      B' = B x beams
    second pass = B T (8 d + 4 I) e  +  B T V e  +  F  +  B H T² m
    columns     = 3 B x bytes of a trace of T tokens

    device      = weights + max(generation, second pass)
    host        = columns + 0.6 GB of Python with torch and transformers

Of the second pass, B T V e and F, the logits that are float32 at once (at most 3 x 16 MiB), count
with columns of predictions alone, and B H T² m with columns of maps alone. One layer's maps are
there at once: m = 2 e, and 8 more where a model runs in half precision, for the softmax in float32
and the copy that the columns are reduced from. Columns are there three times: of the batch
that is computed, of the one that is written, and of the one that waits between the two. On a CPU
device and host are the same memory. The peak that was measured on tiny models is between half and
twice this (`tests/store/sources/plan/test_memory.py`).
"""

from collections.abc import Collection
from typing import NamedTuple

from store.format.schema import Schema
from store.sources.plan.lengths import TraceLengths, count_items
from store.traces.columns import columns_of

__all__ = ["BatchShape", "MemoryNeed", "ModelShape", "plan_memory", "trace_bytes"]

PROCESS_BYTES = 600_000_000  # Python with torch and transformers, before a model is loaded
FLOAT_BYTES = 16 << 20  # logits that are float32 at once
COPIES = 3  # of a batch's columns
PREDICTED = {*columns_of("predictions"), *columns_of("lens")}


class ModelShape(NamedTuple):
    """The sizes of a language model that decide its memory.

    Attributes
    ----------
    weight_bytes
        Of all parameters.
    number_bytes
        Of one number in a forward pass.
    """

    n_layers: int
    n_heads: int
    n_key_heads: int
    head_size: int
    hidden_size: int
    feed_forward_size: int
    n_ids: int
    weight_bytes: int
    number_bytes: int


class BatchShape(NamedTuple):
    """The largest batch of an extraction.

    Attributes
    ----------
    n_traces
        B.
    n_beams
        Beams of each trace.
    n_tokens, n_prompt_tokens
        T and P, of the longest trace.
    is_generated
        Whether answers are generated.
    """

    n_traces: int
    n_beams: int
    n_tokens: int
    n_prompt_tokens: int
    is_generated: bool


class MemoryNeed(NamedTuple):
    """Bytes at the peak, by purpose."""

    weights: int
    generation: int
    second_pass: int
    columns: int
    process: int

    @property
    def device(self) -> int:
        """On the device that the model runs on; on a CPU besides `host`."""
        return self.weights + max(self.generation, self.second_pass)

    @property
    def host(self) -> int:
        """In the memory of the machine; on a CPU besides `device`."""
        return self.process + self.columns


def plan_memory(
    model: ModelShape, batch: BatchShape, columns: Collection[str], column_bytes: int
) -> MemoryNeed:
    """Plan the memory of an extraction; the module's docstring has the formula.

    Parameters
    ----------
    model, batch
        Their sizes.
    columns
        Names of the columns that are kept.
    column_bytes
        Of the longest trace: `trace_bytes`.
    """
    generation = _generation(model, batch) if batch.is_generated else 0
    return MemoryNeed(
        weights=model.weight_bytes,
        generation=generation,
        second_pass=_second_pass(model, batch, columns),
        columns=COPIES * batch.n_traces * column_bytes,
        process=PROCESS_BYTES,
    )


def trace_bytes(schema: Schema, n_prompt: int, n_answer: int, edges: float | None = None) -> int:
    """The bytes of one trace's columns in memory; texts do not count."""
    import numpy as np

    lengths = TraceLengths(np.array([n_prompt]), np.array([n_answer]), edges=edges)
    items = count_items(lengths, *_heads_and_layers(schema))
    total = 0
    for column in schema.columns.values():
        if not column.is_text:
            n_items = 1 if column.axis is None else items[column.axis]
            total += n_items * column.item_bytes
    return total


def _heads_and_layers(schema: Schema) -> tuple[int, int]:
    """H and the kept layers, of the column of edges; 1 where it is not kept."""
    if "attn_edges" not in schema.columns:
        return 1, 1
    n_layers, n_heads = schema.columns["attn_edges"].item_shape
    return n_heads, n_layers


def _generation(model: ModelShape, batch: BatchShape) -> int:
    n_traces = batch.n_traces * batch.n_beams
    cached = 2 * model.n_layers * model.n_key_heads * model.head_size
    keys_and_values = n_traces * batch.n_tokens * cached * model.number_bytes
    logits = n_traces * model.n_ids * (model.number_bytes + 8)
    return keys_and_values + _layer(model, n_traces * batch.n_prompt_tokens) + logits


def _second_pass(model: ModelShape, batch: BatchShape, columns: Collection[str]) -> int:
    n_tokens = batch.n_traces * batch.n_tokens
    needed = _layer(model, n_tokens)
    if not PREDICTED.isdisjoint(columns):
        n_logits = n_tokens * model.n_ids
        needed += n_logits * model.number_bytes + 3 * min(4 * n_logits, FLOAT_BYTES)
    if any(name.startswith("attn_") or name == "attentions" for name in columns):
        n_numbers = model.n_heads * n_tokens * batch.n_tokens
        in_float32 = 8 if model.number_bytes < 4 else 0
        needed += n_numbers * (2 * model.number_bytes + in_float32)
    return needed


def _layer(model: ModelShape, n_tokens: int) -> int:
    """What one layer computes of so many tokens before the next one reuses its memory."""
    width = 8 * model.hidden_size + 4 * model.feed_forward_size
    return n_tokens * width * model.number_bytes
