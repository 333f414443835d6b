"""The controls that are probes like the baselines: of the prompt, and of the answer's length.

A detector that knows no more than they do has learned which questions are hard, or which answers
are long. The controls that read texts and fields have files of their own.
"""

from dataclasses import replace

from models.baselines import states_by_layer
from models.samples import number_of

__all__ = ["ANSWER_LENGTH", "PROMPT_STATE"]


PROMPT_STATE = states_by_layer("hs_prompt", sees="prompt")
ANSWER_LENGTH = replace(number_of("answer_len"), sees="length")
