"""The labels that a store had before `python -m store label`, in a CSV file beside the store.

The file is `STORE.labels-ID-GENERATION.csv`; the store's provenance records its name and checksum,
so that the last change can be undone. The labels are not kept as columns of the store: rows could
then not be appended without them, nor the store be merged with one like it.
"""

import csv
import hashlib
import io
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from store.errors import CorruptError, NotFoundError
from store.labels.rule import Labels
from store.read.store import TraceStore
from store.traces.label_keys import LABEL_KEYS, LABELS_BEFORE
from store.write.files import Files

__all__ = ["Backup", "read_backup", "write_backup"]

HEADER = ["trace_id", "score", "label"]


class Backup(NamedTuple):
    """The record of the labels that were replaced last, in a store's provenance."""

    file: str  # its name beside the store
    sha256: str
    provenance: dict[str, Any]  # what it recorded of those labels: some of `LABEL_KEYS`

    @classmethod
    def of(cls, store: TraceStore) -> "Backup | None":
        """The record of a store; None if there is none that `write_backup` made."""
        match store.provenance.get(LABELS_BEFORE):
            case {
                "file": str(file),
                "sha256": str(sha256),
                "provenance": dict(provenance),
                **others,
            } if not others and Path(file).name == file:
                return cls(file, sha256, provenance)
        return None

    def path(self, store: TraceStore) -> Path:
        """Where the file is, also where the store's path is a link."""
        return store.path.resolve().with_name(self.file)

    def is_of(self, store: TraceStore) -> bool:
        """Whether the file is of this store; subsets of earlier versions name that of the whole."""
        return _mark(store) in self.file


def _mark(store: TraceStore) -> str:
    """The part of the names of a store's backups that no other store has, whatever its path."""
    return f".labels-{store.uuid[:8]}-"


def write_backup(
    store: TraceStore, trace_ids: Sequence[str], labels: Labels, files: Files
) -> Backup:
    """Write the labels of a store to a file beside it, durable on return."""
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(HEADER)
    for trace_id, score, label in zip(trace_ids, *labels, strict=True):
        cell = "" if math.isnan(score) else repr(float(score))
        writer.writerow([trace_id, cell, int(label)])
    content = text.getvalue().encode()
    backup = Backup(
        f"{store.path.resolve().name}{_mark(store)}{store.generation}.csv",
        hashlib.sha256(content).hexdigest(),
        {key: value for key, value in store.provenance.items() if key in LABEL_KEYS},
    )
    path = backup.path(store)
    files.replace_text(path, content, path.with_name(f"{path.name}.new"))
    return backup


def read_backup(store: TraceStore, backup: Backup) -> dict[str, tuple[float, int]]:
    """The scores and labels that were saved, by trace id.

    Raises NotFoundError if the file is not beside the store, CorruptError if it is not as it was
    written.
    """
    path = backup.path(store)
    try:
        content = path.read_bytes()
    except FileNotFoundError as error:
        raise NotFoundError(
            f"{path}: the file with the earlier labels is not there; if the store was moved or "
            "copied, put that file beside it"
        ) from error
    if hashlib.sha256(content).hexdigest() != backup.sha256:
        raise CorruptError(
            f"{path}: expected the labels as they were saved, found another content; restore the "
            "file from a copy"
        )
    lines = csv.reader(io.StringIO(content.decode(), newline=""))
    next(lines)
    return {
        trace_id: (float(score) if score else math.nan, int(label))
        for trace_id, score, label in lines
    }
