"""Scores of what a model says, while `generate` runs.

States and predictions are kept as the passes of generation give them, and of states only the layers
that the methods read. What needs attention maps or the logit lens is made by one more pass over the
whole sequences, as an extraction makes it. The question, its context and other samples are not
known to generation: methods that read them are refused.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from threading import Lock
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from store.sources.huggingface.collectors import ATTENTION, STATES, HalfRangeError
from store.sources.huggingface.forward import run_forward
from store.sources.huggingface.kept import check_model
from store.sources.huggingface.load import EAGER, attention
from store.sources.huggingface.module_outputs import find_places
from store.sources.huggingface.predictions import PREDICTIONS
from store.sources.huggingface.provenance import config_digest, tokenizer_digest, weights_digest
from store.sources.huggingface.watched_generation import (
    WHOLE,
    Passes,
    Spoken,
    read_spoken,
    watch_passes,
)
from store.traces.columns import TRACE_COLUMNS
from store.traces.layers import format_layers
from store.traces.origin import find_difference
from train.errors import ConfigError, DataError
from train.library.live_methods import (
    KNOWN,
    LiveMethods,
    Stopping,
    Token,
    TokenMethod,
    TokenStream,
    with_all_layers,
)
from train.run.scoring import TrainedModels

__all__ = ["Watch"]

Row = dict[str, Any]  # column -> value
Scores = Callable[[Any], Mapping[str, NDArray]]  # traces -> method -> probabilities
ENTERING = Lock()


class Watch:
    """Watches `model.generate` inside its block; made by `Guard.watch`.

    A model has one watch at a time, and one call of `generate`.
    `keeps_rows` is for who keeps traces: `rows` then has all layers of the run.

    Attributes
    ----------
    scores
        A row a sequence, of all calls in turn: method -> probability of hallucination.
    tokens
        Ids of each answer, without the end of the text.
    token_scores
        Of each answer, method -> a score a token; only after `on_token` or `stopping`.
    rows
        The columns of the last call's sequences, if they are kept.
    """

    def __init__(
        self,
        scorer: Scores,
        names: Sequence[str],
        models: TrainedModels,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        *,
        force: bool = False,
        keeps_rows: bool = False,
    ) -> None:
        self.scorer = scorer
        self.models = models
        self.model = model
        self.tokenizer = tokenizer
        self.scores: list[dict[str, float]] = []
        self.tokens: list[list[int]] = []
        self.token_scores: list[dict[str, list[float]]] = []
        self.rows: list[Row] = []
        self._listeners: list[Callable[[Token], None]] = []
        self._by_token: dict[str, TokenMethod] = {}
        self._stream: TokenStream | None = None
        self._speaks = Lock()
        self.names = list(names)
        self.methods = LiveMethods(names, models)
        self.columns, self.numbers = self.methods.columns, self.methods.numbers
        self.needs_maps = not set(ATTENTION).isdisjoint(self.columns)
        if model.config.is_encoder_decoder:
            raise ConfigError("watch: expected a causal model, found an encoder with a decoder")
        try:
            check_model(model, self.needs_maps)
        except ValueError as error:
            raise ConfigError(f"watch: {error}") from error
        if not force:
            check_live(model, tokenizer, models, self.numbers)
        find_places(model, maps=False)
        self.keeps_rows = keeps_rows
        self.layers = self.methods.layers
        if keeps_rows:
            self.layers = dict.fromkeys(self.layers, self.numbers)

    def __enter__(self) -> Self:
        model: Any = self.model
        with ENTERING:
            if isinstance(getattr(model.generate, "__self__", None), Watch):
                raise ConfigError(
                    "watch: expected a model that is not watched yet, found it inside the block of "
                    "a watch"
                )
            self._has_own = "generate" in vars(model)
            self._own = model.generate
            model.generate = self._generate
        return self

    def __exit__(self, *_: object) -> None:
        if self._has_own:
            self.model.generate = self._own
        else:
            del self.model.generate

    def on_token(self, callback: Callable[[Token], None] | None = None) -> None:
        """Have each token scored as it comes, and `callback` told of it; also `token_scores`.

        A token's score is known when the next one is drawn. Scored are tokens of answers, by the
        methods that need no other token; the scores are those of `predict --tokens`. Raises
        ConfigError if there is no such method.
        """
        if not self._by_token:
            found = {name: self.methods.token_method(name) for name in self.names}
            self._by_token = {name: one for name, one in found.items() if one is not None}
        if not self._by_token:
            raise ConfigError(
                "on_token: expected a method that scores a token without the others, found "
                f"{', '.join(self.names)}; methods of one state a trace do, token_probe, "
                "mean_logprob, entropy and margin"
            )
        if callback is not None:
            self._listeners.append(callback)

    def stopping(self, at: float, models: str | Sequence[str] | None = None) -> Stopping:
        """A rule for `generate(stopping_criteria=[rule])`, which ends an answer by its tokens.

        It ends with the token after the first one whose probability of a hallucination, the sigmoid
        of its score, is at least `at` by one of the methods: those named, or all whose scores of
        tokens are log-odds. Raises ConfigError for others.
        """
        if not 0 < at <= 1:
            raise ConfigError(f"stopping: expected a probability above 0, found {at}")
        self.on_token()
        known = [name for name, method in self._by_token.items() if WHOLE in method.columns]
        chosen = models.split(",") if isinstance(models, str) else models
        names = known if chosen is None else list(chosen)
        if not names or not set(names).issubset(known):
            raise ConfigError(
                "stopping: expected methods whose scores of tokens are log-odds, "
                f"{', '.join(known) or 'of which there is none'}, found {', '.join(names)}"
            )
        return Stopping(lambda: self._stream, names, at)

    def score_given(
        self, prompts: list[list[int]], answers: list[list[int]]
    ) -> list[dict[str, float]]:
        """Score answers that exist, by one pass, as if the model had said them: a row a sequence.

        Prompts and answers are token ids; each of them has some.
        """
        spoken = Spoken(prompts, answers, max(map(len, prompts)), torch.empty(0))
        columns = [name for name in self.columns if name not in KNOWN]
        rows = self._with_second_pass([{} for _ in prompts], columns, spoken)
        return self._scores_of(spoken, rows)

    def _generate(
        self, inputs: Tensor | None = None, generation_config: object = None, **options: object
    ) -> Any:
        """The model's `generate`; then what it said is scored."""
        if not self._speaks.acquire(blocking=False):
            raise ConfigError("watch: expected one call of generate at a time, found another")
        try:
            return self._watched(inputs, generation_config, options)
        finally:
            self._speaks.release()

    def _watched(self, inputs: Tensor | None, config: object, options: dict[str, Any]) -> Any:
        settings = settings_of(self.model, config, options)
        ids, mask = read_inputs(inputs, settings)
        ends, pads = ends_of(settings)
        if not are_filled_up(settings, len(ids)):
            pads = set()
        states = {name: numbers for name, numbers in self.layers.items() if name in STATES}
        predictions = [name for name in self.columns if name in PREDICTIONS]
        passes = Passes(self.model, states, predictions, self.methods.top_k)
        with self._streaming(passes, ends, pads), watch_passes(passes):
            out = self._own(inputs, config, **options)
            sequences = out if isinstance(out, Tensor) else out.sequences
            spoken = read_spoken(ids, mask, sequences, ends, pads)
            rows: list[Row] = [{} for _ in spoken.prompts]
            if passes.saw(spoken):
                keeps_cache = sequences is not out or "past_key_values" in options
                rows = passes.rows(spoken, keeps_cache=keeps_cache)
            token_scores = self._stream.scores() if self._stream else []
        missing = [name for name in self.columns if name not in (*KNOWN, *rows[0])]
        self.scores += self._scores_of(spoken, self._with_second_pass(rows, missing, spoken))
        self.tokens += spoken.answers
        self.token_scores += token_scores
        return out

    @contextmanager
    def _streaming(self, passes: Passes, ends: set[int], pads: set[int]) -> Iterator[None]:
        """Score the tokens of a call of `generate` as they come, if somebody wants that."""
        if not self._by_token:
            yield
            return
        dtype = torch.bfloat16 if self.model.dtype == torch.bfloat16 else torch.float16
        first = len(self.scores)
        self._stream = TokenStream(
            self._by_token, self.numbers, dtype, ends, pads, first, self._listeners
        )
        passes.on_token = self._stream.take
        passes.layers_of_tokens = {i for one in self._by_token.values() for i in one.layers}
        try:
            yield
        finally:
            self._stream = None

    def _with_second_pass(
        self, rows: list[Row], columns: Sequence[str], spoken: Spoken
    ) -> list[Row]:
        """Add what the passes of generation do not give, of all layers of the run."""
        if not columns:
            return rows
        texts = spoken.traces, spoken.prompt_lens
        with attention(self.model, EAGER if self.needs_maps else None):
            found = run_forward(self.model, *texts, self.numbers, self.methods.top_k, columns)
        for row, more in zip(rows, found, strict=True):
            if isinstance(more, HalfRangeError):
                raise more
            row |= more
        return rows

    def _scores_of(self, spoken: Spoken, rows: list[Row]) -> list[dict[str, float]]:
        """The scores of the sequences, whose columns but `KNOWN` are given."""
        for row, trace, prompt, answer in zip(
            rows, spoken.traces, spoken.prompts, spoken.answers, strict=True
        ):
            text = str(self.tokenizer.decode(answer, skip_special_tokens=True)).strip()
            row |= {"tokens": trace, "prompt_len": len(prompt), "answer_len": len(answer)}
            row |= {"answer": text, "question_id": ""}
        columns = {name: [self._whole(name, row[name]) for row in rows] for name in self.columns}
        found = self.scorer(columns)
        scores = [{name: float(one[i]) for name, one in found.items()} for i in range(len(rows))]
        if self.keeps_rows:
            self.rows = rows
        return scores

    def _whole(self, name: str, value: object) -> Any:
        """A value of a column, with all layers of the run."""
        if name not in self.layers:
            return value
        is_one = TRACE_COLUMNS[name].axis is None
        items = torch.as_tensor(value)[None] if is_one else torch.as_tensor(value)
        if items.shape[1] < len(self.numbers):  # a second pass gives all
            items = with_all_layers(items, self.layers[name], self.numbers)
        return items[0] if is_one else items


