"""Further data sets as their authors publish them; see `docs/files.md`. Pure.

Sources: hotpotqa.github.io, stanfordnlp.github.io/coqa, the repositories openai/grade-school-math,
openai/human-eval, arkilpatel/SVAMP, EdinburghNLP/XSum, facebookresearch/belebele, abhika-m/FAVA and
Nellie179/Hallucination-Detection (OpenHalDet) of GitHub, and the data sets s-nlp/PsiloQA,
F4biian/RAGognize, obalcells/longfact-annotations and fava-uw/fava-data of the Hugging Face Hub.
"""

import re
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from store.sources.questions.form import SUMMARY, Record, as_list, as_objects, form, own_id
from store.sources.questions.question import check_text
from store.text_records import LineError

_SUMMARIZE = "Summarize the document in one sentence."
_FINAL = re.compile(r"\n?####\s*(\S.*)\s*$")  # of a solution of GSM8K
_KINDS = "entity|relation|contradictory|sentence|subjective|unverifiable|invented|mark|delete"
_TAG = re.compile(f"</?({_KINDS})>")
# a correction stands beside what it replaces; which of the two tags it has, the output tells
_CORRECTIONS = [re.compile(f"<{tag}>.*?</{tag}>", re.DOTALL) for tag in ("mark", "delete")]
_WRONG = {"not supported": True, "insufficient information": True, "supported": False}
_SAMPLE = re.compile(r"(.+)_[a-z]+_[0-9]+")  # DATASET_SPLIT_NUMBER, of OpenHalDet
_JUDGED = ("eval_category", "eval_reasoning")
_VERDICTS = {"correct": 0, "hallucination": 1, "abstention": -1, None: None}


def _renamed(ids: str, names: Mapping[str, str], record: Record, number: int) -> Iterator[Record]:
    """One record under our names; without an id of its own it is called `IDS_<number>`."""
    found = {ours: record.get(theirs) for ours, theirs in names.items()}
    yield {**record, "question_id": own_id(record, f"{ids}_{number}", ("id", "_id", "ID")), **found}


@form("HotpotQA", ("question", "supporting_facts", "context"), ("_id",))
def _hotpotqa(record: Record, number: int) -> Iterator[Record]:
    context = record["context"]
    if isinstance(context, Mapping):  # on the Hub
        context = list(zip(as_list(context, "title"), as_list(context, "sentences"), strict=False))
    passages = [f"{title}\n{''.join(sentences)}" for title, sentences in context]
    yield from _renamed("hotpotqa", {}, {**record, "context": passages}, number)


@form(
    "CoQA",
    ("story", "questions", "answers"),
    ("additional_answers", "name"),
    ("{context}\n\n{question}\nAnswer:", None),
)
def _coqa(record: Record, number: int) -> Iterator[Record]:
    """Each turn, with the turns before it in its question."""
    story_id = own_id(record, f"coqa_{number}", ("id",))
    questions = [_turn(one) for one in as_list(record, "questions")]
    answers = _answers_of(record["answers"])
    others = [_answers_of(one) for one in (record.get("additional_answers") or {}).values()]
    turns = ""
    for i, (question, answer) in enumerate(zip(questions, answers, strict=False)):
        yield {
            **record,
            "question_id": f"{story_id}_{i + 1}",
            "question": f"{turns}{question}",
            "answers": list(dict.fromkeys([answer, *(one[i] for one in others if i < len(one))])),
            "context": record["story"],
            "turn": i + 1,
        }
        turns += f"{question} {answer}\n"


def _answers_of(answers: Any) -> list[str]:
    """A list of objects, as published, or an object of lists, as on the Hub."""
    return list(answers["input_text"]) if isinstance(answers, Mapping) else [*map(_turn, answers)]


def _turn(one: Any) -> str:
    return str(one["input_text"] if isinstance(one, Mapping) else one).strip()


def _is_gsm8k(record: Record) -> bool:
    return isinstance(record["answer"], str) and _FINAL.search(record["answer"]) is not None


@form("GSM8K", ("question", "answer"), matches=_is_gsm8k)
def _gsm8k(record: Record, number: int) -> Iterator[Record]:
    """The number behind the solution, with and without its commas."""
    found = _FINAL.search(record["answer"])
    final = found[1].strip() if found else ""
    answers = list(dict.fromkeys([final.replace(",", ""), final]))
    yield from _renamed("gsm8k", {}, {**record, "answers": answers}, number)


@form("SVAMP", ("Body", "Question", "Answer"), ("ID",))
def _svamp(record: Record, number: int) -> Iterator[Record]:
    body = check_text("Body", record["Body"]).strip()
    question = check_text("Question", record["Question"])
    joined = f"{body if body.endswith(('.', '?', '!')) else body + '.'} {question}"
    answers = [str(record["Answer"]).removesuffix(".0")]
    yield from _renamed("svamp", {}, {**record, "question": joined, "answers": answers}, number)


form(
    "HumanEval",
    ("task_id", "prompt", "test"),
    ("canonical_solution",),
    ("{question}", "{question}"),
)(partial(_renamed, "humaneval", {"question_id": "task_id", "question": "prompt"}))


@form("XSum", ("document", "summary"), templates=SUMMARY)
def _xsum(record: Record, number: int) -> Iterator[Record]:
    names = {"context": "document", "answers": "summary"}
    yield from _renamed("xsum", names, {**record, "question": _SUMMARIZE}, number)


