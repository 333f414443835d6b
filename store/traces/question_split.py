"""The split of a question: train, val or test. Pure."""

import hashlib
from bisect import bisect_right

__all__ = ["SPLITS", "side_of_question", "split_of_question"]

SPLITS = ("train", "val", "test")
CUTS = (0.70, 0.85)  # 70 / 15 / 15


def split_of_question(question_id: str, seed: int) -> str:
    """Return the split of a question: its hash, cut at CUTS."""
    return SPLITS[bisect_right(CUTS, _fraction(question_id, seed))]


def side_of_question(question_id: str, seed: int) -> str:
    """Return train or val, in their proportions of `split_of_question`, where test is chosen."""
    train, train_and_val = CUTS
    return "train" if _fraction(question_id, seed) < train / train_and_val else "val"


def _fraction(question_id: str, seed: int) -> float:
    """A keyed hash (BLAKE2b) of a question as a number in [0, 1)."""
    key = seed.to_bytes(8, "little")
    digest = hashlib.blake2b(question_id.encode(), key=key, digest_size=8).digest()
    return int.from_bytes(digest, "little") / 2**64
