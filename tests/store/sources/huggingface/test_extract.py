"""Extraction: five architectures against unpadded single runs, and the command, stopped and
resumed."""

import io
import json
import math
import re
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import weakref
from contextlib import ExitStack, nullcontext
from functools import cache
from itertools import product
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch
from building import QUESTIONS, assert_same, build_model, build_source, kinds_of_models
from character_tokenizer import build_tokenizer
from huggingface_hub.errors import LocalEntryNotFoundError
from killed import kill_at_random
from small import refused
from transformers import (
    AutoConfig,
    BertConfig,
    BertLMHeadModel,
    BitsAndBytesConfig,
    LlamaConfig,
    LlamaForCausalLM,
    MambaConfig,
    MambaForCausalLM,
    OPTConfig,
    OPTForCausalLM,
)

from store import NotFoundError, StoreError, StoreWriter, TraceStore
from store.cli.main import main
from store.labels.answer_scores import contains_score, exact_match_score, f1_score
from store.launch.completed_parts import find_parts
from store.sources.huggingface import load as extracting
from store.sources.huggingface import source as huggingface
from store.sources.huggingface.forward import run_forward
from store.sources.huggingface.generation import Decoding, generate_answers
from store.sources.huggingface.kept import (
    NOT_BY_DEFAULT,
    Kept,
    build_schema,
    choose_columns,
)
from store.sources.huggingface.provenance import weights_checksum, weights_digest
from store.traces.identity import REMARKS, identity
from store.traces.origin import find_difference, origins_of
from store.write.build import build_store, open_begun

ROOT = Path(__file__).parents[4]
CPU = torch.device("cpu")
WAYS = {
    "greedy": Decoding(),
    "beams": Decoding(num_beams=3, num_samples=2),
    "samples": Decoding(num_samples=2, seed=3),
}


@pytest.fixture(scope="module", params=kinds_of_models("llama", "gpt2", "qwen2", "qwen3", "gemma"))
def model(request, tokenizer):
    return build_model(request.param, tokenizer)


@pytest.fixture(scope="module")
def llama(tokenizer):
    return build_model("llama", tokenizer)


def assert_close(found, expected):
    """The same tokens and texts, and the same numbers to rounding."""
    for name, value in expected.items():
        if np.asarray(value).dtype.kind == "f":
            np.testing.assert_allclose(found[name], value, rtol=2e-3, atol=2e-4, err_msg=name)
        else:
            np.testing.assert_array_equal(found[name], value, err_msg=name)


@pytest.mark.parametrize("way", WAYS)
def test_a_batch_of_eight_gives_the_traces_of_single_runs(model, tokenizer, way):
    """Whatever the architecture and the decoding: tokens equal, numbers to rounding."""
    n = WAYS[way].num_samples
    batched = list(build_source(model, tokenizer, decoding=WAYS[way], batch_size=8 * n).rows())
    assert len(batched) == 8 * n
    for i in range(0, 8, 2):
        alone = build_source(
            model, tokenizer, QUESTIONS[i : i + 1], decoding=WAYS[way], batch_size=1
        )
        single = list(alone.rows())
        assert [trace_id for trace_id, _ in single] == [f"q{i}", f"q{i}#2"][:n]
        found = batched[i * n : (i + 1) * n]
        for (found_id, row), (trace_id, expected) in zip(found, single, strict=True):
            assert found_id == trace_id
            assert_close(row, expected)


def test_predictions_are_those_of_an_independent_forward(model, tokenizer):
    """Log-probabilities, entropies and candidates agree to float32 rounding with an unpadded pass,
    in float64; nothing predicted the first token; greedily the first candidate is the next one."""
    for _, row in build_source(model, tokenizer).rows():
        ids = torch.tensor(row["tokens"][None], dtype=torch.int64)
        with torch.no_grad():
            logits = model(ids).logits[0, :-1].double()
        distribution = (logits - logits.logsumexp(-1, keepdim=True)).numpy()
        chosen = np.take_along_axis(distribution, row["tokens"][1:, None], 1)[:, 0]
        np.testing.assert_allclose(row["logprob"][1:], chosen, rtol=1e-5, atol=1e-5)
        entropy = -(np.exp(distribution) * distribution).sum(1)
        np.testing.assert_allclose(row["entropy"][1:], entropy, rtol=1e-5, atol=1e-5)
        best = np.argsort(-distribution, axis=1)[:, :4]
        assert row["topk_id"][1:].tolist() == best.tolist()
        logprobs = np.take_along_axis(distribution, best, 1)
        np.testing.assert_allclose(row["topk_logprob"][1:], logprobs, rtol=1e-3, atol=1e-5)
        assert np.isnan([row["logprob"][0], row["entropy"][0], *row["topk_logprob"][0]]).all()
        assert (row["topk_id"][0] == -1).all()
        answer = slice(row["prompt_len"], None)
        assert row["tokens"][answer].tolist() == row["topk_id"][answer, 0].tolist()


def change_a_weight(model, _):
    with torch.no_grad():
        model.model.layers[1].mlp.down_proj.weight[7, 3] += 1


CHANGES = {
    "weights_crc32c": change_a_weight,
    "config_sha256": lambda model, _: setattr(model.config, "rms_norm_eps", 1.0),
    "tokenizer_sha256": lambda _, own: setattr(own.backend_tokenizer, "post_processor", None),
    "decoding": lambda model, _: setattr(model.generation_config, "eos_token_id", 7),
}


@pytest.mark.parametrize("key", CHANGES)
def test_provenance_tells_models_and_tokenizers_apart(tokenizer, key):
    """One number in the middle of one matrix changes it, where all names are the same."""

    def provenance(change=lambda *_: None):
        model, own = build_model("llama", tokenizer), build_tokenizer()
        change(model, own)
        return build_source(model, own).provenance

    before, after = provenance(), provenance(CHANGES[key])
    assert provenance() == before
    assert after[key] != before[key]
    difference = find_difference(origins_of(before), origins_of(after)[0])
    if key == "weights_crc32c":  # its traces are not taken for those of the model before
        assert difference.key == key
    if key == "decoding":
        assert after[key]["end_ids"] == [7]


