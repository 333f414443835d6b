"""Small stores in which one choice of a training decides: the scale, the layer, how long."""

import numpy as np
import small

from store import Column

STATES = {"axis_names": ("layers", "hidden")}


def write_states(path, labels, states, name="hs_last", axis=None, provenance=None):
    """Write the last token's states (n, L, d), or others; each trace is of its own question."""
    item_shape = states.shape[2 if axis else 1 :]
    columns = {
        "question_id": ("utf8", [f"q{i}" for i in range(len(labels))]),
        "label": ("int8", labels),
        name: (Column("float16", item_shape, axis, **STATES), states.astype(np.float16)),
    }
    return small.store_columns(path, columns, provenance).path


def write_large(path, n=1200, n_layers=4, width=384):
    """What counts are the few dimensions that vary most; the others are small noise."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, n)
    states = 0.1 * rng.normal(size=(n, n_layers, width))
    states[:, :, :3] = rng.normal(size=(n, n_layers, 3))
    states[:, -1, :3] += 1.8 * labels[:, None]
    return write_states(path, labels, states)


def write_one_layer(path, n=600, n_layers=8, width=32, layer=3):
    """The answer's tokens of one layer, `layer` from 0, know the label; no other does."""
    rng = np.random.default_rng(0)
    columns = {"question_id": "utf8", "label": "int8", "prompt_len": "int32", "answer_len": "int32"}
    columns |= {name: Column("float32", axis="tokens") for name in ("logprob", "entropy")}
    states = Column("float16", axis="tokens", item_shape=(n_layers, width), **STATES)
    rows = {}
    for i in range(n):
        label = int(rng.integers(0, 2))
        values = rng.normal(size=(5, n_layers, width))
        values[2:, layer, :6] += 0.8 * label
        row = {"question_id": f"q{i}", "label": label, "prompt_len": 2, "answer_len": 3}
        row |= {name: -rng.random(5).astype(np.float32) for name in ("logprob", "entropy")}
        rows[f"t{i}"] = row | {"hidden_states": values.astype(np.float16)}
    return small.make_store(path, columns | {"hidden_states": states}, rows).path
