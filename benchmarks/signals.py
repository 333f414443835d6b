"""Stores whose signal is known: what says the label of a trace, where it is, and who can find it.

All columns of a trace are noise, but for what is planted: each signal writes the label into states,
attention or predictions before the columns are computed from them. Beside it stands a reference,
the likelihood ratio of both labels. It knows the plant (direction, layer, strength) and the noise,
learns nothing and shares no code with `models`: but for chance nothing ranks traces better.
"""

from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cache, partial

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.distance import jensenshannon
from scipy.special import entr, logsumexp

from models import METHODS

__all__ = ["SIGNALS", "Signal", "Trace", "rows_of", "told_by"]

Array = NDArray[np.floating]
Trace = dict  # column -> value; in the making also `maps` (L, H, T, T)
Plant = Callable[[np.random.Generator, Trace, int], None]
Reference = Callable[[Trace], float]  # log-likelihood ratio of label 1 to label 0

N_TEST = 1000  # traces
N_LAYERS, N_HEADS, STATE_SIZE, N_CANDIDATES = 5, 2, 16, 4
LAYER, OTHER = 1, 3  # where the signals of states are
A, B = np.linalg.qr(np.random.default_rng(7).normal(size=(STATE_SIZE, 2)))[0].T  # directions (d,)
N_CONTEXT = 2
CONTEXT = slice(1, 1 + N_CONTEXT)  # tokens of every prompt
KEPT_FROM = 0.05  # attention that makes an edge of attn_edges
WIDE = (8, 384)
WIDE_SPREADS = np.linspace(0.1, 3.0, WIDE[0])  # of layers
OUTLIERS = [3, 70, 71, 200]  # dimensions of wide states that are a hundred times the others
SCORES = ("eigenscore", "semantic_entropy", "semantic_entropy_discrete", "selfcheck_nli")
AGREEMENT = "lexical_similarity"  # falls where the others rise
BETWEEN = slice(1, N_LAYERS - 1)  # layers
# strengths of plants
ONE_LAYER, ONE_TOKEN, ORDER, GRAPH = 0.45, 5, 2.7, 1.5  # in standard deviations
FOCUS, SPREAD, UNSURE = 2.2, 2.5, 2.5  # factors
LEAST_LOGPROB = 0.6  # of the sum
SAMPLES = 1.4
WIDE_LAYER, WIDE_PART, WIDE_SHIFT = 4, slice(100, 140), 0.2

STATE_METHODS = ("saplma", "lstm_solo", "clap", "logreg_best")


@dataclass(frozen=True)
class Signal:
    """A kind of store.

    Attributes
    ----------
    plant : callable
        (rng, trace, label): write the label into the noise of a trace.
    reference : callable or None
        The score of a trace whose AUROC the methods of `finds` should have, all but .02; None where
        nothing is to be found.
    finds, blind : tuple of str
        Methods that should find it, and some that cannot. All that read nothing that tells the
        label cannot either (`told_by`): they are those of a store without a signal.
    misses : dict
        Method of `finds` that is further below the reference -> why.
    """

    plant: Plant
    reference: Reference | None
    finds: tuple[str, ...]
    blind: tuple[str, ...] = ()
    is_wide: bool = False
    n_copies: int = 1  # of a question, under other ids
    n_train: int = 1400  # traces
    misses: dict[str, str] = field(default_factory=dict, hash=False)

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
            trace = (wide_noise if signal.is_wide else noise)(rng)
            signal.plant(rng, trace, label)
            for copy in range(signal.n_copies):
                columns = finish(rng, trace) | described(number, copy, label, split)
                yield f"t{number}", columns
                number += 1


@cache
def told_by(signal: Signal) -> frozenset[str]:
    """The columns that tell the label: they differ if it does and all noise is the same."""
    trace = (wide_noise if signal.is_wide else noise)(np.random.default_rng(0))
    of_label = []
    for label in (0, 1):
        planted = deepcopy(trace)
        signal.plant(np.random.default_rng(1), planted, label)
        of_label.append(finish(np.random.default_rng(2), planted))
    first, other = of_label
    return frozenset(name for name in first if not is_same(first[name], other[name]))


def is_same(first: Array, other: Array) -> bool:
    return np.shape(first) == np.shape(other) and np.allclose(first, other, equal_nan=True)


def described(number: int, copy: int, label: int, split: str) -> Trace:
    """The record of a trace; the copies of a question differ in blanks and capitals alone."""
    rng = np.random.default_rng([number - copy, 2])
    words = rng.choice(["red", "tall", "old", "river", "tower", "song", "king", "lake"], 5)
    text = f"which {' '.join(words)} of {number - copy}"
    question = [text, f"  {text.capitalize()} ", text.upper()][copy]
    return {"question_id": f"q{number}", "question": question, "label": label, "split": split}


