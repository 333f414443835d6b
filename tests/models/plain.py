"""What the plain computations share that detectors are compared with: arrays of float64."""

import numpy as np


def array(parameter):
    return parameter.detach().double().numpy()


def linear(part, x):
    return array(part.weight) @ x + array(part.bias)


def span_of(trace):
    """Positions of the answer's tokens; of an unknown prompt those of all."""
    start, length = int(trace["prompt_len"]), int(trace["answer_len"])
    return range(len(trace["logprob"])) if start < 0 else range(start, start + length)


def standardise(rows, mean, spread):
    """NaN is the mean."""
    return np.nan_to_num((rows - mean) / np.sqrt(spread + 1e-6))
