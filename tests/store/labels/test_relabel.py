"""`store label`: who gets a label, who keeps one, and how it is taken back."""

import csv
import shutil
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from faults import Faulty, Stop
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from relabelling import set_labels, undo_labels
from small import make_store, one_column, refused, store_columns

from store import Column, Schema, StoreWriter, TraceStore
from store.check.verify import verify_store
from store.cli.main import main
from store.errors import CorruptError, FormatError, LockedError, NotFoundError, SchemaError
from store.labels.notes import write_note
from store.labels.plan import commit_labels, plan_labels, read_labels
from store.labels.report import label_lines
from store.labels.rule import AS_GIVEN, ScoreTable
from store.traces.label_keys import RULE_KEY as RULE
from store.traces.notes import Note, notes_path, read_notes
from store.transform.merge import merge_stores
from store.view.describe import label_names
from store.write.build import build_store

COLUMNS = {"question_id": Column("utf8"), "score": Column("float32"), "label": Column("int8")}
PROVENANCE = {"label_rule": "exact", "score_threshold": 0.5, "model": "m"}
SCORES = [1.0, 0.0, 1.0, 0.0, float("nan"), 0.25]
LABELS = [0, 1, 0, 1, -1, 1]
IDS = ["q0", "q0#2", "q1", "q1#2", "q2", "q2#2"]


def write(path, first=0, **provenance):
    """Three questions, q0 to q2, with two samples each."""
    rows = {}
    for i, (score, label) in enumerate(zip(SCORES, LABELS, strict=True)):
        question = f"q{first + i // 2}"
        trace_id = question if i % 2 == 0 else f"{question}#2"
        rows[trace_id] = {"question_id": question, "score": score, "label": label}
    return make_store(path, COLUMNS, rows, PROVENANCE | provenance).path


@pytest.fixture
def path(tmp_path):
    return write(tmp_path / "s.zarr")


@pytest.fixture
def label(path, tmp_path, capsys):
    """Run `store label` with a file; its status and what it printed."""

    def run(text, *options):
        arguments = list(options)
        if text is not None:
            (tmp_path / "f.csv").write_text(text)
            arguments += ["--scores", str(tmp_path / "f.csv")]
        status = main(["label", str(path), *arguments])
        said = capsys.readouterr()
        return status, said.out + said.err

    return run


def test_labels_that_were_noted(path, label):
    """Those of the file beside the store; an empty label says nothing, and tags choose rows. Of two
    the last one counts, as the page shows it; so does one that is empty."""
    place = notes_path(path)
    write_note(place, "q0", label="1", tags="odd", note="a, b")
    write_note(place, "q1", tags="odd, late", note='x"')
    write_note(place, "q2", label="0")
    write_note(place, "none", tags="odd")
    assert label(None, "--from-notes")[0] == 0
    assert state(path)[1] == [1, 1, 0, 1, 0, 1]
    few = path.with_name("few.zarr")
    assert main(["subset", str(few), str(path), "--tag", "odd"]) == 0
    assert TraceStore.open(few).column("trace_id") == ["q0", "q1"]
    lines = ["trace_id,label,tags,note", "q0,1,,", "q0,0,,", "q1,true,,", "q2,1,,", "q2,,,"]
    place.write_text("\n".join(lines))
    assert [note.label for note in read_notes(place).values()] == ["0", "1", ""]
    assert label(None, "--from-notes")[0] == 0
    assert state(path)[1] == [0, 1, 1, 1, 0, 1]


@pytest.mark.parametrize("delimiter", [",", ";"])
def test_what_others_wrote_beside_notes_stays(tmp_path, delimiter):
    """Further columns, doubled lines, and the fields that are not changed."""
    place = tmp_path / "s.notes.csv"
    header = ["trace_id", "who", "label", "tags", "note"]
    lines = [
        ["q0", "me", "0", "odd", "first"],
        ["q1", "you", "1.0", "odd, check", ""],
        ["q0", "you", "", "", "second"],
    ]
    text = "\n".join(delimiter.join(f'"{cell}"' for cell in line) for line in [header, *lines])
    place.write_text(text)
    assert read_notes(place) == {"q0": Note("", "", "second"), "q1": Note("1", "odd check", "")}
    write_note(place, "q0", label="1")
    write_note(place, "q1", label="", tags="")
    write_note(place, "q2", note="new")
    write_note(place, "q2", note="")
    found = [*csv.reader(place.read_text().splitlines(), delimiter=delimiter)]
    lines[2][2] = "1"
    lines[1][2:] = ["", "", ""]
    assert found == [header, *lines]


