"""What the documents state about files that are committed is what those files say."""

import hashlib
import json
import re
from dataclasses import fields
from pathlib import Path

import pytest
from crc32c import crc32c

from benchmarks.figures import CITATION, cell, read_tables
from store import Column, Schema
from store.format import manifest, schema
from tests.independent_reader import checksum
from tests.store.sample import unpack

ROOT = Path(__file__).parent.parent
FORMAT = (ROOT / "docs" / "format.md").read_text()
DESIGN = (ROOT / "docs" / "design.md").read_text()
TABLES = read_tables()


def test_a_cited_number_is_in_its_table():
    """A row is named by some of its cells, without versions."""
    cited = CITATION.findall(DESIGN)
    assert [cell(TABLES, *place) for *place, _ in cited] == [value for *_, value in cited]
    assert len(cited) > 50


def test_decisions_are_numbered_in_order():
    numbers = [int(number) for number in re.findall(r"^### D(\d+) ", DESIGN, re.MULTILINE)]
    assert numbers == list(range(1, len(numbers) + 1))


@pytest.fixture(scope="module")
def sample(tmp_path_factory):
    """The committed store of the first version."""
    return unpack(tmp_path_factory.mktemp("format"))


def first_cells(heading):
    """The names in the first column of the first table after a heading."""
    section = FORMAT.split(heading, 1)[1]
    table = section[section.index("|---") :].split("\n\n", 1)[0]
    return re.findall(r"^\| `(\w+)`", table, re.MULTILINE)


def test_every_key_is_described():
    """Of the manifest, and of a column."""
    record = manifest.Manifest(Schema({}), segments={"x": [0]}).to_attributes()[manifest.KEY]
    assert set(first_cells("## 3. The manifest")) == set(record)
    assert first_cells("### 3.2 A column") == [field.name for field in fields(Column)]


def test_every_dtype_is_described():
    described = " ".join(re.findall(r"^\| `.*", FORMAT.split("## 4.")[1].split("## 5.")[0], re.M))
    assert {f"`{dtype}`" for dtype in schema.DTYPES} <= set(re.findall(r"`\w+`", described))


def test_the_caps_are_those_of_the_code():
    code = "".join(path.read_text() for path in (ROOT / "store" / "format").glob("*.py"))
    for stated, constant in (
        ("67,108,864 bytes", "MAX_FILE_BYTES = 64 * 1024 * 1024"),
        ("| columns | 1024 |", "MAX_COLUMNS = 1024"),
        ("| item axes | 32 |", "MAX_ITEM_AXES = 32"),
        ("| bytes of an item | 2³¹ |", "MAX_ITEM_BYTES = 2**31"),
        ("| shards of a column, or of offsets | 2¹⁷ |", "MAX_SHARDS = 2**17"),
        ("from 0 to 2⁴⁸ − 1", "MAX_ITEMS = 2**48"),
    ):
        assert stated in FORMAT
        assert constant in code


def test_the_hex_dump_is_of_the_sample(sample):
    """And its index ends in the checksum that the text names."""
    lines = re.findall(r"^[0-9a-f]{8}: ((?:[0-9a-f]{4} ?)+)", FORMAT, re.MULTILINE)
    data = bytes.fromhex("".join(lines))
    assert data == (sample / "tokens" / "c" / "1").read_bytes()
    assert f"{crc32c(data[64:-4]):#x}" == f"{int.from_bytes(data[-4:], 'little'):#x}"
    assert f"CRC32C of the index: {crc32c(data[64:-4]):#010x}" in FORMAT


def test_the_checksum_of_the_manifest_and_the_hash_of_an_id_are_the_ones_stated(sample):
    attributes = json.loads((sample / "zarr.json").read_bytes())["attributes"]
    stated = attributes["trace_store"]["crc32c"]
    assert checksum(attributes["trace_store"]) == stated
    assert f'"crc32c": "{stated}"' in FORMAT
    digest = hashlib.blake2b("trace 0 é".encode(), digest_size=8).digest()
    assert f"`{int.from_bytes(digest, 'little'):#x}`" in FORMAT


def test_the_metadata_of_an_array_is_as_shown(sample):
    """But for what the first variant did not have."""
    block = next(
        code for code in re.findall(r"```json\n(.*?)```", FORMAT, re.S) if "planes_" in code
    )
    shown = json.loads(block)
    found = json.loads((sample / "planes" / "zarr.json").read_bytes())
    for key in ("attributes", "dimension_names"):
        del shown[key], found[key]
    assert shown == found
