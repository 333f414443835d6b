"""What a check found, as lines for people."""

from store.check.report import Problem, Report


def test_equal_problems_are_one_line_with_their_count():
    """They differ in numbers, checksums and rows; other columns and kinds are other lines."""
    sums = ["0a1b2c3d", "ffffffff", "12345678"]

    def damaged(name, i):
        text = f"array {name!r}, shard {i}, chunk 0: expected checksum {sums[i]}, found 00000000"
        return Problem("damaged", f"{name}/c/{i}", text, name, i, 0, (i, i + 1))

    def other(kind, file, text):
        return Problem(kind, file, f"{file}: expected {text}")

    found = [damaged(name, i) for name in ("layer_1", "layer_2") for i in range(3)]
    strange = [other("leftover", f"{name}.txt", "no file, found one") for name in "abc"]
    alone = other("document", "label/zarr.json", "an object, found list")
    assert Report(1, 9, [*found, alone, *strange]).lines() == [
        f"{found[0]} (and 2 like it, rows 0 to 3 in all)",
        f"{found[3]} (and 2 like it, rows 0 to 3 in all)",
        str(alone),
        f"{strange[0]} (and 2 like it)",
    ]
