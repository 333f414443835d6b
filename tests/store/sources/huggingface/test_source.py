"""Tests of traces from causal language models, on tiny random ones of two architectures."""

from contextlib import nullcontext

import numpy as np
import pytest
import torch
from building import (
    ARCHITECTURES,
    QUESTIONS,
    assert_same,
    build_model,
    build_source,
    kinds_of_models,
)
from character_tokenizer import build_tokenizer
from tokenizers_of_kinds import byte_level

from store.errors import SchemaError
from store.labels.answer_scores import contains_score
from store.labels.grading import Grader
from store.labels.regrade import plan_rules
from store.reports import LeftOut
from store.sources.huggingface import source as source_module
from store.sources.huggingface.generation import (
    Decoding,
    generate_answers,
    heeds_padding,
    stop_rule,
)
from store.sources.huggingface.report import extraction_report
from store.write.build import build_store

MODULES = {"generate_answers": source_module, "run_forward": source_module}


@pytest.fixture(scope="module", params=["llama", "gpt2"])
def source(request, tokenizer):
    """Eight questions in batches of four."""
    model = build_model(request.param, tokenizer)
    return build_source(model, tokenizer, template="{question}=", batch_size=4)


@pytest.fixture(scope="module")
def rows(source):
    """All rows of the source, in order."""
    return list(source.rows())


def test_nothing_predicted_the_first_token(rows):
    """Its log-probability and entropy are NaN and its candidates -1; all others are finite."""
    for _, row in rows:
        assert np.isnan([row["logprob"][0], row["entropy"][0], *row["topk_logprob"][0]]).all()
        assert (row["topk_id"][0] == -1).all()
        assert np.isfinite(row["logprob"][1:]).all()
        assert np.isfinite(row["topk_logprob"][1:]).all()


def test_answers_are_the_most_likely_tokens(rows):
    """Greedy: every token of an answer is the first of its own candidates."""
    for _, row in rows:
        answer = slice(row["prompt_len"], None)
        assert row["tokens"][answer].tolist() == row["topk_id"][answer, 0].tolist()


@pytest.mark.parametrize("start", [-1, len(QUESTIONS) + 1])
def test_a_start_out_of_range_is_refused(source, start):
    """The message gives the range."""
    with pytest.raises(IndexError, match=f"expected 0 to 8, found {start}"):
        next(source.rows(start))


def test_an_answer_ends_before_its_first_end_token(tokenizer):
    """An answer that never ends has max_new_tokens tokens, and an empty one keeps its end token."""
    model = build_model("llama", tokenizer)
    prompts = [tokenizer(question["question"])["input_ids"] for question in QUESTIONS]
    model.generation_config.eos_token_id = None
    names = [question["question_id"] for question in QUESTIONS]
    free = generate_answers(model, prompts, names, Decoding(max_new_tokens=6))
    assert [len(answer) for answer in free] == [6] * len(prompts)
    for end in {token for answer in free for token in answer}:
        model.generation_config.eos_token_id = [end, tokenizer.eos_token_id]
        found = generate_answers(model, prompts, names, Decoding(max_new_tokens=6))
        for answer, whole in zip(found, free, strict=True):
            n_before = min(
                n for n, token in enumerate([*whole, end]) if token in (end, tokenizer.eos_token_id)
            )
            assert answer == whole[: max(n_before, 1)]


def test_decoding_settings_of_the_model_do_not_count(tokenizer):
    """A repetition penalty that ships with a model does not bend greedy decoding."""
    model = build_model("llama", tokenizer)
    expected = [row["tokens"].tolist() for _, row in build_source(model, tokenizer).rows()]
    model.generation_config.repetition_penalty = 5.0
    model.generation_config.suppress_tokens = expected[0][-1:]
    model.generation_config.min_new_tokens = 5
    model.generation_config.prompt_lookup_num_tokens = 3
    assert [row["tokens"].tolist() for _, row in build_source(model, tokenizer).rows()] == expected


