"""Import of the older formats: rows against the traces that the files were made of, and what is
wrong with files."""

import gzip
import json
import os
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from killed import kill_at_random
from raw_generations import open_older
from torch_geometric.data import Data

from store import NotFoundError, SchemaError, TraceStore
from store.cli.main import main
from store.importers.files import find_older
from store.labels.relabel import set_labels
from store.labels.score_file import read_scores
from store.labels.score_table import ScoreTable
from store.transform.merge import merge_stores
from store.write.build import build_store, open_begun

L, H, D = 3, 2, 8
ROOT = Path(__file__).parents[4]


class Trace:
    """A trace, and how each of the older formats holds it."""

    def __init__(self, number, dtype=np.float16, n_tokens=None):
        rng = np.random.default_rng(number)
        self.n = n_tokens or 3 + number % 5
        self.prompt_len = 1 + number % 3
        self.id = f"tc_{number}"
        self.states = rng.normal(size=(self.n, L, D)).astype(dtype)
        maps = np.tril(rng.random((L, H, self.n, self.n)) + 0.01)
        self.maps = (maps / maps.sum(-1, keepdims=True)).astype(dtype)
        self.tokens = rng.integers(0, 1000, self.n)

    def raw_v3(self):
        return {
            "hidden_states": [self.states[:, layer] for layer in range(L)],
            "attentions": list(self.maps),
            "tokens": self.tokens,
            "tokens_decoded": [str(token) for token in self.tokens],
            "generated_answer_clean": f"answer {self.id} é",
            "question_id": self.id,
        }

    def raw_v1(self, beams=2, tensor=False):
        p = self.prompt_len
        cuts = [slice(0, p), *(slice(i, i + 1) for i in range(p, self.n))]
        kind = torch.from_numpy if tensor else np.asarray

        def beam(first):
            return kind(np.stack([first, *[np.full_like(first, 7)] * (beams - 1)]))

        return {
            "question": "What?",
            "generated_text": "...",
            "generated_answer": "...",
            "generated_answer_clean": f"answer {self.id} é",
            "hidden_states": [
                [beam(self.states[cut, layer]) for cut in cuts] for layer in range(L)
            ],
            "attentions": [
                [beam(self.maps[layer, :, cut, : cut.stop]) for cut in cuts] for layer in range(L)
            ],
            "tokens": self.tokens[p:],
            "tokens_full": np.r_[self.tokens, 5],
            "prompt_length": p,
            "num_layers": L,
            "cutoff_method": "none",
            "tokens_before_cutoff": 3,
            "tokens_after_cutoff": 3,
            "example_id": 0,
            "global_example_id": int(self.id[3:]),
            "batch_number": 0,
            "ground_truth_answers": ["a", "b é"],
        }

    def graphs(self, threshold=0.0):
        rows, columns = np.tril_indices(self.n)
        made = []
        for layer in range(L):
            mean = self.mean[:, layer]
            kept = mean >= threshold
            made.append(
                Data(
                    x=torch.from_numpy(self.states[:, layer]),
                    edge_index=torch.tensor(np.stack([columns[kept], rows[kept]])),
                    edge_attr=torch.from_numpy(mean[kept]),
                    num_nodes=self.n,
                )
            )
        return made

    @property
    def mean(self):
        """Head mean of the lower triangle `(pairs, L)`, in float32, then float16."""
        rows, columns = np.tril_indices(self.n)
        return self.maps.astype(np.float32).mean(1)[:, rows, columns].T.astype(np.float16)

    def assert_in(self, found, dtype=np.float16):
        maps = self.maps.astype(np.float32)
        assert found["question_id"] == self.id
        assert np.array_equal(found["hidden_states"], self.states.astype(dtype))
        assert np.array_equal(found["hs_last"], self.states[-1])
        assert np.allclose(found["attn_mean"], self.mean, atol=1e-3)
        if "attn_diag" in found:
            assert np.allclose(
                found["attn_diag"],
                np.diagonal(maps, axis1=2, axis2=3).transpose(2, 0, 1),
                atol=1e-3,
            )
            assert np.allclose(found["attn_colsum"], maps.sum(2).transpose(2, 0, 1), atol=3e-3)


def write(path, content, packed=False):
    path.parent.mkdir(parents=True, exist_ok=True)
    with (gzip.open if packed else open)(path, "wb") as file:
        pickle.dump(content, file)
    return path


def write_preprocessed(folder, traces, labels=None, threshold=0.0, stem="a"):
    """The pair of files that the old preprocessing left."""
    ids = [trace.id for trace in traces]
    labels = torch.tensor([float(i % 2) for i in range(len(traces))] if labels is None else labels)
    for kind, key, values in (
        ("gnn", "graphs", [trace.graphs(threshold) for trace in traces]),
        (
            "lstm_solo",
            "sequences",
            torch.from_numpy(np.stack([trace.states[-1] for trace in traces])),
        ),
    ):
        (folder / kind).mkdir(parents=True, exist_ok=True)
        torch.save(
            {key: values, "labels": labels, "question_ids": ids},
            folder / kind / f"preprocessed_{stem}.pt",
        )


def imported(out, *sources, scores=None, **options):
    table = None if scores is None else ScoreTable("scores", by_question=scores)
    source = open_older(*sources, scores=table, begun=open_begun(out), **options)
    return build_store(out, source), source.report


