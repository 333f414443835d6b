"""The house's rule: imports run one way."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

# A module may import those of earlier ranks only; a name stands for the modules under it without a rank of their own.
RANKS = [
    ["store.errors", "store.reports"],
    [
        "store.format.codecs",
        "store.write.files",
        "store.read.mapped_file",
        "store.read.chunk_cache",
        "store.write.lock",
        "store.read.frames",
        "store.read.summary",
    ],
    ["store.format.schema"],
    ["store.format.array_info"],
    [
        "store.format.manifest",
        "store.format.ranges",
        "store.format.layers",
        "store.format.origin",
        "store.sources.split",
        "store.format.values",
        "store.format.zarr_json",
    ],
    ["store.read.shard", "store.read.plan", "store.format.contents", "store.extras"],
    ["store.read.array"],
    ["store.write.array_writer"],
    ["store.read.id_table", "store.write.leftovers"],
    ["store.read.batch", "store.feed.order", "store.read.trace"],
    ["store.read.store"],
    ["store.write.writer"],
    ["store.check.verify"],
    ["store.feed.worker_memory", "store.feed.prefetch"],
    ["store.feed.dataset", "store.feed.loader"],
    ["store"],
    ["store.write"],
    ["store.sources"],
    ["store.check.repair"],
    ["store.cli"],
    ["store.__main__", "store.sources.example.__main__"],
    ["models"],
    ["train"],
    ["benchmarks"],
]
PACKAGES = ("store.write", "store.sources", "store.cli", "models", "train")  # free inside
ALLOWED = {
    "torch": {
        "store.format.values",
        "store.read.batch",
        "store.read.frames",
        "store.read.store",
        "store.read.trace",
        "store.feed.order",
        "store.feed.dataset",
        "store.feed.worker_memory",
        "store.feed.loader",
        "store.cli.main",
        "store.cli.extract",
    },
    "zarr": {"store.format.zarr_json"},
}
FILES = [path for package in ("store", "models", "train") for path in sorted((ROOT / package).rglob("*.py"))]


def module_name(path):
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(part for part in parts if part != "__init__")


def rank(module):
    """Place of a module's longest listed prefix; None for a library."""
    names = [".".join(module.split(".")[:i]) for i in range(module.count(".") + 1, 0, -1)]
    return next((i for name in names for i, modules in enumerate(RANKS) if name in modules), None)


def imports(path):
    tree = ast.parse(path.read_text())
    for_types = [
        node for node in ast.walk(tree) if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    ]
    never_run = {node for block in for_types for node in ast.walk(block)}
    for node in ast.walk(tree):
        if node in never_run:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path}: relative import"
            yield node.module


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_run_one_way(path):
    module = module_name(path)
    for imported in imports(path):
        there = rank(imported)
        same_package = any(imported.startswith(p) and module.startswith(p) for p in PACKAGES)
        if there is not None and not same_package:
            assert there < rank(module), f"{module} imports {imported}"
        library = imported.split(".")[0]
        if library in ALLOWED and module.startswith("store") and not module.startswith("store.sources"):
            assert module in ALLOWED[library], f"{module} imports {library}"


def test_importing_store_stays_light():
    """Nothing of the training stack comes with it."""
    heavy = "torch_geometric, transformers, lightning, lightning_fabric, sklearn, matplotlib, pandas"
    code = f"import store, store.sources.pickles, sys; print([m for m in '{heavy}'.split(', ') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.strip() == "[]"


def test_reading_needs_no_zarr():
    """A spawned worker starts without it."""
    done = subprocess.run(
        [sys.executable, "-c", "import store, sys; print('zarr' in sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
    )
    assert done.stdout.strip() == "False"
