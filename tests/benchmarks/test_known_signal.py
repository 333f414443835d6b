"""What the benchmark of known signals expects of a method, and what it says of what it finds."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.special import expit

from benchmarks.harness import RESULTS
from benchmarks.known_signal import earlier_rows, judge
from benchmarks.signals import SIGNALS, rows_of, told_by
from benchmarks.tables import read_table
from models import DETECTORS, PROBES

ATTENTION = {
    *("attn_mean", "attn_diag", "attn_colsum", "attn_prev", "attn_entropy"),
    *("attn_pmass", "attn_amass", "attn_edges", "attentions"),
}
OF_CONTEXT = {"attn_cmass", "attn_centropy", "attn_ccosine", "attn_cjs"}
SCORES = {
    *("semantic_entropy", "semantic_entropy_discrete", "eigenscore", "selfcheck_nli"),
    "lexical_similarity",
}


def rows(store, **areas):
    """Rows of a table, whose AUROCs have a deviation of .02 by chance."""
    return {
        (store, method): {"store": store, "method": method, "auroc": area, "by_chance": 0.02}
        for method, area in areas.items()
    }


@pytest.mark.parametrize(
    ("store", "columns"),
    [
        ("one_layer", {"hidden_states", "hs_last", "hs_mean"}),
        ("one_token", {"hidden_states", "hs_mean", "token_label"}),
        ("order", {"hidden_states"}),
        ("graph", {"hidden_states"}),
        ("sink", {*ATTENTION, "attn_cmass", "attn_cjs"}),
        ("focus", {*ATTENTION, *OF_CONTEXT, "attn_edge_ends"}),
        ("least_logprob", {"logprob"}),
        ("unsure", {"logprob", "entropy", "lens_entropy", "icr"}),
        ("samples", {"hidden_states", "hs_last", "hs_mean", "hs_prompt", *SCORES}),
        ("wide", {"hs_last"}),
        ("duplicates", set()),
        ("null", set()),
    ],
)
def test_columns_that_tell_the_label(store, columns):
    """A sum that a signal leaves alone tells nothing."""
    assert told_by(SIGNALS[store]) == columns


@pytest.mark.parametrize("store", [name for name in SIGNALS if SIGNALS[name].reference])
def test_a_reference_is_the_log_likelihood_ratio(store, monkeypatch):
    """Its probabilities are calibrated: no function of a trace ranks better."""
    monkeypatch.setattr("benchmarks.signals.N_TEST", 500)
    signal = replace(SIGNALS[store], n_train=0)
    traces = [trace for _, trace in rows_of(signal, seed=1)]
    ratio = np.clip([signal.reference(trace) for trace in traces], -50, 50)
    probability = expit(ratio)
    error = [trace["label"] for trace in traces] - probability
    deviation = np.sqrt(probability * (1 - probability))
    for weight in (np.ones_like(ratio), ratio):
        assert abs(error @ weight) < 3.5 * np.linalg.norm(deviation * weight) + 0.5


def test_each_method_has_a_signal_to_find():
    found = {method for signal in SIGNALS.values() for method in signal.finds}
    assert {*DETECTORS, *PROBES} <= found


FOUND = {"reference": 0.96, "state_sequence": 0.94, "logreg_mean": 0.55, "act_vit": 0.35}
MISSED = {"reference": 0.96, "state_sequence": 0.93, "logreg_mean": 0.35}


def test_what_is_expected():
    """Near the reference; chance, on either side, where no column that is read tells the label;
    without a reference nothing."""
    found, missed, unknown = (
        {row["method"]: row for row in judge(rows("order", **areas))}
        for areas in (FOUND, MISSED, {"state_sequence": 0.9})
    )
    assert found["state_sequence"]["bound"] == "0.940"
    for method, expected in (
        ("state_sequence", "at least"),
        ("logreg_mean", "chance, at most"),
    ):
        assert found[method]["expected"] == missed[method]["expected"] == expected
        assert (found[method]["as_expected"], missed[method]["as_expected"]) == ("yes", "NO")
    assert {found["act_vit"][name] for name in ("expected", "bound", "as_expected")} == {""}
    assert unknown["state_sequence"]["as_expected"] == ""


def test_the_committed_table_is_judged_by_the_present_rules():
    """And has all that should find a signal beside its reference."""
    table = judge(earlier_rows(RESULTS))
    committed = read_table(RESULTS / "known_signal.csv").rows
    assert [row["as_expected"] for row in table] == [row["as_expected"] for row in committed]
    for name, signal in SIGNALS.items():
        methods = {row["method"] for row in committed if row["store"] == name}
        assert {"reference", *signal.finds} <= methods or signal.reference is None, name
