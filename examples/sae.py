"""Train a sparse autoencoder (top-k, Gao et al. 2024) on the states of a layer's tokens.

Run it in the checkout, where `make train` has built the example store; two minutes on two cores:

    python examples/sae.py data/example.zarr sae.png
"""

import sys

import matplotlib.pyplot as plt
import torch

from store import TokenLoader

LAYER, N_FEATURES, K, EPOCHS = "3", 512, 8, 4
MEASURED = 2**14  # tokens


class TopK(torch.nn.Module):
    """(n, d) -> codes (n, N_FEATURES), of which K are not 0, and what they say of the states."""

    def __init__(self, states: torch.Tensor) -> None:
        super().__init__()
        self.mean = torch.nn.Parameter(states.mean(0))
        directions = torch.nn.functional.normalize(torch.randn(N_FEATURES, states.shape[1]))
        self.encoder = torch.nn.Parameter(directions.T.clone())
        self.decoder = torch.nn.Parameter(directions)

    def forward(self, states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        values, features = ((states - self.mean) @ self.encoder).relu().topk(K)
        codes = torch.zeros(len(states), N_FEATURES).scatter(1, features, values)
        return codes, codes @ self.decoder + self.mean


def main(path: str, picture: str) -> None:
    """Train, print the part of the variance that is not explained, and draw it."""
    select = {"hidden_states": {"layers": LAYER}}
    loader = TokenLoader(path, ["hidden_states"], 1024, True, select=select, num_workers=1)
    probe = TokenLoader(path, ["hidden_states"], MEASURED, True, seed=1, select=select)
    measured = next(iter(probe))["hidden_states"].flatten(1).float()
    torch.manual_seed(0)
    model = TopK(measured)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    losses = []
    while loader.epoch < EPOCHS:
        for batch in loader:
            states = batch["hidden_states"].flatten(1).float()  # (1024, 1, d) of float16
            loss = (model(states)[1] - states).square().sum() / (states - model.mean).square().sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        print(f"epoch {loader.epoch}: unexplained variance {losses[-1]:.3f}")
    with torch.no_grad():
        rates = (model(measured)[0] > 0).float().mean(0)
    print(f"{(rates > 0).sum()} of {N_FEATURES} features are used")
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.5), layout="constrained")
    left.semilogy(losses)
    left.set(xlabel="step", ylabel="unexplained variance")
    right.semilogy(rates.sort(descending=True).values)
    right.set(xlabel="feature", ylabel="fraction of tokens with it")
    figure.savefig(picture)


if __name__ == "__main__":
    main(*sys.argv[1:])
