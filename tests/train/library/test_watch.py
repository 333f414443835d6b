"""Scores while a model speaks: those of extracting the same answers and predicting."""

import threading
from functools import cache

import numpy as np
import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationConfig,
    MistralConfig,
    MistralForCausalLM,
    StoppingCriteria,
)

from store import SchemaError
from store.sources.example import MODEL_DIR, example_questions
from store.sources.huggingface.generation import Decoding
from store.sources.huggingface.kept import Kept
from store.sources.huggingface.prompts import Prompts
from store.sources.huggingface.source import HuggingFaceSource
from store.write.build import build_store
from train import fit_detectors, load_run
from train.errors import ConfigError, DataError
from train.library.watch import Watch

N, BATCH = 24, 8
# of one layer, of all layers, of all tokens, of predictions, of attention, of the logit lens
ONLY = "saplma,lstm_solo,clap,drift,token_sequence,los_net,mahalanobis,coe,lapeigvals,lookback_lens"
ONLY += ",logreg_best,margin,trilens,llm_check_logit,mean_logprob,entropy,uncertainty,answer_length"
ONLY += ",answer_text,question_only"
# those that score a token without the others
ALONE = ["saplma", "lstm_solo", "logreg_best", "mean_logprob", "entropy", "margin"]
LIGHT = [name for name in ONLY.split(",") if name not in ("lapeigvals", "lookback_lens", "trilens")]


@pytest.fixture(scope="module")
def questions():
    return example_questions(192)


@pytest.fixture(scope="module")
def run(example_store):
    """A run on the example's traces."""
    settings = {"epochs": 1, "seeds": 2, "tune": "none", "force_cpu": True}
    return fit_detectors(example_store.path, only=ONLY, **settings)


@pytest.fixture(scope="module")
def saved(run, tmp_path_factory):
    path = tmp_path_factory.mktemp("watched") / "run"
    run.save(path)
    return path


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(MODEL_DIR)


@pytest.fixture
def model():
    return AutoModelForCausalLM.from_pretrained(MODEL_DIR, dtype=torch.float32)


def load(saved, names=None):
    return load_run(saved, names or ONLY.removesuffix(",question_only"), force_cpu=True)


def ask(tokenizer, questions):
    """Prompts padded on the left, as extraction has them."""
    texts = [one["question"] for one in questions]
    found = tokenizer(texts, padding=True, return_tensors="pt")
    return {"input_ids": found["input_ids"], "attention_mask": found["attention_mask"]}


def padded(inputs, n):
    """The prompts behind so many more places of padding."""
    return {name: torch.nn.functional.pad(one, (n, 0)) for name, one in inputs.items()}


@pytest.fixture(scope="module")
def extract(questions, tokenizer, tmp_path_factory):
    """The function that gives a store of the greedy answers of so many tokens."""
    folder = tmp_path_factory.mktemp("extracted")

    @cache
    def to_store(max_new_tokens):
        model = AutoModelForCausalLM.from_pretrained(
            MODEL_DIR, dtype=torch.float32, attn_implementation="eager"
        )
        prompts = Prompts(tokenizer, model, "{question}", False, max_new_tokens)
        source = HuggingFaceSource(
            model,
            prompts,
            [prompts.encode(one) for one in questions[:N]],
            Decoding(max_new_tokens=max_new_tokens),
            Kept(columns=("default", "lens_entropy")),
            batch_size=BATCH,
        )
        return build_store(folder / f"{max_new_tokens}.zarr", source)

    return to_store


