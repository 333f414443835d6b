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


def test_no_more_candidates_than_tokens(tokenizer):
    """A vocabulary smaller than K caps K in the schema: a distribution in full."""
    source = build_source(build_model("llama", tokenizer), tokenizer, top_k=1000)
    n = len(tokenizer)
    assert source.schema.columns["topk_id"].item_shape == (n,)
    for _, row in source.rows():
        assert (np.sort(row["topk_id"][1:]) == np.arange(n)).all()
        whole = np.exp(row["topk_logprob"][1:].astype(float)).sum(1)
        np.testing.assert_allclose(whole, 1, rtol=1e-3)


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

    def note(name):
        run = getattr(source_module, name)

        def noted(*arguments):
            seen.append((name, model.config._attn_implementation))
            return run(*arguments)

        monkeypatch.setattr(source_module, name, noted)

    note("generate_answers")
    note("run_forward")
    source = build_source(model, tokenizer, batch_size=8)
    list(source.rows())
    assert seen == [("generate_answers", "sdpa"), ("run_forward", "eager")]
    assert source.provenance["attn_implementation"] == "eager"
    assert source.provenance["generation_attn_implementation"] == "sdpa"
    monkeypatch.delattr(source_module, "generate_answers")
    with pytest.raises(NameError):
        list(source.rows())
    assert model.config._attn_implementation == "eager"


def test_a_model_whose_attention_cannot_be_changed(tokenizer, monkeypatch):
    """Without maps it is refused, if it has to give some; loaded eagerly it generates so."""
    model = build_model("llama", tokenizer, attn_implementation="sdpa")
    monkeypatch.setattr(type(model), "_can_set_attn_implementation", lambda _: False)
    expected = "expected attn_implementation 'eager', or one that can be changed, found 'sdpa' of"
    with pytest.raises(ValueError, match=expected):
        build_source(model, tokenizer)
    assert len(list(build_source(model, tokenizer, columns=["hs_last"]).rows())) == 8
    source = build_source(build_model("llama", tokenizer), tokenizer)
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


@pytest.mark.parametrize("stop", [None, "1"])
def test_a_model_that_ends_no_answer_is_reported(stop, tokenizer, tmp_path):
    """Unless a text ends them."""
    model = build_model("llama", tokenizer)
    model.generation_config.eos_token_id = None
    source = build_source(model, tokenizer, columns=["answer"], max_new_tokens=1, stop=stop)
    store = build_store(tmp_path / "s.zarr", source)
    report = extraction_report(tmp_path / "s.zarr", store, source, LeftOut())
    assert ("the model has no token that ends an answer" in report) == (not stop)


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