def test_raw_v3_comes_over_column_by_column(tmp_path):
    """Plain and gzip files, whatever they are called; tokens, texts, states, reductions, labels
    from scores."""
    traces = [Trace(i) for i in range(7)]
    write(tmp_path / "in/b.pkl.gz", [trace.raw_v3() for trace in traces[4:]], packed=True)
    write(tmp_path / "in/a.dat", [trace.raw_v3() for trace in traces[:4]])
    scores = {"tc_0": 0.2, "tc_1": 0.5, "tc_9": 1.0}
    store, report = imported(tmp_path / "s.zarr", tmp_path / "in", scores=scores)
    assert list(store.ids) == [trace.id for trace in traces]
    for trace, found in zip(traces, store, strict=True):
        trace.assert_in(found)
        assert found["tokens"].tolist() == trace.tokens.tolist()
        assert json.loads(found["token_texts"]) == [str(token) for token in trace.tokens]
        assert found["answer"] == f"answer {trace.id} é"
    assert [int(found["label"]) for found in store] == [1, 0, -1, -1, -1, -1, -1]
    assert [found["source_file"] for found in store] == ["a.dat"] * 4 + ["b.pkl.gz"] * 3
    assert (report.rows, report.unlabelled, report.scores_unused, report.whole) == (7, 5, 1, True)


@pytest.mark.parametrize("tensor", [False, True])
@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_raw_v1_joins_the_steps_of_the_first_beam(tmp_path, dtype, tensor):
    traces = [Trace(i, dtype) for i in range(5)]
    write(tmp_path / "a.pkl", [trace.raw_v1(tensor=tensor) for trace in traces])
    store, _ = imported(tmp_path / "s.zarr", tmp_path / "a.pkl", keep_attention=True)
    for trace, found in zip(traces, store, strict=True):
        trace.id = trace.id[3:]
        trace.assert_in(found, dtype)
        assert found["hidden_states"].dtype == dtype
        assert (int(found["prompt_len"]), int(found["answer_len"])) == (
            trace.prompt_len,
            trace.n - trace.prompt_len,
        )
        assert found["tokens"].tolist() == trace.tokens.tolist()
        assert json.loads(found["references"]) == ["a", "b é"]
        mass = trace.maps.astype(np.float32)[..., : trace.prompt_len].sum(-1).transpose(2, 0, 1)
        assert np.allclose(found["attn_pmass"], mass, atol=2e-3)
        assert np.array_equal(
            found["attentions"].reshape(trace.n, trace.n, L, H), trace.maps.transpose(2, 3, 0, 1)
        )


def test_graphs_and_sequences_of_a_trace_are_joined(tmp_path):
    """Sequences without graphs follow, with no tokens; labels that are neither 0 nor 1 are none."""
    traces = [Trace(i) for i in range(6)]
    write_preprocessed(tmp_path / "in", traces[:4], [1.0, 0.0, -1.0, float("nan")])
    alone = {
        "sequences": torch.zeros(2, L, D).half(),
        "labels": torch.ones(2),
        "question_ids": ["tc_1", "only"],
    }
    torch.save(alone, tmp_path / "in/lstm_solo/z.pt")
    store, report = imported(tmp_path / "s.zarr", tmp_path / "in")
    assert list(store.ids) == ["tc_0", "tc_1", "tc_2", "tc_3", "tc_1#2", "only"]
    for trace, found in zip(traces[:4], store, strict=False):
        trace.assert_in(found)
    assert store["only"]["hidden_states"].shape == (0, L, D)
    assert [int(found["label"]) for found in store] == [1, 0, -1, -1, 1, 1]
    assert store.provenance["attn_threshold"] == 0
    assert (report.rows, report.repeated, report.unlabelled) == (6, 1, 2)


def test_a_threshold_is_found_on_the_safe_side(tmp_path):
    """Edges that were dropped are zeros, and the smallest one kept anywhere is the threshold
    recorded."""
    traces = [Trace(i, n_tokens=6) for i in range(4)]
    write_preprocessed(tmp_path, traces, threshold=0.2)
    store, _ = imported(tmp_path / "s.zarr", tmp_path / "gnn")
    smallest = min(float(trace.mean[trace.mean >= 0.2].min()) for trace in traces)
    assert store.provenance["attn_threshold"] == pytest.approx(smallest)
    for trace, found in zip(traces, store, strict=True):
        assert np.array_equal(found["attn_mean"], np.where(trace.mean >= 0.2, trace.mean, 0))
    given, _ = imported(tmp_path / "t.zarr", tmp_path / "gnn", attn_threshold=0.2)
    assert given.provenance["attn_threshold"] == 0.2


def test_a_question_asked_again_gets_a_number(tmp_path):
    traces = [Trace(1), Trace(1), Trace(2), Trace(1)]
    write(tmp_path / "a.pkl", [trace.raw_v3() for trace in traces])
    store, report = imported(tmp_path / "s.zarr", tmp_path / "a.pkl")
    assert list(store.ids) == ["tc_1", "tc_1#2", "tc_2", "tc_1#3"]
    assert [found["question_id"] for found in store] == ["tc_1", "tc_1", "tc_2", "tc_1"]
    assert report.repeated == 2


def broken(change):
    record = Trace(1).raw_v3()
    change(record)
    return record