def test_notes_that_are_taken_at_once_are_all_kept(tmp_path):
    place = tmp_path / "s.notes.csv"
    with ThreadPoolExecutor(4) as pool:
        assert [*pool.map(lambda i: write_note(place, f"q{i}", tags="odd"), range(40))]
    assert len(read_notes(place)) == 40


def test_classes_are_named(tmp_path, label, path, capsys):
    """Where labels are made; the names stay until others are given. Classes of merged stores keep
    theirs if all parts have the same ones."""
    names, usual = {"0": "faithful", "1": "made up"}, {"0": "right", "1": "hallucination"}
    assert label("trace_id,label\nq0,1\n", "--class-names", "faithful, made up")[0] == 0
    assert TraceStore.open(path).provenance["label_names"] == names
    assert label("trace_id,label\nq0,0\n")[0] == 0
    five = write(tmp_path / "5.zarr", first=5, label_names=names)
    named = [TraceStore.open(path), TraceStore.open(five)]
    other = TraceStore.open(write(tmp_path / "9.zarr", first=9))
    same = merge_stores(tmp_path / "same", named, lambda done: None)
    mixed = merge_stores(tmp_path / "mixed", [*named, other], lambda done: None)
    assert label_names(same.provenance) == names
    assert label_names(mixed.provenance) == usual
    with pytest.raises(SystemExit):
        label("trace_id,label\nq0,0\n", "--class-names", "one")
    assert "expected two names, of label 0 and of label 1" in capsys.readouterr().err


def test_notes_that_are_not_there(path, label, capsys):
    status, said = label(None, "--from-notes")
    assert status == 2
    assert "notes.csv" in said
    said = refused(capsys, "subset", path.with_name("few.zarr"), path, "--tag", "odd")
    assert "expected traces with the tag 'odd', found no tag" in said
    notes_path(path).write_text("a,b\n1,2\n")
    with pytest.raises(FormatError, match="expected the columns trace_id, label, tags, note"):
        read_notes(notes_path(path))


def state(path):
    scores, labels = read_labels(TraceStore.open(path))
    return [None if np.isnan(score) else score for score in scores.tolist()], labels.tolist()


def files(path):
    found = (file for file in path.parent.rglob("*") if file.is_file())
    return {file: file.read_bytes() for file in found if file.suffix != ".csv"}


BEFORE = ([1.0, 0.0, 1.0, 0.0, None, 0.25], LABELS)
CHANGE = "question_id,score\nq0,0.25\n"


def test_what_cannot_be_meant_is_refused(path, label, golden_lines):
    """Ids of another store (they wiped all labels), no values, lines that slipped, options without
    effect: one line and exit status 2; every file stays."""
    before = files(path)

    def refuse(asked):
        text, *options = asked
        status, said = label(text, *options)
        assert (status, files(path)) == (2, before)
        return said.replace(f"{path.parent}/", "").removesuffix("\n")

    golden_lines("refused.txt", refuse)


@pytest.mark.parametrize(
    "text, options, lines",
    [
        (
            "question_id,score\nq0,0.25\nq9,1\n",
            [],
            [
                "question_id q0: score 0.25 -> label 1 (hallucination)",
                "labels: 0 new, 1 changed, 0 removed, 4 stay",
                "4 traces are not listed and keep their labels",
                "1 id of the file fits no trace: 'q9'",
                "6 traces, 4 hallucinations, 1 right",
            ],
        ),
        (
            "question_id,score\nq2,1\n",
            ["--replace-all"],
            [
                "labels: 1 new, 1 changed, 4 removed, 0 stay",
                "4 traces are not listed: their labels are removed",
            ],
        ),
        (
            "question_id,label\nq0,1\nq1,0\n",
            [],
            ["column 'label' read as labels, 1 = hallucination", "4 traces lose their score"],
        ),
    ],
)
def test_what_is_said_of_a_file(path, label, text, options, lines):
    """A dry run writes nothing, and prints what the command without it prints."""
    before = files(path)
    status, planned = label(text, *options, "--dry-run")
    assert (status, files(path)) == (0, before)
    assert "dry run: nothing was written" in planned
    status, said = label(text, *options)
    assert (status, said.splitlines()[:-1]) == (0, planned.splitlines()[:-1])
    for line in lines:
        assert line in said


