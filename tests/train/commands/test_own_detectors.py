"""A detector in a file of the user's own: trained, resumed, used, and never run unasked."""

import json
from pathlib import Path

import pytest
import runs
from runs import fail, train

from models import DETECTORS
from train.outside import forget

ROOT = Path(__file__).parents[3]
EXAMPLE = ROOT / "examples" / "my_detector.py"
ONCE = ["--epochs=1", "--seeds=1", "--no-baselines"]


@pytest.fixture(autouse=True)
def clean_registries():
    yield
    forget()


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    """A copy of the example, which tells that it was run."""
    path = tmp_path_factory.mktemp("own") / "my_detector.py"
    path.write_text(f"{EXAMPLE.read_text()}\n\nprint('was run')\n")
    return path


@pytest.fixture(scope="module")
def run_dir(store_path, file):
    """A run of the detector and the probe, whose file is forgotten then."""
    out = file.parent / "run"
    models = f"--models={file}:MyDetector,{file}:STATE_NORM"
    train(store_path, out, models, "--my-detector-width=8")
    forget()
    return out


def call(capsys, *argv):
    return runs.call(capsys, *argv, "--force-cpu")


def test_results_and_checkpoints_say_where_it_came_from(run_dir, file):
    """Its numbers are beside those of the others."""
    results = json.loads((run_dir / "results.json").read_text())
    assert list(results["models"]) == ["my_detector", "state_norm"]
    assert results["models"]["my_detector"]["parameters"] == 8 * 8 + 8 + 8 + 1
    entry = results["config"]["outside"]["my_detector"]
    assert entry["place"] == f"{file}:MyDetector"
    assert entry["options"] == {"width": 8}
    known = json.loads((run_dir / "run.json").read_text())
    assert known["config"]["models"] == "my_detector,state_norm"
    assert "my_detector_width = 8" in (run_dir / "report.md").read_text()


def test_a_run_directory_runs_no_file(run_dir, store_path, capsys):
    """It may have been downloaded: the file has to be named again, and the message says how."""
    for command in ("predict", "evaluate"):
        argv = [command, "--run", run_dir, "--store", store_path]
        line = fail(capsys, *argv, "--force-cpu")
        assert "'my_detector' that this process does not know" in line
        assert "give --models FILE.py:CLASS, which runs that file" in line
        assert "my_detector" not in DETECTORS
        status, out, _ = call(capsys, *argv, "--models=mean_logprob")
        assert (status, "was run" in out) == (0, False)


def test_named_again_it_scores_and_is_judged(run_dir, store_path, file, capsys):
    """With the options of the run; a file that was edited since is used with a warning."""
    argv = ["--run", run_dir, "--store", store_path]
    models = f"--models={file}:MyDetector,{file}:STATE_NORM"
    status, out, (_, line) = call(capsys, "predict", *argv, models)
    assert (status, "of questions that the run was trained" in line) == (0, True)
    assert "trace_id,split,my_detector,state_norm" in out
    status, out, _ = call(capsys, "evaluate", *argv, models, "--json")
    assert status == 0
    (judged,) = json.loads(out[out.index("{") :])["results"]
    results = json.loads((run_dir / "results.json").read_text())
    for name, entry in results["models"].items():
        assert judged["metrics"][name]["auroc"] == pytest.approx(entry["test"]["auroc"])
    edited = file.with_name("edited.py")
    edited.write_text(f"{file.read_text()}\n")
    edited_models = f"--models={edited}:MyDetector"
    status, out, (line, *_) = call(capsys, "predict", *argv, edited_models)
    assert status == 0
    assert "warning: my_detector" in line
    assert "is not what the run was trained with: expected sha256" in line
    status, out, _ = call(capsys, "evaluate", *argv, edited_models)
    assert "is not what the run was trained with" in " ".join(out.split())


def test_a_run_resumes_with_the_same_file_only(store_path, file, tmp_path, capsys):
    """Wherever it lies; another file, or other options, are named."""
    argv = ["--store", store_path, "--output-dir", tmp_path / "run", *ONCE, "--resume"]
    moved = tmp_path / "moved.py"
    moved.write_text(file.read_text())
    assert call(capsys, *argv, f"--models={file}:MyDetector")[0] == 0
    assert call(capsys, *argv, f"--models={moved}:MyDetector")[0] == 0
    _, _, (line,) = call(capsys, *argv, f"--models={file}:MyDetector", "--my-detector-width=9")
    assert "--my-detector-width 9 (the run: 64)" in line
    moved.write_text(f"{file.read_text()}\n")
    status, _, (line,) = call(capsys, *argv, f"--models={moved}:MyDetector")
    assert status == 2
    assert "moved.py:MyDetector: sha256" in line


HEAD = """
import torch
from models import Detector, Option, Outputs, Probe


class Least(Detector):
    columns = ("hs_last",)

    def __init__(self, hidden_size):
        super().__init__()
        self.head = torch.nn.Linear(hidden_size, 1)

    def encode(self, batch):
        return batch.fixed("hs_last")[:, -1].float()

    def classify(self, features):
        return Outputs(self.head(features).squeeze(1))
"""


