import pytest

from store.read.arrays.mapped_file import MappedFile


def test_maps_hold_no_descriptor(tmp_path):
    """Two thousand maps of one file in a process that may open fewer files."""
    resource = pytest.importorskip("resource")
    (tmp_path / "f").write_bytes(b"x")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 256), hard))
    try:
        maps = [MappedFile(tmp_path / "f") for _ in range(2000)]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert all(m.bytes[0] == ord("x") for m in maps)


def test_an_empty_file_maps_to_nothing(tmp_path):
    (tmp_path / "f").touch()
    assert len(MappedFile(tmp_path / "f").bytes) == 0


def test_written_pages_are_cached_and_advice_is_harmless(tmp_path):
    (tmp_path / "f").write_bytes(bytes(20_000))
    mapped = MappedFile(tmp_path / "f")
    mapped.advise(3, 19_999, 3)  # MADV_WILLNEED
    assert mapped.is_cached(0)
    assert mapped.is_cached(19_999)
