"""A package that is not installed is one line; a wrong import of our own is a traceback."""

import sys

import pytest

from train.commands import main as cli
from train.errors import TrainError


def test_the_example_without_its_extra_says_what_to_install(monkeypatch, tmp_path):
    """And that a store of one's own needs none of it."""
    monkeypatch.setitem(sys.modules, "transformers", None)
    for module in [name for name in sys.modules if name.startswith("store.sources.example")]:
        monkeypatch.delitem(sys.modules, module)
    with pytest.raises(TrainError) as raised:
        cli.build_example(tmp_path / "example.zarr")
    line = str(raised.value)
    assert "for want of a --store" in line
    assert "the package transformers is not installed; run python -m pip install " in line
    assert "[extract]" in line


@pytest.mark.parametrize("module", ["train.reprot", "models.mine"])
def test_a_module_of_ours_that_is_missing_is_a_bug(monkeypatch, module):
    """Its traceback is what mends it."""

    def train(arguments):
        raise ModuleNotFoundError(f"No module named {module!r}", name=module)

    monkeypatch.setattr(cli, "train", train)
    with pytest.raises(ModuleNotFoundError):
        cli.main(["--store", "none.zarr"])


@pytest.mark.parametrize(
    "error", [MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried")]
)
def test_too_little_memory_is_one_line(monkeypatch, capsys, error):
    """Whatever the command was about to do with it."""

    def train(arguments):
        raise error

    monkeypatch.setattr(cli, "train", train)
    assert cli.main(["--store", "none.zarr"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("python -m train: expected more memory, found no more: ")
