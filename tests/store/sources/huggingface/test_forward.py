"""Columns made layer by layer, against states and maps that transformers collects and stacks."""

import math
from itertools import chain

import numpy as np
import pytest
import torch
from building import ARCHITECTURES, assert_same, build_model, kinds_of_models
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from store import SchemaError
from store.sources.huggingface import module_outputs
from store.sources.huggingface.attention_scores import ON_CONTEXT
from store.sources.huggingface.collectors import (
    ATTENTION,
    STATES,
    AttentionColumns,
    HalfRangeError,
    Layout,
    StateColumns,
)
from store.sources.huggingface.forward import run_forward
from store.sources.huggingface.generation import Decoding, generate_answers
from store.sources.huggingface.kept import build_schema
from store.sources.huggingface.predictions import find_additions, find_lens

V = 40
L, H, D = 3, 2, 16
KINDS = (
    *("llama", "qwen2", "gemma2", "mistral", "gpt_neox", "phi"),
    *("opt", "bloom", "falcon", "gpt2", "gptj"),
)
TRACES = [[1, 5, 9, 3, 20, 7, 8], [1, 6, 2], [1, 30, 31, 32, 33], [1, 4]]
PROMPT_LENS = [4, 1, 3, 1]
CONTEXTS = [(1, 3), (-1, 0), (0, 2), (0, 1)]  # first token, and how many
COLUMNS = [
    name
    for name in build_schema(L, H, D, 5).columns
    if name.startswith(("hs_", "hidden_", "attn_", "attentions", "lens_", "icr"))
    or name in ("logprob", "entropy", "topk_logprob", "topk_id", "eos_logprob")
]


def build(kind, dtype=torch.float32, **changes):
    """A random model."""
    ids = {"vocab_size": V, "bos_token_id": 1, "eos_token_id": [2, 3], "pad_token_id": 0}
    return build_model(kind, **ids | changes).to(dtype)


@pytest.fixture(scope="module", params=kinds_of_models(*KINDS))
def model(request):
    return build(request.param)


def collected(model, layers):
    """States (T, L, d), maps (L, H, T, T) and logits (T, V) of each trace, all of them at once."""
    width = max(map(len, TRACES))
    ids = torch.tensor([trace + [0] * (width - len(trace)) for trace in TRACES])
    mask = torch.tensor([[int(t < len(trace)) for t in range(width)] for trace in TRACES])
    with torch.no_grad():
        out = model(
            input_ids=ids,
            attention_mask=mask,
            output_hidden_states=True,
            output_attentions=True,
            use_cache=False,
        )
    for i, trace in enumerate(TRACES):
        n = len(trace)
        states = torch.stack([out.hidden_states[layer][i, :n] for layer in layers], dim=1)
        maps = torch.stack([out.attentions[layer - 1][i, :, :n, :n] for layer in layers])
        yield states, maps.float(), out.logits[i, :n].float()


def strong_edges(maps, prompt_len):
    """Pairs of a token, from the prompt's last one on, and one before it, by loops."""
    ends, edges = [], []
    for i in range(prompt_len - 1, maps.shape[2]):
        for j in range(i):
            values = maps[:, :, i, j].half().float()
            if (values >= 0.05).any():
                ends.append([i, j])
                edges.append(values.where(values >= 0.05, 0.0))
    return {"attn_edge_ends": torch.tensor(ends), "attn_edges": torch.stack(edges)}


def expected_on_context(maps, start, n):
    """The columns of attention on a context, (T, L, H) each, by loops over tokens and heads."""
    columns = {name: torch.full((maps.shape[2], *maps.shape[:2]), math.nan) for name in ON_CONTEXT}
    for t in range(maps.shape[2] if n else 0):
        for layer in range(maps.shape[0]):
            rows = maps[layer, :, t, start : start + n].double()  # (H, C)
            whole = torch.cat([rows, 1 - rows.sum(1, keepdim=True)], dim=1).clamp(min=0)
            for head, row in enumerate(rows):
                mass = row.sum()
                shares = (row / mass)[row > 0]
                cosines = [
                    row @ other / (row.norm() * other.norm()).clamp(min=1e-300)
                    for other in (*rows[:head], *rows[head + 1 :])
                ]
                reference = whole.mean(0)
                middle = (whole[head] + reference) / 2
                terms = [torch.xlogy(p, p / middle) for p in (whole[head], reference)]
                found = {
                    "attn_cmass": mass,
                    "attn_centropy": -(shares * shares.log()).sum(),
                    "attn_ccosine": sum(cosines) / (H - 1),
                    "attn_cjs": (sum(terms).nansum() / 2).clamp(min=0).sqrt(),
                }
                for name, value in found.items():
                    columns[name][t, layer, head] = value
    return columns