def test_a_low_score_may_be_the_better_one(path, label):
    """It is stored negated: in every store label = 1 iff score < score_threshold."""
    options = ["--score-column", "ppl", "--lower-is-better", "--score-threshold", "20"]
    status, said = label("question_id,ppl\nq0,30\nq1,4\nq2,20\n", *options)
    assert (status, "hallucination above 20" in said) == (0, True)
    assert state(path) == ([-30.0, -30.0, -4.0, -4.0, -20.0, -20.0], [1, 1, 0, 0, 0, 0])
    provenance = TraceStore.open(path).provenance
    assert provenance["score_threshold"] == -20.0
    assert "negated" in provenance["label_rule"]


VALUES = st.sampled_from([0, 1])
QUARTERS = st.integers(0, 8).map(lambda n: n / 4)


@settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data(), st.sampled_from(["score", "label"]), st.booleans())
def test_each_trace_has_what_the_file_says_of_it(tmp_path, data, kind, replace_all):
    """By its own id before its question's; what is not listed stays, or goes. Undone and done
    again, scores, labels and the rule in the provenance come back."""
    value = VALUES if kind == "label" else QUARTERS
    by_trace = data.draw(st.dictionaries(st.sampled_from(IDS), value))
    by_question = data.draw(st.dictionaries(st.sampled_from(["q0", "q1", "q2"]), value, min_size=1))
    rows = []
    for trace_id, *row in zip(IDS, *BEFORE, strict=True):
        given_value = by_trace.get(trace_id, by_question.get(trace_id.partition("#")[0]))
        if given_value is None:
            rows.append([None, -1] if replace_all else row)
        else:
            has_score = kind == "score"
            rows.append([given_value, given_value < 0.5] if has_score else [None, given_value])
    after = tuple(map(list, zip(*rows, strict=True)))
    path = write(tmp_path / f"{len(list(tmp_path.glob('*.zarr')))}.zarr")
    table = ScoreTable("f", kind, kind, by_trace=by_trace, by_question=by_question)
    with StoreWriter.open(path) as writer:
        commit_labels(writer, plan_labels(TraceStore.open(path), table, replace_all=replace_all))
    assert state(path) == after
    new = TraceStore.open(path).provenance
    for expected, rule in [(BEFORE, PROVENANCE), (after, new)]:
        undo_labels(path)
        assert state(path) == expected
        found = TraceStore.open(path).provenance
        for key in ("label_rule", "score_threshold", "model"):
            assert found.get(key) == rule.get(key)


def test_undo_is_a_command(path, label):
    """A dry run of it writes nothing, and one file keeps the earlier labels."""
    label(CHANGE)
    after = state(path)
    assert label(None, "--undo", "--dry-run")[0] == 0
    assert state(path) == after
    for expected in (BEFORE, after) * 2:
        status, said = label(None, "--undo")
        assert (status, state(path)) == (0, expected)
    assert not verify_store(path).problems
    assert "--undo brings them back" in said
    assert len(list(path.parent.glob("*.labels-*.csv"))) == 1


def test_the_same_command_twice_does_not_lose_the_labels_before(path, label):
    """The second changes nothing, so undo goes back before both."""
    for _ in range(2):
        label(CHANGE)
    assert "nothing changes: nothing was written" in label(CHANGE)[1]
    assert label(None, "--undo")[0] == 0
    assert state(path) == BEFORE


def test_undo_without_the_file_or_with_another(path, label):
    """A store that was moved elsewhere needs its file; one that was edited is refused."""
    label(CHANGE)
    backup = backup_of(path)
    (path.parent / "elsewhere").mkdir()
    moved = path.parent / "elsewhere" / "moved.zarr"
    path.rename(moved)
    message = r"s\.zarr\.labels-\w{8}-1\.csv: .*if the store was moved"
    with pytest.raises(NotFoundError, match=message):
        undo_labels(moved)
    shutil.copy(backup, moved.parent)
    undo_labels(moved)
    assert state(moved) == BEFORE
    newest = backup_of(moved)
    newest.write_text(newest.read_text().replace("0.25", "0.75"))
    with pytest.raises(CorruptError, match="expected the labels as they were saved"):
        undo_labels(moved)


