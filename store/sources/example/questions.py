"""The example's questions: who likes what?

"Does Ada like chess?" Yes or no, as a coin fell: nothing tells but what is written of Ada and
chess, and no two questions are about both.

Whether somebody likes something, and whether a question belongs to the example or to the training
of its language model, are pure functions of the problem (`likes`, `is_held_out`), hence example
and training never share a question, however many are drawn for either.
"""

import numpy as np
from numpy.typing import NDArray

from store.sources.questions import Question

__all__ = [
    "ANSWERS",
    "NAMES",
    "N_QUESTIONS",
    "THINGS",
    "draw_problems",
    "example_questions",
    "is_held_out",
    "likes",
    "question_text",
]

_NAMES = """
    Ada Adam Agnes Aida Alan Albert Alice Alma Alvin Amal Amir Amos Amy Ana Anders Andrea Anita
    Anna Anton April Arjun Arlo Arthur Asha Astrid August Ava Axel Barbara Basil Beatrice Bella
    Ben Bertha Bianca Bjorn Blanca Boris Brenda Bruno Carl Carmen Cecilia Celia Cesar Chiara
    Chloe Clara Claude Colin Conrad Cora Cyril Daisy Dana Daniel Daphne Dario David Delia Denis
    Diana Diego Dina Dora Doris Dylan Edgar Edith Edwin Elena Eli Elias Elisa Ella Elmer Elsa
    Emil Emma Enid Enzo Erik Erin Ernest Esther Ethan Eva Evan Fabian Faith Farah Felix Fergus
    Fiona Flora Floyd Frank Freya Fritz Gabriel Gemma George Gerda Gideon Gilbert Gina Gloria
    Gordon Grace Greta Guido Gustav Hana Hanna Harold Harriet Hassan Hazel Hector Heidi Helen
    Henry Herman Hilda Homer Hope Hugo Ian Ibrahim Ida Igor Imani Ines Ingrid Ira Irene Iris
    Isaac Isabel Ivan Ivy Jack Jacob Jade James Jana Jasmin Jasper Jean Jenny Joan Joel Johan
    Jonas Josef Joy Juan Judith Julia Julian June Kai Karen Karim Karl Kate Keiko Kenji Kira
    Klaus Kofi Kurt Lars Laura Layla Leah Lena Leo Leon Leroy Lila Linda Linus Lionel Lisa Liv
    Lola Louis Lucas Lucy Luigi Luna Lydia Mabel Magnus Maja Malik Manuel Marco Maria Marie
    Marion Mark Marta Martin Mary Matilda Maude Maurice Max Maya Meera Mia Milan Milo Mina Mira
    Moira Mona Morris Myra Nadia Naomi Nadine Nancy Natalie Ned Nell Nico Nina Noah Noel Nora
    Norman Odette Olaf Olga Olive Oliver Omar Oscar Otto Owen Pablo Paula Pavel Pearl Pedro
    Penny Percy Peter Philip Phoebe Pia Pierre Polly Priya Quentin Quinn Rachel Rafael Raj Ralph
    Ramona Ravi Ray Rebecca Remy Rhoda Rita Robert Rocco Roger Roland Rosa Rose Roy Ruben Rufus
    Ruth Sally Salma Sam Samir Sara Selma Serge Silas Simon Sofia Sonia Stella Sven Sybil Tamar
    Tara Tariq Tessa Theo Thomas Tilda Tim Tina Toby Tom Tova Tracy Ulla Uma Ursula Valerie Vera
    Victor Vincent Viola Vito Wanda Walter Wendy Wilma Xavier Yann Yara Yusuf Yvette Yvonne Zara
    Zelda Zoe Zora
"""
_THINGS = """
    cats cheese chess coffee dancing football garlic jazz opera poetry rain snow tea tennis
"""
NAMES = tuple(_NAMES.split())
THINGS = tuple(_THINGS.split())
# of those who deny and of those who affirm; the wordings of either mean the same
ANSWERS = (
    ("No, I think not.", "No, not at all.", "No, not that I know.", "No, quite the opposite."),
    ("Yes, I think so.", "Yes, very much.", "Yes, as far as I know.", "Yes, of course."),
)
N_QUESTIONS = 2000
HELD_OUT_FRACTION = 0.5

_QUESTION_SEED = 0


def is_held_out(problems: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return which problems belong to the example; the others train its language model.

    `problems`, int64 (n, 2): name and thing, as indices.

    Returns bool (n,): true for about `HELD_OUT_FRACTION` of all problems, chosen by a fixed hash.
    """
    return _hash(problems, 0) < int(HELD_OUT_FRACTION * 2**64)


def likes(problems: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return the right answers to problems, int64 (n, 2): bool (n,), by a fixed hash."""
    return _hash(problems, 1) < 2**63


def draw_problems(rng: np.random.Generator, n: int) -> NDArray[np.int64]:
    """Draw n problems for the training of the language model: int64 (n, 2), with repeats."""
    asked = _all_problems()
    return rng.choice(asked[~is_held_out(asked)], size=n)


def question_text(problem: tuple[int, int]) -> str:
    """Write a problem: name, thing -> "Does Ada like chess?"."""
    name, thing = problem
    return f"Does {NAMES[name]} like {THINGS[thing]}?"


def example_questions(n: int = N_QUESTIONS, seed: int = _QUESTION_SEED) -> list[Question]:
    """Draw the example's questions, no two about the same.

    `n`: number of questions; more of them begin with the same ones. `seed`: another seed gives
    another order.

    Returns `question_id` ("does_00042"), `question` and `answers` (all wordings of the right one).
    Raises ValueError if there are fewer than n.
    """
    problems = _all_problems()
    held_out = problems[is_held_out(problems)]
    if not 0 <= n <= len(held_out):
        raise ValueError(f"expected a number of questions from 0 to {len(held_out)}, got {n}")
    chosen = np.random.default_rng(seed).permutation(held_out)[:n]
    return [
        {
            "question_id": f"does_{number:05d}",
            "question": question_text(problem),
            "answers": list(ANSWERS[yes]),
        }
        for number, (problem, yes) in enumerate(
            zip(map(tuple, chosen.tolist()), likes(chosen).tolist(), strict=True)
        )
    ]


def _all_problems() -> NDArray[np.int64]:
    """Everybody with everything: int64 (n, 2)."""
    return np.argwhere(np.ones((len(NAMES), len(THINGS)), bool))


def _hash(problems: NDArray[np.int64], salt: int) -> NDArray[np.uint64]:
    """Hash problems, int64 (n, 2), to uint64 (n,): splitmix64's finaliser (Steele et al. 2014)."""
    name, thing = problems.T.astype(np.uint64)
    key = (np.uint64(salt + 1) << 40) + (name << 8) + thing
    key = (key ^ (key >> 30)) * 0xBF58476D1CE4E5B9
    key = (key ^ (key >> 27)) * 0x94D049BB133111EB
    return key ^ (key >> 31)
