"""One file with all that scores need: weights as safetensors, everything else as JSON beside them.

Nothing in it is run. What it was made from may be gone, the run and its store.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

import torch
from crc32c import crc32c
from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from train.errors import CheckpointError, ConfigError
from train.evaluate.results import Results
from train.files import Json, replace_file
from train.outside import LOADED
from train.records import as_json, from_json
from train.run.checkpoint import Checkpoint, RunDirectory
from train.run.scoring import TrainedModels, checkpoints_of, needed_by, trained_models

__all__ = ["read_export", "write_export"]

FORMAT = "trace-guard 2"
MAX_BYTES = 4 << 30  # of which safetensors takes 100 MB of JSON
DAMAGE = (  # what reading any bytes may raise
    SafetensorError,
    ValueError,
    LookupError,
    TypeError,
    RuntimeError,
    OSError,
)
TENSOR = "tensor"  # {TENSOR: name} stands for a tensor in the JSON


@dataclass
class Content:
    """What is not a tensor."""

    results: Results
    checkpoints: dict[str, Json]  # by the names of their files
    names: list[str] | None = None  # of the methods, as they were chosen


def write_export(path: Path, models: TrainedModels, names: Sequence[str]) -> None:
    """Write the methods of these names; raises ConfigError for one from outside."""
    for name in names:
        if name in LOADED:
            raise ConfigError(
                f"{path}: {name} is from {LOADED[name].origin.place}: its code would not be in the "
                "file; export the other methods, and give the run's directory with that file"
            )
    tensors: dict[str, torch.Tensor] = {}
    checkpoints: Json = {
        file.name: take_tensors(content, file.name, tensors)
        for file, content in checkpoints_of(names, models).items()
    }
    text = json.dumps(as_json(Content(short_results(models, names), checkpoints, list(names))))
    metadata = {"format": FORMAT, "content": text, "crc32c": checksum(text, tensors)}
    with replace_file(path) as temporary:
        temporary.write_bytes(save(tensors, metadata))


def checksum(text: str, tensors: Mapping[str, torch.Tensor]) -> str:
    """CRC32C of the content and of the tensors, in the order of their names: kinds and bytes."""
    crc = crc32c(text.encode())
    for name, tensor in sorted(tensors.items()):
        crc = crc32c(f"{name} {tuple(tensor.shape)} {tensor.dtype}\n".encode(), crc)
        crc = crc32c(tensor.reshape(-1).view(torch.uint8).numpy().data, crc)
    return f"{crc:08x}"


def short_results(models: TrainedModels, names: Sequence[str]) -> Results:
    """The results without what is of other methods, of this machine, or of the tests between
    methods."""
    results = models.results
    needed = needed_by(names, models)
    config = results.config | {"store": None, "output_dir": None}
    return replace(
        results,
        models={name: one for name, one in results.models.items() if name in needed},
        baselines={name: one for name, one in results.baselines.items() if name in needed},
        config=config,
        store=replace(results.store, path=results.store.name, id_prefixes={}),
        comparisons=[],
        verdict=None,
        strata=None,
        explained=None,
        splits=None,
        transfer=None,
        remarks=[],
    )


def take_tensors(value: object, place: str, tensors: dict[str, torch.Tensor]) -> object:
    """A value as JSON has it; its tensors are put beside it, by their place in it."""
    if isinstance(value, torch.Tensor):
        tensors[place] = value.clone(memory_format=torch.contiguous_format)
        return {TENSOR: place}
    if isinstance(value, Mapping):
        return {key: take_tensors(one, f"{place}/{key}", tensors) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [take_tensors(one, f"{place}/{i}", tensors) for i, one in enumerate(value)]
    return value


def put_tensors(value: object, tensors: Mapping[str, torch.Tensor]) -> object:
    """The opposite of `take_tensors`."""
    if isinstance(value, dict):
        if value.keys() == {TENSOR}:
            return tensors[value[TENSOR]]
        return {key: put_tensors(one, tensors) for key, one in value.items()}
    return [put_tensors(one, tensors) for one in value] if isinstance(value, list) else value


def read_export(path: Path) -> TrainedModels:
    """Read what `write_export` wrote; raises CheckpointError for another file."""
    try:
        n_bytes = path.stat().st_size
        if n_bytes > MAX_BYTES:
            raise ValueError(f"{n_bytes:,} bytes, of which {MAX_BYTES:,} are read at most")
        with safe_open(path, "pt") as file:
            metadata = file.metadata() or {}
            if metadata.get("format") != FORMAT:
                raise ValueError(f"format {metadata.get('format')!r:.80}")
            names = list(file.keys())
            tensors = {name: file.get_tensor(name) for name in names}
        found = checksum(metadata["content"], tensors)
        if metadata["crc32c"] != found:
            raise ValueError(f"checksum {found} instead of {metadata['crc32c']!r:.80}")
        content = from_json(Content, json.loads(metadata["content"]))
        checkpoints: dict[Path, Checkpoint] = {
            Path(name): cast(Checkpoint, put_tensors(one, tensors))
            for name, one in content.checkpoints.items()
        }
    except DAMAGE as error:
        raise CheckpointError(
            f"{path}: expected a file of {FORMAT}, as export writes it, found: {error!s:.200}; "
            "export the run again"
        ) from error
    directory = RunDirectory(Path(), content.results.run, memory=checkpoints)
    return replace(trained_models(content.results, directory, path), exported=content.names)
