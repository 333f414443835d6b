"""Import of the older formats: files, their order and parts, what is wrong with them, reports."""

import os
import pickle
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from killed import kill_at_random
from raw_generations import (
    LARGER,
    SMALL,
    Generated,
    bytes_of,
    find_older,
    imported,
    open_older,
    stop_import,
    write_pickle,
)
from relabelling import set_labels
from torch_geometric.data import Data

from store import NotFoundError, SchemaError, TraceStore
from store.cli.main import main
from store.labels.rule import ScoreTable
from store.transform.merge import merge_stores

L, D = SMALL.n_layers, SMALL.hidden


class Trace(Generated):
    """A raw trace of the last generation, and what the old preprocessing made of it."""

    @property
    def raw(self):
        return self.record("F")

    @property
    def mean(self):
        """Head mean of the lower triangle `(pairs, L)`, float16."""
        return self.expected("F")["attn_mean"].astype(np.float16)

    @property
    def last(self):
        """States of the last token `(L, d)`, float16."""
        return self.expected("F")["hs_last"].astype(np.float16)

    def graphs(self, threshold=0.0):
        n_tokens = self.n_states("F")
        rows, columns = np.tril_indices(n_tokens)
        made = []
        for states, mean in zip(self.raw["hidden_states"], self.mean.T, strict=True):
            kept = mean >= threshold
            made.append(
                Data(
                    x=torch.from_numpy(states),
                    edge_index=torch.tensor(np.stack([columns[kept], rows[kept]])),
                    edge_attr=torch.from_numpy(mean[kept]),
                    num_nodes=n_tokens,
                )
            )
        return made

    def assert_in(self, found):
        expected = self.expected("F")
        assert found["question_id"] == self.id
        assert np.array_equal(found["hidden_states"], expected["hidden_states"])
        assert np.array_equal(found["hs_last"], self.last)
        assert np.array_equal(found["attn_mean"], self.mean)


def raws(*numbers):
    """Raw records of some traces."""
    return [Trace(number).raw for number in numbers]


def write_preprocessed(folder, traces, labels=None, threshold=0.0, stem="a"):
    """The pair of files that the old preprocessing left."""
    labels = torch.tensor([float(i % 2) for i in range(len(traces))] if labels is None else labels)
    values = {
        "gnn": ("graphs", [trace.graphs(threshold) for trace in traces]),
        "lstm_solo": ("sequences", torch.from_numpy(np.stack([trace.last for trace in traces]))),
    }
    for kind, (key, value) in values.items():
        (folder / kind).mkdir(parents=True, exist_ok=True)
        content = {key: value, "labels": labels, "question_ids": [trace.id for trace in traces]}
        torch.save(content, folder / kind / f"preprocessed_{stem}.pt")


def in_parts(folder, sources, n=2):
    """The stores of the parts of an import."""
    return [imported(folder / f"{k}.zarr", *sources, part=(k, n))[0] for k in range(1, n + 1)]


def merged(out, parts):
    return merge_stores(out, parts, lambda done: None)


def parts_of_the_whole(folder, *sources, n=2):
    """The parts of an import, which are merged to the whole import in either order."""
    whole, _ = imported(folder / "whole.zarr", *sources)
    parts = in_parts(folder, sources, n)
    for i, order in enumerate((parts, parts[::-1])):
        found = merged(folder / f"merged{i}.zarr", order)
        assert sorted(found.ids) == sorted(whole.ids)
        for trace in whole:
            for name in ("source_file", "hidden_states", "hs_last"):
                assert np.array_equal(found[trace.id][name], trace[name])
    return parts


def test_graphs_and_sequences_of_a_trace_are_joined(tmp_path):
    """Sequences without graphs follow, with no tokens; labels that are neither 0 nor 1 are none."""
    traces = [Trace(i) for i in range(6)]
    write_preprocessed(tmp_path / "in", traces[:4], [1.0, 0.0, -1.0, float("nan")])
    torch.save(sequences(2, question_ids=["tc_1", "only"]), tmp_path / "in/lstm_solo/z.pt")
    store, report = imported(tmp_path / "s.zarr", tmp_path / "in")
    assert list(store.ids) == ["tc_0", "tc_1", "tc_2", "tc_3", "tc_1#2", "only"]
    for trace, found in zip(traces[:4], store, strict=False):
        trace.assert_in(found)
    assert store["only"]["hidden_states"].shape == (0, L, D)
    assert [int(found["label"]) for found in store] == [1, 0, -1, -1, 1, 1]
    assert store.provenance["attn_threshold"] == 0
    assert (report.rows, report.repeated) == (6, 1)


