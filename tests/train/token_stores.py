"""Small stores with labels of tokens that the states of one layer know."""

import numpy as np
import small

from store import Column

N_LAYERS, HIDDEN_SIZE = 2, 8
STATES = {"item_shape": (N_LAYERS, HIDDEN_SIZE), "axis_names": ("layers", "hidden")}
COLUMNS = {
    "question_id": Column("utf8"),
    "prompt_len": Column("int32"),
    "answer_len": Column("int32"),
    "label": Column("int8"),
    "hs_last": Column("float16", **STATES),
    "hidden_states": Column("float16", axis="tokens", **STATES),
    "logprob": Column("float32", axis="tokens"),
    "token_label": Column("int8", axis="tokens"),
}


def random_row(rng, number):
    """A trace of 2 tokens of prompt and 2 to 9 of answer; half of them have a hallucinated span,
    whose states of layer 2 lean to one side."""
    n_tokens = int(rng.integers(4, 12))
    label = int(rng.integers(0, 2))
    token_label = np.where(np.arange(n_tokens) < 2, -1, 0).astype(np.int8)
    if label:
        first = int(rng.integers(2, n_tokens))
        token_label[first : rng.integers(first, n_tokens) + 1] = 1
    states = rng.normal(size=(n_tokens, N_LAYERS, HIDDEN_SIZE))
    states[token_label == 1, 1, :4] += 1.5
    states = states.astype(np.float16)
    return {
        "question_id": f"q{number // 2}",
        "prompt_len": 2,
        "answer_len": n_tokens - 2,
        "label": label,
        "hs_last": states[-1],
        "hidden_states": states,
        "logprob": np.append(np.nan, -rng.random(n_tokens - 1)).astype(np.float32),
        "token_label": token_label,
    }


def write_token_store(path, n_traces=160, without=(), change=None, axis="tokens"):
    """Write a store of `n_traces`; `change(number, row)` edits rows on their way, and the labels of
    tokens may be on an axis of their own."""
    rng = np.random.default_rng(0)
    columns = {name: column for name, column in COLUMNS.items() if name not in without}
    if "token_label" in columns:
        columns["token_label"] = Column("int8", axis=axis)
    rows = {}
    for number in range(n_traces):
        row = random_row(rng, number)
        if change:
            change(number, row)
        rows[f"t{number}"] = {name: row[name] for name in columns}
    return small.make_store(path, columns, rows).path
