"""JSON lines and CSV, with the numbers of their lines."""

import io

import pytest

from store.text_records import LineError, parse_number, read_csv, read_json_lines, refuse


def test_json_lines_are_numbered():
    """Blank lines count, and give no record."""
    assert list(read_json_lines(['{"a": 1}', "", "[2]"])) == [(1, {"a": 1}), (3, [2])]


def test_a_row_is_numbered_by_its_first_line():
    """A quoted cell may span several; rows without cells are skipped."""
    text = io.StringIO('a, b\n"x\ny",1\n\n2,3\n', newline="")
    header, records = read_csv(text)
    assert header == ["a", "b"]
    assert list(records) == [(2, {"a": "x\ny", "b": "1"}), (5, {"a": "2", "b": "3"})]


@pytest.mark.parametrize(
    "text, line, message",
    [
        ("a,b\n1,2\n1,2,3\n", 3, "expected 2 cells as in the header, found 3"),
        ('a,b\n1,"2\n', 2, "expected CSV, found"),
        ("1\n{", 2, "expected one JSON object on the line"),
        ('{"label": 0}\n{"label": 0, "label": 1}', 2, "the key 'label' twice"),
        ('{"label": 0}\n{"a": [{"b": 1, "b": 1}]}', 2, "the key 'b' twice"),
    ],
)
def test_what_is_wrong_names_its_line(text, line, message):
    """A key twice is no record: neither value is the right one."""
    records = read_json_lines(text.splitlines())
    if text.startswith("a,b"):
        _, records = read_csv(io.StringIO(text, newline=""))
    with pytest.raises(LineError, match=message) as error:
        list(refuse(records))
    assert error.value.line == line


@pytest.mark.parametrize("text", ["\uff11", "\u0661", "1_0", "", "one"])
def test_digits_are_0_to_9(text):
    with pytest.raises(ValueError, match=r"number|float"):
        parse_number(text)