ALL_COLUMNS = build_schema(1, 1, 1, 1)
BY_DEFAULT = {*ALL_COLUMNS.columns}.difference(NOT_BY_DEFAULT)
ATTENTION = {name for name in BY_DEFAULT if name.startswith("attn_")}


@pytest.mark.parametrize(
    "names, expected",
    [
        (None, BY_DEFAULT),
        (["hs_mean"], {"question_id", "hs_mean"}),
        (["default", "lens_entropy"], BY_DEFAULT | {"lens_entropy"}),
        (["default", "-attn", "attn_mean"], BY_DEFAULT - ATTENTION | {"attn_mean"}),
        (["-attn", "-label"], BY_DEFAULT - ATTENTION - {"label"}),
    ],
)
def test_columns_are_added_and_taken_away(names, expected):
    """A minus takes a column away, or all of a group; without maps none are computed."""
    assert {*choose_columns(names, ALL_COLUMNS).columns} == expected
    needs_maps = any(name.startswith("att") for name in expected)
    assert Kept(columns=names).needs_maps == needs_maps


def test_full_maps_are_kept_by_a_flag(extract, capsys):
    """Beside the columns that are named, after a minus too; layers may count from the last one."""
    chosen = ["--columns=default,-hs_last", "--keep-attention", "--layers", "-2:"]
    assert extract("t.zarr", *chosen) == 0
    store = TraceStore.open("t.zarr")
    assert {*store.schema.columns} == BY_DEFAULT - {"hs_last", "context"} | {"attentions"}
    assert store.provenance["layers"] == store.layers("hs_mean") == [2, 3]
    for row in store:
        n = len(row["tokens"])
        maps = row["attentions"].reshape(n, n, *row["attentions"].shape[1:])
        np.testing.assert_allclose(
            maps[np.tril_indices(n)].mean(axis=2), row["attn_mean"], rtol=2e-3, atol=1e-6
        )
        assert len(json.loads(row["token_texts"])) == n
    assert extract("u.zarr", "--columns", "default,-attm_mean") == 2
    assert "found '-attm_mean'; closest: 'attn_mean'" in capsys.readouterr().err


def test_a_column_alone_is_what_it_is_among_all(llama, tokenizer):
    """Leaving columns out changes nothing in the others."""

    def rows(*columns):
        questions = [question | {"context": "12"} for question in QUESTIONS[1:3]]
        asked = {"questions": questions, "template": "{context}+{question}", "has_context": True}
        return [row for _, row in build_source(llama, tokenizer, columns=columns, **asked).rows()]

    together = rows("default", *NOT_BY_DEFAULT)
    for name in ALL_COLUMNS.columns:
        for found, row in zip(rows(name), together, strict=True):
            assert_same(found, {key: row[key] for key in dict.fromkeys(["question_id", name])})


def test_only_what_is_kept_is_computed(tokenizer):
    """Without attention columns any implementation will do; without columns of the model, none
    runs."""
    model = build_model("llama", tokenizer, attn_implementation="sdpa")
    asked = []

    def columns_of(name):
        with model.register_forward_pre_hook(
            lambda *call: asked.append(call[-1]), with_kwargs=True
        ):
            rows = run_forward(model, [[1, 5, 6], [1, 7]], [2, 1], [1, 2, 3], 4, [name])
        return [list(row) for row in rows]

    assert columns_of("hs_last") == [["hs_last"], ["hs_last"]]
    assert not asked[-1]["output_attentions"]
    assert asked[-1]["logits_to_keep"] == 1
    assert columns_of("logprob") == [["logprob"], ["logprob"]]
    assert "output_hidden_states" not in asked[-1]
    n_asked = len(asked)
    assert columns_of("label") == [[], []]
    assert len(asked) == n_asked
    assert len(list(build_source(model, tokenizer, columns=["hs_last", "logprob"]).rows())) == 8
    with pytest.raises(NotFoundError, match="found 'hs_lats'; closest: 'hs_last'"):
        build_source(model, tokenizer, columns=["hs_lats"])


def test_a_sample_depends_on_seed_question_and_number_alone(llama, tokenizer):
    """Not on the other questions, the batch, or how many samples there are."""

    def answers(questions=QUESTIONS, **settings):
        source = build_source(llama, tokenizer, questions, columns=["tokens"], **settings)
        return {trace_id: row["tokens"].tolist() for trace_id, row in source.rows()}

    wanted = answers(decoding=Decoding(num_samples=3))
    assert len(set(map(str, wanted.values()))) > 16
    reverse = answers(QUESTIONS[::-2], decoding=Decoding(num_samples=3), batch_size=2)
    assert reverse == {trace_id: wanted[trace_id] for trace_id in reverse}
    fewer = answers(decoding=Decoding(num_samples=1, temperature=1.0))
    assert fewer == {trace_id: wanted[trace_id] for trace_id in fewer}
    assert answers(decoding=Decoding(num_samples=3), batch_size=1) == wanted
    assert answers(decoding=Decoding(num_samples=3, seed=1)) != wanted
    greedy = answers()
    assert answers(decoding=Decoding(temperature=1e-3)) == greedy
    assert answers(decoding=Decoding(top_p=1e-6)) == greedy


def test_samples_follow_the_models_distribution(llama):
    """Of 4,000 first tokens, every one is drawn about as often as softmax(logits / temperature)
    says."""
    prompt = [1, 5, 9]
    with torch.no_grad():
        logits = llama(torch.tensor([prompt])).logits[0, -1]
    found = generate_answers(llama, [prompt], ["0"], Decoding(1, 4000, 2.0, max_new_tokens=1))
    counts = np.bincount([answer[0] for answer in found], minlength=len(logits))
    expected = (logits / 2).softmax(-1).numpy()
    np.testing.assert_allclose(counts / 4000, expected, atol=4 * math.sqrt(0.25 / 4000))
    order = np.argsort(-expected)
    kept = order[: int((np.cumsum(expected[order]) < 0.6).sum()) + 1]
    found = generate_answers(llama, [prompt], ["0"], Decoding(1, 500, 2.0, 0.6, max_new_tokens=1))
    assert {answer[0] for answer in found} <= set(kept.tolist())


