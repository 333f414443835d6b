"""What has to be true of a cluster, without one."""

import socket
import sys

import pytest
from launching import MAP, write_arrays

from store.cli.main import main
from store.errors import NotFoundError, SchemaError
from store.extras import version_text
from store.launch.cluster import check_answers, check_reachable, make_probe


@pytest.fixture
def server():
    """A server that accepts connections, and never says anything."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"127.0.0.1:{listening.getsockname()[1]}"


def test_an_address_has_to_answer(server):
    """In time, where a greeting is expected to be answered."""
    check_reachable(server, 5.0)
    with pytest.raises(NotFoundError, match=rf"--address {server}: expected a cluster.*timed out"):
        check_reachable(server, 0.1, b"hello", b"you")
    with pytest.raises(NotFoundError, match="Connection refused"):
        check_reachable("127.0.0.1:1", 5.0)
    for wrong in ("127.0.0.1", ":1", "a:b", "a:99999"):
        with pytest.raises(SchemaError, match="expected HOST:PORT"):
            check_reachable(wrong, 5.0)


def test_workers_need_this_package_and_its_folder(tmp_path):
    """The same version; the one that lacks it is named."""
    probe = make_probe()
    check_answers({"a": probe(str(tmp_path)), "b": version_text()})
    for found, message in (
        (probe(str(tmp_path / "none")), "worker b: expected the folder .* that all workers share"),
        ("trace-store 0.0.1", "worker b: expected trace-store .* found trace-store 0.0.1; install"),
        (ImportError("two\nlines"), "found two lines; install the same version there"),
    ):
        with pytest.raises(NotFoundError, match=message) as caught:
            check_answers({"a": version_text(), "b": found})
        assert "\n" not in str(caught.value)


def test_the_probe_says_that_the_package_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "store.extras", None)
    assert make_probe()("/").startswith("no package: ")


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
    assert f"the extra {engine} is missing (pip install '.[{engine}]' in the checkout)" in line
    assert [path.name for path in tmp_path.iterdir()] == ["x"]
