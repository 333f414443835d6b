"""The benchmark that runs: its name, its end in one line, and what its figures were made by."""

import argparse
import os
import platform
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import NoReturn

from store.extras import find_checkout, missing_package

__all__ = ["command", "commit", "elapsed_s", "fail", "installed", "machine", "module_name"]
__all__ += ["needs_extra", "program", "versions"]

STARTED_S = time.perf_counter()
# written by a run of all benchmarks while it goes on, and no part of what is measured
RESULTS_OF_A_RUN = [":(exclude)benchmarks/results", ":(exclude)README.md", ":(exclude)docs"]


def module_name() -> str:
    """The benchmark's name, as in `python -m benchmarks.NAME`."""
    return Path(sys.argv[0]).stem


def program() -> str:
    """How the benchmark was called, without its options."""
    return f"python -m benchmarks.{module_name()}"


def fail(message: str) -> NoReturn:
    """End the benchmark with one line and exit status 2."""
    print(f"{program()}: {message}", file=sys.stderr)
    sys.exit(2)


@contextmanager
def needs_extra(extra: str) -> Iterator[None]:
    """End the benchmark with one line where a package of an extra is not installed."""
    try:
        yield
    except ModuleNotFoundError as error:
        message = missing_package(error, extra)
        if message is None:
            raise
        fail(message)


def elapsed_s() -> float:
    """Seconds since the benchmark began."""
    return time.perf_counter() - STARTED_S


def command() -> str:
    """The command that measures the same again: without the options that say where files are."""
    places = argparse.ArgumentParser(allow_abbrev=False, add_help=False)
    for flag in ("--dir", "--output", "--results"):
        places.add_argument(flag)
    for flag in ("--keep", "--save"):
        places.add_argument(flag, action="store_true")
    settings = places.parse_known_args(sys.argv[1:])[1]
    return shlex.join(["python", "-m", f"benchmarks.{module_name()}", *settings])


def commit(checkout: Path | None = None) -> str:
    """The short hash of the checkout's commit, with a "+" where files differ from it.

    Results, the README and documents are not looked at: writing them changes no figure.
    """
    checkout = checkout or find_checkout()
    found = None if checkout is None else git(checkout, "rev-parse", "--short", "HEAD")
    if checkout is None or found is None:
        return "unknown"
    changed = git(checkout, "status", "--porcelain", "--", ".", *RESULTS_OF_A_RUN)
    return f"{found}+" if changed else found


def git(checkout: Path, *arguments: str) -> str | None:
    """What git prints; None where there is no git, or no repository."""
    try:
        done = subprocess.run(
            ["git", "-C", str(checkout), *arguments],
            capture_output=True,
            text=True,
            check=False,
        )
    except FileNotFoundError:
        return None
    return None if done.returncode else done.stdout.strip()


def versions() -> str:
    """The packages that matter, and Python."""
    packages = (
        f"{package} {version(package)}" for package in ("numpy", "torch", "zarr", "numcodecs")
    )
    return ", ".join([f"python {platform.python_version()}", *packages])


def installed(package: str) -> str | None:
    """Its version, None if it is not there."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def machine() -> str:
    """Processor, cores, memory and kernel."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    model = next(
        (line.split(":")[1].strip() for line in lines if "model name" in line), platform.machine()
    )
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
    kernel = platform.release().split("-")[0]
    return f"{model}, {os.cpu_count()} cores, {memory:.0f} GiB, Linux {kernel}"
