"""What the tests of all packages share, and the quick run of `make check`."""

import os
import sys
from multiprocessing.process import BaseProcess

import hypothesis
import pytest
import torch

hypothesis.settings.register_profile("default", deadline=None, derandomize=True, print_blob=False)
hypothesis.settings.load_profile("default")
os.environ.setdefault("MPLBACKEND", "Agg")

PROCESS_EVENTS = {"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.system"}


@pytest.fixture(autouse=True)
def one_thread():
    """Two test processes on two cores: more threads only wait for each other."""
    torch.set_num_threads(1)


def pytest_addoption(parser):
    """`pytest --quick` leaves out tests marked as heavy, and those that start a process."""
    parser.addoption("--quick", action="store_true", help="skip heavy tests and processes")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    """Deselect heavy tests in a quick run."""
    if config.getoption("quick"):
        quick = [item for item in items if not item.get_closest_marker("heavy")]
        config.hook.pytest_deselected(items=list(set(items) - set(quick)))
        items[:] = quick


@pytest.fixture(scope="session", autouse=True)
def no_processes(pytestconfig):
    """Skip a test of a quick run when it is about to start a process."""
    if not pytestconfig.getoption("quick"):
        yield
        return
    active = True

    def refuse(event, _arguments):
        if active and event in PROCESS_EVENTS:
            pytest.skip(f"starts a process ({event})")

    def start(process):
        refuse("os.fork", ())  # processes that multiprocessing spawns raise no audit event
        start_process(process)

    start_process = BaseProcess.start
    BaseProcess.start = start
    sys.addaudithook(refuse)  # it cannot be removed
    yield
    BaseProcess.start = start_process
    active = False
