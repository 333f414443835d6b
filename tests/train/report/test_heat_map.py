"""The heat map of runs and stores: every number is in it, and no pixel."""

from train.report.plots import draw_heat_map
from train.report.render import Picture, draw_svg

CELLS = {("a", "x"): (0.91, [0.88, 0.94]), ("b", "x"): (0.4, [0.3, 0.5])}


def draw():
    return draw_heat_map(CELLS, ["a", "b"], ["x", "a store of a long name " * 3], own={("a", "x")})


def test_cells_have_their_numbers():
    """The run's own store is marked; a cell without a number stays empty."""
    texts = [text.get_text() for text in draw().axes[0].texts]
    assert texts == [".910\n[.880, .940]\nown test split", ".400\n[.300, .500]"]


def test_it_is_drawn_as_lines_and_areas():
    """A page that loads nothing shows no pixels, not even its own."""
    svg = draw_svg(Picture("heat_map", draw(), "AUROC"))
    assert "<image" not in svg
    assert "data:" not in svg