@pytest.mark.parametrize("way, stop", [("greedy", "+4"), ("samples", "3"), ("beams", "+4")])
def test_an_answer_ends_before_its_stop(llama, tokenizer, way, stop):
    """The token that brings the text is left out, unless it is the first; nothing else changes, nor
    does batching."""
    columns = ["tokens", "prompt_len", "answer_len"]
    settings = {"decoding": WAYS[way], "columns": columns, "max_new_tokens": 12}
    runs = [{}, {"stop": stop}, {"stop": stop, "batch_size": 1}]
    found = [build_source(llama, tokenizer, **settings, **run).rows() for run in runs]
    for (_, whole), (_, row), (_, alone) in zip(*found, strict=True):
        assert_same(row, alone)
        answer = tokenizer.decode(row["tokens"][row["prompt_len"] :])
        assert stop not in answer or row["answer_len"] == 1
        if way != "beams":  # where another beam may win
            n = len(row["tokens"])
            cut = whole["tokens"][: n + 1].tolist()
            assert row["tokens"].tolist() == cut[:n]
            ended = stop in tokenizer.decode(cut[row["prompt_len"] :])
            assert ended == (stop in tokenizer.decode(whole["tokens"][row["prompt_len"] :]))


@pytest.mark.parametrize(
    "starts",
    [
        pytest.param((0, 1, 5, 7, 11, 23, 24), id="borders of questions and batches"),
        pytest.param(range(25), marks=pytest.mark.slow),
    ],
)
def test_samples_resume_to_the_same_bits(llama, tokenizer, starts):
    """From any trace on, also in the midst of a question's samples, in batches of six traces."""
    decoding = Decoding(num_samples=3)
    source = build_source(
        llama, tokenizer, decoding=decoding, batch_size=7, columns=["hs_last", "tokens"]
    )
    whole = list(source.rows())
    assert len(source) == len(whole) == 24
    for start in starts:
        resumed = list(source.rows(start))
        assert [trace_id for trace_id, _ in resumed] == [trace_id for trace_id, _ in whole[start:]]
        for (_, found), (_, expected) in zip(resumed, whole[start:], strict=True):
            assert_same(found, expected)
    for start in (-1, 25):
        with pytest.raises(IndexError, match=f"expected 0 to 24, found {start}"):
            next(source.rows(start))


def test_ids_that_samples_would_share_are_refused(llama, tokenizer):
    questions = [QUESTIONS[0] | {"question_id": name} for name in ("a", "a#2")]
    assert len(build_source(llama, tokenizer, questions)) == 2
    with pytest.raises(ValueError, match="found 'a#2' twice"):
        build_source(llama, tokenizer, questions, decoding=Decoding(num_samples=2))


# The command


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory, llama, tokenizer):
    """A model as transformers saves it."""
    path = tmp_path_factory.mktemp("model") / "tiny"
    llama.save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


def write_questions(*records, path="q.jsonl"):
    Path(path).write_text("\n".join(map(json.dumps, records)))


def run_extract(out, questions, model, *arguments):
    common = ["--prompt-template", "{question}=", "--max-new-tokens", "5", "--batch-size", "4"]
    asked = ["--model", str(model), "--questions", str(questions)]
    return main(["extract", str(out), *asked, *common, *map(str, arguments)])


@pytest.fixture
def extract(tmp_path, model_dir, monkeypatch):
    """Run the command in an own folder; gives its exit status."""
    monkeypatch.chdir(tmp_path)
    write_questions(*QUESTIONS)

    def run(out, *arguments, model=model_dir):
        return run_extract(out, "q.jsonl", model, *arguments)

    return run


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory, model_dir):
    """The rows of two samples to a question, of an extraction in batches of a size."""
    folder = tmp_path_factory.mktemp("undisturbed")
    write_questions(*QUESTIONS, path=folder / "q.jsonl")

    @cache
    def rows(size):
        out = folder / f"{size}.zarr"
        sizes = ["--num-samples", 2, "--batch-size", size]
        assert run_extract(out, folder / "q.jsonl", model_dir, *sizes) == 0
        return read(out)

    return rows


def read(path):
    return {trace.id: {name: trace[name] for name in trace} for trace in TraceStore.open(path)}


def assert_same_store(found, expected):
    assert list(found) == list(expected)
    for trace_id, row in expected.items():
        assert_same(found[trace_id], row)


def test_the_command_writes_what_the_source_yields(extract, model_dir, llama, tokenizer, capsys):
    assert extract("t.zarr") == 0
    printed = capsys.readouterr()
    assert "t.zarr: 8 traces of 8 questions" in printed.out
    assert "2 without a label" in printed.out
    assert printed.err == ""
    source = build_source(llama, tokenizer, batch_size=4, top_k=10, template="{question}=")
    found = read("t.zarr")
    assert list(found) == [question["question_id"] for question in QUESTIONS]
    for trace_id, row in source.rows():
        assert_same(found[trace_id], row)
    provenance = TraceStore.open("t.zarr").provenance
    assert provenance["model"] == str(model_dir)
    assert provenance["layers"] == [1, 2, 3]
    assert identity(provenance) == source.provenance | {"model": str(model_dir)}
    assert provenance["command"].startswith("python -m store extract t.zarr --model ")


OTHER_ARGUMENTS = {
    "--seed 1": r"decoding.seed 0 instead of 1;",
    "--temperature 0.5": r"decoding.temperature 1.0 instead of 0.5;",
    "--max-new-tokens 6": r"decoding.max_new_tokens 5 instead of 6;",
    "--stop x": r"decoding.stop None instead of 'x';",
    "--limit 7": r"questions 8 instead of 7",
    "--layers 1-2": r"layers \[1, 2, 3\] instead of \[1, 2\]",
    "--columns hs_last": r"columns \[.*\] instead of \['question_id', 'hs_last'\]",
    "--labels f1": r"label_rule",
    "--dtype bf16": r"dtype 'float32' instead of 'bfloat16'",
    "--prompt-template {question}": r"prompt_template",
    "--score-threshold 0.4": r"score_threshold",
}


