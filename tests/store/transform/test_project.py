"""The column of coordinates, against NumPy's singular vectors of the very states."""

import sys
from types import ModuleType

import numpy as np
import pytest
import small
import torch
from damage import flip
from small import make_store, one_column, store_columns

from store import Column, NotFoundError, SchemaError, StoreWriter, TraceStore
from store.cli.main import main
from store.traces.maps import PROJECTIONS_KEY
from store.transform import project
from store.transform.project import project_column
from store.transform.projection import Projection

N = 60
SCALES = np.array([5.0, 3.0, 1.0, 0.5, 0.2])
LAYERS = [8, 16]


def make(path, dtype="float16", n=N, missing=(), prefix="t", **options):
    """A store of states whose first two directions differ; rows `missing` have a NaN."""
    states = Column(dtype, (2, 5), axis_names=("layers", "hidden"), **options)
    rng = np.random.default_rng(0)
    rows = {}
    for i in range(n):
        numbers = rng.normal(size=(2, 5)) * SCALES + 10
        if i in missing:
            numbers[:, i % 5] = (np.nan, np.inf)
        values = torch.from_numpy(numbers).to(getattr(torch, dtype))
        rows[f"{prefix}{i}"] = {"hs_last": values, "label": i % 2, "question": f"q{i}"}
    columns = {"hs_last": states, "label": "int8", "question": "utf8"}
    make_store(path, columns, rows, {"layers": LAYERS})
    return str(path)


def refused(path, capsys, *arguments):
    """The line on stderr of a command that fails, and changes nothing."""
    before = TraceStore.open(path).generation
    error = small.refused(capsys, "project", path, *arguments)
    assert TraceStore.open(path).generation == before
    return error


def read(path, name):
    return TraceStore.open(path, check=True).column(name).numpy()


def expected(path, position, dimensions=2):
    """Coordinates by NumPy, up to the signs, of the rows that are finite; else NaN."""
    states = TraceStore.open(path).column("hs_last")[:, position].double().numpy()
    is_finite = np.isfinite(states).all(axis=1)
    centred = states[is_finite] - states[is_finite].mean(axis=0)
    _, _, directions = np.linalg.svd(centred, full_matrices=False)
    points = np.full((len(states), dimensions), np.nan)
    points[is_finite] = centred @ directions[:dimensions].T
    return points


def assert_same_map(found, points):
    assert found.dtype == np.float32
    assert np.allclose(np.abs(found), np.abs(points), atol=1e-5, equal_nan=True)


@pytest.mark.parametrize(
    "dtype, options",
    [
        *(("float16", {}), ("bfloat16", {"codec": "zstd:3"}), ("float32", {"split": ("layers",)})),
        ("float64", {"codec": "zstd:3", "split": ("layers",)}),
    ],
)
def test_coordinates_are_the_principal_components(tmp_path, dtype, options):
    """However the states are stored; nothing else changes."""
    path = make(tmp_path / "s.zarr", dtype, **options)
    assert main(["project", path, "--layer", "16"]) == 0
    assert_same_map(read(path, "hs_last_16_pca"), expected(path, 1))
    store = TraceStore.open(path)
    assert store.schema.columns["hs_last_16_pca"].axis_names == ("dimensions",)
    assert store.provenance["layers"] == LAYERS
    assert store.column("question")[3] == "q3"


def test_rows_come_in_blocks(tmp_path, monkeypatch):
    """Of any size, the last one shorter."""
    monkeypatch.setattr(project, "BLOCK_BYTES", 7 * 5 * 8)
    path = make(tmp_path / "s.zarr")
    seen = []
    with StoreWriter.open(path) as writer:
        project_column(writer, Projection(layer=8), progress=seen.append)
    assert_same_map(read(path, "hs_last_8_pca"), expected(path, 0))
    assert seen[:2] == [7, 14]
    assert seen[-1] == 2 * N


def test_states_that_are_not_finite_have_no_coordinates(tmp_path, capsys):
    """They are counted, and shift no other trace."""
    path = make(tmp_path / "s.zarr", missing=(0, 7, 59))
    assert main(["project", path, "--layer", "-1", "--name", "map"]) == 0
    assert "; 3 traces whose states are not finite: NaN" in capsys.readouterr().out
    assert_same_map(read(path, "map"), expected(path, 1))
    assert np.flatnonzero(np.isnan(read(path, "map")).all(axis=1)).tolist() == [0, 7, 59]
    made = TraceStore.open(path).provenance[PROJECTIONS_KEY]["map"]
    assert (made["rows_fitted"], made["rows_not_finite"]) == (57, 3)


