"""The rules that label answers: each scores how well an answer agrees with its references.

Texts are compared in the normal form of `normalization`. Higher is better; NaN means that there is
no reference. Pure functions of strings: nothing here reads a file, knows a model or imports numpy,
so that the help of a command does not wait for it.

Models that chat answer "The capital of France is Paris." where the reference is "Paris". What
counts for `contains_score` is the answer's first statement, as whole words, and without denying it;
what a model adds behind it is neither held against it nor in its favour.
"""

import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from store.labels.normalization import ARTICLES, normalize_answer

__all__ = [
    "NORMALIZATION",
    "RULES",
    "SCORE_THRESHOLD",
    "as_thought",
    "contains_score",
    "ends_thought",
    "exact_match_score",
    "f1_score",
    "first_statement",
    "opens_thought",
    "sentences_of",
    "without_thought",
]

SCORE_THRESHOLD = 0.5  # scores of at least this much count as right, unless another is given
# what the rules call SQuAD's normalisation; a key of its own, which stores of earlier versions lack
NORMALIZATION = (
    "SQuAD's, and: numbers keep sign, decimal point and currency, 1,000 = 1000; hyphens part "
    "words; accents and kinds of quotes do not count, vowels that are marks do; no text becomes "
    "empty"
)


def _words(text: str) -> list[str]:
    return text.split()


def _phrases(text: str) -> list[str]:
    return text.split("|")


# possessive, and never from within: linear in the length of the text
_SENTENCE_END = re.compile(r"""(?<![.!?])[.!?]++["'”’)*]*+(?=\s|$)|[。！？]++["'”’」』）)*]*+""")
_CLOSING = "\"'”’」』）)*"  # may stand behind the sign that ends a sentence
_LONGEST_ABBREVIATION = 40  # characters before a full stop that are looked at
_ABBREVIATIONS = frozenset(
    _words(
        "mr mrs ms dr st jr sr prof gen col lt sgt capt rev hon gov sen rep pres no nos vs mt ft "
        "inc ltd co corp bros etc approx ca cf vol op fig al"
    )
)
# before a place, in normal form: "I don't think it's", "I doubt it is", "anything but"
_SMALL = r"(?: (?:in|at|on|the|a|an))*"
_DOUBT = re.compile(
    r"\b(?:(?:dont|doesnt|didnt|not|never) (?:think|believe)|(?:i|we) doubt)"
    rf"(?: that)?(?: (?:it|its|this|he|she|they))?(?: (?:is|was|are|were))?{_SMALL}$"
    rf"|\b(?:anything|anyone|anywhere|anybody) but{_SMALL}$"
)
_LONGEST_DOUBT = 9  # words
# "not in Paris", "was not the city of Paris"; but "not only Paris"
_DENIED_BEFORE = re.compile(
    r"(?:^| )(?:not|never|nor|isnt|wasnt|arent|werent|aint|doesnt|didnt|dont|hasnt|hadnt|cant|"
    r"cannot|couldnt|wont|wouldnt|unlike|except|neither|rather than|instead of|other than|"
    r"no longer)(?: (?:in|at|on|of|by|to|from|be|been|was|is|called|named|city|actually|really|"
    r"necessarily|a|an|the)){0,3}$"
)
_DENIED_BEHIND = re.compile(
    r"(?:(?:is|was|are|were) not|isnt|wasnt|arent|werent)(?= |$)(?! (?:only|just|merely|simply)\b)"
)
# within a sentence they mean something else: "Yes, no doubt about that"
_POLAR = frozenset(["yes", "no", "true", "false"])
_BEFORE_POLAR = frozenset(  # "The answer is yes", "That statement is false"
    ["answer is", "statement is", "claim is", "this statement is", "that statement is"]
)
_LONGEST_BEFORE_POLAR = 3
# sentences that say nothing yet, in normal form
_LEAD_INS = frozenset(
    _phrases(
        "sure|ok|okay|alright|all right|of course|certainly|hello|hi|hm|hmm|well|let me think|"
        "let me see|let me check|lets see|lets think|let us think|lets think step by step|"
        "let us think step by step|let me think step by step|let me think about this|"
        "great question|good question"
    )
)
_LONGEST_LEAD_IN = 40  # characters
# scripts that part no words by spaces, and Hangul, where particles are joined to words
_HAS_JOINED = re.compile(
    r"[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff"
    r"\uac00-\ud7a3\uf900-\ufaff\U00020000-\U0003ffff]"
)
_JOINED_DENIAL_BEFORE = re.compile(r"(?:不是|不在|不叫|并非|並非|而非)$")
_JOINED_DENIAL_BEHIND = re.compile(
    r"(?:では?|じゃ)(?:ない|なく|ありません)|[이가] ?아(?:니|닙|닌)|不是"
)
_THOUGHT = "<think>"
_THOUGHT_END = "</think>"


