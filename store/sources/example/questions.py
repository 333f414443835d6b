"""The example's questions: which month in one place has the season of a month in another?

"July Lima in Oslo" asks, as "5 miles in km" does, for the month in Oslo that is as July in Lima:
January. North and south of the equator seasons are half a year apart, so the answer is the same
month, or the sixth after it where the places are on different sides. A month has several right
spellings.

Whether a question belongs to the example or to the training of its language model is a pure
function of the question (`is_held_out`), hence the two never share one, however many are drawn for
either.
"""

from itertools import islice

import numpy as np
from numpy.typing import NDArray

from store.sources.questions import Question

__all__ = [
    "HALF_A_YEAR",
    "HELD_OUT_FRACTION",
    "IS_NORTHERN",
    "MONTHS",
    "NORTHERN",
    "N_QUESTIONS",
    "PLACES",
    "PLACE_SHARES",
    "SOUTHERN",
    "crosses_equator",
    "draw_problems",
    "example_questions",
    "is_held_out",
    "question_text",
    "right_months",
    "spellings",
]

# Names of one word; the rest of their geography does not matter. As many of one side as of the
# other, so that the name of one place says nothing of whether two are on different sides.
_NORTH = """
    Algiers Amman Amsterdam Anchorage Ankara Athens Baghdad Baku Bangkok Barcelona Beijing Beirut
    Belgrade Bergen Berlin Bilbao Bogota Bordeaux Boston Bremen Brussels Bucharest Budapest Busan
    Cairo Calgary Caracas Casablanca Chicago Cologne Copenhagen Dakar Dallas Damascus Delhi Denver
    Detroit Dhaka Dresden Dubai Dublin Edinburgh Geneva Glasgow Hamburg Hanoi Havana Helsinki
    Houston Istanbul Jerusalem Kabul Karachi Kolkata Kyiv Kyoto Lagos Lahore Leipzig Lisbon London
    Lyon Madrid Manila Marseille Miami Milan Minsk Montreal Moscow Mumbai Munich Naples Osaka Oslo
    Ottawa Palermo Paris Phoenix Porto Prague Quebec Reykjavik Riga Riyadh Rome Rotterdam Seattle
    Seoul Seville Shanghai Sofia Stockholm Stuttgart Taipei Tallinn Tbilisi Tehran Tokyo Toronto
    Toulouse Tripoli Tunis Turin Vancouver Venice Vienna Vilnius Warsaw Winnipeg Zagreb
    Zurich
"""
_SOUTH = """
    Adelaide Antananarivo Antofagasta Arequipa Arica Arusha Asuncion Auckland Ballarat Bandung
    Bariloche Beira Bendigo Blantyre Bloemfontein Brasilia Brazzaville Brisbane Broome Bujumbura
    Bulawayo Cairns Campinas Canberra Catamarca Christchurch Concepcion Cuiaba Curitiba Cusco Darwin
    Denpasar Dili Dodoma Dunedin Durban Florianopolis Fortaleza Francistown Gaborone Geelong
    Gisborne Goiania Gweru Harare Hobart Honiara Huambo Huancayo Invercargill Iquique Iquitos
    Jakarta Johannesburg Jujuy Kigali Kimberley Kinshasa Kitwe Launceston Lilongwe Lima
    Lobito Londrina Luanda Lubango Lubumbashi Lusaka Maceio Makassar Malang Manaus Maputo Maseru
    Mbabane Mbeya Melbourne Mendoza Mombasa Montevideo Moroni Mwanza Nairobi Nampula Napier Ndola
    Nelspruit Neuquen Niteroi Noumea Perth Pretoria Recife Resistencia Rosario Rotorua
    Salta Santiago Sucre Surabaya Suva Sydney Tauranga Temuco Townsville Trujillo Tucuman
    Ushuaia Valdivia Valparaiso Wellington Windhoek
"""
NORTHERN = tuple(_NORTH.split())
SOUTHERN = tuple(_SOUTH.split())


MONTHS = (
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
)
HALF_A_YEAR = 6  # months
N_QUESTIONS = 5000
HELD_OUT_FRACTION = 0.2

_QUESTION_SEED = 0
_DRAW_SIZE = 1024  # fixed, so that the first questions are the same however many are asked for
_PLACE_SEED = 7