def expected_columns(states, maps, logits, prompt_len, context):
    """The columns of states and maps by their definitions, in float32."""
    n = len(states)
    previous = torch.full((n, *maps.shape[:2]), math.nan)
    for t in range(1, n):
        previous[t] = maps[:, :, t, t - 1]
    return {
        "hidden_states": states,
        "hs_last": states[-1],
        "hs_prompt": states[prompt_len - 1],
        "hs_mean": states[prompt_len:].float().mean(dim=0),
        "attn_mean": maps.mean(dim=1)[:, *torch.tril_indices(n, n)].T,
        "attn_diag": torch.einsum("lhtt->tlh", maps),
        "attn_colsum": maps.sum(dim=2).permute(2, 0, 1),
        "attn_pmass": maps[..., :prompt_len].sum(dim=3).permute(2, 0, 1),
        "attn_amass": maps[..., prompt_len:].sum(dim=3).permute(2, 0, 1),
        "attn_prev": previous,
        "attn_entropy": torch.distributions.Categorical(maps).entropy().permute(2, 0, 1),
        **expected_on_context(maps, *context),
        "attentions": maps.permute(2, 3, 0, 1).reshape(n * n, *maps.shape[:2]),
        **strong_edges(maps, prompt_len),
        "eos_logprob": logits[-1].double().softmax(dim=-1)[[2, 3]].sum().log(),
    }


@pytest.mark.parametrize("layers", [[1, 2, 3], [2]], ids=["all", "one"])
def test_columns_are_those_of_what_transformers_collects(model, layers):
    """Whatever the architecture and the padding, to half a unit of float16."""
    rows = run_forward(model, TRACES, PROMPT_LENS, layers, 5, COLUMNS, CONTEXTS)
    given = zip(collected(model, layers), PROMPT_LENS, CONTEXTS, strict=True)
    for row, (trace, *lengths) in zip(rows, given, strict=True):
        assert row.keys() == set(COLUMNS)
        for name, values in expected_columns(*trace, *lengths).items():
            found = torch.as_tensor(row[name]).float()
            torch.testing.assert_close(found, values.float(), rtol=1e-3, atol=2e-6, equal_nan=True)
            assert found.shape == values.shape, name


def test_entropy_of_the_lens_at_the_last_layer_is_that_of_the_next_token(model):
    """And at the others it is that of the norm and the head applied to their states."""
    rows = run_forward(model, TRACES, PROMPT_LENS, [1, 3], 5, COLUMNS)
    lens = find_lens(model)
    for row, (states, _, logits) in zip(rows, collected(model, [1, 3]), strict=True):
        np.testing.assert_allclose(row["lens_entropy"][:-1, 1], row["entropy"][1:], atol=1e-5)
        last = torch.distributions.Categorical(logits=logits).entropy()
        np.testing.assert_allclose(row["lens_entropy"][:, 1], last, atol=1e-5)
        with torch.no_grad():
            first = torch.distributions.Categorical(logits=lens.logits(1, states[:, 0])).entropy()
        np.testing.assert_allclose(row["lens_entropy"][:, 0], first, atol=1e-4)


@pytest.mark.parametrize(
    ("kind", "stack", "norm", "attention"),
    [
        ("llama", "model.layers", "model.norm", "self_attn"),
        ("gpt2", "transformer.h", "transformer.ln_f", "attn"),
    ],
)
def test_entropies_of_what_attention_and_mlp_add(kind, stack, norm, attention):
    """Those of the final norm and the head on the outputs of these modules, without padding; NaN
    at the embedding, to which nothing is added."""
    model = build(kind)
    blocks = model.get_submodule(stack)
    modules = {
        "lens_entropy_attention": [block.get_submodule(attention) for block in blocks],
        "lens_entropy_mlp": [block.mlp for block in blocks],
    }
    found = run_forward(model, TRACES, PROMPT_LENS, [0, 2, 3], 5, [*modules, "lens_entropy"])
    outputs = {}
    for module in chain(*modules.values()):
        module.register_forward_hook(
            lambda module, _, out: outputs.update(
                {module: out[0] if isinstance(out, tuple) else out}
            )
        )
    for row, trace in zip(found, TRACES, strict=True):
        with torch.no_grad():
            model(torch.tensor([trace]))
            for name, of_layers in modules.items():
                assert np.isnan(row[name][:, 0]).all()
                for number, layer in ((1, 2), (2, 3)):
                    added = model.get_submodule(norm)(outputs[of_layers[layer - 1]][0])
                    entropy = torch.distributions.Categorical(logits=model.lm_head(added)).entropy()
                    np.testing.assert_allclose(row[name][:, number], entropy, atol=1e-5)