def test_a_threshold_is_found_on_the_safe_side(tmp_path):
    """Edges that were dropped are zeros, and the smallest one kept anywhere is the threshold
    recorded."""
    traces = [Trace(i) for i in range(2, 6)]
    write_preprocessed(tmp_path, traces, threshold=0.1)
    store, _ = imported(tmp_path / "s.zarr", tmp_path / "gnn")
    smallest = min(float(trace.mean[trace.mean >= 0.1].min()) for trace in traces)
    assert store.provenance["attn_threshold"] == pytest.approx(smallest)
    for trace, found in zip(traces, store, strict=True):
        assert np.array_equal(found["attn_mean"], np.where(trace.mean >= 0.1, trace.mean, 0))
    given, _ = imported(tmp_path / "t.zarr", tmp_path / "gnn", attn_threshold=0.1)
    assert given.provenance["attn_threshold"] == 0.1


def test_a_record_that_contradicts_itself_is_left_out(tmp_path, golden_lines):
    """Whatever becomes of a key's value, or without it."""

    def say(case):
        letter, key, change = case
        records = [Trace(i, numbered=True).record(letter) for i in range(3)]
        value = records[1].pop(key, None)
        if key == "all":
            records[1].clear()
        elif change is not None:
            names = {"np": np, "v": value}
            records[1][key] = eval(change, names)  # noqa: S307 - it is beside this file
        write_pickle(tmp_path / "a.pkl", records)
        shutil.rmtree(tmp_path / "s.zarr", ignore_errors=True)
        store, report = imported(tmp_path / "s.zarr", tmp_path / "a.pkl")
        assert [trace_id.removeprefix("tc_") for trace_id in store.ids] == ["0", "2"]
        [message] = report.skipped.messages
        assert not report.whole
        before, _, said = message.partition(": ")
        assert before == f"{tmp_path}/a.pkl, record 1"
        return said

    golden_lines("contradictions.txt", say)


def test_what_becomes_of_files(tmp_path, golden_lines):
    """The ids of the traces; files and records that cannot be read are left out and told, and the
    others go on. Where none is whole that is said of the first three, and how many more there
    are."""
    folder = tmp_path / "in"
    folder.mkdir()

    def say(files):
        for file in (*folder.iterdir(), tmp_path / "s.zarr"):
            shutil.rmtree(file) if file.is_dir() else file.unlink(missing_ok=True)
        for name, content in files.items():
            value = eval(content, globals())  # noqa: S307 - it is beside this file
            if isinstance(value, bytes):
                (folder / name).write_bytes(value)
            elif name.endswith(".pt"):
                torch.save(value, folder / name)
            else:
                write_pickle(folder / name, value)
        try:
            store, report = imported(tmp_path / "s.zarr", folder)
        except SchemaError as error:
            assert not (tmp_path / "s.zarr").exists()
            return str(error).replace(f"{folder}/", "")
        assert report.whole == (not report.skipped.n)
        messages = "; ".join([" ".join(store.ids), *report.skipped.messages])
        messages = re.sub(r"\d+ of the next \d+ bytes at byte \d+", "some bytes", messages)
        return messages.replace(f"{folder}/", "")  # NumPy's versions pickle into more or fewer

    golden_lines("older_files.txt", say)


def without(record, key):
    return {name: value for name, value in record.items() if name != key}


def test_an_import_tells_how_far_it_is_within_a_file(tmp_path):
    """By records: one large file moves on, and the estimate of its space has something to go by."""
    for i in range(2):
        write_pickle(tmp_path / f"in/{i}.pkl", raws(*range(4 * i, 4 * i + 4)))
    source = open_older(tmp_path / "in")
    report = source.report
    sizes = [file.stat().st_size for file in sorted((tmp_path / "in").iterdir())]
    done = [report.bytes_done for _ in source.rows()]
    expected = [*(sizes[0] * i / 4 for i in range(1, 5))]
    expected += [sizes[0] + sizes[1] * i / 4 for i in range(1, 5)]
    assert done == pytest.approx(expected, abs=1)
    assert report.bytes_done == report.bytes_all == sum(sizes)


