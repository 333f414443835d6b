"""`store export`: every value in the file as in the store, whole or not at all, and back by `store
label`."""

import csv
import errno
import json
import os
import re
import sys

import numpy as np
import pytest
from small import make_store, refused

from store import Column, StoreError, TraceStore
from store.cli.main import main
from store.transform import export
from store.transform.export import export_table

TEXTS = ["plain", 'a "quoted", text', "two\nlines", "a\r\nb", "lone\rreturn"]
TEXTS += ["=cmd|' /C calc'!A1", "é 漢 🙂", "", " s "]
COLUMNS = dict.fromkeys(("question_id", "answer", "references"), "utf8")
COLUMNS |= {"score": "float32", "half": "float16", "label": "int8", "big": "int64"}
COLUMNS |= {
    "hidden": Column("float16", item_shape=(2,)),
    "tokens": Column("int32", axis="tokens"),
    "logprob": Column("float32", axis="tokens"),
}


@pytest.fixture
def store(tmp_path):
    rows = {}
    for i, text in enumerate(TEXTS):
        rows[f"t{i}"] = {
            "question_id": f"q{i // 2}",
            "answer": text,
            "references": json.dumps([text, "b"], ensure_ascii=False) if i % 2 else "no list",
            "score": float("nan") if i == 3 else i / 10,
            "half": 0.1,
            "label": -1 if i == 3 else int(i < 5),
            "big": 2**60 + i,
            "hidden": np.zeros(2, np.float16),
            "tokens": range(i),
            "logprob": [0.0] * i,
        }
    return make_store(tmp_path / "s.zarr", COLUMNS, rows)


def read_csv(path):
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def read_json_lines(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n")[:-1]]


def test_csv_holds_every_value(store, tmp_path):
    """Texts with quotes, line ends and formulas as they are; numbers in the fewest digits; NaN is
    an empty cell."""
    names = ["answer", "references", "score", "half", "label", "big"]
    columns = export_table(store, tmp_path / "t.csv", names)
    rows = read_csv(tmp_path / "t.csv")
    assert columns == list(rows[0]) == ["trace_id", "question_id", *names]
    assert [row["answer"] for row in rows] == TEXTS
    assert [row["trace_id"] for row in rows] == store.ids[:]
    assert rows[1]["references"] == store["t1"]["references"]
    assert [row["score"] for row in rows[:5]] == ["0.0", "0.1", "0.2", "", "0.4"]
    assert rows[0]["half"] == "0.1"
    assert [row["label"] for row in rows] == ["1", "1", "1", "-1", "1", "0", "0", "0", "0"]
    assert rows[1]["big"] == str(2**60 + 1)


def test_json_lines_hold_what_json_has_no_word_for(tmp_path):
    """Infinities, half a character, and lists that are none of texts."""
    rows = {"a": {"references": r'["\ud800"]', "score": -np.inf}}
    rows |= {"b": {"references": "[1, NaN]", "score": np.inf}}
    make_store(tmp_path / "s.zarr", {name: COLUMNS[name] for name in rows["a"]}, rows)
    export_table(TraceStore.open(tmp_path / "s.zarr"), tmp_path / "t.jsonl")
    assert (tmp_path / "t.jsonl").read_text(encoding="utf-8").splitlines() == [
        r'{"trace_id": "a", "references": ["\ud800"], "score": -1e999}',
        '{"trace_id": "b", "references": "[1, NaN]", "score": 1e999}',
    ]


def test_json_lines_hold_every_value(store, tmp_path):
    """A list of references is a list; NaN is null."""
    export_table(store, tmp_path / "t.jsonl", ["answer", "references", "score", "label"])
    records = read_json_lines(tmp_path / "t.jsonl")
    assert [record["answer"] for record in records] == TEXTS
    assert records[1]["references"] == [TEXTS[1], "b"]
    assert records[0]["references"] == "no list"
    assert records[3]["score"] is None
    del records[1]["references"]
    ids = {"trace_id": "t1", "question_id": "q0"}
    assert records[1] == ids | {"answer": TEXTS[1], "score": 0.1, "label": 1}


def test_rows_may_be_chosen(store, tmp_path, capsys):
    """By a file of ids, in its order."""
    (tmp_path / "ids.txt").write_text("t5\nt1\n")
    arguments = ["export", str(store.path), "--columns", "answer", "--to", str(tmp_path / "t.csv")]
    assert main([*arguments, "--ids", str(tmp_path / "ids.txt")]) == 0
    assert [row["trace_id"] for row in read_csv(tmp_path / "t.csv")] == ["t5", "t1"]
    assert "2 traces, columns trace_id, question_id, answer" in capsys.readouterr().out
    filtered = [*arguments, "--overwrite", "--where", "label == 1 and len(answer) > 0"]
    assert main(filtered) == 0
    rows = [row for row in range(len(store)) if store[row]["label"] == 1 and store[row]["answer"]]
    assert [row["trace_id"] for row in read_csv(tmp_path / "t.csv")] == [f"t{i}" for i in rows]


def test_blocks_do_not_show(store, tmp_path, monkeypatch):
    """Rows are read a block at a time, and the file is the same."""
    export_table(store, tmp_path / "one.csv")
    monkeypatch.setattr(export, "BLOCK_ROWS", 2)
    done = []
    export_table(store, tmp_path / "two.csv", progress=done.append)
    assert (tmp_path / "two.csv").read_bytes() == (tmp_path / "one.csv").read_bytes()
    assert done == [2, 4, 6, 8, 9]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["t.csv", "tokens"], "'tokens' holds an array in each row.*exported: trace_id, question_"),
        (["t.csv", "hidden"], "'hidden' holds an array in each row"),
        (["t.csv", "answr"], "found 'answr'; closest: 'answer'"),
        (["t.xlsx", "answer"], r"ends in \.csv, \.jsonl, \.parquet, found '\.xlsx'"),
        (["t", "answer"], "found 'no ending'"),
        (["s.zarr/t.csv", "answer"], "lies within the store"),
        (["none/t.csv", "answer"], "there is no directory"),
        (["there.csv", "answer"], "exists already.*--overwrite"),
        (["t.jsonl", "answer", "--escape-formulas"], "a .csv file with --escape-formulas"),
    ],
)
def test_what_is_refused(store, tmp_path, capsys, arguments, message):
    """Columns that no cell holds, an unknown ending, the store itself, and a file that may hold
    somebody's labels; nothing is written."""
    (tmp_path / "there.csv").write_text("labels")
    before = sorted(tmp_path.rglob("*"))
    target, name, *flags = arguments
    typed = ["export", store.path, "--to", tmp_path / target, "--columns", name, *flags]
    assert re.search(message, refused(capsys, *typed))
    assert sorted(tmp_path.rglob("*")) == before
    assert (tmp_path / "there.csv").read_text() == "labels"


