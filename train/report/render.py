"""Reports from templates: one HTML file, Markdown, LaTeX, and the sentences of all of them.

The page has inline pictures, and neither scripts nor external resources. Texts of traces are not
trusted: each template escapes every text; only pictures are not escaped.
"""

import io
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import matplotlib
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from matplotlib.figure import Figure

from store.reports import count
from train.evaluate.results import Entry, Results
from train.report.numbers import clean_text, p_value, share, short, short_p, with_interval
from train.report.plots import INK
from train.report.verdict import FEW, OF_ANSWER, READ, SEEN, case_of, lacks_texts, sees

__all__ = [
    "Picture",
    "Section",
    "Table",
    "draw_svg",
    "environment",
    "escape",
    "in_words",
    "render_html",
    "render_latex",
    "render_markdown",
    "save_figure",
    "sentence",
    "tidy",
]

# without them each file would contain the time of its writing
NO_METADATA = {
    "svg": dict.fromkeys(("Creator", "Date", "Format", "Type")),
    "pdf": dict.fromkeys(("CreationDate", "Creator", "Producer")),
    "png": {},
}
# Characters with a meaning within a line of Markdown or HTML. An underscore between letters has
# none; brackets form a link or a picture only before a parenthesis, because a report has no
# definitions of links.
MARKDOWN = re.compile(r"[\\`*<|~&]|\](?=\()|(?<![^\W_])_|_(?![^\W_])")
LEAST_AREA = 0.55  # AUROC of a field that tells something
LATEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "–": "--",
    "≤": r"$\leq$",
    **{character: f"\\{character}" for character in "&%$#_{}"},
}


