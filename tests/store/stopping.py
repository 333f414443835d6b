"""Loaders that are stopped and resumed at random, with other batch sizes, threads and ranks."""

import json
from typing import Any

import numpy as np


def visits(batch: Any) -> list[tuple[int, int]]:
    """The row, and of tokens the position, of everything in a batch."""
    positions = batch.rows if batch.positions is None else batch.positions
    return list(zip(batch.rows.tolist(), positions.tolist(), strict=True))


def check_stops(kind: Any, stores: Any, n_stops: int, seed: int = 3, **options: Any) -> None:
    """Stop an epoch about `n_stops` times, and epochs as often as that needs: all visits come."""
    rng = np.random.default_rng(seed)
    (whole,) = kind(stores, ["tokens"], 10**6, True, seed, **options)
    wanted = visits(whole)
    while n_stops > 0:
        found: list[tuple[int, int]] = []
        state = None
        while len(found) < len(wanted):
            world_size = int(rng.integers(1, 4))
            size = int(rng.integers(2, 2 + len(wanted) // 4))
            ranks = [
                kind(
                    stores,
                    ["tokens"],
                    size,
                    True,
                    seed,
                    rank=rank,
                    world_size=world_size,
                    num_workers=int(rng.integers(0, 3)),
                    **options,
                )
                for rank in range(world_size)
            ]
            for loader in ranks if state else ():
                loader.load_state_dict(json.loads(state))
            steps = list(map(iter, ranks))
            for _ in range(int(rng.integers(1, 1 + len(ranks[0])))):
                shares = [visits(next(step)) for step in steps]
                for i in range(max(map(len, shares))):
                    found += [share[i] for share in shares if i < len(share)]
            (state,) = {json.dumps(loader.state_dict()) for loader in ranks}
            for step in steps:
                step.close()
            n_stops -= 1
        assert found == wanted
        assert json.loads(state)["epoch"] == 1
