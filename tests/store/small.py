"""Small stores, written in one call, and commands that refuse."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from store import Column, Schema, StoreWriter, TraceStore
from store.cli.main import main


def make_store(
    path: str | Path,
    columns: Mapping[str, Column | str],
    rows: Mapping[str, Mapping[str, Any]],
    provenance: dict[str, Any] | None = None,
) -> TraceStore:
    """A store of rows, trace id -> values; a column may be given by its dtype."""
    schema = Schema(
        {name: Column(one) if isinstance(one, str) else one for name, one in columns.items()}
    )
    with StoreWriter.create(path, schema, provenance) as writer:
        for trace_id, row in rows.items():
            writer.append(trace_id, row)
    return TraceStore.open(path)


def one_column(path: str | Path, name: str, kind: Column | str, values: Any, **options: Any) -> Any:
    """A store of one column, with traces t0, t1, ..."""
    rows = {f"t{i}": {name: value} for i, value in enumerate(values)}
    return make_store(path, {name: kind}, rows, **options)


def refused(capsys: Any, *arguments: object) -> str:
    """The one line on stderr of a command that refuses: exit status 2, and nothing else said."""
    capsys.readouterr()
    try:
        status: object = main([str(argument) for argument in arguments])
    except SystemExit as stopped:  # argparse
        status = stopped.code
    out, error = capsys.readouterr()
    assert (status, out, error.count("\n")) == (2, "", 1)
    return str(error)
