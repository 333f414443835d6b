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


def check(folder, name, lines):
    """What the compiler says of lines, with the types and the options of `make lint`."""
    options = json.loads((ROOT / "tsconfig.json").read_text())
    options["compilerOptions"] |= {"strict": True, "paths": {"/page/*": [f"{PAGE}/*"]}}
    options["include"] = [str(PAGE / "answers.d.ts"), name]
    (folder / "tsconfig.json").write_text(json.dumps(options))
    (folder / name).write_text("\n".join(lines))
    return subprocess.run([TSC, "--project", folder], capture_output=True, text=True).stdout


def test_answers_are_of_their_types(client, tmp_path):
    """They have each field, and no other."""
    lines = []
    for i, path in enumerate(PATHS):
        answer = client.get(path)
        assert answer.status_code == 200, answer.text
        kind = json.dumps(path.partition("?")[0])
        lines.append(f"export const answer{i}: AnswerTo<{kind}> = {answer.text};")
    assert check(tmp_path, "answers.ts", lines) == ""


def test_a_misspelt_field_is_found(tmp_path):
    """In a script of the page."""
    lines = [
        'import { getJson } from "/page/api.js";',
        "export const wrong = async (base) => (await getJson(`${base}/find`)).postion;",
    ]
    said = "Property 'postion' does not exist on type 'Found'"
    assert said in check(tmp_path, "wrong.js", lines)
