"""A model that judges: its verdicts, its prompts, and both commands."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
from building import build_model
from character_tokenizer import build_tokenizer
from judges import build_comparing_model, build_judge_model, build_judge_tokenizer
from small import make_store, refused, store_columns
from tokenizers import processors

from store import SchemaError, TraceStore
from store.cli.main import main
from store.labels.grading import Case, Grader
from store.sources.huggingface.judge import HuggingFaceJudge, read_template

CASES = [
    Case("Capital of France?", ["Paris", "City of Paris"], "Paris"),
    Case("Capital of France?", ["Paris"], "London"),
    Case("Capital of France?", ["Paris", "City of Paris"], "City of Paris"),
    Case("Capital of France?", ["Paris"], "?"),
    Case("Capital of France?", [], "Paris"),
    Case("Capital of {answer}?", ["Paris"], "{references} {0.__class__}"),
    Case("x", ["Paris"], ""),
]
EXPECTED = ["right", "wrong", "right", "neither", "no references", "wrong", "wrong"]
CHAT = "{% for m in messages %}[{{ m['content'] }}]{% endfor %}" + (
    "{% if add_generation_prompt %}>{% endif %}"
)


@pytest.fixture(scope="module")
def tokenizer():
    return build_judge_tokenizer()


@pytest.fixture
def comparing(tokenizer):
    """A judge that is always right."""
    return HuggingFaceJudge(build_comparing_model(tokenizer), tokenizer, batch_size=2)


def test_verdicts(comparing):
    """In the order of the answers, at most so many prompts at once; braces in texts are text."""
    verdicts = comparing.verdicts(CASES)
    assert [verdict.word for verdict in verdicts] == EXPECTED
    assert comparing.model.widest == 2
    for verdict in verdicts:
        if verdict.word in ("right", "wrong"):
            assert (verdict.p_right > 0.99) == (verdict.word == "right")
        else:
            assert math.isnan(verdict.p_right)
    assert comparing.verdicts([]) == []


def test_a_verdict_does_not_depend_on_its_batch(tokenizer):
    """Prompts of several lengths in one batch, against one by one, to rounding."""
    model = build_judge_model(tokenizer)
    cases = [Case("q" * n, ["r"], "a" * (n % 3)) for n in range(1, 40, 5)]
    alone, batched = (
        HuggingFaceJudge(model, tokenizer, batch_size=n).verdicts(cases) for n in (1, 8)
    )
    for one, other in zip(alone, batched, strict=True):
        assert one.word == other.word
        np.testing.assert_allclose(one.p_right, other.p_right, rtol=1e-4)


def test_a_verdict_follows_the_prompt_and_not_what_a_tokenizer_appends():
    """An end-of-sequence token behind every text is left out."""
    tokenizer, appending = build_judge_tokenizer(), build_judge_tokenizer()
    end = (appending.eos_token, appending.eos_token_id)
    appending.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="$A </s>", special_tokens=[end]
    )
    assert appending("q")["input_ids"] == [*tokenizer("q")["input_ids"], appending.eos_token_id]
    model = build_judge_model(tokenizer)
    cases = [Case("q" * n, ["r"], "a") for n in range(1, 9)]
    plain, other = (HuggingFaceJudge(model, one).verdicts(cases) for one in (tokenizer, appending))
    np.testing.assert_equal([one.p_right for one in plain], [one.p_right for one in other])


@pytest.mark.parametrize(
    "says, word",
    [
        ({"yes": 0.9}, "right"),
        ({"Yes": 0.3, "yes": 0.3, "no": 0.35}, "right"),
        ({"No": 0.06, "yes": 0.05}, "wrong"),
        ({"yes": 0.02, "no": 0.01}, "neither"),
        ({"yes": 0.4, "no": 0.4}, "neither"),
        ({"Correct": 0.9}, "neither"),
    ],
)
def test_the_more_probable_word_is_the_verdict(tokenizer, says, word):
    """In any case of letters; none where both have little, or are equal."""
    judge = HuggingFaceJudge(build_judge_model(tokenizer, says), tokenizer)
    assert judge.verdicts(CASES[:1])[0].word == word


@pytest.mark.parametrize(
    "own", [{"num_return_sequences": 2, "do_sample": True}, {"stop_strings": ["."]}]
)
def test_what_a_model_generates_by_itself_is_not_asked(tokenizer, own):
    """The settings of its generation_config.json, which generate() takes or refuses."""
    model = build_judge_model(tokenizer, {"yes": 0.9})
    model.generation_config.update(**own)
    verdicts = HuggingFaceJudge(model, tokenizer).verdicts(CASES[:2])
    assert [verdict.word for verdict in verdicts] == ["right", "right"]


def test_a_judge_that_counts_positions_otherwise_is_refused(tokenizer):
    """Where transformers generates from position 0, its words are not its own."""
    model = build_model("roberta", tokenizer, is_decoder=True)
    with pytest.raises(SchemaError, match=r"positions from 0, .* found RobertaForCausalLM"):
        HuggingFaceJudge(model, tokenizer)


def test_what_cannot_be_asked(tokenizer):
    """A prompt that is too long has no verdict; the others have."""
    judge = HuggingFaceJudge(build_judge_model(tokenizer, {"no": 0.9}, longest=300), tokenizer)
    cases = [CASES[0], CASES[0]._replace(answer="x" * 300), CASES[1]]
    assert [verdict.word for verdict in judge.verdicts(cases)] == ["wrong", "too long", "wrong"]


def test_the_chat_template_is_used_where_there_is_one():
    """Otherwise the text alone, which ends in what asks for a word."""
    chat = build_judge_tokenizer(CHAT)
    judge = HuggingFaceJudge(build_judge_model(chat, {"yes": 0.9}), chat)
    assert judge._prompt(CASES[0]).startswith("[Question: Capital")
    assert judge._prompt(CASES[0]).endswith("yes or no.]>")
    plain = build_judge_tokenizer()
    judge = HuggingFaceJudge(build_judge_model(plain), plain)
    assert judge._prompt(CASES[0]).endswith("yes or no.\nVerdict:")
    broken = build_judge_tokenizer("{{ raise_exception('no system') }}")
    with pytest.raises(SchemaError, match=r"judge .*turns of user, found: no system"):
        HuggingFaceJudge(build_judge_model(broken), broken)
    picky = "{% if 'x' in messages[0]['content'] %}{{ raise_exception('no x') }}{% endif %}" + CHAT
    chat = build_judge_tokenizer(picky)
    judge = HuggingFaceJudge(build_judge_model(chat), chat, "{question} {answer} yes or no?")
    with pytest.raises(SchemaError, match=r"judge .*turns of user, found: no x"):
        judge.verdicts([Case("x", [], "y")])


def test_without_references_in_the_template_the_judge_decides_alone(tokenizer):
    """Then an answer without references is judged too."""
    template = "{question} {answer} - yes or no?"
    judge = HuggingFaceJudge(build_judge_model(tokenizer, {"Yes": 0.9}), tokenizer, template)
    assert judge.verdicts([CASES[4]])[0].word == "right"
    described = judge.describe()
    assert described["template"] == template
    assert described["words"] == ["yes", "no"]
    assert {"weights_crc32c", "tokenizer_sha256"} <= described.keys()
    json.dumps(described)


def test_a_template_is_a_file_or_a_text(tmp_path):
    file = tmp_path / "judge.txt"
    file.write_text("{answer}\nyes or no?\n")
    assert read_template(str(file)) == "{answer}\nyes or no?"
    assert read_template(r"{answer}\nyes or no?") == "{answer}\nyes or no?"
    assert read_template(None) is None
    for given, message in (
        ("none.txt", "which is neither"),
        ("{question} yes or no", r"expected \{answer\} in it"),
        ("{answer} ?", "asks for one of two words"),
    ):
        with pytest.raises(SchemaError, match=message):
            read_template(given)


def test_all_is_read_but_what_an_answer_thinks(comparing):
    """However many references there are."""
    others = [f"r{i}" for i in range(20)]
    thought = "<think>" + "London " * 1000 + "</think>"
    cases = [Case("Capital?", [*others, "Paris"], answer) for answer in (f"{thought}Paris", "r")]
    assert [verdict.word for verdict in comparing.verdicts(cases)] == ["right", "wrong"]


def test_a_tokenizer_without_the_words_is_refused():
    digits = build_tokenizer()
    with pytest.raises(SchemaError, match="a token of each of yes and no"):
        HuggingFaceJudge(build_judge_model(digits), digits, "{answer} yes or no")


def test_a_judge_is_not_believed_against_an_exact_match(tokenizer):
    """-1, and counted by itself; what it says of other answers holds."""
    judge = HuggingFaceJudge(build_judge_model(tokenizer, {"no": 0.9}), tokenizer)
    grades = Grader(["judge", "exact"], judge=judge).grade(CASES[:2])
    assert [grade.labels for grade in grades] == [
        {"judge": -1, "exact": 0},
        {"judge": 1, "exact": 1},
    ]
    assert [grade.verdict for grade in grades] == ["wrong, but an exact match", "wrong"]
    assert math.isnan(grades[0].score)
    assert grades[1].score < 0.1


# The command label


@pytest.fixture(scope="module")
def judges(tmp_path_factory):
    """Folders of models that judge, and of one that is asked."""
    folder = tmp_path_factory.mktemp("judges")
    tokenizer = build_judge_tokenizer()
    says = {"yes": {"yes": 0.9}, "no": {"no": 0.9}, "nonsense": {"q": 0.9}, "asked": None}
    for name, probabilities in says.items():
        build_judge_model(tokenizer, probabilities).save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)
    return folder


@pytest.fixture
def answered(tmp_path, judges, monkeypatch):
    """A store of answers without labels, beside the models."""
    monkeypatch.chdir(tmp_path)
    for folder in judges.iterdir():
        Path(folder.name).symlink_to(folder)
    rows = {}
    for i in range(12):
        answer = "It is Paris." if i % 3 else ["Paris", "London", "not Paris", "Rome"][i // 3]
        references = json.dumps([] if i == 11 else ["Paris"])
        row = {"question_id": f"q{i}", "question": "Capital?", "answer": answer}
        rows[f"t{i}"] = {**row, "references": references}
    return make_store("s.zarr", dict.fromkeys(rows["t0"], "utf8"), rows, {"model": "m"}).path


def labels(name="label"):
    return np.asarray(TraceStore.open("s.zarr").column(name)).tolist()


def label(*arguments):
    return main(["label", "s.zarr", *arguments])


def test_rules_after_the_fact(answered, capsys):
    """Columns of both rules, a table, the judge in the provenance; undone, and done again."""
    arguments = ["--labels", "contains,judge", "--judge-model", "./no"]
    assert label(*arguments, "--dry-run") == 0
    planned = capsys.readouterr().out
    assert "dry run: nothing was written" in planned
    assert "label" not in TraceStore.open(answered).schema.columns
    assert label(*arguments) == 0
    out = capsys.readouterr().out
    assert planned.split("dry run")[0] in out
    contains, judge = ([0, 0, 0, 1, 0, 0, 1, 0, 0, 1, 0, -1], [-1] + 10 * [1] + [-1])
    assert (labels("label_contains"), labels("label_judge")) == (contains, judge)
    assert labels() == contains
    lines = [line.split() for line in out.splitlines()]
    assert ["contains", "3", "8", "1"] in lines
    assert ["judge", "10", "0", "2", "30.0%", "of", "10"] in lines
    assert "  judge: 10 wrong, 1 no references, 1 wrong, but an exact match" in out
    assert "1 trace is without references and keeps its label" in out
    provenance = TraceStore.open(answered).provenance
    judge = provenance["label_rules"]["judge"]
    assert judge["model"] == "./no"
    assert judge["verdicts"] == {"wrong": 10, "no references": 1, "wrong, but an exact match": 1}
    assert "first statement" in provenance["label_rule"]
    assert label(*arguments) == 0
    assert "nothing changes" in capsys.readouterr().out
    assert label("--undo") == 0
    assert set(labels()) == {-1}
    assert labels("label_contains") == contains
    assert "label_rule" not in TraceStore.open(answered).provenance


def test_given_labels_stay_where_there_are_no_references(answered, capsys):
    """Unless all are to be replaced. A rule alone adds no column of its own."""
    Path("given.csv").write_text("trace_id,label\nt11,1\nt0,1\n")
    assert label("--scores", "given.csv") == 0
    assert label("--labels", "exact") == 0
    assert (labels()[0], labels()[11]) == (0, 1)
    assert label("--labels", "exact", "--replace-all") == 0
    assert "1 trace is without references: its label is removed" in capsys.readouterr().out
    assert labels()[11] == -1
    store = TraceStore.open(answered)
    assert [name for name in store.schema.columns if name.startswith("label")] == ["label"]
    assert store.provenance["label_normalization"]
    assert "label_rules" not in store.provenance


INVERTED = "{question} {references} {answer}: is this a hallucination? Reply yes or no."


def test_a_template_that_asks_the_reverse_is_refused(answered, capsys, monkeypatch):
    """References are judged first, as answers: the judge would call the right ones wrong."""
    template = ["--labels", "judge", "--judge-template", INVERTED]
    assert label(*template, "--judge-model", "./no") == 2
    error = capsys.readouterr().err
    assert "found 8 of 8 called wrong; yes has to mean that the answer is right" in error
    assert len(error.splitlines()) == 1
    assert "label" not in TraceStore.open(answered).schema.columns
    assert label(*template, "--judge-model", "./nonsense", "--dry-run") == 2
    assert "found 0 on 11 answers; the labels stay as they are" in capsys.readouterr().err
    assert label(*template, "--judge-model", "./yes") == 0
    Path("q.jsonl").write_text('{"question_id": "q", "question": "x", "answers": ["b"]}')
    common = ["--model", "./yes", "--questions", "q.jsonl", "--max-new-tokens", "3"]
    assert main(["extract", "t.zarr", *common, *template, "--judge-model", "./no"]) == 2
    assert "found 1 of 1 called wrong" in capsys.readouterr().err
    assert not Path("t.zarr.partial").exists()


def test_a_template_that_could_not_be_tried_is_said(answered, capsys):
    """As there are no references."""
    row = {"question": "x", "answer": "y", "references": ""}
    make_store("t.zarr", dict.fromkeys(row, "utf8"), {"t": row})
    judge = ["--labels", "judge", "--judge-model", "./no", "--judge-template"]
    assert main(["label", "t.zarr", *judge, "{answer}: is it made up? yes or no"]) == 0
    out = capsys.readouterr().out
    assert "warning: no references, on which --judge-template could be tried" in out


def test_a_judge_that_talks_nonsense_removes_no_label(answered, capsys):
    """It is refused, and the labels that there are stay, whatever rules are beside it."""
    said = (
        "expected verdicts of the judge, found 0 on 11 answers; the labels stay as they are: ask a "
        "model that follows instructions, or in another way (--judge-template)\n"
    )
    for rules, options in (("judge", []), ("contains,judge", ["--replace-all"])):
        before = TraceStore.open(answered)
        asked = ("label", answered, "--labels", rules, "--judge-model", "./nonsense", *options)
        assert refused(capsys, *asked).endswith(said)
        after = TraceStore.open(answered)
        assert (after.generation, after.schema) == (before.generation, before.schema)
        assert label("--labels", "contains") == 0


def test_mistakes_are_one_line_and_status_two(answered, capsys, golden_lines):
    """Nothing is written."""

    def refuse(arguments):
        said = refused(capsys, "label", "s.zarr", *arguments.split())
        assert "label" not in TraceStore.open(answered).schema.columns
        return said.removesuffix("\n")

    golden_lines("refused_rules.txt", refuse)


@pytest.mark.parametrize(
    "references, message",
    [
        (None, "expected texts in a column 'question'"),
        (["[]", ""], "expected references in some rows, found none"),
        (["[]", "{}"], "trace 't1': expected a JSON list of texts, found '{}'"),
    ],
)
def test_a_store_without_texts_or_references_is_refused(tmp_path, capsys, references, message):
    texts = ["question", "answer", "references"] if references else ["x"]
    values = {name: ("utf8", ["a", "a"]) for name in texts} | {
        texts[-1]: ("utf8", references or "ab")
    }
    store_columns(tmp_path / "x.zarr", values)
    assert message in refused(capsys, "label", tmp_path / "x.zarr", "--labels", "exact")


# The command extract


def test_extraction_with_a_judge(answered, capsys, stop_after):
    """The columns of both rules, from the command; stopped and resumed the counts are whole."""
    questions = [
        {"question_id": f"q{i}", "question": "a" * i, "answers": ["b"]} for i in range(1, 11)
    ]
    Path("q.jsonl").write_text("\n".join(map(json.dumps, questions)))

    def extract(out, *further):
        common = ["--model", "./asked", "--questions", "q.jsonl", "--max-new-tokens", "3"]
        judged = ["--labels", "contains,judge", "--judge-model", "./no", "--batch-size", "4"]
        return main(["extract", out, *common, *judged, *further])

    assert extract("t.zarr") == 0
    out = capsys.readouterr().out
    assert "judge: 10 wrong" in out
    store = TraceStore.open("t.zarr")
    assert np.asarray(store.column("label_judge")).tolist() == [1] * 10
    assert store.provenance["judge_verdicts"] == {"wrong": 10}
    assert store.provenance["label_rules"]["judge"]["words"] == ["yes", "no"]
    with stop_after(5):
        assert extract("stopped.zarr") == 130
    assert extract("stopped.zarr") == 0
    assert TraceStore.open("stopped.zarr").provenance["judge_verdicts"] == {"wrong": 10}
    assert main(["label", "t.zarr", "--labels", "exact,f1"]) == 0
    capsys.readouterr()
    assert extract("t.zarr") == 0  # columns of rules that were added since are no difference
    assert extract("u.zarr", "--columns", "tokens") == 0
    assert "label_judge" not in TraceStore.open("u.zarr").schema.columns
    assert extract("v.zarr", "--columns", "label_judge") == 0
    assert list(TraceStore.open("v.zarr").schema.columns) == ["question_id", "label_judge"]