def test_a_store_that_is_renamed_finds_its_file(path, label):
    """Where it is, and also through a link to it."""
    label(CHANGE)
    renamed = path.rename(path.with_name("renamed.zarr"))
    link = path.with_name("link.zarr")
    link.symlink_to(renamed)
    undo_labels(link)
    assert state(renamed) == BEFORE
    few = path.with_name("few.zarr")
    assert main(["subset", str(few), str(renamed), "--where", "label == 0"]) == 0
    with pytest.raises(NotFoundError, match="nothing to undo"):
        undo_labels(few)
    undo_labels(renamed)
    assert state(renamed) != BEFORE


def test_another_store_at_the_path_leaves_the_file_alone(path, label):
    """The earlier labels of a store that was moved away are not overwritten."""
    label(CHANGE)
    old = path.rename(path.with_name("old.zarr"))
    write(path)
    label("question_id,score\nq0,0.125\n")
    assert len(list(path.parent.glob("*.labels-*.csv"))) == 2
    undo_labels(old)
    assert state(old) == BEFORE


RECORDS = ["x", {}, {"file": "a"}, {"file": "../a", "sha256": "b", "provenance": {}}]
RECORDS.append({"file": 1, "sha256": 2, "provenance": 3})


@pytest.mark.parametrize("record", RECORDS)
def test_a_record_of_something_else_is_none(path, label, record):
    """Provenance may hold anything: there is nothing to undo, and labelling goes on."""
    with StoreWriter.open(path) as writer:
        writer.provenance = PROVENANCE | {"labels_before": record}
    status, said = label(None, "--undo")
    assert (status, "nothing to undo" in said) == (2, True)
    assert label(CHANGE)[0] == 0
    undo_labels(path)
    assert state(path) == BEFORE


def test_a_plan_is_refused_once_something_else_was_committed(path):
    """It would take back the other change, and that could not be undone."""
    plan = plan_labels(TraceStore.open(path), ScoreTable("scores", by_question={"q0": 0.25}))
    set_labels(path, {"q1": 0.25})
    now = state(path)
    with StoreWriter.open(path) as writer, pytest.raises(LockedError, match="plan them again"):
        commit_labels(writer, plan)
    assert state(path) == now


def test_labels_that_do_not_fit_leave_no_file(tmp_path):
    """Nothing was changed, so nothing has to be kept."""
    path = write(tmp_path / "s.zarr")
    plan = plan_labels(TraceStore.open(path), ScoreTable("scores", by_question={"q0": 0.25}))
    plan.new.labels[0] = 2**40
    with StoreWriter.open(path) as writer, pytest.raises(SchemaError):
        commit_labels(writer, plan)
    assert not list(tmp_path.glob("*.labels-*"))


def test_undo_keeps_what_was_appended_since(path, label):
    """A labelled store takes rows as before, and they keep their labels."""
    label(CHANGE)
    with StoreWriter.open(path) as writer:
        writer.append("q7", {"question_id": "q7", "score": 1.0, "label": 0})
    label(None, "--undo")
    assert state(path) == (BEFORE[0] + [1.0], BEFORE[1] + [0])


def test_a_store_without_labels_gets_them_and_loses_them(tmp_path):
    """Undo leaves the columns, with nothing in them."""
    path = one_column(tmp_path / "s.zarr", "x", "int8", [1, 2]).path
    set_labels(path, ScoreTable("f", by_trace={"t1": 0.1}))
    assert state(path) == ([None, pytest.approx(0.1)], [-1, 1])
    undo_labels(path)
    assert state(path) == ([None, None], [-1, -1])
    assert "label_rule" not in TraceStore.open(path).provenance


def test_labelled_stores_merge_with_others(tmp_path, path, label):
    """The earlier labels are no column that the other lacks."""
    label(CHANGE)
    stores = map(TraceStore.open, (path, write(tmp_path / "other.zarr", first=5)))
    merged = merge_stores(tmp_path / "m.zarr", [*stores], lambda done: None)
    assert read_labels(merged).labels.tolist() == [1, *LABELS[1:], *LABELS]