@form("Belebele", ("flores_passage", "question", "correct_answer_num"))
def _belebele(record: Record, number: int) -> Iterator[Record]:
    right = record.get(f"mc_answer{record['correct_answer_num']}")
    place = f"{record.get('link', number)}#{record.get('question_number', '')}"
    of_passage = (record.get("dialect", "belebele"), record.get("split"), place)  # older files
    yield {
        **record,
        "question_id": " ".join(filter(None, of_passage))[:200],
        "answers": [right],
        "context": record["flores_passage"],
    }


_PSILOQA = {
    "answers": "golden_answer",
    "context": "wiki_passage",
    "response": "llm_answer",
    "spans": "labels",
}
form("PsiloQA", ("llm_answer", "golden_answer", "wiki_passage"), ("labels", "annotated_span"))(
    partial(_renamed, "psiloqa", _PSILOQA)
)


@form("RAGognize", ("user_prompt", "documents", "responses"), ("documents_str",))
def _ragognize(record: Record, number: int) -> Iterator[Record]:
    """The response of each model; the golden answer counts as right.

    A prompt is there twice, with documents that have its answer, and with others.
    """
    responses = record["responses"]
    question_id = f"ragognize_{record.get('user_prompt_index', number)}"
    question_id += "_unanswerable" if record.get("answerable") is False else ""
    golden = responses.get("golden_answer")
    passages = [one["text"] for one in as_objects(record, "documents")]
    for model, response in responses.items():
        if not isinstance(response, Mapping):
            continue
        yield {
            **record,
            "question_id": question_id,
            "trace_id": f"{question_id} {model}",
            "question": record["user_prompt"],
            "answers": golden,
            "context": passages,
            "response": response.get("text") or response.get("output"),
            "spans": [
                span
                for span in as_objects(response, "hallucinations")
                if span.get("valid") is not False
            ],
            "model": model,
        }


@form("LongFact", ("conversation", "annotations"), ("canary",))
def _longfact(record: Record, number: int) -> Iterator[Record]:
    """The last turn; annotations without a place, or without a verdict, are no spans."""
    turns = as_objects(record, "conversation")
    if len(turns) < 2 or turns[-1].get("role") != "assistant":
        raise LineError("conversation: expected a question and an answer at its end")
    spans = [
        {"start": one["index"], "end": one["index"] + len(one["span"]), "text": one["span"]}
        for one in as_objects(record, "annotations")
        if one.get("index") is not None and _WRONG.get(str(one.get("label")).lower())
    ]
    yield {
        **record,
        "question_id": own_id(record, f"longfact_{number}", ("id",)),
        "question": turns[-2].get("content"),
        "response": turns[-1].get("content"),
        "spans": spans,
    }


@form("FAVA", ("annotated", "output"), ("prompt",))
def _fava(record: Record, number: int) -> Iterator[Record]:
    """The tags stand around what is wrong in the output; corrections are no part of it.

    What is missing has a tag without any of the output's text. Raises LineError where the text
    without tags is not the output.
    """
    found = (_untagged(one.sub("", str(record["annotated"]))) for one in _CORRECTIONS)
    expected = str(record["output"]).split()
    text, spans = next((one for one in found if one[0].split() == expected), ("", []))
    if not text:
        raise LineError("annotated: expected the output with tags, found another text")
    yield {
        **record,
        "question_id": own_id(record, f"fava_{number}", ("id",)),
        "question": record.get("prompt"),
        "response": text,
        "spans": spans,
        "label": int(_TAG.search(record["annotated"]) is not None),
    }


def _untagged(text: str) -> tuple[str, list[dict[str, Any]]]:
    """A text without its tags, and the outermost of them as spans; raises LineError."""
    plain, position, depth, start, label = "", 0, 0, 0, ""
    spans: list[dict[str, Any]] = []
    for tag in _TAG.finditer(text):
        plain += text[position : tag.start()]
        position = tag.end()
        is_end = tag[0].startswith("</")
        if not is_end and depth == 0:
            start, label = len(plain), tag[1]
        depth += -1 if is_end else 1
        if is_end and depth == 0 and start < len(plain):
            spans.append({"start": start, "end": len(plain), "label": label})
    if depth:
        raise LineError(f"annotated: expected tags that end, found one that does not: {label}")
    return plain + text[position:], spans


@form(
    "OpenHalDet",
    ("sample_id", "structured_data", "model_output_text"),
    ("prompt", "original_doc", "h5_file_reference", "ground_truths", "choices", *_JUDGED),
)
def _openhaldet(record: Record, number: int) -> Iterator[Record]:
    """What a model has answered; a refusal is neither right nor wrong.

    Raises LineError for another verdict.
    """
    asked = record["structured_data"]
    verdict = record.get("eval_category")
    if verdict not in _VERDICTS:
        raise LineError(f"eval_category: expected one of {[*_VERDICTS]}, found {verdict!r:.80}")
    choices = [f"{letter}. {choice}" for letter, choice in (asked.get("choices") or {}).items()]
    named = _SAMPLE.fullmatch(record["sample_id"])
    yield {
        **record,
        **asked,
        "dataset": named[1] if named else None,
        "question_id": record["sample_id"],
        "question": "\n".join([check_text("question", asked.get("question")), *choices]),
        "answers": asked.get("ground_truths"),
        "response": record.get("model_output_text"),
        "label": _VERDICTS[verdict],
    }