def noise(rng: np.random.Generator) -> Trace:
    """A trace without a label: all that columns are computed from, of random length."""
    n_prompt, n_answer = int(rng.integers(4, 7)), int(rng.integers(7, 13))
    n_tokens = n_prompt + n_answer
    logits = rng.normal(size=(N_LAYERS, N_HEADS, n_tokens, n_tokens))
    maps = np.exp(logits) * np.tri(n_tokens)
    by_layer = rng.exponential(1.0, (4, n_tokens, N_LAYERS))
    by_layer[1:, :, 0] = np.nan
    in_answer = np.arange(n_tokens) >= n_prompt
    return {
        "prompt_len": n_prompt,
        "answer_len": n_answer,
        "hidden_states": rng.normal(size=(n_tokens, N_LAYERS, STATE_SIZE)),
        "maps": normalised(maps),
        "logprob": -rng.exponential(1.0, n_tokens),
        "entropy": rng.exponential(1.0, n_tokens),
        "lens_entropy": by_layer[0],
        "lens_entropy_attention": by_layer[1],
        "lens_entropy_mlp": by_layer[2],
        "icr": by_layer[3],
        "token_label": np.where(in_answer, rng.random(n_tokens) < 0.1, -1),
        **dict(zip((*SCORES, AGREEMENT), rng.normal(size=5), strict=True)),
    }


def normalised(maps: Array) -> Array:
    return maps / maps.sum(-1, keepdims=True)


def wide_noise(rng: np.random.Generator) -> Trace:
    """Last states alone, of d = 384 and with dimensions of outliers, as a language model has."""
    states = rng.normal(size=WIDE) * WIDE_SPREADS[:, None]
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
        "topk_logprob": candidates,
        "topk_id": rng.integers(0, 50, (n_tokens, N_CANDIDATES)),
        "attn_mean": maps.mean(1)[:, rows, cols].T,
        "attn_diag": by_token[np.arange(n_tokens), :, :, np.arange(n_tokens)],
        "attn_colsum": np.moveaxis(maps.sum(2), 2, 0),
        "attn_pmass": by_token[..., :n_prompt].sum(-1),
        "attn_amass": by_token[..., n_prompt:].sum(-1),
        "attn_entropy": entr(by_token).sum(-1),
        "attn_prev": previous,
        "attentions": np.moveaxis(by_token, 3, 1).reshape(-1, N_LAYERS, N_HEADS),
        **edges(by_token, n_prompt),
        **of_context(by_token[..., CONTEXT]),
    }


def edges(by_token: Array, n_prompt: int) -> Trace:
    """The columns of strong attention, from the prompt's last token on, to tokens before."""
    target, source = np.tril_indices(len(by_token), -1)
    attention = by_token[target, :, :, source]  # (n_pairs, L, H)
    attention = np.where(attention >= KEPT_FROM, attention, 0)
    is_kept = (target >= n_prompt - 1) & attention.any(axis=(1, 2))
    ends = np.stack([target, source], axis=1)
    return {"attn_edges": attention[is_kept], "attn_edge_ends": ends[is_kept]}


