"""Scores of how much the answers to one question agree, as `python -m store derive` makes them.

Each is one number, of a column of the same name, and nothing is learned: the regression only turns
it into a probability, and finds its sign. A trace whose question was answered once has NaN, for
which the mean over train stands.

- `eigenscore`: the log-determinant of the covariance of the answers' states at a middle layer
  (INSIDE, arXiv:2402.03744); of the token before the end of the text, as in the authors' code.
- `lexical_similarity`: mean ROUGE-L over the pairs of answers (a baseline of arXiv:2302.09664).
- `semantic_entropy`, `semantic_entropy_discrete`: entropy of the meanings of the answers, weighted
  by their likelihood, and by their number (arXiv:2302.09664, doi:10.1038/s41586-024-07421-0).
- `selfcheck_nli`: P(contradiction) of the answer's sentences by the other answers (SelfCheckGPT,
  arXiv:2303.08896).

In the papers an answer is judged by samples that are drawn beside it, often at another temperature.
Here the traces of a question are the samples, so each is judged by itself and the others; all but
`selfcheck_nli` say the same of all traces of a question. The functions that compute the columns
(`store.transform.samples`) say what else differs.
"""

from functools import partial

from torch import Tensor

from models.probe import Probe
from store import Batch

__all__ = [
    "EIGENSCORE",
    "LEXICAL_SIMILARITY",
    "SELFCHECK_NLI",
    "SEMANTIC_ENTROPY",
    "SEMANTIC_ENTROPY_DISCRETE",
    "number_of",
    "single_number",
]


def single_number(batch: Batch, name: str) -> Tensor:
    """A column of one number for each trace, (B, 1, 1) float32."""
    return batch.fixed(name).float()[:, None, None]


def number_of(name: str) -> Probe:
    """The probe of a column of one number for each trace."""
    return Probe((name,), partial(single_number, name=name))


EIGENSCORE = number_of("eigenscore")
LEXICAL_SIMILARITY = number_of("lexical_similarity")
SEMANTIC_ENTROPY = number_of("semantic_entropy")
SEMANTIC_ENTROPY_DISCRETE = number_of("semantic_entropy_discrete")
SELFCHECK_NLI = number_of("selfcheck_nli")