@pytest.fixture
def write(tmp_path):
    """The function that writes a file of methods of one's own: text -> its path."""

    def write(text):
        (tmp_path / "own.py").write_text(HEAD + text)
        return tmp_path / "own.py"

    return write


# reads a column that an option chooses
ADDING = """
class Adding(Least):
    options = (Option("by", "states", choices=("states", "weight")),)

    def __init__(self, hidden_size, by):
        super().__init__(hidden_size)

    @classmethod
    def columns_for(cls, settings):
        return (*cls.columns, "hidden_states" if settings["by"] == "states" else "weight")

    @classmethod
    def build(cls, item_shapes, settings):
        assert list(item_shapes) == list(cls.columns_for(settings))
        return super().build(item_shapes, settings)

    def encode(self, batch):
        assert set(self.columns) <= set(batch.keys())
        return super().encode(batch)
"""


def test_an_option_of_its_own_chooses_columns(store_path, write, tmp_path, capsys):
    """In the check of the store, in what --columns may replace, in training and in predict."""
    file = write(ADDING)
    out = tmp_path / "run"
    argv = ["--store", store_path, "--output-dir", out, *ONCE, f"--models={file}:Adding"]
    line = fail(capsys, *argv, "--adding-by=weight")
    assert "adding: expected column 'weight'" in line
    assert "give another setting of its own" in line
    assert call(capsys, *argv, "--adding-by=weight", "--columns=weight=answer_len")[0] == 0
    config = json.loads((out / "results.json").read_text())["config"]
    assert config["outside"]["adding"]["options"] == {"by": "weight"}
    models = f"--models={file}:Adding"
    assert call(capsys, "predict", "--run", out, "--store", store_path, models)[0] == 0


def test_a_method_that_is_named_beside_all_is_not_left_out(store_path, write, tmp_path, capsys):
    """Its column is missing: the run does not begin without it."""
    file = write('LACKING = Probe(("no_such_column",), None)')
    for models in (f"{file}:LACKING,all", f"all,{file}:LACKING"):
        argv = ["--store", store_path, "--output-dir", tmp_path / "run", f"--models={models}"]
        assert "lacking: expected column 'no_such_column'" in fail(capsys, *argv)


WRONG = """
class Bare(Least):
    def classify(self, features):
        return self.head(features).squeeze(1)

class Long(Least):
    def classify(self, features):
        return Outputs(self.head(features))

def states(batch):
    return batch.fixed("hs_last").float()

FLAT = Probe(("hs_last",), lambda batch: states(batch).mean((1, 2)))
SHORT = Probe(("hs_last",), lambda batch: states(batch)[1:])
NAMED = Probe(("hs_last",), states, alternatives=("one",))
NUMPY = Probe(("hs_last",), lambda batch: states(batch).numpy())
"""


@pytest.mark.parametrize(
    "name, said",
    [
        ("Bare", "Bare: classify: expected Outputs of logits (27,), one a trace, found Tensor"),
        ("Long", "Long: classify: expected Outputs of logits (27,), one a trace, found (27, 1)"),
        ("FLAT", "features (32, alternatives, numbers), traces first, found (32,); correct"),
        ("SHORT", "features (32, alternatives, numbers), traces first, found (31, 2, 8); correct"),
        ("NAMED", "features (32, 1, numbers), traces first, found (32, 2, 8); correct the probe"),
        ("NUMPY", "features (32, alternatives, numbers), traces first, found ndarray; correct"),
    ],
)
def test_what_a_method_returns_is_checked(name, said, store_path, write, tmp_path, capsys):
    argv = ["--store", store_path, "--output-dir", tmp_path / "run", *ONCE]
    status, _, lines = call(capsys, *argv, f"--models={write(WRONG)}:{name}")
    assert status == 2
    assert said in lines[-1]


OWN_LOSS = """
class Tenfold(torch.nn.BCEWithLogitsLoss):
    def forward(self, logits, labels):
        return 10 * super().forward(logits, labels)


class OwnLoss(Least):
    def __init__(self, hidden_size):
        super().__init__(hidden_size)
        torch.nn.init.zeros_(self.head.weight)
        self.criterion = Tenfold()
"""


def test_a_loss_of_its_own_is_minimised(store_path, write, tmp_path, capsys):
    """Not replaced by that of the settings, which would be without effect and are refused before
    anything is trained."""
    models = f"--models={write(OWN_LOSS)}:OwnLoss"
    argv = ["--store", store_path, "--output-dir", tmp_path / "run", models]
    for flag in ("--focal-loss", "--class-weights", "--label-smoothing=0.1"):
        line = fail(capsys, *argv, flag)
        said = f"own_loss: expected no {flag.partition('=')[0]} with a loss of its own, Tenfold"
        assert said in line
        assert not (tmp_path / "run" / "run.json").exists()
    results = train(store_path, tmp_path / "run", *ONCE, models, "--lr=1e-6")
    (training,) = results["models"]["own_loss"]["runs"]
    assert training["history"][0]["loss"] > 5  # ten times log 2
