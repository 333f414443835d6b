"""What is installed: the version of this distribution, and the packages of its extras.

The distribution is in no package index: messages name the checkout, never the distribution.
"""

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from store.errors import NotFoundError
from store.format.manifest import FORMAT_VERSION

__all__ = ["find_checkout", "missing_package", "needs_extra", "version_text"]

DISTRIBUTION = "trace-store"
OUR_PACKAGES = ("store", "models", "train", "benchmarks")


def missing_package(error: ModuleNotFoundError, extra: str) -> str | None:
    """Say which package is not installed, and the command that installs its extra.

    None where the module is one of our own: a bug, whose traceback should be seen.
    """
    if error.name is None:  # raised by hand, without the module
        return None
    module = error.name.split(".")[0]
    if module in OUR_PACKAGES:
        return None
    checkout = find_checkout()
    place = "." if checkout is None else checkout
    command = shlex.join(["python", "-m", "pip", "install", f"{place}[{extra}]"])
    where = " in the checkout" if checkout is None else ""
    return f"the package {module} is not installed; run {command}{where}"


@contextmanager
def needs_extra(extra: str, purpose: str = "") -> Iterator[None]:
    """Turn a missing package of an extra into a NotFoundError that says how to install it.

    Parameters
    ----------
    extra
        Name of the extra whose packages are imported in the block.
    purpose
        What the message begins with.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        message = missing_package(error, extra)
        if message is None:
            raise
        raise NotFoundError(purpose + message) from error


def find_checkout() -> Path | None:
    """Return the checkout that this code runs from; None where it runs from site-packages."""
    root = Path(__file__).resolve().parent.parent
    is_checkout = (root / "setup.cfg").is_file() and (root / "pyproject.toml").is_file()
    return root if is_checkout else None


def version_text() -> str:
    """Return what `--version` prints: the versions of this distribution and of its format."""
    try:
        installed = f"{DISTRIBUTION} {version(DISTRIBUTION)} ("
    except PackageNotFoundError:
        installed = f"{DISTRIBUTION} unknown (a checkout, "
    return f"{installed}format {FORMAT_VERSION})"
