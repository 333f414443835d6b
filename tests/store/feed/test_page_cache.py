from store.feed.page_cache import is_kept, kept_fraction
from store.read.arrays.mapped_file import MappedFile


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
