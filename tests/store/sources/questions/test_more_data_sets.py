"""Data sets in the shapes in which their authors publish them: two or three records of each."""

import gzip
import json
from pathlib import Path

import pytest

from store import FormatError
from store.sources.prompt_templates import default_template
from store.sources.questions import read_question_file
from store.traces.fields import find_fields


def read(tmp_path, *records):
    path = tmp_path / "data.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return read_question_file(path)


# what is published, the question that is made of it, and what else is known
QUESTION_SETS = json.loads((Path(__file__).parents[3] / "data/question_sets.json").read_text())


@pytest.mark.parametrize("name", QUESTION_SETS)
def test_a_data_set_of_questions_is_understood(tmp_path, name):
    """Questions, answers that count as right, context, and what else the record knows."""
    known = QUESTION_SETS[name]
    file = read(tmp_path, known["published"])
    (found,) = file.questions
    fields = found.pop("fields", {})
    assert found == known["question"]
    assert file.form.name == name.removesuffix(" on the Hub")
    columns = find_fields([fields])
    assert known["fields"].items() <= columns.row(fields).items()
    assert not {"test", "canonical_solution", "supporting_facts"} & columns.columns.keys()


@pytest.mark.parametrize("on_the_hub", [False, True])
def test_each_turn_of_coqa_is_a_question(tmp_path, on_the_hub):
    """The turns before it stand in it; further annotators' answers count as well."""
    questions = ["Who ran?", "Where?"]
    answers = ["Ann", "home"]
    record = {"source": "mctest", "story": "Ann ran home.", "questions": questions}
    record["answers"] = {"input_text": answers, "answer_start": [0, 8], "answer_end": [3, 12]}
    if not on_the_hub:
        record = {"id": "3z", "filename": "mc.txt"} | record
        record["questions"] = [{"input_text": q, "turn_id": i} for i, q in enumerate(questions, 1)]
        record["answers"] = [{"input_text": a, "turn_id": i} for i, a in enumerate(answers, 1)]
        others = [{"input_text": a, "turn_id": i} for i, a in enumerate(["Ann", "to home"], 1)]
        record["additional_answers"] = {"0": others}
    first, second = read(tmp_path, record).questions
    assert first["question"] == "Who ran?"
    assert second["question"] == "Who ran? Ann\nWhere?"
    assert second["answers"] == ["home"] if on_the_hub else ["home", "to home"]
    assert second["question_id"] == ("coqa_1_2" if on_the_hub else "3z_2")
    assert (second["context"], second["fields"]["source"]) == ("Ann ran home.", "mctest")
    assert second["fields"]["turn"] == 2


def test_psiloqa(tmp_path):
    """Spans are pairs; without one the answer is right."""
    record = {
        "id": "en_1",
        "lang": "en",
        "wiki_title": "Kent",
        "wiki_url": "https://x",
        "llm_checkpoint": "Qwen/Qwen2.5-7B-Instruct",
        "wiki_passage": "Kent is a county.",
        "question": "What is Kent?",
        "golden_answer": "A county.",
        "llm_answer": "Kent is a city.",
        "annotated_span": "Kent is a [HAL]city[/HAL].",
        "labels": [[10, 14]],
    }
    wrong, right = read(tmp_path, record, {**record, "id": "en_2", "labels": []}).questions
    assert (wrong["label"], right["label"]) == (1, 0)
    assert wrong["spans"] == [{"start": 10, "end": 14, "label": ""}]
    assert (wrong["answers"], wrong["context"]) == (["A county."], "Kent is a county.")
    assert wrong["fields"]["llm_checkpoint"] == "Qwen/Qwen2.5-7B-Instruct"


def test_ragognize(tmp_path):
    """A trace of each model's response to one question; refuted annotations are no spans."""
    spans = [
        {"text": "city", "start": 10, "end": 14, "valid": True},
        {"text": "Kent", "start": 0, "end": 4, "valid": False},
    ]
    record = {
        "user_prompt_index": 7,
        "category": "geo",
        "user_prompt": "What is Kent?",
        "documents": [
            {"title": "Kent", "text": "Kent is a county."},
            {"title": "", "text": "Yes."},
        ],
        "documents_str": "...",
        "answerable": True,
        "responses": {
            "golden_answer": "A county.",
            "Llama-2-7b-chat-hf": {"text": "Kent is a city.", "hallucinations": spans},
            "Mistral-7B-Instruct-v0.1": {"text": "A county.", "hallucinations": []},
        },
    }
    first, second = read(tmp_path, record).questions
    assert first["trace_id"] == "ragognize_7 Llama-2-7b-chat-hf"
    assert (first["label"], second["label"]) == (1, 0)
    assert [span["start"] for span in first["spans"]] == [10]
    assert first["context"] == "Kent is a county.\n\nYes."
    assert first["question_id"] == second["question_id"]
    assert second["fields"]["model"] == "Mistral-7B-Instruct-v0.1"
    assert first["fields"]["answerable"] is True


def test_ragognize_asks_each_prompt_twice(tmp_path):
    """With the documents that have the answer, and with others: both come in."""
    response = {"text": "A county.", "hallucinations": []}
    record = {"user_prompt_index": 7, "user_prompt": "What?", "documents": [{"text": "Kent."}]}
    record["responses"] = {"golden_answer": "A county.", "Llama": response}
    with_answer, without = ({**record, "answerable": one} for one in (True, False))
    file = read(tmp_path, with_answer, without)
    assert not file.left_out.n
    ids = [question["question_id"] for question in file.questions]
    assert ids == ["ragognize_7", "ragognize_7_unanswerable"]


