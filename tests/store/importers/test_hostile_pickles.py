"""Imports of small files that would crash, stall or fill a process which takes them as they are."""

import pickle
import resource
import subprocess
import sys

import pytest
from hostile_pickles import hostile_files
from raw_generations import Generated

from store import TraceStore

MEMORY = 12 << 30  # of addresses, most of which the libraries take
LIMIT_S = 200.0  # of all, on a busy machine; each of them used to take for ever, or the process
FEW = (
    "key, deep tuple.pkl",
    "item, wide tuple.pkl",
    "value, wide lists.pkl",
    "value, a list in itself.pkl",
    "value, integers of one hash.pkl",
    "value, memo slots of one hash.pkl",
    "value, a shape of huge numbers.pkl",
    "torch, two wide keys.pt",
    "gzip, wide tuples.pkl.gz",
)
FEW_OR_ALL = ("few", "all")


@pytest.mark.parametrize("names", [FEW, pytest.param((), marks=pytest.mark.slow)], ids=FEW_OR_ALL)
def test_hostile_files_are_left_out_and_named_and_the_others_go_on(tmp_path, names):
    """Whatever they hold: depth, sharing, keys of one hash, lengths, shapes, or opcodes in gzip."""
    folder, out = tmp_path / "in", tmp_path / "out.zarr"
    folder.mkdir()
    hostile = hostile_files(Generated(0).record("F"))
    hostile = {name: hostile[name] for name in names or hostile}
    for name, data in hostile.items():
        (folder / name).write_bytes(data)
    for i in range(3):
        (folder / f"{i} whole.pkl").write_bytes(pickle.dumps([Generated(i).record("F")]))
    done = subprocess.run(
        [sys.executable, "-m", "store", "import", out, folder],
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY)),
        timeout=LIMIT_S,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    assert len(TraceStore.open(out)) == 3
    assert f"  {len(hostile)} files or records left out\n" in done.stdout
