"""Small pickles that would crash, stall or fill a process which takes them as they are.

`KEYS` and `VALUES` are opcodes that leave a value on the stack; `hostile_files` makes files of
them: as they are, as a key, in a field of a record, in gzip, and in torch files of both forms.
"""

import gzip
import io
import pickle
import struct
import zipfile

import torch

MODULUS = 2**61 - 1  # of the hashes of integers
DEEP = 100_000


def long(n):
    data = n.to_bytes(n.bit_length() // 8 + 1, "little", signed=True)
    return b"\x8b" + struct.pack("<I", len(data)) + data


def name(path):
    module, _, function = path.rpartition(".")
    return f"c{module}\n{function}\n".encode()


def levels(first, step, n=60):
    """A value that holds the one before twice, n times: `step` takes it from the stack."""
    return first + step * n


def array(shape, data=b""):
    """An array of any shape, over any bytes."""
    dtype = name("numpy.dtype") + b"X\x02\x00\x00\x00i1\x89\x88\x87R"
    empty = name("numpy._core.multiarray._reconstruct") + name("numpy.ndarray")
    empty += b"K\x00\x85C\x01b\x87R"
    return empty + b"(K\x01" + shape + dtype + b"\x89" + data + b"tb"


DEEP_TUPLE = b")" + b"\x85" * 300_000
WIDE_TUPLE = levels(b"K\x01", b"2\x86")
WIDE_LIST = b"](K\x01e" + b"q\x00](h\x00h\x00e" * 60
WIDE_LISTS = WIDE_LIST + b"q\x01](K\x01e" + b"q\x00](h\x00h\x00e" * 60 + b"q\x02]h\x01ah\x02a"
FROZEN = b"\x91"
ORDERED = name("collections.OrderedDict") + b")R"
COLLIDING_INTS = b"".join(long(i * MODULUS) + b"N" for i in range(1, 20_000))
COLLIDING_KEYS = COLLIDING_INTS.replace(b"N", b"")

KEYS = {
    "deep tuple": DEEP_TUPLE,
    "wide tuple": WIDE_TUPLE,
    "deep tuples in a tuple": DEEP_TUPLE + DEEP_TUPLE + b"\x86",
    "huge tuple": b"(" + b"N" * 200_000 + b"t",
    "huge number": long(1 << 8_000_000),
    "deep frozensets": b"(" + FROZEN + (b"q\x00(h\x00" + FROZEN) * 3000,
}
VALUES = {
    "deep tuples": DEEP_TUPLE,
    "deep lists": b"]" * DEEP + b"a" * (DEEP - 1),
    "deep dicts": b"}" + b"K\x00}" * DEEP + b"s" * DEEP,
    "deep frozensets": b"(" * DEEP + b"\x91" * DEEP,
    "deep ordered dicts": (ORDERED + b"K\x00") * 20_000 + b"N" + b"s" * 20_000,
    "wide tuples": WIDE_TUPLE,
    "wide lists": WIDE_LIST,
    "two wide lists": WIDE_LISTS,
    "wide dicts": b"}" + b"q\x00}K\x00h\x00sK\x01h\x00s" * 60,
    "a list in itself": b"]q\x00(h\x00h\x00e",
    "a dict in itself": b"}q\x00K\x00h\x00s",
    "a tuple in itself": b"]q\x00h\x00\x85q\x01ah\x01",
    "integers of one hash": b"}(" + COLLIDING_INTS + b"u",
    "integers of one hash in an old dict": b"(" + COLLIDING_INTS + b"d",
    "a frozenset of one hash": b"(" + COLLIDING_KEYS + FROZEN,
    "an old set of one hash": name("builtins.set") + b"](" + COLLIDING_KEYS + b"e\x85R",
    "a set of one hash": b"\x8f(" + COLLIDING_KEYS + b"\x90",
    "memo slots of one hash": b"N" + b"".join(b"p%d\n" % (i * MODULUS) for i in range(20_000)),
    "one huge key again and again": long(1 << 8_000_000) + b"q\x000}" + b"h\x00Ns" * 200_000,
    "a shape of huge numbers": array(
        b"(" + long(1 << 4_000_000) + b"q\x00" + b"h\x00" * 2000 + b"t"
    ),
    "a shape of many ones": array(b"(" + b"K\x01" * 300_000 + b"t", b"C\x01a"),
    "a huge negative shape": array(long(-(1 << 60)) + b"\x85"),
    "a shape of 2**62": array(long(1 << 62) + b"\x85"),
    "a negative length": b"\x8b" + struct.pack("<i", -5),
    "a number of many digits": b"L" + b"9" * 1_000_000 + b"L\n",
    "many marks": b"(" * 300_000,
}  # fmt: skip


def pickled(value):
    return b"\x80\x04" + value + b"."


def field_of(record, field, value):
    """A record whose field is this value."""
    data = pickle.dumps([{**record, field: "THE PLACE"}], 3)
    text = b"X\x09\x00\x00\x00THE PLACE"
    assert data.count(text) == 1
    return data.replace(text, value)


def torch_zip(value):
    """A torch file with this pickle."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("file/data.pkl", pickled(value))
        archive.writestr("file/version", "3\n")
    return file.getvalue()


def torch_legacy(keys):
    """A torch file of the older form, with these keys of its storages."""
    file = io.BytesIO()
    torch.save([1], file, _use_new_zipfile_serialization=False)
    whole = file.getvalue()
    return whole[: whole.rindex(b"\x80\x02")] + pickled(keys)


def graphs_of(value):
    """A torch file with a graph whose numbers are this value."""
    graph = (
        name("torch_geometric.data.data.Data") + b")\x81}X\x06\x00\x00\x00_store" + value + b"sb"
    )
    return torch_zip(b"}(X\x06\x00\x00\x00graphs]" + graph + b"aX\x06\x00\x00\x00labelsK\x01"
                     b"X\x0c\x00\x00\x00question_ids]X\x01\x00\x00\x00aau")  # fmt: skip


def deep_graphs():
    """A graph whose store is a graph, and so on."""
    new = name("torch_geometric.data.data.Data") + b")\x81"
    return new + (b"q\x000" + new + b"}X\x06\x00\x00\x00_storeh\x00sb") * 20_000


def hostile_files(record):
    """Name -> bytes; `record` is a whole trace."""
    files = {}
    for what, key in KEYS.items():
        files[f"key, {what}.pkl"] = pickled(b"}" + key + b"Ns")
        files[f"item, {what}.pkl"] = pickled(b"\x8f(" + key + b"\x90")
    for what, value in VALUES.items():
        files[f"value, {what}.pkl"] = pickled(value)
    for field in ("hidden_states", "tokens", "question"):
        for what in ("deep tuples", "wide tuples", "wide lists", "a list in itself", "wide dicts"):
            files[f"{field}, {what}.pkl"] = field_of(record, field, VALUES[what])
    files["gzip, zeros.pkl.gz"] = gzip.compress(pickle.dumps(bytes(1 << 28), 4), 1)
    files["gzip, sets.pkl.gz"] = gzip.compress(pickled(b"\x8f" * 30_000_000), 1)
    files["gzip, lists.pkl.gz"] = gzip.compress(pickled(b"]" * 30_000_000), 1)
    files["gzip, wide tuples.pkl.gz"] = gzip.compress(pickled(b"}" + WIDE_TUPLE + b"Ns"))
    for what in ("deep tuples", "wide lists", "integers of one hash", "a shape of huge numbers"):
        files[f"torch, {what}.pt"] = torch_zip(VALUES[what])
    files["torch, deep key.pt"] = torch_zip(b"}" + DEEP_TUPLE + b"Ns")
    files["torch, wide labels.pt"] = torch_zip(
        b"}(X\x09\x00\x00\x00sequences]X\x06\x00\x00\x00labels" + WIDE_LIST
        + b"X\x0c\x00\x00\x00question_ids]u"
    )  # fmt: skip
    files["torch, deep graphs.pt"] = torch_zip(deep_graphs())
    files["torch, a graph of itself.pt"] = graphs_of(WIDE_LIST)
    files["torch, two wide keys.pt"] = torch_legacy(WIDE_LISTS)
    return files
