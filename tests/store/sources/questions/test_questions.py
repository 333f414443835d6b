"""Files of questions: every format gives the same list, and what is wrong names its line."""

import csv
import io
import json
import re

import pytest

from store.errors import FormatError, NotFoundError
from store.sources.questions import read_question_file, read_questions

QUESTIONS = [
    {"question_id": "a", "question": "What, then?", "answers": ["1", 'two "2"', "drei | 3"]},
    {"question_id": "é b", "question": "Line\nbreak?", "answers": ["one"]},
    {"question_id": "7", "question": "No reference?", "answers": []},
]


def as_csv(questions):
    file = io.StringIO(newline="")
    writer = csv.writer(file)
    writer.writerow(["answers", "question_id", "more", "question"])
    writer.writerows(
        [json.dumps(q["answers"]), q["question_id"], "x", q["question"]] for q in questions
    )
    return file.getvalue()


@pytest.mark.parametrize(
    "text",
    [
        "\n".join(map(json.dumps, QUESTIONS)),
        "\r\n\n".join(map(json.dumps, QUESTIONS)) + "\n\n",
        json.dumps(QUESTIONS),
        "\n " + json.dumps(QUESTIONS, indent=2, ensure_ascii=False) + "\n",
        as_csv(QUESTIONS),
        "\ufeff" + as_csv(QUESTIONS),
    ],
    ids=["lines", "blank lines", "array", "indented array", "csv", "csv with a mark"],
)
def test_every_format_gives_the_same_questions(tmp_path, text):
    (tmp_path / "q").write_text(text, encoding="utf-8", newline="")
    found = read_questions(tmp_path / "q")
    assert {json.dumps(one.pop("fields", {"more": "x"})) for one in found} == {'{"more": "x"}'}
    assert found == QUESTIONS


@pytest.mark.parametrize(
    "record, expected",
    [
        ({"question_id": "a", "question": "Q", "answers": "one"}, ("a", ["one"])),
        ({"question_id": 5, "question": "Q", "answers": [5, "5", " ", "six"]}, ("5", ["5", "six"])),
        ({"question_id": "a", "question": "Q"}, ("a", [])),
        (
            {
                "question": "Q",
                "question_id": "tc_3",
                "answer": {
                    "aliases": ["A b", "C"],
                    "normalized_aliases": ["a b", "c"],
                    "value": "C",
                    "type": "x",
                },
            },
            ("tc_3", ["C", "A b", "a b", "c"]),
        ),
        (
            {
                "Question": "Q",
                "QuestionId": "tc_3",
                "Answer": {"Aliases": ["A"], "NormalizedAliases": ["a"]},
            },
            ("tc_3", ["A", "a"]),
        ),
        ({"question": "Q", "answer": ["x", "y"]}, ("nq_1", ["x", "y"])),
        ({"question_id": "a", "question": "Q", "answers": [], "answer": "x"}, ("a", ["x"])),
    ],
    ids=["one text", "numbers", "none", "triviaqa", "triviaqa file", "nq-open", "an empty list"],
)
def test_the_names_of_the_field_are_understood(tmp_path, record, expected):
    (tmp_path / "q").write_text(json.dumps(record))
    assert read_questions(tmp_path / "q") == [
        dict(zip(("question_id", "answers"), expected, strict=True)) | {"question": "Q"}
    ]


NAMELESS = [{"question": f"Q{i}", "answer": ["x"]} for i in range(3)]
TRIVIA = {
    "Data": [{"QuestionId": f"tc_{i}", "Question": "Q", "Answer": {"Value": "v"}} for i in "012"],
    "Domain": "Web",
}


@pytest.mark.parametrize(
    "text, ids",
    [
        (json.dumps(NAMELESS), ["nq_1", "nq_2", "nq_3"]),
        ("\n\n".join(map(json.dumps, NAMELESS)), ["nq_1", "nq_2", "nq_3"]),
        (json.dumps(TRIVIA), ["tc_0", "tc_1", "tc_2"]),
        (json.dumps(TRIVIA, indent=4), ["tc_0", "tc_1", "tc_2"]),
    ],
)
def test_ids_of_questions(tmp_path, text, ids):
    """Those without are counted, however they are spread over lines; TriviaQA's files are one
    object, with the questions under "Data"."""
    (tmp_path / "q").write_text(text)
    assert [question["question_id"] for question in read_questions(tmp_path / "q")] == ids