def test_labels_that_came_with_the_answers_are_not_replaced(tmp_path, capsys):
    """Also of a part, as a merged store says of its parts how they were labelled; so after labels
    of a few."""
    columns = dict.fromkeys(["question", "answer", "references"], "utf8") | {"label": "int8"}
    row = {"question": "Capital?", "answer": "Rome", "references": '["Paris"]', "label": 0}
    stores = [
        make_store(tmp_path / name, columns, {f"{name}{i}": row for i in range(2)}, {RULE: rule})
        for name, rule in (("a", "exact"), ("b", f"{AS_GIVEN}, else: exact"))
    ]
    assert "came with the answers" in refused(capsys, "label", tmp_path / "b", "--labels", "exact")
    path = merge_stores(tmp_path / "m.zarr", stores, lambda done: None).path
    for corrected in (None, "b0", "a0"):
        if corrected:
            set_labels(path, ScoreTable("f", "label", "label", by_trace={corrected: 1}))
        before = state(path)
        said = refused(capsys, "label", path, "--labels", "exact")
        assert "its labels came with the answers" in said
        assert state(path) == before
    assert main(["label", str(path), "--labels", "exact", "--replace-all"]) == 0
    assert state(path)[1] == [1] * 4
    assert main(["label", str(path), "--labels", "contains"]) == 0


def test_a_merged_store_has_one_scale(tmp_path, path):
    """Its parts say the threshold of the scores that stay, also after labels of a few."""
    parts = [TraceStore.open(path), TraceStore.open(write(tmp_path / "other.zarr", first=5))]
    merged = merge_stores(tmp_path / "m.zarr", parts, lambda done: None).path
    for table in (None, ScoreTable("f", "label", "label", by_trace={"q0": 1.0})):
        if table:
            set_labels(merged, table)
        with pytest.raises(SchemaError, match=r"threshold is 0\.5, and these"):
            set_labels(merged, {"q1": 80.0}, 40)
    set_labels(merged, {"q1": 0.25})
    assert state(merged)[1][:4] == [1, 1, 1, 1]


def test_a_subset_that_has_the_record_of_the_whole_leaves_it_its_file(path, label, monkeypatch):
    """As earlier versions made them."""
    label(CHANGE)
    monkeypatch.setattr("store.transform.subset.LABELS_BEFORE", None)
    few = path.with_name("few.zarr")
    assert main(["subset", str(few), str(path), "--where", "question_id == 'q0'"]) == 0
    undo_labels(few)
    undo_labels(path)
    assert state(path) == BEFORE


def backup_of(path):
    """The one file that keeps the earlier labels of a store."""
    uuid = TraceStore.open(path).uuid
    (found,) = path.parent.glob(f"*.labels-{uuid[:8]}-*.csv")
    return found


def stop():
    raise Stop


EVERY = [n if n % 7 == 1 else pytest.param(n, marks=pytest.mark.slow) for n in range(1, 85)]


@pytest.mark.parametrize("n", [*EVERY, 10_000])
def test_killed_at_any_point_the_labels_before_can_be_had(path, n):
    """A second change that dies leaves either state, and undo finds the one before it."""
    set_labels(path, {"q0": 0.25})
    first = state(path)
    table = ScoreTable("scores", by_question={"q1": 0.125})
    second = plan_labels(TraceStore.open(path), table).new.scores.tolist()
    stopped = False
    try:
        with StoreWriter.open(path, Faulty(n, stop, lasting=True)) as writer:
            commit_labels(writer, plan_labels(TraceStore.open(path), table))
    except Stop:
        stopped = True
    assert stopped == (n < 85)  # some of them after the commit
    now = state(path)
    if not stopped:
        assert now[0][2] == second[2] != first[0][2]
    undo_labels(path)
    assert state(path) == (BEFORE if now == first else first)


def test_the_rule_of_labels_that_stay_is_recorded(path):
    """The provenance does not say of all labels what holds for some."""
    set_labels(path, ScoreTable("f", "label", "label", by_question={"q0": 1.0}))
    provenance = TraceStore.open(path).provenance
    assert provenance["label_rule"].endswith("of 2 of 6 traces, the others keep their labels")
    assert (provenance["label_rule_before"], provenance["score_threshold"]) == ("exact", 0.5)
    scores = {"q0": 1.0, "q1": 1.0, "q2": 0.0}
    set_labels(path, ScoreTable("f", "rouge", threshold=0.7, by_question=scores))
    provenance = TraceStore.open(path).provenance
    rule = "label = 1 iff score < threshold, scores given in column 'rouge'"
    assert provenance["label_rule"] == rule
    assert provenance["score_threshold"] == 0.7
    assert "label_rule_before" not in provenance


