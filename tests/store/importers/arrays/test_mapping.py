import json

import numpy as np
import pytest
from ml_dtypes import bfloat16

from store.errors import SchemaError
from store.format.schema import Column
from store.importers.arrays.axes import has_rows
from store.importers.arrays.contents import Key
from store.importers.arrays.mapping import Mapped, column_of, parse_map, references_of, value_of


def states(dtype, *shape):
    return Column(dtype, shape, None, ("layers", "hidden"))


@pytest.mark.parametrize(
    "text",
    [
        *("", "a", "=b", "a=", "a=b,,c=d", "a=b,a=c", "hs_last:tokens=x", "source_file=x"),
        "hidden_states=h[records,layers,hidden]",
        "hs_last=h[layers,records,hidden]",
        "hs_last=h[records,layers,layers,hidden]",
        "hs_last=h[records,tokens,layers,hidden]",
    ],
)
def test_other_maps_are_refused(text):
    with pytest.raises(SchemaError, match="--map"):
        parse_map(text)


@pytest.mark.parametrize(
    ("shapes", "by_row"),
    [
        ({"hs_last": (7, 4, 8), "label": (7,)}, True),
        ({"hs_last": (7, 8), "label": (7,)}, True),
        ({"hs_last": (4, 8), "label": ()}, False),
        ({"hs_last": (4, 8), "label": (1,)}, False),
        ({"hs_last": (1, 4, 8), "label": (1,)}, True),
        ({"hidden_states": (5, 4, 8), "tokens": (5,)}, False),
        ({"hidden_states": (9, 5, 4, 8)}, True),
        ({"mine": (9, 5)}, True),
        ({"hs_last": (7, 4, 8), "hs_prompt": (7, 8)}, True),
        ({"hs_last": (1, 8)}, False),
        ({"hidden_states": (5, 4, 8), "hs_last": (4, 8)}, False),
    ],
)
def test_shapes_tell_rows_from_one_trace(shapes, by_row):
    """By the axes that columns of the field have."""
    mapped = [Mapped(name, name) for name in shapes]
    keys = {name: Key("float32", shape) for name, shape in shapes.items()}
    assert has_rows(mapped, keys) == by_row


@pytest.mark.parametrize(
    "shapes",
    [{"hs_last": (500, 64)}, {"hidden_states": (30, 20, 64)}, {"hs_last": (30, 64), "mine": (30,)}],
)
def test_rows_of_one_layer_are_not_guessed_from_the_layers_of_a_trace(shapes):
    """Both have the same shape."""
    mapped = [Mapped(name, name) for name in shapes]
    keys = {name: Key("float32", shape) for name, shape in shapes.items()}
    with pytest.raises(SchemaError, match="add a key of ids or labels, or name its axes, --map"):
        has_rows(mapped, keys)


def test_shapes_that_contradict_each_other_are_refused():
    keys = {"a": Key("float32", (7,)), "b": Key("float32", ())}
    with pytest.raises(SchemaError, match=r"a \(7,\), b \(\)"):
        has_rows([Mapped("label", "a"), Mapped("score", "b")], keys)


@pytest.mark.parametrize(
    ("name", "value", "column"),
    [
        ("hs_last", np.ones((4, 8), "f2"), states("float16", 4, 8)),
        ("hs_last", np.ones(8), states("float64", 1, 8)),
        ("hs_last", [[0.5] * 8] * 4, states("float32", 4, 8)),
        ("hs_last", np.ones((2, 3), bfloat16), states("bfloat16", 2, 3)),
        ("tokens", np.arange(3), Column("int32", axis="tokens")),
        ("label", np.int64(1), Column("int8")),
        ("label", True, Column("int8")),
        ("score", np.array([0.1]), Column("float32")),
        ("mine", np.ones((2, 3)), Column("float64", (2, 3))),
        ("mine", [0.1, 0.2], Column("float32", (2,))),
        ("mine", np.float64(0.1), Column("float64")),
        ("mine", np.float32(0.1), Column("float32")),
        ("mine", np.ones(2, "f2"), Column("float16", (2,))),
        ("mine", np.ones(2, ">f4"), Column("float32", (2,))),
        ("mine", "text", Column("utf8")),
        ("references", ["a", "b"], Column("utf8")),
        ("question_id", np.int64(7), Column("utf8")),
    ],
)
def test_columns_of_values(name, value, column):
    """Known columns have their axes and the types that they have everywhere."""
    item = Mapped(name, "k")
    assert column_of(item, value_of(item, value)) == column


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("label", 0.5),
        ("label", 300),
        ("label", 2**70),
        ("mine", 2**70),
        ("mine", [1e300]),
        ("mine", None),
        ("label", "yes"),
        ("label", [0, 1]),
        ("tokens", [1.5, 2.0]),
        ("tokens", 2**40),
        ("hs_last", [[1.0], [1.0, 2.0]]),
        ("hs_last", np.ones((2, 3, 4))),
        ("hs_last", None),
        ("hs_last", {"a": 1}),
        ("question", 1.5),
        ("references", ["a", 1]),
        ("mine", np.array(["2020"], dtype="M8[D]")),
    ],
)
def test_values_that_do_not_fit_are_refused(name, value):
    """Never rounded, wrapped, or read as something else."""
    item = Mapped(name, "k")
    with pytest.raises(SchemaError):
        column_of(item, value_of(item, value))


@pytest.mark.parametrize(
    ("value", "texts"),
    [
        ("Paris", ["Paris"]),
        (b"Paris", ["Paris"]),
        (np.str_("Paris"), ["Paris"]),
        (42, ["42"]),
        ("42", ["42"]),
        ('"Paris"', ['"Paris"']),
        ("", []),
        ("[1]", ["[1]"]),
        ("[" * 100_000, ["[" * 100_000]),
        ('["Paris", "Lutèce"]', ["Paris", "Lutèce"]),
        (["Paris"], ["Paris"]),
        ([], []),
        (np.array("Paris"), ["Paris"]),
        (np.array(["Paris"]), ["Paris"]),
        (np.array([b"Paris"]), ["Paris"]),
        (np.array(["Paris"], object), ["Paris"]),
        (np.array(["Paris", "Lutèce"], object), ["Paris", "Lutèce"]),
        (np.array([], object), []),
    ],
)
def test_references_are_a_list_of_texts(value, texts):
    """However many there are, and in whatever they come."""
    assert json.loads(references_of(value, "refs")) == texts
    assert value_of(Mapped("references", "refs"), value) == references_of(value, "refs")


@pytest.mark.parametrize("value", [b"caf\xe9", ["a", b"caf\xe9"]])
def test_bytes_that_are_not_utf8_are_refused(value):
    """By the name of their key: a text that a map names is never changed."""
    for column in ("question", "references"):
        with pytest.raises(SchemaError, match=r"^'?k'?: expected UTF-8, found b'caf"):
            value_of(Mapped(column, "k"), value)


@pytest.mark.parametrize(
    "value", [["a", None], [["a"]], {"a": 1}, 0.5, True, np.array([["a"], ["b"]]), np.array([1, 2])]
)
def test_references_that_are_no_texts_are_refused(value):
    with pytest.raises(SchemaError, match=r"^refs: expected a (list of )?text"):
        references_of(value, "refs")
