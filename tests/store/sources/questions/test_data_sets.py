"""Files of benchmarks, in the forms in which their authors publish them."""

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from store.errors import FormatError, NotFoundError, StoreError
from store.sources.questions import read_question_file, read_questions, without_responses


def write_lines(path, *records):
    path.write_text("\n".join(map(json.dumps, records)))
    return path


def short(question):
    """What a trace is: its id, its question's, its response and its label."""
    keys = ("trace_id", "question_id", "question", "response", "label")
    return tuple(question.get(key) for key in keys)


PASSAGES = "passage 1:Peel the beets.\n\npassage 2:Boil them.\n\n"
BUSINESS = {"name": "Subway", "hours": {"Monday": "9:0-22:30"}, "parking": None}
SOURCES = [
    {
        "source_id": "14312",
        "task_type": "QA",
        "source": "MARCO",
        "source_info": {"question": "how to prepare beets", "passages": PASSAGES},
        "prompt": f"Answer:\nhow to prepare beets\nfrom the passages:\n{PASSAGES}output:",
    },
    {
        "source_id": "13661",
        "task_type": "Data2txt",
        "source": "Yelp",
        "source_info": BUSINESS,
        "prompt": f"Write an overview. Structured data:\n{BUSINESS}\nOverview:",
    },
    {
        "source_id": "11316",
        "task_type": "Summary",
        "source": "CNN/DM",
        "source_info": "The court has a member.",
        "prompt": "Summarize:\nThe court has a member.\noutput:",
    },
]
COMMON = {"model": "mistral-7B-instruct", "temperature": 0.9, "split": "train", "quality": "good"}
RESPONSES = [
    {
        "id": "1472",
        "source_id": "11316",
        "labels": [
            {
                "start": 4,
                "end": 14,
                "text": "Gaza Strip",
                "meta": "HIGH INTRO",
                "label_type": "Evident Baseless Info",
                "implicit_true": False,
                "due_to_null": False,
            }
        ],
        "response": "The Gaza Strip joined.",
        **COMMON,
    },
    {"id": "1473", "source_id": "11316", "labels": [], "response": "It joined.", **COMMON},
    {"id": "1", "source_id": "14312", "labels": [], "response": "Boil.", **COMMON},
    {"id": "2", "source_id": "13661", "labels": [], "response": "A shop.", **COMMON},
]


@pytest.fixture
def ragtruth(tmp_path):
    write_lines(tmp_path / "source_info.jsonl", *SOURCES)
    return write_lines(tmp_path / "response.jsonl", *RESPONSES)


def test_ragtruth(ragtruth):
    """Responses are joined with the sources beside them; a span makes a hallucination; the six
    responses to a source are one question; the context is a part of the prompt."""
    file = read_question_file(ragtruth, ["task_type", "source"])
    prompt = SOURCES[2]["prompt"]
    assert [short(question) for question in file.questions[:2]] == [
        ("1472", "11316", prompt, "The Gaza Strip joined.", 1),
        ("1473", "11316", prompt, "It joined.", 0),
    ]
    assert file.questions[0]["spans"] == [{"start": 4, "end": 14, "label": "Evident Baseless Info"}]
    assert file.questions[0]["fields"] == {
        "task_type": "Summary",
        "source": "CNN/DM",
        "model": "mistral-7B-instruct",
        "temperature": 0.9,
        "split": "train",
        "quality": "good",
    }
    contexts = [question["context"] for question in file.questions[1:]]
    assert contexts == ["The court has a member.", PASSAGES, str(BUSINESS)]
    assert all(question["context"] in question["question"] for question in file.questions)
    assert file.form.template == "{question}"
    asked = without_responses(file.questions)
    assert len(asked) == 3
    assert "model" not in asked[0]["fields"]  # which no longer answers


def test_responses_of_ragtruth_that_are_no_answers_are_left_out(ragtruth):
    """A refusal has no span and is not right; nor is what breaks off."""
    qualities = ["good", "incorrect_refusal", "truncated"]
    responses = [
        {**RESPONSES[2], "id": str(i), "quality": quality} for i, quality in enumerate(qualities)
    ]
    bare = {key: value for key, value in RESPONSES[2].items() if key not in ("id", "quality")}
    file = read_question_file(write_lines(ragtruth, *responses, {**bare, "id": "3"}))
    assert [question["trace_id"] for question in file.questions] == ["0", "3"]
    assert file.left_out.n == 2
    assert (
        "line 2: quality: expected a whole answer, found 'incorrect_refusal'"
        in (file.left_out.messages[0])
    )
    assert (
        "line 3: quality: expected a whole answer, found 'truncated'" in (file.left_out.messages[1])
    )


