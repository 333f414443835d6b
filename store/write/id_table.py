"""The id table: its runs, written; `store.read.id_table` reads them."""

from collections.abc import Iterable
from pathlib import Path

import numpy as np
from crc32c import crc32c

from store.format.array_info import RUN_INFO
from store.format.contents import run_arrays, run_name
from store.format.ids import Run, build_run, hash_ids
from store.format.manifest import Manifest
from store.format.zarr_json import group_json
from store.read.directory import StoreDirectory
from store.read.id_table import IdTable
from store.read.source import LocalSource
from store.write.array_writer import write_array, write_metadata
from store.write.files import Files

__all__ = ["merge_runs", "write_run"]


def merge_runs(
    root: Path, files: Files, manifest: Manifest, run: Run, new_ids: Iterable[str]
) -> int:
    """Write a run that contains committed runs and the ids of new rows; return its checksum.

    `run` begins at the first row of a committed run, or at a new row, and ends at the end of all
    rows; `new_ids` are of the rows that are not committed. Raises CorruptError if a committed run
    is damaged: a copy of it would get a new checksum.
    """
    first, n_rows = run
    table = IdTable(LocalSource(StoreDirectory.at(root)), manifest, check=True)
    runs = [table.run(old) for old in manifest.runs if old[0] >= first]
    runs.append((hash_ids(new_ids), np.arange(manifest.n_rows, n_rows)))
    hashes, rows = map(np.concatenate, zip(*runs, strict=True))
    return write_run(root, files, run, hashes, rows)


def write_run(root: Path, files: Files, run: Run, hashes: np.ndarray, rows: np.ndarray) -> int:
    """Write a run of the id table, of these hashes and rows in any order; return its checksum."""
    checksum = 0
    write_metadata(root, files, f"_index/{run_name(run)}", group_json())
    for array, values in zip(run_arrays(run), build_run(hashes, rows), strict=True):
        write_array(root, files, array, RUN_INFO, [values])
        checksum = crc32c(values.data, checksum)
    return checksum
