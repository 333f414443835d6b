"""Stores whose signal is known: what says the label of a trace, where it is, and who can find it.

All columns of a trace are noise, but for one: each signal plants the label in states, attention or
log-probabilities before the columns are computed from them. Beside it stands a reference, a small
model that knows where to look and learns the rest from the training rows.
"""

from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass
from functools import cache, partial

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_sequence

from models import METHODS

__all__ = ["SIGNALS", "Signal", "Trace", "rows_of", "told_by"]

Array = NDArray[np.floating]
Trace = dict  # column -> value; in the making also `maps` (L, H, T, T)
Plant = Callable[[np.random.Generator, Trace, int], None]
Reference = Callable[[list[Trace], list[Trace]], Array]  # train, test -> scores of test (n,)

N_TEST = 1000  # traces
N_LAYERS, N_HEADS, STATE_SIZE, N_CANDIDATES = 5, 2, 16, 4
LAYER, OTHER = 1, 3  # where the signals of states are
A, B = np.linalg.qr(np.random.default_rng(7).normal(size=(STATE_SIZE, 2)))[0].T  # directions (d,)
N_CONTEXT = 2
CONTEXT = slice(1, 1 + N_CONTEXT)  # tokens of every prompt
WIDE = (8, 384)
OUTLIERS = [3, 70, 71, 200]  # dimensions of wide states that are a hundred times the others

STATE_METHODS = ("saplma", "lstm_solo", "clap", "logreg_best")