def test_ragtruth_without_its_sources(ragtruth):
    """The file that is missing is named; a response without its source is left out."""
    write_lines(ragtruth.with_name("source_info.jsonl"), *SOURCES[:2])
    file = read_question_file(ragtruth)
    assert len(file.questions) == 2
    assert "response.jsonl, line 1: source_id: expected one of " in file.left_out.messages[0]
    ragtruth.with_name("source_info.jsonl").write_text("[]\n3\n")
    with pytest.raises(FormatError, match=r"source_info\.jsonl, line 1: expected an object"):
        read_question_file(ragtruth)
    ragtruth.with_name("source_info.jsonl").unlink()
    with pytest.raises(NotFoundError, match=r"source_info\.jsonl: expected RAGTruth's file"):
        read_question_file(ragtruth)


TRUTHFUL_FIELDS = {"Type": "Adversarial", "Category": "Law", "Source": "https://x"}


@pytest.mark.parametrize(
    "record, name, question, context",
    [
        (
            {"knowledge": "k", "question": "Q?", "right_answer": "r", "hallucinated_answer": "h"},
            "halueval_qa",
            "Q?",
            "k",
        ),
        (
            {
                "knowledge": "k",
                "dialogue_history": "[Human]: Hi",
                "right_response": "r",
                "hallucinated_response": "h",
            },
            "halueval_dialogue",
            "[Human]: Hi",
            "k",
        ),
        (
            {"document": "d", "right_summary": "r", "hallucinated_summary": "h"},
            "halueval_summary",
            "Summarize the document.",
            "d",
        ),
    ],
)
def test_halueval(tmp_path, record, name, question, context):
    """Each record is two traces of one question: the right answer and the hallucinated one."""
    found = read_questions(write_lines(tmp_path / "data.json", record, record))
    assert [short(one) for one in found] == [
        (f"{name}_1", f"{name}_1", question, "r", 0),
        (f"{name}_1#2", f"{name}_1", question, "h", 1),
        (f"{name}_2", f"{name}_2", question, "r", 0),
        (f"{name}_2#2", f"{name}_2", question, "h", 1),
    ]
    assert {one["context"] for one in found} == {context}
    assert all(one["answers"] == ["r"] for one in found)


def test_half_a_record_of_halueval_is_left_out_alone(tmp_path):
    """The other half stays."""
    record = {"knowledge": "k", "question": "Q", "right_answer": "r", "hallucinated_answer": ""}
    file = read_question_file(write_lines(tmp_path / "data.json", record))
    assert [question["response"] for question in file.questions] == ["r"]
    assert file.left_out.n == 1


def test_halueval_general(tmp_path):
    """People said yes or no to a response of ChatGPT's."""
    records = [
        {"ID": "1", "user_query": "Q", "chatgpt_response": "R", "hallucination_label": "no"},
        {"ID": "2", "user_query": "Q", "chatgpt_response": "S", "hallucination_label": "yes"},
        {"ID": "3", "user_query": "Q", "chatgpt_response": "T", "hallucination_label": "perhaps"},
    ]
    file = read_question_file(write_lines(tmp_path / "general_data.json", *records))
    assert [short(question) for question in file.questions] == [
        ("halueval_general_1", "halueval_general_1", "Q", "R", 0),
        ("halueval_general_2", "halueval_general_2", "Q", "S", 1),
    ]
    assert "line 3: label: expected 1" in file.left_out.messages[0]


TRUTHFUL = [
    ("truthfulqa_1", "truthfulqa_1", "What if?", "Nothing", 0),
    ("truthfulqa_1#2", "truthfulqa_1", "What if?", "No thing", 0),
    ("truthfulqa_1#3", "truthfulqa_1", "What if?", "You die", 1),
    ("truthfulqa_1#4", "truthfulqa_1", "What if?", "You live", 1),
]


