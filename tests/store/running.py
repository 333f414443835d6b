"""Commands in processes of their own."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def run_python(*arguments, **options):
    """What Python ends with on these arguments; its output and its errors are texts."""
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    given = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "env": environment} | options
    command = [sys.executable, *map(str, arguments)]
    return subprocess.run(command, text=True, check=False, **given)
