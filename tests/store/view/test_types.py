"""The types that the page's scripts are checked with, against answers of the server."""

import json
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "store/view/page"
TSC = ROOT / ".venv/tsc/node_modules/.bin/tsc"
STATE = "/api/0/1"
PATHS = [
    "/api/stores",
    f"{STATE}/table?count=3&columns=trace_id,score,exact&sort=exact",
    f"{STATE}/find?row=3",
    f"{STATE}/groups?column=question",
    f"{STATE}/histogram?column=score",
    f"{STATE}/mistakes?column=score_gvae&threshold=0.25",
    f"{STATE}/roc?column=score_gvae",
    f"{STATE}/calibration?column=score_gvae",
    f"{STATE}/complete?text=la",
    f"{STATE}/trace/7",
    f"{STATE}/trace/7/candidates/1",
    f"{STATE}/trace/7/attention/1?threshold=0.05",
]

pytestmark = pytest.mark.skipif(not TSC.exists(), reason="no TypeScript: make lint installs it")


def check(folder, lines):
    """What the compiler says of lines, beside the types."""
    file = folder / "answers.ts"
    file.write_text("\n".join(lines))
    command = [TSC, "--noEmit", "--strict", "--target", "esnext", "--types", "", file]
    found = subprocess.run([*command, PAGE / "answers.d.ts"], capture_output=True, text=True)
    return found.stdout


def test_answers_are_of_their_types(client, tmp_path):
    """They have each field, and no other."""
    lines = []
    for i, path in enumerate(PATHS):
        answer = client.get(path)
        assert answer.status_code == 200, answer.text
        kind = json.dumps(path.partition("?")[0])
        lines.append(f"export const answer{i}: AnswerTo<{kind}> = {answer.text};")
    assert check(tmp_path, lines) == ""


@pytest.mark.parametrize(
    "answer, said",
    [
        ('{"position": 1, "row": 2}', "'n' is missing"),
        ('{"position": 1, "row": 2, "n": 1, "x": 0}', "'x' does not exist"),
    ],
)
def test_another_answer_is_found(tmp_path, answer, said):
    """What the test above rests on."""
    line = f'export const answer: AnswerTo<"{STATE}/find"> = {answer};'
    assert said in check(tmp_path, [line])


def test_a_misspelt_field_is_found(tmp_path):
    """In the page's scripts, by the configuration of `make lint`."""
    options = json.loads((ROOT / "tsconfig.json").read_text())
    options["compilerOptions"]["paths"] = {"/page/*": [f"{PAGE}/*"]}
    options["include"] = [str(PAGE / "answers.d.ts"), "wrong.js"]
    (tmp_path / "tsconfig.json").write_text(json.dumps(options))
    (tmp_path / "wrong.js").write_text(
        'import { getJson } from "/page/api.js";\n'
        "export const wrong = async (base) => (await getJson(`${base}/find`)).postion;\n"
    )
    found = subprocess.run([TSC, "--project", tmp_path], capture_output=True, text=True)
    assert "Property 'postion' does not exist on type 'Found'" in found.stdout