@pytest.mark.parametrize(
    "dtype", [torch.float32, pytest.param(torch.bfloat16, marks=pytest.mark.slow)]
)
def test_what_layers_add_is_found_by_its_sum(dtype):
    """In every architecture here, of layers that run their parts in turn and at once; attention is
    the one with a word for it in its name, and both are in their layer."""
    for kind in KINDS:
        model = build(kind, dtype)
        names = {module: name for name, module in model.named_modules()}
        for number, (attention, mlp) in enumerate(find_additions(model)):
            prefix = f".{number}."
            assert "att" in names[attention.module].partition(prefix)[2], kind
            other = names[mlp.module].partition(prefix)[2]
            assert other, kind
            assert "att" not in other, kind


def test_every_map_is_taken_from_the_module_that_returns_it(model):
    """So no architecture here keeps the maps of all layers."""
    places = module_outputs.find_places(model, maps=True)
    assert set(places.maps) == {0, 1, 2}
    assert {1, 2, 3} <= set(places.states)


def test_what_no_module_returns_is_taken_after_the_pass(monkeypatch):
    """The same columns, from transformers' own collection."""
    model = build("llama")
    asked = (model, TRACES, PROMPT_LENS, [0, 1, 2, 3], 5, COLUMNS)
    expected = run_forward(*asked)
    monkeypatch.setattr(module_outputs, "find_places", lambda *_, **__: module_outputs.Places())
    for row, wanted in zip(run_forward(*asked), expected, strict=True):
        assert_same(row, wanted)


def test_a_module_that_is_not_run_again_is_an_error(monkeypatch):
    """Its columns would be whatever was in memory."""
    model = build("llama")
    places = module_outputs.Places({1: module_outputs.Place(torch.nn.Identity(), 0, None)})
    monkeypatch.setattr(module_outputs, "find_places", lambda model, maps: places)
    with pytest.raises(SchemaError, match="found 1 that were not run"):
        run_forward(model, TRACES, PROMPT_LENS, [1], 5, ["hs_last"])


