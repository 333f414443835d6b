"""Some of what a served model says, kept in a store with the columns that its methods read.

A thread writes it: what goes wrong there is said, stops the keeping, and reaches no request.
"""

import hashlib
import random
import sys
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from store import Column, Schema
from store.reports import count, say
from store.sources.huggingface.kept import Kept
from store.sources.huggingface.load import implementation_of
from store.sources.huggingface.provenance import conventions, describe_model
from store.sources.huggingface.tokenization import appends_tokens
from store.sources.recorder import RUN, Recorder, Settings
from store.traces.columns import TRACE_COLUMNS
from store.traces.origin import LAYERS
from train.library.watch import Watch
from train.serve.limits import Keeping
from train.serve.requests import Asked

__all__ = ["Keep"]

TEXTS = ("question_id", "question", "answer", "tokens", "prompt_len", "answer_len")
SAMPLED = "is_sampled"


@dataclass(frozen=True)
class Said:
    """An answer with its columns."""

    trace_id: str
    values: Mapping[str, Any]

    @property
    def own_id(self) -> str:
        return self.trace_id

    def row(self) -> Mapping[str, Any]:
        return self.values


class Keep:
    """Keeps answers that are drawn, or whose score is high; raises what `Recorder` raises.

    Besides the columns of the methods, of all layers of the run, a trace has its texts, how it
    ended, its scores as `score_NAME`, and whether it was drawn (`is_sampled`): those that were not
    are there for their scores alone.
    """

    def __init__(self, keeping: Keeping, watch: Watch) -> None:
        self.keeping = keeping
        self.draw = random.random
        model, tokenizer = watch.model, watch.tokenizer
        config = model.config.get_text_config()
        wanted = Kept(watch.numbers or None, [*TEXTS, *watch.columns], watch.methods.top_k)
        layers, _, schema = wanted.choose(config, model.dtype, {})
        columns = {**schema.columns, "finish_reason": TRACE_COLUMNS["finish_reason"].stored({})}
        columns |= {f"score_{name}": Column("float32") for name in watch.names}
        self.schema = Schema({**columns, SAMPLED: Column("bool")})
        provenance = {
            "source": "train serve",
            RUN: watch.models.results.run,
            **describe_model(model, tokenizer, model.name_or_path, implementation_of(model)),
            LAYERS: layers,
            **conventions(layers, config.num_hidden_layers, appends=appends_tokens(tokenizer)),
        }
        self.recorder = Recorder(
            keeping.store, self.schema, provenance, Settings.commit_s, self._say, keeping.files
        )

    @staticmethod
    def _say(text: str) -> None:
        say(f"serve: {text}", file=sys.stderr)

    def health(self) -> dict[str, int]:
        """What became of the answers that were to be kept; a full disk has stopped the keeping."""
        one = self.recorder
        return {"kept": one.n_written, "lost": one.n_left_out, "has_stopped": one.has_stopped}

    def close(self) -> None:
        """Write what is to be kept, and say how much that was."""
        self.recorder.close()
        found = self.health()
        kept = count(found["kept"], "answer")
        self._say(f"{self.keeping.store}: {kept} kept, {found['lost']:,} lost")

    def consider(
        self, asked: Asked, row: Mapping[str, object], scores: Mapping[str, float], finish: str
    ) -> bool:
        """Keep an answer, or do not: whether it is kept."""
        above = self.keeping.above
        is_sampled = self.draw() < self.keeping.sample
        if not is_sampled and (above is None or max(scores.values()) < above):
            return False
        prompt = asked.prompt if isinstance(asked.prompt, str) else asked.prompt[-1]["content"]
        values = {
            **row,
            **{f"score_{name}": score for name, score in scores.items()},
            "question_id": hashlib.sha256(repr(asked.prompt).encode()).hexdigest()[:16],
            "question": prompt,
            "finish_reason": finish,
            SAMPLED: is_sampled,
        }
        kept = {name: values[name] for name in self.schema.columns}
        self.recorder.put(Said(uuid.uuid4().hex, kept))
        return True
