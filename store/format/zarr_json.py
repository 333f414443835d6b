"""The `zarr.json` files, as zarr-python itself writes them; the only module that imports zarr.

Nothing here touches a store's files: zarr writes into a dictionary, and we take the text. Zarr is
imported when a writer first needs it, so that readers, and worker processes among them, start
without it.
"""

import json
from functools import cache

from store.format.array_info import ArrayInfo
from store.format.codecs import parse_codec
from store.format.layout import ArrayLayout

__all__ = ["array_json", "group_json"]


def group_json(attributes: dict | None = None) -> bytes:
    """The metadata of a Zarr v3 group with these attributes."""
    return _text(_empty_group() | {"attributes": attributes or {}})


def array_json(layout: ArrayLayout, n_items: int, info: ArrayInfo) -> bytes:
    """The metadata of a sharded Zarr v3 array of `n_items` items."""
    metadata = _empty_array(layout, info.names)
    shape = [n_items, *layout.item_shape]
    return _text(metadata | {"shape": shape, "attributes": info.attributes})


@cache
def _empty_group() -> dict:
    import zarr

    memory: dict = {}
    zarr.create_group(zarr.storage.MemoryStore(memory), zarr_format=3)
    return json.loads(memory["zarr.json"].to_bytes())


@cache
def _empty_array(layout: ArrayLayout, names: tuple[str | None, ...]) -> dict:
    import zarr
    from zarr.codecs import BytesCodec

    cell = [1 if i in layout.split_axes else size for i, size in enumerate(layout.item_shape)]
    compressors: list[dict] | None = None
    if layout.codec is not None:
        codec = parse_codec(layout.codec)
        compression = {"name": codec.name, "configuration": codec.configuration}
        compressors = [compression, {"name": "crc32c"}]
    memory: dict = {}
    zarr.create_array(
        zarr.storage.MemoryStore(memory),
        shape=(0, *layout.item_shape),
        shards=(layout.shard_items, *layout.item_shape),
        chunks=(layout.chunk_items, *cell),
        dtype=layout.dtype,
        serializer=BytesCodec(),
        compressors=compressors,
        filters=None,
        fill_value=0,
        dimension_names=names or None,
        zarr_format=3,
    )
    return json.loads(memory["zarr.json"].to_bytes())


def _text(metadata: dict) -> bytes:
    return json.dumps(metadata, indent=1, allow_nan=False).encode()
