"""The rows of a subset."""

import pytest
from small import make_store, refused, store_columns

from store import NotFoundError, SchemaError
from store.cli.main import main
from store.traces.question_split import SPLITS, split_of_question
from store.transform.subset import rows_of_questions, rows_of_split


def test_every_row_is_in_the_split_of_its_question(asked):
    rows_of = {split: rows_of_split(asked, split, seed=3) for split in SPLITS}
    assert sorted(row for rows in rows_of.values() for row in rows) == list(range(40))
    for split, rows in rows_of.items():
        assert all(split_of_question(f"q{row // 2}", 3) == split for row in rows)


def test_equal_texts_are_in_one_split(tmp_path):
    """As training has them: the question is called after its first row."""
    ids, texts = ([f"{word}{i % n}" for i in range(40)] for word, n in (("q", 40), ("number ", 20)))
    columns = {"question_id": ("utf8", ids), "question": ("utf8", texts)}
    store = store_columns(tmp_path / "s.zarr", columns)
    for split in SPLITS:
        expected = [i for i in range(40) if split_of_question(f"q{i % 20}", 3) == split]
        assert rows_of_split(store, split, seed=3) == expected


def test_blank_ids_are_no_question(tmp_path):
    """Each trace is then a question of its own, unless its text is another's."""
    ids, texts = ["", " "] * 20, [""] * 38 + ["Why?", "why"]
    columns = {"question_id": ("utf8", ids), "question": ("utf8", texts)}
    store = store_columns(tmp_path / "s.zarr", columns)
    for split in SPLITS:
        found = [i for i in range(40) if split_of_question(f"t{min(i, 38)}", 3) == split]
        assert rows_of_split(store, split, seed=3) == found


def test_an_unknown_split_is_refused(asked):
    with pytest.raises(SchemaError, match=r"expected one of the splits .* found 'dev'"):
        rows_of_split(asked, "dev", seed=3)


@pytest.mark.parametrize("seed", ["-1", str(2**64)])
def test_a_seed_that_train_has_not_is_one_line(asked, tmp_path, capsys, seed):
    argv = ["subset", tmp_path / "o.zarr", asked.path, "--split", "test", "--seed", seed]
    line = refused(capsys, *argv)
    assert "argument --seed: expected a whole number from 0 to 2147483647" in line


def test_rows_of_questions(asked):
    """All of each question, ascending; a question without a trace is named."""
    assert rows_of_questions(asked, ["q19", "q0"]) == [0, 1, 38, 39]
    with pytest.raises(NotFoundError, match="found none of 'q77'"):
        rows_of_questions(asked, ["q0", "q77"])


def test_how_what_is_there_already_differs(asked, tmp_path, capsys):
    """Another choice of traces, and another store; no digest says so."""
    path = str(tmp_path / "few.zarr")
    ids = tmp_path / "ids.txt"

    def choose(*names):
        ids.write_text("\n".join(names))
        status = main(["subset", path, str(asked.path), "--ids", str(ids)])
        return status, capsys.readouterr().err

    first, second, third = asked.ids[:3]
    assert choose(first, second) == (0, "")
    status, line = choose(first, third)
    assert status == 2
    assert "found a store with other subset.rows; remove it" in line
    status, line = choose(first)
    assert "found a store with subset.rows 2 instead of 1, other subset.rows" in line
    rows = {trace.id: dict(trace) for trace in map(asked.__getitem__, asked.ids)}
    asked.path.rename(tmp_path / "old.zarr")
    make_store(asked.path, asked.schema.columns, rows)
    status, line = choose(first, second)
    assert f"found a store with subset.of '{asked.uuid}' instead of" in line