@pytest.mark.parametrize(
    "text",
    [
        "Type,Category,Question,Best Answer,Correct Answers,Incorrect Answers,Source\n"
        "Adversarial,Law,What if?,Nothing,Nothing; No thing;,You die; You live,https://x\n",
        json.dumps(
            [
                {
                    "question": "What if?",
                    "best_answer": "Nothing",
                    "correct_answers": ["Nothing", "No thing"],
                    "incorrect_answers": ["You die", "You live"],
                }
            ]
        ),
        json.dumps(
            [
                {
                    "question": "What if?",
                    "mc1_targets": {"Nothing": 1, "You die": 0},
                    "mc2_targets": {"Nothing": 1, "You die": 0, "No thing": 1, "You live": 0},
                }
            ]
        ),
        json.dumps(
            {
                "question": "What if?",
                "mc1_targets": {"choices": ["Nothing", "You die"], "labels": [1, 0]},
                "mc2_targets": {
                    "choices": ["Nothing", "You die", "No thing", "You live"],
                    "labels": [1, 0, 1, 0],
                },
            }
        ),
    ],
    ids=["csv", "generation", "mc_task.json", "multiple choice on the Hub"],
)
def test_truthfulqa(tmp_path, text):
    """Every correct answer is a right trace, every incorrect one a hallucination."""
    (tmp_path / "q").write_text(text)
    found = read_questions(tmp_path / "q")
    assert [short(question) for question in found] == TRUTHFUL
    (asked,) = without_responses(found)
    assert asked.pop("fields", TRUTHFUL_FIELDS) == TRUTHFUL_FIELDS
    assert asked == {
        "question_id": "truthfulqa_1",
        "question": "What if?",
        "answers": ["Nothing", "No thing"],
    }


def test_mu_shroom(tmp_path):
    """Hard labels are spans; without them those of more than half of the annotators; a record of
    the unlabelled part has neither spans nor a label."""
    common = {
        "lang": "EN",
        "model_input": "Who?",
        "model_output_text": "Él, Petra",
        "model_id": "m",
    }
    soft = [{"start": 0, "prob": 0.3, "end": 2}, {"start": 4, "prob": 0.7, "end": 9}]
    records = [
        {**common, "id": "val-en-1", "hard_labels": [[4, 9]], "soft_labels": soft},
        {**common, "id": "val-en-2", "hard_labels": [], "soft_labels": soft[:1]},
        {**common, "id": "val-en-3", "soft_labels": soft},
        {**common, "id": "train-en-4"},
        {**common, "id": "val-en-5", "hard_labels": [[4, 99]]},
        {**common, "id": "val-en-6", "soft_labels": [{"start": 0}]},
    ]
    file = read_question_file(write_lines(tmp_path / "mushroom.en-val.v2.jsonl", *records))
    assert [question.get("label") for question in file.questions] == [1, 0, 1, None]
    spans = [question.get("spans") for question in file.questions]
    marked = [{"start": 4, "end": 9, "label": ""}]
    assert spans == [marked, [], marked, None]
    assert [question["trace_id"] for question in file.questions] == [
        "val-en-1",
        "val-en-2",
        "val-en-3",
        "train-en-4",
    ]
    assert file.left_out.n == 2


def test_outputs_of_mu_shroom_to_one_input_are_one_question(tmp_path):
    """So that they stay in one split; ids are of outputs, and so of traces."""
    inputs = ["Who?", "Where?", "Who?"]
    records = [
        {"id": f"tst-en-{i}", "model_input": text, "model_output_text": "x"}
        for i, text in enumerate(inputs)
    ]
    found = read_questions(write_lines(tmp_path / "q", *records))
    ids = [question["question_id"] for question in found]
    assert ids[0] == ids[2] != ids[1]
    assert [question["trace_id"] for question in found] == ["tst-en-0", "tst-en-1", "tst-en-2"]
    assert len(without_responses(found)) == 2
    nameless = [{**record, "id": None} for record in records]
    found = read_questions(write_lines(tmp_path / "q", *nameless))
    assert [question["trace_id"] for question in found] == [ids[0], ids[1], f"{ids[0]}#2"]