def test_no_hook_stays_and_the_model_answers_as_before():
    """Also where a pass fails."""
    model = build("llama")
    ids = torch.tensor([TRACES[0]])
    before = model(ids, output_attentions=True).attentions
    hooks = sum(len(module._forward_hooks) for module in model.modules())
    run_forward(model, TRACES, PROMPT_LENS, [1], 5, COLUMNS)
    with pytest.raises(IndexError):
        run_forward(model, [[V + 5]], [1], [1], 5, COLUMNS)
    assert sum(len(module._forward_hooks) for module in model.modules()) == hooks
    for found, expected in zip(model(ids, output_attentions=True).attentions, before, strict=True):
        assert torch.equal(found, expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_models(dtype):
    """Maps are reduced in float32, states are the model's own bits."""
    model = build("llama", dtype)
    rows = run_forward(model, TRACES, PROMPT_LENS, [1, 2, 3], 5, COLUMNS)
    for row, trace, prompt_len in zip(rows, collected(model, [1, 2, 3]), PROMPT_LENS, strict=True):
        expected = expected_columns(*trace, prompt_len, (-1, 0))
        assert torch.equal(torch.as_tensor(row["hidden_states"]), expected["hidden_states"])
        for name in ("attn_mean", "attn_colsum", "attn_amass", "hs_mean"):
            found = torch.as_tensor(row[name]).float()
            torch.testing.assert_close(found, expected[name].float(), rtol=8e-3, atol=1e-5)


def test_states_of_a_model_without_attention():
    """A state space model has states, and no maps."""
    model = build("mamba", state_size=4, intermediate_size=32)
    rows = run_forward(model, TRACES, PROMPT_LENS, [1, 2, 3], 5, list(STATES))
    for row, trace in zip(rows, TRACES, strict=True):
        with torch.no_grad():
            out = model(torch.tensor([trace]), output_hidden_states=True, use_cache=False)
        states = torch.stack(out.hidden_states[1:], dim=2)[0]
        np.testing.assert_allclose(row["hidden_states"], states, rtol=2e-3, atol=1e-4)


def test_the_embedding_is_layer_0(model):
    """Its states are entry 0; in its maps each token attends to itself alone."""
    rows = run_forward(model, TRACES, PROMPT_LENS, [0, 2], 5, COLUMNS)
    plain = run_forward(model, TRACES, PROMPT_LENS, [2], 5, COLUMNS)
    embedded = model.get_input_embeddings()
    for row, of_layer_2, trace, p in zip(rows, plain, TRACES, PROMPT_LENS, strict=True):
        with torch.no_grad():
            out = model(torch.tensor([trace]), output_hidden_states=True)
        states = out.hidden_states[0][0]
        assert states.shape[-1] == embedded.weight.shape[1]
        np.testing.assert_allclose(row["hidden_states"][:, 0], states, rtol=2e-3, atol=1e-4)
        for name in ("hidden_states", "attn_mean", "attn_diag", "attn_prev", "lens_entropy"):
            np.testing.assert_array_equal(row[name][:, 1:], of_layer_2[name], err_msg=name)
        in_prompt = np.arange(len(trace)) < p
        assert (row["attn_diag"][:, 0] == 1).all()
        assert (row["attn_colsum"][:, 0] == 1).all()
        np.testing.assert_array_equal(row["attn_pmass"][:, 0, 0], in_prompt)
        np.testing.assert_array_equal(row["attn_amass"][:, 0, 0], ~in_prompt)


def test_one_trace_beyond_float16_is_an_error_of_its_own():
    """The others are as without it; padding beyond float16 is no error."""
    model = build("llama")
    with torch.no_grad():
        model.model.embed_tokens.weight[33] *= 1e6
    rows = run_forward(model, TRACES, PROMPT_LENS, [0, 1, 2, 3], 5, COLUMNS)
    assert [isinstance(row, HalfRangeError) for row in rows] == [False, False, True, False]
    assert str(rows[2]).startswith("hidden_states: layer 0 has the value ")
    with torch.no_grad():
        model.model.embed_tokens.weight[0] = 1e6
    padded = run_forward(model, TRACES, PROMPT_LENS, [0], 5, ["hidden_states"])
    assert [isinstance(row, HalfRangeError) for row in padded] == [False, False, True, False]


def test_predictions_do_not_depend_on_the_size_of_chunks(model, monkeypatch):
    """Rows of the logits are independent."""
    names = ["logprob", "entropy", "topk_id", "topk_logprob", "lens_entropy"]
    whole = run_forward(model, TRACES, PROMPT_LENS, [1, 2], 5, names)
    monkeypatch.setattr("store.sources.huggingface.predictions.CHUNK_NUMBERS", 2 * V)
    for row, expected in zip(
        run_forward(model, TRACES, PROMPT_LENS, [1, 2], 5, names), whole, strict=True
    ):
        for name in names:
            np.testing.assert_allclose(row[name], expected[name], rtol=1e-6, err_msg=name)


def test_without_an_end_token_its_probability_is_nan():
    """There is nothing to sum."""
    model = build("llama")
    model.generation_config.eos_token_id = None
    [row, *_] = run_forward(model, TRACES, PROMPT_LENS, [1], 5, ["eos_logprob"])
    assert np.isnan(row["eos_logprob"])


EXPERTS = {"num_local_experts": 2, "num_experts_per_tok": 1, "head_dim": 8}
LAYER_TYPES = ["linear_attention", "full_attention", "linear_attention"]


@pytest.mark.parametrize(
    "kind, changes, column, message",
    [
        (
            "granite",  # parts that are scaled before they are added are not found
            {"residual_multiplier": 0.5},
            "lens_entropy_mlp",
            "_mlp: expected layers .*: layer 1: 0 pairs",
        ),
        (
            "opt",
            {"do_layer_norm_before": False, "word_embed_proj_dim": D},
            "lens_entropy",
            "lens_entropy: expected a model whose final norm .*OPT",
        ),
        (
            "minimax",  # states of as many dimensions, and a head's size twice
            ARCHITECTURES["llama"] | EXPERTS | {"layer_types": LAYER_TYPES},
            "attentions",
            r"of shape \(1, 2, 3, 3\), found \(1, 2, 8, 8\) in lay",
        ),
    ],
)
def test_what_a_model_cannot_give_is_refused(kind, changes, column, message):
    """One line that says what to leave out."""
    with pytest.raises(SchemaError, match=message):
        run_forward(build(kind, **changes), [[*range(8)]], [4], [1], 5, [column])


def test_a_model_that_scales_its_logits_otherwise_has_no_lens():
    """The lens is compared with the model's own logits."""
    model = build("llama")
    model.lm_head.register_forward_hook(lambda module, args, output: output * 3)
    with pytest.raises(SchemaError, match="its logits are not those of its last layer's states"):
        run_forward(model, TRACES, PROMPT_LENS, [1], 5, ["lens_entropy"])


SECOND = torch.device("cuda:1")


class OnSecond(torch.Tensor):
    """A tensor in the memory of the CPU that says it is on another device."""


class TwoDevices(TorchFunctionMode):
    """Stands in for a machine with two devices: no operation but a copy takes tensors of both."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        tensors = [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
        on_second = [isinstance(tensor, OnSecond) for tensor in tensors]
        if func == torch.Tensor.device.__get__:
            return SECOND if on_second[0] else torch.device("cpu")
        is_copy = func == torch.Tensor.__setitem__ and isinstance(args[2], OnSecond)
        if any(on_second) and not all(on_second) and not is_copy:
            raise RuntimeError(f"{func.__name__}: expected all tensors to be on the same device")
        is_made_there = kwargs.get("device") == SECOND
        if is_made_there:
            del kwargs["device"]
        result = func(*args, **kwargs)
        return result.as_subclass(OnSecond) if is_made_there else result


@pytest.mark.parametrize("width", [7, 140])
def test_layers_may_be_on_several_devices(width):
    """As a large model's are; the columns are those of one device."""
    torch.manual_seed(1)
    layout = Layout((width, 3), (2, 1))
    states = torch.randn(L, 2, width, D)
    maps = torch.rand(L, 2, H, width, width).tril()

    def rows(devices):
        of_states = StateColumns(layout, range(L), False, STATES)
        of_maps = AttentionColumns(layout, L, H, ATTENTION)
        for number, device in enumerate(devices):
            of_states.take(number, states[number].as_subclass(device))
            of_maps.take(number, maps[number].clone().as_subclass(device))
        return [*of_states.rows(), *of_maps.rows()]

    expected = rows([torch.Tensor] * L)
    with TwoDevices():
        with pytest.raises(RuntimeError, match="expected all tensors to be on the same device"):
            torch.ones(2, device=SECOND) + torch.ones(2)
        found = rows([torch.Tensor, OnSecond, torch.Tensor])
    for row, other in zip(found, expected, strict=True):
        assert_same(row, other)


LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "short_factor": [1.0, 1.1, 1.2, 1.3],
    "long_factor": [1.0, 4.0, 16.0, 32.0],
    "original_max_position_embeddings": 8,
    "factor": 8.0,
}