def test_a_file_that_changed_in_between_is_not_mixed_in(tmp_path):
    """Also if its size is the same: other records under the same name are another import."""
    records = raws(0, 5, 10)
    write_pickle(tmp_path / "a.pkl", records)
    stop_import(tmp_path / "s.zarr", tmp_path / "a.pkl", stop=2)
    write_pickle(tmp_path / "a.pkl", records[::-1])
    os.utime(tmp_path / "a.pkl", ns=(1, 1))
    with pytest.raises(SchemaError, match="found other files"):
        imported(tmp_path / "s.zarr", tmp_path / "a.pkl")


def test_sources_that_are_not_there(tmp_path):
    with pytest.raises(NotFoundError, match=r"none\*: expected files, a folder or a pattern"):
        find_older([str(tmp_path / "none*")])


def test_the_command(tmp_path, monkeypatch, capsys):
    """Status 0 and a summary; 1 if something was left out; 2 for a user's mistake; parts make the
    whole."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments):
        status = main(list(arguments))
        return status, *capsys.readouterr()

    for i in range(3):
        write_pickle(tmp_path / f"in/{i}.pkl", raws(*range(3 * i, 3 * i + 3)))
    (tmp_path / "scores.csv").write_text("question_id,bleurt_score\ntc_1,0.1\n")
    status, out, err = call("import", "s.zarr", "in", "--scores", "scores.csv")
    assert (status, err) == (0, "")
    assert "s.zarr: 9 traces" in out
    assert "8 without a label" in out
    status, _, err = call("import", "s.zarr", "in")
    assert (status, len(err.splitlines())) == (2, 1)
    write_pickle(tmp_path / "in/9.pkl", [eval])
    status, out, _ = call("import", "t.zarr", "in/*.pkl")
    assert (status, "builtins.eval" in out) == (1, True)
    (tmp_path / "in/9.pkl").unlink()
    for k in (1, 2):
        assert call("import", f"part{k}.zarr", "in", "--part", f"{k}/2")[0] == 0
    stores = [TraceStore.open(tmp_path / f"part{k}.zarr") for k in (1, 2)]
    assert sorted([*stores[0].ids, *stores[1].ids]) == sorted(TraceStore.open("s.zarr").ids)
    assert [store.provenance["command"].split()[-1] for store in stores] == ["1/2", "2/2"]
    headline, shared = call("merge", "m.zarr", "part1.zarr", "part2.zarr")[1].splitlines()
    assert headline == "m.zarr: 9 traces of 2 stores"
    assert shared.startswith("  18 files shared with the stores, ")


def test_a_file_named_twice_is_read_once(tmp_path, monkeypatch):
    """By relative and absolute path, by its folder, through a link, by a pattern that also
    matches folders."""
    write_pickle(tmp_path / "in/sub/a.pkl", raws(0))
    (tmp_path / "link").symlink_to(tmp_path / "in")
    monkeypatch.chdir(tmp_path)
    names = ["in/sub/a.pkl", str(tmp_path / "in"), "link", "in/*"]
    assert [item.path.name for item in find_older(names)] == ["a.pkl"]
    assert [item.path.name for item in find_older(["in/*"])] == ["a.pkl"]


def test_stores_are_no_old_files(tmp_path):
    write_pickle(tmp_path / "in/a.pkl", raws(0))
    store, _ = imported(tmp_path / "in/s.zarr", tmp_path / "in/a.pkl")
    assert [item.path.name for item in find_older([str(tmp_path / "in")])] == ["a.pkl"]
    with pytest.raises(SchemaError, match="found a store; see python -m store merge"):
        find_older([str(store.path)])


def test_parts_of_preprocessed_files_keep_their_partners(tmp_path):
    """Each part joins its graphs with their sequences, wherever those are."""
    for i in range(3):
        write_preprocessed(tmp_path / "in", [Trace(2 * i), Trace(2 * i + 1)], stem=str(i))
    parts_of_the_whole(tmp_path, tmp_path / "in")
    with pytest.raises(NotFoundError, match="part 9/9: expected files in it"):
        open_older(tmp_path / "in", part=(9, 9))


def sequences(n, **changes):
    """The content of a preprocessed file without graphs."""
    states = torch.zeros(n, L, D).half()
    ids = [f"tc_{i}" for i in range(1, n + 1)]
    return {"sequences": states, "labels": torch.ones(n), "question_ids": ids} | changes


def test_a_sequence_of_other_states_is_not_joined(tmp_path):
    """The k-th graphs and the k-th sequence of a question must agree on the last token's states."""
    write_preprocessed(tmp_path / "in", [Trace(1), Trace(2), Trace(3)])
    swapped = torch.from_numpy(np.stack([Trace(i).last for i in (2, 1, 3)]))
    content = sequences(3, sequences=swapped)
    torch.save(content, tmp_path / "in/lstm_solo/preprocessed_a.pt")
    store, report = imported(tmp_path / "s.zarr", tmp_path / "in")
    assert list(store.ids) == ["tc_3"]
    assert report.skipped.n == 2
    assert "expected the states of the last token as in" in report.skipped.messages[0]


