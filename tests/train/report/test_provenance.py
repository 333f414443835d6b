"""What a reader needs to know of the traces, from what the store records."""

from train.report.evidence import describe_traces


def test_what_is_recorded_is_described():
    described = describe_traces(
        {
            "source": "huggingface",
            "model": "m",
            "prompt_template": "{question}=",
            "decoding": {"do_sample": False, "stop": None},
            "weights_sha256": "00",
        }
    )
    assert described == {
        "made by": "huggingface",
        "model": "m",
        "prompt": "{question}=",
        "decoding": "do_sample = false",
    }


def test_stores_that_were_merged():
    """Each value once; what one of them lacks is not made up."""
    parts = [{"model": "a", "questions": 5}, {"model": "b"}, {"model": "a"}]
    described = describe_traces({"source": "merge", "stores": parts})
    assert described == {"model": "a; b", "questions": "5"}


def test_stores_that_were_labelled_after_they_were_merged():
    """The rule of their labels is the new one; both, where some rows kept their labels."""
    merged = {"source": "merge", "stores": [{"model": "a"}, {}], "common": {"label_rule": "old"}}
    for again, text in (
        ({}, "old"),
        ({"label_rule": "new"}, "new"),
        ({"label_rule": "new", "label_rule_before": "old"}, "old; new"),
    ):
        for provenance in (merged | again, {"source": "merge", "stores": [merged | again]}):
            assert describe_traces(provenance) == {"model": "a", "labels": text}


def test_nothing_recorded():
    assert describe_traces({}) == {}
