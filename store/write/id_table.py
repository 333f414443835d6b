"""The id table: a run of it, written; `store.read.id_table` reads it."""

from pathlib import Path

import numpy as np
from crc32c import crc32c

from store.format.array_info import RUN_INFO
from store.format.contents import run_arrays, run_name
from store.format.ids import build_run
from store.format.zarr_json import group_json
from store.write.array_writer import ArrayWriter, write_metadata
from store.write.files import Files

__all__ = ["write_run"]

Run = tuple[int, int]


def write_run(root: Path, files: Files, run: Run, hashes: np.ndarray, rows: np.ndarray) -> int:
    """Write a run of the id table, of these hashes and rows in any order; return its checksum."""
    checksum = 0
    write_metadata(root, files, f"_index/{run_name(run)}", group_json())
    for array, values in zip(run_arrays(run), build_run(hashes, rows), strict=True):
        writer = ArrayWriter(root, files, array._replace(n_items=0), RUN_INFO)
        writer.append(values)
        writer.commit()
        writer.close()
        checksum = crc32c(values, checksum)
    return checksum