BROKEN = {
    "states of fewer tokens": lambda r: r.update(
        hidden_states=[layer[:-1] for layer in r["hidden_states"]]
    ),
    "one layer shorter": lambda r: r["hidden_states"].__setitem__(1, r["hidden_states"][1][:-1]),
    "maps of fewer tokens": lambda r: r.update(
        attentions=[layer[:, :-1, :-1] for layer in r["attentions"]]
    ),
    "tokens one more": lambda r: r.update(tokens=np.r_[r["tokens"], 1]),
    "texts one less": lambda r: r["tokens_decoded"].pop(),
    "no tokens": lambda r: r.pop("tokens"),
    "tokens of floats": lambda r: r.update(tokens=np.zeros(4)),
    "id of a number": lambda r: r.update(question_id=3),
    "states of integers": lambda r: r.update(hidden_states=[np.zeros((4, D), int)] * L),
    "another width": lambda r: r.update(hidden_states=[np.zeros((4, D + 1), np.float16)] * L),
    "layers missing": lambda r: r.update(hidden_states=r["hidden_states"][:1]),
    "no trace": lambda r: r.clear(),
}


@pytest.mark.parametrize("change", BROKEN.values(), ids=list(BROKEN))
def test_a_record_that_contradicts_itself_is_left_out(tmp_path, change):
    records = [Trace(0).raw_v3(), broken(change), Trace(2).raw_v3()]
    write(tmp_path / "a.pkl", records)
    store, report = imported(tmp_path / "s.zarr", tmp_path / "a.pkl")
    assert list(store.ids) == ["tc_0", "tc_2"]
    assert report.skipped.n == 1
    assert "a.pkl, record 1: " in report.skipped.messages[0]
    assert "\n" not in report.skipped.messages[0]
    assert not report.whole


def test_files_that_cannot_be_read_are_left_out_and_told(tmp_path):
    """The others go on."""
    write(tmp_path / "in/a.pkl", [Trace(0).raw_v3()])
    write(tmp_path / "in/b.pkl", [os.getcwd])
    write(tmp_path / "in/c.pkl", {"some": "thing"})
    (tmp_path / "in/d.pkl").write_bytes((tmp_path / "in/a.pkl").read_bytes()[:-50])
    write(tmp_path / "in/e.pkl", [Trace(4).raw_v1()])
    write(tmp_path / "in/f.pkl", [Trace(5).raw_v3()])
    store, report = imported(tmp_path / "s.zarr", *(tmp_path / "in").iterdir())
    assert list(store.ids) == ["tc_0", "tc_5"]
    assert {Path(name).name for name in report.refused} == {"b.pkl", "c.pkl", "d.pkl", "e.pkl"}
    assert "posix.getcwd" in report.refused[str(tmp_path / "in/b.pkl")]
    assert "found raw B" in report.refused[str(tmp_path / "in/e.pkl")]


def test_raw_and_preprocessed_files_make_two_stores(tmp_path):
    write(tmp_path / "a.pkl", [Trace(0).raw_v3()])
    write_preprocessed(tmp_path, [Trace(1)])
    with pytest.raises(SchemaError, match="import the two kinds into two stores"):
        imported(tmp_path / "s.zarr", tmp_path)
    assert not (tmp_path / "s.zarr").exists()


def test_a_folder_of_several_kinds_is_listed_with_its_commands(tmp_path, monkeypatch):
    """Which files are which, and for each kind a command that does import them alone."""
    monkeypatch.chdir(tmp_path)
    for i in range(5):
        write(Path(f"in/old traces/{i}.pkl.gz"), [Trace(i).raw_v3()], packed=True)
    write_preprocessed(Path("in"), [Trace(1)])
    with pytest.raises(SchemaError) as refused:
        imported(Path("s.zarr"), "in")
    text = str(refused.value)
    names = ", ".join(f"in/old traces/{i}.pkl.gz" for i in range(3))
    raw = (
        f"5 raw files ({names}, ...): python -m store import OUT-raw.zarr 'in/old traces/*.pkl.gz'"
    )
    files = "in/gnn/preprocessed_a.pt", "in/lstm_solo/preprocessed_a.pt"
    command = f"python -m store import OUT-preprocessed.zarr {' '.join(files)}"
    assert f"found {raw} and 2 preprocessed files ({', '.join(files)}): {command}; " in text
    assert "\n" not in text
    assert len(find_older(["in/old traces/*.pkl.gz"])) == 5
    assert len(imported(Path("p.zarr"), *files)[0]) == 1


def test_raw_files_of_another_generation_are_one_line_with_their_command(tmp_path, monkeypatch):
    """However many there are; a pattern names them where it names no other file."""
    monkeypatch.chdir(tmp_path)
    write(Path("in/a/0.pkl"), [Trace(0).raw_v3()])
    for i in range(25):
        write(Path(f"in/b/{i:02}.pkl"), [Trace(i).raw_v1()])
    for _ in range(2):  # a repeated import tells the same
        _, report = imported(Path("s.zarr"), "in")
        lines = report.summary(Path("s.zarr")).splitlines()
        assert lines == [
            "s.zarr: 1 trace",
            "  1 without a label",
            "  25 files left out",
            "  imported: 1 raw F file (in/a/0.pkl)",
            "  of another kind: 25 raw B files (in/b/00.pkl, in/b/01.pkl, in/b/02.pkl, ...); "
            "import them with",
            "python -m store import OUT-raw-B.zarr 'in/b/*.pkl'",
        ]
        assert not report.whole
    assert len(imported(Path("t.zarr"), "in/b/*.pkl")[0]) == 25
    write(Path("in/b/_.pkl"), [Trace(0).raw_v3()])
    summary = imported(Path("u.zarr"), "in")[1].summary(Path("u.zarr"))
    command = summary.splitlines()[-1].split()
    assert command[:5] == ["python", "-m", "store", "import", "OUT-raw-B.zarr"]
    assert command[5:] == [f"in/b/{i:02}.pkl" for i in range(25)]