def test_provenance_tells_models_and_tokenizers_apart(tokenizer):
    """What changes a value changes it, where the weights and the names are the same."""
    provenance = build_source(build_model("llama", tokenizer), tokenizer).provenance
    assert build_source(build_model("llama", tokenizer), tokenizer).provenance == provenance
    other = build_model("llama", tokenizer)
    other.config.rms_norm_eps = 1.0
    assert build_source(other, tokenizer).provenance["config_sha256"] != provenance["config_sha256"]
    changed = build_tokenizer()
    changed.backend_tokenizer.post_processor = None
    assert (
        build_source(build_model("llama", tokenizer), changed).provenance["tokenizer_sha256"]
        != provenance["tokenizer_sha256"]
    )
    ends = build_model("llama", tokenizer)
    ends.generation_config.eos_token_id = 7
    assert build_source(ends, tokenizer).provenance["decoding"]["end_ids"] == [7]


def test_no_more_candidates_than_tokens(tokenizer):
    """A vocabulary smaller than K caps K in the schema."""
    source = build_source(build_model("llama", tokenizer), tokenizer, top_k=1000)
    assert source.schema.columns["topk_id"].item_shape == (len(tokenizer),)


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_a_model_with_fast_attention_gives_the_same_maps(kind, tokenizer):
    """Bit for bit those of the same model loaded with the eager one; it keeps its own after."""
    model = build_model(kind, tokenizer)
    expected = list(build_source(model, tokenizer).rows())
    model.set_attn_implementation("sdpa")
    source = build_source(model, tokenizer)
    assert source.provenance == build_source(build_model(kind, tokenizer), tokenizer).provenance
    for (_, found), (_, row) in zip(source.rows(), expected, strict=True):
        assert_same(found, row)
    assert model.config._attn_implementation == "sdpa"


