"""Train a linear probe in a plain torch loop that may be stopped at any step and goes on exactly.

Run it in the checkout; run the same command again to go on after Ctrl-C:

    python examples/custom_loop.py data/example.zarr probe.pt
"""

import sys
from pathlib import Path

import torch

from store import TraceLoader, TraceStore

EPOCHS, SAVE_EVERY = 3, 20  # steps


def main(path: str, checkpoint: str) -> None:
    """Train, saving model, optimizer and the loader's position together."""
    store = TraceStore.open(path)
    rows = torch.nonzero(store.column("label") >= 0).flatten().tolist()  # -1 is unlabelled
    loader = TraceLoader(store, ["hs_last", "label"], 32, shuffle=True, seed=0, rows=rows)
    n_layers, hidden_size = store.schema.columns["hs_last"].item_shape
    torch.manual_seed(0)
    model = torch.nn.Linear(n_layers * hidden_size, 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    parts = {"model": model, "optimizer": optimizer, "loader": loader}
    if Path(checkpoint).exists():
        saved = torch.load(checkpoint, weights_only=True)
        for name, part in parts.items():
            part.load_state_dict(saved[name])  # the loader goes on with the next row
    while loader.epoch < EPOCHS:
        for step, batch in enumerate(loader, start=1):
            logits = model(batch["hs_last"].float().flatten(1)).squeeze(1)
            loss = torch.nn.functional.binary_cross_entropy_with_logits(
                logits, batch["label"].float()
            )
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step % SAVE_EVERY == 0 or loader.state_dict()["position"] == 0:
                torch.save({name: part.state_dict() for name, part in parts.items()}, checkpoint)
        print(f"epoch {loader.epoch}: loss {loss.item():.4f}")


if __name__ == "__main__":
    main(*sys.argv[1:])