@dataclass(frozen=True)
class Signal:
    """A kind of store.

    Attributes
    ----------
    plant : callable
        (rng, trace, label): write the label into the noise of a trace.
    reference : callable or None
        Its AUROC is what the methods of `finds` should have, all but .02; None where nothing is
        to be found.
    finds, blind : tuple of str
        Methods that should find it, and some that cannot. All that read nothing that tells the
        label cannot either (`told_by`): they are those of a store without a signal.
    """

    plant: Plant
    reference: Reference | None
    finds: tuple[str, ...]
    blind: tuple[str, ...] = ()
    wide: bool = False
    n_copies: int = 1  # of a question, under other ids
    n_train: int = 1400  # traces

    @property
    def methods(self) -> tuple[str, ...]:
        return (*self.finds, *self.blind)

    @property
    def n_traces(self) -> dict[str, int]:
        """Split -> number of traces."""
        return {"train": self.n_train, "val": self.n_train * 5 // 14, "test": N_TEST}


def rows_of(signal: Signal, seed: int) -> Iterator[tuple[str, Trace]]:
    """(id, columns) of each trace, the splits one after the other."""
    rng = np.random.default_rng([seed, 1])
    number = 0
    for split, n_traces in signal.n_traces.items():
        for _ in range(n_traces // signal.n_copies):
            label = int(rng.integers(2))
            trace = (wide_noise if signal.wide else noise)(rng)
            signal.plant(rng, trace, label)
            for copy in range(signal.n_copies):
                columns = finish(rng, trace) | described(number, copy, label, split)
                yield f"t{number}", columns
                number += 1


@cache
def told_by(signal: Signal) -> frozenset[str]:
    """The columns that tell the label: they differ if it does and all noise is the same."""
    trace = (wide_noise if signal.wide else noise)(np.random.default_rng(0))
    of_label = []
    for label in (0, 1):
        planted = deepcopy(trace)
        signal.plant(np.random.default_rng(1), planted, label)
        of_label.append(finish(np.random.default_rng(2), planted))
    first, other = of_label
    return frozenset(
        name for name in first if not np.allclose(first[name], other[name], equal_nan=True)
    )


def described(number: int, copy: int, label: int, split: str) -> Trace:
    """The record of a trace; the copies of a question differ in blanks and capitals alone."""
    rng = np.random.default_rng([number - copy, 2])
    words = rng.choice(["red", "tall", "old", "river", "tower", "song", "king", "lake"], 5)
    text = f"which {' '.join(words)} of {number - copy}"
    question = [text, f"  {text.capitalize()} ", text.upper()][copy]
    return {"question_id": f"q{number}", "question": question, "label": label, "split": split}


def noise(rng: np.random.Generator) -> Trace:
    """A trace without a label: states, causal attention and log-probabilities of random length."""
    n_prompt, n_answer = int(rng.integers(4, 7)), int(rng.integers(7, 13))
    n_tokens = n_prompt + n_answer
    logits = rng.normal(size=(N_LAYERS, N_HEADS, n_tokens, n_tokens))
    maps = np.exp(logits) * np.tri(n_tokens)
    return {
        "prompt_len": n_prompt,
        "answer_len": n_answer,
        "hidden_states": rng.normal(size=(n_tokens, N_LAYERS, STATE_SIZE)),
        "maps": maps / maps.sum(-1, keepdims=True),
        "logprob": -rng.exponential(1.0, n_tokens),
    }


def wide_noise(rng: np.random.Generator) -> Trace:
    """Last states alone, of d = 384 and with dimensions of outliers, as a language model has."""
    states = rng.normal(size=WIDE) * np.linspace(0.1, 3.0, WIDE[0])[:, None]
    states[:, OUTLIERS] = 100 + 20 * rng.normal(size=(WIDE[0], len(OUTLIERS)))
    return {"prompt_len": 4, "answer_len": 8, "hs_last": states}


def finish(rng: np.random.Generator, trace: Trace) -> Trace:
    """The columns of a store, from states, maps and log-probabilities; stores are in float16."""
    columns = {name: value for name, value in trace.items() if name != "maps"}
    if "maps" not in trace:
        return columns
    maps, states = trace["maps"], trace["hidden_states"]
    n_prompt, n_tokens = trace["prompt_len"], len(states)
    rows, cols = np.tril_indices(n_tokens)
    by_token = np.moveaxis(maps, 2, 0)  # (T, L, H, T)
    previous = np.full(by_token.shape[:3], np.nan)
    previous[1:] = by_token[np.arange(1, n_tokens), :, :, np.arange(n_tokens - 1)]
    candidates = np.sort(-rng.exponential(1.0, (n_tokens, N_CANDIDATES)))[:, ::-1]
    return columns | {
        "hs_last": states[-1],
        "hs_prompt": states[n_prompt - 1],
        "hs_mean": states[n_prompt:].mean(0),
        "tokens": rng.integers(0, 50, n_tokens),
        "entropy": rng.exponential(1.0, n_tokens),
        "topk_logprob": candidates,
        "topk_id": rng.integers(0, 50, (n_tokens, N_CANDIDATES)),
        "attn_mean": maps.mean(1)[:, rows, cols].T,
        "attn_diag": by_token[np.arange(n_tokens), :, :, np.arange(n_tokens)],
        "attn_colsum": np.moveaxis(maps.sum(2), 2, 0),
        "attn_pmass": by_token[..., :n_prompt].sum(-1),
        "attn_amass": by_token[..., n_prompt:].sum(-1),
        "attn_cmass": by_token[..., CONTEXT].sum(-1),
        "context_len": N_CONTEXT,
        "attn_prev": previous,
    }


def sign(label: int) -> int:
    return 2 * label - 1


def answer_places(rng: np.random.Generator, trace: Trace, n: int) -> NDArray[np.int64]:
    """Different tokens of the answer but the last, rising."""
    places = rng.choice(trace["answer_len"] - 1, n, replace=False)
    return trace["prompt_len"] + np.sort(places)


def plant_nothing(rng: np.random.Generator, trace: Trace, label: int) -> None:
    pass


def plant_one_layer(rng: np.random.Generator, trace: Trace, label: int) -> None:
    """Every token of the answer, at one layer, is a little on the label's side."""
    trace["hidden_states"][trace["prompt_len"] :, LAYER] += 0.45 * sign(label) * A


def plant_layers_xor(rng: np.random.Generator, trace: Trace, label: int) -> None:
    """Two layers of the last token have equal signs for 0, other signs for 1; either alone none."""
    first = rng.choice([-1, 1])
    trace["hidden_states"][-1, LAYER] += 3 * first * A
    trace["hidden_states"][-1, OTHER] -= 3 * first * sign(label) * A


def plant_one_token(rng: np.random.Generator, trace: Trace, label: int) -> None:
    """One token of the answer, not the last, has a direction for 1, and its opposite for 0."""
    place = answer_places(rng, trace, 1)
    trace["hidden_states"][place, LAYER] += 4 * sign(label) * A


def plant_order(rng: np.random.Generator, trace: Trace, label: int) -> None:
    """Two tokens at least three apart: A then B for 1, B then A for 0."""
    first, last = answer_places(rng, trace, 2)
    while last - first < 3:
        first, last = answer_places(rng, trace, 2)
    trace["hidden_states"][first, LAYER] += 2.7 * (A if label else B)
    trace["hidden_states"][last, LAYER] += 2.7 * (B if label else A)


def plant_graph(rng: np.random.Generator, trace: Trace, label: int) -> None:
    """The last token attends to one of two tokens with opposite states, that of the label."""
    right, other = rng.permutation(answer_places(rng, trace, 2))
    trace["hidden_states"][right] += 1.5 * sign(label) * A
    trace["hidden_states"][other] -= 1.5 * sign(label) * A
    trace["maps"][:, :, -1] *= 0.4
    trace["maps"][:, :, -1, right] += 0.6


def plant_attention(
    rng: np.random.Generator, trace: Trace, label: int, *, strength: float, where: str
) -> None:
    """For 1, layer 1 attends more to a place, and as much less to all others."""
    maps = trace["maps"][LAYER]  # (H, T, T)
    share = strength * label * rng.uniform(0.5, 1.5)
    maps *= 1 - share
    n_tokens = maps.shape[-1]
    if where == "itself":
        maps[:, np.arange(n_tokens), np.arange(n_tokens)] += share
    elif where == "first token":
        maps[:, :, 0] += share
    else:  # the prompt
        n_prompt = trace["prompt_len"]
        maps[:, n_prompt:, :n_prompt] += share / n_prompt
        maps[:, :n_prompt] /= maps[:, :n_prompt].sum(-1, keepdims=True)


def plant_context(rng: np.random.Generator, trace: Trace, label: int) -> None:
    """For 1, layer 1 attends more to the context, and as much less to the rest of the prompt."""
    n_prompt = trace["prompt_len"]
    to_prompt = trace["maps"][LAYER, :, n_prompt:, :n_prompt]  # a view
    moved = to_prompt * 0.4 * label * rng.uniform(0.5, 1.5)
    moved[..., CONTEXT] = 0
    to_prompt -= moved
    to_prompt[..., CONTEXT] += moved.sum(-1, keepdims=True) / N_CONTEXT


def plant_least_logprob(rng: np.random.Generator, trace: Trace, label: int) -> None:
    """For 1, one token of the answer is less likely, and the others make up for it in the mean."""
    answer = trace["logprob"][trace["prompt_len"] :]
    if label:
        total = answer.sum()
        answer[int(rng.integers(len(answer)))] -= 8
        answer *= total / answer.sum()


def plant_wide(rng: np.random.Generator, trace: Trace, label: int) -> None:
    """Layer 5 of 8: forty ordinary dimensions, each by a third of its spread."""
    states = trace["hs_last"][4]
    states[100:140] += 0.2 * sign(label) * states[220:380].std()


def plant_question(rng: np.random.Generator, trace: Trace, label: int) -> None:
    """Nothing but the question itself: states that its copies share."""
    trace["hidden_states"] *= 2


def last_at(layers: list[int], trace: Trace) -> Array:
    return trace["hs_last"][layers].ravel()


def answer_states(trace: Trace) -> Array:
    """Of the signal's layer, (answer_len, d)."""
    return trace["hidden_states"][trace["prompt_len"] :, LAYER]


def mean_at_layer(trace: Trace) -> Array:
    return answer_states(trace).mean(0)


def attended_state(trace: Trace) -> Array:
    """States that the last token attends to, and how much each, summed."""
    n_tokens = len(trace["hidden_states"])
    weights = trace["attn_mean"][-n_tokens:, LAYER]
    return weights @ trace["hidden_states"][:, LAYER]


def log_diagonal(trace: Trace) -> Array:
    return np.log(np.maximum(trace["attn_diag"][:, LAYER], 1e-6)).mean(0)


def sink(trace: Trace) -> Array:
    return trace["attn_colsum"][0, LAYER] / len(trace["attn_colsum"])


def prompt_mass(trace: Trace) -> Array:
    mass = trace["attn_pmass"][trace["prompt_len"] :, LAYER].mean(0)
    return np.append(mass, [trace["prompt_len"], trace["answer_len"]])


def context_mass(trace: Trace) -> Array:
    return trace["attn_cmass"][trace["prompt_len"] :, LAYER].mean(0)


def least_logprob(trace: Trace) -> Array:
    return trace["logprob"][trace["prompt_len"] :].min(keepdims=True)


def regression(
    features: Callable[[Trace], Array], train: list[Trace], test: list[Trace], mlp: bool = False
) -> Array:
    """Scores of a regression, or of an MLP, on the numbers that carry the signal."""
    model = MLPClassifier((64,), alpha=1.0, early_stopping=True, random_state=0, max_iter=500)
    pipeline = make_pipeline(StandardScaler(), model if mlp else LogisticRegression(C=0.1))
    pipeline.fit([features(one) for one in train], labels_of(train))
    return pipeline.predict_proba([features(one) for one in test])[:, 1]


def network(module: Callable[[], nn.Module], train: list[Trace], test: list[Trace]) -> Array:
    """Scores of a torch module of packed answers, after 30 epochs of Adam."""
    torch.manual_seed(0)
    model = module()
    inputs = [torch.tensor(answer_states(one), dtype=torch.float32) for one in train]
    labels = torch.tensor(labels_of(train), dtype=torch.float32)
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 6e-3, total_steps=30 * 44)
    for _ in range(30):
        for rows in torch.randperm(len(inputs)).split(32):
            loss = nn.functional.binary_cross_entropy_with_logits(
                model([inputs[i] for i in rows]), labels[rows]
            )
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    with torch.inference_mode():
        return model(
            [torch.tensor(answer_states(one), dtype=torch.float32) for one in test]
        ).numpy()


def labels_of(traces: list[Trace]) -> list[int]:
    return [one["label"] for one in traces]


class Gru(nn.Module):
    """A GRU over the answer's states at the layer of the signal, and a map of its last state."""

    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(STATE_SIZE, 32)
        self.output = nn.Linear(32, 1)

    def forward(self, answers: list[Tensor]) -> Tensor:
        _, last = self.gru(pack_sequence(answers, enforce_sorted=False))
        return self.output(last[0]).squeeze(1)


class Extremes(nn.Module):
    """The largest and the least of a linear map over the tokens, and a map of both."""

    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Linear(STATE_SIZE, 4)
        self.output = nn.Linear(8, 1)

    def forward(self, answers: list[Tensor]) -> Tensor:
        mapped = [self.token(one) for one in answers]
        ends = [torch.cat([one.amax(0), one.amin(0)]) for one in mapped]
        return self.output(torch.stack(ends)).squeeze(1)


SIGNALS: dict[str, Signal] = {
    "one_layer": Signal(
        plant_one_layer,
        partial(regression, mean_at_layer),
        ("logreg_mean", "halunet", "token_sequence", "state_sequence"),
        ("logreg_first", "prompt_state"),
    ),
    "layers_xor": Signal(
        plant_layers_xor,
        partial(regression, partial(last_at, [LAYER, OTHER]), mlp=True),
        ("lstm_solo", "clap", "layer_transitions"),
        ("saplma", "logreg_best", "logreg_pca"),
    ),
    "one_token": Signal(
        plant_one_token,
        partial(network, Extremes),
        ("token_sequence", "state_sequence"),  # a mean, as halunet has, dilutes it
        ("logreg_best",),
    ),
    "order": Signal(
        plant_order,
        partial(network, Gru),
        ("state_sequence",),
        ("logreg_mean", "token_sequence"),  # the latter sees a token with the one before it alone
    ),
    "graph": Signal(
        plant_graph,
        partial(regression, attended_state),
        ("gnn_det_lstm", "gvae_lstm"),
        ("logreg_mean", "state_sequence"),
        n_train=700,  # of a strong signal, for slow methods
    ),
    "diagonal": Signal(
        partial(plant_attention, strength=0.03, where="itself"),
        partial(regression, log_diagonal),
        ("llm_check", "attn_logdet"),
        ("logreg_best",),
    ),
    "sink": Signal(
        partial(plant_attention, strength=0.06, where="first token"),
        partial(regression, sink),
        ("sink_probe",),  # an eigenvalue of LapEigvals lacks what the token pays to itself
        ("logreg_best",),
    ),
    "lookback": Signal(
        partial(plant_attention, strength=0.12, where="prompt"),
        partial(regression, prompt_mass),
        ("lookback_lens",),
        ("logreg_best",),
    ),
    "context": Signal(
        plant_context,
        partial(regression, context_mass),
        ("lookback_context", "aggtruth_sum"),
        ("lookback_lens", "logreg_best"),
    ),
    "least_logprob": Signal(
        plant_least_logprob,
        partial(regression, least_logprob),
        ("min_logprob", "uncertainty", "los_net"),
        ("mean_logprob", "perplexity", "sum_logprob", "logreg_best"),
    ),
    "wide": Signal(
        plant_wide,
        partial(regression, partial(last_at, [4])),
        STATE_METHODS,
        ("logreg_first",),
        wide=True,
    ),
    "duplicates": Signal(
        plant_question, None, (), (*STATE_METHODS, "logreg_mean", "question_only"), n_copies=3
    ),
    "null": Signal(plant_nothing, None, (), tuple(METHODS), n_train=350),
}
