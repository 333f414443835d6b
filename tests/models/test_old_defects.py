"""Defects of the code that this project replaces, which must not come back: the detectors'
share."""

import torch


def test_evaluation_uses_the_mean_of_the_latent(build, pack, traces):
    """The variational detector samples z in training only; at evaluation z = mu."""
    detector, batch = build("gvae_lstm", dropout=0.0), pack(traces)
    detector.encoder.dropout.p = 0.0
    sampled = [detector(batch).logits for _ in range(2)]
    assert not torch.equal(*sampled)
    outputs = detector.eval()(batch)
    assert torch.equal(outputs.logits, detector.layers(outputs.mu))


def test_reconstruction_cannot_win_by_shrinking_the_encoder(build, pack, traces):
    """The target of the reconstruction gets no gradient, and twice the width does not double its
    error."""
    detector = build("gvae_lstm")
    outputs = detector(pack(traces))
    pooled = outputs.pooled.detach().requires_grad_()
    detector.loss(outputs._replace(pooled=pooled), torch.zeros(5)).backward()
    assert pooled.grad is None
    wider = outputs._replace(
        pooled=outputs.pooled.repeat(1, 1, 2), rebuilt=outputs.rebuilt.repeat(1, 1, 2)
    )
    torch.testing.assert_close(
        detector.loss(wider, torch.zeros(5)), detector.loss(outputs, torch.zeros(5))
    )
