"""What OpenHalDet saves: hidden states of generated tokens in HDF5, and samples in JSON lines.

`02_hidden_states.h5` has a group a sample, in it `generated_tokens/token_NNN/layer_LL` `(hidden,)`,
the output of block LL (from 0) in the step that made token NNN: the input of that step was the
token before. Samples are in `03_final_scored_metadata.jsonl` beside it; before they are judged, in
`02_extracted_metadata.jsonl` (github.com/Nellie179/Hallucination-Detection).
"""

import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from ml_dtypes import bfloat16

from store.errors import NotFoundError, RefusedError, SchemaError
from store.importers.arrays.array_files import check_inside, open_file
from store.importers.arrays.contents import check_bytes
from store.importers.damage import DAMAGE, damage
from store.importers.files import Given
from store.importers.source import FileSource, Options, Row
from store.sources.questions import QuestionFile, read_question_file
from store.traces.fields import find_fields

__all__ = ["OpenHalDetSource", "is_openhaldet"]

SAMPLES = ("03_final_scored_metadata.jsonl", "02_extracted_metadata.jsonl")  # the first there is
TOKENS = "generated_tokens"
MODEL, CONFIG = "llm_model", "token_config"  # attributes of a file
BACKWARD, FORWARD = "backward", "forward"  # modes: the last tokens, the first ones; else all


def is_openhaldet(item: Given) -> bool:
    """Return whether a file is of OpenHalDet; raises what is wrong with it."""
    if item.kind != "HDF5":
        return False
    with open_file(item.path) as file:
        return {MODEL, CONFIG} <= file.attrs.keys()


class OpenHalDetSource(FileSource):
    """The samples in OpenHalDet's files, with at most `max_bytes` of one in memory.

    Numbers of the layers are those of `extract`: layer_00 is 1.
    """

    def __init__(self, given: Sequence[Given], options: Options, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._read = {item: _read_samples(item.path) for item in given}
        self._samples = {
            item: {question["question_id"]: question for question in file.questions}
            for item, file in self._read.items()
        }
        questions = [*chain.from_iterable(file.questions for file in self._read.values())]
        self._has_context = any("context" in question for question in questions)
        self.fields = find_fields([one.get("fields", {}) for one in questions], options.fields)
        self._model, self._mode, self._layers = _head_of(given)
        super().__init__(given, options._replace(layers=[i + 1 for i in self._layers]))

    def _describe(self) -> dict[str, Any]:
        return {"format": "OpenHalDet", "model": self._model, "tokens": self._mode}

    def _records(self, item: Given) -> Iterator[tuple[int, Any]]:
        with open_file(item.path) as file:
            yield from enumerate((file, name) for name in file)

    def _row(self, item: Given, record: tuple[Any, str], i: int) -> tuple[str, Row]:
        file, own_id = record
        question = self._samples[item].get(own_id)
        if question is None:
            raise SchemaError(f"expected a line with the sample_id {own_id!r:.100}, found none")
        with damage():
            row = self._states(_inner(file, own_id))
        row |= {
            "question_id": own_id,
            "question": question["question"],
            "answer": question["response"],
            "references": json.dumps(question["answers"], ensure_ascii=False),
            "label": question.get("label", -1),
        }
        if self._has_context:
            row["context"] = question.get("context", "")
        return own_id, row | self.fields.row(question.get("fields", {}))

    def _states(self, group: object) -> Row:
        """The columns of the saved tokens; a step has the id and text of the token that it made."""
        tokens = _inner(group, TOKENS)
        steps = [_inner(tokens, name) for name in sorted(tokens, key=_number)]
        numbers = [_number(step.name) for step in steps]
        if not steps or numbers != [*range(numbers[0], numbers[0] + len(steps))]:
            raise SchemaError(f"{TOKENS}: expected tokens in a row, found {numbers!r:.100}")
        states = np.stack([self._state(step, len(steps)) for step in steps])
        made = [(step.attrs["token_id"], str(step.attrs["text"])) for step in steps[:-1]]
        prompt_len = int(numbers[0] == 0)  # its last token is the input of the first step
        row: Row = {
            "hidden_states": states,
            "tokens": np.array([-1, *(token for token, _ in made)], np.int32),
            "token_texts": json.dumps(["", *(text for _, text in made)], ensure_ascii=False),
            "prompt_len": np.int32(prompt_len),
            "answer_len": np.int32(len(steps) - prompt_len),
        }
        ends = {"hs_last": states[-1]} if self._mode != FORWARD else {}
        return row | ends | ({"hs_prompt": states[0]} if self._mode != BACKWARD else {})

    def _state(self, step: Any, n_steps: int) -> np.ndarray:
        """The state of one step, `(layers, hidden)`."""
        layers = {_number(name): name for name in step}
        if sorted(layers) != self._layers:
            raise SchemaError(
                f"{step.name:.100}: expected the layers {self._layers!r:.80} as in the first "
                f"sample, found {sorted(layers)!r:.80}"
            )
        found = [_inner(step, layers[i]) for i in self._layers]
        for dataset in found:
            check_inside(dataset)
            check_bytes(dataset.nbytes * len(found) * n_steps, self._max_bytes, dataset.name)
        state = np.stack([dataset[()] for dataset in found])
        return state.view(bfloat16) if state.dtype == "V2" else state  # as h5py writes it

    def _missing(self) -> Iterator[str]:
        for item, file in self._read.items():
            yield from file.left_out.messages
            with open_file(item.path) as groups:
                missing = [name for name in self._samples[item] if name not in groups]
            for name in missing:
                yield f"sample {name!r:.100}: expected its states in {item.path}, found none"


def _read_samples(states: Path) -> QuestionFile:
    """Read the samples that lie beside a file of states."""
    paths = [states.with_name(name) for name in SAMPLES]
    path = next(filter(Path.exists, paths), None)
    if path is None:
        raise NotFoundError(
            f"{states}: expected {' or '.join(SAMPLES)} beside it, found neither; copy it there"
        )
    return read_question_file(path)


def _head_of(given: Sequence[Given]) -> tuple[str, str, list[int]]:
    """Of which model the files are, which tokens are saved, and the layers of the first sample.

    Raises SchemaError for several models or modes, and where no sample has states.
    """
    found: dict[tuple[str, str], Given] = {}
    layers: list[int] = []
    for item in given:
        with open_file(item.path) as file:
            config = dict(json.loads(file.attrs[CONFIG]))
            found.setdefault((str(file.attrs[MODEL]), str(config.get("mode", BACKWARD))), item)
            for name in file if not layers else ():
                # what is wrong with a sample is reported as it is imported
                with suppress(*DAMAGE), damage():
                    tokens = _inner(_inner(file, name), TOKENS)
                    layers = sorted(map(_number, _inner(tokens, min(tokens))))
                    break
    first, *others = found
    if others:
        raise SchemaError(
            f"{found[others[0]].path}: expected {' and '.join(first)} tokens as in "
            f"{given[0].path}, found {' and '.join(others[0])}; import them apart"
        )
    if not layers:
        raise SchemaError(f"{given[0].path}: expected states of tokens, found none")
    return *first, layers


def _inner(group: Any, name: str) -> Any:
    """A member of a group; raises RefusedError for one in another file."""
    if hasattr(group.get(name, getlink=True), "filename"):
        raise RefusedError(f"{name!r:.80}: expected data in this file, found it in others; copy it")
    return group[name]


def _number(name: str) -> int:
    """'layer_07' -> 7."""
    return int(name.rpartition("_")[2])