@pytest.mark.parametrize(
    "record",
    [
        {"question": "Q", "right_answer": "r", "hallucinated_answer": "h"},
        {"dialogue_history": "Q", "right_response": "r", "hallucinated_response": "h"},
        {"document": "Q", "right_summary": "r", "hallucinated_summary": "h"},
        {"ID": "1", "user_query": "Q", "chatgpt_response": "r", "hallucination": "no"},
        {"question": "Q", "correct_answers": ["r"], "incorrect_answers": ["h"]},
        {"question": "Q", "mc2_targets": {"r": 1, "h": 0}},
        {"model_input": "Q", "model_output_text": "r"},
    ],
)
def test_a_record_keeps_its_own_question_id(tmp_path, record):
    """Records of one question_id are one question; an empty id is none."""
    records = [{**record, "question_id": name} for name in ("mine", "mine", "")]
    found = read_questions(write_lines(tmp_path / "q", *records))
    *of_mine, other = dict.fromkeys(question["question_id"] for question in found)
    assert of_mine == ["mine"]
    assert other.startswith(("halueval_", "truthfulqa_3", "mu_shroom_"))


def squad(version):
    return {
        "version": version,
        "data": [
            {
                "title": "Normans",
                "paragraphs": [
                    {
                        "context": "The Normans lived.",
                        "qas": [
                            {
                                "id": "56d",
                                "question": "Who?",
                                "answers": [{"text": "Normans", "answer_start": 4}] * 2,
                                "is_impossible": False,
                            },
                            {
                                "id": "57d",
                                "question": "Where?",
                                "answers": [],
                                "plausible_answers": [{"text": "x", "answer_start": 0}],
                                "is_impossible": True,
                            },
                        ],
                    }
                ],
            }
        ],
    }


@pytest.mark.parametrize("indent", [None, 2])
def test_squad(tmp_path, indent):
    """Questions with a context, to be asked; an impossible one has no answer that counts."""
    (tmp_path / "q").write_text(json.dumps(squad("v2.0"), indent=indent))
    assert read_questions(tmp_path / "q") == [
        {
            "question_id": "56d",
            "question": "Who?",
            "answers": ["Normans"],
            "context": "The Normans lived.",
            "fields": {"is_impossible": False, "title": "Normans"},
        },
        {
            "question_id": "57d",
            "question": "Where?",
            "answers": [],
            "context": "The Normans lived.",
            "fields": {"is_impossible": True, "title": "Normans"},
        },
    ]


def test_squad_of_the_hub(tmp_path):
    """One question a line."""
    record = {
        "id": "56d",
        "title": "Normans",
        "context": "The Normans lived.",
        "question": "Who?",
        "answers": {"text": ["Normans"], "answer_start": [4]},
    }
    [question] = read_questions(write_lines(tmp_path / "q", record))
    assert (question["question_id"], question["answers"]) == ("56d", ["Normans"])


@pytest.mark.parametrize(
    "record, message",
    [
        ({"paragraphs": 3}, "paragraphs: expected a list, found 3"),
        ({"paragraphs": [3]}, r"paragraphs: expected a list of objects, found \[3\]"),
        ({"question": "Q", "mc2_targets": 3}, "mc2_targets: expected an object, found 3"),
        (
            {"question": "Q", "correct_answers": 3, "incorrect_answers": []},
            "correct_answers: expected a list, found 3",
        ),
        (
            {"question": "Q", "choices": ["a", "b"], "answer": 2},
            "answer: expected the index of one of .* found 2",
        ),
        ({"question": "Q", "possible_answers": "a"}, "expected a record of PopQA as published"),
    ],
)
def test_malformed_benchmarks_name_their_line(tmp_path, record, message):
    with pytest.raises(FormatError, match=f"q, line 1: {message}"):
        read_questions(write_lines(tmp_path / "q", record))


KEYS = [
    ["source_id", "response", "labels", "id"],
    ["knowledge", "question", "right_answer", "hallucinated_answer"],
    ["document", "right_summary", "hallucinated_summary"],
    ["user_query", "chatgpt_response", "hallucination_label"],
    ["question", "best_answer", "correct_answers", "incorrect_answers"],
    ["question", "mc2_targets"],
    ["model_input", "model_output_text", "hard_labels", "soft_labels", "id"],
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


@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(RECORDS, min_size=1, max_size=3))
def test_whatever_a_record_holds_is_read_or_named(ragtruth, records):
    """Never another exception; what is read has the types of a question."""
    write_lines(ragtruth, *records)
    try:
        file = read_question_file(ragtruth)
    except StoreError as error:
        if str(ragtruth) not in str(error):
            raise
        return
    for question in file.questions:
        assert question["question"].strip()
        assert question.get("label", 0) in (-1, 0, 1)
        for span in question.get("spans", []):
            assert 0 <= span["start"] < span["end"] <= len(question["response"])
    assert all(str(ragtruth) in message for message in file.left_out.messages)
