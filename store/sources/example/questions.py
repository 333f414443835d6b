"""The example's questions: sums, differences and products of numbers of one to four digits.

Products of numbers with more than six digits together are left out: a small model gets every one of
them wrong, so they would make the length of the answer too good a detector of errors.

Each question has exactly one right answer, so labels are exact. Whether a question belongs to the
example or to the training of its language model is a pure function of the question (`is_held_out`),
hence the two never share one, however many are drawn for either.
"""

from itertools import islice

import numpy as np
from numpy.typing import NDArray

from store.sources.questions import Question

__all__ = [
    "HELD_OUT_FRACTION",
    "N_QUESTIONS",
    "OPERATORS",
    "draw_problems",
    "example_questions",
    "is_held_out",
]

OPERATORS = "+-*"
N_QUESTIONS = 5000
HELD_OUT_FRACTION = 0.2
MAX_DIGITS = 4
MAX_PRODUCT_DIGITS = 6

_QUESTION_SEED = 0
_DRAW_SIZE = 1024  # fixed, so that the first questions are the same however many are asked for


def is_held_out(problems: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return which problems belong to the example; the others train its language model.

    Parameters
    ----------
    problems : int64 (n, 3)
        Left number, index into `OPERATORS`, right number.

    Returns
    -------
    bool (n,)
        True for about `HELD_OUT_FRACTION` of all problems, chosen by a fixed hash.
    """
    left, operator, right = problems.T.astype(np.uint64)
    key = (left * 10**MAX_DIGITS + right) * len(OPERATORS) + operator
    # splitmix64's finaliser (Steele et al. 2014): neighbouring problems are independent.
    key = (key ^ (key >> 30)) * 0xBF58476D1CE4E5B9
    key = (key ^ (key >> 27)) * 0x94D049BB133111EB
    key ^= key >> 31
    return key < int(HELD_OUT_FRACTION * 2**64)


def draw_problems(rng: np.random.Generator, n: int, *, held_out: bool) -> NDArray[np.int64]:
    """Draw problems for the example or for training.

    Operator and digit counts are uniform, then the numbers; long products are left out.

    Parameters
    ----------
    rng : numpy.random.Generator
        Advanced by a number of draws that depends on `n` and the draws alone.
    n : int
        Number of problems; repeats are possible.
    held_out : bool
        True draws for the example, False for the training of the language model.

    Returns
    -------
    int64 (n, 3)
        Left number, index into `OPERATORS`, right number.
    """
    kept = np.empty((0, 3), np.int64)
    while len(kept) < n:
        drawn = _draw_any(rng, n)
        kept = np.concatenate([kept, drawn[is_held_out(drawn) == held_out]])
    return kept[:n]


def example_questions(n: int = N_QUESTIONS, seed: int = _QUESTION_SEED) -> list[Question]:
    """Draw the example's questions, no two alike.

    Parameters
    ----------
    n : int
        Number of questions; more of them begin with the same ones.
    seed : int
        Another seed gives other held-out questions.

    Returns
    -------
    list of Question
        `question_id` ("arith_00042"), `question` ("12+345") and `answers` (["357"]).
    """
    rng = np.random.default_rng(seed)
    problems: dict[tuple[int, int, int], None] = {}  # a set that keeps its order
    while len(problems) < n:
        drawn = draw_problems(rng, _DRAW_SIZE, held_out=True).tolist()
        problems |= dict.fromkeys(map(tuple, drawn))
    questions: list[Question] = []
    for number, problem in enumerate(islice(problems, n)):
        text, answer = text_and_answer(problem)
        questions.append(
            {"question_id": f"arith_{number:05d}", "question": text, "answers": [answer]}
        )
    return questions


def text_and_answer(problem: tuple[int, int, int]) -> tuple[str, str]:
    """Write a problem and its right answer: (12, 0, 345) -> ("12+345", "357")."""
    left, operator, right = problem
    answer = (left + right, left - right, left * right)[operator]
    return f"{left}{OPERATORS[operator]}{right}", str(answer)


def _draw_any(rng: np.random.Generator, n: int) -> NDArray[np.int64]:
    """Draw at most n problems, held out or not, int64 (n or fewer, 3)."""
    operators = rng.integers(len(OPERATORS), size=n)
    digits = rng.integers(1, MAX_DIGITS + 1, size=(2, n))
    lowest = np.where(digits == 1, 0, 10 ** (digits - 1))  # zero is a number of one digit
    left, right = rng.integers(lowest, 10**digits)
    is_long_product = (operators == OPERATORS.index("*")) & (
        digits.sum(axis=0) > MAX_PRODUCT_DIGITS
    )
    return np.stack([left, operators, right], axis=1)[~is_long_product]
