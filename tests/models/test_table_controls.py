"""The controls that read several columns: what they encode, what they find, what they do not."""

import numpy as np
import pytest
import torch
from plain import reload
from sklearn.metrics import roc_auc_score

from models import CONTROLS
from models.answer_context import TextEncoding
from models.metadata import FieldEncoding
from models.tables import Table

ANSWER_CONTEXT, METADATA = CONTROLS["answer_context"], CONTROLS["metadata"]
N = 900
TRAIN, VAL, TEST = np.arange(300), np.arange(300, 500), np.arange(500, N)


def objects(values):
    return np.array(list(values), dtype=object)


def table(**columns):
    return Table(len(next(iter(columns.values()))), columns)


def of_answers(*triples):
    """A table of (question, answer, context)."""
    names = ("question", "answer", "context")
    return table(**{name: objects(one[i] for one in triples) for i, name in enumerate(names)})


TEXTS = of_answers(
    ("Who found it?", "In 1898 Marie Curie found radium.", "Curie found radium in 1,898."),
    ("Who found it?", "Pierre, in 1897.", ""),
    ("", "", "Curie found radium."),
)


def test_answers_are_laid_beside_question_and_context():
    """Length, numbers and names of the answer; then shares, what is lacking, lengths, cosine."""
    found = TextEncoding.of_table(TEXTS).numbers(TEXTS)
    assert found.shape == (3, 15)
    np.testing.assert_allclose(found[0, :3], [np.log(7), 2 - 1, 2])
    np.testing.assert_allclose(found[0, 9:11], [4 / 6, 2 / 5])
    assert found[0, 11:13].tolist() == [0, 1]  # 1,898 is 1898; Marie
    np.testing.assert_allclose(found[0, 13], np.log(7) - np.log(7))
    assert 0 < found[0, 8] < found[0, 14] < 1
    assert np.isnan(found[1, 9:]).all()
    assert np.isnan(found[2, 3:9]).all()
    assert np.isnan(found[2, 9:11]).all()  # nothing of nothing
    without = table(question=TEXTS.columns["question"], answer=TEXTS.columns["answer"])
    again = TextEncoding.of_table(without).numbers(without)
    assert np.isnan(again[:, 9:]).all()


def test_what_few_rows_share_is_no_category():
    """Ids and free texts; numbers are numbers besides, and what all rows have tells nothing."""
    n = 20
    fields = table(
        dataset=objects(["squad"] * 12 + ["coqa"] * 8),
        source=objects(map(str, range(n))),
        hops=np.arange(n) % 2,
        weight=np.where(np.arange(n) % 3, np.arange(n) / 7, np.nan),
        all=objects(["x"] * n),
        is_long=np.arange(n) < 4,
    )
    encoding = FieldEncoding.of_table(fields)
    assert encoding.categories == {
        "all": [],
        "dataset": ["squad", "coqa"],
        "hops": ["0", "1"],
        "is_long": ["False"],
        "source": [],
        "weight": ["nan"],
    }
    assert encoding.numeric == ["hops", "weight"]
    numbers = encoding.numbers(fields)
    assert numbers.shape == (n, 1 + 6 + 2)
    np.testing.assert_array_equal(numbers[:, -2], fields.columns["hops"])
    other = encoding.numbers(table(dataset=objects(["squad", "nq"]), hops=objects("ab")))
    assert other[:, 1].tolist() == [1, 0]
    assert np.isnan(other[:, -2:]).all()


def test_numbers_that_are_not_finite_are_missing():
    """One of 1e300 has no variance that a float can hold: it is cut."""
    fields = table(x=np.array([np.inf, -np.inf, np.nan, 1e300, 2.0]))
    numbers = FieldEncoding.of_table(fields).numbers(fields)[:, -1]
    assert np.isnan(numbers[:3]).all()
    assert numbers[3:].tolist() == [1e30, 2]


def draw_texts(labels, rng):
    """Answers with a number: that of the context, or for the label 1 another."""
    numbers = rng.integers(10, 10_000, (N, 2))
    return of_answers(
        *(
            ("How many are there?", f"There are {pair[label]}.", f"{pair[0]} of them are there.")
            for pair, label in zip(numbers.tolist(), labels.tolist(), strict=True)
        )
    )


def draw_fields(labels, rng):
    """Annotators, one of whom calls most answers wrong."""
    strict = np.where(rng.random(N) < 0.9, labels, 1 - labels)
    names = np.where(strict, "eve", rng.choice(["ann", "bob"], N))
    return table(annotator=objects(names), hops=rng.integers(0, 4, N))


@pytest.mark.parametrize("control, draw", [(ANSWER_CONTEXT, draw_texts), (METADATA, draw_fields)])
def test_it_finds_what_tells_the_labels(control, draw):
    """Numbers that the context lacks, and who annotated. Saved and loaded, it scores the same bit
    for bit, from a file without code; a refit keeps the penalty; what does not fit is refused."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, N)
    rows = draw(labels, rng)
    fitted = control.fit(rows[TRAIN], labels[TRAIN], rows[VAL], labels[VAL])
    assert roc_auc_score(labels[TEST], fitted.predict(rows[TEST])) > 0.85
    saved = reload(fitted.to_dict())
    loaded = control.load(saved)
    np.testing.assert_array_equal(loaded.predict(rows), fitted.predict(rows))
    assert loaded.n_parameters() == len(fitted.weight) + 1
    again = control.refit(fitted, rows[VAL], labels[VAL])
    assert again.strength == fitted.strength
    assert not np.array_equal(again.predict(rows), fitted.predict(rows))
    saved["regression"] |= {"weight": torch.zeros(2), "fill": torch.zeros(2)}
    with pytest.raises(ValueError, match="expected shape"):
        control.load(saved).predict(rows)


def test_the_wording_tells_what_it_does():
    """Phrases that wrong answers have more often; of labels by chance nothing."""
    control = CONTROLS["answer_text"]
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, N)
    hedges = np.where(rng.random(N) < 0.9, labels, 1 - labels)
    texts = objects(f"{('It is', 'I think it is')[one]} {rng.integers(50)}." for one in hedges)
    for told, low, high in ((labels, 0.85, 1), (rng.permutation(labels), 0.43, 0.57)):
        fitted = control.fit(texts[TRAIN], told[TRAIN], texts[VAL], told[VAL])
        assert low < roc_auc_score(told[TEST], fitted.predict(texts[TEST])) < high
        assert fitted.iterations == 0


def test_signs_of_scripts_without_spaces_are_words():
    texts = objects(["東京です。", "大阪です。", "東京 is Tokyo."])
    labels = np.array([0, 1, 0])
    (vocabulary,) = CONTROLS["answer_text"].fit(texts, labels, texts, labels).vocabularies
    assert {"東", "京", "東 京", "tokyo", "。"} <= set(vocabulary.terms)
