"""Answers that exist already: what a record says of them, and what is wrong about them."""

import json

import pytest

from store.errors import FormatError, SchemaError
from store.sources.questions import (
    generators_of,
    keep_generator,
    read_question_file,
    read_questions,
    without_responses,
)

ASKED = {"question_id": "a", "question": "Q", "answers": ["x"]}


def read(tmp_path, *records, fields=()):
    (tmp_path / "q").write_text("\n".join(map(json.dumps, records)))
    return read_question_file(tmp_path / "q", fields)


def given(**keys):
    return {**ASKED, "response": "grüße 😀 you", **keys}


def span(start, end, label=""):
    return {"start": start, "end": end, "label": label}


@pytest.mark.parametrize(
    "keys, expected",
    [
        ({}, {}),
        ({"label": 1}, {"label": 1}),
        ({"label": False}, {"label": 0}),
        ({"label": 1.0}, {"label": 1}),
        ({"label": -1}, {"label": -1}),
        ({"is_hallucination": True}, {"label": 1}),
        ({"score": 0.25}, {"score": 0.25}),
        ({"score": "0.25", "label": "0"}, {"score": 0.25, "label": 0}),
        ({"score": None, "label": None}, {}),
        ({"spans": []}, {"spans": [], "label": 0}),
        ({"spans": [[0, 5]]}, {"spans": [span(0, 5)], "label": 1}),
        ({"spans": [[0, 5]], "label": -1}, {"spans": [span(0, 5)], "label": -1}),
        ({"spans": [[0, 5]], "score": 0.9}, {"spans": [span(0, 5)], "score": 0.9}),
        ({"spans": [], "label": 0}, {"spans": [], "label": 0}),
        (
            {"spans": [{"start": 6, "end": 7, "text": "😀", "label_type": "Evident"}, [0, 11]]},
            {"spans": [span(6, 7, "Evident"), span(0, 11)], "label": 1},
        ),
        ({"trace_id": 7}, {"trace_id": "7"}),
        ({"context": "c"}, {"context": "c"}),
        ({"context": ["c", "d"]}, {"context": "c\n\nd"}),
    ],
)
def test_what_comes_with_a_response(tmp_path, keys, expected):
    """Label 1 is a hallucination; spans decide where there is no label."""
    [found] = read(tmp_path, given(**keys)).questions
    assert found == {**ASKED, "response": "grüße 😀 you", "trace_id": "a", **expected}


def test_a_record_that_is_wrong_about_its_response_is_left_out(tmp_path, golden_lines):
    """It is named by file and line; the others go on; a strict reader refuses the file."""

    def leave_out(keys):
        file = read(tmp_path, given(), given(**keys), given())
        assert [question["trace_id"] for question in file.questions] == ["a", "a#2"]
        with pytest.raises(FormatError, match="line 2: "):
            read_questions(tmp_path / "q")
        (message,) = file.left_out.messages
        return message.replace(f"{tmp_path}/", "")

    golden_lines("wrong_responses.txt", leave_out)


def test_in_a_file_of_responses_every_record_has_one(tmp_path):
    """Whichever comes first; a file of which nothing remains is an error."""
    for records in ([ASKED, given(question_id="b")], [given(question_id="b"), ASKED]):
        file = read(tmp_path, *records)
        assert [question["question_id"] for question in file.questions] == ["b"]
        assert "response: expected a text, as other records have" in file.left_out.messages[0]
    with pytest.raises(FormatError, match=r"expected questions, found none: .*q, line 1: response"):
        read(tmp_path, given(response=""))


def test_several_responses_to_a_question_are_numbered(tmp_path):
    """An id of the file's own is kept, and must be new."""
    file = read(tmp_path, given(), given(), given(trace_id="mine"), given())
    assert [question["trace_id"] for question in file.questions] == ["a", "a#2", "mine", "a#4"]
    file = read(tmp_path, given(trace_id="m"), given(trace_id="m"))
    assert len(file.questions) == 1
    assert "line 2: expected a new trace_id, found 'm' of line 1" in file.left_out.messages[0]


def test_questions_can_be_asked_without_their_responses(tmp_path):
    """Each once, with its context."""
    file = read(tmp_path, given(context="c", spans=[[0, 1]], score=1.0), given(label=1))
    assert without_responses(file.questions) == [{**ASKED, "context": "c"}]


def test_further_fields_are_kept(tmp_path):
    """As they are; also what is said otherwise, where the prompt needs it."""
    records = [{**ASKED, "topic": "t", "year": 3}, {**ASKED, "question_id": "b", "topic": "u"}]
    found = [question["fields"] for question in read(tmp_path, *records).questions]
    assert found == [{"topic": "t", "year": 3}, {"topic": "u"}]
    assert "fields" not in read(tmp_path, ASKED).questions[0]
    [needed] = read(tmp_path, ASKED, fields=["answers"]).questions
    assert needed["fields"] == {"answers": ["x"]}


def test_numbers_and_booleans_of_a_csv(tmp_path):
    """Where all filled cells of a column are some; what the prompt needs stays a text."""
    (tmp_path / "q").write_text(
        "question_id,question,year,id7,share,easy,note,level\n"
        "a,Q1,1990,007,0.5,True,1,0.10\n"
        "b,Q2,,008,1e3,false,x,0.5\n"
    )
    found = [one["fields"] for one in read_question_file(tmp_path / "q", ["level"]).questions]
    assert found == [
        {"year": 1990, "id7": "007", "share": 0.5, "easy": True, "note": "1", "level": "0.10"},
        {"year": None, "id7": "008", "share": 1000.0, "easy": False, "note": "x", "level": "0.5"},
    ]


def test_the_answers_of_one_model_are_kept(tmp_path):
    """By the name that the file has; another is named with those that are there."""
    file = read(tmp_path, *(given(trace_id=name, model=name) for name in ("b", "a", "c")))
    assert generators_of(file.questions) == ["a", "b", "c"]
    (kept,) = keep_generator(file.questions, "a")
    assert kept["trace_id"] == "a"
    with pytest.raises(SchemaError, match=r"--generator: .* one of a, b, c, found 'd'"):
        keep_generator(file.questions, "d")
    with pytest.raises(SchemaError, match="none, as no record names one"):
        keep_generator(read(tmp_path, given()).questions, "d")


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
def test_a_csv_of_responses(tmp_path, delimiter):
    """Cells are texts, and empty ones say nothing; without ids the questions are numbered."""
    rows = [
        ["question", "response", "label", "score", "spans", "context"],
        ["Q1", "abc", "1", "", "", ""],
        ["Q2", "abc", "", "0.5", '"[[0, 1], [1, 2]]"', "c"],
        ["Q3", "abc", "", "", "{", ""],
        ["Q4", "", "0", "", "", ""],
    ]
    (tmp_path / "q").write_text("\n".join(map(delimiter.join, rows)))
    file = read_question_file(tmp_path / "q")
    first, second = file.questions
    assert first == {
        "question_id": "q_1",
        "question": "Q1",
        "answers": [],
        "response": "abc",
        "trace_id": "q_1",
        "label": 1,
    }
    assert second["score"] == 0.5
    assert second["context"] == "c"
    assert second["spans"] == [span(0, 1), span(1, 2)]
    assert [message.partition(": ")[2][:10] for message in file.left_out.messages] == [
        "spans: exp",
        "response: ",
    ]
    assert file.remarks == [
        f"{tmp_path / 'q'}: questions without ids are called q_1, q_2, ... in order"
    ]
