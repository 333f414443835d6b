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