def check_live(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    models: TrainedModels,
    numbers: Sequence[int],
) -> None:
    """Raise DataError unless a model is the one whose traces a run was trained on.

    Compared is what the store of the run records.
    """
    n_layers = model.config.get_text_config().num_hidden_layers
    if numbers and numbers[-1] > n_layers:
        raise DataError(
            f"watch: expected a model with the layers {format_layers(numbers)} that the run read, "
            f"found {n_layers} in {type(model).__name__}"
        )
    origin = {
        "weights_sha256": weights_digest(model),
        "config_sha256": config_digest(model),
        "tokenizer_sha256": tokenizer_digest(tokenizer),
    }
    found = find_difference(models.store.origins, origin, numbers)
    if found:
        raise DataError(
            f"watch: {found.key} {found.found!r:.100}, where the run was trained on "
            f"{found.expected!r:.100}; scores would mean nothing: give the model of the run "
            "(--force scores this one all the same)"
        )


def settings_of(model: PreTrainedModel, config: Any, options: Mapping[str, Any]) -> dict[str, Any]:
    """All that a call of `generate` goes by; what it leaves open is set by the model's own."""
    given = {} if config is None else config.to_dict()
    chosen = {name: one for name, one in given.items() if one is not None}
    return model.generation_config.to_dict() | chosen | dict(options)


