"""Scores of a question over its samples: columns of one number each."""

from models import PROBES
from store.transform.samples.names import NEEDS


def test_each_column_that_is_derived_has_a_probe_of_its_name():
    """And the other way round: the probe reads that column alone."""
    for name in NEEDS:
        assert PROBES[name].columns == (name,)
