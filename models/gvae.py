"""GVAE + LSTM: the graph encoder made variational; the LSTM reads the latent of each layer.

The loss is BCE + 0.1 * mean over layers of (reconstruction + kl_weight * KL), after Kingma and
Welling, arXiv:1312.6114, and the variational graph autoencoder, arXiv:1611.07308. Two things are
deliberate: the reconstruction target is detached and its squared error averaged, because otherwise
shrinking the encoder's output lowers the loss; and z is sampled in training only, so that at
evaluation, where z = mu, scores are deterministic.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from models.gnn import GnnDetLstm, GraphDetector
from models.lstm import LayerLstm

__all__ = ["GvaeLstm", "GvaeOutputs", "kl_divergence"]

LOGVAR_LIMIT = 10.0  # exp(10) is still far from overflow in float32, and in bfloat16
AUXILIARY_WEIGHT = 0.1  # of reconstruction + KL against the classification loss


class GvaeOutputs(NamedTuple):
    """logits (B,); pooled and rebuilt (B, L, f); mu and logvar (B, L, latent_dim); all float32."""

    logits: Tensor
    pooled: Tensor
    rebuilt: Tensor
    mu: Tensor
    logvar: Tensor


class GvaeLstm(GraphDetector):
    """Encoder -> mu, logvar -> z -> `LayerLstm`, and a decoder MLP from z to the encoder's vector.

    Shapes
    ------
    hidden_states (n_tokens, L, d) and attn_mean (n_pairs, L), packed -> logits (B,)
    """

    options = (*GnnDetLstm.options, "latent_dim", "kl_weight")

    def __init__(
        self,
        hidden_size: int,
        n_layers: int = 1,
        gnn_hidden: int = 128,
        latent_dim: int = 128,
        lstm_hidden: int = 128,
        num_lstm_layers: int = 2,
        dropout: float = 0.3,
        kl_weight: float = 0.01,
        **graphs: Any,
    ) -> None:
        super().__init__(hidden_size, n_layers, gnn_hidden, **graphs)
        n_features = self.feature_size
        self.kl_weight = kl_weight
        self.to_mu = nn.Linear(n_features, latent_dim)
        self.to_logvar = nn.Linear(n_features, latent_dim)
        self.decoder = nn.Sequential(
            nn.Linear(latent_dim, gnn_hidden), nn.ReLU(), nn.Linear(gnn_hidden, n_features)
        )
        self.layers = LayerLstm(latent_dim, lstm_hidden, num_lstm_layers, dropout)

    def classify(self, features: Tensor) -> GvaeOutputs:
        pooled = features  # (B, L, f)
        mu = self.to_mu(pooled)  # (B, L, z)
        logvar = self.to_logvar(pooled).clamp(-LOGVAR_LIMIT, LOGVAR_LIMIT)  # (B, L, z)
        z = mu + torch.randn_like(mu) * (0.5 * logvar).exp() if self.training else mu  # (B, L, z)
        return GvaeOutputs(self.run(self.layers, z), pooled, self.decoder(z), mu, logvar)

    def loss(self, outputs: GvaeOutputs, labels: Tensor) -> Tensor:
        reconstruction = F.mse_loss(outputs.rebuilt, outputs.pooled.detach())
        kl = kl_divergence(outputs.mu, outputs.logvar).mean()
        auxiliary = reconstruction + self.kl_weight * kl
        return super().loss(outputs, labels) + AUXILIARY_WEIGHT * auxiliary


def kl_divergence(mu: Tensor, logvar: Tensor) -> Tensor:
    """KL(N(mu, exp(logvar)) || N(0, 1)) summed over the last axis: (..., z) -> (...,), in nats."""
    return -0.5 * (1 + logvar - mu.square() - logvar.exp()).sum(dim=-1)
