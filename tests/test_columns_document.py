"""What the site generates: the columns of traces, which extraction, imports and training read as
well, the commands and the names of Python."""

import store
from docs.generate import TABLE, columns_table, commands_page, readers
from store.sources.huggingface.kept import build_schema
from store.traces.columns import SIZES, TRACE_COLUMNS, columns_of
from store.traces.states import DERIVED
from store.transform.samples.names import NEEDS
from tests.test_readme import ROOT


def test_what_is_read_and_derived_is_in_the_table():
    assert readers().keys() <= TRACE_COLUMNS.keys()
    assert DERIVED.keys() | NEEDS.keys() == set(columns_of(command="derive"))


def test_extraction_makes_what_the_table_says():
    sizes = {"L": 2, "d": 4, "H": 3, "K": 5, "2": 2}
    schema = build_schema(2, 3, 4, 5, "bfloat16")
    assert tuple(schema.columns) == columns_of(command="extract")
    for name, column in schema.columns.items():
        expected = TRACE_COLUMNS[name]
        assert column.axis == expected.axis
        assert column.item_shape == tuple(sizes[SIZES[one]] for one in expected.item_axes)
        assert column.dtype in expected.dtype.split(" or ")


def test_the_table_has_every_column_and_a_place():
    table = columns_table()
    assert all(f"| `{name}` |" in table for name in TRACE_COLUMNS)
    assert TABLE in (ROOT / "docs" / "columns.md").read_text()


def test_the_page_of_commands_has_every_command():
    page = commands_page()
    assert page.count("\n## python -m ") == page.count("usage: python -m ") > 20


def test_the_reference_of_python_has_every_name():
    text = (ROOT / "docs" / "api.md").read_text()
    assert all(f"::: store.{name}\n" in text for name in store.__all__)
