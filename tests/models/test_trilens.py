"""TriLens: entropies of the logit lens over an answer, against a loop."""

import numpy as np
import pytest
import torch

from models import PROBES
from models.trilens import entropies

NAMES = ("lens_entropy", "lens_entropy_attention", "lens_entropy_mlp")


def test_means_equal_a_loop_over_layers(pack, traces, set_answer):
    """The first token, the mean of the first three and the mean of all, of each layer and of each
    of its three states; NaN for an answer of no tokens."""
    answers = [(1, 4), (1, 0), (2, 5), (1, 1), (6, 1)]
    for trace, (start, n) in zip(traces, answers, strict=True):
        set_answer(trace, start, n)
    batch = pack(traces)
    found = entropies(batch)
    assert found.shape == (5, 3, 9)
    del batch.columns[NAMES[1]]
    torch.testing.assert_close(entropies(batch), found[..., :3], equal_nan=True)
    for trace, (start, n), features in zip(traces, answers, found, strict=True):
        for place in range(9):
            name, layer = NAMES[place // 3], place % 3
            values = [float(trace[name][start + i, layer]) for i in range(n)]
            for kept, number in zip((1, 3, n), features[:, place], strict=True):
                expected = np.mean(values[:kept]) if n else np.nan
                np.testing.assert_allclose(number, expected, rtol=1e-6)


@pytest.mark.parametrize("prompt_len", [-1, 5])
def test_nan_without_an_answer(prompt_len, pack, traces, set_answer):
    """A prompt of unknown length, and one that is the whole trace."""
    set_answer(traces[0], prompt_len, 3)
    assert entropies(pack(traces[:1])).isnan().all()


def test_the_reductions_have_names():
    """One for each alternative, so that results can say which was chosen."""
    rng = np.random.default_rng(0)
    features = torch.from_numpy(rng.random((60, 3, 4)))
    labels = (features[:, 2, 1] > 0.5).long().numpy()
    probe = PROBES["trilens"]
    fitted = probe.fit(features, labels, features, labels)
    assert probe.alternatives[fitted.alternative] == "all tokens"
    assert len(probe.alternatives) == 3
