"""Write the figures of the README and the documents, from the committed results.

Each figure names its table, row and column (`benchmarks/figures.py` says how). `python -m
benchmarks.all --save` ends with this; a test says when they differ.

    python -m benchmarks.readme
"""

from pathlib import Path

from benchmarks.figures import FigureError, Tables, Tell, with_figures
from benchmarks.harness import RESULTS, Parser
from benchmarks.program import fail
from benchmarks.tables import read_table

__all__ = ["documents", "write_figures"]

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"


def write_figures(tell: Tell) -> None:
    """Write what differs; tell of each file, and of what was not measured."""
    for path, text in documents(read_tables(), tell).items():
        if path.read_text() != text:
            partial = path.with_suffix(".partial")
            partial.write_text(text)
            partial.replace(path)
            tell(f"written: {path.relative_to(ROOT)}")


def documents(tables: Tables, tell: Tell) -> dict[Path, str]:
    """The README and the documents as they should be; raises FigureError."""
    found = {}
    for path in [README, *sorted((ROOT / "docs").glob("*.md"))]:
        try:
            found[path] = with_figures(path.read_text(), tables, tell)
        except FigureError as error:
            raise FigureError(f"{path.relative_to(ROOT)}: {error}") from error
    return found


def read_tables() -> Tables:
    """The committed tables."""
    return {path.stem: read_table(path) for path in RESULTS.glob("*.csv")}


def main() -> None:
    """Write them, with no options but --help."""
    Parser(__doc__).parse_args()
    try:
        write_figures(print)
    except (FigureError, OSError) as error:
        fail(str(error))


if __name__ == "__main__":
    main()
