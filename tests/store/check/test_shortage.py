"""Too many open files or too little memory is no damage: nothing is reported, left out, dropped."""

import errno
import os
import resource

import pytest
from damage import content
from faults import error_of, start, wait
from small import refused

from store import TraceStore
from store.check.repair import plan_repair, repair_store
from store.errors import is_no_damage

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork.*:DeprecationWarning")


def leave_descriptors(n):
    """Let this process open so many files at a time from now on."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    taken = []
    try:
        while True:
            taken.append(os.open("/dev/null", os.O_RDONLY))
    except OSError:
        for fd in taken[:n]:
            os.close(fd)


@pytest.mark.parametrize(
    "n", [pytest.param(n, marks=[pytest.mark.slow] if n % 2 else []) for n in range(8)]
)
def test_a_repair_without_descriptors_drops_nothing(path, n):
    """It ends with the error of the system, or finds a whole store."""
    before = content(path)

    def repair():
        leave_descriptors(n)
        number = error_of(lambda: repair_store(path, plan_repair(path)))
        assert number in (None, errno.EMFILE)

    assert wait(start(repair)) == 0
    after = content(path)
    assert before.items() <= after.items()
    assert not path.with_name(path.name + ".damaged").exists()
    assert TraceStore.open(path, check=True).ids[:] == TraceStore.open(path).ids[:]


def test_a_command_without_descriptors_says_so(path, capfd, monkeypatch):
    """One line that names the file and the limit, not damage."""
    real = os.open

    def full(name, flags, *arguments, **named):
        if "/c/" in str(name):
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), str(name))
        return real(name, flags, *arguments, **named)

    monkeypatch.setattr(os, "open", full)
    for command in ("verify", "repair"):
        line = refused(capfd, command, path)
        assert f"{path}/" in line
        assert "Too many open files" in line
        assert "(ulimit -n)" in line


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        OSError(errno.ENOMEM, "no memory"),
        RuntimeError("can't start new thread"),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"),
    ],
)
def test_a_command_without_memory_says_so(tmp_path, capfd, monkeypatch, error):
    """One line and exit status 2, whatever asked for it."""

    def fail(*_, **__):
        raise error

    assert is_no_damage(error)
    monkeypatch.setattr("store.cli.verify.verify_store", fail)
    assert "python -m store verify: expected " in refused(capfd, "verify", tmp_path)


def test_what_says_something_of_the_data():
    """A disk that cannot read a file, a file that is gone."""
    for error in (OSError(errno.EIO, "bad disk"), FileNotFoundError(), RuntimeError("a defect")):
        assert not is_no_damage(error)