def test_why_no_record_is_whole(tmp_path):
    """The first three reasons, with file and record, and how many more there are."""
    for i in range(2):
        write(
            tmp_path / f"in/{i}.pkl",
            [broken(BROKEN["no tokens"]), broken(BROKEN["id of a number"])],
        )
    with pytest.raises(SchemaError) as refused:
        imported(tmp_path / "s.zarr", tmp_path / "in")
    text = str(refused.value)
    assert text.startswith("expected traces in 2 files, found none: ")
    assert f"{tmp_path}/in/0.pkl, record 0: expected the key 'tokens'" in text
    assert f"{tmp_path}/in/0.pkl, record 1: question_id: expected a text, found int" in text
    assert f"{tmp_path}/in/1.pkl, record 0: expected the key 'tokens'" in text
    assert text.endswith("; and 1 more")
    assert "\n" not in text
    write(tmp_path / "empty.pkl", [])
    with pytest.raises(
        SchemaError, match="expected traces in 1 file, found none: no record is in them"
    ):
        imported(tmp_path / "s.zarr", tmp_path / "empty.pkl")


def test_an_import_tells_how_far_it_is_within_a_file(tmp_path):
    """By records: one large file moves on, and the estimate of its space has something to go by."""
    for i in range(2):
        write(tmp_path / f"in/{i}.pkl", [Trace(4 * i + k).raw_v3() for k in range(4)])
    source = open_older(tmp_path / "in")
    report = source.report
    shares = [report.bytes_done / report.bytes_all for _ in source.rows()]
    assert shares == pytest.approx([i / 8 for i in range(1, 9)], abs=0.02)
    assert report.bytes_done == report.bytes_all


def test_nan_and_infinity_are_kept_and_counted(tmp_path):
    records = [Trace(i).raw_v3() for i in range(4)]
    records[1]["hidden_states"][0][0, 0] = np.nan
    records[3]["hidden_states"][2][1, 1] = -np.inf
    write(tmp_path / "a.pkl", records)
    store, report = imported(tmp_path / "s.zarr", tmp_path / "a.pkl")
    assert report.not_finite == 2
    assert np.isnan(store["tc_1"]["hidden_states"][0, 0, 0])
    assert np.isneginf(store["tc_3"]["hidden_states"][1, 2, 1])


def test_columns_are_chosen(tmp_path):
    write(tmp_path / "a.pkl", [Trace(0).raw_v3()])
    store, _ = imported(tmp_path / "s.zarr", tmp_path / "a.pkl", columns=["hs_last", "label"])
    assert list(store.schema.columns) == ["question_id", "label", "hs_last", "source_file"]
    with pytest.raises(NotFoundError, match="found 'hs_lats'; closest: 'hs_last'"):
        imported(tmp_path / "t.zarr", tmp_path / "a.pkl", columns=["hs_lats"])


def bytes_of(store):
    """Every file but those that hold the store's identity."""
    files = sorted(
        file for file in store.path.rglob("*") if file.is_file() and file.parent != store.path
    )
    return {file.relative_to(store.path): file.read_bytes() for file in files}


@pytest.mark.parametrize("stop", range(0, 12))
def test_a_stopped_import_goes_on_to_the_same_store(tmp_path, monkeypatch, stop):
    """Stopped before any row: the rest, and the report of the rows, are those of an undisturbed
    import."""
    monkeypatch.setattr("store.write.writer.COMMIT_ROWS", 2)
    traces = [Trace(i % 8) for i in range(11)]
    for i in range(4):
        write(tmp_path / f"in/{i}.pkl", [trace.raw_v3() for trace in traces[3 * i : 3 * i + 3]])
    whole, wanted = imported(tmp_path / "whole.zarr", tmp_path / "in")

    source = open_older(tmp_path / "in")
    with pytest.raises(KeyboardInterrupt):
        build_store(tmp_path / "s.zarr", Stopping(source, stop))
    assert not (tmp_path / "s.zarr").exists()
    store, report = imported(tmp_path / "s.zarr", tmp_path / "in")
    assert list(store.ids) == list(whole.ids)
    for one, other in zip(store, whole, strict=True):
        assert np.array_equal(one["hidden_states"], other["hidden_states"])
        assert one["source_file"] == other["source_file"]
    assert (report.rows, report.repeated, report.unlabelled) == (
        wanted.rows,
        wanted.repeated,
        wanted.unlabelled,
    )
    assert bytes_of(store) == bytes_of(whole)


class Stopping:
    """A source that is interrupted before a row."""

    def __init__(self, source, stop):
        self.source, self.stop = source, stop
        self.schema, self.provenance = source.schema, source.provenance

    @property
    def remarks(self):
        return self.source.remarks

    def rows(self, start=0):
        for i, row in enumerate(self.source.rows(start)):
            if i == self.stop:
                raise KeyboardInterrupt
            yield row
        raise KeyboardInterrupt


def test_other_arguments_on_a_stopped_import_are_refused(tmp_path):
    write(tmp_path / "a.pkl", [Trace(i).raw_v3() for i in range(4)])
    with pytest.raises(KeyboardInterrupt):
        build_store(tmp_path / "s.zarr", Stopping(open_older(tmp_path / "a.pkl"), 2))
    with pytest.raises(SchemaError, match=r"found score_threshold 0\.5 instead of 0\.6"):
        imported(tmp_path / "s.zarr", tmp_path / "a.pkl", score_threshold=0.6)


def test_sources_that_are_not_there(tmp_path):
    with pytest.raises(NotFoundError, match=r"none\*: expected a file, folder or pattern"):
        find_older([str(tmp_path / "none*")])


