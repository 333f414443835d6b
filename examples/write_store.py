"""Write traces of your own into a store: a schema, rows, commits, and a column that comes later.

Run it in the checkout:

    python examples/write_store.py mine.zarr
"""

import sys

import numpy as np

from store import Column, Schema, StoreWriter, TraceStore

N_LAYERS, HIDDEN_SIZE = 4, 16
STATES = {"item_shape": (N_LAYERS, HIDDEN_SIZE), "axis_names": ("layers", "hidden")}
SCHEMA = Schema(
    {
        "question_id": Column("utf8"),
        "tokens": Column("int32", axis="tokens"),
        "logprob": Column("float32", axis="tokens"),  # as long as tokens: the same axis
        "hidden_states": Column("float16", axis="tokens", split=("layers",), **STATES),
        "topk_id": Column("int32", item_shape=(10,), axis="tokens", codec="zstd:1"),
    }
)


def main(path: str) -> None:
    """Write 100 random traces, then a label for each."""
    rng = np.random.default_rng(0)
    with StoreWriter.create(path, SCHEMA, provenance={"model": "random numbers"}) as writer:
        for i in range(100):
            n = int(rng.integers(5, 30))
            row = {
                "question_id": f"q{i // 2}",  # two answers to each question
                "tokens": rng.integers(0, 32_000, n),
                "logprob": -rng.random(n).astype(np.float32),
                "hidden_states": rng.normal(size=(n, N_LAYERS, HIDDEN_SIZE)).astype(np.float16),
                "topk_id": rng.integers(0, 32_000, (n, 10)),
            }
            writer.append(f"trace_{i}", row)
        writer.commit()  # durable from here on; leaving the block commits as well
        writer.add_column("label", Column("int8"), rng.integers(0, 2, 100).tolist())
    print(TraceStore.open(path))


if __name__ == "__main__":
    main(*sys.argv[1:])
