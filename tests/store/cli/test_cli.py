import json

import numpy as np
import pytest
from oracle import WRITTEN, bits
from running import run_python
from small import make_store, refused

from store import TraceStore
from store.cli.main import main


def run(capsys, *arguments):
    status = main([str(argument) for argument in arguments])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def test_get_prints_the_trace_that_python_gives(store_path, capsys):
    store = TraceStore.open(store_path)
    for trace in (store[3], store[39]):
        status, out, _ = run(capsys, "get", store_path, trace.id, "--json")
        shown = json.loads(out)
        assert (status, shown["trace_id"], shown["row"]) == (0, trace.id, trace.row)
        for name in trace:
            assert_same_numbers(shown[name], trace[name])


def assert_same_numbers(shown, value):
    if isinstance(value, str):
        assert shown == value
    elif value.dtype.__str__() == "torch.bfloat16":
        assert shown == value.tolist()
    else:
        back = np.array(shown, value.dtype).reshape(value.shape)
        nan = np.isnan(value) if value.dtype.kind == "f" else np.zeros(value.shape, bool)
        assert bits(back[~nan]) == bits(np.asarray(value)[~nan])
        assert value.dtype.kind != "f" or np.isnan(back[nan]).all()


def test_get_as_text_shows_chosen_columns(store_path, capsys):
    status, out, _ = run(capsys, "get", store_path, "trace 3 é", "--columns", "label,tokens")
    assert status == 0
    names = [line.split(":")[0] for line in out.splitlines() if ":" in line]
    assert names == ["trace_id", "row", "label", "tokens"]


@pytest.mark.parametrize("store_path", WRITTEN, indirect=True)
def test_info_prints_what_a_store_holds(store_path, capsys):
    status, out, _ = run(capsys, "info", store_path)
    assert status == 0
    assert "40 traces" in out
    assert "tokens x 3 layers x 5 hidden" in out
    assert "model: none" in out
    info = json.loads(run(capsys, "info", store_path, "--json")[1])
    assert info["rows"] == 40
    assert info["columns"]["tokens"]["items"] == TraceStore.open(store_path).n_items("tokens")
    assert 0 < info["columns"]["tokens"]["bytes"] < info["bytes"]


def test_a_mistake_is_one_line_and_status_2(store_path, capsys, golden_lines):
    def say(typed):
        line = refused(capsys, *(store_path if one == "STORE" else one for one in typed))
        return line.strip().replace(str(store_path), "STORE")

    golden_lines("mistakes.txt", say)


@pytest.mark.parametrize("arguments", [["--help"], ["get", "--help"], []])
def test_help_and_usage(arguments, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    assert stopped.value.code == (0 if arguments else 2)
    out, err = capsys.readouterr()
    assert out.startswith("usage: python -m store") == bool(arguments)
    assert err.count("\n") == (0 if arguments else 1)


def test_a_full_disk_is_one_line(store_path):
    with open("/dev/full", "w") as full:  # noqa: PTH123
        done = run_python("-m", "store", "info", store_path, stdout=full)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "No space left" in done.stderr


CONTROLS = "\x1b]0;title\x07\x1b[2J\x9b31m\u202ered\r\x7f"


def test_texts_do_not_steer_the_terminal(tmp_path, capsys):
    """Neither stored ones, nor names of files and ids in errors; lines and tabs stay."""
    path = tmp_path / f"a{CONTROLS}.zarr"
    row = {CONTROLS: {"answer": f"{CONTROLS}one\n\ttwo"}}
    make_store(path, {"answer": "utf8"}, row, {"model": CONTROLS})
    shown = [
        run(capsys, "get", path, CONTROLS),
        run(capsys, "get", path, CONTROLS[1:]),
        run(capsys, "info", path),
        run(capsys, "verify", path),
        run(capsys, "export", path, "--to", path),
        run(capsys, "import", tmp_path / "o.zarr", path),
        run(capsys, "subset", tmp_path / "o.zarr", path, "--ids", path),
    ]
    assert "\\x1b[2J\\x9b31m\\u202ered\\r\\x7fone\n\ttwo" in shown[0][1]
    assert [status for status, *_ in shown] == [0, 2, 0, 0, 2, 2, 2]
    for _, out, err in shown:
        assert all(char.isprintable() or char in "\n\t" for char in out + err)