def exact_match_score(answer: str, references: Sequence[str]) -> float:
    """Score an answer 1.0 if it matches one of its references, else 0.0; NaN without any."""
    if not references:
        return math.nan
    return float(normalize_answer(answer) in map(normalize_answer, references))


def f1_score(answer: str, references: Sequence[str]) -> float:
    """Token F1 of an answer and the reference most like it, as in SQuAD's evaluation script.

    The words are those of the normal form. The harmonic mean of precision and recall over them is
    0.0 to 1.0; two empty texts agree. NaN without references.
    """
    texts = (answer, *references)
    found, *expected = (Counter(normalize_answer(text).split()) for text in texts)
    return max((_f1(found, words) for words in expected), default=math.nan)


def _f1(found: Counter[str], expected: Counter[str]) -> float:
    n_words = found.total() + expected.total()
    n_common = (found & expected).total()
    return 2 * n_common / n_words if n_words else 1.0


def contains_score(answer: str, references: Sequence[str]) -> float:
    """Score an answer 1.0 if its first statement says a reference, else 0.0.

    A reference is said where its words, in the normal form of `normalize_answer`, stand in the
    answer one after the other, as whole words. It is not said where it is denied directly, in each
    place: by not, isn't, never, nor, unlike, except, rather than, instead of, other than before it
    ("not Paris", "isn't in Paris"), by "don't think it's", "I doubt it is" or "anything but", or by
    "is not", "isn't" and their like behind it. "Not only Paris" says it. Yes, no, true and false
    are said where a sentence begins with them, or with "The answer is" before them. References in
    scripts without spaces between words, and in Korean, are said wherever their characters stand.
    Irony, and denials from further away ("I doubt what they say, that it is Paris"), are not
    understood: for those there is a judge. NaN without references.
    """
    if not references:
        return math.nan
    statement = first_statement(answer)
    words = normalize_answer(statement).split()
    polar = _polar_word(statement)
    whole = normalize_answer(statement, keep_articles=True).split()
    return float(any(_says(words, whole, polar, reference) for reference in references))


def first_statement(answer: str) -> str:
    """The part of an answer that counts.

    It is the first line with words, to the end of its first sentence that ends in a full stop: an
    exclamation before it ("Great question!") is no statement yet. A line that ends in a colon
    ("Here is the answer:") leads on to the next, and so does "Sure." or "Let me think." Questions
    are left out if anything else remains, and what a model thinks (`<think>`) always.
    """
    lines = [line.strip() for line in without_thought(answer).splitlines() if line.strip()]
    n_leading = next((n for n, line in enumerate(lines) if not _leads_on(line)), 0)
    sentences = []
    for sentence in _sentences(lines[n_leading] if lines else ""):
        sentences.append(sentence)
        if _is_lead_in(sentence):
            continue
        if not sentence.rstrip(_CLOSING).endswith(("!", "?", "！", "？")):
            break
    asserted = [text for text in sentences if not text.rstrip(_CLOSING).endswith(("?", "？"))]
    return " ".join(asserted or sentences)


def opens_thought(prompt: str) -> bool:
    """Whether answers to a prompt begin within a thought, as its chat template has it."""
    return prompt.rstrip().endswith(_THOUGHT)


def ends_thought(answer: str) -> bool:
    """Whether an answer comes to the end of a thought, which it or its prompt has opened."""
    return _THOUGHT_END in answer


def as_thought(answer: str) -> str:
    """An answer that begins within a thought, as if it had opened it, unless it comes to an end."""
    return answer if ends_thought(answer) else f"{_THOUGHT}\n{answer}"


def without_thought(answer: str) -> str:
    """An answer without its thoughts; the prompt may have opened them, or the answer end there."""
    if ends_thought(answer):
        return answer.rpartition(_THOUGHT_END)[2]
    return "" if answer.lstrip().startswith(_THOUGHT) else answer


def _leads_on(line: str) -> bool:
    return line.endswith((":", "：")) or all(map(_is_lead_in, _sentences(line)))


def _is_lead_in(sentence: str) -> bool:
    return len(sentence) <= _LONGEST_LEAD_IN and normalize_answer(sentence) in _LEAD_INS