def test_a_damaged_trace_or_file_is_left_out(tmp_path, golden_lines):
    """With its sequence, where its graphs are damaged; the other traces of a file go on, and so do
    other files."""

    def say(change):
        shutil.rmtree(tmp_path / "s.zarr", ignore_errors=True)
        write_preprocessed(tmp_path / "in", [Trace(2), Trace(1), Trace(3)])
        path = tmp_path / "in/gnn/preprocessed_a.pt"
        file = torch.load(path, weights_only=False)
        other = sequences(2, question_ids=["x", "y"])
        exec(change, {"file": file, "graph": file["graphs"][1][0], "other": other})  # noqa: S102
        torch.save(file, path)
        torch.save(other, tmp_path / "in/lstm_solo/b.pt")
        store, report = imported(tmp_path / "s.zarr", tmp_path / "in")
        [message] = report.skipped.messages
        assert not report.whole
        said = message.removeprefix(f"{tmp_path}/in/").partition("Error: ")[0]  # NumPy's own words
        return f"{' '.join(store.ids)}; {said}"

    golden_lines("damaged.txt", say)


@pytest.mark.parametrize("n_parts", [2, 3])
def test_parts_of_raw_files_are_numbered_when_they_are_merged(tmp_path, n_parts):
    """A question's traces may lie in several parts: merged, they have the ids of the whole
    import."""
    for i, numbers in enumerate([[1, 2], [2, 3], [4, 2], [1], [5, 4, 4]]):
        traces = [Trace(number) for number in numbers]
        for trace in traces:
            trace.states += i  # what tells the traces of a question apart
        write_pickle(tmp_path / f"in/{i}.pkl", [trace.raw for trace in traces])
    parts = parts_of_the_whole(tmp_path, tmp_path / "in", n=n_parts)
    with pytest.raises(SchemaError, match="in both"):
        merged(tmp_path / "twice.zarr", [parts[0], parts[0]])


def test_parts_may_be_labelled_before_they_are_merged(tmp_path):
    """One of them, or each by another file: what labels a part has says nothing of its ids."""
    for i in range(2):
        write_pickle(tmp_path / f"in/{i}.pkl", raws(1))
    parts = in_parts(tmp_path, [tmp_path / "in"])
    labels = ScoreTable("f", "label", kind="label", by_question={"tc_1": 1.0})
    set_labels(parts[0].path, labels)
    found = merged(tmp_path / "m.zarr", [TraceStore.open(part.path) for part in parts])
    assert found.ids[:] == ["tc_1", "tc_1#2"]
    assert found.column("label").tolist() == [1, -1]


def test_a_part_may_hold_partners_only(tmp_path):
    """Its sequences all stand beside their graphs in another part; its columns are those of the
    whole."""
    write_preprocessed(tmp_path / "in", [Trace(1), Trace(2)])
    parts = parts_of_the_whole(tmp_path, tmp_path / "in")
    assert [len(part) for part in parts] == [2, 0]
    assert parts[0].schema == parts[1].schema


