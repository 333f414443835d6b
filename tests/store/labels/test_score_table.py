"""What a table of scores or labels makes of traces."""

from store.labels.rule import ScoreTable


def test_what_a_value_makes_is_shown():
    """One line with the id, what was given and the label, of the first three."""
    scores = ScoreTable("s", by_trace={"t": 0.5}, by_question={"q1": 0.31, "q2": 1, "q3": 1})
    assert scores.examples == [
        "trace_id t: score 0.5 -> label 0 (right)",
        "question_id q1: score 0.31 -> label 1 (hallucination)",
        "question_id q2: score 1 -> label 0 (right)",
    ]
    labels = ScoreTable("s", "label", "label", by_question={"q1": 0.0})
    assert labels.examples == ["question_id q1: label 0 (right)"]


def test_a_table_restricted_to_some_ids():
    """Values of other traces and questions are left out; what is known of the file stays."""
    scores = ScoreTable("s", by_trace={"a": 1, "b": 0}, by_question={"p": 1, "q": 0}, n_empty=2)
    expected = ScoreTable("s", by_trace={"b": 0}, by_question={"p": 1}, n_empty=2)
    assert scores.restrict({"b", "p"}, {"p", "b"}) == expected


def test_the_checksum_of_scores_by_question_is_that_of_earlier_versions():
    """An import that was stopped goes on after an upgrade."""
    expected = "8f505a1aaa716b3cf064313cf755584d05ce8bedf3f7c94419943ff42c9935f9"
    assert ScoreTable("scores", by_question={"b": 1.0, "a": 0.25}).sha256 == expected
    assert ScoreTable("s", by_trace={"b": 1.0, "a": 0.25}).sha256 != expected
