"""The files of benchmarks as their authors publish them, as records of one spelling. Pure.

`docs/files.md` says what is read of each, and what makes a label. Sources: the READMEs of
github.com/ParticleMedia/RAGTruth, RUCAIBox/HaluEval and sylinrl/TruthfulQA, and of the data sets
Helsinki-NLP/mu-shroom, truthfulqa/truthful_qa and rajpurkar/squad_v2 on the Hugging Face Hub.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from functools import partial

from store.sources.questions.form import SUMMARY, Record, as_list, as_objects, form, own_id
from store.text_records import LineError

__all__ = ["BENCHMARK_QUESTION_NAMES"]

# a span of Mu-SHROOM without hard labels: marked by more than half of the annotators, as there
_MAJORITY = 0.5
# of responses of RAGTruth that break off, or that say that the source has no answer where it has
_UNLABELLED_QUALITIES = ("truncated", "incorrect_refusal")
_YES_NO = {"yes": 1, "no": 0}

# columns of a CSV that hold questions, besides the common ones
BENCHMARK_QUESTION_NAMES = ("model_input", "user_query", "Body", "prompt")


@form(
    "RAGTruth",
    ("source_id", "response", "labels"),
    ("prompt", "source_info"),
    ("{question}", "{question}"),
)
def _ragtruth(record: Record, number: int) -> Iterator[Record]:
    """A response; `source` is what the file of sources has under its source_id.

    Raises LineError for one whose quality makes its labels mean something else.
    """
    if record.get("quality") in _UNLABELLED_QUALITIES:
        raise LineError(
            f"quality: expected a whole answer, found {record['quality']!r}: having no span does "
            "not make it right"
        )
    source = record["source"]
    yield {
        **source,
        **record,
        "source": source.get("source"),
        "question_id": record["source_id"],
        "question": source.get("prompt"),
        "trace_id": record.get("id", number),
        "context": _ragtruth_context(source.get("source_info")),
        "spans": record["labels"],
        "label": None,  # the spans decide
    }


def _ragtruth_context(source_info: object) -> object:
    """The part of the prompt that the response is to keep to, spelled as in the prompt."""
    if not isinstance(source_info, Mapping):
        return source_info
    return source_info["passages"] if "passages" in source_info else str(source_info)


def _halueval(
    name: str, question: str | None, context: str, answer: str, record: Record, number: int
) -> Iterator[Record]:
    """The right and the hallucinated answer under the keys of a task; one asks all the same."""
    right = record[f"right_{answer}"]
    common = {
        **record,
        "question_id": own_id(record, f"halueval_{name}_{number}"),
        "question": "Summarize the document." if question is None else record[question],
        "context": record.get(context),
        "answers": right,
    }
    yield {**common, "response": right, "label": 0}
    yield {**common, "response": record[f"hallucinated_{answer}"], "label": 1}


_DIALOGUE = "{context}\n\n{question}"
form(
    "HaluEval (question answering)",
    ("question", "right_answer", "hallucinated_answer"),
    ("knowledge",),
)(partial(_halueval, "qa", "question", "knowledge", "answer"))
form(
    "HaluEval (dialogue)",
    ("dialogue_history", "right_response", "hallucinated_response"),
    ("knowledge",),
    (f"{_DIALOGUE}\n[Assistant]:", _DIALOGUE),
)(partial(_halueval, "dialogue", "dialogue_history", "knowledge", "response"))
form(
    "HaluEval (summarization)",
    ("document", "right_summary", "hallucinated_summary"),
    templates=SUMMARY,
)(partial(_halueval, "summary", None, "document", "summary"))


@form("HaluEval (general)", ("user_query", "chatgpt_response"), ("ID", "hallucination_label"))
def _halueval_general(record: Record, number: int) -> Iterator[Record]:
    label = record.get("hallucination_label", record.get("hallucination"))
    name = record.get("ID")
    yield {
        **record,
        "question_id": own_id(record, f"halueval_general_{number if name is None else name}"),
        "question": record["user_query"],
        "response": record["chatgpt_response"],
        "label": _YES_NO.get(str(label).strip().lower(), label),
    }


@form("TruthfulQA", ("Question", "Correct Answers", "Incorrect Answers"), ("Best Answer",))
def _truthfulqa_csv(record: Record, number: int) -> Iterator[Record]:
    right = [record.get("Best Answer", ""), *str(record["Correct Answers"]).split(";")]
    wrong = str(record["Incorrect Answers"]).split(";")
    return _truthfulqa(record, number, right, wrong)


@form("TruthfulQA", ("question", "correct_answers", "incorrect_answers"), ("best_answer",))
def _truthfulqa_json(record: Record, number: int) -> Iterator[Record]:
    right = [record.get("best_answer", ""), *as_list(record, "correct_answers")]
    return _truthfulqa(record, number, right, as_list(record, "incorrect_answers"))


@form("TruthfulQA", ("question", "mc2_targets"), ("mc0_targets", "mc1_targets"))
def _truthfulqa_choices(record: Record, number: int) -> Iterator[Record]:
    """All true and false answers: {answer: 1 or 0}, or lists of choices and labels on the Hub."""
    targets = record["mc2_targets"]
    if not isinstance(targets, Mapping):
        raise LineError(f"mc2_targets: expected an object, found {targets!r:.200}")
    pairs = list(targets.items())
    if {"choices", "labels"} <= targets.keys():
        choices = as_list(targets, "choices")
        labels = as_list(targets, "labels")
        if len(choices) != len(labels):
            raise LineError(
                f"mc2_targets: expected {len(choices)} labels as choices, found {len(labels)}"
            )
        pairs = list(zip(choices, labels, strict=True))
    right = [answer for answer, is_true in pairs if is_true == 1]
    wrong = [answer for answer, is_true in pairs if is_true != 1]
    return _truthfulqa(record, number, right, wrong)


def _truthfulqa(
    record: Record, number: int, right: Iterable[object], wrong: Iterable[object]
) -> Iterator[Record]:
    asked = {
        **record,
        "question_id": own_id(record, f"truthfulqa_{number}"),
        "question": record.get("question", record.get("Question")),
        "answers": _distinct(right),
    }
    for label, answers in enumerate((asked["answers"], _distinct(wrong))):
        for answer in answers:
            yield {**asked, "response": answer, "label": label}


def _distinct(answers: Iterable[object]) -> list[str]:
    stripped = (str(answer).strip() for answer in answers)
    return [answer for answer in dict.fromkeys(stripped) if answer]


@form(
    "Mu-SHROOM",
    ("model_input", "model_output_text"),
    ("hard_labels", "soft_labels", "model_output_tokens", "model_output_logits"),
)
def _mu_shroom(record: Record, number: int) -> Iterator[Record]:
    yield {
        **record,
        "question_id": own_id(record, _mu_shroom_id(record["model_input"])),
        "trace_id": record.get("trace_id", record.get("id")),
        "question": record["model_input"],
        "response": record["model_output_text"],
        "spans": _mu_shroom_spans(record),
    }


def _mu_shroom_id(model_input: object) -> str:
    """One id for all outputs to an input: ids there are of outputs."""
    digest = hashlib.sha256(str(model_input).encode(errors="surrogatepass")).hexdigest()
    return f"mu_shroom_{digest[:16]}"


def _mu_shroom_spans(record: Record) -> object:
    """The hard labels, or what a majority marked; None for a record without annotations."""
    if record.get("hard_labels") is not None:
        return record["hard_labels"]
    soft = record.get("soft_labels")
    if soft is None:
        return None
    are_objects = isinstance(soft, list) and all(isinstance(span, Mapping) for span in soft)
    if not are_objects or not all(isinstance(span.get("prob"), int | float) for span in soft):
        raise LineError(f"soft_labels: expected objects with a prob, found {soft!r:.200}")
    return [span for span in soft if span["prob"] > _MAJORITY]


@form("SQuAD", ("paragraphs",), ("plausible_answers",))
def _squad(record: Record, number: int) -> Iterator[Record]:
    for paragraph in as_objects(record, "paragraphs"):
        for asked in as_objects(paragraph, "qas"):
            is_impossible = asked.get("is_impossible") is True
            found = [] if is_impossible else as_objects(asked, "answers")
            yield {
                **asked,
                "title": record.get("title"),
                "context": paragraph.get("context"),
                "answers": [answer.get("text") for answer in found],
            }
