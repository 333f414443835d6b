"""The example's questions: which of two is further north, heavier, larger?

"Is Riga further north than Lima?" Yes, it is. To answer takes no more than to know both.

Whether a question belongs to the example or to the training of its language model is a pure
function of the question (`is_held_out`), hence the two never share one, however many are drawn for
either.
"""

from itertools import islice
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from store.sources.questions import Question

__all__ = [
    "ANSWERS",
    "HELD_OUT_FRACTION",
    "KINDS",
    "N_QUESTIONS",
    "Kind",
    "draw_problems",
    "example_questions",
    "is_held_out",
    "is_so",
    "question_text",
]


class Kind(NamedTuple):
    """What is compared."""

    comparative: str
    things: tuple[str, ...]


# each from that of which the comparative is true before all others
_FURTHER_NORTH = """
    Tromso Reykjavik Helsinki Riga Copenhagen Hamburg Warsaw London Prague Paris Vienna Zurich Milan
    Toronto Rome Madrid Athens Tunis Tokyo Tripoli Cairo Delhi Miami Mumbai Dakar Bangkok Caracas
    Lagos Bogota Nairobi Kinshasa Jakarta Luanda Lima Lusaka Harare Maputo Durban Sydney Melbourne
    Wellington Ushuaia
"""
_HEAVIER = """
    whale rhinoceros giraffe buffalo horse moose bear lion pig deer wolf beaver badger fox cat
    rabbit hedgehog squirrel pigeon starling sparrow mouse shrew beetle wasp flea
"""
_LARGER = """
    Russia Canada China Brazil Australia India Argentina Algeria Mexico Iran Peru Angola Egypt
    Nigeria Turkey Chile Ukraine Kenya France Spain Sweden Iraq Japan Germany Poland Italy Ecuador
    Ghana Greece Cuba Portugal Austria Ireland Latvia Denmark Belgium Albania Israel Slovenia
    Jamaica Cyprus Malta
"""
KINDS = (
    Kind("further north", tuple(_FURTHER_NORTH.split())),
    Kind("heavier", tuple(f"a {animal}" for animal in _HEAVIER.split())),
    Kind("larger", tuple(_LARGER.split())),
)
# of those who deny and of those who affirm; the wordings of either mean the same
ANSWERS = (
    ("No, it is not.", "No, that is false.", "No, it is the other way round.", "No, not at all."),
    ("Yes, it is.", "Yes, that is true.", "Yes, it is just as you say.", "Yes, of course."),
)
N_QUESTIONS = 2000
HELD_OUT_FRACTION = 0.5

_QUESTION_SEED = 0
_DRAW_SIZE = 1024  # fixed, so that the first questions are the same however many are asked for


def is_held_out(problems: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return which problems belong to the example; the others train its language model.

    `problems`, int64 (n, 3): kind, and which thing is compared with which.

    Returns bool (n,): true for about `HELD_OUT_FRACTION` of all problems, chosen by a fixed hash.
    """
    kind, first, second = problems.T.astype(np.uint64)
    key = ((kind << 8) + first << 8) + second
    # splitmix64's finaliser (Steele et al. 2014): neighbouring problems are independent.
    key = (key ^ (key >> 30)) * 0xBF58476D1CE4E5B9
    key = (key ^ (key >> 27)) * 0x94D049BB133111EB
    key ^= key >> 31
    return key < int(HELD_OUT_FRACTION * 2**64)


def draw_problems(rng: np.random.Generator, n: int, *, held_out: bool) -> NDArray[np.int64]:
    """Draw problems for the example or for training, kinds and things alike.

    `rng`: advanced by a number of draws that depends on `n` and the draws alone. `n`: number of
    problems; repeats are possible. `held_out`: true draws for the example, False for the training
    of the language model.

    Returns int64 (n, 3): kind, and which thing is compared with which.
    """
    kept = np.empty((0, 3), np.int64)
    while len(kept) < n:
        kinds = rng.integers(len(KINDS), size=n)
        n_things = np.array([len(kind.things) for kind in KINDS])[kinds]
        first, second = rng.integers(n_things, size=(2, n))
        drawn = np.column_stack([kinds, first, second])[first != second]
        kept = np.concatenate([kept, drawn[is_held_out(drawn) == held_out]])
    return kept[:n]


def is_so(problems: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return the right answers, bool (n,), to problems, int64 (n, 3)."""
    return problems[:, 1] < problems[:, 2]


def question_text(problem: tuple[int, int, int]) -> str:
    """Write a problem: kind, thing, other thing -> "Is Riga further north than Lima?"."""
    kind, first, second = problem
    comparative, things = KINDS[kind]
    return f"Is {things[first]} {comparative} than {things[second]}?"


def example_questions(n: int = N_QUESTIONS, seed: int = _QUESTION_SEED) -> list[Question]:
    """Draw the example's questions, no two alike.

    `n`: number of questions; more of them begin with the same ones. `seed`: another seed gives
    other held-out questions.

    Returns `question_id` ("is_00042"), `question` and `answers` (all wordings of the right one).
    """
    rng = np.random.default_rng(seed)
    problems: dict[tuple[int, int, int], None] = {}  # a set that keeps its order
    while len(problems) < n:
        drawn = draw_problems(rng, _DRAW_SIZE, held_out=True).tolist()
        problems |= dict.fromkeys(map(tuple, drawn))
    chosen = list(islice(problems, n))
    right = is_so(np.array(chosen, np.int64).reshape(-1, 3)).tolist()
    return [
        {
            "question_id": f"is_{number:05d}",
            "question": question_text(problem),
            "answers": list(ANSWERS[yes]),
        }
        for number, (problem, yes) in enumerate(zip(chosen, right, strict=True))
    ]
