"""The `zarr.json` files, as zarr-python itself writes them; the only module that imports zarr.

Nothing here touches a store's files: zarr writes into a dictionary, and we take the text. It is
imported when a writer first needs it: whoever only reads, every worker process among them, starts
without it.
"""

import json
from functools import cache

from store.format.array_info import ArrayInfo
from store.format.codecs import parse_codec
from store.format.layout import ArrayLayout

__all__ = ["array_json", "group_json"]


def group_json(attributes: dict | None = None) -> bytes:
    """The document of a Zarr v3 group with these attributes."""
    return _text(_empty_group() | {"attributes": attributes or {}})


def array_json(layout: ArrayLayout, n_items: int, info: ArrayInfo) -> bytes:
    """The document of a sharded Zarr v3 array of `n_items` items."""
    document = _empty_array(layout, info.names)
    shape = [n_items, *layout.item_shape]
    return _text(document | {"shape": shape, "attributes": info.attributes})


@cache
def _empty_group() -> dict:
    import zarr

    memory: dict = {}
    zarr.create_group(zarr.storage.MemoryStore(memory), zarr_format=3)
    return json.loads(memory["zarr.json"].to_bytes())


@cache
def _empty_array(layout: ArrayLayout, names: tuple[str | None, ...]) -> dict:
    import zarr

    memory: dict = {}
    zarr.create_array(
        zarr.storage.MemoryStore(memory),
        shape=(0, *layout.item_shape),
        shards=layout.zarr_shard_shape,
        chunks=layout.zarr_chunk_shape,
        dtype=layout.dtype,
        serializer=zarr.codecs.BytesCodec(),
        compressors=_compressors(layout.codec),
        filters=None,
        fill_value=0,
        dimension_names=names or None,
        zarr_format=3,
    )
    return json.loads(memory["zarr.json"].to_bytes())


def _compressors(codec: str | None) -> list | None:
    """zarr-python's objects for a codec of ours, the checksum behind it."""
    if codec is None:
        return None
    from zarr.codecs import BloscCodec, Crc32cCodec, GzipCodec, ZstdCodec

    parsed = parse_codec(codec)
    if parsed.name == "zstd":
        return [ZstdCodec(level=parsed.level), Crc32cCodec()]
    if parsed.name == "gzip":
        return [GzipCodec(level=parsed.level), Crc32cCodec()]
    return [
        BloscCodec(cname=parsed.cname, clevel=parsed.level, shuffle=parsed.shuffle),
        Crc32cCodec(),
    ]


def _text(document: dict) -> bytes:
    return json.dumps(document, indent=1, allow_nan=False).encode()