def of_context(attention: Array) -> Trace:
    """The columns of what each token and head pays to the context, (T, L, H, C); H is 2."""
    mass = attention.sum(-1)
    share = attention / np.where(mass > 0, mass, 1)[..., None]
    length = np.linalg.norm(attention, axis=-1).prod(-1, keepdims=True)
    cosine = attention.prod(2).sum(-1)[..., None] / np.where(length > 0, length, 1)
    whole = np.concatenate([attention, 1 - mass[..., None]], axis=-1)
    distance = jensenshannon(whole, whole.mean(2, keepdims=True), axis=-1)
    return {
        "context_len": N_CONTEXT,
        "attn_cmass": mass,
        "attn_centropy": entr(share).sum(-1),
        "attn_ccosine": cosine.repeat(N_HEADS, axis=-1),
        "attn_cjs": np.nan_to_num(distance),  # rounding below 0
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
    trace["hidden_states"][trace["prompt_len"] :, LAYER] += ONE_LAYER * sign(label) * A


def plant_layers_xor(rng: np.random.Generator, trace: Trace, label: int) -> None:
    """Two layers of the last token have equal signs for 0, other signs for 1; either alone none."""
    first = rng.choice([-1, 1])
    trace["hidden_states"][-1, LAYER] += 3 * first * A
    trace["hidden_states"][-1, OTHER] -= 3 * first * sign(label) * A


def plant_one_token(rng: np.random.Generator, trace: Trace, label: int) -> None:
    """For 1, one token of the answer, not the last, has a direction, and is labelled."""
    place = answer_places(rng, trace, 1)
    trace["hidden_states"][place, LAYER] += ONE_TOKEN * label * A
    trace["token_label"] = np.where(trace["token_label"] < 0, -1, 0)
    trace["token_label"][place] = label


def plant_order(rng: np.random.Generator, trace: Trace, label: int) -> None:
    """Two tokens at least three apart: A then B for 1, B then A for 0."""
    first, last = answer_places(rng, trace, 2)
    while last - first < 3:
        first, last = answer_places(rng, trace, 2)
    trace["hidden_states"][first, LAYER] += ORDER * (A if label else B)
    trace["hidden_states"][last, LAYER] += ORDER * (B if label else A)


def plant_graph(rng: np.random.Generator, trace: Trace, label: int) -> None:
    """The last token attends to one of two tokens with opposite states, that of the label."""
    right, other = rng.permutation(answer_places(rng, trace, 2))
    trace["hidden_states"][right] += GRAPH * sign(label) * A
    trace["hidden_states"][other] -= GRAPH * sign(label) * A
    trace["maps"][:, :, -1] *= 0.4
    trace["maps"][:, :, -1, right] += 0.6


def tilt(maps: Array, n_prompt: int, where: str, strength: float) -> Array:
    """Attention at layer 1 to a place e**strength times as large, before it is normalised again.

    Of "context" the prompt alone is, so that its mass stays.
    """
    n_tokens = maps.shape[-1]
    place = np.zeros((n_tokens, n_tokens))
    if where == "itself":
        np.fill_diagonal(place, 1)
    elif where == "first token":
        place[:, 0] = 1
    elif where == "prompt":
        place[n_prompt:, :n_prompt] = 1
    else:
        place[n_prompt:, CONTEXT] = 1
    among = slice(n_prompt if where == "context" else n_tokens)
    tilted = maps.copy()
    tilted[LAYER] *= np.exp(strength * place)
    mass = maps[LAYER, ..., among].sum(-1, keepdims=True)
    tilted[LAYER, ..., among] *= mass / tilted[LAYER, ..., among].sum(-1, keepdims=True)
    return tilted


def plant_attention(
    rng: np.random.Generator, trace: Trace, label: int, *, where: str, strength: float
) -> None:
    """For 1, layer 1 attends more to a place, and as much less to all others."""
    trace["maps"] = tilt(trace["maps"], trace["prompt_len"], where, strength * label)


def plant_focus(rng: np.random.Generator, trace: Trace, label: int) -> None:
    """For 1, attention of the answer's tokens is sharper in all heads."""
    answer = trace["maps"][:, :, trace["prompt_len"] :]  # a view
    answer[:] = normalised(answer ** (FOCUS if label else 1))


def plant_least_logprob(rng: np.random.Generator, trace: Trace, label: int) -> None:
    """For 1, one token of the answer has most of the sum, which itself says nothing."""
    answer = trace["logprob"][trace["prompt_len"] :]  # a view
    answer *= len(answer) * rng.uniform(0.9, 1.1) / -answer.sum()
    place, moved = int(rng.integers(len(answer))), LEAST_LOGPROB * label * answer.sum()
    answer *= 1 - LEAST_LOGPROB * label
    answer[place] += moved


def plant_unsure(rng: np.random.Generator, trace: Trace, label: int) -> None:
    """For 1, the answer's tokens are less likely; entropies and numbers of layer 1 say the same."""
    surprise = -trace["logprob"]
    surprise[trace["prompt_len"] :] *= UNSURE if label else 1
    trace["logprob"], trace["entropy"] = -surprise, surprise
    for name in ("lens_entropy", "icr"):
        trace[name][:, LAYER] = surprise


def plant_samples(rng: np.random.Generator, trace: Trace, label: int) -> None:
    """How little samples agree is higher for 1; the last states of prompt and answer show it."""
    score = rng.normal() + SAMPLES * sign(label)
    trace.update(dict.fromkeys(SCORES, score), lexical_similarity=-score)
    trace["hidden_states"][[trace["prompt_len"] - 1, -1]] += 5 * score * A


def plant_spread(rng: np.random.Generator, trace: Trace, label: int) -> None:
    """For 1, the answer's states at the layers between are farther from the mean."""
    trace["hidden_states"][trace["prompt_len"] :, BETWEEN] *= SPREAD if label else 1


def plant_wide(rng: np.random.Generator, trace: Trace, label: int) -> None:
    """Layer 5 of 8: forty ordinary dimensions, each by a part of its spread."""
    states = trace["hs_last"][WIDE_LAYER]
    states[WIDE_PART] += WIDE_SHIFT * sign(label) * states[220:380].std()


def plant_question(rng: np.random.Generator, trace: Trace, label: int) -> None:
    """Nothing but the question itself: states that its copies share."""
    trace["hidden_states"] *= 2


def along(direction: Array, trace: Trace, layer: int = LAYER) -> Array:
    """Of the answer's tokens, (answer_len,)."""
    return trace["hidden_states"][trace["prompt_len"] :, layer] @ direction


def one_layer(trace: Trace) -> float:
    return float(2 * ONE_LAYER * along(A, trace).sum())


def layers_xor(trace: Trace) -> float:
    """Either sign of the first layer is as likely."""
    first, other = 3 * along(A, trace)[-1], 3 * along(A, trace, OTHER)[-1]
    return float(
        logsumexp([first - other, other - first]) - logsumexp([first + other, -first - other])
    )


def one_token(trace: Trace) -> float:
    """Any token but the last may have it."""
    tokens = ONE_TOKEN * along(A, trace)[:-1]
    return float(logsumexp(tokens) - np.log(len(tokens)) - ONE_TOKEN**2 / 2)


def order(trace: Trace) -> float:
    """Any two tokens at least three apart may have the directions."""
    a, b = (ORDER * along(direction, trace)[:-1] for direction in (A, B))
    pairs = np.triu_indices(len(a), 3)
    return float(logsumexp(np.add.outer(a, b)[pairs]) - logsumexp(np.add.outer(b, a)[pairs]))


def graph(trace: Trace) -> float:
    """The token of the answer with the most attention tells, at each layer."""
    n_tokens = len(trace["hidden_states"])
    attention = trace["attn_mean"][-n_tokens:-1].mean(1)
    right = trace["prompt_len"] + attention[trace["prompt_len"] :].argmax()
    return float(2 * GRAPH * (trace["hidden_states"][right] @ A).sum())


def maps_of(trace: Trace) -> Array:
    """Attention (L, H, T, T)."""
    n_tokens = len(trace["hidden_states"])
    square = trace["attentions"].reshape(n_tokens, n_tokens, N_LAYERS, N_HEADS)
    return np.moveaxis(square, (2, 3), (0, 1))


def squares(maps: Array) -> float:
    """Of the logits behind the attention, each from the mean of its row: they are normal."""
    logits = np.log(maps, where=maps > 0, out=np.zeros_like(maps))
    n_attended = np.arange(1, 1 + maps.shape[-1])
    total = (logits**2).sum(-1) - logits.sum(-1) ** 2 / n_attended
    return float(total.sum())


def attention(trace: Trace, *, where: str, strength: float) -> float:
    """What was planted is taken away: of a 1 that leaves standard normal logits."""
    maps = maps_of(trace)
    before = tilt(maps, trace["prompt_len"], where, -strength)
    return (squares(maps) - squares(before)) / 2


def focus(trace: Trace) -> float:
    """Logits of a larger spread in the answer's rows, which have as many free as tokens before."""
    n_free = N_LAYERS * N_HEADS * np.arange(trace["prompt_len"], len(trace["hidden_states"])).sum()
    return squares(maps_of(trace)) * (1 - FOCUS**-2) / 2 - n_free * np.log(FOCUS)


def least_logprob(trace: Trace) -> float:
    """The shares of the tokens are uniform; in a 1 some token has more than was moved to it."""
    answer = trace["logprob"][trace["prompt_len"] :]
    n_large = (answer / answer.sum() >= LEAST_LOGPROB).sum()
    return np.log(max(n_large, 1e-9) / len(answer)) - (len(answer) - 1) * np.log(1 - LEAST_LOGPROB)


def unsure(trace: Trace) -> float:
    surprise = -trace["logprob"][trace["prompt_len"] :]
    return surprise.sum() * (1 - 1 / UNSURE) - len(surprise) * np.log(UNSURE)


def samples(trace: Trace) -> float:
    return float(2 * SAMPLES * trace["semantic_entropy"])


def spread(trace: Trace) -> float:
    states = trace["hidden_states"][trace["prompt_len"] :, BETWEEN]
    return (states**2).sum() * (1 - SPREAD**-2) / 2 - states.size * np.log(SPREAD)


def wide(trace: Trace) -> float:
    return float(
        2 * WIDE_SHIFT * trace["hs_last"][WIDE_LAYER, WIDE_PART].sum() / WIDE_SPREADS[WIDE_LAYER]
    )


def of_attention(where: str, strength: float) -> tuple[Plant, Reference]:
    """A plant of attention and the reference for it."""
    plant = partial(plant_attention, where=where, strength=strength)
    return plant, partial(attention, where=where, strength=strength)


SIGNALS: dict[str, Signal] = {
    "one_layer": Signal(
        plant_one_layer,
        one_layer,
        ("logreg_mean", "halunet", "token_sequence", "state_sequence"),
        ("logreg_first", "prompt_state"),
    ),
    "layers_xor": Signal(
        plant_layers_xor,
        layers_xor,
        ("lstm_solo", "clap", "layer_transitions"),
        ("saplma", "logreg_best", "logreg_pca"),
    ),
    "one_token": Signal(
        plant_one_token,
        one_token,
        # a mean, as halunet has, dilutes it
        ("token_probe", "token_sequence", "state_sequence", "act_conv", "act_vit"),
        ("logreg_best",),
    ),
    "order": Signal(
        plant_order,
        order,
        ("state_sequence",),
        ("logreg_mean", "token_sequence"),  # the latter sees a token with the one before it alone
    ),
    "graph": Signal(
        plant_graph,
        graph,
        ("gnn_det_lstm", "gvae_lstm"),
        ("logreg_mean", "state_sequence"),
        n_train=700,  # of a strong signal, for slow methods
    ),
    "diagonal": Signal(
        *of_attention("itself", 0.9), ("llm_check", "attn_logdet", "lapeigvals"), ("logreg_best",)
    ),
    "sink": Signal(
        *of_attention("first token", 0.8),
        ("sink_probe",),  # an eigenvalue of LapEigvals lacks what the token pays to itself
        ("logreg_best",),
    ),
    "lookback": Signal(*of_attention("prompt", 0.6), ("lookback_lens",), ("logreg_best",)),
    "context": Signal(
        *of_attention("context", 1.7),
        ("lookback_context", "aggtruth_sum"),
        ("lookback_lens", "logreg_best"),
    ),
    "focus": Signal(
        plant_focus,
        focus,
        (
            "attention_entropy",
            "aggtruth_cosine",
            "aggtruth_entropy",
            "aggtruth_js",
            "lapeigvals",
            "charm",
            "charm_edges",
        ),
        ("logreg_best",),
        n_train=700,
    ),
    "least_logprob": Signal(
        plant_least_logprob,
        least_logprob,
        ("min_logprob", "uncertainty", "los_net"),
        ("mean_logprob", "perplexity", "logreg_best"),
    ),
    "unsure": Signal(
        plant_unsure,
        unsure,
        (
            *("mean_logprob", "perplexity", "entropy", "uncertainty"),
            *("llm_check_logit", "rauq", "trilens", "icr_probe", "los_net"),
        ),
        ("margin", "logreg_best"),
        n_train=700,
    ),
    "samples": Signal(
        plant_samples,
        samples,
        (
            *(*SCORES, AGREEMENT, "semantic_entropy_probe", "semantic_entropy_probe_prompt"),
            *("prompt_state", "drift", "logreg_best", "logreg_pca", "saplma", "mind"),
        ),
        ("mean_logprob",),
        n_train=700,
    ),
    "spread": Signal(
        plant_spread,
        spread,
        (
            *("coe", "llm_check_hidden", "mahalanobis", "relative_mahalanobis"),
            *("haloscope", "haloscope_projection", "act_conv", "act_vit"),
        ),
        # graph detectors divide a state by the mean of its numbers, and so by what is planted
        ("logreg_best", "logreg_mean", "prompt_state", "gnn_det_lstm", "gvae_lstm"),
        n_train=700,
    ),
    "wide": Signal(
        plant_wide,
        wide,
        (*STATE_METHODS, "logreg_pca"),
        ("logreg_first",),
        is_wide=True,
        # with 1,400 and 2,800 the three networks missed it: set by AUROCs on test, at data seed 0
        n_train=4200,
        misses={"lstm_solo": "by less than .001, and by .006 at data seed 1; why was not found"},
    ),
    "duplicates": Signal(
        plant_question, None, (), (*STATE_METHODS, "logreg_mean", "question_only"), n_copies=3
    ),
    "null": Signal(plant_nothing, None, (), tuple(METHODS), n_train=350),
}
