"""Methods of a run on a model that speaks: columns, layers, and tokens as they come."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import expit
from torch import Tensor
from transformers import StoppingCriteria

from models import DETECTORS, Detector, find
from store import Batch, Ragged
from store.sources.huggingface.attention_scores import ON_CONTEXT
from store.sources.huggingface.collectors import ATTENTION, STATES
from store.sources.huggingface.kept import Kept
from store.sources.huggingface.predictions import PREDICTIONS
from store.sources.huggingface.watched_generation import WHOLE
from store.traces.columns import TRACE_COLUMNS, columns_of
from store.traces.layers import LAYERS_AXIS
from train.data.in_memory import data_in_memory
from train.data.requirements import columns_with, optional_to_score
from train.errors import ConfigError
from train.fit.token_scores import columns_for_tokens
from train.run import scoring
from train.run.scoring import TrainedModels, load_detector, load_probe, needed_by

__all__ = [
    "KNOWN",
    "LiveMethods",
    "Stopping",
    "Token",
    "TokenMethod",
    "TokenStream",
    "with_all_layers",
]

Shapes = dict[str, tuple[int, ...]]  # column -> shape of an item
# columns that need no pass
KNOWN = ("tokens", "prompt_len", "answer_len", "answer", "question_id")
GIVEN = {*KNOWN, *STATES, *PREDICTIONS, *ATTENTION, *columns_of("lens")} - {*ON_CONTEXT}


class TokenMethod(NamedTuple):
    """A method that scores a token without any other one."""

    columns: tuple[str, ...]  # that it scores from; of states the score is the log-odds
    layers: Sequence[int]  # that it reads of the states, as the model numbers them
    score: Callable[[Batch], NDArray[np.float32]]  # batch of n tokens -> (n,), mean over the seeds


class LiveMethods:
    """The methods of these names, and what they read of a model that speaks.

    Raises ConfigError for a method that reads what generation cannot give.

    Attributes
    ----------
    columns
        All of them.
    numbers
        The layers that the run read, as the model numbers them.
    layers
        Those that some method reads, by column.
    top_k
        Numbers a token in the columns of the likeliest tokens.
    """

    def __init__(self, names: Sequence[str], models: TrainedModels) -> None:
        self.models = models
        names = needed_by(names, models)
        read = {name: self.columns_of(name) for name in names}
        self.columns = list(dict.fromkeys(chain.from_iterable(read.values())))
        self.numbers = layers_of_run(self.columns, models)
        layers: defaultdict[str, set[int]] = defaultdict(set)
        for name, columns in read.items():
            for column in of_layers(columns):
                is_first = column == columns[0]
                layers[column].update(self.layers_of(name) if is_first else self.numbers)
        self.layers = {column: sorted(numbers) for column, numbers in layers.items()}
        shapes = {role: one for name in names for role, one in self.shapes_of(name).items()}
        (self.top_k,) = shapes.get("topk_logprob", (Kept.top_k,))

    def columns_of(self, name: str) -> tuple[str, ...]:
        """What a method reads of a trace; raises ConfigError for what generation cannot give."""
        config, reader = self.models.config, find(name)
        unread = of_layers(optional_to_score(reader)) - self.models.results.layers.keys()
        optional = [one for one in optional_to_score(reader) if one in GIVEN - unread]
        columns = (*columns_with(config, name, reader), *optional)
        for column in columns or ("fields",):
            if column not in GIVEN or column in config.replaced:
                found = config.replaced.get(column, column)
                raise ConfigError(
                    f"watch: {name} reads {found!r}, which generation does not give; leave it out "
                    "with --models"
                )
        return columns

    def layers_of(self, name: str) -> list[int]:
        """The layers of its first column that a method reads."""
        method: Any = find(name)
        positions = method.layers_read
        if name in DETECTORS:
            positions = self.detectors(name)[0].layers_read
        elif method.by_layer:
            fitted: Any = load_probe(name, self.models)
            positions = [fitted.alternative]
        return self.numbers if positions is None else [self.numbers[i] for i in positions]

    def shapes_of(self, name: str) -> Shapes:
        """The shapes of what a detector was trained on, by column; of no other method."""
        if name not in DETECTORS:
            return {}
        training = self.models.directory.training(name, self.models.config.seed)
        return {role: tuple(shape) for role, shape in training.load_trained().shapes.items()}

    def detectors(self, name: str) -> list[Detector]:
        """A detector of each seed."""
        config = self.models.config
        columns: dict[str, Any] = {}
        for role, shape in self.shapes_of(name).items():
            values = torch.zeros(0, *shape)
            is_ragged = TRACE_COLUMNS[role].axis is not None
            columns[role] = Ragged(values, torch.zeros(1).long()) if is_ragged else values
        of_no_trace = Batch(torch.arange(0), columns)
        data = data_in_memory(of_no_trace, self.models.results.layers, config)
        seeds = range(config.seed, config.seed + config.seeds)
        return [load_detector(name, seed, self.models, data).eval() for seed in seeds]

    def token_method(self, name: str) -> TokenMethod | None:
        """How a method scores tokens one by one; None if it cannot, or its score is of all."""
        reader, read = find(name), self.columns_of(name)
        columns = columns_for_tokens(reader, read)
        by_gradient = WHOLE in read and not reader.scores_tokens_alone
        if not columns or by_gradient or not {*KNOWN, *PREDICTIONS, WHOLE}.issuperset(columns):
            return None
        layers = self.layers_of(name) if WHOLE in columns else ()
        return TokenMethod(columns, layers, self.token_scorer(name))

    def token_scorer(self, name: str) -> Callable[[Batch], NDArray[np.float32]]:
        """Scores (n,) of a batch of n tokens, the mean over the seeds."""
        if name not in DETECTORS:
            fitted: Any = load_probe(name, self.models)
            probe: Any = find(name)
            return lambda batch: probe.token_scores(fitted, batch).numpy()
        detectors = self.detectors(name)

        def score(batch: Batch) -> NDArray[np.float32]:
            with scoring.LOCK:  # others may move them to another device
                there = batch.to(next(detectors[0].parameters()).device)
                found: Any = [one.token_scores(there) for one in detectors]
                return torch.stack(found).mean(0).float().cpu().numpy()

        return score


def of_layers(columns: Iterable[str]) -> set[str]:
    """Those of the columns that have an axis of layers."""
    known = [name for name in columns if name in TRACE_COLUMNS]
    return {name for name in known if LAYERS_AXIS in TRACE_COLUMNS[name].axes}


def layers_of_run(columns: Sequence[str], models: TrainedModels) -> list[int]:
    """The layers that a run read, as the model numbers them; raises ConfigError if unknown."""
    names = sorted(of_layers(columns))
    found = [models.results.layers.get(name, []) for name in names]
    if (names and not models.store.layers_recorded) or any(one != found[0] for one in found):
        raise ConfigError(
            "watch: expected a run on traces whose layers are recorded, the same of each column, "
            f"found {dict(zip(names, found, strict=True))}"
        )
    return found[0] if found else []


def with_all_layers(values: Tensor, layers: Sequence[int], numbers: Sequence[int]) -> Tensor:
    """Values (n, layers, ...) of some layers of a run among all; those that nothing reads are 0."""
    filled = values.new_zeros(len(values), len(numbers), *values.shape[2:])
    filled[:, [numbers.index(layer) for layer in layers]] = values
    return filled


class Token(NamedTuple):
    """A token of an answer, as soon as its scores are known."""

    sequence: int  # its row in `Watch.scores`
    position: int  # in the answer, from 0
    id: int
    # by method, of those that score tokens one by one: what `predict --tokens` gives
    scores: dict[str, float]


@dataclass
class TokenStream:
    """The tokens of one call of `generate` as they come; `numbers` are the layers of the run."""

    methods: Mapping[str, TokenMethod]
    numbers: Sequence[int]
    dtype: torch.dtype  # of states
    ends: set[int]
    pads: set[int]
    first: int  # row of the first sequence
    listeners: Sequence[Callable[[Token], None]]
    rows: list[list[Token]] = field(default_factory=list)  # of each sequence
    waiting: list[list[Token]] = field(default_factory=list)  # that are padding if nothing follows
    ended: set[int] = field(default_factory=set)

    def take(
        self, tokens: Tensor, states: Mapping[int, Tensor], described: Mapping[str, NDArray]
    ) -> None:
        """Score the tokens (B,) of a pass, from their states (B, d) by layer and predictions."""
        batch = self._batch(len(tokens), states, described)
        found = {name: method.score(batch) for name, method in self.methods.items()}
        if not self.rows:
            self.rows += [[] for _ in tokens]
            self.waiting += [[] for _ in tokens]
        for i, token in enumerate(tokens.tolist()):
            if i in self.ended:
                continue
            row = self.rows[i]
            waiting = self.waiting[i]
            if token in self.ends:
                self.ended.add(i)
            if token not in self.ends or not row:  # an answer may be nothing but its end
                scores = {name: float(one[i]) for name, one in found.items()}
                waiting.append(Token(self.first + i, len(row) + len(waiting), token, scores))
            if token in self.pads and row:
                continue
            row += waiting
            for came in waiting:
                for listener in self.listeners:
                    listener(came)
            waiting.clear()

    def scores(self) -> list[dict[str, list[float]]]:
        """Of each sequence, method -> a score a token."""
        return [
            {name: [one.scores[name] for one in row] for name in self.methods} for row in self.rows
        ]

    def _batch(
        self, n: int, states: Mapping[int, Tensor], described: Mapping[str, NDArray]
    ) -> Batch:
        """Each token as a trace of its own, whose layers that nothing reads are 0."""
        offsets = torch.arange(n + 1)
        columns: dict[str, Any] = {
            name: Ragged(torch.from_numpy(values), offsets) for name, values in described.items()
        }
        if states:
            some = torch.stack([*states.values()], dim=1).to("cpu", self.dtype)
            columns[WHOLE] = Ragged(with_all_layers(some, [*states], self.numbers), offsets)
        return Batch(torch.arange(n), columns)


class Stopping(StoppingCriteria):
    """Ends an answer at a token that is a hallucination with a probability of at least `at`.

    It is asked when the next token was drawn, with which the answer ends.

    Attributes
    ----------
    ended
        Of each sequence of the last call, whether it was ended.
    """

    def __init__(self, stream: Callable[[], TokenStream | None], names: list[str], at: float):
        self.stream = stream
        self.names = names
        self.at = at
        self.ended: list[bool] = []

    def __call__(self, input_ids: Tensor, scores: object, **_: object) -> Any:
        """(B, T) token ids -> bool (B,)."""
        stream = self.stream()
        if stream is None:
            raise ConfigError("stopping: expected generate of the model that is watched, inside")
        if len(input_ids) > 1 and not stream.ends:  # generate goes on with all until the last ends
            raise ConfigError(
                "stopping: expected eos_token_id, without which no answer of several ends before "
                f"the others, found none and {len(input_ids)} answers; ask one at a time"
            )
        rows = stream.rows or [[] for _ in input_ids]
        self.ended = [
            any(expit(token.scores[name]) >= self.at for token in row for name in self.names)
            for row in rows
        ]
        return torch.tensor(self.ended, device=input_ids.device)
