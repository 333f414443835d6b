"""Changes the labels of a store: commits a `plan`.

The labels that are replaced are saved first; see `backup`.
"""

from contextlib import suppress
from pathlib import Path

from store.errors import LockedError, SchemaError
from store.labels.backup import write_backup
from store.labels.grading import LABEL_OF_RULE
from store.labels.plan import LabelPlan, label_columns
from store.traces.label_keys import LABELS_BEFORE
from store.write.writer import StoreWriter

__all__ = ["commit_labels"]


def commit_labels(writer: StoreWriter, plan: LabelPlan) -> Path | None:
    """Write the planned labels as one commit that touches nothing else.

    The labels that are replaced are made durable beside the store first, so that a crash at any
    point leaves labels that can be undone. Files of earlier changes stay, since they may be the
    only copy of what is in them; but the file whose labels are brought back is removed.

    The writer was opened before the plan was made, so that nothing was committed in between.
    Returns the file with the earlier labels; None if nothing had to be changed, and nothing was.
    """
    store = plan.store
    if writer.generation != store.generation:
        raise LockedError(
            f"{store.path}: something was committed since these labels were planned; plan them "
            "again"
        )
    if not plan.is_needed:
        return None
    backup = write_backup(store, plan.ids, plan.old, writer.files)
    path = backup.path(store)
    own = label_columns(store.schema)
    values = plan.columns
    columns = dict.fromkeys(values, LABEL_OF_RULE) | own
    rows = (dict(zip(values, row, strict=True)) for row in zip(*values.values(), strict=True))
    try:
        writer.set_columns(columns, rows, {**plan.provenance, LABELS_BEFORE: backup._asdict()})
    except SchemaError:  # nothing was committed
        _remove(writer, path)
        raise
    if plan.undone is not None and plan.undone.is_of(store):
        _remove(writer, plan.undone.path(store))
    return path


def _remove(writer: StoreWriter, path: Path) -> None:
    with suppress(OSError):
        writer.files.remove(path)
