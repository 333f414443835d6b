"""The files of data sets as their authors publish them, as records of one spelling. Pure.

`docs/files.md` says what is read of each, and what makes a label. Sources: the READMEs of
ParticleMedia/RAGTruth, RUCAIBox/HaluEval, sylinrl/TruthfulQA, openai/grade-school-math,
openai/human-eval, arkilpatel/SVAMP, EdinburghNLP/XSum, facebookresearch/belebele, abhika-m/FAVA and
Nellie179/Hallucination-Detection (OpenHalDet) on GitHub; of the data sets Helsinki-NLP/mu-shroom,
truthfulqa/truthful_qa, rajpurkar/squad_v2, akariasai/PopQA, cais/mmlu, s-nlp/PsiloQA,
F4biian/RAGognize, obalcells/longfact-annotations and fava-uw/fava-data on the Hugging Face Hub;
hotpotqa.github.io and stanfordnlp.github.io/coqa.
"""

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from store.sources.questions.question import check_text, find_first
from store.text_records import LineError, parse_json

__all__ = ["DATA_SETS", "DATA_SET_QUESTION_NAMES", "Form", "Record", "find_form"]

Record = Mapping[str, Any]
Spell = Callable[[Record, int], Iterable[Record]]
# templates of a summary to be written, without and with a chat template
SUMMARY = ("{context}\n\n{question}\nSummary:", "{question}\n\n{context}")
# of questions; `id` may be that of a response
_OWN_ID_NAMES = ("question_id", "QuestionId")
_IDS = ("id", "_id", "ID")  # names of the id of a record that is one question
# of responses of RAGTruth that break off, or that say that the source has no answer where it has
_UNLABELLED_QUALITIES = ("truncated", "incorrect_refusal")

# columns of a CSV that hold questions, besides the common ones
DATA_SET_QUESTION_NAMES = ("model_input", "Body", "prompt")
_FINAL = re.compile(r"\n?####\s*(\S.*)\s*$")  # of a solution of GSM8K
_KINDS = "entity|relation|contradictory|sentence|subjective|unverifiable|invented|mark|delete"
_TAG = re.compile(f"</?({_KINDS})>")
# a correction stands beside what it replaces; which of the two tags it has, the output tells
_CORRECTIONS = [re.compile(f"<{tag}>.*?</{tag}>", re.DOTALL) for tag in ("mark", "delete")]
_WRONG = {"not supported": True, "insufficient information": True, "supported": False}
_SAMPLE = re.compile(r"(.+)_[a-z]+_[0-9]+")  # DATASET_SPLIT_NUMBER, of OpenHalDet
_JUDGED = ("eval_category", "eval_reasoning")
_VERDICTS = {"correct": 0, "hallucination": 1, "abstention": -1, None: None}


# what a value of another type than the data set's own raises
_NOT_AS_PUBLISHED = (AttributeError, LookupError, RecursionError, TypeError, ValueError)


class Form(NamedTuple):
    """How a data set writes its records."""

    name: str  # of the data set
    keys: frozenset[str]  # a record that has all of these keys is one of it
    further: frozenset[str]  # keys beside those that are no fields either
    # the prompt template by default, without and with a chat template; None: the usual one
    template: str | None
    chat_template: str | None
    matches: Callable[[Record], bool]  # what a record must be besides
    ids: str  # a record without an id is called `IDS_<number>`
    # the record and its number, from 1 -> what is spelled otherwise than in it, of each answer
    spell: Spell

    def fits(self, record: Record) -> bool:
        return self.keys <= record.keys() and self.matches(record)

    @property
    def used(self) -> frozenset[str]:
        """What a record says in another spelling, and is no field of its own."""
        return self.keys | self.further

    def expand(self, record: Record, number: int) -> Iterator[Record]:
        """Yield the records of one spelling; raises LineError for one that is not as published."""
        question_id = own_id(record, f"{self.ids}_{number}")
        try:
            for spelled in self.spell(record, number):
                yield {**record, "question_id": question_id, **spelled}
        except _NOT_AS_PUBLISHED as error:
            raise LineError(
                f"expected a record of {self.name} as published, found: {error}"
            ) from error


_FORMS: list[Form] = []  # each that `form` has added, in the order in which they are tried


def form(
    name: str,
    keys: Sequence[str],
    further: Sequence[str] = (),
    templates: tuple[str | None, str | None] = (None, None),
    matches: Callable[[Record], bool] = lambda _: True,
    ids: str | None = None,
) -> Callable[[Spell], Spell]:
    """A decorator: add a form; its ids begin with the name of the data set by default.

    The function may raise what a value of another type than the data set's own makes it.
    """

    def add(spell: Spell) -> Spell:
        known = frozenset(keys), frozenset(further)
        _FORMS.append(Form(name, *known, *templates, matches, ids or name.lower(), spell))
        return spell

    return add