def test_other_arguments_on_a_stopped_extraction_are_refused(extract, stop_after, capsys):
    """One line shows what differs."""
    with stop_after(1):
        assert extract("t.zarr", "--num-samples", "2") == 130
    kept = "stopped; 1 trace is kept in t.zarr.partial; the same command goes on"
    assert kept in capsys.readouterr().err
    for changed, difference in OTHER_ARGUMENTS.items():
        assert extract("t.zarr", "--num-samples", "2", *changed.split()) == 2
        error = capsys.readouterr().err
        assert len(error.splitlines()) == 1
        assert re.search(difference, error)


def test_parts_make_the_whole(extract):
    """Every question is in one part, with the same tokens; samples too. Each part reads the whole
    file, names the record that is left out and has status 1; one part counts it."""
    write_questions(*QUESTIONS[:7], "no object")
    assert extract("whole.zarr", "--num-samples", "2") == 1
    parts = {}
    for k in (1, 2, 3):
        assert extract(f"{k}.zarr", "--num-samples", "2", "--part", f"{k}/3") == 1
        part = read(f"{k}.zarr")
        assert not part.keys() & parts.keys()
        parts |= part
    whole = read("whole.zarr")
    assert parts.keys() == whole.keys()
    for trace_id, row in whole.items():
        assert_close(parts[trace_id], row)
    records = [part.record for part in find_parts(Path()).parts]
    assert [(one.n_rows, one.n_left_out) for one in records] == [(6, 1), (4, 0), (4, 0)]


def test_a_prompt_that_is_too_long_is_left_out(extract, capsys):
    """One line and status 1; the others go on. All of them: status 2."""
    long = {"question_id": "long", "question": "1" * 60, "answers": ["1"]}
    # the tokenizer knows no letters
    strange = {"question_id": "strange", "question": "x", "answers": ["1"]}
    write_questions(long, *QUESTIONS, strange)
    assert extract("t.zarr") == 1
    lines = capsys.readouterr().out.splitlines()
    assert "  2 questions left out" in lines
    taken = "question 'long': the model takes 64 tokens, found 62 of the prompt and up to 5"
    assert taken in lines[-2]
    assert "question 'strange': expected a prompt that the tokenizer can take" in lines[-1]
    assert list(read("t.zarr")) == [question["question_id"] for question in QUESTIONS]
    assert extract("u.zarr", "--limit", "1") == 2
    assert "found none of 1: question 'long'" in capsys.readouterr().err


def test_half_precision_comes_back_as_it_was(extract, model_dir):
    """bfloat16 states in the store are those that the model computed; --dtype decides."""
    columns = ["--columns", "tokens,hs_last,hidden_states", "--batch-size", "1"]
    assert extract("t.zarr", "--dtype", "bf16", *columns) == 0
    store = TraceStore.open("t.zarr")
    assert store.provenance["dtype"] == "bfloat16"
    model = LlamaForCausalLM.from_pretrained(
        model_dir, dtype=torch.bfloat16, attn_implementation="sdpa"
    )
    for row in store:
        with torch.no_grad():
            out = model(torch.tensor([row["tokens"].tolist()]), output_hidden_states=True)
        states = torch.stack(out.hidden_states[1:], dim=2)[0]
        assert row["hidden_states"].dtype == row["hs_last"].dtype == torch.bfloat16
        assert torch.equal(row["hidden_states"], states)
        assert torch.equal(row["hs_last"], states[-1])
    assert extract("u.zarr", "--dtype", "fp16", "--columns", "hs_last") == 0
    assert TraceStore.open("u.zarr").schema.columns["hs_last"].dtype == "float16"


@pytest.fixture
def chat_dir(model_dir, tmp_path):
    """The model with a chat template."""
    path = tmp_path / "chat"
    path.mkdir()
    for file in model_dir.iterdir():
        (path / file.name).symlink_to(file)
    said = "{{ bos_token }}{% for m in messages %}{{ m['content'] }}*{% endfor %}"
    template = said + "{% if add_generation_prompt %}={% endif %}"
    (path / "chat_template.jinja").write_text(template)
    return path


@pytest.mark.parametrize(
    ("old", "new", "turn"),
    [
        ("m['content']", "m['content'][0]['text']", "turn 1 of 2 (role system)"),  # of parts
        ("in messages", "in messages if m['role'] != 'system'", "turn 1 of 2 (role system)"),
        ("in messages", "in messages[:1]", "turn 2 of 2 (role user)"),
    ],
)
def test_a_chat_template_that_leaves_out_a_text_is_refused(
    extract, chat_dir, capsys, old, new, turn
):
    file = chat_dir / "chat_template.jinja"
    file.write_text(file.read_text().replace(old, new))
    assert extract("t.zarr", "--chat-template", "--system", "1+1", model=chat_dir) == 2
    assert f"leaves out that of {turn}" in capsys.readouterr().err
    assert not Path("t.zarr").exists()


def test_the_tokenizers_chat_template(extract, chat_dir, tokenizer, capsys):
    """The prompt is what the template makes, special tokens once; without one it is refused. A chat
    is labelled by what it contains, unless another rule is asked for."""
    assert extract("t.zarr", "--chat-template") == 2
    assert "chat template: expected one with the tokenizer, found none" in capsys.readouterr().err
    asked = ["--chat-template", "--prompt-template", "0{question}"]
    assert extract("t.zarr", *asked, model=chat_dir) == 0
    row = read("t.zarr")["q0"]
    assert row["tokens"][: row["prompt_len"]].tolist() == tokenizer("01+1*=")["input_ids"]
    provenance = TraceStore.open("t.zarr").provenance
    assert provenance["chat_prompt"] == "<s>0{question}*="
    assert "first statement" in provenance["label_rule"]
    assert extract("u.zarr", *asked, "--labels", "exact", model=chat_dir) == 0
    assert extract("v.zarr") == 0
    for path in ("u.zarr", "v.zarr"):
        assert "equals a reference" in TraceStore.open(path).provenance["label_rule"]