def test_cells_of_several_answers(tmp_path):
    (tmp_path / "q").write_text(
        'question_id,question,answers\na,Q,x| y |\nb,Q,\nc,Q,"[""p|q"", 3]"\n'
    )
    assert [question["answers"] for question in read_questions(tmp_path / "q")] == [
        ["x", " y "],
        [],
        ["p|q", "3"],
    ]


def test_a_line_with_a_key_twice_is_left_out_alone(tmp_path):
    """Also where the key is below the first level; an array with one is refused."""
    twice = '{"question_id": "b", "question": "Q", "answers": [], "more": [{"k": 1, "k": 2}]}'
    good = [json.dumps({"question_id": one, "question": "Q"}) for one in "ac"]
    (tmp_path / "q").write_text("\n".join([good[0], twice, good[1]]))
    file = read_question_file(tmp_path / "q")
    assert [question["question_id"] for question in file.questions] == ["a", "c"]
    [message] = file.left_out.messages
    assert re.search("line 2: expected one JSON object.* found: the key 'k' twice", message)
    assert "the key 'k' twice" in refuse(tmp_path / "q", f"[{good[0]}, {twice}]")


GOOD = '{"question_id": "a", "question": "Q", "answers": ["x"]}'


def refuse(path, text):
    """What is said of a file of this text."""
    path.write_text(text)
    with pytest.raises(FormatError) as caught:
        read_questions(path)
    return str(caught.value).replace(f"{path.parent}/", "")


def test_what_is_wrong_names_its_line(tmp_path, golden_lines):
    golden_lines("wrong_lines.txt", lambda text: refuse(tmp_path / "q", text))


def test_what_is_too_long_or_too_deep_is_refused(tmp_path):
    long = json.dumps({"question_id": "a" * 1001, "question": "Q"})
    assert "expected at most 1000 bytes, found 1001" in refuse(tmp_path / "q", long)
    assert "found: maximum recursion" in refuse(tmp_path / "q", "[" * 100_000)


BAD = [
    {"question_id": "b", "question": ""},
    {"question_id": "c", "question": "Q", "answers": [None]},
    {"question_id": "a", "question": "Q"},
    {"question_id": ["d"], "question": "Q"},
    ["no object"],
]


def test_bad_records_are_left_out_and_named(tmp_path):
    """By line, or in an array by index; the others go on, and number as they did."""
    records = [json.loads(GOOD), *BAD, {"question": "Q2", "answer": ["x"]}]
    for text, unit, first in (
        ("\n".join(map(json.dumps, records)), "line", 1),
        (json.dumps(records), "record", 0),
    ):
        (tmp_path / "q").write_text(text)
        file = read_question_file(tmp_path / "q")
        assert [question["question_id"] for question in file.questions] == ["a", "nq_7"]
        assert file.left_out.n == 5
        for i, message in enumerate(file.left_out.messages, first + 1):
            assert message.startswith(f"{tmp_path / 'q'}, {unit} {i}: ")
        assert f"found 'a' of {unit} {first}" in file.left_out.messages[2]


@pytest.mark.parametrize(
    "text", [f"{GOOD}\n{{'no JSON'\n", "question_id,question\na,Q\nb,Q,more\n"]
)
def test_a_line_that_is_no_record_is_left_out(tmp_path, text):
    """It is one of the bad records, as its next line can be found."""
    (tmp_path / "q").write_text(text)
    file = read_question_file(tmp_path / "q")
    assert [question["question_id"] for question in file.questions] == ["a"]
    assert file.left_out.n == 1


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(NotFoundError, match="none: expected a file of questions"):
        read_questions(tmp_path / "none")
    with pytest.raises(NotFoundError, match="Is a directory"):
        read_questions(tmp_path)
    (tmp_path / "q").write_bytes(b"\xff\xfe\xff")
    with pytest.raises(FormatError, match="expected a file of questions, in UTF-8"):
        read_questions(tmp_path / "q")