@pytest.mark.parametrize(
    "text, message",
    [
        ("", "line 1: expected a header"),
        ("a,b\n", "line 1: expected a header"),
        ("question_id,score\nq1,x\n", "line 2: expected a finite number as score, found 'x'"),
        ("question_id,score\nq1,1\nq2,nan\n", "line 3: expected a finite number"),
        ("question_id,score\nq1\n", "line 2: expected 2 cells"),
        (
            "question_id,score\nq1,1\nq1,2\n",
            "line 3: expected one score for 'q1', found 1.0 and 2.0",
        ),
        (
            "question_id,score\nq1,1e300\n",
            "line 2: expected a finite number as score, found '1e300'",
        ),
        (
            ",f1,question_id\n0,0.1,q0\n",
            "no column has a known name .*, found , f1; say what to read with",
        ),
    ],
)
def test_wrong_scores_name_their_line(tmp_path, text, message):
    (tmp_path / "s.csv").write_text(text)
    with pytest.raises(Exception, match=message):
        read_scores(tmp_path / "s.csv")


def test_scores_are_read_by_name(tmp_path):
    (tmp_path / "s.csv").write_text(
        '\ufeffmodel,bleurt_score,question_id\nx,0.25,"a, b"\nx,,c\n\ny,1e0,d\n'
    )
    assert read_scores(tmp_path / "s.csv").by_question == {"a, b": 0.25, "d": 1.0}


def run(*arguments, cwd):
    command = [sys.executable, "-m", "store", *map(str, arguments)]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.run(
        command, cwd=cwd, capture_output=True, text=True, check=False, env=environment
    )


