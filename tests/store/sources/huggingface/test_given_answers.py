"""Answers that exist already: rows as if the model had answered with them; prompts with contexts,
system messages and examples."""

import json
import math
from functools import partial
from pathlib import Path

import building
import numpy as np
import pytest
from building import assert_same, build_prompts, make_source
from character_tokenizer import build_tokenizer
from small import refused
from tokenizers import processors
from tokenizers_of_kinds import KINDS, appending, byte_level

from store import TraceStore
from store.cli.main import main
from store.sources.huggingface.prompts import PromptError, encode_questions

build_model = partial(building.build_model, max_position_embeddings=256)
CHAT = (
    "{{ bos_token }}{% for m in messages %}<{{ m['role'] }}>{{ m['content'] | trim }}</s>\n"
    "{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)
CHAT_WITH_SPACE = CHAT.replace("</s>\n", "</s>").replace(
    "{{ m['content'] | trim }}",
    "{% if m['role'] == 'assistant' %} {% endif %}{{ m['content'] | trim }}",
)


def ask(question="What is it?", **keys):
    return {"question_id": "q", "question": question, "answers": [], **keys}


def give(response, **keys):
    return ask(**keys) | {"trace_id": "q", "response": response}


@pytest.mark.parametrize("kind, appends", [("llama", False), ("gpt2", True)])
def test_an_answer_that_the_model_wrote_gives_the_same_row(kind, appends):
    """Token for token and bit for bit, the score and the label too; also with a tokenizer that
    appends an end-of-sequence token."""
    tokenizer = appending(build_tokenizer()) if appends else build_tokenizer()
    model = build_model(kind, tokenizer)
    questions = [
        ask(text) | {"question_id": f"q{i}", "answers": ["1"]}
        for i, text in enumerate(["1+1", "1234*99", "7-8", "12+345", "5", "98-7", "2*2*2"])
    ]
    settings = {"batch_size": 1, "max_new_tokens": 5, "template": "{question}="}
    written = dict(make_source(model, tokenizer, questions, **settings).rows())
    special = set(tokenizer.all_special_ids)
    given = []
    for question in questions:
        row = written[question["question_id"]]
        if not special & set(row["tokens"][row["prompt_len"] :].tolist()):  # texts hold none
            given.append(
                {**question, "trace_id": question["question_id"], "response": row["answer"]}
            )
    assert len(given) >= 3
    for trace_id, found in make_source(model, tokenizer, given, **settings).rows():
        assert_same(found, written[trace_id])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("appends", [False, True])
def test_prompt_and_response_are_one_text(kind, appends):
    """With a space between, where neither side has one; the prompt's tokens are those of the
    prompt alone, as when the model answers. What a tokenizer appends to a text is left out."""
    tokenizer = appending(KINDS[kind]()) if appends else KINDS[kind]()

    def ids(text):
        found = tokenizer(text)["input_ids"]
        assert (found[-1] == tokenizer.eos_token_id) == appends
        return found[:-1] if appends else found

    for template, response, between in [
        ("Question: {question}\nAnswer:", "the cat", " "),
        ("Question: {question}\nAnswer:", " the cat", ""),
        ("Question: {question}\nAnswer:\n", "the cat", ""),
        ("Question: {question}\nAnswer:", "357", " "),
        ("{context}\n{question}", "the mat", " "),
    ]:
        asked = ask(context="the cat sat")
        prompts = build_prompts(tokenizer, template)
        found, alone = prompts.encode(give(response, **asked)), prompts.encode(asked)
        prompt = template.format(**asked)
        assert found.tokens == ids(prompt + between + response)
        assert found.prompt.tolist() == alone.prompt.tolist() == ids(prompt)
        assert found.context == alone.context
        assert tokenizer.decode(found.answer).strip() == response.strip()
        assert len(found.token_label) == len(found.tokens)


def test_that_a_tokenizer_appends_tokens_is_told_by_the_provenance():
    """Traces that have them and traces that have not are not mixed."""
    for tokenizer in (byte_level(), appending(byte_level())):
        model = build_model("llama", tokenizer)
        provenance = make_source(model, tokenizer, [ask()]).provenance
        appends = tokenizer("the")["input_ids"][-1] == tokenizer.eos_token_id
        assert ("appends to a prompt is left out" in provenance["trace_convention"]) == appends


@pytest.mark.parametrize(
    "chat_template, end, between",
    [
        (CHAT, "<assistant>", ""),
        (CHAT_WITH_SPACE, "<assistant>", " "),
        (CHAT.replace("<assistant>", "<assistant>yes:"), "yes:", " "),
        (CHAT.replace("<assistant>", "<assistant><s>"), "<s>", ""),
        (CHAT.replace("<assistant>", "<assistant>yes\n"), "yes\n", ""),
    ],
    ids=["joined", "with a space", "a word before", "a special token before", "a line before"],
)
def test_in_a_chat_the_template_decides_what_is_between(chat_template, end, between):
    """The response stands where the template puts an assistant's message; where the template puts
    something else there than a prompt, the rule of plain prompts holds."""
    tokenizer = byte_level()
    tokenizer.chat_template = chat_template
    prompts = build_prompts(tokenizer, "{question}", chat=True)
    found = prompts.encode(give("the cat"))
    prompt = prompts.render(ask()).text
    assert prompt.endswith(end)
    whole = tokenizer(prompt + between + "the cat", add_special_tokens=False)["input_ids"]
    assert found.tokens == whole
    assert whole.count(tokenizer.bos_token_id) == prompt.count("<s>")


@pytest.mark.parametrize("before", ["", "<think>\n\n</think>\n\n"])
def test_a_given_response_is_not_put_into_a_thought_of_the_prompt(before):
    """It stands where the template puts answers, unless it comes with its thought."""
    tokenizer = byte_level()
    tokenizer.chat_template = CHAT.replace("<assistant>", "<assistant><think>\n").replace(
        "{{ m['content'] | trim }}",
        f"{{% if m['role'] == 'assistant' %}}{before}{{% endif %}}{{{{ m['content'] | trim }}}}",
    )
    prompts = build_prompts(tokenizer, "{question}", chat=True)
    whole = tokenizer.apply_chat_template(
        [{"role": "user", "content": "What is it?"}, {"role": "assistant", "content": "the cat"}],
        tokenize=False,
    )
    found = prompts.encode(give("the cat"))
    assert tokenizer.decode(found.tokens) == whole.removesuffix("</s>\n")
    assert tokenizer.decode(found.answer) == "the cat"
    assert prompts.describe(given=True)["chat_prompt"].endswith(f"<assistant>{before}")
    thought = prompts.encode(give("the mat? No.</think>the cat"))
    assert thought.prompt.tolist() == prompts.encode(ask()).prompt.tolist()


@pytest.mark.parametrize("chat", [False, True], ids=["plain", "chat"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_tokens_of_the_context_are_known(kind, chat):
    """Whether the template puts it into the prompt or the question holds it; the first counts."""
    tokenizer = KINDS[kind]()
    tokenizer.chat_template = CHAT
    context = "the cat sat on the mat"
    for template, question in [
        ("Context: {context}\n\nQuestion: {question}\nAnswer:", "What is it?"),
        ("{question}", f"Question: the cat. {context} Question: yes"),
        ("Context: {context}\nQuestion: {question}\nContext: {context}", "What is it?"),
    ]:
        prompts = build_prompts(tokenizer, template, chat=chat)
        asked = ask(question, context=context)
        for prompt in (prompts.encode(asked), prompts.encode(asked | give("Paris", **asked))):
            start, n = prompt.context
            assert tokenizer.decode(prompt.prompt[start : start + n]).strip() == context
            assert context not in tokenizer.decode(prompt.prompt[:start])
    assert build_prompts(tokenizer, chat=chat).encode(ask()).context == (-1, 0)
    asked = ask("What is it?", context="the cat")  # a template that leaves it out
    assert build_prompts(tokenizer, chat=chat).encode(asked).context == (-1, 0)


def test_a_chat_template_may_change_case_and_refuse_a_question():
    """A text in capitals is not left out; what the template refuses is left out and named."""
    tokenizer = byte_level()
    refuses = "{% if 'bad' in m['content'] %}{{ raise_exception('bad') }}{% endif %}"
    tokenizer.chat_template = CHAT.replace("| trim }}", "| upper }}" + refuses)
    prompts = build_prompts(tokenizer, "{question}", chat=True, system="Be short.")
    assert prompts.render(ask("a?")).text == "<s><system>BE SHORT.</s>\n<user>A?</s>\n<assistant>"
    encoded = encode_questions([ask("bad?"), ask("a?")], prompts)
    assert len(encoded.questions) == 1
    assert encoded.skipped.messages == [
        "question 'q': chat template: expected one that takes turns of system, user, found: bad"
    ]


def test_examples_come_before_the_question():
    """As text, joined as a response would be; in a chat as turns, behind the system's message."""
    tokenizer = byte_level()
    tokenizer.chat_template = CHAT
    shots = [ask("1?", answers=["one"]), ask("2?", response="two")]
    plain = build_prompts(tokenizer, few_shot=shots)
    assert plain.render(ask()).text == (
        "Question: 1?\nAnswer: one\n\nQuestion: 2?\nAnswer: two\n\nQuestion: What is it?\nAnswer:"
    )
    whole = plain.describe()["prompt_template"]
    assert whole.format(question="What is it?") == plain.render(ask()).text
    braces = build_prompts(tokenizer, few_shot=[ask("{1}?", answers=["{}"])])
    whole = braces.describe()["prompt_template"]
    assert whole.format(question="What is it?") == braces.render(ask()).text
    chat = build_prompts(tokenizer, "{question}", chat=True, few_shot=shots, system="Be short.")
    assert chat.render(ask()).text == (
        "<s><system>Be short.</s>\n<user>1?</s>\n<assistant>one</s>\n<user>2?</s>\n"
        "<assistant>two</s>\n<user>What is it?</s>\n<assistant>"
    )
    assert chat.describe()["system"] == "Be short."
    assert chat.describe()["few_shot"] == [["1?", "one"], ["2?", "two"]]
    empty = build_prompts(tokenizer, "{question}", chat=True, system="")  # no default of a template
    assert empty.render(ask()).text.startswith("<s><system></s>\n<user>What is it?")
    assert empty.describe()["system"] == ""
    with pytest.raises(ValueError, match="few_shot: question 'q': expected the field 'topic'"):
        build_prompts(tokenizer, "{question}{topic}", few_shot=shots)


def test_examples_are_right_and_no_question_comes_twice():
    """Files of given answers have right and hallucinated responses to each question."""
    tokenizer = byte_level()
    wrong = give("London", question="1?", label=1)
    right = give("Paris", question="1?", label=0)
    other = give("Rome", question="2?", label=-1)
    assert build_prompts(tokenizer, "{question}", few_shot=[wrong, right, right, other]).turns == [
        ("1?", "Paris")
    ]
    both = [{**shot, "answers": ["Paris, France"]} for shot in (right, wrong)]
    plain = ask("3?", answers=["Oslo"])
    assert build_prompts(tokenizer, "{question}", few_shot=[*both, plain]).turns == [
        ("1?", "Paris, France"),
        ("3?", "Oslo"),
    ]
    with pytest.raises(ValueError, match=r"expected an example that is right .* found none of 2"):
        build_prompts(tokenizer, few_shot=[wrong, other])


def test_an_example_that_is_the_question_is_left_out_of_its_prompt():
    """Asked in the same words, or with its id and its answer; ids alone may be record numbers."""
    tokenizer = byte_level()
    tokenizer.chat_template = CHAT
    shots = [
        ask("What is the capital?", answers=["Paris"]) | {"question_id": "1"},
        ask("2?", answers=["two", "2"]) | {"question_id": "2"},
    ]
    first, second = "Question: What is the capital?\nAnswer: Paris\n\n", "Question: 2?\nAnswer: two"
    for question, left in [
        (ask("What is it?"), {first, second}),
        (ask("what is  THE capital"), {second}),
        (ask("Two?", answers=["3", "Two."]) | {"question_id": "2"}, {first}),
        (ask("3?", answers=["three"]) | {"question_id": "2"}, {first, second}),
        (ask("4?", answers=["two"]), {first, second}),
        (ask("2?", context="the cat") | {"question_id": "1"}, {first}),
    ]:
        prompts = build_prompts(tokenizer, few_shot=shots)
        text = prompts.render(question).text
        assert {shot for shot in (first, second) if shot in text} == left
        assert text.endswith(f"Question: {question['question']}\nAnswer:")
        assert prompts.render(question).is_example == (len(left) < 2)
        asked, given = prompts.encode(question), prompts.encode(give("it", **question))
        assert given.prompt.tolist() == asked.prompt.tolist()
        chat = build_prompts(tokenizer, "{question}", chat=True, few_shot=shots)
        assert chat.render(question).text.count("<assistant>") == 1 + len(left)
    passages = [ask("Sum up", context=text, answers=[text]) for text in ("the cat", "the mat")]
    prompts = build_prompts(tokenizer, "{context}: {question}", few_shot=passages)
    assert prompts.render(passages[0] | {"question_id": "x"}).text.startswith("the mat: Sum up")


@pytest.mark.parametrize(
    "question, other, is_same",
    [
        ("What is 2+2?", "What is 2-2?", False),
        ("Is x > y?", "Is x < y?", False),
        ("x=3", "x\u22603", False),
        ("What is 2.5?", "What is 25?", False),
        ("Who wrote \u201cUlysses\u201d?", 'WHO wrote "Ulysses"', True),
        ("\uff37ho?", "who", True),
    ],
)
def test_which_questions_are_the_same(question, other, is_same):
    """Case, space, quotes and the end of a sentence tell none from another; signs do."""
    shots = [ask(question, answers=["4"]) | {"question_id": "1"}]
    prompts = build_prompts(byte_level(), "Q: {question}\nA:", few_shot=shots)
    assert prompts.render(ask(other)).is_example == is_same


def test_what_the_model_cannot_take_is_left_out_and_named():
    """A response longer than the model's context, one without tokens, an unknown letter, ids beyond
    a vocabulary that is smaller than the tokenizer's."""
    responses = ["the cat", "the cat " * 30, "\u200d"]
    questions = [give(text) | {"trace_id": f"t{i}"} for i, text in enumerate(responses)]
    fitting, skipped = encode_questions(questions, build_prompts(KINDS["wordpiece"](), n=40))
    assert [one.trace_id for one in fitting] == ["t0"]
    assert skipped.messages == [
        "trace 't1': the model takes 40 tokens, found 9 of the prompt and 60 of the response",
        "trace 't2': expected a response with tokens, found none",
    ]
    with pytest.raises(PromptError, match="trace 'q': expected a prompt and a response that the"):
        build_prompts(build_tokenizer(), "{question}=").encode(give("x") | {"question": "1+1"})
    prompts = build_prompts(byte_level())
    largest = max(prompts.encode(ask()).prompt.tolist())
    prompts.n_ids = largest + 1
    prompts.encode(ask())
    prompts.n_ids = largest
    with pytest.raises(
        PromptError, match=f"ids below {largest}, as the model has, found {largest}"
    ):
        prompts.encode(ask())


def test_a_tokenizer_without_offsets_is_refused():
    """Only fast tokenizers know which characters a token has; a prompt alone needs none."""
    tokenizer = byte_level()

    class Slow:
        is_fast = False
        all_special_tokens = ()
        unk_token_id = None

        def __call__(self, text, return_offsets_mapping, **settings):
            assert not return_offsets_mapping
            return tokenizer(text, **settings)

    prompts = build_prompts(tokenizer)
    expected = prompts.encode(ask()).prompt.tolist()
    prompts.form.tokenizer = Slow()
    assert prompts.encode(ask()).prompt.tolist() == expected
    with pytest.raises(PromptError, match="expected a fast one, which knows the characters"):
        prompts.encode(give("the"))


def test_a_source_takes_responses_to_all_or_to_none():
    tokenizer = byte_level()
    model = build_model("llama", tokenizer)
    with pytest.raises(ValueError, match="expected responses to all 2 or to none, found 1"):
        make_source(model, tokenizer, [give("the"), ask() | {"question_id": "r"}])
    with pytest.raises(ValueError, match="found 'q' twice"):
        make_source(model, tokenizer, [give("the"), give("cat")])


# The command


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory):
    """A model with a byte-level tokenizer and a chat template, as transformers saves it."""
    path = tmp_path_factory.mktemp("model") / "tiny"
    tokenizer = byte_level()
    tokenizer.chat_template = CHAT
    build_model("llama", tokenizer).save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


@pytest.fixture
def extract(tmp_path, model_dir, monkeypatch):
    """Run the command in an own folder; gives its exit status."""
    monkeypatch.chdir(tmp_path)

    def run(out, questions, *arguments):
        common = ["--batch-size", "2", "--max-new-tokens", "4"]
        asked = ["--model", str(model_dir), "--questions", questions]
        return main(["extract", out, *asked, *common, *map(str, arguments)])

    return run


def write_lines(name, *records):
    Path(name).write_text("\n".join(map(json.dumps, records)))
    return name


CONTEXT = "the cat sat on the mat"
PROMPT = f"Question: {CONTEXT}; yes?\nAnswer:"


@pytest.fixture
def ragtruth(extract):
    """Responses and their source."""
    source = {"source_id": "7", "task_type": "Summary", "source_info": CONTEXT, "prompt": PROMPT}
    write_lines("source_info.jsonl", source)
    span = {"start": 4, "end": 7, "text": "cat", "label_type": "Evident Conflict"}
    common = {"source_id": "7", "model": "m", "split": "train", "quality": "good"}
    return write_lines(
        "response.jsonl",
        {**common, "id": "1", "labels": [span], "response": "the cat sat"},
        {**common, "id": "2", "labels": [], "response": "the mat"},
        {**common, "id": "3", "labels": [{**span, "end": 99}], "response": "the cat sat"},
        {**common, "id": "4", "labels": [], "response": ""},
        {**common, "id": "5", "labels": [], "response": "the mat " * 300},
    )


def test_ragtruth_becomes_a_store(extract, ragtruth, capsys):
    """One forward pass over the prompt of the benchmark and each response; what is wrong is named,
    the rest goes on, and the status is 1."""
    assert extract("t.zarr", ragtruth) == 1
    printed = capsys.readouterr().out
    assert "t.zarr: 2 traces of 1 question\n" in printed
    assert "response.jsonl, line 3: spans: expected 0 <= start < end <= 11" in printed
    assert "response.jsonl, line 4: response: expected a text, found ''" in printed
    assert "trace '5': the model takes 256 tokens, found" in printed
    store = TraceStore.open("t.zarr")
    assert list(store.ids) == ["1", "2"]
    first, second = store
    tokenizer = byte_level()
    assert first["tokens"].tolist() == tokenizer(f"{PROMPT} the cat sat")["input_ids"]
    assert (first["question_id"], first["answer"], first["label"]) == ("7", "the cat sat", 1)
    assert (second["answer"], second["label"]) == ("the mat", 0)
    assert math.isnan(first["score"])
    assert first["answer_len"] == len(first["tokens"]) - first["prompt_len"]
    assert first["prompt_len"] == len(tokenizer(PROMPT)["input_ids"])
    start = first["context_start"]
    context = first["tokens"][start : start + first["context_len"]].tolist()
    assert tokenizer.decode(context).strip() == CONTEXT
    labels = first["token_label"]
    assert set(labels[: first["prompt_len"]].tolist()) == {-1}
    assert tokenizer.decode(first["tokens"][labels == 1].tolist()).strip() == "cat"
    assert set(second["token_label"][second["prompt_len"] :].tolist()) == {0}
    provenance = store.provenance
    assert "one text" in provenance["decoding"]["given"]
    assert provenance["prompt_template"] == "{question}"
    assert provenance["label_rule"].startswith("as given with the responses")


def test_attention_on_the_context_is_that_of_its_tokens(extract):
    """Of a record without a context it is NaN, the rest of its columns are there."""
    without = {"question_id": "b", "question": "the", "response": "mat"}
    write_lines("q.jsonl", give("mat", question="the cat?", context="cat"), without)
    columns = "context_start,context_len,attn_cmass,attn_centropy,attn_entropy,attentions"
    asked = ["--columns", columns, "--prompt-template", "{question}"]
    assert extract("u.zarr", "q.jsonl", *asked) == 0
    for row, has_context in zip(TraceStore.open("u.zarr"), [True, False], strict=True):
        n = len(row["attn_entropy"])
        maps = row["attentions"].reshape(n, n, *row["attentions"].shape[1:]).astype(np.float64)
        start, length = row["context_start"], row["context_len"]
        on_context = maps[:, start : start + length].sum(1) if has_context else np.nan
        np.testing.assert_allclose(row["attn_cmass"], on_context, atol=2e-3)
        assert (np.isfinite(row["attn_centropy"]) == has_context).all()
        assert np.isfinite(row["attn_entropy"]).all()


def test_what_the_records_know_becomes_columns(extract, ragtruth, capsys):
    """The task, the model, the official split and the context; the answers of others are named."""
    assert extract("t.zarr", ragtruth, "--columns", "label") == 1
    printed = capsys.readouterr().out
    assert "the answers by 1 model: m; --generator NAME keeps those by one\n" in printed
    first = TraceStore.open("t.zarr")["1"]
    expected = {
        "label": 1,
        "model": "m",
        "split": "train",
        "quality": "good",
        "task_type": "Summary",
    }
    assert dict(first).items() == {"question_id": "7", **expected}.items()
    assert extract("u.zarr", ragtruth, "--generator", "m", "--fields", "split") == 1
    assert "--generator" not in capsys.readouterr().out
    store = TraceStore.open("u.zarr")
    assert store["2"]["context"] == CONTEXT
    assert store.where("split = 'train' and context contains 'CAT'").tolist() == [0, 1]
    assert "model" not in store.schema.columns
    write_lines("q.jsonl", ask("the", entropy=1, dataset="d"))
    assert extract("v.zarr", "q.jsonl", "--fields", "all,-entropy", "--columns", "label") == 0
    assert TraceStore.open("v.zarr")["q"]["dataset"] == "d"


def test_a_limit_counts_questions_and_bad_records_are_named(extract, capsys):
    """All answers to the first questions are taken, and what is no question stops none of them."""
    names = ("a", "b", "a", "c", "b")
    records = [{"question_id": name, "question": "the", "response": "cat"} for name in names]
    write_lines("q.jsonl", {"question_id": "d", "question": ""}, *records)
    assert extract("t.zarr", "q.jsonl", "--limit", "2") == 1
    printed = capsys.readouterr().out
    assert "t.zarr: 4 traces of 2 questions\n" in printed
    assert "q.jsonl, line 1: question: expected a text, found ''" in printed
    assert list(TraceStore.open("t.zarr").ids) == ["a", "b", "a#2", "b#2"]


def test_labels_that_contradict_scores_are_refused(extract, capsys):
    """Before a model is loaded, and unless other answers are made."""
    answers = ("the", 0.9, 1), ("cat", 0.1, 1), ("mat", None, 0)
    asked = {"question_id": "a", "question": "the"}
    records = [asked | {"response": one, "score": s, "label": y} for one, s, y in answers]
    write_lines("q.jsonl", *records)
    assert extract("t.zarr", "q.jsonl") == 2
    assert "contradict each other in 1 of 2 traces ('a')" in capsys.readouterr().err
    assert extract("t.zarr", "q.jsonl", "--score-threshold", "0.95") == 0
    assert "  labels: 2 hallucinations, 1 right\n" in capsys.readouterr().out


def test_the_same_questions_can_be_asked(extract, ragtruth):
    """With --generate the model answers, each question once, and nothing is labelled."""
    assert extract("t.zarr", ragtruth, "--generate") == 1  # two records are wrong all the same
    [row] = TraceStore.open("t.zarr")
    assert row["label"] == -1
    assert set(row["token_label"].tolist()) == {-1}
    assert row["context_len"] > 0


def test_prompt_options_of_the_command(extract, capsys):
    """Fields, examples and a system's message; questions among the examples are counted, and the
    provenance says how their prompts are made."""
    write_lines("q.jsonl", ask(context=CONTEXT, topic="cat"))
    shot = ask("the?", answers=["mat"], context="the", topic="t") | {"question_id": "1"}
    write_lines("shots.jsonl", shot)
    columns = ["--columns", "tokens"]
    examples = ["--few-shot", "shots.jsonl", *columns]
    template = r"{context}\n{topic}: {question}"
    assert extract("t.zarr", "q.jsonl", "--prompt-template", template, *examples) == 0
    provenance = TraceStore.open("t.zarr").provenance
    assert provenance["prompt_template"] == "the\nt: the? mat\n\n{context}\n{topic}: {question}"
    assert "few_shot_rule" not in provenance
    text = byte_level().decode(TraceStore.open("t.zarr")[0]["tokens"].tolist())
    assert text.startswith("<s>the\nt: the? mat\n\n")
    assert "among the examples" not in capsys.readouterr().out
    assert extract("c.zarr", "q.jsonl", "--chat-template", "--system", "Be short.", *columns) == 0
    chat = TraceStore.open("c.zarr").provenance["chat_prompt"]
    assert "<system>Be short." in chat
    assert "<user>{context}\n\n{question}" in chat
    write_lines("q.jsonl", ask("The?", context="the"), ask("cat?", context="cat", question_id="r"))
    assert extract("u.zarr", "q.jsonl", *examples) == 0
    out = capsys.readouterr().out
    assert "  1 question is among the examples (--few-shot), left out of their own prompts" in out
    rule = "an example that is the question itself is left out of its prompt"
    assert TraceStore.open("u.zarr").provenance["few_shot_rule"] == rule


def test_a_missing_token_of_the_beginning_is_warned_of(extract, model_dir, capsys):
    """Where the configuration names one, and neither tokenizer nor template puts it in front."""
    tokenizer = byte_level()
    tokenizer.backend_tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    build_model("llama", tokenizer).save_pretrained("plain")
    tokenizer.save_pretrained("plain")
    write_lines("q.jsonl", ask("the?"), ask("cat") | {"question_id": "r"})
    warning = "warning: texts of the model begin with '<s>' (bos_token_id of its configuration)"
    cases = [("{question}", "plain"), ("<s>{question}", "plain"), ("{question}", model_dir)]
    for i, (template, model) in enumerate(cases):
        asked = ["--prompt-template", template, "--columns", "tokens", "--model", model]
        assert extract(f"{i}.zarr", "q.jsonl", *asked) == 0
        assert capsys.readouterr().out.count(warning) == (i == 0)


def test_mistakes_are_one_line_and_status_two(extract, model_dir, capsys, golden_lines):
    """Nothing is written."""

    def refuse(given):
        record, arguments = given
        write_lines("q.jsonl", ask() | record)
        asked = ("--model", model_dir, "--questions", "q.jsonl", *arguments.split())
        said = refused(capsys, "extract", "t.zarr", *asked)
        assert not Path("t.zarr").exists()
        return said.removesuffix("\n")

    golden_lines("refused_answers.txt", refuse)
