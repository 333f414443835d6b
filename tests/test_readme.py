"""The README's code runs as it stands."""

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


# when torch-geometric 2.8 is imported
PYG = "ignore:`torch.jit.script` is deprecated:DeprecationWarning"


def blocks(language):
    found = re.findall(r"^```(\w*)\n(.*?)^```", README, re.DOTALL | re.MULTILINE)
    return [code for name, code in found if name == language]


def test_python_blocks_run(tmp_path):
    """One after the other, in an empty folder."""
    code = "\n".join(blocks("python"))
    done = subprocess.run(
        [
            sys.executable,
            "-W",
            "error",
            "-W",
            PYG,
            "-c",
            f"import sys; sys.path.insert(0, {str(ROOT)!r})\n{code}",
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_bash_blocks_run(tmp_path):
    """As a user runs them in a checkout, but leaving nothing there."""
    (tmp_path / "store").symlink_to(ROOT / "store")
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    for code in blocks("bash"):
        done = subprocess.run(
            ["bash", "-euc", code],
            cwd=tmp_path,
            env=os.environ | {"PATH": path},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert "hidden_states" in done.stdout


def test_commands_exist():
    """Each `make` target and each `python -m` command that the README names answers."""
    text = "\n".join(blocks("sh"))
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert set(re.findall(r"make ([a-z-]+)", text)) <= set(targets)
    for command in re.findall(r"python -m (store \w+|train)", text):
        arguments = [sys.executable, "-m", *command.split(), "--help"]
        subprocess.run(arguments, cwd=ROOT, capture_output=True, check=True)


def test_the_tree_names_files_that_exist():
    """Folders, and in them the files that a line speaks of."""
    tree = next(block for block in blocks("") if block.startswith("store/"))
    section = folder = ""
    for line in tree.splitlines():
        if not line.startswith(" "):
            section = folder = line.split()[0]
        elif re.match(r"  \w+/", line):
            folder = f"{section}{line.split()[0]}"
        for name in re.findall(r"\b\w+/", line.removeprefix(section)):
            assert any((ROOT / place / name).is_dir() for place in ("", section, folder)), name
        for name in re.findall(r"\b\w+\.py\b", line):
            assert any((ROOT / place / name).exists() for place in (section, folder)), name


def test_pictures_exist_and_it_is_short():
    for picture in re.findall(r"!\[.*?\]\((.*?)\)", README):
        assert (ROOT / picture).exists(), picture
    assert README.count("\n") <= 260
