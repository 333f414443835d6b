"""The card of a store in a bucket: a README.md for people who find it. Pure.

https://huggingface.co/docs/hub/datasets-cards
"""

from collections.abc import Iterable

from store.read.store import TraceStore
from store.reports import count, size_text
from store.traces.layers import format_layers, recorded_layers
from store.traces.origin import records_of

__all__ = ["CARD", "card_text", "is_card"]

CARD = "README.md"
MARK = "<!-- made by python -m store push, which replaces it; without this line it stays -->"
MAX_CHARS = 200  # of a name
TEMPLATE = """\
---
license: unknown
tags:
- trace-store
- zarr
---
{mark}

# {name}

{rows} of language models, {size}, as a standard Zarr v3 store.

- Model: {models}
- Layers: {layers}
- License: not stated

| column | dtype | shape of an item | ragged axis |
|---|---|---|---|
{columns}

```python
from store import TraceStore

store = TraceStore.open("{url}")
print(store, store[0])
```
"""


def card_text(store: TraceStore, url: str) -> str:
    """The card of a store that is found at an address."""
    layers = recorded_layers(store.provenance)
    models = {str(record.get("model")) for record in records_of(store.provenance)} - {"None"}
    return TEMPLATE.format(
        mark=MARK,
        name=_plain(url.rpartition("/")[2]),
        rows=count(len(store), "trace"),
        size=size_text(store.file_bytes()),
        models=", ".join(f"`{_plain(model)}`" for model in sorted(models)) or "not recorded",
        layers="not recorded" if layers is None else format_layers(layers),
        columns="\n".join(_rows(store)),
        url=url,
    )


def is_card(text: bytes) -> bool:
    """Whether a README.md is one of these, and not somebody's own."""
    return MARK.encode() in text


def _rows(store: TraceStore) -> Iterable[str]:
    for name, column in store.schema.stored.items():
        shape = " x ".join(map(str, column.item_shape))
        axis = store.schema.axis_of(name) or ""
        yield f"| `{_plain(name)}` | {column.dtype} | {shape} | {axis} |"


def _plain(text: str) -> str:
    """One line, without the signs that end a quotation or a cell."""
    return "".join(c for c in text if c.isprintable() and c not in "`|<>")[:MAX_CHARS]
