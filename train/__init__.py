"""Training and judging detectors on a trace store: `python -m train`."""

from importlib.util import find_spec
from pathlib import Path


def _check_beside(name: str) -> None:
    """Raise ImportError if a file of the user hides a package that is installed beside this one."""
    spec = find_spec(name)
    places = [*(spec.submodule_search_locations or ()), spec.origin] if spec else []
    expected = Path(__file__).resolve().parents[1] / name
    if expected not in [Path(place).resolve() for place in places if place]:
        found = places[0] if places else "nothing"
        raise ImportError(
            f"expected the package {expected}, found {found}, which hides it: run trace-train in "
            "place of python -m train, or rename what hides it",
            name=__name__,  # `python -m` then prints one line
        )


_check_beside("store")
_check_beside("models")