def test_the_command(tmp_path, monkeypatch, capsys):
    """Status 0 and a summary; 1 if something was left out; 2 for a user's mistake; parts make the
    whole."""
    for i in range(3):
        write(tmp_path / f"in/{i}.pkl", [Trace(3 * i + k).raw_v3() for k in range(3)])
    (tmp_path / "scores.csv").write_text("question_id,bleurt_score\ntc_1,0.1\n")
    done = run("import", "s.zarr", "in", "--scores", "scores.csv", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "s.zarr: 9 traces" in done.stdout
    assert "8 without a label" in done.stdout
    monkeypatch.chdir(tmp_path)

    def call(*arguments):
        """The rest in this process, which spares four imports of torch."""
        status = main(list(arguments))
        return subprocess.CompletedProcess(arguments, status, *capsys.readouterr())

    again = call("import", "s.zarr", "in")
    assert again.returncode == 2
    assert len(again.stderr.splitlines()) == 1
    write(tmp_path / "in/9.pkl", [eval])
    bad = call("import", "t.zarr", "in/*.pkl")
    assert bad.returncode == 1
    assert "builtins.eval" in bad.stdout
    (tmp_path / "in/9.pkl").unlink()
    for k in (1, 2):
        assert call("import", f"part{k}.zarr", "in", "--part", f"{k}/2").returncode == 0
    ids = [set(TraceStore.open(tmp_path / f"part{k}.zarr").ids) for k in (1, 2)]
    assert ids[0] | ids[1] == set(TraceStore.open(tmp_path / "s.zarr").ids)
    assert not ids[0] & ids[1]
    stores = [TraceStore.open(tmp_path / f"part{k}.zarr") for k in (1, 2)]
    assert [store.provenance["command"].split()[-1] for store in stores] == ["1/2", "2/2"]
    headline, shared = call("merge", "m.zarr", "part1.zarr", "part2.zarr").stdout.splitlines()
    assert headline == "m.zarr: 9 traces of 2 stores"
    assert shared.startswith("  18 files shared with the stores, ")


def test_a_file_that_changed_in_between_is_not_mixed_in(tmp_path):
    """Also if its size is the same: other records under the same name are another import."""
    records = [Trace(i).raw_v3() for i in (0, 5, 10)]
    write(tmp_path / "a.pkl", records)
    with pytest.raises(KeyboardInterrupt):
        build_store(tmp_path / "s.zarr", Stopping(open_older(tmp_path / "a.pkl"), 2))
    write(tmp_path / "a.pkl", records[::-1])
    os.utime(tmp_path / "a.pkl", ns=(1, 1))
    with pytest.raises(SchemaError, match="found other files"):
        imported(tmp_path / "s.zarr", tmp_path / "a.pkl")


def test_a_file_named_twice_is_read_once(tmp_path, monkeypatch):
    """By relative and absolute path, by its folder, through a link, by a pattern that also
    matches folders."""
    write(tmp_path / "in/sub/a.pkl", [Trace(0).raw_v3()])
    (tmp_path / "link").symlink_to(tmp_path / "in")
    monkeypatch.chdir(tmp_path)
    names = ["in/sub/a.pkl", str(tmp_path / "in"), "link", "in/*"]
    assert [item.path.name for item in find_older(names)] == ["a.pkl"]
    assert [item.path.name for item in find_older(["in/*"])] == ["a.pkl"]


def test_stores_are_no_old_files(tmp_path):
    write(tmp_path / "in/a.pkl", [Trace(0).raw_v3()])
    store, _ = imported(tmp_path / "in/s.zarr", tmp_path / "in/a.pkl")
    assert [item.path.name for item in find_older([str(tmp_path / "in")])] == ["a.pkl"]
    with pytest.raises(SchemaError, match="found a store; see python -m store merge"):
        find_older([str(store.path)])


def test_parts_of_preprocessed_files_keep_their_partners(tmp_path):
    """Each part joins its graphs with their sequences, wherever those are; together they are the
    whole."""
    for i in range(3):
        write_preprocessed(tmp_path / "in", [Trace(2 * i), Trace(2 * i + 1)], stem=str(i))
    whole, _ = imported(tmp_path / "w.zarr", tmp_path / "in")
    parts = [imported(tmp_path / f"{k}.zarr", tmp_path / "in", part=(k, 2))[0] for k in (1, 2)]
    assert sorted([*parts[0].ids, *parts[1].ids]) == sorted(whole.ids)
    for part in parts:
        for trace in part:
            assert trace["source_file"] == whole[trace.id]["source_file"]
            assert np.array_equal(trace["hidden_states"], whole[trace.id]["hidden_states"])
    with pytest.raises(NotFoundError, match="part 9/9: expected files in it"):
        open_older(tmp_path / "in", part=(9, 9))


def test_a_sequence_of_other_states_is_not_joined(tmp_path):
    """The k-th graphs and the k-th sequence of a question must agree on the last token's states."""
    write_preprocessed(tmp_path / "in", [Trace(1), Trace(2), Trace(3)])
    swapped = torch.from_numpy(np.stack([Trace(i).states[-1] for i in (2, 1, 3)]))
    content = {
        "sequences": swapped,
        "labels": torch.zeros(3),
        "question_ids": ["tc_1", "tc_2", "tc_3"],
    }
    torch.save(content, tmp_path / "in/lstm_solo/preprocessed_a.pt")
    store, report = imported(tmp_path / "s.zarr", tmp_path / "in")
    assert list(store.ids) == ["tc_3"]
    assert report.skipped.n == 2
    assert "expected the states of the last token as in" in report.skipped.messages[0]


DAMAGED = {
    "ids of numbers": {"question_ids": [1, 2]},
    "no ids": {"question_ids": None},
    "labels of text": {"labels": ["a", "b"]},
    "fewer sequences": {"sequences": torch.zeros(1, L, D).half()},
    "nothing": {"sequences": None},
}


@pytest.mark.parametrize("change", DAMAGED.values(), ids=list(DAMAGED))
def test_a_damaged_preprocessed_file_is_left_out(tmp_path, change):
    whole = {
        "sequences": torch.zeros(2, L, D).half(),
        "labels": torch.ones(2),
        "question_ids": ["a", "b"],
    }
    torch.save(whole, tmp_path / "a.pt")
    torch.save(whole | change, tmp_path / "b.pt")
    store, report = imported(tmp_path / "s.zarr", tmp_path / "a.pt", tmp_path / "b.pt")
    assert list(store.ids) == ["a", "b"]
    assert not report.whole
    assert all("\n" not in text for text in [*report.refused.values(), *report.skipped.messages])


def test_ids_that_look_like_numbered_ones_and_empty_lists(tmp_path):
    traces = [Trace(0), Trace(1), Trace(2)]
    for trace, name in zip(traces, ("q", "q#2", "q"), strict=True):
        trace.id = name
    write(tmp_path / "a.pkl", [trace.raw_v3() for trace in traces])
    write(tmp_path / "b.pkl", [])
    store, report = imported(tmp_path / "s.zarr", tmp_path / "a.pkl", tmp_path / "b.pkl")
    assert list(store.ids) == ["q", "q#2", "q#3"]
    assert report.whole


def test_what_is_not_ours_is_not_removed(tmp_path):
    write(tmp_path / "a.pkl", [Trace(0).raw_v3()])
    (tmp_path / "s.zarr.partial").mkdir()
    (tmp_path / "s.zarr.partial/precious.txt").write_text("x")
    with pytest.raises(
        SchemaError, match="expected a build that was stopped, found something else; move it away"
    ):
        imported(tmp_path / "s.zarr", tmp_path / "a.pkl")
    assert (tmp_path / "s.zarr.partial/precious.txt").exists()


@pytest.mark.parametrize("n_parts", [2, 3])
def test_parts_of_raw_files_are_numbered_when_they_are_merged(tmp_path, n_parts):
    """A question's traces may lie in several parts: merged, they have the ids of the whole
    import."""
    numbers = [[1, 2], [2, 3], [4, 2], [1], [5, 4, 4]]
    for i, some in enumerate(numbers):
        write(tmp_path / f"in/{i}.pkl", [Trace(n, n_tokens=4 + i).raw_v3() for n in some])
    whole, _ = imported(tmp_path / "w.zarr", tmp_path / "in")
    parts = [
        imported(tmp_path / f"{k}.zarr", tmp_path / "in", part=(k, n_parts))[0]
        for k in range(1, n_parts + 1)
    ]
    merged = merge_stores(tmp_path / "m.zarr", parts, lambda done: None)
    assert sorted(merged.ids) == sorted(whole.ids)
    for trace in whole:
        assert merged[trace.id]["source_file"] == trace["source_file"]
        assert np.array_equal(merged[trace.id]["hidden_states"], trace["hidden_states"])
    with pytest.raises(SchemaError, match="in both"):
        merge_stores(tmp_path / "twice.zarr", [parts[0], parts[0]], lambda done: None)


@pytest.mark.parametrize("form", ["raw_v3", "raw_v1"])
def test_the_embedding_s_states_are_no_layer(tmp_path, form):
    """Of a file that has them before the layers, as transformers gives them, layer 1 is the first
    block's."""
    plain, more = (getattr(Trace(1), form)() for _ in range(2))
    more["hidden_states"] = [more["hidden_states"][-1], *more["hidden_states"]]
    write(tmp_path / "plain/a.pkl", [plain])
    write(tmp_path / "more/a.pkl", [more])
    found = [
        imported(tmp_path / f"{name}.zarr", tmp_path / name)[0][0] for name in ("plain", "more")
    ]
    assert np.array_equal(found[0]["hidden_states"], found[1]["hidden_states"])


def test_other_numbers_of_layers_are_refused(tmp_path):
    """The file does not say which are meant."""
    record = Trace(1).raw_v3()
    record["attentions"] = record["attentions"][:1]
    write(tmp_path / "in/a.pkl", [record, Trace(2).raw_v3()])
    _, report = imported(tmp_path / "s.zarr", tmp_path / "in")
    assert report.rows == 1
    assert (
        "expected states of the 1 layers of attentions, or one more before them"
        in report.skipped.messages[0]
    )


def test_parts_may_be_labelled_before_they_are_merged(tmp_path):
    """One of them, or each by another file: what labels a part has says nothing of its ids."""
    for i in range(2):
        write(tmp_path / f"in/{i}.pkl", [Trace(1, n_tokens=4 + i).raw_v3()])
    parts = [imported(tmp_path / f"{k}.zarr", tmp_path / "in", part=(k, 2))[0] for k in (1, 2)]
    labels = ScoreTable("f", "label", kind="label", by_question={"tc_1": 1.0})
    set_labels(parts[0].path, labels)
    stores = [TraceStore.open(part.path) for part in parts]
    merged = merge_stores(tmp_path / "m.zarr", stores, lambda done: None)
    assert merged.ids[:] == ["tc_1", "tc_1#2"]
    assert merged.column("label").tolist() == [1, -1]


def test_a_part_may_hold_partners_only(tmp_path):
    """Its sequences all stand beside their graphs in another part; its columns are those of the
    whole."""
    write_preprocessed(tmp_path / "in", [Trace(1), Trace(2)])
    parts = [imported(tmp_path / f"{k}.zarr", tmp_path / "in", part=(k, 2))[0] for k in (1, 2)]
    assert [len(part) for part in parts] == [2, 0]
    assert parts[0].schema == parts[1].schema
    for i, order in enumerate((parts, parts[::-1])):
        assert list(merge_stores(tmp_path / f"m{i}.zarr", order, lambda done: None).ids) == [
            "tc_1",
            "tc_2",
        ]


def test_a_threshold_is_for_graphs(tmp_path):
    write(tmp_path / "a.pkl", [Trace(1).raw_v3()])
    with pytest.raises(SchemaError, match="attn_threshold: expected graphs, found raw F traces"):
        open_older(tmp_path / "a.pkl", attn_threshold=0.1)


def named_again(what):
    """A record of a few kilobytes that would fill the memory, and what is said of it."""
    v3, v1 = Trace(1).raw_v3(), Trace(1).raw_v1()
    if what == "layers":
        return v3 | {
            "hidden_states": v3["hidden_states"][:1] * 100_000
        }, "hidden_states and attentions: expected at most"
    if what == "steps":
        return v1 | {
            "hidden_states": [v1["hidden_states"][0][:1] * 100_000]
        }, "expected at most 2000000 bytes, found"
    return v1 | {
        "ground_truth_answers": ["x" * 1000] * 100_000
    }, "expected at most 16000000 characters"


@pytest.mark.parametrize("what", ["layers", "steps", "texts"])
def test_what_is_named_again_and_again_is_left_out(tmp_path, what):
    """A small file must not fill the memory."""
    record, message = named_again(what)
    good = Trace(2).raw_v3() if what == "layers" else Trace(2).raw_v1()
    write(tmp_path / "a.pkl", [record, good])
    store, report = imported(tmp_path / "s.zarr", tmp_path / "a.pkl", max_bytes=2_000_000)
    assert len(store) == 1
    assert message in report.skipped.messages[0]


def test_a_record_twice_in_a_file_is_read_once(tmp_path):
    record = Trace(1).raw_v3()
    write(tmp_path / "a.pkl", [record, Trace(2).raw_v3(), record])
    store, report = imported(tmp_path / "s.zarr", tmp_path / "a.pkl")
    assert list(store.ids) == ["tc_1", "tc_2"]
    assert (
        "record 2: expected a record of its own, found record 0 again" in report.skipped.messages[0]
    )


def test_a_finished_import_is_not_done_again(tmp_path):
    write(tmp_path / "a.pkl", [Trace(1).raw_v3(), Trace(2).raw_v3()])
    before = bytes_of(imported(tmp_path / "s.zarr", tmp_path / "a.pkl")[0])
    store, report = imported(tmp_path / "s.zarr", tmp_path / "a.pkl")
    assert (len(store), report.rows) == (2, 2)
    assert bytes_of(store) == before
    write(tmp_path / "b.pkl", [Trace(3).raw_v3()])
    with pytest.raises(
        SchemaError, match="what the same command made, found a store with files 1 instead of 2"
    ):
        imported(tmp_path / "s.zarr", tmp_path / "a.pkl", tmp_path / "b.pkl")


@pytest.mark.parametrize("stop", [1, 3, 4, 5, None])
def test_what_was_left_out_is_told_by_every_run(tmp_path, stop, monkeypatch):
    """Also by the one that resumes, and by one that finds everything done."""
    monkeypatch.setattr("store.write.writer.COMMIT_ROWS", 1)
    bad, odd = Trace(9).raw_v3() | {"tokens": "x"}, Trace(8)
    odd.states[0] = np.nan
    for name, content in (
        ("a", [bad, Trace(1).raw_v3(), bad, odd.raw_v3(), bad]),
        ("b", [bad]),
        ("d", [Trace(2).raw_v3(), Trace(3).raw_v3(), bad, Trace(4).raw_v3(), bad]),
    ):
        write(tmp_path / f"in/{name}.pkl", content)
    (tmp_path / "in/c.pkl").write_bytes(b"")
    if stop is not None:
        with pytest.raises(KeyboardInterrupt):
            build_store(tmp_path / "s.zarr", Stopping(open_older(tmp_path / "in"), stop))
    for _ in range(2):
        store, report = imported(tmp_path / "s.zarr", tmp_path / "in")
        assert (len(store), report.skipped.n, report.not_finite, len(report.refused)) == (
            5,
            6,
            1,
            1,
        )
        assert not report.whole
        assert [text.split(":")[0].split("/")[-1] for text in report.skipped.messages] == [
            *(f"a.pkl, record {i}" for i in (0, 2, 4)),
            "b.pkl, record 0",
            *(f"d.pkl, record {i}" for i in (2, 4)),
        ]


def test_other_files_in_a_folder_do_not_count(tmp_path):
    """But whatever is called like a file of traces does, however damaged."""
    write(tmp_path / "in/a.pkl", [Trace(1).raw_v3()])
    (tmp_path / "in/README.txt").write_text("This folder holds traces.")
    (tmp_path / "in/b.pkl.gz").write_bytes(b"")
    (tmp_path / "in/c.pt").write_bytes(bytes(4096))
    _, report = imported(tmp_path / "s.zarr", tmp_path / "in")
    assert sorted(Path(name).name for name in report.refused) == ["b.pkl.gz", "c.pt"]


def test_odd_files_do_not_stop_the_others(tmp_path):
    nested = ()
    for _ in range(500):
        nested = (nested,)
    write(tmp_path / "in/a.pkl", {10**5000: 1})
    write(tmp_path / "in/b.pkl", {nested: 1})
    Path(os.fsdecode(bytes(tmp_path / "in") + b"/c\xff.pkl")).write_bytes(
        pickle.dumps([Trace(1).raw_v3()])
    )
    store, report = imported(tmp_path / "s.zarr", tmp_path / "in")
    assert store["tc_1"]["source_file"] == r"c\xff.pkl"
    assert len(report.refused) == 2


def test_a_prompt_length_that_the_first_step_contradicts(tmp_path):
    record = Trace(2).raw_v1()
    write(
        tmp_path / "a.pkl",
        [record | {"prompt_length": record["prompt_length"] - 1}, Trace(5).raw_v1()],
    )
    _, report = imported(tmp_path / "s.zarr", tmp_path / "a.pkl")
    assert (
        "prompt_length: expected 3 as in the first step of hidden_states, found 2"
        in report.skipped.messages[0]
    )


def test_the_sequence_of_damaged_graphs_is_kept(tmp_path):
    """And the other traces of their file."""
    write_preprocessed(tmp_path / "in", [Trace(1), Trace(2), Trace(3)])
    path = tmp_path / "in/gnn/preprocessed_a.pt"
    content = torch.load(path, weights_only=False)
    content["graphs"][1] = [None, None]
    torch.save(content, path)
    store, report = imported(tmp_path / "s.zarr", tmp_path / "in")
    assert list(store.ids) == ["tc_1", "tc_2", "tc_3"]
    assert np.array_equal(store["tc_2"]["hs_last"], Trace(2).states[-1])
    assert store.lengths("hidden_states").tolist() == [Trace(1).n, 0, Trace(3).n]
    assert "is kept without graphs" in report.skipped.messages[0]


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
    sources = tmp_path / "z", tmp_path / "a.pt"
    whole, _ = imported(tmp_path / "w.zarr", *sources)
    parts = [imported(tmp_path / f"{k}.zarr", *sources, part=(k, 2))[0] for k in (1, 2)]
    for i, order in enumerate((parts, parts[::-1])):
        merged = merge_stores(tmp_path / f"m{i}.zarr", order, lambda done: None)
        assert {t.id: t["hs_last"].tobytes() for t in merged} == {
            t.id: t["hs_last"].tobytes() for t in whole
        }


def test_a_folder_of_ones_own_is_never_taken_for_a_stopped_build(tmp_path):
    write(tmp_path / "traces.partial/batch1/a.pkl", [Trace(1).raw_v3()])
    with pytest.raises(
        SchemaError, match="expected a build that was stopped, found something else"
    ):
        imported(tmp_path / "traces", tmp_path / "traces.partial")
    assert (tmp_path / "traces.partial/batch1/a.pkl").exists()
    (tmp_path / "link").symlink_to("nowhere")
    with pytest.raises(SchemaError, match="expected a new path"):
        imported(tmp_path / "link", tmp_path / "traces.partial")


@pytest.mark.slow
def test_killed_at_random_moments_it_ends_with_the_same_store(tmp_path):
    """Twenty SIGKILLs, and then the same command once more."""
    for i in range(40):
        write(
            tmp_path / f"in/{i}.pkl.gz",
            [Trace(n, n_tokens=40).raw_v3() for n in range(i, i + 8)],
            packed=True,
        )
    stores = kill_at_random(tmp_path, "import", ["in"], ["store.importers.legacy.imports"], 3, 0.2)
    assert stores
    for path in stores:
        assert bytes_of(TraceStore.open(path)) == bytes_of(TraceStore.open(tmp_path / "whole.zarr"))