ZIPF_OFFSET, ZIPF_EXPONENT = 8.0, 0.7
_RNG = np.random.default_rng(_PLACE_SEED)
_SIDES = [_RNG.permutation(side).tolist() for side in (NORTHERN, SOUTHERN)]
# from the most to the least often named, one of each side in turn
PLACES: tuple[str, ...] = tuple(place for pair in zip(*_SIDES, strict=True) for place in pair)
_SHARES = (np.arange(len(PLACES)) // 2 + ZIPF_OFFSET) ** -ZIPF_EXPONENT
PLACE_SHARES: NDArray[np.float64] = _SHARES / _SHARES.sum()  # both sides equally often (Zipf's law)
IS_NORTHERN = np.isin(PLACES, NORTHERN)


def is_held_out(problems: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return which problems belong to the example; the others train its language model.

    `problems`, int64 (n, 3): month, and the indices into `PLACES` of the place where it is and of
    the one asked for.

    Returns bool (n,): true for about `HELD_OUT_FRACTION` of all problems, chosen by a fixed hash.
    """
    month, place, other = problems.T.astype(np.uint64)
    key = (place * len(PLACES) + other) * len(MONTHS) + month
    # splitmix64's finaliser (Steele et al. 2014): neighbouring problems are independent.
    key = (key ^ (key >> 30)) * 0xBF58476D1CE4E5B9
    key = (key ^ (key >> 27)) * 0x94D049BB133111EB
    key ^= key >> 31
    return key < int(HELD_OUT_FRACTION * 2**64)


def draw_problems(
    rng: np.random.Generator,
    n: int,
    *,
    held_out: bool,
    shares: NDArray[np.float64] = PLACE_SHARES,
) -> NDArray[np.int64]:
    """Draw problems for the example or for training.

    Months are uniform; two different places by their shares.

    `rng`: advanced by a number of draws that depends on `n` and the draws alone. `n`: number of
    problems; repeats are possible. `held_out`: true draws for the example, False for the training
    of the language model. `shares`, float64 (places,): how often each place is drawn; they add up
    to 1.

    Returns int64 (n, 3): month (0 is January), index of the place where it is, index of the place
    asked for.
    """
    kept = np.empty((0, 3), np.int64)
    while len(kept) < n:
        months = rng.integers(len(MONTHS), size=n)
        places, others = rng.choice(len(PLACES), size=(2, n), p=shares)
        drawn = np.stack([months, places, others], axis=1)[places != others]
        kept = np.concatenate([kept, drawn[is_held_out(drawn) == held_out]])
    return kept[:n]


def crosses_equator(problems: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return in which problems, int64 (n, 3), the places are on different sides: bool (n,)."""
    return IS_NORTHERN[problems[:, 1]] != IS_NORTHERN[problems[:, 2]]


def right_months(problems: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the right answers, int64 (n,), 0 is January, to problems, int64 (n, 3)."""
    shift = np.where(crosses_equator(problems), HALF_A_YEAR, 0)
    return (problems[:, 0] + shift) % len(MONTHS)


def spellings(month: int) -> list[str]:
    """Write a month, 0 is January, in every way that counts: "July", "Jul", "7", "07", "7th"."""
    number = month + 1
    ending = {1: "st", 2: "nd", 3: "rd"}.get(number, "th")
    return [MONTHS[month], MONTHS[month][:3], str(number), f"{number:02}", f"{number}{ending}"]


def question_text(problem: tuple[int, int, int]) -> str:
    """Write a problem: month, place, other place -> "July Lima in Oslo"."""
    month, place, other = problem
    return f"{MONTHS[month]} {PLACES[place]} in {PLACES[other]}"


def example_questions(n: int = N_QUESTIONS, seed: int = _QUESTION_SEED) -> list[Question]:
    """Draw the example's questions, no two alike.

    `n`: number of questions; more of them begin with the same ones. `seed`: another seed gives
    other held-out questions.

    Returns `question_id` ("season_00042"), `question` ("July Lima in Oslo") and `answers` (the
    spellings of the right month).
    """
    rng = np.random.default_rng(seed)
    problems: dict[tuple[int, int, int], None] = {}  # a set that keeps its order
    while len(problems) < n:
        drawn = draw_problems(rng, _DRAW_SIZE, held_out=True).tolist()
        problems |= dict.fromkeys(map(tuple, drawn))
    chosen = list(islice(problems, n))
    answers = right_months(np.array(chosen, np.int64).reshape(-1, 3)).tolist()
    return [
        {
            "question_id": f"season_{number:05d}",
            "question": question_text(problem),
            "answers": list(dict.fromkeys(spellings(month))),  # May is its own abbreviation
        }
        for number, (problem, month) in enumerate(zip(chosen, answers, strict=True))
    ]