def test_the_provenance_says_what_was_projected(tmp_path, capsys):
    path = make(tmp_path / "s.zarr")
    assert main(["project", path, "--layer", "16", "--sample", "20", "--dimensions", "3"]) == 0
    made = TraceStore.open(path).provenance[PROJECTIONS_KEY]["hs_last_16_pca"]
    shares = made.pop("explained_variance")
    what = {"column": "hs_last", "layer": 16, "method": "pca", "dimensions": 3}
    of_rows = {"rows": N, "sample_rows": 20, "rows_fitted": 20, "rows_not_finite": 0, "seed": 0}
    assert made == what | of_rows
    assert len(shares) == 3
    assert shares == sorted(shares, reverse=True)
    assert 0.8 < sum(shares) < 1
    assert f"{shares[0]:.0%}"[:-1] in capsys.readouterr().out


def test_a_map_takes_the_place_of_an_earlier_one(tmp_path):
    """Of states that were others, or of stores that were merged since; the seed decides it."""
    parts = [make(tmp_path / "a.zarr"), make(tmp_path / "b.zarr", prefix="b")]
    for part in parts:
        assert main(["project", part, "--layer", "16", "--sample", "20"]) == 0
    first = read(parts[0], "hs_last_16_pca")
    for seed in ("1", "0"):
        assert main(["project", parts[0], "--layer", "16", "--sample", "20", "--seed", seed]) == 0
        assert np.array_equal(read(parts[0], "hs_last_16_pca"), first) == (seed == "0")
    path = str(tmp_path / "all.zarr")
    assert main(["merge", path, *parts]) == 0
    assert main(["project", path, "--layer", "16"]) == 0
    assert_same_map(read(path, "hs_last_16_pca"), expected(path, 1))


def test_a_mistake_is_one_line_and_changes_nothing(tmp_path, capsys, golden_lines):
    """Only projections are replaced."""
    path = make(tmp_path / "s.zarr")

    def say(typed):
        return refused(path, capsys, *typed).strip().replace(str(path), "s.zarr")

    golden_lines("wrong_maps.txt", say)


def test_damaged_states_have_no_coordinates(tmp_path, capsys):
    path = make(tmp_path / "s.zarr")
    flip(tmp_path / "s.zarr/hs_last/c/0/0/0")
    error = refused(path, capsys, "--layer", "8")
    assert "array 'hs_last', shard 0, chunk 0: expected checksum" in error


@pytest.mark.parametrize("column", ["hs_last", "hidden_states"])
def test_states_of_each_token_are_refused_with_what_to_do(tmp_path, column):
    """The command that adds a state a trace is named, and works."""
    path = str(tmp_path / "s.zarr")
    states = Column("float16", (1, 3), "tokens", ("layers", "hidden"))
    numbers = np.random.default_rng(0).normal(size=(9, 4, 1, 3)).astype(np.float16)
    one_column(path, "hidden_states", states, numbers)
    error = NotFoundError if column == "hs_last" else SchemaError
    with StoreWriter.open(path) as writer, pytest.raises(error, match=f"derive {path} hs_"):
        project_column(writer, Projection(column))
    assert main(["derive", path, "hs_last"]) == 0
    assert main(["project", path]) == 0
    assert_same_map(read(path, "hs_last_1_pca"), expected(path, 0))


def test_columns_without_layers_are_projected_whole(tmp_path, capsys):
    """All numbers of a row; there is no layer to choose."""
    path = str(tmp_path / "s.zarr")
    numbers = np.random.default_rng(0).normal(size=(20, 2, 3)).astype(np.float32)
    columns = {"own": (Column("float32", (2, 3)), numbers), "score": ("float32", [0.5] * 20)}
    store_columns(path, columns)
    assert main(["project", path, "--column", "own"]) == 0
    own = read(path, "own").reshape(20, 6).astype(np.float64)
    centred = own - own.mean(axis=0)
    _, _, directions = np.linalg.svd(centred)
    assert_same_map(read(path, "own_pca"), centred @ directions[:2].T)
    error = refused(path, capsys, "--column", "own", "--layer", "1")
    assert "it has no axis of layers; leave --layer out" in error
    assert "expected 1 to 1 dimensions" in refused(path, capsys, "--column", "score")
    assert main(["project", path, "--column", "score", "--dimensions", "1"]) == 0


