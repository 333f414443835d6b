"""What has to be true of a cluster, without one."""

import sys

import pytest
from launching import MAP, write_arrays

from store.cli.main import main
from store.errors import NotFoundError
from store.launch.engine import check_workers
from store.launch.task import make_check


def test_a_worker_that_lacks_something_is_named():
    """In one line; those that lack nothing are not."""
    check_workers({"a": ""})
    with pytest.raises(NotFoundError, match=r"^worker b: two lines$"):
        check_workers({"a": "", "b": ImportError("two\nlines")})


def test_a_worker_without_the_package_says_so(monkeypatch):
    monkeypatch.setitem(sys.modules, "store.extras", None)
    assert "install the same version there" in make_check("trace-store 1", "/")()


@pytest.mark.parametrize(("engine", "package"), [("ray", "ray"), ("dask", "distributed")])
def test_a_missing_extra_is_named(engine, package, tmp_path, monkeypatch, capsys):
    """With the command that installs it; nothing is made."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.delitem(sys.modules, f"store.launch.on_{engine}", raising=False)
    write_arrays(tmp_path / "x")
    job = ["import", "o.zarr", "x", "--map", MAP]
    command = ["launch", "--engine", engine, "--parts", "2", "--", *job]
    assert main(command) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"the package {package} is not installed; run python -m pip install" in line
    assert f"[{engine}]'" in line
    assert [path.name for path in tmp_path.iterdir()] == ["x"]