@pytest.fixture(scope="module")
def incomplete_models(tmp_path_factory, model_dir, llama):
    """Folders of the model without its tokenizer, with no tensors, and without its head."""
    path = tmp_path_factory.mktemp("incomplete")
    left_out = {"untokenized": "tokenizer", "broken": "model.safe", "headless": "model.safe"}
    for name, start in left_out.items():
        (path / name).mkdir()
        for file in model_dir.iterdir():
            if not file.name.startswith(start):
                (path / name / file.name).symlink_to(file)
    (path / "broken/model.safetensors").write_bytes(b"no tensors")
    llama.model.save_pretrained(path / "weights")
    (path / "headless/model.safetensors").symlink_to(path / "weights/model.safetensors")
    return path


def test_mistakes_are_one_line_and_status_two(
    extract, model_dir, incomplete_models, capsys, golden_lines
):
    """Nothing is written. What other libraries say is cut."""
    for folder in incomplete_models.iterdir():
        Path(folder.name).symlink_to(folder)
    asked = ["--model", model_dir, "--questions", "q.jsonl", "--prompt-template", "{question}="]
    asked += ["--max-new-tokens", "5"]

    def refuse(arguments):
        said = refused(capsys, "extract", "t.zarr", *asked, *arguments.split())
        assert not list(Path().glob("t.zarr*"))
        return re.split(", found: |: Expected|\n", said)[0]

    golden_lines("refused_extractions.txt", refuse)


@pytest.fixture(scope="module")
def overflowing(tokenizer):
    """A model whose last layer is beyond float16 for about half of the questions."""
    model = build_model("llama", tokenizer)
    largest = [
        np.abs(row["hidden_states"][:, -1]).max()
        for _, row in build_source(model, tokenizer).rows()
    ]
    with torch.no_grad():
        model.model.norm.weight.mul_(65504 / float(np.median(largest)))
    return model


def test_a_trace_beyond_float16_is_left_out_and_named(extract, overflowing, tokenizer, capsys):
    """Status 1 and a line with trace, layer, value and what keeps it; the others are as they would
    be without it. Where none is left the advice works."""
    overflowing.save_pretrained("some")
    tokenizer.save_pretrained("some")
    assert extract("t.zarr", model="some") == 1
    out = capsys.readouterr().out
    found = read("t.zarr")
    left_out = [question["question_id"] for question in QUESTIONS]
    left_out = [name for name in left_out if name not in found]
    assert 0 < len(left_out) < 8
    assert f"  {len(left_out)} traces left out" in out
    value = r"hidden_states: layer 3 has the value \d+\.?\d*, beyond float16"
    for trace_id in left_out:
        assert re.search(f"trace '{trace_id}': {value}", out)
    assert "  to have all: run the model in bfloat16 (--dtype bf16), into a new store" in out
    assert TraceStore.open("t.zarr").provenance[REMARKS]["traces"] == len(left_out)
    assert extract("t.zarr", model="some") == 1
    again = capsys.readouterr().out
    assert "nothing to do" in again
    assert again.startswith(out.removesuffix("\n"))
    fewer = [question for question in QUESTIONS if question["question_id"] in left_out]
    write_questions(*fewer)
    assert extract("u.zarr", model="some") == 2
    error = capsys.readouterr().err
    assert f"none of the first {len(fewer)} traces fits: trace '{left_out[0]}': hidden_st" in error
    assert "run the model in bfloat16 (--dtype bf16); no trace is kept\n" in error
    assert extract("u.zarr", "--dtype", "bf16", model="some") == 0
    assert list(read("u.zarr")) == left_out


@pytest.mark.parametrize(
    "killed, step",
    [(True, 3), *(pytest.param(one, 1, marks=pytest.mark.slow) for one in (True, False))],
)
def test_what_is_left_out_is_counted_once_wherever_a_build_stops(
    tmp_path, overflowing, tokenizer, monkeypatch, stop_after, killed, step
):
    """Stopped before rows in turn, and again and again: the same rows, bit for bit, and the same
    remarks."""
    if killed:  # nothing is committed in the end, but rows were by the clock
        commit = StoreWriter.commit

        def commit_unless_stopped(writer):
            if sys.exc_info()[0] is not None:
                raise StoreError("killed")
            commit(writer)

        monkeypatch.setattr(StoreWriter, "commit", commit_unless_stopped)
        monkeypatch.setattr("store.write.writer.COMMIT_ROWS", 2)
    settings = {
        "batch_size": 4,
        "decoding": Decoding(num_samples=2),
        "columns": ["hs_last", "hidden_states", "tokens"],
    }

    def build(name, stop=None):
        path = tmp_path / name
        source = build_source(
            overflowing, tokenizer, max_new_tokens=3, begun=open_begun(path), **settings
        )
        with nullcontext() if stop is None else stop_after(stop):
            return build_store(path, source)

    whole = build("whole.zarr")
    rows = read(whole.path)
    assert 2 < len(rows) < 16
    for stop in range(0, len(rows), step):
        with pytest.raises(KeyboardInterrupt):
            build(f"{stop}.zarr", stop)
        assert_same_store(read(build(f"{stop}.zarr").path), rows)
        assert TraceStore.open(tmp_path / f"{stop}.zarr").provenance == whole.provenance
    for _ in range(20):  # two rows, and then two more
        try:
            build("often.zarr", 2)
            break
        except KeyboardInterrupt:
            continue
    often = TraceStore.open(tmp_path / "often.zarr")
    assert_same_store(read(often.path), rows)
    assert often.provenance == whole.provenance


def test_the_command_that_goes_on_is_named(extract, stop_after, capsys):
    """In one line, how many traces are kept; the command is that of `store info`."""
    with stop_after(3):
        assert extract("t.zarr", "--columns", "label") == 130
    kept = "3 traces are kept in t.zarr.partial; the same command goes on"
    assert capsys.readouterr().err == f"python -m store extract: stopped; {kept}\n"
    error = refused(capsys, "info", "t.zarr")
    _, _, _, *command = shlex.split(error.split("Go on with: ")[1])
    assert main(command) == 0
    assert len(read("t.zarr")) == 8