@dataclass(frozen=True)
class Table:
    """Texts in rows; the first `n_left` columns are words, the others numbers."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    n_left: int = 1
    # row -> name of the group of rows that begins there; it may be empty
    groups: Mapping[int, str] = field(default_factory=dict)
    best: frozenset[tuple[int, int]] = frozenset()  # numbers that are the best of their column
    # row -> a shell command that shows more of it
    commands: Mapping[int, str] = field(default_factory=dict)
    # row -> the id of its trace, as an address has it: the page makes links of them
    traces: Mapping[int, str] = field(default_factory=dict)

    @property
    def n_right(self) -> int:
        return len(self.header) - self.n_left


@dataclass(frozen=True)
class Picture:
    """A figure, its file name without the ending, and a description for those who do not see it."""

    name: str
    figure: Figure
    shows: str


@dataclass(frozen=True)
class Section:
    """A heading, an explanation, tables and a picture, and below them what their words mean."""

    title: str
    text: str = ""
    tables: Sequence[Table] = ()
    picture: Picture | None = None
    notes: str = ""


@cache
def environment(*, escapes_html: bool = False) -> Environment:
    """The templates of this folder, with the filters that they use."""
    templates = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=escapes_html,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=["jinja2.ext.do"],
    )
    filters = (clean_text, count, p_value, sees, sentence, share, short, short_p)
    templates.filters |= {one.__name__: one for one in (*filters, telling_fields, with_interval)}
    templates.filters |= {"svg": draw_svg, "markdown": escape, "latex": escape_latex}
    templates.globals |= {
        "FEW": FEW,
        "OF_ANSWER": OF_ANSWER,
        "READ": READ,
        "SEEN": SEEN,
        "case_of": case_of,
        "lacks_texts": lacks_texts,
        "imputed_by_count": imputed_by_count,
        "settings_by": settings_by,
    }
    return templates


def in_words(what: str, *arguments: object) -> str:
    """The sentences of a macro of words.jinja; empty where there is nothing to say."""
    macros = environment().get_template("words.jinja").module
    return tidy(getattr(macros, what)(*arguments))


def tidy(text: str) -> str:
    """Words that templates spread over lines as one line; a blank line breaks it."""
    lines = (" ".join(part.split()) for part in re.split(r"\n\s*\n", text))
    return "\n".join(filter(None, lines))


def sentence(text: str) -> str:
    line = text.strip()
    return f"{line[:1].upper()}{line[1:]}."


def settings_by(entry: Entry, by: str) -> list[str]:
    """The settings of a method that "validation", the "user" or nobody ("default") chose, in words.

    Of a probe all are of validation; trainings of several seeds have the same.
    """
    if entry.runs:
        settings = entry.runs[0].settings.items()
        return [words_of(name, one.value) for name, one in settings if one.by == by]
    found = {"alternative": entry.alternative, "layer": entry.layer, "C": entry.C}
    chosen = [words_of(name, value) for name, value in found.items() if value is not None]
    return chosen if by == "validation" else []


def words_of(setting: str, value: float | str) -> str:
    """A setting and its value, as "layer 20" or "lr 0.001"."""
    text = f"{value:.2g}" if isinstance(value, float) else str(value)
    name = "layer" if setting.endswith("layer") else setting.removeprefix("input_")
    return text if setting == "alternative" else f"{name} {text}"


def telling_fields(entry: Entry, n: int = 3) -> dict[str, float]:
    """The fields that tell something, and half as much as the one that tells most; `n` at most."""
    found = entry.fields or {}
    least = max(LEAST_AREA, max(found.values(), default=0) / 2 + 0.25)
    return {name: area for name, area in [*found.items()][:n] if area >= least}


def imputed_by_count(parts: Iterable[Results]) -> dict[int, list[str]]:
    """Traces with an imputed number, the most of any split -> names of the methods.

    Probes and baselines have the mean over train for a number that a trace lacks. Detectors that
    are trained step by step treat gaps in their own way and count none.
    """
    counts: dict[str, int] = {}
    for part in parts:
        for name, entry in part.entries.items():
            n_traces = entry.traces_with_missing_numbers or 0
            counts[name] = max(n_traces, counts.get(name, 0))
    names: dict[int, list[str]] = {}
    for name, n_traces in counts.items():
        names.setdefault(n_traces, []).append(name)
    return {n_traces: names[n_traces] for n_traces in names if n_traces}


def escape(text: str) -> str:
    """Text that Markdown shows literally."""
    return MARKDOWN.sub(r"\\\g<0>", text)


def escape_latex(text: str) -> str:
    return "".join(LATEX.get(character, character) for character in text)


def render_html(title: str, sections: Sequence[Section]) -> str:
    page = environment(escapes_html=True).get_template("page.html.jinja")
    return page.render(title=title, sections=sections) + "\n"


def render_markdown(title: str, sections: Sequence[Section], folder: str) -> str:
    """A report in CommonMark with tables, whose pictures are FOLDER/NAME.png."""
    text = environment().get_template("page.md.jinja")
    return text.render(title=title, sections=sections, folder=folder).rstrip("\n") + "\n"


def render_latex(table: Table, caption: str, remarks: str = "") -> str:
    """A `table` with the caption; needs `\\usepackage{booktabs}`. The best numbers are bold.

    Lines of remarks are comments, for the text around the table.
    """
    text = environment().get_template("table.tex.jinja")
    return text.render(table=table, caption=caption, remarks=remarks.splitlines()) + "\n"


def draw_svg(picture: Picture) -> Markup:
    """A picture as an SVG element with unique ids, in the colour of the surrounding text."""
    buffer = io.StringIO()
    with matplotlib.rc_context({"svg.hashsalt": picture.name, "svg.fonttype": "path"}):
        metadata = NO_METADATA["svg"]
        picture.figure.savefig(buffer, format="svg", transparent=True, metadata=metadata)
    text = buffer.getvalue()
    text = text[text.index("<svg") :].rstrip().replace(INK, "currentColor")
    text = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{picture.name}-", text)
    return Markup(text)


def save_figure(figure: Figure, path: Path, ending: str) -> None:
    """Write a figure as a file of its own; the same figure gives the same bytes."""
    with matplotlib.rc_context({"svg.hashsalt": "figure", "pdf.fonttype": 42}):
        figure.savefig(path, format=ending, dpi=120, metadata=NO_METADATA[ending])
