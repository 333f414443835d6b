import errno
import zipfile

import numpy as np
import pytest

from store.errors import CorruptError, RefusedError, SchemaError, StoreError
from store.importers.files import Given

MAX = 10_000_000


def open_npz(path):
    return Given(path, "npz", (path,)).open(MAX)


def open_npy(*paths):
    return Given(paths[0].parent, "npy", paths).open(MAX)


def test_npy_files_are_mapped_and_empty_ones_read(tmp_path):
    arrays = {
        "a": np.arange(6, dtype="<i2"),
        "e": np.empty((0, 2)),
        "f": np.asfortranarray(np.eye(3)),
    }
    for name, array in arrays.items():
        np.save(tmp_path / f"{name}.npy", array)
    file = open_npy(*sorted(tmp_path.glob("*.npy")))
    for name, array in arrays.items():
        assert np.array_equal(file.read(name), array)
    assert isinstance(file.read("a"), np.memmap)


def test_pickles_in_arrays_are_refused_and_not_run(tmp_path):
    """Arrays of objects are pickles."""

    class Bomb:
        def __reduce__(self):
            return (open, (str(tmp_path / "run"), "w"))

    objects = np.array([Bomb()], dtype=object)
    np.savez(tmp_path / "f.npz", a=objects)
    np.save(tmp_path / "a.npy", objects)
    for read, name in ((open_npz, "f.npz"), (open_npy, "a.npy")):
        with pytest.raises(RefusedError, match="Python objects"):
            read(tmp_path / name)
    assert not (tmp_path / "run").exists()


def header(shape, descr="<f4"):
    text = f"{{'descr': {descr!r}, 'fortran_order': False, 'shape': {shape!r}, }}".encode()
    text += b" " * (53 - len(text) % 64 + 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text


@pytest.mark.parametrize(
    ("shape", "error"),
    [
        ((10**9, 10**3), SchemaError),
        ((-1,), CorruptError),
        ((5,), CorruptError),
        ((2**70,), StoreError),
    ],
)
def test_sizes_that_are_declared_are_checked_first(tmp_path, shape, error):
    """A few bytes that say they are gigabytes."""
    data = header(shape) + b"\0" * 16
    (tmp_path / "a.npy").write_bytes(data)
    with zipfile.ZipFile(tmp_path / "f.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.npy", data)
    with pytest.raises(error):
        open_npy(tmp_path / "a.npy")
    with pytest.raises(error):
        open_npz(tmp_path / "f.npz")


def test_files_cut_anywhere_are_refused(tmp_path):
    np.savez(tmp_path / "f.npz", a=np.arange(20), b=np.ones(3))
    np.save(tmp_path / "a.npy", np.arange(20))
    for name in ("f.npz", "a.npy"):
        path = tmp_path / name
        whole = path.read_bytes()
        for n_bytes in range(0, len(whole), 3):
            path.write_bytes(whole[:n_bytes])
            with pytest.raises(CorruptError):
                open_npz(path) if name == "f.npz" else open_npy(path)


def test_flipped_bytes_are_errors_of_ours(tmp_path):
    """Of an .npz file, whose members have checksums: never another array."""
    array = np.arange(20)
    path = tmp_path / "f.npz"
    np.savez(path, a=array)
    whole = path.read_bytes()
    for place in range(0, len(whole), 2):
        damaged = bytearray(whole)
        damaged[place] ^= 0x55
        path.write_bytes(damaged)
        try:
            file = open_npz(path)
            found = {key: file.read(key) for key in file.keys}
        except StoreError:
            continue
        assert all(np.array_equal(value, array) for value in found.values())


@pytest.mark.parametrize("error", [OSError(errno.EIO, "bad disk"), MemoryError()])
def test_what_the_machine_lacks_is_no_damaged_file(tmp_path, monkeypatch, error):
    """Although zipfile takes an error of the disk for a file of another kind."""
    np.savez(tmp_path / "f.npz", a=np.arange(3))

    def fail(*_):
        raise error

    monkeypatch.setattr("zipfile._EndRecData", fail)
    with pytest.raises(type(error)):
        open_npz(tmp_path / "f.npz")
