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


def test_nothing_recorded():
    assert describe_traces({}) == {}
