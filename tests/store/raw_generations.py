"""Raw files as the six generations of the old extractor wrote them, and what is in them.

Written from the description of the formats alone; nothing of the importer is used. A `Generated`
trace is what a model computed: P prompt tokens, n tokens of the answer that were kept, m that were
cut off. `record(letter)` is the dict that a generation kept of it, `expected(letter)` what a store
must say.
"""

import gzip
import pickle
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch

from store.importers.files import find_given, of_older_formats
from store.importers.legacy.source import LegacySource
from store.importers.pickles import MAX_BYTES
from store.importers.source import Options
from store.labels.rule import ScoreTable
from store.write.build import build_store, open_begun

GENERATIONS = "ABCDEF"
BY_STEP = "ABCD"
UNIT = 1 / 256  # attention in units that float16 and every sum of them in float32 hold exactly


@dataclass(frozen=True)
class Model:
    """Its sizes: layers, heads, hidden size."""

    n_layers: int
    n_heads: int
    hidden: int


SMALL = Model(2, 2, 4)
LARGER = Model(5, 4, 16)


class Generated:
    """One trace of a model.

    Parameters
    ----------
    number
        Of the trace in its data set, and the seed of its values.
    kind
        "float16" or "float32" arrays, "torch.float16" or "torch.bfloat16" tensors.
    """

    def __init__(self, number, model=SMALL, kind="float16", beams=2, numbered=False):
        rng = np.random.default_rng([number, model.hidden])
        self.number, self.model, self.kind, self.beams = number, model, kind, beams
        self.numbered = numbered
        self.prompt_len = 1 + number % 4
        self.n_kept = 1 + (number // 2) % 5
        self.n_cut = number % 3 * (number % 10 != 9)
        self.id = f"tc_{number}"
        length = self.prompt_len + self.n_kept + self.n_cut
        self.sequence = rng.integers(3, 32_000, length)
        self.texts = [f"▁t{number}.{i} é" for i in range(length)]
        self.answers = [f"alias {number}", "b é"]
        states = rng.normal(size=(model.n_layers, length, model.hidden)).astype(np.float32)
        self.states = torch.from_numpy(states).to(self._torch_dtype).float().numpy()
        units = rng.integers(1, 64, (model.n_layers, model.n_heads, length, length))
        self.maps = (np.tril(units) * UNIT).astype(np.float32)

    @property
    def _torch_dtype(self):
        return getattr(torch, self.kind.removeprefix("torch."))

    def _array(self, values):
        """The values in the form that this file's version of the extractor kept."""
        values = np.ascontiguousarray(values)
        if self.kind.startswith("torch."):
            return torch.from_numpy(values).to(self._torch_dtype)
        return values.astype(self.kind)

    def n_states(self, letter):
        """T: by step the last kept token never went into the model."""
        return self.prompt_len + self.n_kept - (letter in BY_STEP)

    def record(self, letter):
        """The dict of a generation."""
        arrays = self._by_step() if letter in BY_STEP else self._per_layer()
        return arrays | getattr(self, f"_keys_{letter.lower()}")()

    def _per_layer(self):
        length = self.prompt_len + self.n_kept
        return {
            "hidden_states": [self._array(layer[:length]) for layer in self.states],
            "attentions": [self._array(layer[:, :length, :length]) for layer in self.maps],
        }

    def _by_step(self):
        p = self.prompt_len
        steps = [slice(0, p)] + [slice(p + i, p + i + 1) for i in range(self.n_kept - 1)]

        def beams(first):
            others = [np.full_like(first, 77)] * (self.beams - 1)
            return self._array(np.stack([first, *others]))

        return {
            "hidden_states": [[beams(layer[step]) for step in steps] for layer in self.states],
            "attentions": [
                [beams(layer[:, step, : step.stop]) for step in steps] for layer in self.maps
            ],
        }

    @property
    def _kept(self):
        return self.sequence[: self.prompt_len + self.n_kept]

    @property
    def _kept_texts(self):
        return self.texts[: self.prompt_len + self.n_kept]

    @property
    def _cut(self):
        return {
            "cutoff_method": "first_period" if self.n_cut else "no_period_found",
            "tokens_before_cutoff": self.n_kept,
            "tokens_after_cutoff": self.n_cut,
        }

    def _keys_a(self):
        keys = {
            "question": f"What is {self.number}?",
            "tokens": self._kept,
            "generated_text": f"What is {self.number}? It is.",
            "generated_answer": f"It is {self.number} é",
            "prompt_length": self.prompt_len,
            "num_layers": self.model.n_layers,
        }
        if self.numbered:
            keys |= {
                "example_id": self.number % 3,
                "global_example_id": self.number,
                "batch_number": self.number // 3,
                "ground_truth_answers": self.answers,
            }
        return keys

    def _keys_b(self):
        answer = {"generated_answer_clean": f"It is {self.number} é"}
        numbers = {"global_example_id": self.number}
        return (
            self._keys_a()
            | answer
            | numbers
            | self._cut
            | {"generated_answer": "It is. And", "tokens_full": self.sequence}
        )

    def _keys_c(self):
        return {
            "question": f"What is {self.number}?",
            "tokens": self._kept[self.prompt_len :],
            "tokens_decoded": self._kept_texts[self.prompt_len :],
            "generated_answer_clean": f"It is {self.number} é",
            "prompt_length": self.prompt_len,
            "ground_truth_answers": self.answers,
            "global_example_id": self.number,
            **self._cut,
        }

    def _keys_d(self):
        return {
            "question_id": self.id,
            "tokens": self._kept[self.prompt_len :],
            "tokens_decoded": self._kept_texts[self.prompt_len :],
            "generated_answer_clean": f"It is {self.number} é",
        }

    def _keys_e(self):
        return self._keys_d()

    def _keys_f(self):
        return self._keys_d() | {"tokens": self._kept, "tokens_decoded": self._kept_texts}

    def expected(self, letter):
        """The columns of a store, but for the file's name, score and label."""
        total = self.n_states(letter)
        p = self.prompt_len
        maps = self.maps[:, :, :total, :total]
        rows, columns = np.tril_indices(total)
        states = self.states[:, :total].transpose(1, 0, 2)
        answer_only = letter in "CDE"
        tokens = self.sequence[:total].copy()
        texts = self.texts[:total]
        if answer_only:
            tokens[:p] = -1
            texts = [""] * p + texts[p:]
        column = {
            "question_id": self.id if letter in "DEF" else str(self.number),
            "tokens": tokens,
            "answer": f"It is {self.number} é",
            "hidden_states": states,
            "hs_last": states[-1],
            "attn_mean": maps.mean(1)[:, rows, columns].T,
            "attn_diag": np.einsum("lhtt->tlh", maps),
            "attn_colsum": maps.sum(2).transpose(2, 0, 1),
        }
        if letter != "F":
            column["prompt_len"] = p
            column["answer_len"] = total - p
            column["attn_pmass"] = maps[..., :p].sum(3).transpose(2, 0, 1)
        if letter in "ABC":
            column["question"] = f"What is {self.number}?"
            has_references = self.numbered or letter == "C"
            column["references"] = self.answers if has_references else []
        if letter in "CDEF":
            column["token_texts"] = texts
        return column


def write_files(folder, letter, traces, per_file=3, packed=False):
    """Write the traces in their order, so many a file; return the files."""
    files = []
    for number, start in enumerate(range(0, len(traces), per_file)):
        suffix = "pkl.gz" if packed else "pkl"
        file = Path(folder) / f"batch_{number:04}.{suffix}"
        records = [trace.record(letter) for trace in traces[start : start + per_file]]
        write_pickle(file, records)
        files.append(file)
    return files


def write_pickle(file, content):
    """Write a file, packed by its name."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with (gzip.open if file.suffix == ".gz" else open)(file, "wb") as opened:
        pickle.dump(content, opened)


def find_older(sources):
    """The older files that files, folders and patterns name."""
    return of_older_formats(find_given(sources), sources)


def open_older(*sources, keep_attention=False, attn_threshold=None, max_bytes=MAX_BYTES, **options):
    """The source of an import of older files, folders and patterns."""
    return LegacySource(
        find_older(list(map(str, sources))),
        Options(**options),
        keep_attention=keep_attention,
        attn_threshold=attn_threshold,
        max_bytes=max_bytes,
    )


def imported(out, *sources, scores=None, **options):
    """The store that an import makes or finishes, and its report."""
    table = None if scores is None else ScoreTable("scores", by_question=scores)
    source = open_older(*sources, scores=table, begun=open_begun(out), **options)
    return build_store(out, source), source.report


class Stopping:
    """A source that is interrupted before a row, or at its end."""

    def __init__(self, source, stop):
        self.source, self.stop = source, stop
        self.schema, self.provenance = source.schema, source.provenance

    @property
    def remarks(self):
        return self.source.remarks

    def rows(self, start=0):
        for i, row in enumerate(self.source.rows(start)):
            if i == self.stop:
                break
            yield row
        raise KeyboardInterrupt


def stop_import(out, *sources, stop, **options):
    """Begin an import that is interrupted before a row."""
    source = open_older(*sources, begun=open_begun(out), **options)
    with pytest.raises(KeyboardInterrupt):
        build_store(out, Stopping(source, stop))
    assert not out.exists()


def bytes_of(store):
    """Every file but those that hold the store's identity."""
    files = sorted(file for file in store.path.rglob("*") if file.is_file())
    inner = [file for file in files if file.parent != store.path]
    return {file.relative_to(store.path): file.read_bytes() for file in inner}
