"""The side of a question: train, validation or test. Pure."""

import hashlib
from bisect import bisect_right

__all__ = ["SIDES", "side_of_question"]

SIDES = ("train", "val", "test")
CUTS = (0.70, 0.85)  # 70 / 15 / 15


def side_of_question(question_id: str, seed: int) -> str:
    """Give the side of a question: a keyed hash (BLAKE2b) makes a uniform number of it, cut at 0.70
    and 0.85."""
    key = seed.to_bytes(8, "little")
    digest = hashlib.blake2b(question_id.encode(), key=key, digest_size=8).digest()
    return SIDES[bisect_right(CUTS, int.from_bytes(digest, "little") / 2**64)]
