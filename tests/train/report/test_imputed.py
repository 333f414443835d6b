"""How many traces have imputed numbers, in words."""

from train.report.imputed import imputed_in_words

N_ROWS = {"train": {"rows": 350}, "val": {"rows": 75}, "test": {"rows": 75}}


def make_results(**counts):
    entries = {name: {"traces_with_missing_numbers": n} if n else {} for name, n in counts.items()}
    return {"split": N_ROWS, "models": {"trilens": {}}, "baselines": entries}


def test_methods_are_named_with_their_counts():
    """Those of one count together; nothing without any."""
    results = make_results(logreg_best=12, entropy=3, majority=0, logreg_mean=12)
    assert imputed_in_words(results) == (
        "Numbers that a trace lacks are imputed with the mean over train: in 12 of 500 traces for "
        "logreg_best, logreg_mean; in 3 of 500 traces for entropy."
    )
    assert imputed_in_words(make_results(majority=0)) == ""


def test_of_several_splits_it_is_the_largest_count():
    """Which numbers train has, and with it the count, differs from split to split."""
    first, second = make_results(entropy=0), make_results(entropy=4)
    assert imputed_in_words(first | {"splits": {"runs": [first, second]}}) == (
        "Numbers that a trace lacks are imputed with the mean over train: in at most 4 of 500 "
        "traces for entropy."
    )