def test_longfact(tmp_path):
    """Spans by their place; those without one, and supported ones, are none."""
    annotations = [
        {"index": 0, "span": "Kent", "label": "Supported", "verification_note": ""},
        {"index": 10, "span": "city", "label": "Not Supported", "verification_note": "a county"},
        {"index": None, "span": "river", "label": "Not Supported", "verification_note": ""},
    ]
    turns = [
        {"role": "user", "content": "What is Kent?"},
        {"role": "assistant", "content": "Kent is a city."},
    ]
    record = {"subset": "longfact", "model": "gemma", "conversation": turns, "canary": "c"}
    (found,) = read(tmp_path, record | {"annotations": annotations}).questions
    assert (found["question"], found["response"]) == ("What is Kent?", "Kent is a city.")
    assert (found["label"], [span["start"] for span in found["spans"]]) == (1, [10])
    assert found["fields"] == {"subset": "longfact", "model": "gemma"}
    file = read(tmp_path, record | {"annotations": []}, record | {"conversation": turns[:1]})
    assert file.left_out.n == 1


@pytest.mark.parametrize(
    "verdicts, label",
    [
        (["Supported", "Not Supported"], 1),
        (["Insufficient Information"], 1),
        (["Supported", "N/A"], 0),
        (["N/A"], -1),
        ([], -1),
    ],
)
def test_longfact_labels_follow_all_verdicts(tmp_path, verdicts, label):
    """Also from those that have no place; an answer that nobody judged is unlabelled."""
    turns = [
        {"role": "user", "content": "What is Kent?"},
        {"role": "assistant", "content": "Kent is a city."},
    ]
    annotations = [{"index": None, "span": "city", "label": verdict} for verdict in verdicts]
    (found,) = read(tmp_path, {"conversation": turns, "annotations": annotations}).questions
    assert found["label"] == label
    assert found.get("spans") == (None if label == -1 else [])


@pytest.mark.parametrize("wrong, right", [("delete", "mark"), ("mark", "delete")])
def test_fava(tmp_path, wrong, right):
    """Tags become spans of the output, wherever the correction stands; another text is named."""
    annotated = (
        f"Kent is a <entity><{right}>county</{right}><{wrong}>city</{wrong}></entity>. "
        "<invented>It is blue.</invented>"
    )
    record = {"prompt": "What is Kent?", "model": "m", "annotated": annotated}
    record["output"] = "Kent is a city. It is blue."
    file = read(tmp_path, record, {**record, "output": "Kent is big."})
    (found,) = file.questions
    assert (found["response"], found["label"]) == ("Kent is a city. It is blue.", 1)
    labels = {found["response"][s["start"] : s["end"]]: s["label"] for s in found["spans"]}
    assert labels == {"city": "entity", "It is blue.": "invented"}
    assert "line 2: annotated: expected the output with tags" in file.left_out.messages[0]


def test_fava_tags_that_hold_nothing_or_do_not_end(tmp_path):
    """What is missing is wrong without a span; an open tag would hide all spans behind it."""
    record = {"prompt": "What is Kent?", "output": "Kent is a city."}
    missing = "Kent is a <entity><mark>large</mark></entity> city."
    unended = "Kent is a <relation><mark>county</mark><delete>city</delete>."
    older = "<sentence>Kent is a city.</sentence>"
    lines = ({**record, "annotated": one} for one in (missing, unended, older))
    file = read(tmp_path, *lines, {**record, "annotated": record["output"]})
    found = [(question["label"], len(question["spans"])) for question in file.questions]
    assert found == [(1, 0), (1, 1), (0, 0)]
    assert "line 2: annotated: expected tags that end" in file.left_out.messages[0]


def test_a_gzip_file_is_read_as_it_is(tmp_path):
    """As HumanEval is published; half of one is refused."""
    human_eval = QUESTION_SETS["HumanEval"]
    path = tmp_path / "HumanEval.jsonl.gz"
    path.write_bytes(gzip.compress(json.dumps(human_eval["published"]).encode()))
    (found,) = read_question_file(path).questions
    assert found["question_id"] == human_eval["question"]["question_id"]
    for damaged in (path.read_bytes()[:30], path.read_bytes()[:4] + bytes(60)):
        path.write_bytes(damaged)
        with pytest.raises(FormatError, match=r"in a gzip file, found: .*copy it"):
            read_question_file(path)


def test_code_and_summaries_have_templates_of_their_own(tmp_path):
    forms = [
        read(tmp_path, QUESTION_SETS[name]["published"]).form for name in ("HumanEval", "XSum")
    ]
    code, summary = (default_template(form, has_context=True, chat=False) for form in forms)
    assert code == "{question}"
    assert summary.endswith("Summary:")


@pytest.mark.parametrize(
    "record",
    [
        {"question": "Q", "supporting_facts": 3, "context": 5},
        {"story": 3, "questions": 3, "answers": 3},
        {"Body": 3, "Question": None, "Answer": None},
        {"llm_answer": None, "golden_answer": 3, "wiki_passage": []},
        {"user_prompt": 1, "documents": 3, "responses": []},
        {"conversation": [3], "annotations": 3},
        {
            "conversation": [{"role": "user"}, {"role": "assistant"}],
            "annotations": [{"index": "x"}],
        },
        {"annotated": 3, "output": None},
        {"flores_passage": 3, "question": 3, "correct_answer_num": None},
    ],
)
def test_a_malformed_record_is_left_out(tmp_path, record):
    """And the next one read."""
    file = read(tmp_path, record, {"question_id": "a", "question": "Q"})
    assert [question["question_id"] for question in file.questions] == ["a"]
    assert file.left_out.n == 1
