"""LLM-Check's attention score: from one column, log-determinants of whole maps."""

import numpy as np
import torch

from models import PROBES
from models.llm_check import FLOOR, attention_score


def test_score_is_the_log_determinant(pack, traces):
    """The score of a layer is the mean over heads of numpy.linalg.slogdet, by token."""
    found = attention_score(pack(traces))
    assert found.shape == (5, 3, 1)
    for trace, scores in zip(traces, found[:, :, 0], strict=True):
        sign, logdet = np.linalg.slogdet(trace["maps"])  # (L, H)
        assert (sign == 1).all()
        np.testing.assert_allclose(
            scores, (logdet / trace["maps"].shape[-1]).mean(axis=1), rtol=1e-5, atol=1e-6
        )


def test_one_token_attends_to_itself(pack, traces):
    """log 1 = 0."""
    assert not attention_score(pack(traces[1:2])).any()


def test_what_half_precision_rounds_to_zero(pack, traces):
    """A diagonal of 0 counts as the smallest number that float16 holds."""
    assert torch.tensor(FLOOR).half() > 0
    assert torch.tensor(FLOOR / 2).half() == 0
    traces[1]["attn_diag"] = torch.zeros(1, 3, 2).half()
    np.testing.assert_allclose(attention_score(pack(traces[1:2])), np.log(FLOOR))


def test_validation_chooses_the_layer(pack, traces):
    """Each layer is an alternative of its own."""
    for trace in traces:
        trace["attn_diag"][:, :2] = 0.5
    features = attention_score(pack(traces * 20))
    labels = (features[:, 2, 0] > features[:, 2, 0].median()).long().numpy()
    fitted = PROBES["llm_check"].fit(features, labels, features, labels)
    assert fitted.val_auroc == (0.5, 0.5, 1.0)
    assert fitted.alternative == 2
