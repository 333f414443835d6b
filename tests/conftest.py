"""What the tests of all packages share, and the quick run of `make check`."""

import json
import os
import shutil
import sys
from multiprocessing.process import BaseProcess
from pathlib import Path

# Two test processes on two cores: more threads only wait for each other, also in the commands that
# the tests start. Read when NumPy and torch are imported.
for threads in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(threads, "1")

import hypothesis  # noqa: E402
import pytest  # noqa: E402
import torch  # noqa: E402

# `pytest --hypothesis-profile thorough` looks further.
hypothesis.settings.register_profile(
    "default", deadline=None, derandomize=True, print_blob=False, max_examples=20
)
hypothesis.settings.load_profile("default")
hypothesis.settings.register_profile("thorough", hypothesis.settings.default, max_examples=300)
os.environ.setdefault("MPLBACKEND", "Agg")

TESTS = Path(__file__).parent
MEMORY_DISK = Path("/dev/shm")  # noqa: S108 - pytest makes a folder of the user's own there
MEMORY_DISK_BYTES = 4 << 30  # what has to be free there: four times what the suite leaves behind
HEAVY = (  # trainings, models that generate, processes, a fault at every step: not in a quick run
    "models/test_probe.py",
    "store/check/test_damage.py",
    "store/check/test_fuzz.py",
    "store/check/test_repair.py",
    "store/feed/test_loading.py",
    "store/feed/test_worker_memory.py",
    "store/launch/test_launch.py",
    "store/cli/test_plan.py",
    "store/sources/huggingface",
    "store/importers/legacy",
    "store/transform/test_merge.py",
    "store/labels/test_relabel.py",
    "store/transform/test_subset.py",
    "store/importers/test_vllm.py",
    "store/test_promises.py",
    "store/write/test_build.py",
    "store/write/test_close.py",
    "store/feed/test_endurance.py",
    "store/write/test_faults.py",
    "store/write/test_columns.py",
    "test_examples.py",
    "train/commands",
    "train/evaluate/test_paired_tests.py",
    "train/fit/test_loop.py",
    "train/library",
    "train/report/test_plots.py",
    "train/report/test_report.py",
    "train/run",
    "train/serve",
    "train/test_old_defects.py",
)
PROCESS_EVENTS = {"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.system"}


@pytest.fixture(autouse=True)
def one_thread():
    """Of torch, which a test may have given more."""
    torch.set_num_threads(1)


@pytest.fixture
def golden(request):
    """The function that compares a text with a file beside the test, which `--golden` writes."""

    def compare(name, text):
        path = request.path.with_name(name)
        if request.config.getoption("golden"):
            path.write_text(text)
        assert text == path.read_text()

    return compare


@pytest.fixture
def golden_lines(golden, request):
    """The function that compares what is said of each input of a golden file, in JSON behind `> `,
    with the line below it."""

    def compare(name, say):
        lines = request.path.with_name(name).read_text().splitlines()
        inputs = [line.removeprefix("> ") for line in lines if line.startswith("> ")]
        said = [say(json.loads(one)) for one in inputs]
        assert not [one for one in said if "\n" in one]
        pairs = zip(inputs, said, strict=True)
        golden(name, "\n".join(f"> {one}\n{answer}\n" for one, answer in pairs))

    return compare


@pytest.fixture(scope="session")
def example_store(tmp_path_factory):
    """The embedded example, of 192 questions, as a store that is not to be changed."""
    from store.sources.example import ExampleSource, example_questions
    from store.write.build import build_store

    path = tmp_path_factory.mktemp("example") / "example.zarr"
    return build_store(path, ExampleSource(example_questions(192)))


@pytest.fixture(scope="session")
def one_core():
    """As where there is one core: trainings run in turn, in this process, unless --jobs says so."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("train.run.jobs.available_cores", lambda: 1)
        yield


def pytest_addoption(parser):
    """`pytest --quick` leaves out what is heavy, and skips a test that starts a process; `--golden`
    takes what is found for what is expected."""
    parser.addoption("--quick", action="store_true", help="no heavy tests, no processes")
    parser.addoption("--golden", action="store_true", help="write the golden files anew")


def pytest_configure(config):
    """Choose where stores are written; check that a quick run leaves out what exists."""
    if is_memory_disk_free():
        # A third of the suite's time is otherwise waiting for small files to reach the disk.
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY_DISK))
    if config.getoption("quick"):
        missing = [name for name in HEAVY if not (TESTS / name).exists()]
        if missing:
            raise pytest.UsageError(f"HEAVY of tests/conftest.py: not found: {', '.join(missing)}")


def is_memory_disk_free():
    """Whether files of the tests fit into a disk of memory, on the systems that have one."""
    return (
        os.access(MEMORY_DISK, os.W_OK) and shutil.disk_usage(MEMORY_DISK).free > MEMORY_DISK_BYTES
    )


def pytest_ignore_collect(collection_path, config):
    """Leave the heavy files and folders out of a quick run."""
    if config.getoption("quick") and collection_path in {TESTS / name for name in HEAVY}:
        return True
    return None


@pytest.fixture(scope="session", autouse=True)
def no_processes(pytestconfig):
    """Skip a test of a quick run when it is about to start a process."""
    if not pytestconfig.getoption("quick"):
        yield
        return
    start_process = BaseProcess.start
    is_active = True

    def refuse(event, _arguments):
        if is_active and event in PROCESS_EVENTS:
            pytest.skip(f"starts a process ({event})")

    def start(process):
        refuse("os.fork", ())  # a spawned process of multiprocessing raises no audit event
        start_process(process)

    BaseProcess.start = start
    sys.addaudithook(refuse)  # there is no way to remove it
    yield
    BaseProcess.start = start_process
    is_active = False
