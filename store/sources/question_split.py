"""The split of a question: train, val or test. Pure."""

import hashlib
from bisect import bisect_right

__all__ = ["SPLITS", "split_of_question"]

SPLITS = ("train", "val", "test")
CUTS = (0.70, 0.85)  # 70 / 15 / 15


def split_of_question(question_id: str, seed: int) -> str:
    """Return the split of a question: a keyed hash (BLAKE2b) as a number in [0, 1), cut at CUTS."""
    key = seed.to_bytes(8, "little")
    digest = hashlib.blake2b(question_id.encode(), key=key, digest_size=8).digest()
    fraction = int.from_bytes(digest, "little") / 2**64
    return SPLITS[bisect_right(CUTS, fraction)]
