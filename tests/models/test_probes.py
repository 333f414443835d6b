"""What holds for every probe of the registries, whatever its features are."""

import pytest
import torch

from models import BASELINES, CONTROLS, DETECTORS, PROBES
from store.traces.columns import TRACE_COLUMNS
from store.transform.samples.names import NEEDS

NUMERIC = {name: CONTROLS[name] for name in ("prompt_state", "answer_length")}
ALL = BASELINES | PROBES | NUMERIC
# of every token, layer and head, which a store has in float16
HALVES = [name for name, column in TRACE_COLUMNS.items() if column.axes[1:] == ("layers", "heads")]
every_probe = pytest.mark.parametrize("probe", ALL.values(), ids=ALL)


def test_names_are_of_one_thing_each():
    """Detectors, probes, baselines and controls share no name: results list them side by side."""
    registries = DETECTORS, PROBES, BASELINES, CONTROLS
    names = [name for registry in registries for name in registry]
    assert len(set(names)) == len(names)


@every_probe
def test_columns_suffice(probe, pack, traces):
    """A probe reads no column that it does not declare, and gives (B, A, k) floats."""
    batch = pack(traces)
    batch.columns = {name: batch.columns[name] for name in probe.columns if name in batch.columns}
    features = probe.features(batch)
    assert features.ndim == 3
    assert len(features) == 5
    assert features.is_floating_point()


@every_probe
def test_a_batch_gives_the_features_of_its_traces(probe, pack, traces):
    """The features of a trace depend neither on what it is batched with nor on its place, bit for
    bit."""
    together = probe.features(pack(traces))
    alone = torch.cat([probe.features(pack([trace])) for trace in traces])
    torch.testing.assert_close(together, alone, rtol=0, atol=0, equal_nan=True)
    order = [3, 0, 4, 2, 1]
    permuted = probe.features(pack([traces[i] for i in order]))
    torch.testing.assert_close(permuted, together[order], rtol=0, atol=0, equal_nan=True)


@every_probe
def test_only_an_answer_may_be_missing(probe, pack, traces, set_answer):
    """Traces of one token have finite features, but for numbers of an answer that they have not, as
    one of unknown place, an empty one, and one that was cut off; an answer without tokens has its
    length and the log-probability of its end."""
    set_answer(traces[0], -1, 3)
    set_answer(traces[2], 4, 0)
    set_answer(traces[3], 2, 3)
    features = probe.features(pack(traces))
    if probe is BASELINES["uncertainty"]:
        assert features[:, :, -2:].isfinite().all()
        features = features[:, :, :-2]
    has_answer = {"prompt_len", "answer_len"} <= set(probe.columns)
    assert features[4].isfinite().all()
    for i in (0, 1, 2, 3):
        assert (features[i].isnan() if has_answer else features[i].isfinite()).all()


def test_probes_of_one_number_read_its_column(pack, traces):
    """Each column that is derived from samples has a probe of its name; the length is a control."""
    for name in NEEDS:
        assert PROBES[name].columns == (name,)
    features = CONTROLS["answer_length"].features(pack(traces))
    assert features.flatten().tolist() == [4, 0, 8, 1, 6]


@every_probe
def test_half_precision_changes_features_by_rounding(probe, pack, traces):
    """Attention as a store keeps it, in float16, gives nearly what float32 gives."""
    exact = probe.features(pack(traces))
    for trace in traces:
        trace.update({name: trace[name].half() for name in trace if name in HALVES})
    torch.testing.assert_close(
        probe.features(pack(traces)), exact, rtol=2e-3, atol=2e-3, equal_nan=True
    )
