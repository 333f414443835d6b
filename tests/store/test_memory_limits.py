"""What memory a process may still have, as the kernel tells it."""

import os

import pytest

from store.memory_limits import MemoryLimits, read_memory

GB = 2**30
MEMINFO = f"MemTotal: {64 * GB // 1024} kB\nMemFree: 1 kB\nMemAvailable: {40 * GB // 1024} kB\n"
NAMES = {
    "v1": ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_"),
    "v2": ("memory.max", "memory.current", ""),
}


def write_group(folder, version, limit, used=0, inactive=0, active=0):
    """A control group as the kernel shows it."""
    limit_file, used_file, prefix = NAMES[version]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / limit_file).write_text(f"{limit}\n")
    (folder / used_file).write_text(f"{used}\n")
    pages = f"{prefix}inactive_file {inactive}\n{prefix}active_file {active}\n"
    (folder / "memory.stat").write_text(f"anon 1\n{pages}hierarchical 2\n")


@pytest.fixture
def kernel(tmp_path):
    """The machine has 64 GB, of which 40 GB are free; gives what a process in a group may have."""

    def limits(groups):
        (tmp_path / "proc" / "self").mkdir(parents=True)
        (tmp_path / "proc" / "meminfo").write_text(MEMINFO)
        (tmp_path / "proc" / "self" / "cgroup").write_text(groups)
        return read_memory(tmp_path / "proc", tmp_path / "cgroup")

    return limits


@pytest.mark.parametrize(("version", "line"), [("v2", "0::/"), ("v1", "4:cpu,memory:/")])
def test_what_a_job_has_taken_counts_against_its_limit(kernel, tmp_path, version, line):
    """Of 16 GB it took 12, of which 3 are files' pages that can go: 7 are left, and 2 used ones."""
    root = tmp_path / "cgroup" / ("memory" if version == "v1" else "")
    write_group(root / "job" / "step", version, 16 * GB, 12 * GB, 3 * GB, 2 * GB)
    write_group(root / "job", version, 20 * GB, 12 * GB, 3 * GB, 2 * GB)
    no_limit = 2**63 - 4096 if version == "v1" else "max"
    write_group(root, version, no_limit, 30 * GB)
    assert kernel(f"7:pids:/x\n{line}job/step\n") == MemoryLimits(16 * GB, 7 * GB, 9 * GB)


def test_the_group_that_leaves_least_counts(kernel, tmp_path):
    """A roomy step of a job that is nearly full, as its other steps have filled it."""
    write_group(tmp_path / "cgroup" / "job" / "step", "v2", 16 * GB, GB)
    write_group(tmp_path / "cgroup" / "job", "v2", 20 * GB, 19 * GB, GB)
    assert kernel("0::/job/step\n") == MemoryLimits(16 * GB, 2 * GB, 2 * GB)


def test_without_a_limit_the_machine_counts(kernel, tmp_path):
    """Nor does a group whose files are gone, or a container's name on its host, change anything."""
    write_group(tmp_path / "cgroup", "v2", "max", 30 * GB)
    assert kernel("0::/../gone\n4:memory:/docker/123\n") == MemoryLimits(64 * GB, 40 * GB, 40 * GB)


def test_a_system_that_tells_its_pages_only(tmp_path):
    """It has no `/proc`; half of its memory is taken to be free."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    found = read_memory(tmp_path / "proc", tmp_path / "cgroup")
    assert found == MemoryLimits(total, total // 2, total // 2)