@pytest.mark.parametrize("max_new_tokens, by_token", [(12, True), (1, True), (12, False)])
def test_scores_are_those_of_extract_and_predict(
    saved, questions, tokenizer, model, extract, max_new_tokens, by_token
):
    """Of answers that end by themselves, and of those that are cut off; in padded batches. Tokens
    are scored as they come, as `predict --tokens` does."""
    store = extract(max_new_tokens)
    guard = load(saved)
    came = []
    with guard.watch(model, tokenizer) as watch:
        if by_token:
            watch.on_token(came.append)
        for first in range(0, N, BATCH):
            # a batch without padding, others with it
            inputs = padded(ask(tokenizer, questions[first : first + BATCH]), first // BATCH)
            model.generate(**inputs, max_new_tokens=max_new_tokens, do_sample=False)
    assert vars(model).keys().isdisjoint(("generate", "forward"))
    traces = [store[i] for i in range(N)]
    starts = [int(one["prompt_len"]) for one in traces]
    answers = [one["tokens"][n:].tolist() for one, n in zip(traces, starts, strict=True)]
    assert watch.tokens == answers
    for name, scores in guard.score(store, force=True).items():
        found = [row[name] for row in watch.scores]
        np.testing.assert_allclose(found, scores, atol=2e-3, err_msg=name)
    if not by_token:
        assert watch.token_scores == []
        return
    assert watch.token_scores[0].keys() >= {*ALONE}
    assert "token_sequence" not in watch.token_scores[0]  # it needs all tokens
    scorer = guard.read(store, force=True)
    ends = np.cumsum(store.lengths("tokens"))
    for name in watch.token_scores[0]:
        by_trace = np.split(scorer.score_tokens(name), ends[:-1])
        for found, scores, start in zip(watch.token_scores, by_trace, starts, strict=True):
            np.testing.assert_allclose(found[name], scores[start:], atol=2e-3, err_msg=name)
    by_sequence = [[one for one in came if one.sequence == i] for i in range(N)]
    assert [[one.id for one in row] for row in by_sequence] == watch.tokens
    assert [one.position for one in by_sequence[0]] == list(range(len(watch.tokens[0])))
    assert by_sequence[3][0].scores["entropy"] == watch.token_scores[3]["entropy"][0]


def test_columns_that_may_be_missing_are_given(saved, questions, tokenizer, model, extract):
    """Of what is said and of what is given: the scores of `predict` are with them."""
    store = extract(12)
    traces = [store[i] for i in range(BATCH)]
    expected = pytest.approx([float(one["eos_logprob"]) for one in traces], abs=1e-3)
    guard = load(saved, ["uncertainty"])
    watch = Watch(guard.score, guard.names, guard.models, model, tokenizer, keeps_rows=True)
    with watch:
        model.generate(**ask(tokenizer, questions[:BATCH]), max_new_tokens=12, do_sample=False)
    assert [float(row["eos_logprob"]) for row in watch.rows] == expected
    lengths = [int(one["prompt_len"]) for one in traces]
    prompts = [one["tokens"][:n].tolist() for one, n in zip(traces, lengths, strict=True)]
    watch.score_given(prompts, watch.tokens)
    assert [float(row["eos_logprob"]) for row in watch.rows] == expected


def test_only_what_is_read_goes_through_memory(saved, questions, tokenizer, model, monkeypatch):
    """No second pass for states and predictions; of states one layer, of prompts one token."""
    import train.library.watch as module

    monkeypatch.setattr(module, "run_forward", None)
    inputs = padded(ask(tokenizer, questions[:3]), 1)
    names = [name for name in LIGHT if name != "question_only"]
    with load(saved, names).watch(model, tokenizer) as watch:
        model.generate(**inputs, max_new_tokens=4, do_sample=False)
    assert len(watch.scores) == 3
    with load(saved, ["saplma"]).watch(model, tokenizer) as watch:
        assert [len(numbers) for numbers in watch.layers.values()] == [1]
        alone = model.generate(**inputs, max_new_tokens=4, do_sample=False)
    assert torch.equal(alone, model.generate(**inputs, max_new_tokens=4, do_sample=False))


def test_samples_configs_and_dicts(saved, questions, tokenizer, model):
    """Several samples a prompt, a configuration, a dictionary as result, a cache that goes on."""
    inputs = ask(tokenizer, questions[:2])
    config = GenerationConfig(
        max_new_tokens=5, do_sample=True, num_return_sequences=3, eos_token_id=2, pad_token_id=0
    )
    guard = load(saved, ["saplma", "mean_logprob"])
    more = {"return_dict_in_generate": True, "output_hidden_states": True}
    with guard.watch(model, tokenizer) as watch:
        out = model.generate(**inputs, generation_config=config, **more)
    assert len(watch.scores) == 6
    assert out.past_key_values.get_seq_length() == out.sequences.shape[1] - 1
    assert len(out.hidden_states[0]) == 5
    with guard.watch(model, tokenizer) as watch:  # without a cache: a second pass
        model.generate(**inputs, max_new_tokens=5, do_sample=False, use_cache=False)
    with guard.watch(model, tokenizer) as again:
        model.generate(**inputs, max_new_tokens=5, do_sample=False)
    with guard.watch(model, tokenizer) as own:  # whose ends are those of the model's own
        model.generate(**inputs, generation_config=GenerationConfig(max_new_tokens=5))
    assert watch.tokens == again.tokens == own.tokens
    for one, *others in zip(watch.scores, again.scores, own.scores, strict=True):
        assert all(one == pytest.approx(other, abs=2e-3) for other in others)


@pytest.mark.parametrize("window", [5, 100])
def test_a_cache_with_a_window_is_left_as_it_is(saved, questions, tokenizer, model, window):
    """Also where the answer reaches its longest length beyond the window."""
    kinds = model.config.to_dict() | {"model_type": "mistral", "sliding_window": window}
    sliding = MistralForCausalLM(MistralConfig(**kinds)).eval()
    sliding.load_state_dict(model.state_dict())
    options = ask(tokenizer, questions[:2]) | {"max_new_tokens": 3, "do_sample": False}
    options["return_dict_in_generate"] = True
    with load(saved, ["saplma", "mean_logprob"]).watch(sliding, tokenizer, force=True) as watch:
        out = sliding.generate(**options)
    expected = sliding.generate(**options)
    assert torch.equal(out.sequences, expected.sequences)
    for found, alone in zip(out.past_key_values, expected.past_key_values, strict=True):
        assert torch.equal(found[0], alone[0])
    prompts = [
        row[mask.bool()].tolist()
        for row, mask in zip(options["input_ids"], options["attention_mask"], strict=True)
    ]
    for found, given in zip(watch.scores, watch.score_given(prompts, watch.tokens), strict=True):
        assert found == pytest.approx(given, abs=2e-3)


def test_a_risky_token_ends_its_answer(saved, questions, tokenizer, model):
    """With the token after it; others go on, and the scores are of what was said."""
    guard = load(saved, ["saplma", "mean_logprob"])
    inputs = padded(ask(tokenizer, questions[:BATCH]), 1)

    def say(at):
        with guard.watch(model, tokenizer) as watch:
            watch.on_token()
            rules = [] if at is None else [watch.stopping(at, "saplma")]
            options = {"max_new_tokens": 12, "do_sample": False, "stopping_criteria": rules}
            model.generate(**inputs, **options)
        return watch, rules

    whole, _ = say(None)
    odds = [row["saplma"] for row in whole.token_scores]
    at = float(1 / (1 + np.exp(-np.median([max(row) for row in odds]))))
    watch, [rule] = say(at)
    assert 0 < sum(rule.ended) < BATCH
    for i, row in enumerate(odds):
        risky = [k for k, score in enumerate(row) if 1 / (1 + np.exp(-score)) >= at]
        n = min(risky[0] + 2, len(row)) if risky else len(row)
        assert watch.tokens[i] == whole.tokens[i][:n]
        assert len(watch.token_scores[i]["saplma"]) == n
    with pytest.raises(ConfigError, match=r"inside"):
        model.generate(**inputs, max_new_tokens=2, stopping_criteria=[rule])
    model.generation_config.eos_token_id = None
    with watch, pytest.raises(ConfigError, match=r"expected eos_token_id, .* and 8 answers; ask o"):
        model.generate(**inputs, max_new_tokens=2, stopping_criteria=[rule])
    one = {name: rows[:1] for name, rows in inputs.items()}
    with watch:
        model.generate(**one, max_new_tokens=20, do_sample=False, stopping_criteria=[rule])
    assert rule.ended == [len(watch.tokens[-1]) < 20]


def test_only_what_fills_up_is_padding(saved, questions, tokenizer, model):
    """A token that also pads is of the answer, but not where a rule ended it before others."""
    guard = load(saved, ["saplma", "mean_logprob"])
    inputs = ask(tokenizer, questions[:BATCH])

    def say(pad, *lengths, longest=12, n=BATCH):
        came = []
        rules = [AtLengths(inputs["input_ids"].shape[1], lengths)] if lengths else []
        some = {name: rows[:n] for name, rows in inputs.items()}
        with guard.watch(model, tokenizer) as watch:
            watch.on_token(came.append)
            options = {"max_new_tokens": longest, "do_sample": False, "stopping_criteria": rules}
            model.generate(**some, pad_token_id=pad, **options)
        lengths = [len(row["saplma"]) for row in watch.token_scores]
        assert [sum(one.sequence == i for one in came) for i in range(n)] == lengths
        assert [len(row) for row in watch.tokens] == lengths
        return watch

    whole = say(0)
    comma = whole.tokens[0][1]
    assert tokenizer.decode([comma]) == ","
    found = say(comma)
    assert (found.tokens, found.token_scores) == (whole.tokens, whole.token_scores)
    assert found.scores == whole.scores
    assert say(comma, longest=2).tokens == [row[:2] for row in whole.tokens]
    assert say(comma, 2, n=1).tokens == [whole.tokens[0][:2]]
    lengths = [1, 2, 3, 4, 5, 5, 5, 5]
    for pad in (0, comma):
        found = say(pad, *lengths)
        cut = [row[:n] for row, n in zip(whole.tokens, lengths, strict=True)]
        assert cut[1][-1] == comma
        cut[1] = cut[1][: 1 if pad == comma else 2]  # nothing tells it from what fills up
        assert found.tokens == cut


class AtLengths(StoppingCriteria):
    """Ends answers behind so many tokens."""

    def __init__(self, width, lengths):
        self.ends = width + torch.tensor(lengths)

    def __call__(self, input_ids, scores, **_):
        return self.ends <= input_ids.shape[1]


def test_scores_of_tokens_that_cannot_be_had_are_refused(saved, questions, tokenizer, model):
    inputs = ask(tokenizer, questions[:2])
    watch = load(saved, ["answer_length", "lapeigvals"]).watch(model, tokenizer)
    with pytest.raises(ConfigError, match="expected a method that scores a token without the othe"):
        watch.on_token()
    watch = load(saved, ["entropy"]).watch(model, tokenizer)
    with pytest.raises(ConfigError, match="log-odds, of which there is none, found entropy"):
        watch.stopping(0.9, ["entropy"])
    with pytest.raises(ConfigError, match="expected a probability above 0, found 9"):
        watch.stopping(9)
    watch.on_token()
    with watch, pytest.raises(SchemaError, match="found one of 7; generate with a cache"):
        model.generate(**inputs, max_new_tokens=4, do_sample=False, use_cache=False)
    with watch:
        model.generate(**inputs, max_new_tokens=4, do_sample=False)
    assert len(watch.scores) == len(watch.tokens) == len(watch.token_scores) == 2


def test_what_generation_cannot_give_is_said_at_watch(saved, tokenizer, model):
    with pytest.raises(ConfigError, match="question_only reads 'question', which generation does"):
        load(saved, ["saplma", "question_only"]).watch(model, tokenizer)
    guard = load(saved, ["saplma"])
    with torch.no_grad():
        model.lm_head.weight[0] += 1
        model.model.layers[0].self_attn.q_proj.weight[0] += 1
    with pytest.raises(DataError, match="watch: weights_sha256 '"):
        guard.watch(model, tokenizer)
    guard.watch(model, tokenizer, force=True)
    with pytest.raises(ConfigError, match="watch: model: expected evaluation mode"):
        guard.watch(model.train(), tokenizer)


def test_calls_that_cannot_be_watched_are_errors(saved, questions, tokenizer, model):
    inputs = ask(tokenizer, questions[:3])
    ids, mask = inputs.values()
    hole = mask.clone()
    hole[0, 2] = 0
    cache = model(**inputs, use_cache=True).past_key_values
    with load(saved, ["saplma"]).watch(model, tokenizer) as watch:
        for options, message in (
            ({**inputs, "num_beams": 2}, "found num_beams above 1"),
            ({**inputs, "guidance_scale": 1.5}, "found guidance_scale other than 1"),
            ({**inputs, "guidance_scale": 0.0}, "found guidance_scale other than 1"),
            ({"input_ids": ids}, "expected attention_mask with padding or several prompts"),
            ({"input_ids": padded({"": ids[:1]}, 1)[""]}, "expected attention_mask with padding"),
            ({"input_ids": ids, "attention_mask": mask.fliplr() * 0}, "padded on the left"),
            ({"input_ids": ids, "attention_mask": hole}, "found padding behind their tokens"),
            ({**inputs, "past_key_values": cache}, "found past_key_values"),
            ({"inputs_embeds": torch.zeros(1, 2, 64)}, "expected prompts as input_ids"),
        ):
            with pytest.raises(ConfigError, match=message):
                model.generate(**options, max_new_tokens=3)
        model.generation_config.num_beams = 2
        with pytest.raises(ConfigError, match="found num_beams above 1"):
            model.generate(**inputs, generation_config=GenerationConfig(max_new_tokens=3))
    assert watch.scores == []


def test_a_model_has_one_watch_and_one_call(saved, questions, tokenizer, model):
    """Another watch, the same one again, and a second call are refused; nothing stays patched."""
    inputs = ask(tokenizer, questions[:1])
    guard = load(saved, ["saplma"])
    watch, other = guard.watch(model, tokenizer), guard.watch(model, tokenizer)
    errors = []

    def speak(*_):
        model.generate(**inputs, max_new_tokens=2)

    def refused():
        try:
            speak()
        except ConfigError as error:
            errors.append(str(error))

    def elsewhere(_):
        thread = threading.Thread(target=refused)
        thread.start()
        thread.join()

    with watch:
        for one in (watch, other):
            with pytest.raises(ConfigError, match="expected a model that is not watched yet"):
                one.__enter__()
        watch.on_token(elsewhere)
        speak()
    assert "expected one call of generate at a time" in errors[0]
    assert vars(model).keys().isdisjoint(("generate", "forward"))
    with watch:
        speak()
    assert len(watch.scores) == 2
