"""What a check found, as lines for people."""

from store.check.report import Problem, Report


def test_equal_problems_are_one_line_with_their_count():
    """They differ in numbers, checksums and rows only; other columns and other kinds are lines of
    their own."""
    sums = ["0a1b2c3d", "ffffffff", "12345678"]
    found = [
        Problem(
            "damaged",
            f"{name}/c/{i}",
            f"array {name!r}, shard {i}, chunk 0: expected checksum {sums[i]}, found 00000000",
            name,
            i,
            0,
            (i, i + 1),
        )
        for name in ("layer_1", "layer_2")
        for i in range(3)
    ]
    strange = [
        Problem("leftover", f"{name}.txt", f"{name}.txt: expected no file, found one")
        for name in "abc"
    ]
    alone = Problem(
        "document", "label/zarr.json", "label/zarr.json: expected an object, found list"
    )
    assert Report(1, 9, [*found, alone, *strange]).lines() == [
        f"{found[0]} (and 2 like it, rows 0 to 3 in all)",
        f"{found[3]} (and 2 like it, rows 0 to 3 in all)",
        str(alone),
        f"{strange[0]} (and 2 like it)",
    ]