def _polar_word(statement: str) -> str | None:
    """The first yes, no, true or false that begins a sentence of a statement; None without one."""
    for sentence in _sentences(statement):
        words = normalize_answer(sentence).split()
        for n_before in range(min(_LONGEST_BEFORE_POLAR + 1, len(words))):
            is_begun = not n_before or " ".join(words[:n_before]) in _BEFORE_POLAR
            if is_begun and words[n_before] in _POLAR:
                return words[n_before]
    return None


def sentences_of(text: str) -> list[str]:
    """The sentences of a text; a new line ends one, the full stop of an abbreviation does not."""
    return [sentence for line in text.splitlines() for sentence in _sentences(line)]


def _sentences(line: str) -> Iterator[str]:
    start = 0
    for end in _SENTENCE_END.finditer(line):
        seen_from = max(start, end.start() - _LONGEST_ABBREVIATION)
        if end[0][0] == "." and _is_abbreviation(line[seen_from : end.start()]):
            continue
        yield line[start : end.end()].strip()
        start = end.end()
    if line[start:].strip():
        yield line[start:].strip()


def _is_abbreviation(text: str) -> bool:
    """Whether the full stop behind a text ends no sentence: "St", an initial, "U.S", "1"."""
    last = re.split(r"[\s(\"']", text)[-1]
    is_initial = bool(re.fullmatch(r"(?:\w\.)*[^\W\d_]", last))
    is_list_number = last == text.strip() and last.isdecimal()
    return is_initial or is_list_number or last.lower() in _ABBREVIATIONS


def _says(found: Sequence[str], whole: Sequence[str], polar: str | None, reference: str) -> bool:
    """Whether the words of a statement, without and with articles, say a reference."""
    words = normalize_answer(reference).split()
    if not words:
        return not found
    if len(words) == 1 and words[0] in _POLAR:
        return polar == words[0]
    if _HAS_JOINED.search(reference):
        return _says_joined(" ".join(found), " ".join(words))
    if any(not _is_denied(found, at, len(words)) for at in _places(words, found)):
        return True
    # "Vitamin A is one" loses its letter as an article, where the reference keeps it
    if len(words) == 1 or ARTICLES.isdisjoint(words):
        return False
    return any(not _is_denied(whole, at, len(words)) for at in _places(words, whole))


def _says_joined(text: str, reference: str) -> bool:
    """Whether the characters of a reference stand in a text, and are not denied in one place."""
    at = text.find(reference)
    while at >= 0:
        end = at + len(reference)
        is_denied = _JOINED_DENIAL_BEFORE.search(text[max(0, at - 2) : at])
        if not is_denied and not _JOINED_DENIAL_BEHIND.match(text, end):
            return True
        at = text.find(reference, end)
    return False


def _places(words: Sequence[str], text: Sequence[str]) -> Iterator[int]:
    """Where the words begin in a text."""
    n = len(words)
    return (at for at in range(len(text) - n + 1) if list(text[at : at + n]) == list(words))


def _is_denied(text: Sequence[str], at: int, n: int) -> bool:
    before = " ".join(text[max(0, at - _LONGEST_DOUBT) : at])
    behind = " ".join(text[at + n : at + n + 3])
    is_denied_before = _DOUBT.search(before) or _DENIED_BEFORE.search(before)
    return is_denied_before is not None or _DENIED_BEHIND.match(behind) is not None


class LabelRule(NamedTuple):
    """The text of a rule in the provenance, and how it scores answers; a judge is asked instead."""

    text: str
    score: Callable[[str, Sequence[str]], float] = lambda answer, references: math.nan


RULES = {
    "exact": LabelRule(
        "score = 1 if the answer equals a reference after SQuAD's normalisation, else 0; "
        "label = 1 iff score < threshold",
        exact_match_score,
    ),
    "contains": LabelRule(
        "score = 1 if the answer's first statement has the words of a reference after SQuAD's "
        "normalisation, not denied directly (yes, no, true, false: begins with it; scripts without "
        "spaces: its characters), else 0; label = 1 iff score < threshold",
        contains_score,
    ),
    "f1": LabelRule(
        "score = token F1 of the answer and the reference most like it "
        "after SQuAD's normalisation; label = 1 iff score < threshold",
        f1_score,
    ),
    "judge": LabelRule(
        "score = probability of the judge's word for right, of its words for right and wrong; "
        "unlabelled where it says neither, or calls an exact match wrong; "
        "label = 1 iff score < threshold"
    ),
    "none": LabelRule("unlabelled"),
}
