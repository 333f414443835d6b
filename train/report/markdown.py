"""A report as Markdown (CommonMark with tables), its pictures in files beside it."""

from __future__ import annotations

import re
from collections.abc import Sequence

from train.report.sections import Section
from train.report.table import Table

__all__ = ["escape", "format_table", "render_markdown"]

# Whatever begins something within a line of Markdown or HTML. An underscore between letters begins
# nothing; brackets make a link or a picture only where a parenthesis follows, because a report has
# no definitions of links.
SPECIAL = re.compile(r"[\\`*<|~&]|\](?=\()|(?<![^\W_])_|_(?![^\W_])")


def render_markdown(title: str, sections: Sequence[Section], folder: str) -> str:
    """Write a report whose pictures are FOLDER/NAME.png."""
    parts = [f"# {escape(title)}"]
    for section in sections:
        parts.append(f"## {escape(section.title)}")
        if section.text:
            parts.append(escape(section.text))
        parts.extend(map(format_table, section.tables))
        if section.picture:
            parts.append(f"![{escape(section.picture.shows)}]({folder}/{section.picture.name}.png)")
    return "\n\n".join(parts) + "\n"


def format_table(table: Table) -> str:
    """A table with every cell escaped; words to the left, numbers to the right."""
    rule = [":--" if i < table.n_left else "--:" for i in range(len(table.header))]
    lines = [map(escape, table.header), rule, *(map(escape, row) for row in table.rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def escape(text: str) -> str:
    """Text that Markdown shows as it is."""
    return SPECIAL.sub(r"\\\g<0>", text)
