"""Files of benchmarks, in the forms in which their authors publish them: a few records of each in
`tests/data/published.json`, and what is understood in `published.txt`, which `pytest --golden`
writes."""

import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from store.errors import FormatError, NotFoundError, StoreError
from store.sources.questions import read_question_file, read_questions, without_responses

PUBLISHED = json.loads((Path(__file__).parents[3] / "data/published.json").read_text())
RAGTRUTH = PUBLISHED["RAGTruth"]


def write(folder, files):
    """Write files of records, one a line; give the path of the last one."""
    for name, content in files.items():
        records = content if isinstance(content, list) else [content]
        texts = [one if isinstance(one, str) else json.dumps(one) for one in records]
        (folder / name).write_text("\n".join(texts) + "\n")
    return folder / name


def test_what_is_published_is_understood(tmp_path, golden):
    """Questions, answers that count as right, responses and their labels, spans, context, and what
    else a record knows; what is no answer is left out by name."""
    found = []
    for name, files in PUBLISHED.items():
        path = write(tmp_path, files)
        file = read_question_file(path)
        asked = [one["question_id"] for one in without_responses(file.questions)]
        left_out = [one.replace(f"{tmp_path}/", "") for one in file.left_out.messages]
        form = file.form.name if file.form else "no form"
        found += [f"== {name}: {form}, {len(asked)} to be asked"]
        found += [json.dumps(one, ensure_ascii=False) for one in file.questions]
        found += [f"left out: {one}" for one in left_out] + [""]
    golden("published.txt", "\n".join(found))


def test_an_array_and_an_object_over_lines_are_read_as_lines_are(tmp_path):
    squad, halueval = PUBLISHED["SQuAD"]["q"], PUBLISHED["HaluEval, dialogues"]["data.json"]
    for records, text in (
        ([squad], json.dumps(squad, indent=2)),
        (halueval, json.dumps(halueval)),
    ):
        lines = read_questions(write(tmp_path, {"q": records}))
        assert read_questions(write(tmp_path, {"q": text})) == lines


def test_ragtruth_without_its_sources(tmp_path):
    """The file that is missing is named; a response without its source is left out."""
    responses = write(tmp_path, RAGTRUTH)
    sources = tmp_path / "source_info.jsonl"
    sources.write_text("[]\n3\n")
    with pytest.raises(FormatError, match=r"source_info\.jsonl, line 1: expected an object"):
        read_question_file(responses)
    sources.unlink()
    with pytest.raises(NotFoundError, match=r"source_info\.jsonl: expected RAGTruth's file"):
        read_question_file(responses)


@pytest.mark.parametrize(
    "record",
    [
        {"question": "Q", "right_answer": "r", "hallucinated_answer": "h"},
        {"dialogue_history": "Q", "right_response": "r", "hallucinated_response": "h"},
        {"document": "Q", "right_summary": "r", "hallucinated_summary": "h"},
        {"question": "Q", "correct_answers": ["r"], "incorrect_answers": ["h"]},
        {"model_input": "Q", "model_output_text": "r"},
    ],
)
def test_a_record_keeps_its_own_question_id(tmp_path, record):
    """Records of one question_id are one question; an empty id is none."""
    records = [{**record, "question_id": name} for name in ("mine", "mine", "")]
    found = read_questions(write(tmp_path, {"q": records}))
    *of_mine, other = dict.fromkeys(question["question_id"] for question in found)
    assert of_mine == ["mine"]
    assert other.startswith(("halueval_", "truthfulqa_3", "mu_shroom_"))


KEYS = [
    ["source_id", "response", "labels", "id"],
    ["knowledge", "question", "right_answer", "hallucinated_answer"],
    ["document", "right_summary", "hallucinated_summary"],
    ["question", "best_answer", "correct_answers", "incorrect_answers"],
    ["model_input", "model_output_text", "hard_labels", "id"],
    ["paragraphs"],
    ["question_id", "question", "response", "label", "score", "spans", "trace_id", "context"],
]
NAMES = ["start", "end", "text", "prob", "choices", "labels", "context", "qas", "answers", "id"]
TEXTS = st.sampled_from(["", "a b", "14312", "yes"])
SCALARS = st.none() | st.booleans() | st.integers(-2, 9) | st.floats() | TEXTS
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=3)
    ),
    max_leaves=6,
)
RECORDS = st.sampled_from(KEYS).flatmap(
    lambda keys: st.fixed_dictionaries(dict.fromkeys(keys, VALUES))
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(RECORDS, min_size=1, max_size=3))
def test_whatever_a_record_holds_is_read_or_named(tmp_path, records):
    """Never another exception; what is read has the types of a question."""
    path = write(tmp_path, RAGTRUTH | {"response.jsonl": records})
    try:
        file = read_question_file(path)
    except StoreError as error:
        if str(path) not in str(error):
            raise
        return
    for question in file.questions:
        assert question["question"].strip()
        assert question.get("label", 0) in (-1, 0, 1)
        for span in question.get("spans", []):
            assert 0 <= span["start"] < span["end"] <= len(question["response"])
    assert all(str(path) in message for message in file.left_out.messages)
