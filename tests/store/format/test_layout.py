import numpy as np
import pytest

from store.format.layout import ArrayLayout


@pytest.mark.parametrize("split_axes", [(), (0,), (1,), (0, 1), (0, 2), (1, 2)])
def test_planes_show_the_items_they_were_cut_from(split_axes):
    """`planes_as_items` undoes the cut for any choice of split axes, without a copy."""
    items = np.arange(5 * 2 * 3 * 4).reshape(5, 2, 3, 4)
    layout = ArrayLayout("x", items.dtype, (2, 3, 4), split_axes, 1, 8)
    planes = np.ascontiguousarray(
        np.moveaxis(items, [i + 1 for i in split_axes], range(len(split_axes)))
    )
    view = layout.planes_as_items(planes)
    assert np.array_equal(view, items)
    assert np.shares_memory(view, planes)
