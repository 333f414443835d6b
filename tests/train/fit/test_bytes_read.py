"""What methods read of a store: no more than they need, and with the same numbers as all of it."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import small
import torch
from splitting import split_data

from models import DETECTORS, METHODS
from store.traces.columns import TRACE_COLUMNS
from train.data.requirements import reader_of
from train.fit.device import build_fabric
from train.fit.loop import Hooks, Training
from train.fit.probes import score_probe
from train.run.detectors import build_detector

SIZES = {"layers": 10, "hidden": 32, "heads": 2, "candidates": 4, "ends": 2}
N_PROMPT, N_ANSWER = 12, 4
LENGTHS = {"tokens": 16, "pairs": 136, "squares": 256, "edges": 5}
ALL = 10
NEEDED = {  # tokens and layers; of others the answer's tokens, if any, and all layers
    "saplma": (16, 1),
    "logreg_first": (16, 1),
    "token_probe": (16, 1),
    "charm": (16, 1),
    "charm_edges": (16, 1),
    "halunet": (N_ANSWER, 1),
    "token_sequence": (N_ANSWER + 1, 3),
    "state_sequence": (N_ANSWER, 3),
    "drift": (1, 6),
    "first_logprob": (1, ALL),
    "attention_entropy": (1, 1),
}
OF_STATES = ("act_conv", "act_vit", "gnn_det_lstm", "gvae_lstm")
OF_ATTENTION = ("attn_logdet", "lapeigvals", "llm_check", "sink_probe")
# the question's text alone; all the question's tokens may be nodes, and one needs no states at all
# no loader reads them
OF_TEXTS = {"question_only", "answer_text", "question_answer", "answer_context", "metadata"}
OF_OTHERS = {"majority"}  # nothing
METHODS_READ = sorted(METHODS.keys() - OF_TEXTS - OF_OTHERS)
AWKWARD = [(-1, 4), (0, 16), (16, 0), (40, 4), (12, 9), (1, 0)]  # prompt_len, answer_len


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """A store of every column; its last rows, without labels, have odd lengths."""
    columns = {
        name: column.stored(SIZES)
        for name, column in TRACE_COLUMNS.items()
        if column.dtype != "utf8" or name == "question_id"
    }
    rng = np.random.default_rng(0)
    rows = {}
    for i in range(66):
        row = {name: drawn(rng, name, column) for name, column in columns.items()}
        lengths = AWKWARD[i - 60] if i >= 60 else (N_PROMPT, N_ANSWER)
        row |= {"question_id": f"q{i}", "label": i % 2 if i < 60 else -1}
        rows[f"t{i}"] = row | dict(zip(("prompt_len", "answer_len"), lengths, strict=True))
    store = small.make_store(tmp_path_factory.mktemp("bytes") / "all.zarr", columns, rows)
    narrow = dict.fromkeys(("gnn_hidden", "latent_dim", "lstm_hidden"), 8)
    return split_data(store, batch_size=16, force_cpu=True, **narrow)


def drawn(rng, name, column):
    """Random values; labels of both classes, and the ends of edges within the trace."""
    shape = column.item_shape
    shape = (LENGTHS[column.axis], *shape) if column.axis else shape
    if name == "attn_edge_ends":
        return np.tile(np.array([N_PROMPT + 1, N_PROMPT], np.int32), (shape[0], 1))
    if column.dtype == "utf8":
        return ""
    if column.dtype.startswith("int"):
        return rng.integers(0, 2, shape).astype(column.dtype)
    return (-rng.random(shape)).astype(column.dtype)


def reader(name, data):
    return build_detector(name, data) if name in DETECTORS else reader_of(name, data)


def needed_bytes(name, one, data, n_rows):
    """Bytes of the columns of a method in some rows, of the tokens and layers that it needs."""
    reads_all = name in OF_STATES + OF_ATTENTION
    n_tokens, n_layers = NEEDED.get(name, (16 if reads_all else N_ANSWER, ALL))
    total = 0
    for role in (*one.columns, *one.targets, *getattr(one, "optional", ())):
        column = data.store.schema.columns[role]
        n_items = n_tokens if column.axis == "tokens" else LENGTHS.get(column.axis, 1)
        share = n_layers / ALL if role == one.columns[0] else 1
        total += n_rows * n_items * share * column.item_bytes
    return total


@pytest.mark.parametrize("name", METHODS_READ)
def test_an_epoch_reads_what_is_needed(name, data):
    """Of training and validation; a probe reads the test rows too, and every row once."""
    one = reader(name, data)
    rows = [*data.splits.train, *data.splits.val]
    store = data.store
    if name in DETECTORS:
        run = Training(build_fabric(data.config), one, data, Hooks()).run_epoch
    else:
        rows += [*data.splits.test]
        run = partial(score_probe, name, one, data)
    before = store.reader.n_bytes_read
    run()
    read = store.reader.n_bytes_read - before
    assert 0 < read <= 1.1 * needed_bytes(name, one, data, len(rows))


@pytest.mark.parametrize(
    "name, expected",
    [
        ("logreg_best", 2 * 32),
        ("mean_logprob", 4 * N_ANSWER + 8),
        ("first_logprob", 4 + 8),
    ],
)
def test_bytes_a_trace_are_of_the_layer_and_the_tokens_that_are_read(name, expected, data):
    """The layer is that which validation chose."""
    scored, _ = score_probe(name, reader(name, data), data)
    assert scored.facts.bytes_per_trace == expected


@pytest.mark.parametrize("name", METHODS_READ)
def test_what_is_not_read_changes_nothing(name, data):
    """Nor where the prompt's length is unknown or wrong, or there is no answer."""
    one = reader(name, data)
    rows = [3, 60, 61, 62, 63, 64, 65, 4]
    if name.startswith("charm"):
        rows = [3, 4]  # the edges are those of ordinary lengths
    columns = (*one.columns, *one.targets, *getattr(one, "optional", ()))
    whole, part = data.read(rows, columns), data.reading(one).read(rows, columns)
    if name in DETECTORS:
        one.prepare([data.read([0, 1, 2], columns)])
        found, expected = (one.eval()(batch).logits for batch in (part, whole))
    else:
        found, expected = one.features(part), one.features(whole)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6, equal_nan=True)


@pytest.mark.parametrize("name", ["logreg_best", "logreg_pca", "prompt_state"])
def test_layers_that_are_read_one_by_one_give_the_same_probe(name, data):
    """Bit for bit as from the features of all layers in memory."""
    probe = reader(name, data)
    scored, fitted = score_probe(name, probe, data)
    whole, again = score_probe(name, replace(probe, by_layer=False), data)
    assert np.array_equal(scored.test, whole.test)
    assert np.array_equal(fitted.weight, again.weight)
    assert fitted.val_auroc == again.val_auroc
