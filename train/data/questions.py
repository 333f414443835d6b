"""Which traces ask the same question: by id, by normalised text, and by similar text on request.

Texts are the same where question and context are.
"""

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from store import TraceStore
from store.extras import needs_extra
from store.read.questions import (
    QUESTION,
    QUESTION_ID,
    digest_text,
    question_ids,
    question_texts,
)
from store.reports import count
from store.traces.question_split import join_questions
from train.config import Config

__all__ = ["NOT_ASKED", "Asked", "Questions", "read_questions"]

Texts = NDArray[np.object_]
Asked = tuple[str, str]  # the id of a question, and the digest of its text
N_CHARACTERS = 5  # of a shingle


NO_TEXTS: Texts = np.zeros(0, dtype=object)
ALL = slice(None)


class Questions(NamedTuple):
    """The question of each trace, texts (n_rows,)."""

    ids: Texts  # as the store has them; without a column `question_id`, or where it is blank, those
    # of the traces, which never begin with the name of a store: the same one in two stores is one
    # question
    texts: Texts  # digests of the normalised question and context; "" without a question
    keys: Texts  # equal for traces of one question: the id of the first of them
    has_text: NDArray[np.bool_] = np.zeros(0, bool)  # whether texts are joined or not

    @property
    def n_joined(self) -> int:
        """Number of ids that ask the question of an earlier one."""
        return len(set(self.ids)) - len(set(self.keys))

    def n_without_text(self, rows: NDArray[np.int64] | slice = ALL) -> int:
        """Number of these rows (n,) whose question is known by its id alone."""
        return int(np.sum(~self.has_text[rows])) if len(self.has_text) else 0

    def distinct(self, rows: NDArray[np.int64]) -> list[Asked]:
        """What these rows (n,) ask, each once."""
        return list(dict.fromkeys(zip(self.ids[rows], self.texts[rows], strict=True)))

    def remarks(self, rows: NDArray[np.int64] | slice = ALL) -> list[str]:
        """That some of these rows (n,) have no text, so that a copy may count as new."""
        n_without = self.n_without_text(rows)
        traces = count(n_without, "trace has", "traces have")
        why = f"{traces} no text of the question: only its id says whether another trace asks it"
        return [why] * bool(n_without)


NOT_ASKED = Questions(NO_TEXTS, NO_TEXTS, NO_TEXTS)


def read_questions(store: TraceStore, config: Config) -> Questions:
    """Read and join the questions of a store."""
    column = config.replaced.get(QUESTION, QUESTION)
    # of several stores each has its own columns, whether the others have them or not
    ids = [one for part in store.parts for one in read_ids(part)]
    stored = [one for part in store.parts for one in question_texts(part, column)]
    texts = stored if config.join_questions else [""] * len(ids)
    alike = [] if config.near_duplicates is None else find_alike(texts, config.near_duplicates)
    digests = [digest_text(text) for text in texts]
    found = (ids, digests, join_questions(ids, texts, alike))
    questions = Questions(*(np.array(one, dtype=object) for one in found))
    return questions._replace(has_text=np.array([bool(text) for text in stored], dtype=bool))


def read_ids(store: TraceStore) -> list[str]:
    """The ids of the questions, by row; those of the traces where the store has none."""
    return question_ids(store) if QUESTION_ID in store.schema.columns else store.ids.own()


def find_alike(texts: Sequence[str], similarity: float) -> list[tuple[int, int]]:
    """Pairs of rows whose questions are similar, of one context; texts as `question_texts`."""
    rows: defaultdict[str, dict[str, int]] = defaultdict(dict)  # question -> context -> a row
    for row, text in enumerate(texts):
        question, _, context = text.partition("\n")
        if question:
            rows[question][context] = row
    if not rows:
        return []
    of_question = list(rows.values())
    return [
        (of_question[i][context], of_question[j][context])
        for i, j in find_near_duplicates(list(rows), similarity)
        for context in of_question[i]
        if context in of_question[j]
    ]


def find_near_duplicates(texts: Sequence[str], similarity: float) -> list[tuple[int, int]]:
    """Pairs of texts, by position, whose sets of 5 characters have at least this Jaccard index.

    Candidates are found by MinHash (Broder, 1997, doi:10.1109/SEQUEN.1997.666900) and compared
    exactly: no pair is too many, a few close to the limit may be missed.
    """
    with needs_extra("duplicates", "--near-duplicates: "):
        from datasketch import MinHash, MinHashLSH
    shingles = [
        {text[i : i + N_CHARACTERS] for i in range(max(1, len(text) - N_CHARACTERS + 1))}
        for text in texts
    ]
    index = MinHashLSH(0.85 * similarity, weights=(0.1, 0.9))  # a candidate too many costs less
    pairs: list[tuple[int, int]] = []
    encoded = ([one.encode() for one in of_text] for of_text in shingles)
    for i, hashes in enumerate(MinHash.generator(encoded)):
        for j in index.query(hashes):
            n_shared, n_all = len(shingles[i] & shingles[j]), len(shingles[i] | shingles[j])
            if n_shared / n_all >= similarity:
                pairs.append((i, j))
        index.insert(i, hashes)
    return pairs
