"""The control of the answer's length."""

from models import CONTROLS


def test_answer_length_is_a_number_of_tokens(pack, traces):
    features = CONTROLS["answer_length"].features(pack(traces))
    assert features.flatten().tolist() == [4, 0, 8, 1, 6]
