"""The `zarr.json` files, as zarr-python itself writes them; the only module that imports zarr.

Nothing here touches a store's files: zarr writes into a dictionary, and we take the text.
"""

import json
from functools import cache

import zarr
from zarr.codecs import BytesCodec
from zarr.storage import MemoryStore

from store.schema import ArrayLayout

__all__ = ["array_json", "group_json"]


def group_json(attributes: dict | None = None) -> bytes:
    """The document of a Zarr v3 group with these attributes."""
    memory: dict = {}
    zarr.create_group(MemoryStore(memory), zarr_format=3)
    document = json.loads(memory["zarr.json"].to_bytes())
    document["attributes"] = attributes or {}
    return _text(document)


def array_json(layout: ArrayLayout, n_items: int, names: tuple[str | None, ...] = ()) -> bytes:
    """The document of a raw, sharded Zarr v3 array of `n_items` items, its dimensions called `names`."""
    document = _empty_array(layout, names)
    return _text(document | {"shape": [n_items, *layout.item_shape]})


@cache
def _empty_array(layout: ArrayLayout, names: tuple[str | None, ...]) -> dict:
    memory: dict = {}
    zarr.create_array(
        MemoryStore(memory),
        shape=(0, *layout.item_shape),
        shards=layout.zarr_shard_shape,
        chunks=layout.zarr_chunk_shape,
        dtype=layout.dtype,
        serializer=BytesCodec(),
        compressors=None,
        filters=None,
        fill_value=0,
        dimension_names=names or None,
        zarr_format=3,
    )
    return json.loads(memory["zarr.json"].to_bytes())


def _text(document: dict) -> bytes:
    return json.dumps(document, indent=1, allow_nan=False).encode()