def test_a_file_is_replaced_on_demand_and_whole(store, tmp_path, monkeypatch):
    """What fails half-way leaves the old file, and nothing beside it."""
    target = tmp_path / "t.csv"
    target.write_text("old")

    def fail(done):
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        export_table(store, target, overwrite=True, progress=fail)
    assert target.read_text() == "old"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["s.zarr", "t.csv"]
    export_table(store, target, overwrite=True)
    assert len(read_csv(target)) == len(TEXTS)


def test_parquet_says_what_it_needs(store, tmp_path, monkeypatch):
    """One line with the pip install that helps."""
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(StoreError, match=r"pip install .*\[arrays\]"):
        export_table(store, tmp_path / "t.parquet")
    assert not (tmp_path / "t.parquet").exists()


def test_parquet_holds_every_value(store, tmp_path):
    """With the dtypes of the store."""
    pytest.importorskip("pyarrow")
    from pyarrow import parquet

    export_table(store, tmp_path / "t.parquet", ["answer", "score", "half", "label", "big"])
    table = parquet.read_table(tmp_path / "t.parquet")
    assert table["answer"].to_pylist() == TEXTS
    assert table["score"].to_pylist()[3] is None
    assert table["half"].to_pylist() == [float(np.float16(0.1))] * len(TEXTS)  # wider, not another
    types = [str(field.type) for field in table.schema]
    assert types == ["string", "string", "string", "float", "float", "int8", "int64"]


@pytest.mark.parametrize("ending", ["csv", "jsonl"])
def test_export_judge_label(store, tmp_path, ending):
    """The file goes out, somebody adds a column, and it comes back trace by trace."""
    out, judged = tmp_path / f"out.{ending}", tmp_path / f"judged.{ending}"
    command = ["export", str(store.path), "--columns", "answer,references", "--to"]
    assert main([*command, str(out)]) == 0
    if ending == "csv":
        rows = read_csv(out)
        with judged.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, [*rows[0], "label"])
            writer.writeheader()
            writer.writerows(row | {"label": i % 2} for i, row in enumerate(rows))
    else:
        records = read_json_lines(out)
        lines = [json.dumps(record | {"label": i % 2}) for i, record in enumerate(records)]
        judged.write_text("\n".join(lines))
    assert main(["label", str(store.path), "--scores", str(judged)]) == 0
    labels = TraceStore.open(store.path).read(range(len(TEXTS)), ["label"])["label"]
    assert labels.tolist() == [i % 2 for i in range(len(TEXTS))]


def test_scores_come_back_bit_for_bit(store, tmp_path):
    """Labelling with what was exported changes nothing, also of scores that were turned."""
    export_table(store, tmp_path / "t.csv", ["score"])
    before = store.column("score").numpy()
    assert main(["label", str(store.path), "--scores", str(tmp_path / "t.csv")]) == 0
    np.testing.assert_array_equal(TraceStore.open(store.path).column("score").numpy(), before)


def test_formulas_are_escaped_on_request(tmp_path):
    """Texts that begin as one, the ids as well, and no numbers; other formats need none of it."""
    texts = ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", "a=1", "'=1", ""]
    columns = {name: COLUMNS[name] for name in ("answer", "score")}
    rows = {f"={i}": {"answer": text, "score": -1.0} for i, text in enumerate(texts)}
    make_store(tmp_path / "s.zarr", columns, rows)
    command = ["export", str(tmp_path / "s.zarr"), "--to"]
    assert main([*command, str(tmp_path / "a.csv"), "--escape-formulas"]) == 0
    assert main([*command, str(tmp_path / "b.csv")]) == 0
    escaped, plain = (read_csv(tmp_path / name) for name in ("a.csv", "b.csv"))
    rows, as_they_are = ([list(row.values()) for row in one] for one in (escaped, plain))
    assert [row[1] for row in rows] == [*(f"'{text}" for text in texts[:6]), *texts[6:]]
    assert [row[0] for row in rows] == [f"'={i}" for i in range(len(texts))]
    assert [row[1] for row in as_they_are] == texts
    assert {row[2] for row in rows} == {"-1.0"}


def test_a_full_disk_is_named_with_the_file(store, tmp_path, monkeypatch, capsys):
    """And nothing of it stays."""

    def fail(path, columns, blocks):
        path.write_text("half")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setitem(export.FORMATS, ".csv", fail)
    monkeypatch.setattr("store.cli.main.discard_output", lambda: None)  # pytest's has no descriptor
    target = tmp_path / "t.csv"
    line = refused(capsys, "export", store.path, "--to", target)
    assert f"export: {target}: expected to read and write" in line
    assert [path.name for path in tmp_path.iterdir()] == ["s.zarr"]