@pytest.mark.parametrize(
    "number, status",
    [pytest.param(signal.SIGINT, 130, marks=pytest.mark.slow), (signal.SIGTERM, 143)],
)
def test_signals_keep_what_is_whole(tmp_path, number, status):
    """Ctrl-C, and what a job scheduler sends before it kills: one line, and the rows are there."""
    code = f"""
import os, signal, sys
from store import Column, Schema
from store.__main__ import command
from store.cli.merge import Merge
from store.write import build

signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it

class Source:
    schema, provenance, remarks = Schema({{'x': Column('int32')}}), {{}}, {{}}

    def rows(self, start=0):
        for i in range(9):
            yield f't{{i}}', {{'x': i}}
        os.kill(os.getpid(), {int(number)})
        signal.pause()

Merge.run = lambda self: build.build_store(self.store, Source())
sys.argv[1:] = ['merge', 's.zarr', 'x.zarr']
sys.exit(command())
"""
    settings = {"cwd": tmp_path, "env": {"PYTHONPATH": str(ROOT)}, "timeout": 60}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, **settings
    )
    kept = "9 traces are kept in s.zarr.partial; the same command goes on"
    line = f"python -m store merge: stopped; {kept}\n"
    assert (done.returncode, done.stderr) == (status, line)
    assert len(open_begun(tmp_path / "s.zarr")) == 9


def test_rules_of_the_command(extract, capsys):
    """A column each, and the first as label and score; asked for alone, a column is alone. The
    threshold decides, and none leaves every trace unlabelled."""
    write_questions(*(question | {"answers": ["5 6"]} for question in QUESTIONS))
    assert extract("t.zarr", "--labels", "f1,exact,contains", "--score-threshold", "0.3") == 0
    assert re.search(r"  f1 +\d+ +\d+ +0\n", capsys.readouterr().out)
    for row in read("t.zarr").values():
        assert row["score"] == np.float32(f1_score(row["answer"], ["5 6"]))
        assert row["label"] == row["label_f1"] == (row["score"] < 0.3)
        assert row["label_exact"] == (exact_match_score(row["answer"], ["5 6"]) < 0.5)
        assert row["label_contains"] == (contains_score(row["answer"], ["5 6"]) < 0.5)
    assert extract("u.zarr", "--labels", "f1,exact", "--columns", "label_exact") == 0
    assert list(TraceStore.open("u.zarr").schema.columns) == ["question_id", "label_exact"]
    assert extract("none.zarr", "--labels", "none") == 0
    assert {int(row["label"]) for row in read("none.zarr").values()} == {-1}


def test_a_given_label_wins_over_every_rule(extract):
    """A score as well; the columns of the rules say what the rules say."""
    given = [{"response": "7"}, {"response": "7", "label": 1}, {"response": "7", "score": 0.1}]
    asked = {"question": "3+4", "answers": ["7"]}
    write_questions(*({"question_id": f"q{i}", **asked, **one} for i, one in enumerate(given)))
    assert extract("t.zarr", "--labels", "exact,contains") == 0
    rows = read("t.zarr").values()
    assert [int(row["label"]) for row in rows] == [0, 1, 1]
    assert [int(row["label_exact"]) for row in rows] == [0, 0, 0]
    assert extract("u.zarr") == 0
    rule = TraceStore.open("u.zarr").provenance["label_rule"]
    assert rule.startswith("as given with the responses, else: ")
    assert "first statement" in rule


class Unreachable(OSError):
    """What transformers makes of a Hub that cannot be reached."""

    def __init__(self, *_):
        self.__cause__ = LocalEntryNotFoundError("no connection")


FULL = torch.OutOfMemoryError("CUDA out of memory")


@pytest.mark.parametrize(
    "place, name, error, message",
    [
        (
            huggingface,
            "run_forward",
            FULL,
            "out of memory: one trace does not fit on cpu; what is done is kept",
        ),
        (
            extracting.AutoModelForCausalLM,
            "from_pretrained",
            FULL,
            "its weights do not fit on cpu; choose a smaller --dtype, --quantize 4bit",
        ),
        (extracting.AutoConfig, "from_pretrained", Unreachable(), "expected a model's"),
    ],
    ids=["a trace", "weights", "the Hub"],
)
def test_what_another_time_may_mend_is_one_line(
    extract, monkeypatch, capsys, place, name, error, message
):
    """And a launch tries a part again: the memory may have been another process's."""

    def fail(*_, **__):
        raise error

    monkeypatch.setattr(place, name, fail)
    assert extract("t.zarr") == 2
    said = capsys.readouterr().err
    assert len(said.splitlines()) == 1
    assert message in said
    assert extract("t.zarr", "--part", "1/2") == 75


def test_a_batch_that_is_too_large_is_halved(extract, undisturbed, monkeypatch):
    """Both passes, until memory suffices: the same traces but for rounding. A size that failed is
    not tried again."""
    whole = undisturbed(4)
    sizes = {"run_forward": [], "generate_answers": []}

    def with_less_memory(name):
        run = getattr(huggingface, name)

        def limited(model, traces, *arguments):
            sizes[name].append(len(traces))
            if len(traces) > 1:
                raise FULL
            return run(model, traces, *arguments)

        monkeypatch.setattr(huggingface, name, limited)

    for name in sizes:
        with_less_memory(name)
    assert extract("t.zarr", "--num-samples", "2") == 0
    assert sizes == {"generate_answers": [2] + [1] * 8, "run_forward": [4, 2] + [1] * 16}
    found = read("t.zarr")
    assert list(found) == list(whole)
    for trace_id, row in whole.items():
        assert_close(found[trace_id], row)


def test_a_store_that_is_there_is_not_touched(extract, capsys):
    """By another command, said before its model is looked for; nor is anything else there."""
    assert extract("t.zarr", "--columns", "label") == 0
    generation = TraceStore.open("t.zarr").generation
    assert extract("t.zarr", "--columns", "label", "--limit", "2") == 2
    said = "or what the same command made, found a store with questions 8 instead of 2"
    assert said in capsys.readouterr().err
    assert TraceStore.open("t.zarr").generation == generation
    Path("o.zarr").mkdir()
    assert extract("o.zarr", model="./none") == 2
    assert "o.zarr: expected a new path" in capsys.readouterr().err


