"""Processes that train together were given the same settings, and see the same rows.

On several hosts each process opens the store for itself, and its file system may still show an
older state of it: then batches would be of different rows, or the processes would wait for each
other for ever.
"""

from __future__ import annotations

import socket
from dataclasses import asdict, fields
from typing import Any

import torch
from lightning_fabric import Fabric

from train.config import Config, flag_of
from train.data.batches import TrainingData
from train.errors import ConfigError
from train.files import Json
from train.outside.records import outside_differences

__all__ = ["check_agreement", "find_disagreement"]


def check_agreement(fabric: Fabric, config: Config, data: TrainingData) -> None:
    """Raise ConfigError, in every process, unless all of them are about to do the same."""
    if fabric.world_size == 1:
        return
    records: list[Any] = [None] * fabric.world_size
    torch.distributed.all_gather_object(records, describe_process(config, data))
    message = find_disagreement(records)
    if message is not None:
        raise ConfigError(message)


def describe_process(config: Config, data: TrainingData) -> Json:
    """What has to be equal in all processes, and the host of this one."""
    settings = asdict(config)
    decisive = {field.name for field in fields(Config) if not field.metadata["free"]}
    return {
        "host": socket.gethostname(),
        "store": {
            "uuid": data.store.uuid,
            "generation": data.store.generation,
            "rows": len(data.store),
        },
        "splits": data.splits.digest(),
        "settings": {name: settings[name] for name in sorted(decisive)},
        "outside": settings["outside"],
    }


def find_disagreement(records: list[Json]) -> str | None:
    """What differs between the first process and another; None if nothing does.

    `records` are what `describe_process` gave, by the number of the process.
    """
    first = records[0]
    for rank, other in enumerate(records):
        differences = _differences(first, other)
        if differences:
            return (
                f"torchrun: process {rank} on {other['host']}: expected "
                f"{'; '.join(differences)}; give all hosts the same command and files, and where "
                "the store has just been written, wait until all of them see it"
            )
    return None


def _differences(first: Json, other: Json) -> list[str]:
    """Each as 'what: as in process 0, found that'."""
    pairs = [(f"store: {key}", first["store"][key], other["store"][key]) for key in first["store"]]
    pairs.append(("splits: digest", first["splits"], other["splits"]))
    for name, value in first["settings"].items():
        pairs.append((flag_of(name), value, other["settings"][name]))
    pairs += outside_differences(first["outside"], other["outside"])
    return [
        f"{what} {expected!r:.80} as in process 0 on {first['host']}, found {found!r:.80}"
        for what, expected, found in pairs
        if expected != found
    ]
