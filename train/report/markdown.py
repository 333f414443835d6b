"""A report as Markdown (CommonMark with tables), with its pictures in separate files."""

import re
from collections.abc import Sequence

from train.report.sections import Section
from train.report.table import Table

__all__ = ["escape", "format_table", "render_markdown"]

# Characters with a meaning within a line of Markdown or HTML. An underscore between letters has
# none; brackets form a link or a picture only before a parenthesis, because a report has no
# definitions of links.
SPECIAL = re.compile(r"[\\`*<|~&]|\](?=\()|(?<![^\W_])_|_(?![^\W_])")


def render_markdown(title: str, sections: Sequence[Section], folder: str) -> str:
    """Write a report whose pictures are FOLDER/NAME.png."""
    parts = [f"# {escape(title)}"]
    for section in sections:
        parts.append(f"## {escape(section.title)}")
        if section.text:
            parts.append(escape(section.text))
        parts.extend(format_table(table) for table in section.tables)
        picture = section.picture
        if picture:
            parts.append(f"![{escape(picture.shows)}]({folder}/{picture.name}.png)")
    return "\n\n".join(parts) + "\n"


def format_table(table: Table) -> str:
    """A table with every cell escaped; words are left-aligned, numbers right-aligned."""
    n_numbers = len(table.header) - table.n_left
    rule = [":--"] * table.n_left + ["--:"] * n_numbers
    lines = [format_row(table.header), f"| {' | '.join(rule)} |"]
    lines.extend(format_row(row) for row in table.rows)
    return "\n".join(lines)


def format_row(texts: Sequence[str]) -> str:
    cells = [escape(text) for text in texts]
    return f"| {' | '.join(cells)} |"


def escape(text: str) -> str:
    """Text that Markdown shows literally."""
    return SPECIAL.sub(r"\\\g<0>", text)