def read_inputs(inputs: Tensor | None, settings: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
    """The prompts of a call of `generate`, int64 (B, W), and their mask; ConfigError for others."""
    ids: Tensor | None = settings.get("input_ids", inputs)
    if ids is None or settings.get("inputs_embeds") is not None:
        raise ConfigError("watch: expected prompts as input_ids, found none")
    cache = settings.get("past_key_values")
    if cache is not None and cache.get_seq_length():
        raise ConfigError("watch: expected prompts from their beginning, found past_key_values")
    if (settings.get("num_beams") or 1) > 1:
        raise ConfigError(
            "watch: expected one sequence at a time of each prompt, found num_beams above 1; "
            "extract and predict score the answers of a beam search"
        )
    if settings.get("guidance_scale") not in (None, 1):  # prompts of its own go through the model
        raise ConfigError(
            "watch: expected answers drawn from one pass a token, found guidance_scale other than 1"
        )
    mask: Tensor | None = settings.get("attention_mask")
    _, pads = ends_of(settings)  # which generate takes for padding of a prompt, too
    if mask is None and (len(ids) > 1 or np.isin(ids.cpu(), list(pads)).any()):
        raise ConfigError("watch: expected attention_mask with padding or several prompts")
    there = torch.ones_like(ids) if mask is None else mask.bool().to(ids.dtype)
    if not there[:, -1].all() or (there.diff(dim=1) < 0).any():
        raise ConfigError(
            "watch: expected prompts padded on the left, found padding behind their tokens"
        )
    return ids, there


def ends_of(settings: Mapping[str, object]) -> tuple[set[int], set[int]]:
    """The ids that end an answer, and those that only fill one up."""
    ends = ids_of(settings.get("eos_token_id"))
    return ends, ids_of(settings.get("pad_token_id")) - ends


def are_filled_up(settings: Mapping[str, Any], n_prompts: int) -> bool:
    """Whether answers may be filled up: only behind a rule that ended one before others."""
    has_ends = bool(ids_of(settings.get("eos_token_id")))
    has_others = n_prompts * (settings.get("num_return_sequences") or 1) > 1
    has_rule = settings.get("stopping_criteria") or settings.get("stop_strings")
    return has_ends and has_others and bool(has_rule)


def ids_of(tokens: Any) -> set[int]:
    """One id, several or none."""
    return set() if tokens is None else {int(token) for token in np.atleast_1d(tokens)}