@pytest.mark.parametrize(
    "column, value", [("int64", 1000), ("float32", 1.0), ("uint8", 1), ("bool", True)]
)
def test_labels_of_other_dtypes_are_kept(tmp_path, column, value):
    """What a user's own store has for labels, in rows that the file does not list."""
    one_column(tmp_path / "s.zarr", "label", column, [value, value])
    set_labels(tmp_path / "s.zarr", {"t1": 1.0})
    store = TraceStore.open(tmp_path / "s.zarr")
    assert store.schema.columns["label"].dtype == ("int64" if column == "int64" else "int8")
    assert store.read([0, 1], ["label"])["label"].tolist() == [value, 0]


@pytest.mark.parametrize(
    "columns, message",
    [
        ({"label": ("float32", [0.3])}, r"trace 't0': expected a whole number, found 0\.3"),
        (
            {"score": (Column("float32", axis="tokens"), [[0.3]])},
            "column 'score': expected one number in each row",
        ),
        ({"x": ("int8", [])}, "'t0' in the file, none in the store"),
    ],
)
def test_a_store_that_cannot_have_labels_is_refused(tmp_path, columns, message):
    store_columns(tmp_path / "s.zarr", columns)
    with pytest.raises((SchemaError, NotFoundError), match=message):
        set_labels(tmp_path / "s.zarr", {"t0": 1.0})


class Counting:
    """A source of three labelled rows."""

    schema = Schema(COLUMNS)
    provenance, remarks = PROVENANCE, {}

    def rows(self, start=0):
        for i in range(start, 3):
            yield f"q{i}", {"question_id": f"q{i}", "score": 1.0, "label": 0}


def test_a_labelled_store_is_still_what_its_command_made(tmp_path):
    """A script that makes, labels and trains may run again; other settings are still refused."""
    path = tmp_path / "s.zarr"
    build_store(path, Counting())
    for change, first in (
        (lambda: set_labels(path, {"q0": 0.25}), 1),
        (lambda: undo_labels(path), 0),
    ):
        change()
        assert read_labels(build_store(path, Counting())).labels.tolist() == [first, 0, 0]
        other = Counting()
        other.provenance = PROVENANCE | {"model": "other"}
        with pytest.raises(SchemaError, match="model 'm' instead of 'other'"):
            build_store(path, other)


def test_a_store_that_is_not_finished_is_not_labelled(tmp_path, path, capsys):
    """Its build could not go on: rows that are still to come have labels of their own."""
    partial = path.rename(tmp_path / "s.zarr.partial")
    assert "it is not finished" in refused(capsys, "label", partial, "--labels", "exact")


@pytest.mark.parametrize(
    "options", [["--score-threshold", "0.1"], ["--lower-is-better", "--score-threshold", "20"]]
)
def test_a_column_has_one_scale(path, label, options):
    """Scores that stay were labelled with another threshold: refused, unless all rows are new."""
    before = state(path)
    status, said = label(CHANGE, *options)
    assert (status, state(path)) == (2, before)
    assert "one column cannot hold both" in said
    assert label(CHANGE, *options, "--replace-all")[0] == 0


@pytest.mark.parametrize(
    "direction, expected", [("--lower-is-better", [1, 1]), ("--higher-is-better", [0, 0])]
)
def test_scores_in_a_column_called_like_labels_need_a_direction(path, label, direction, expected):
    """What is called hallucination is high where the answer is wrong: the message must not lead
    into its inverse."""
    text = "question_id,hallucination\nq0,0.75\n"
    assert "and which way they run, --lower-is-better or --higher-is-better" in label(text)[1]
    assert "say which way they run" in label(text, "--score-column", "hallucination")[1]
    assert label(text, "--score-column", "hallucination", direction, "--replace-all")[0] == 0
    assert state(path)[1][:2] == expected


def test_labels_are_counted(path, tmp_path):
    """With a warning where nearly all are of one class; nothing where there are no labels."""
    lines = ["  1 without a label", "  labels: 3 hallucinations, 2 right"]
    assert label_lines(TraceStore.open(path)) == lines
    wrong = one_column(tmp_path / "wrong.zarr", "label", "int8", [1] * 10)
    counts, warning = label_lines(wrong)
    assert counts == "  labels: 10 hallucinations, 0 right"
    assert "100% of 10 labels are hallucinations: check that the right column was read" in warning
    assert label_lines(one_column(tmp_path / "none.zarr", "x", "int8", [1])) == []