def find_form(record: object) -> Form | None:
    """The form of a record; None if it has none of a data set."""
    if not isinstance(record, Mapping):
        return None
    return next((one for one in _FORMS if one.fits(record)), None)


def own_id(record: Record, otherwise: object, names: Sequence[str] = _IDS) -> object:
    """The question_id that a record has, or what it has under one of these names."""
    own = find_first(record, (*_OWN_ID_NAMES, *names))
    return otherwise if own is None or own == "" else own


def _renamed(names: Mapping[str, str], record: Record, number: int) -> Iterator[Record]:
    """Values under our names, each with theirs."""
    yield {ours: record.get(theirs) for ours, theirs in names.items()}


def as_objects(record: Record, name: str) -> list[Record]:
    values = as_list(record, name)
    if not all(isinstance(value, Mapping) for value in values):
        raise LineError(f"{name}: expected a list of objects, found {values!r:.200}")
    return values


def as_list(record: Record, name: str) -> list[Any]:
    value = record.get(name, [])
    if not isinstance(value, list):
        raise LineError(f"{name}: expected a list, found {value!r:.200}")
    return value


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
    question: str | None, context: str, answer: str, record: Record, number: int
) -> Iterator[Record]:
    """The right and the hallucinated answer under the keys of a task; one asks all the same."""
    right = record[f"right_{answer}"]
    common = {
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
    ids="halueval_qa",
)(partial(_halueval, "question", "knowledge", "answer"))
form(
    "HaluEval (dialogue)",
    ("dialogue_history", "right_response", "hallucinated_response"),
    ("knowledge",),
    (f"{_DIALOGUE}\n[Assistant]:", _DIALOGUE),
    ids="halueval_dialogue",
)(partial(_halueval, "dialogue_history", "knowledge", "response"))
form(
    "HaluEval (summarization)",
    ("document", "right_summary", "hallucinated_summary"),
    templates=SUMMARY,
    ids="halueval_summary",
)(partial(_halueval, None, "document", "summary"))


@form(
    "TruthfulQA",
    ("Question", "Correct Answers", "Incorrect Answers"),
    ("Best Answer",),
    ids="truthfulqa",
)
def _truthfulqa_csv(record: Record, number: int) -> Iterator[Record]:
    right = [record.get("Best Answer", ""), *str(record["Correct Answers"]).split(";")]
    wrong = str(record["Incorrect Answers"]).split(";")
    return _truthfulqa(record["Question"], right, wrong)


@form(
    "TruthfulQA",
    ("question", "correct_answers", "incorrect_answers"),
    ("best_answer",),
    ids="truthfulqa",
)
def _truthfulqa_json(record: Record, number: int) -> Iterator[Record]:
    right = [record.get("best_answer", ""), *as_list(record, "correct_answers")]
    return _truthfulqa(record["question"], right, as_list(record, "incorrect_answers"))


def _truthfulqa(
    question: object, right: Iterable[object], wrong: Iterable[object]
) -> Iterator[Record]:
    answers = _distinct(right)
    for label, responses in enumerate((answers, _distinct(wrong))):
        for response in responses:
            yield {"question": question, "answers": answers, "response": response, "label": label}


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
        "question_id": own_id(record, _mu_shroom_id(record["model_input"]), ()),
        "trace_id": record.get("trace_id", record.get("id")),
        "question": record["model_input"],
        "response": record["model_output_text"],
        "spans": record.get("hard_labels"),
    }


def _mu_shroom_id(model_input: object) -> str:
    """One id for all outputs to an input: ids there are of outputs."""
    digest = hashlib.sha256(str(model_input).encode(errors="surrogatepass")).hexdigest()
    return f"mu_shroom_{digest[:16]}"


@form("SQuAD", ("paragraphs",), ("plausible_answers",))
def _squad(record: Record, number: int) -> Iterator[Record]:
    for paragraph in as_objects(record, "paragraphs"):
        for asked in as_objects(paragraph, "qas"):
            is_impossible = asked.get("is_impossible") is True
            found = [] if is_impossible else as_objects(asked, "answers")
            yield {
                **asked,
                "question_id": own_id(asked, None),
                "title": record.get("title"),
                "context": paragraph.get("context"),
                "answers": [answer.get("text") for answer in found],
            }


@form("HotpotQA", ("question", "supporting_facts", "context"), ("_id",))
def _hotpotqa(record: Record, number: int) -> Iterator[Record]:
    context = record["context"]
    if isinstance(context, Mapping):  # on the Hub
        context = list(zip(as_list(context, "title"), as_list(context, "sentences"), strict=False))
    yield {"context": [f"{title}\n{''.join(sentences)}" for title, sentences in context]}