SMALL = {"hidden_size": 16, "num_hidden_layers": 2}
HEADS = SMALL | {"num_attention_heads": 2}


@pytest.mark.parametrize(
    "kind, sizes, arguments, message",
    [
        (BertLMHeadModel, BertConfig(**HEADS), [], "expected a causal"),
        (MambaForCausalLM, MambaConfig(**SMALL), [], "leave out the attn_ columns"),
        (MambaForCausalLM, MambaConfig(**SMALL), ["--columns", "hs_last"], None),
        (
            OPTForCausalLM,
            OPTConfig(**HEADS, word_embed_proj_dim=8),
            [],
            r"expected states of one size, found another in layer 2; leave it out \(--layers\)",
        ),
        (LlamaForCausalLM, LlamaConfig(**HEADS, vocab_size=5), [], "ids"),
    ],
    ids=["bert", "mamba", "mamba without maps", "opt", "small vocabulary"],
)
def test_models_of_other_kinds(
    extract, tmp_path, tokenizer, capsys, kind, sizes, arguments, message
):
    """What would give wrong traces is refused in one line."""
    torch.manual_seed(0)
    sizes.intermediate_size = sizes.ffn_dim = 32
    if kind is not LlamaForCausalLM:
        sizes.vocab_size = len(tokenizer)
    kind(sizes).save_pretrained(tmp_path / "m")
    tokenizer.save_pretrained(tmp_path / "m")
    capsys.readouterr()
    status = extract("t.zarr", *arguments, model=tmp_path / "m")
    error = capsys.readouterr().err
    assert (status, len(error.splitlines())) == ((2, 1) if message else (0, 0)), error
    assert re.search(message or "", error)


def test_code_that_comes_with_a_model_is_never_run(extract, model_dir, capsys, monkeypatch):
    """Whatever is answered to a question about it: none is asked."""
    shutil.copytree(model_dir, "evil")
    config = json.loads(Path("evil/config.json").read_text())
    classes = {"AutoConfig": "evil.Config", "AutoModelForCausalLM": "evil.Model"}
    config |= {"auto_map": classes, "model_type": "evil"}
    Path("evil/config.json").write_text(json.dumps(config))
    canary = Path("canary").absolute()
    Path("evil/evil.py").write_text(f"open({str(canary)!r}, 'w')")
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n" * 9))
    assert extract("o.zarr", model="evil") == 2
    out = capsys.readouterr()
    assert (out.out, len(out.err.splitlines())) == ("", 1)
    assert not canary.exists()


@pytest.mark.slow
def test_killed_at_random_moments_it_ends_with_the_same_store(tmp_path, model_dir):
    """SIGKILLs, and then the same command once more."""
    questions = [
        {"question_id": f"k{i}", "question": f"{i}+{i * 7}", "answers": [str(i * 8)]}
        for i in range(600)
    ]
    (tmp_path / "q.json").write_text(json.dumps(questions))
    arguments = ["--model", str(model_dir), "--questions", "q.json", "--batch-size", "4"]
    arguments += ["--prompt-template", "{question}=", "--num-samples", "2"]
    arguments += ["--max-new-tokens", "6", "--columns", "tokens,hidden_states,attn_mean,answer"]
    modules = ["store.sources.huggingface.load", "store.sources.huggingface.source"]
    stores = kill_at_random(tmp_path, "extract", arguments, modules, 5, 0.1, 20)
    assert stores
    for path in stores:
        assert_same_store(read(path), read(tmp_path / "whole.zarr"))
        whole = TraceStore.open(tmp_path / "whole.zarr")
        found = TraceStore.open(path).provenance
        assert identity(found) == identity(whole.provenance)
        assert found["batching"] == whole.provenance["batching"]


# Another batch size, less memory, larger models


STOPS = [
    pytest.param(*one, marks=() if one in {(5, 16), (8, 4)} else pytest.mark.slow)
    for one in product((0, 1, 5, 8, 15), (1, 3, 4, 16))
]


@pytest.mark.parametrize("stop, size", STOPS)
def test_a_stopped_extraction_goes_on_with_any_batch_size(
    extract, undisturbed, monkeypatch, stop_after, stop, size
):
    """The rows that are there stay, the others are those of an undisturbed run of that size; the
    provenance has both sizes. With the size that it had all are those of an undisturbed run."""
    monkeypatch.setattr("store.write.writer.COMMIT_ROWS", 3)
    arguments = ["--num-samples", "2"]
    with stop_after(stop):
        assert extract("t.zarr", *arguments) == 130
    assert not Path("t.zarr").exists()
    begun = read("t.zarr.partial") if stop else {}
    assert len(begun) == stop
    assert extract("t.zarr", *arguments, "--batch-size", size) == 0
    found, whole = read("t.zarr"), undisturbed(size)
    if size == 4:
        assert_same_store(found, whole)
    assert list(found) == list(whole)
    for trace_id, row in found.items():
        assert_close(row, whole[trace_id])
        assert_same(row, begun.get(trace_id, whole[trace_id]))
    batching = TraceStore.open("t.zarr").provenance["batching"]
    assert batching["sizes"] == list(dict.fromkeys([4, size] if stop else [size]))
    assert "rounding" in batching["convention"]
    assert extract("t.zarr", *arguments, "--batch-size", 7) == 0  # nothing to do
    assert TraceStore.open("t.zarr").provenance["batching"] == batching


def test_a_stop_of_space_ends_an_answer_behind_its_first_words(extract, monkeypatch):
    """A model that begins with lines would otherwise answer nothing."""
    rule = huggingface.stop_rule
    lines = SimpleNamespace(decode=lambda ids: "\n" * len(ids))
    monkeypatch.setattr(huggingface, "stop_rule", lambda _, stop: rule(lines, stop))
    assert extract("t.zarr", "--stop", r"\n", "--columns", "answer_len") == 0
    store = TraceStore.open("t.zarr")
    assert "first words" in store.provenance["stop_rule"]
    assert np.asarray(store.column("answer_len")).max() > 1  # lines alone end no answer
    assert extract("u.zarr", "--stop", "x", "--columns", "tokens") == 0
    assert "stop_rule" not in TraceStore.open("u.zarr").provenance


