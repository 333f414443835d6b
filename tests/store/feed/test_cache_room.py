import pytest

from store.feed.cache_room import available_bytes, is_kept, kept_fraction
from store.read.mapped_file import MappedFile

MIB = 1024 * 1024


def write(root, files):
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@pytest.mark.parametrize(
    "groups, expected",
    [
        ({}, 1024 * MIB),
        (
            {
                "cgroup/job/memory.max": f"{100 * MIB}\n",
                "cgroup/job/memory.current": f"{90 * MIB}\n",
                "cgroup/job/memory.stat": f"anon 5\nactive_file {7 * MIB}\n",
                "cgroup/memory.max": "max\n",
            },
            17 * MIB,
        ),
        (
            {
                "cgroup/memory/job/memory.limit_in_bytes": str(2**63 - 4096),
                "cgroup/memory/job/memory.usage_in_bytes": "0",
                "cgroup/memory/memory.limit_in_bytes": str(50 * MIB),
                "cgroup/memory/memory.usage_in_bytes": str(60 * MIB),
            },
            0,
        ),
    ],
    ids=["no group", "version 2", "version 1"],
)
def test_available_memory_is_that_of_the_narrowest_group(tmp_path, groups, expected):
    write(tmp_path, {"proc/meminfo": "MemTotal: 9 kB\nMemAvailable:  1048576 kB\n"} | groups)
    lines = "5:memory:/job\n4:cpu,cpuacct:/other\n0::/job\n"
    write(tmp_path, {"proc/self/cgroup": lines})
    assert available_bytes(tmp_path / "cgroup", tmp_path / "proc") == expected


def test_this_process_has_some_memory():
    assert available_bytes() > MIB


def test_what_fits_is_kept_and_of_more_a_part(tmp_path):
    assert kept_fraction(0, 0) == 0.0
    assert kept_fraction(10, 40) == 1.0
    assert kept_fraction(40, 40) == 0.5
    files = []
    for i in range(100):
        (tmp_path / str(i)).write_bytes(b"x")
        files.append(MappedFile(tmp_path / str(i)))
    for fraction, least, most in ((0.0, 0, 0), (0.5, 30, 70), (1.0, 100, 100)):
        assert least <= sum(is_kept(file, fraction) for file in files) <= most
