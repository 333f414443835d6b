"""Azurite, the emulator of Azure's blobs (npm), as a process, and containers in it."""

import base64
import contextlib
import hashlib
import hmac
import http.client
import os
import shutil
import subprocess
from email.utils import formatdate
from pathlib import Path

ACCOUNT = "devstoreaccount1"
# the key that every emulator has
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
VERSION = "2021-12-02"
INSTALLED = Path(__file__).parents[3] / ".venv" / "azurite" / "node_modules" / ".bin"


def command() -> str | None:
    """The program, if it is installed."""
    path = f"{os.environ.get('PATH', '')}{os.pathsep}{INSTALLED}"
    return shutil.which("azurite-blob", path=path) if shutil.which("node") else None


@contextlib.contextmanager
def running(folder: Path):
    """The address of a server with the emulator's account."""
    arguments = ["--blobPort", "0", "--location", str(folder), "--skipApiVersionCheck"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    with subprocess.Popen([command(), *arguments, "--disableTelemetry"], **pipes) as process:
        try:
            lines = iter(process.stdout.readline, "")
            line = next(line for line in lines if "successfully listen" in line)
            yield f"{line.split()[-1].rstrip('/')}/{ACCOUNT}"
        finally:
            process.kill()


def make_container(url: str, name: str) -> None:
    date = formatdate(usegmt=True)
    resource = f"/{ACCOUNT}/{ACCOUNT}/{name}\nrestype:container"
    signed = "\n".join(
        ["PUT", *[""] * 11, f"x-ms-date:{date}", f"x-ms-version:{VERSION}", resource]
    )
    digest = hmac.digest(base64.b64decode(KEY), signed.encode(), hashlib.sha256)
    headers = {
        "x-ms-date": date,
        "x-ms-version": VERSION,
        "Authorization": f"SharedKey {ACCOUNT}:{base64.b64encode(digest).decode()}",
        "Content-Length": "0",
    }
    connection = http.client.HTTPConnection(url.split("/")[2])
    connection.request("PUT", f"/{ACCOUNT}/{name}?restype=container", headers=headers)
    assert connection.getresponse().status == 201
    connection.close()