@form(
    "CoQA",
    ("story", "questions", "answers"),
    ("additional_answers", "name"),
    ("{context}\n\n{question}\nAnswer:", None),
)
def _coqa(record: Record, number: int) -> Iterator[Record]:
    """Each turn, with the turns before it in its question."""
    story_id = own_id(record, f"coqa_{number}")
    questions = [_turn(one) for one in as_list(record, "questions")]
    answers = _answers_of(record["answers"])
    others = [_answers_of(one) for one in (record.get("additional_answers") or {}).values()]
    turns = ""
    for i, (question, answer) in enumerate(zip(questions, answers, strict=False)):
        yield {
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


def _turn(one: object) -> str:
    return str(one["input_text"] if isinstance(one, Mapping) else one).strip()


def _is_gsm8k(record: Record) -> bool:
    return isinstance(record["answer"], str) and _FINAL.search(record["answer"]) is not None


@form("GSM8K", ("question", "answer"), matches=_is_gsm8k)
def _gsm8k(record: Record, number: int) -> Iterator[Record]:
    """The number behind the solution, with and without its commas."""
    found = _FINAL.search(record["answer"])
    final = found[1].strip() if found else ""
    yield {"answers": list(dict.fromkeys([final.replace(",", ""), final]))}


@form("PopQA", ("question", "possible_answers"))
def _popqa(record: Record, number: int) -> Iterator[Record]:
    """The answers are a JSON list in a text."""
    answers = record["possible_answers"]
    yield {"answers": parse_json(answers) if isinstance(answers, str) else answers}


def _is_choice(record: Record) -> bool:
    return isinstance(record.get("choices"), list) and type(record["answer"]) is int


@form("MMLU", ("question", "answer"), matches=_is_choice)
def _mmlu(record: Record, number: int) -> Iterator[Record]:
    """The right choice; the answer is its index, from 0."""
    choices, answer = record["choices"], record["answer"]
    if not 0 <= answer < len(choices):
        raise LineError(f"answer: expected the index of one of {choices!r:.200}, found {answer}")
    yield {"answers": [choices[answer]]}


@form("SVAMP", ("Body", "Question", "Answer"), ("ID",))
def _svamp(record: Record, number: int) -> Iterator[Record]:
    body = check_text("Body", record["Body"]).strip()
    question = check_text("Question", record["Question"])
    joined = f"{body if body.endswith(('.', '?', '!')) else body + '.'} {question}"
    yield {"question": joined, "answers": [str(record["Answer"]).removesuffix(".0")]}


form(
    "HumanEval",
    ("task_id", "prompt", "test"),
    ("canonical_solution",),
    ("{question}", "{question}"),
)(partial(_renamed, {"question_id": "task_id", "question": "prompt"}))


@form("XSum", ("document", "summary"), templates=SUMMARY)
def _xsum(record: Record, number: int) -> Iterator[Record]:
    yield {
        "question": "Summarize the document in one sentence.",
        "context": record["document"],
        "answers": record["summary"],
    }


@form("Belebele", ("flores_passage", "question", "correct_answer_num"))
def _belebele(record: Record, number: int) -> Iterator[Record]:
    right = record.get(f"mc_answer{record['correct_answer_num']}")
    place = f"{record.get('link', number)}#{record.get('question_number', '')}"
    of_passage = (record.get("dialect", "belebele"), record.get("split"), place)  # older files
    yield {
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
form(
    "PsiloQA",
    ("llm_answer", "golden_answer", "wiki_passage"),
    ("labels", "annotated_span"),
)(partial(_renamed, _PSILOQA))


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
    """The last turn, labelled by all verdicts; those without a place are no spans."""
    turns = as_objects(record, "conversation")
    if len(turns) < 2 or turns[-1].get("role") != "assistant":
        raise LineError("conversation: expected a question and an answer at its end")
    annotations = as_objects(record, "annotations")
    verdicts = [_WRONG.get(str(one.get("label")).lower()) for one in annotations]
    is_judged = any(verdict is not None for verdict in verdicts)
    spans = [
        {"start": one["index"], "end": one["index"] + len(one["span"]), "text": one["span"]}
        for one, is_wrong in zip(annotations, verdicts, strict=True)
        if is_wrong and one.get("index") is not None
    ]
    yield {
        "question": turns[-2].get("content"),
        "response": turns[-1].get("content"),
        "spans": spans if is_judged else None,
        "label": int(any(verdicts)) if is_judged else -1,
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
        **asked,
        "dataset": named[1] if named else None,
        "question_id": record["sample_id"],
        "question": "\n".join([check_text("question", asked.get("question")), *choices]),
        "answers": asked.get("ground_truths"),
        "response": record.get("model_output_text"),
        "label": _VERDICTS[verdict],
    }


# with the two that are spelled almost as our own files are
DATA_SETS = ("TriviaQA", "NQ-open", *dict.fromkeys(one.name.partition(" (")[0] for one in _FORMS))
