"""Methods from outside: files that the command line names, and installed packages."""

import json
import sys
from dataclasses import asdict, replace

import pytest
from small import complaint

from models import DETECTORS, PROBES, Detector, Option, Probe
from train.config import own_options, parse_arguments
from train.errors import ConfigError
from train.outside import (
    LOADED,
    describe_changes,
    forget,
    load_methods,
    outside_differences,
)

HEAD = "from models import Detector, Option, Outputs, Probe\n"
BODY = """
class MyHTTPDetector(Detector):
    columns = ("hs_last",)
    options = (
        Option("width", 16, "width", low=1, high=64),
        Option("share", 0.5, "a share, not in %", low=0, high=1),
        Option("kind", "sum", choices=("sum", "mean")),
        Option("deep", False),
        Option("depth", None, kind=int),
    )

    def __init__(self, hidden_size, width, share, kind, deep, depth):
        super().__init__()

    def encode(self, batch):
        return batch.fixed("hs_last")

    def classify(self, features):
        return Outputs(features.sum((1, 2)))


class Named(MyHTTPDetector):
    name = "other"
    options = ()

    def __init__(self, hidden_size):
        super().__init__(hidden_size, 1, 1, "sum", False, None)


NORM = Probe(("hs_last",), lambda batch: batch.fixed("hs_last"))
"""


@pytest.fixture(autouse=True)
def clean_registries():
    yield
    forget()


@pytest.fixture
def write(tmp_path):
    """The function that writes a file: text -> its path."""

    def write(text, name="mine.py"):
        path = tmp_path / name
        path.write_text(text)
        return path

    return write


@pytest.fixture
def file(write):
    return write(HEAD + BODY)


def test_a_file_has_a_detector_and_a_probe(file):
    """They are named after their classes or variables, or as they say, and registered."""
    text = f"lstm_solo,{file}:MyHTTPDetector,{file}:Named,{file}:NORM"
    assert load_methods(text) == "lstm_solo,my_http_detector,other,norm"
    assert issubclass(DETECTORS["my_http_detector"], Detector)
    assert isinstance(PROBES["norm"], Probe)
    assert LOADED["other"].origin.place == f"{file}:Named"
    assert DETECTORS["other"].__base__ is DETECTORS["my_http_detector"]  # the file was run once
    load_methods("lstm_solo")
    assert not {"my_http_detector", "other"} & DETECTORS.keys()
    assert "norm" not in PROBES


def test_the_bytes_that_are_hashed_are_run(file):
    """A change within the same second is seen, and no bytecode is left behind."""
    load_methods(f"{file}:NORM")
    first = LOADED["norm"].origin.sha256
    file.write_text(file.read_text().replace('("hs_last",), lambda', '("hs_mean",), lambda'))
    load_methods(f"{file}:NORM")
    assert PROBES["norm"].columns == ("hs_mean",)
    assert LOADED["norm"].origin.sha256 != first
    assert list(file.parent.iterdir()) == [file]


