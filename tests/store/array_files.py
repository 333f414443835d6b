"""Small files of arrays, written from their formats alone."""

import json

import numpy as np

DTYPES = {"float32": "F32", "float16": "F16", "int64": "I64", "int32": "I32", "bool": "BOOL"}


def safetensors_bytes(arrays, **changes):
    """The bytes of a safetensors file; `changes` replace entries of its header by name."""
    header = {}
    data = b""
    for name, array in arrays.items():
        dtype = "BF16" if array.dtype == np.uint16 else DTYPES[array.dtype.name]
        end = len(data) + array.nbytes
        header[name] = {
            "dtype": dtype,
            "shape": list(array.shape),
            "data_offsets": [len(data), end],
        }
        data += array.tobytes()
    return with_header(header | changes, data)


def with_header(header, data):
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def vllm_file(folder, name, n_tokens, seed=0, layers=3, hidden=4):
    """One file as vLLM writes it; returns its states, as the bits of bfloat16, and token ids."""
    rng = np.random.default_rng([seed, n_tokens])
    numbers = rng.normal(size=(n_tokens, layers, hidden)).astype("<f4")
    bits = (numbers.view("<u4") >> 16).astype("<u2")
    tokens = rng.integers(0, 1000, n_tokens)
    folder.mkdir(exist_ok=True)
    data = safetensors_bytes({"hidden_states": bits, "token_ids": tokens})
    (folder / f"{name}.safetensors").write_bytes(data)
    return bits, tokens


def write_lines(path, records):
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path