def test_what_a_batch_was_computed_from_is_freed_before_the_next(llama, tokenizer, monkeypatch):
    """Its hidden states and maps are gone when the next answers are generated."""
    alive = weakref.WeakSet()
    n_alive, n_noted = [], []

    def note(_module, _inputs, output):
        n_noted.append(1)
        alive.add(output if isinstance(output, torch.Tensor) else output[0])

    def noting_forward(model, *arguments):
        modules = [model.lm_head, *model.model.layers]
        with ExitStack() as hooks:
            for module in modules:
                hooks.enter_context(module.register_forward_hook(note))
            return run_forward(model, *arguments)

    def noting_generation(*arguments):
        n_alive.append(len(alive))
        return generate_answers(*arguments)

    monkeypatch.setattr(huggingface, "run_forward", noting_forward)
    monkeypatch.setattr(huggingface, "generate_answers", noting_generation)
    assert len(list(build_source(llama, tokenizer, batch_size=2).rows())) == 8
    assert n_alive == [0, 0, 0, 0]
    assert len(n_noted) >= 4 * (1 + len(llama.model.layers))


def test_rows_are_written_while_the_model_runs(extract, monkeypatch):
    """By another thread, and in their order."""
    threads = set()
    append = StoreWriter.append

    def noting(writer, trace_id, row):
        threads.add(threading.current_thread() is threading.main_thread())
        append(writer, trace_id, row)

    monkeypatch.setattr(StoreWriter, "append", noting)
    assert extract("t.zarr") == 0
    assert threads == {False}
    assert list(read("t.zarr")) == [f"q{i}" for i in range(8)]


@pytest.mark.parametrize(
    "arguments, package, extra",
    [
        (["--quantize", "4bit"], "bitsandbytes", "quantize"),
        (["--quantize", "8bit"], "accelerate", "quantize"),
        (["--device-map", "auto"], "accelerate", "device-map"),
    ],
)
def test_without_the_packages_of_large_models_they_are_named(
    extract, monkeypatch, capsys, arguments, package, extra
):
    """One line with what installs them, before a model is looked for."""
    for name in ("accelerate", "bitsandbytes"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, package, None)
    assert extract("t.zarr", *arguments, model="./none") == 2
    error = capsys.readouterr().err
    assert len(error.splitlines()) == 1
    assert f"the package {package} is not installed; run python -m pip install" in error
    assert f"[{extra}]" in error or f"{package}>=" in error
    assert not list(Path().glob("t.zarr*"))


@pytest.mark.parametrize(
    "dtype, quantize, device_map, expected",
    [
        ("auto", None, None, {}),
        ("bf16", None, "auto", {"device_map": "auto"}),
        ("fp16", "8bit", None, {"device_map": {"": CPU}, "load_in_8bit": True}),
        ("auto", "8bit", "auto", {"device_map": "auto", "load_in_8bit": True}),
        ("bf16", "4bit", "auto", {"device_map": "auto", "bnb_4bit_compute_dtype": torch.bfloat16}),
        ("auto", "4bit", None, {"device_map": {"": CPU}, "bnb_4bit_compute_dtype": torch.float32}),
    ],
)
def test_how_a_model_is_quantized_and_placed(model_dir, dtype, quantize, device_map, expected):
    """4 bits are NF4, computed with in --dtype, or in that of the checkpoint."""
    config_of_checkpoint = AutoConfig.from_pretrained(model_dir)
    placement = extracting._placement(config_of_checkpoint, dtype, CPU, quantize, device_map)
    config = placement.pop("quantization_config", None)
    assert (config is None) == (quantize is None)
    if quantize == "4bit":
        assert (config.load_in_4bit, config.bnb_4bit_quant_type) == (True, "nf4")
    found = placement | {name: getattr(config, name) for name in expected if name not in placement}
    assert found == expected


def test_quantized_weights_are_described(tokenizer):
    """How they were rounded, and that the digests are theirs; others are described as ever."""
    model = build_model("llama", tokenizer)
    plain = build_source(model, tokenizer).provenance
    assert "quantization" not in plain
    model.config.quantization_config = BitsAndBytesConfig(load_in_8bit=True)
    described = json.loads(json.dumps(build_source(model, tokenizer).provenance))
    assert described["quantization"]["load_in_8bit"]
    assert "weights_crc32c are of the quantized weights" in described["quantization"]["weights"]
    assert described["weights_crc32c"] == plain["weights_crc32c"]


@pytest.mark.parametrize("bits", ["8bit", "4bit"])
def test_quantized_on_the_cpu(extract, tokenizer, bits):
    """With the packages, a whole extraction; repeated there is nothing to do, and its traces are
    not taken for those of the whole weights."""
    pytest.importorskip("bitsandbytes")
    pytest.importorskip("accelerate")
    build_model("llama", tokenizer, hidden_size=64, intermediate_size=64).save_pretrained("wide")
    tokenizer.save_pretrained("wide")
    assert extract("t.zarr", "--quantize", bits, model="wide") == 0
    assert extract("t.zarr", "--quantize", bits, model="wide") == 0
    assert extract("whole.zarr", model="wide") == 0
    provenance = TraceStore.open("t.zarr").provenance
    assert provenance["quantization"][f"load_in_{bits}"]
    whole = TraceStore.open("whole.zarr").provenance
    difference = find_difference(origins_of(provenance), origins_of(whole)[0])
    assert difference.key == "weights_sha256"


def test_weights_that_are_kept_on_the_disk_have_the_same_digests(llama, model_dir, tmp_path):
    """Where accelerate offloads them."""
    pytest.importorskip("accelerate")
    offloaded = LlamaForCausalLM.from_pretrained(
        model_dir, device_map={"": "disk"}, offload_folder=tmp_path / "disk"
    )
    assert next(offloaded.parameters()).is_meta
    assert weights_checksum(offloaded) == weights_checksum(llama)
    assert weights_digest(offloaded) == weights_digest(llama)
