"""The ICR probe against its layers one by one."""

import numpy as np
import torch


def normed(rows):
    """Each row without its mean, divided by its deviation."""
    rows = rows - rows.mean(1, keepdims=True)
    return rows / np.sqrt(rows.var(1, keepdims=True) + 1e-5)


def test_the_formula(build, pack, traces, set_answer):
    """Means over the answer's tokens, and the MLP of 128, 64 and 32."""
    set_answer(traces[0], 2, 2)
    detector = build("icr_probe").eval()
    kept = [traces[i] for i in (0, 2, 4)]
    found = detector(pack(kept)).logits.detach()
    answers = [slice(2, 4), slice(1, 9), slice(1, 7)]
    hidden = np.stack(
        [one["icr"].double().numpy()[part].mean(0) for one, part in zip(kept, answers, strict=True)]
    )
    linear = [one for one in detector.mlp if isinstance(one, torch.nn.Linear)]
    assert [one.out_features for one in linear] == [128, 64, 32, 1]
    for number, layer in enumerate(linear, 1):
        weight, bias = (one.detach().double().numpy() for one in (layer.weight, layer.bias))
        hidden = hidden @ weight.T + bias
        if number < len(linear):
            hidden = normed(hidden)
            hidden = np.where(hidden > 0, hidden, 0.01 * hidden)
    np.testing.assert_allclose(found, hidden[:, 0], atol=1e-5)


def test_the_embedding_that_is_kept_hides_no_layer(build, pack, traces):
    """Its scores are NaN; normalised by themselves, those of the other layers still count."""
    detector = build("icr_probe", input_scale="norm").eval()
    kept = [one | {"icr": one["icr"].clone()} for one in traces[2:5]]
    for one in kept:
        one["icr"][:, 0] = torch.nan
    features = detector.encode(pack(kept))
    assert features.isfinite().all()
    assert (features.std(1) > 0.5).any()
