"""Small stores, written in one call, and what commands and calls refuse."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

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


def store_columns(
    path: str | Path,
    columns: Mapping[str, tuple[Column | str, Any]],
    provenance: dict[str, Any] | None = None,
) -> TraceStore:
    """A store of columns, name -> (kind, values of all rows), with traces t0, t1, ..."""
    kinds = {name: kind for name, (kind, _) in columns.items()}
    rows = enumerate(zip(*(values for _, values in columns.values()), strict=True))
    traces = {f"t{i}": dict(zip(kinds, row, strict=True)) for i, row in rows}
    return make_store(path, kinds, traces, provenance)


def one_column(path: str | Path, name: str, kind: Column | str, values: Any, **options: Any) -> Any:
    """A store of one column, with traces t0, t1, ..."""
    return store_columns(path, {name: (kind, values)}, **options)


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


def complaint(errors: Any, call: Any, *arguments: Any, **options: Any) -> str:
    """The one line of the error that a call raises, which is one of these."""
    with pytest.raises(errors) as caught:
        call(*arguments, **options)
    text = str(caught.value)
    assert "\n" not in text
    return text
