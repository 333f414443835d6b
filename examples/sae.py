"""Train a sparse autoencoder (top-k, Gao et al. 2024) on the states of all tokens at one layer.

Run it in the checkout, where `make train` has built the example store; a minute on two cores:

    python examples/sae.py data/example.zarr sae.png
"""

import sys

import matplotlib.pyplot as plt
import torch

from store import TokenLoader

LAYER, FEATURES, K, EPOCHS = "3", 512, 8, 4


class TopK(torch.nn.Module):
    """States (n, d) -> codes (n, FEATURES), at most K of them above 0, and states made of them."""

    def __init__(self, states: torch.Tensor) -> None:
        super().__init__()
        self.mean = torch.nn.Parameter(states.mean(0))
        self.decoder = torch.nn.Parameter(torch.randn(FEATURES, states.shape[1]) / 8)
        self.encoder = torch.nn.Parameter(self.decoder.detach().T.clone())

    def forward(self, states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        values, features = ((states - self.mean) @ self.encoder).relu().topk(K)
        codes = torch.zeros(len(states), FEATURES).scatter(1, features, values)
        return codes, codes @ self.decoder + self.mean


def main(path: str, picture: str) -> None:
    """Train, and draw the share of the variance that is not explained."""
    select = {"hidden_states": {"layers": LAYER}}
    loader = TokenLoader(path, ["hidden_states"], 1024, True, select=select, num_workers=1)
    torch.manual_seed(0)
    model = TopK(next(iter(loader))["hidden_states"].flatten(1).float())
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    losses = []
    while loader.epoch < EPOCHS:
        n_used = torch.zeros(FEATURES)
        for batch in loader:
            states = batch["hidden_states"].flatten(1).float()  # (1024, 1, d) of float16
            codes, found = model(states)
            loss = (found - states).square().sum() / (states - states.mean(0)).square().sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            n_used += (codes > 0).sum(0)
        print(f"epoch {loader.epoch}: {losses[-1]:.3f} unexplained, {(n_used > 0).sum()} features")
    _, (left, right) = plt.subplots(1, 2, figsize=(9, 3.5), layout="constrained")
    left.semilogy(losses)
    left.set(xlabel="step", ylabel="variance unexplained")
    right.semilogy(n_used.sort(descending=True).values)
    right.set(xlabel="feature", ylabel="tokens that have it")
    plt.savefig(picture)


if __name__ == "__main__":
    main(*sys.argv[1:])