def test_what_cannot_be_loaded_is_one_line(tmp_path, monkeypatch, golden_lines):
    """With the file, and the line where it failed; nothing is registered but where its flags are
    wrong. The lines are in `outside.txt`."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "other.py").write_text(HEAD + BODY)

    def refuse(text_and_flags):
        text, *flags = text_and_flags
        (tmp_path / "mine.py").write_text(HEAD + text.replace("BODY", BODY))
        line = complaint(ConfigError, parse_arguments, flags)
        assert not LOADED or "flag" in line or len(flags) > 1 or "other.py" in line
        forget()
        return line.partition(" (choose from")[0].replace(f"{tmp_path}/", "")

    golden_lines("outside.txt", refuse)


def test_all_may_stand_beside_methods_from_outside(file):
    """They stay named; a name that is there anyway is not named beside all."""
    assert load_methods(f"all,{file}:NORM") == "all,norm"
    assert parse_arguments([f"--models={file}:NORM,all"]).config.models == "norm,all"
    assert "norm" in PROBES
    with pytest.raises(ConfigError, match="there is no 'all'"):
        parse_arguments([f"--models=all,lstm_solo,{file}:NORM"])


def test_options_are_flags(file):
    """Of their type, with their range and their choices; without one the default holds."""
    own = [f"--my-http-detector-{one}" for one in ("width=32", "kind=mean", "deep", "depth=3")]
    config = parse_arguments([f"--models={file}:MyHTTPDetector", *own]).config
    assert config.detectors == ["my_http_detector"]
    entry = config.outside["my_http_detector"]
    assert entry.options == {"width": 32, "share": 0.5, "kind": "mean", "deep": True, "depth": 3}
    assert entry.place == f"{file}:MyHTTPDetector"
    assert len(entry.sha256) == 64
    assert parse_arguments([f"--models={file}:NORM"]).config.outside["norm"].options == {}
    assert parse_arguments([]).config.outside == {}


def test_help_shows_the_flags(file, capsys):
    with pytest.raises(SystemExit):
        parse_arguments([f"--models={file}:MyHTTPDetector", "--help"])
    text = capsys.readouterr().out
    assert "options of my_http_detector:" in text
    assert "a share, not in % (default: 0.5)" in text
    assert "--my-http-detector-deep, --no-my-http-detector-deep" in text


def test_settings_of_a_file_name_no_file_to_run(file, write):
    """A run.json may come from anywhere: the command line has to name the file again, and then
    the options are those of the run."""
    flags = [f"--models={file}:MyHTTPDetector", "--my-http-detector-width=32"]
    config = parse_arguments(flags).config
    settings = write(json.dumps(asdict(config)), "run.json")
    with pytest.raises(ConfigError, match="there is no 'my_http_detector'"):
        parse_arguments(["--config", str(settings)])
    again = parse_arguments(["--config", str(settings), flags[0], "--my-http-detector-deep"])
    options = again.config.outside["my_http_detector"].options
    assert (options["width"], options["deep"]) == (32, True)
    file.write_text("raise SystemExit('was run')")
    settings = write(json.dumps({"models": f"{file}:NORM"}), "evil.json")
    with pytest.raises(ConfigError, match="is a file to run, which only the command line can"):
        parse_arguments(["--config", str(settings)])


@pytest.mark.parametrize(
    "values, message",
    [
        ({"width": "5"}, "expected --x-width: an integer, found '5'"),
        ({"width": True}, "expected --x-width: an integer, found True"),
        ({"width": 99}, "--x-width: expected at least 1 and at most 9, found 99"),
        ({"size": 1}, "x: expected options of width, found 'size'"),
    ],
)
def test_recorded_options_are_checked(values, message):
    """They may come from anywhere."""
    options = ["dropout", Option("width", 1, low=1, high=9)]
    assert complaint(ConfigError, own_options, "x", options, values) == message


def test_what_differs_between_two_runs(file):
    """The file, and the options; where the file lies does not matter."""
    one = parse_arguments([f"--models={file}:MyHTTPDetector"]).config.outside
    assert outside_differences(one, one) == []
    (name, record), *_ = one.items()
    moved = {name: replace(record, place="/elsewhere.py:MyHTTPDetector")}
    assert outside_differences(one, moved) == []
    options = record.options | {"width": 3}
    moved = {name: replace(moved[name], sha256=64 * "0", options=options)}
    of_file, of_option = outside_differences(one, moved)
    assert of_file[::2] == (f"{file}:MyHTTPDetector: sha256", 12 * "0")
    assert of_option == ("--my-http-detector-width", 16, 3)
    (warning,) = describe_changes(moved, ["my_http_detector", "lstm_solo"])
    assert "is not what the run was trained with: expected sha256" in warning


@pytest.fixture
def install(tmp_path, monkeypatch):
    """The function that installs a package of one module with entry points."""

    def install(code, entry_points):
        folder = tmp_path / "site"
        (folder / "traced-1.2.dist-info").mkdir(parents=True)
        (folder / "traced_module.py").write_text(HEAD + code)
        info = folder / "traced-1.2.dist-info"
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: traced\nVersion: 1.2\n")
        (info / "entry_points.txt").write_text(entry_points)
        monkeypatch.syspath_prepend(folder)
        monkeypatch.delitem(sys.modules, "traced_module", raising=False)

    return install


POINTS = """[trace_detectors]
http = traced_module:MyHTTPDetector
[trace_probes]
norm = traced_module:NORM
"""


def test_installed_methods_are_there_by_name(install):
    """Imported when they are named, or with all; the package is recorded."""
    install(BODY, POINTS)
    load_methods("lstm_solo")
    assert {"http", "norm"} <= {*DETECTORS, *PROBES}
    assert "traced_module" not in sys.modules
    config = parse_arguments(["--models=http", "--http-width=3"]).config
    entry = config.outside["http"]
    assert (entry.package, entry.sha256, entry.options["width"]) == ("traced 1.2", None, 3)
    parse_arguments(["--models=all"])
    assert LOADED.keys() == {"http", "norm"}


@pytest.mark.parametrize(
    "code, points, message",
    [
        (BODY, "[trace_detectors]\nlstm_solo = traced_module:Named\n", "'lstm_solo' already"),
        (
            BODY,
            "[trace_probes]\nhttp = traced_module:Named\n",
            "trace_detectors, found trace_probes",
        ),
        ("1 / 0\n", POINTS, "traced_module.py, line 2: ZeroDivisionError"),
        ("", POINTS, "cannot be imported"),
    ],
)
def test_what_is_installed_wrongly_is_one_line(install, code, points, message):
    install(code, points)
    line = complaint(ConfigError, parse_arguments, ["--models=http"])
    assert message in line
    assert "traced 1.2" in line