def test_only_the_second_pass_is_eager(tokenizer, monkeypatch):
    """Answers are generated with the fast attention; the model has its own again, also after an
    error."""
    model = build_model("llama", tokenizer)
    seen = []

    def noting(name):
        run = getattr(MODULES[name], name)

        def noted(*arguments):
            seen.append((name, model.config._attn_implementation))
            return run(*arguments)

        monkeypatch.setattr(MODULES[name], name, noted)

    for name in MODULES:
        noting(name)
    source = build_source(model, tokenizer, batch_size=8)
    list(source.rows())
    assert seen == [("generate_answers", "sdpa"), ("run_forward", "eager")]
    assert source.provenance["attn_implementation"] == "eager"
    assert source.provenance["generation_attn_implementation"] == "sdpa"

    def failing(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(source_module, "generate_answers", failing)
    with pytest.raises(KeyboardInterrupt):
        list(source.rows())
    assert model.config._attn_implementation == "eager"


def test_a_model_without_attention_maps_is_refused(tokenizer, monkeypatch):
    """Where its attention cannot be changed, the message says how to load it."""
    model = build_model("llama", tokenizer, attn_implementation="sdpa")
    monkeypatch.setattr(type(model), "_can_set_attn_implementation", lambda _: False)
    expected = "expected attn_implementation 'eager', or one that can be changed, found 'sdpa' of"
    with pytest.raises(ValueError, match=expected):
        build_source(model, tokenizer)
    assert len(list(build_source(model, tokenizer, columns=["hs_last"]).rows())) == 8


def test_a_model_that_cannot_change_generates_with_what_it_has(tokenizer, monkeypatch):
    """Eagerly, if it was loaded so."""
    model = build_model("llama", tokenizer)
    monkeypatch.setattr(type(model), "_can_set_attn_implementation", lambda _: False)
    source = build_source(model, tokenizer)
    assert source.provenance["generation_attn_implementation"] == "eager"
    assert len(list(source.rows())) == 8


def test_a_model_in_training_mode_is_refused(tokenizer):
    """Dropout would make every trace random."""
    with pytest.raises(ValueError, match="expected evaluation mode"):
        build_source(build_model("llama", tokenizer).train(), tokenizer)


CARELESS = {  # of padding
    "rwkv": {"attention_hidden_size": 16, "context_length": 64},
    "bart": {"d_model": 16, "decoder_layers": 3, "decoder_attention_heads": 2, "init_std": 0.5},
    "recurrent_gemma": {"lru_width": 16, "head_dim": 8, "attention_window_size": 64},
}


def sharpened(model):
    """The model with weights that are all random; some begin as zeros."""
    with torch.no_grad():
        for weight in model.parameters():
            weight += 0.3 * torch.randn_like(weight)
    return model


@pytest.mark.parametrize("kind", CARELESS)
def test_models_that_do_not_heed_padding_answer_each_prompt_alone(kind, tokenizer):
    """Recurrent ones, and those that count positions from the first padding."""
    model = sharpened(build_model(kind, tokenizer, **CARELESS[kind]))
    prompts = [tokenizer(question["question"])["input_ids"] for question in QUESTIONS[:3]]
    names = ["a", "b", "c"]
    for decoding in (Decoding(max_new_tokens=4), Decoding(1, 2, 2.0, max_new_tokens=2)):
        alone = [
            answer
            for prompt, name in zip(prompts, names, strict=True)
            for answer in generate_answers(model, [prompt], [name], decoding)
        ]
        assert generate_answers(model, prompts, names, decoding) == alone
    assert not heeds_padding(model)
    beams = Decoding(num_beams=2, max_new_tokens=2)
    with nullcontext() if kind != "rwkv" else pytest.raises(SchemaError, match="leave out --num-b"):
        generate_answers(model, prompts, names, beams)


@pytest.fixture
def report(tmp_path, tokenizer):
    """The report of an extraction of short answers."""

    def extract(model, **settings):
        source = build_source(model, tokenizer, columns=["answer"], max_new_tokens=1, **settings)
        store = build_store(tmp_path / "s.zarr", source)
        return extraction_report(tmp_path / "s.zarr", store, source, LeftOut())

    return extract


@pytest.mark.parametrize("stop", [None, "1"])
def test_a_model_that_ends_no_answer_is_reported(stop, tokenizer, report):
    """Unless a text ends them."""
    model = build_model("llama", tokenizer)
    model.generation_config.eos_token_id = None
    assert ("the model has no token that ends an answer" in report(model, stop=stop)) == (not stop)


@pytest.mark.parametrize("kind", kinds_of_models(*ARCHITECTURES))
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_models_that_heed_padding_keep_their_batches(kind, dtype, tokenizer):
    """Rounding is no difference."""
    assert heeds_padding(build_model(kind, tokenizer).to(dtype))


@pytest.mark.parametrize("end, score", [("=", 1.0), ("=<think>\n", 0.0)])
def test_what_is_said_within_the_prompts_thought_is_no_statement(end, score, tmp_path):
    """Of an answer without its end; of a store the provenance tells `label` so."""
    tokenizer = byte_level()
    model = build_model("llama", tokenizer)
    settings = {"template": f"{{question}}{end}", "columns": ["default", "-attn"]}
    answered = build_source(model, tokenizer, **settings).rows()
    questions = [
        question | {"answers": [row["answer"]]}
        for question, (_, row) in zip(QUESTIONS, answered, strict=True)
        if contains_score(row["answer"], [row["answer"]]) == 1.0
    ]
    source = build_source(model, tokenizer, questions, labels="contains", **settings)
    store = build_store(tmp_path / "s.zarr", source)
    scores = store.column("score").tolist()
    assert scores
    assert set(scores) == {score}
    assert plan_rules(store, Grader("contains")).new.scores.tolist() == scores


def test_beams_of_a_model_without_an_end_are_cut_at_the_stop(tokenizer):
    """Shorter ones are filled up with no token."""
    model = build_model("llama", tokenizer)
    model.generation_config.eos_token_id = None
    prompts = [tokenizer(question["question"])["input_ids"] for question in QUESTIONS]
    decoding = Decoding(num_beams=3, num_samples=2, max_new_tokens=8, stop="1")
    stop = stop_rule(tokenizer, decoding.stop)
    found = generate_answers(model, prompts, [*map(str, range(len(prompts)))], decoding, stop)
    assert len({*map(len, found)}) > 1
    assert all(min(answer) >= 0 and not stop(answer[:-1]) for answer in found)