@pytest.mark.parametrize(
    "options, message",
    [
        ({"n": 0}, "expected traces to project, found an empty store"),
        ({"n": 4, "missing": range(4)}, "expected at least 1 trace with finite numbers in the"),
    ],
)
def test_a_store_without_finite_states_is_refused(tmp_path, capsys, options, message):
    assert message in refused(make(tmp_path / "s.zarr", **options), capsys, "--layer", "8")


def test_states_that_are_too_wide_are_refused(tmp_path, capsys, monkeypatch):
    """Their covariances are never allocated."""
    monkeypatch.setattr(project, "MAX_WIDTH", 4)
    error = refused(make(tmp_path / "s.zarr"), capsys, "--layer", "8")
    assert "expected at most 4 numbers for each trace, found 5" in error


def test_a_command_that_stops_has_added_nothing_and_goes_on(tmp_path, monkeypatch):
    """Ctrl-C in the middle of the rows."""
    path = make(tmp_path / "s.zarr")
    monkeypatch.setattr(project, "BLOCK_BYTES", 7 * 5 * 8)
    plain = project._Reader.blocks

    def stopped(reader, rows):
        for states in plain(reader, rows):
            if reader.n_read > N + 14:
                raise KeyboardInterrupt
            yield states

    with monkeypatch.context() as patched:
        patched.setattr("store.transform.project._Reader.blocks", stopped)
        assert main(["project", path, "--layer", "16"]) == 130
    store = TraceStore.open(path, check=True)
    assert "hs_last_16_pca" not in store.schema.columns
    assert PROJECTIONS_KEY not in store.provenance
    assert main(["project", path, "--layer", "16"]) == 0
    assert_same_map(read(path, "hs_last_16_pca"), expected(path, 1))


class PlainUmap:
    """In UMAP's place: the first coordinates of what it is given, and a record of that."""

    made: list["PlainUmap"] = []  # noqa: RUF012 - one list for the test

    def __init__(self, n_components, **options):
        self.n_components = n_components
        self.options = options
        self.made.append(self)

    def fit(self, rows):
        self.shape = rows.shape

    def transform(self, rows):
        return rows[:, : self.n_components]


@pytest.fixture
def plain_umap(monkeypatch):
    module = ModuleType("umap")
    module.UMAP = PlainUmap
    PlainUmap.made.clear()
    monkeypatch.setitem(sys.modules, "umap", module)
    return PlainUmap.made


def test_umap_is_fitted_to_the_principal_components_of_the_sample(tmp_path, plain_umap, capsys):
    """With the seed; rows that are not finite never reach it."""
    path = make(tmp_path / "s.zarr", missing=(2,))
    assert main(["project", path, "--layer", "16", "--method", "umap", "--seed", "5"]) == 0
    (model,) = plain_umap
    assert model.shape == (N - 1, 5)
    assert (model.options["random_state"], model.options["transform_seed"]) == (5, 5)
    assert_same_map(read(path, "hs_last_16_umap"), expected(path, 1))
    assert "UMAP of 5 principal components of hs_last, layer 16" in capsys.readouterr().out


def test_without_umap_one_line_says_what_to_install(tmp_path, monkeypatch, capsys):
    """Before anything is computed."""
    monkeypatch.setitem(sys.modules, "umap", None)
    error = refused(make(tmp_path / "s.zarr"), capsys, "--layer", "16", "--method", "umap")
    assert "method umap: the package umap is not installed; run python -m pip install" in error


@pytest.mark.slow
def test_umap_keeps_clusters_apart(tmp_path):
    """The package itself, which is compiled when it is first used."""
    pytest.importorskip("umap", reason="umap-learn is not installed: pip install '.[umap]'")
    path = str(tmp_path / "s.zarr")
    labels = np.arange(80) % 2
    numbers = np.random.default_rng(0).normal(size=(80, 6)) + 20 * labels[:, None]
    one_column(path, "own", Column("float32", (6,)), numbers.astype(np.float32))
    assert main(["project", path, "--column", "own", "--method", "umap"]) == 0
    points = read(path, "own_umap")
    centres = np.array([points[labels == label].mean(axis=0) for label in (0, 1)])
    nearest = np.linalg.norm(points[:, None] - centres, axis=2).argmin(axis=1)
    assert np.array_equal(nearest, labels)