def test_traces_of_both_lengths_of_longrope_are_those_that_they_are_alone():
    """Its factors are chosen for a whole batch, also while a sequence grows beyond the length."""
    changes = {"rope_parameters": LONGROPE, "original_max_position_embeddings": 8}
    model = build("phi3", **ARCHITECTURES["llama"], **changes)
    traces = [[5, 6, 7], [*range(3, 15)], [9, 8, 7, 6], [4, 5, 6, 7, 8, 9, 10]]
    found = run_forward(model, traces, [2] * 4, [1, 3], 5, ["hidden_states", "logprob"])
    names = ["a", "b", "c", "d"]
    decoding = Decoding(max_new_tokens=4)
    answers = generate_answers(model, traces, names, decoding)
    for trace, row, name, answer in zip(traces, found, names, answers, strict=True):
        [alone] = run_forward(model, [trace], [2], [1, 3], 5, ["hidden_states", "logprob"])
        for column, values in alone.items():
            np.testing.assert_allclose(row[column], values, atol=2e-3, err_msg=column)
        assert generate_answers(model, [trace], [name], decoding) == [answer]


def test_a_model_counts_its_positions_itself():
    """RoBERTa from behind its padding; transformers generates from 0, where it never learned."""
    model = build("roberta", is_decoder=True, intermediate_size=32, pad_token_id=1)
    traces = [[5, 6, 7, 8], [9, 10]]
    found = run_forward(model, traces, [1, 1], [1], 5, ["logprob"])
    for trace, row in zip(traces, found, strict=True):
        with torch.inference_mode():
            logprobs = model(torch.tensor([trace])).logits[0].log_softmax(dim=-1)
        expected = logprobs[range(len(trace) - 1), trace[1:]]
        np.testing.assert_allclose(row["logprob"][1:], expected, atol=1e-5)
    with pytest.raises(SchemaError, match=r"positions from 0.* found RobertaForCausalLM"):
        generate_answers(model, traces, ["a", "b"], Decoding(max_new_tokens=2))