def test_merged_parts_have_the_ids_of_the_whole_whatever_the_folders_are_called(tmp_path):
    """Graphs come first, and ids that look like numbered ones are taken."""
    graphs, states = [Trace(1), Trace(2)], [Trace(1), Trace(2), Trace(3), Trace(4)]
    for trace in states[2:]:
        trace.id = "tc_1"
    graphs[1].id = states[1].id = "tc_1#2"
    write_preprocessed(tmp_path / "g", graphs)
    write_preprocessed(tmp_path / "s", states)
    (tmp_path / "z").mkdir()
    (tmp_path / "g/gnn/preprocessed_a.pt").rename(tmp_path / "z/graphs.pt")
    (tmp_path / "s/lstm_solo/preprocessed_a.pt").rename(tmp_path / "a.pt")
    parts_of_the_whole(tmp_path, tmp_path / "z", tmp_path / "a.pt")


@pytest.mark.parametrize("letter", "FB")
def test_the_embedding_s_states_are_no_layer(tmp_path, letter):
    """Of a file that has them before the layers, as transformers gives them, layer 1 is the first
    block's."""
    found = []
    for name, n_more in (("plain", 0), ("more", 1)):
        record = Trace(1).record(letter)
        states = record["hidden_states"]
        write_pickle(
            tmp_path / f"{name}.pkl", [record | {"hidden_states": states[:n_more] + states}]
        )
        found.append(imported(tmp_path / f"{name}.zarr", tmp_path / f"{name}.pkl")[0][0])
    assert np.array_equal(found[0]["hidden_states"], found[1]["hidden_states"])


def test_a_threshold_is_for_graphs(tmp_path):
    write_pickle(tmp_path / "a.pkl", raws(1))
    with pytest.raises(SchemaError, match="attn_threshold: expected graphs, found raw F traces"):
        open_older(tmp_path / "a.pkl", attn_threshold=0.1)


@pytest.mark.parametrize("stop", [1, 3, 4, 5, None])
def test_what_was_left_out_is_told_by_every_run(tmp_path, stop, monkeypatch):
    """Also by the one that resumes, and by one that finds everything done."""
    monkeypatch.setattr("store.write.writer.COMMIT_ROWS", 1)
    bad, odd = Trace(9).raw | {"tokens": "x"}, Trace(8)
    odd.states[:, 0] = np.nan
    one, two, three, four = raws(1, 2, 3, 4)
    write_pickle(tmp_path / "in/a.pkl", [bad, one, bad, odd.raw, bad])
    write_pickle(tmp_path / "in/b.pkl", [bad])
    (tmp_path / "in/c.pkl").write_bytes(b"")
    write_pickle(tmp_path / "in/d.pkl", [two, three, bad, four, bad])
    if stop is not None:
        stop_import(tmp_path / "s.zarr", tmp_path / "in", stop=stop)
    for _ in range(2):
        store, report = imported(tmp_path / "s.zarr", tmp_path / "in")
        assert (len(store), report.skipped.n, report.not_finite) == (5, 7, 1)
        assert not report.whole
        assert [text.split(":")[0].split("/")[-1] for text in report.skipped.messages] == [
            *(f"a.pkl, record {i}" for i in (0, 2, 4)),
            "b.pkl, record 0",
            "c.pkl",
            *(f"d.pkl, record {i}" for i in (2, 4)),
        ]


def test_odd_files_do_not_stop_the_others(tmp_path):
    write_pickle(tmp_path / "in/a.pkl", {10**5000: 1})
    path = Path(os.fsdecode(bytes(tmp_path / "in") + b"/c\xff.pkl"))
    path.write_bytes(pickle.dumps(raws(1)))
    store, report = imported(tmp_path / "s.zarr", tmp_path / "in")
    assert store["tc_1"]["source_file"] == r"c\xff.pkl"
    assert report.skipped.n == 1


@pytest.mark.slow
def test_killed_at_random_moments_it_ends_with_the_same_store(tmp_path):
    """Twenty SIGKILLs, and then the same command once more."""
    for i in range(40):
        records = [Trace(n, LARGER).raw for n in range(i, i + 8)]
        write_pickle(tmp_path / f"in/{i}.pkl.gz", records)
    stores = kill_at_random(tmp_path, "import", ["in"], ["store.importers.legacy"], 3, 0.2)
    assert stores
    for path in stores:
        assert bytes_of(TraceStore.open(path)) == bytes_of(TraceStore.open(tmp_path / "whole.zarr"))
