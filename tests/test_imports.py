"""The house's rule: imports run one way."""

import ast
import subprocess
import sys
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

# A room may import those of earlier ranks only; within a room modules are free, but never in a
# circle.
RANKS = [
    ["store.errors", "store.memory_limits", "store.reports", "store.system"],
    ["store.format", "store.text_records"],
    ["store.extras", "store.traces"],
    ["store.read.directory"],
    ["store.read.arrays"],
    ["store.read.batches", "store.read.filters"],
    ["store.read"],
    ["store.read.joined"],
    ["store.write", "store.feed"],
    ["store.check", "store.labels"],
    ["store.transform"],
    ["store.sources"],
    ["store.importers"],
    ["store.view", "store.launch", "store.remote"],
    ["store.cli"],
    ["store", "store.__main__", "store.sources.example.__main__"],
    ["models"],
    ["train.errors"],
    ["train.files", "train.records"],
    ["train.outside"],
    ["train.config"],
    ["train.data"],
    ["train.evaluate"],
    ["train.fit"],
    ["train.run"],
    ["train.report"],
    ["train.library"],
    ["train.serve"],
    ["train.commands"],
    ["train"],
    ["benchmarks"],
]
ALLOWED = {  # library -> where in store/ it may be imported
    "torch": {
        "store.format.values",
        "store.traces.states",
        "store.read.batches",
        "store.feed",
        "store.sources",
        "store.cli",
    },
    "zarr": {"store.format.zarr_json"},
    "obstore": {"store.remote.objects.obstore_client"},
    "pandas": {"store.read.batches.tabular"},
    "ray": {"store.launch.on_ray"},
    "distributed": {"store.launch.on_dask"},
    "umap": {"store.transform.project"},
    "starlette": {"store.view.answers", "store.view.safety", "store.view.server"},
    "uvicorn": {"store.view.serve"},
}
FILES = [
    path
    for package in ("store", "models", "train")
    for path in sorted((ROOT / package).rglob("*.py"))
]


def module_name(path):
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(part for part in parts if part != "__init__")


MODULES = {module_name(path) for path in FILES}


def prefixes(module):
    """'a.b.c' -> 'a.b.c', 'a.b', 'a'."""
    parts = module.split(".")
    return [".".join(parts[:n]) for n in range(len(parts), 0, -1)]


ROOMS = {room: rank for rank, rooms in enumerate(RANKS) for room in rooms}


def room_of(module):
    """The room that a module is in; None for a library."""
    return next((name for name in prefixes(module) if name in ROOMS), None)


@cache
def imports(path):
    return list(find_imports(path))


def find_imports(path):
    tree = ast.parse(path.read_text())
    for_types = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    ]
    never_run = {node for block in for_types for node in ast.walk(block)}
    for node in ast.walk(tree):
        if node in never_run:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path}: relative import"
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            submodules = names & MODULES
            yield from submodules
            if submodules != names:
                yield node.module


def test_imports_run_one_way():
    """From later rooms to earlier ones."""
    wrong = []
    for path in FILES:
        module = module_name(path)
        room = room_of(module)
        for imported in imports(path):
            there = room_of(imported)
            library = imported.split(".")[0]
            is_limited = library in ALLOWED and module.startswith("store")
            if there not in (None, room) and ROOMS[there] >= ROOMS[room]:
                wrong.append(f"{module} imports {imported}")
            if is_limited and ALLOWED[library].isdisjoint(prefixes(module)):
                wrong.append(f"{module} imports {library}")
    assert wrong == []


def test_no_import_runs_in_a_circle():
    """Between any modules, in functions as well."""
    modules = {module_name(path): set(imports(path)) for path in FILES}
    graph = {
        module: {name for name in found if name in modules} for module, found in modules.items()
    }
    TopologicalSorter(graph).prepare()  # raises CycleError, which names them


HEAVY = (
    "torch_geometric, transformers, lightning, lightning_fabric, sklearn, matplotlib, pandas, "
    "pyarrow, starlette, uvicorn, obstore, ray, dask, distributed, zarr"
)
LIGHT = {  # what is imported -> what must not come with it
    "from store import *; import store.importers.pickles": HEAVY,  # a spawned worker starts so
    # what a command needs to refuse an argument comes at once
    "import models, train.config; from store.cli.main import COMMANDS, find_command\n"
    "for name in COMMANDS: find_command(name)\n"
    "import store.launch.on_processes, store.view.attention, store.view.snapshots": "torch",
    "import store.view.export": "starlette, uvicorn",  # a page without a server
}


@pytest.mark.parametrize("imported", LIGHT)
def test_what_is_light_stays_light(imported):
    code = f"{imported}\nimport sys; print(set('{LIGHT[imported]}'.split(', ')) & {{*sys.modules}})"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.strip() == "set()"
