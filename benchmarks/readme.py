"""Write the figures of the README and the documents, from the committed results.

The README's table stands between two marks. Figures in its text, and in the documents below
`docs/`, name their table, row and column (`benchmarks/figures.py` says how). `python -m
benchmarks.all --save` ends with this; a test says when they differ.

    python -m benchmarks.readme
"""

from pathlib import Path

from benchmarks.figures import FigureError, Quote, Tables, Tell, table_lines, with_figures
from benchmarks.harness import RESULTS, Parser
from benchmarks.program import fail
from benchmarks.tables import read_table

__all__ = ["documents", "write_figures"]

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
BEGIN = "<!-- figures: python -m benchmarks.readme -->\n"
END = "<!-- end of figures -->\n"
HEAD = ["| what is measured (`NAME`) | compared with | ratio |", "|---|---|---|"]

IN_PROCESSES = "workers.csv DataLoader, ours, 2 processes"
STEP = "graphs.csv training step / ours"
QUOTES = (
    Quote(
        "rows of 64 KB / 10 MB / 1 MB, shuffled, packed in batches (`row_sizes`)",
        "memcpy into one buffer by one core / one core / two cores",
        [
            "row_sizes.csv 64 KB / ours: x_memcpy,_1_core",
            "row_sizes.csv 10 MB / ours: x_memcpy,_1_core",
            "row_sizes.csv 1 MB / ours: x_memcpy,_2_cores",
        ],
    ),
    Quote(
        "rows of 1 MB, in batches of 32 (`peers`)",
        "tensordict / np.memmap + np.concatenate / HF datasets / MDS",
        [
            "peers.csv ours: x_ceiling over tensordict",
            "peers.csv ours: x_ceiling over memmap + concatenate",
            "peers.csv ours: x_ceiling over HF datasets",
            "peers.csv ours: x_ceiling over MosaicML streaming",
        ],
    ),
    Quote(
        "rows of 256 KB, shuffled (`legacy`)",
        "a dataset of `.pt` files: with an LRU cache of two / iterable, with a shuffle buffer",
        ["legacy.csv ours, 2 threads: x_LRU", "legacy.csv ours, 2 threads: x_iterable"],
    ),
    Quote(
        "rows of 1 KB, all equal / ragged, shuffled (`small_records`)",
        "NumPy indexing one array in memory",
        [
            "small_records.csv equal rows: x_fancy_indexing",
            "small_records.csv ragged rows: x_fancy_indexing",
        ],
    ),
    Quote(
        "rows of 1 MB, shuffled, in torch's DataLoader, 2 processes (`workers`)",
        "DataLoader over np.memmap + torch.cat",
        [f"{IN_PROCESSES}: x_DataLoader,_memmap_+_cat,_2_processes"],
    ),
    Quote(
        "the same (`workers`)",
        "our loader without processes / our batches sent as torch sends tensors",
        [
            f"{IN_PROCESSES}: x_TraceLoader,_0_threads",
            f"{IN_PROCESSES}: x_DataLoader,_plain_tensors,_2_processes",
        ],
    ),
    Quote(
        "rows of 1 MB, shuffled, none of them cached (`cold`)",
        "32 threads of pread / a plain map",
        [
            "cold.csv 1 MB / ours, 2 threads: x_pread,_32_threads",
            "cold.csv 1 MB / ours, 2 threads: x_pread,_32_threads over 1 MB / plain map",
        ],
    ),
    Quote(
        "the same, 8 GB of data with 1 GiB of memory (`scale --limit-mb 1024`)",
        "32 threads of pread / a plain map",
        [
            "scale_limited.csv ours: GB_per_s over pread, 32 threads",
            "scale_limited.csv ours: GB_per_s over plain map",
        ],
    ),
    Quote(
        "bytes read from disk for one layer of 32 (`partial`)",
        "1/32 of the column's bytes",
        ["partial.csv split by layer / layer 16: disk_share_x_32"],
        " (of bytes)",
    ),
    Quote(
        "writing (`write`) / import of pickles (`imports`)",
        "a plain file, both fsynced / pickle.load + np.save",
        ["write.csv ours: x_plain_file", "imports.csv ours: x_pickle_save"],
    ),
    Quote(
        "a training step on graphs (`graphs`)",
        "a list of `Data` and an encoder pass for each layer / PyG, one batch",
        [
            f"{STEP}: x_layer_by_layer",
            f"{STEP}: x_layer_by_layer over training step / PyG's GINEConv, one batch",
        ],
    ),
)


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
    found[README] = with_table(found[README], [*HEAD, *table_lines(QUOTES, tables, tell)])
    return found


def read_tables() -> Tables:
    """The committed tables."""
    return {path.stem: read_table(path) for path in RESULTS.glob("*.csv")}


def with_table(text: str, lines: list[str]) -> str:
    """The README's text with these lines between its marks."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise FigureError(f"README.md: expected {BEGIN.strip()} before {END.strip()}")
    return before + begin + "\n".join(lines) + "\n" + end + after


def main() -> None:
    """Write them, with no options but --help."""
    Parser(__doc__).parse_args()
    try:
        write_figures(print)
    except (FigureError, OSError) as error:
        fail(str(error))


if __name__ == "__main__":
    main()
