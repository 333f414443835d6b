import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from store.read.arrays.copies import scatter, window_width

N_BYTES = 400


@st.composite
def ranges(draw):
    """Ranges of some bytes, and how far the memory behind their first bytes may be read."""
    bounds = st.tuples(st.integers(0, N_BYTES), st.integers(0, 60)).map(
        lambda pair: (pair[0], min(N_BYTES, sum(pair)))
    )
    firsts, stops = np.array(draw(st.lists(bounds, min_size=1, max_size=20)), np.int64).T
    ends = [draw(st.integers(stop, N_BYTES)) for stop in stops.tolist()]
    return firsts, stops - firsts, np.array(ends)


def assert_scattered(memory, firsts, sizes, ends, width):
    out = np.zeros(int(sizes.sum()), np.uint8)
    scatter(memory, firsts, sizes, ends, width, out)
    pieces = [memory[first : first + size] for first, size in zip(firsts, sizes, strict=True)]
    assert np.array_equal(out, np.concatenate(pieces))


@given(ranges=ranges(), width=st.none() | st.integers(1, 80), seed=st.integers(0, 9))
def test_scattered_ranges_lie_one_after_the_other(ranges, width, seed):
    """Whatever the width of the windows; none reaches beyond the memory, which would raise."""
    sizes = ranges[1]
    memory = np.random.default_rng(seed).integers(0, 256, N_BYTES, np.uint8)
    assert_scattered(memory, *ranges, width or window_width(sizes, int(sizes.mean())))


def test_many_wide_ranges_are_scattered_in_several_steps():
    """More than are gathered at once."""
    rng = np.random.default_rng(0)
    memory = rng.integers(0, 256, 2**20, np.uint8)
    sizes = rng.integers(1000, 5000, 700)
    firsts = rng.integers(0, len(memory) - 5000, 700)
    ends = np.full(700, len(memory))
    assert_scattered(memory, firsts, sizes, ends, window_width(sizes, 3000))
