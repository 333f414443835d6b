"""How fast do pickled traces become a store, in how much memory?

Against unpickling them and np.save of the arrays. Raw traces of a 7-billion-parameter model at
question-answering lengths, 11 MB each; ours reduces the attention maps and syncs what it writes.
Each contender runs in a process of its own, on files that are in the page cache.
"""

import pickle
import shutil
import statistics
from argparse import Namespace
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.data import made_once
from benchmarks.harness import (
    clocks,
    in_new_process,
    parser,
    private_bytes,
    run,
    take_turns,
    watching,
)
from benchmarks.tables import finish, median_ratio

ANCHOR = "pickle.load + np.save"
N_LAYERS, N_HEADS, HIDDEN, N_TOKENS, N_FILES = 32, 32, 4096, 34, 4


def main(args: Namespace) -> None:
    """Both, several times, taking turns."""
    files = make_files(args.dir / f"imports-{args.size_mb}", args.size_mb)
    contenders = {ANCHOR: load_and_save, "ours": import_files}
    n_bytes = sum(file.stat().st_size for file in files)
    out = args.dir / "imports.out"
    alone = partial(in_new_process, measured, files, out)
    contenders = {name: partial(alone, work) for name, work in contenders.items()}
    turns = take_turns(contenders, args.epochs)
    seconds = {name: [elapsed for elapsed, _ in found] for name, found in turns.items()}
    private = {name: max(most for _, most in found) for name, found in turns.items()}
    largest = max(file.stat().st_size for file in files)
    rows = [
        {
            "contender": name,
            "GB_per_s": round(n_bytes / statistics.median(times) / 1e9, 3),
            "private_MB": round(private[name] / 1e6),
            "x_pickle_save": round(median_ratio(seconds[ANCHOR], times), 3),
            "beyond_one_file_MB": round((private[name] - largest) / 1e6),
        }
        for name, times in seconds.items()
    ]
    main_figures = ("x_pickle_save", "beyond_one_file_MB")
    finish("imports", args.results, rows, "GB_per_s", main=main_figures)


def make_files(folder: Path, size_mb: int) -> list[Path]:
    """Pickles of random traces, made unless they are there."""
    files = [folder / f"batch_{i:04}.pkl" for i in range(N_FILES)]
    rng = np.random.default_rng(0)
    one = 2 * N_TOKENS * N_LAYERS * (HIDDEN + N_HEADS * N_TOKENS)
    n = max(1, size_mb * 10**6 // one // N_FILES)

    def write(path: Path, first: int) -> None:
        traces = [trace(rng, f"tc_{i}") for i in range(first, first + n)]
        path.write_bytes(pickle.dumps(traces))

    for i, file in enumerate(files):
        made_once(file, partial(write, first=n * i))
    return files


def trace(rng: np.random.Generator, question_id: str) -> dict:
    maps = np.tril(rng.random((N_HEADS, N_TOKENS, N_TOKENS), np.float32))
    maps = (maps / maps.sum(-1, keepdims=True)).astype(np.float16)
    states = rng.standard_normal((N_TOKENS, HIDDEN), np.float32).astype(np.float16)
    return {
        "hidden_states": [states + np.float16(layer) for layer in range(N_LAYERS)],
        "attentions": [maps.copy() for _ in range(N_LAYERS)],
        "tokens": rng.integers(0, 32000, N_TOKENS),
        "tokens_decoded": ["x"] * N_TOKENS,
        "generated_answer_clean": "an answer",
        "question_id": question_id,
    }


def measured(files: list[Path], out: Path, work: Callable, turn: int) -> tuple[float, int]:
    """Seconds, and the most private memory beyond what the process had before."""
    work(files[:0], out)  # imports what it needs
    before = private_bytes()
    with watching() as most:
        seconds, _ = clocks(partial(work, files, out))
    shutil.rmtree(out)
    return seconds, most() - before


def load_and_save(files: list[Path], out: Path) -> None:
    """What one writes by hand."""
    for file in files:
        with file.open("rb") as source:
            content = pickle.load(source)  # noqa: S301 - our own file
        for i, record in enumerate(content):
            folder = out / file.stem / str(i)
            folder.mkdir(parents=True)
            np.save(folder / "hidden_states.npy", np.stack(record["hidden_states"]))
            np.save(folder / "attentions.npy", np.stack(record["attentions"]))
            np.save(folder / "tokens.npy", record["tokens"])
            content[i] = None


def import_files(files: list[Path], out: Path) -> None:
    from store.importers.files import given_files
    from store.importers.legacy.source import LegacySource
    from store.importers.source import Options
    from store.write.build import build_store

    if files:
        build_store(out / "s.zarr", LegacySource(given_files(files), Options()))


if __name__ == "__main__":
    run(main, parser(__doc__, size_mb=2000, epochs=3))
