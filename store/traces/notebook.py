"""A trace and a store as HTML, for notebooks. Pure, but for the columns that are read of the trace.

Texts of a store may be anything: they are escaped, control characters are shown as signs, and each
token is isolated, so that none turns the direction of its neighbours. There is no script, no
link and no style sheet; colours are those of the page, under a transparent shade.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any, NamedTuple

from store.format.schema import Column
from store.reports import count
from store.text_records import parse_list

__all__ = ["store_html", "trace_html"]

MAX_TOKENS = 2000  # shown of the prompt, its last ones, and of the answer, its first ones
MAX_FACTS = 24  # numbers of a row
MAX_COLUMNS = 100
MAX_CHARS = 1000  # of a text
DARKEST = 8.0  # nats; 0.03% and everything less likely has the full shade
SHADE = "214,69,65"
FULL = 0.6  # opacity of the full shade, under which text stays readable in light and dark
LINE = "border-top:1px solid rgba(128,128,128,.4);margin-top:.4em"
TOKENS = "white-space:pre-wrap;overflow-wrap:anywhere;font-family:monospace"

Values = Mapping[str, Any]

# C0 without tab and line end, DEL and C1, as the signs of Unicode for them, or as the one for none
_SIGNS = {code: 0x2400 + code for code in range(32) if chr(code) not in "\t\n"}
_SIGNS |= {0x7F: 0x2421} | dict.fromkeys(range(0x80, 0xA0), 0xFFFD)


class _Tokens(NamedTuple):
    """The tokens of a trace, as they are shown; None for what is not known of them."""

    texts: Sequence[str]  # of each token; its id where no text is known
    ids: Sequence[int] | None
    logprobs: Sequence[float] | None
    prompt_len: int | None
    remark: str  # what does not fit


def trace_html(title: str, values: Values, columns: Mapping[str, Column]) -> str:
    """A trace as HTML: its numbers, and its tokens shaded by how unlikely they were.

    `values` are those of the row, as a `Trace` gives them; only columns that are shown are read.
    """
    tokens = _tokens(values, columns)
    parts = [_headline(title), _facts(values, columns)]
    if tokens is None:
        parts += _texts(values, columns, ["question", "answer"])
    parts += _texts(values, columns, ["references"])
    if tokens is not None:
        parts += _token_parts(tokens)
    return _tag("div", "".join(parts), style="line-height:1.6;max-width:70em")


def store_html(title: str, columns: Mapping[str, tuple[str, str]]) -> str:
    """The columns of a store as an HTML table: name -> dtype and shape."""
    lines = [_table_line("th", ["column", "dtype", "shape"])]
    for name, (dtype, shape) in list(columns.items())[:MAX_COLUMNS]:
        lines.append(_table_line("td", [name, dtype, shape]))
    parts = [_headline(title), _tag("table", "".join(lines))]
    n_more = len(columns) - MAX_COLUMNS
    if n_more > 0:
        parts.append(_faint_line(f"… and {n_more} more columns"))
    return "".join(parts)


def _table_line(tag: str, texts: Sequence[str]) -> str:
    cells = [_tag(tag, _text(text), style="text-align:left") for text in texts]
    return _tag("tr", "".join(cells))


def _headline(title: str) -> str:
    return _tag("div", _tag("b", _text(title)))


def _facts(values: Values, columns: Mapping[str, Column]) -> str:
    """The numbers of a row in one line."""
    names = [name for name, column in columns.items() if column.is_single and not column.is_text]
    facts = [f"{name} {_number(values[name])}" for name in names[:MAX_FACTS]]
    if len(names) > MAX_FACTS:
        facts.append(f"and {len(names) - MAX_FACTS} more")
    return _faint_line(" · ".join(facts))


def _number(value: Any) -> str:
    number = value.item()
    return f"{number:.4g}" if isinstance(number, float) else str(number)


def _texts(values: Values, columns: Mapping[str, Column], names: Sequence[str]) -> Iterator[str]:
    """A line for each of these texts that the row has."""
    for name in names:
        if name not in columns or not columns[name].is_text:
            continue
        text = values[name]
        if len(text) > MAX_CHARS:
            text = f"{text[:MAX_CHARS]} …"
        if text:
            yield _tag("div", f"{_faint(name)} {_tag('bdi', _text(text))}")


def _tokens(values: Values, columns: Mapping[str, Column]) -> _Tokens | None:
    """The tokens of a row; None if neither their ids nor their texts are there."""
    ids = _items(values, columns, "tokens")
    texts = _parse_texts(values, columns)
    remarks = []
    if texts is not None and ids is not None and len(texts) != len(ids):
        texts = []
    if texts == [] and ids != []:
        texts = None
        remarks.append("token_texts does not fit the tokens")
    if texts is None:
        if ids is None:
            return None
        texts = [f"{number} " for number in ids]
    logprobs = _items(values, columns, "logprob")
    if logprobs is not None and len(logprobs) != len(texts):
        logprobs = None
        remarks.append("logprob does not fit the tokens")
    prompt_len = _prompt_len(values, columns, len(texts))
    return _Tokens(texts, ids, logprobs, prompt_len, "; ".join(remarks))


def _items(values: Values, columns: Mapping[str, Column], name: str) -> list | None:
    """The numbers of a column with one for each token; None if there is no such column."""
    column = columns.get(name)
    if column is None or column.axis is None or column.item_shape:
        return None
    numbers: list = values[name].tolist()
    return numbers


def _parse_texts(values: Values, columns: Mapping[str, Column]) -> list[str] | None:
    """The texts of the tokens; none where they are no JSON list of strings; None: no column."""
    column = columns.get("token_texts")
    if column is None or not column.is_text:
        return None
    texts = parse_list(values["token_texts"]) or []
    return texts if all(isinstance(text, str) for text in texts) else []


def _prompt_len(values: Values, columns: Mapping[str, Column], n_tokens: int) -> int | None:
    """The length of the prompt; None where it is not known, or cannot be."""
    column = columns.get("prompt_len")
    if column is None or not column.is_single or column.is_text:
        return None
    n = values["prompt_len"].item()
    return int(n) if 0 <= n <= n_tokens else None


def _token_parts(tokens: _Tokens) -> Iterator[str]:
    """Prompt and answer under a headline each, and the legend."""
    prompt = range(tokens.prompt_len or 0)
    answer = range(len(prompt), len(tokens.texts))
    if tokens.prompt_len is not None:
        yield from _part("prompt", tokens, prompt, prompt[-MAX_TOKENS:])
    name = "tokens" if tokens.prompt_len is None else "answer"
    yield from _part(name, tokens, answer, answer[:MAX_TOKENS])
    if tokens.logprobs is not None:
        yield _legend()
    if tokens.remark:
        yield _faint_line(tokens.remark)


def _part(name: str, tokens: _Tokens, whole: range, shown: range) -> Iterator[str]:
    """The tokens `shown` of a part of the trace; what is left out is said at its place."""
    yield _tag("div", _faint(f"{name}, {count(len(whole), 'token')}"), style=LINE)
    pieces = [_token(tokens, i) for i in shown]
    n_before = shown.start - whole.start
    if n_before:
        pieces.insert(0, _faint(f"… {n_before:,} before "))
    n_after = whole.stop - shown.stop
    if n_after:
        pieces.append(_faint(f" … {n_after:,} more"))
    yield _tag("div", "".join(pieces), style=TOKENS)


def _token(tokens: _Tokens, i: int) -> str:
    about = [f"token {i}"]
    style = ""
    if tokens.ids is not None:
        about.append(f"id {tokens.ids[i]}")
    if tokens.logprobs is not None:
        logprob = tokens.logprobs[i]
        about.append(f"log-probability {logprob:.3f}")
        style = _shade(logprob)
    # bdi: what turns the direction of a text ends with it
    return _tag("bdi", _text(tokens.texts[i]), style, ", ".join(about))


def _shade(logprob: float) -> str:
    """The colour behind a token; none for a likely one, or where nothing predicted it (NaN)."""
    if math.isnan(logprob):
        return ""
    share = min(1.0, max(0.0, -logprob / DARKEST))
    opacity = round(FULL * share, 2)
    return f"background:rgba({SHADE},{opacity})" if opacity else ""


def _legend() -> str:
    pieces = [_faint("log-probability, nats:"), " "]
    for share in (0, 0.25, 0.5, 1):
        logprob = -share * DARKEST
        pieces.append(_tag("span", f" {logprob:g} ", _shade(logprob)))
    return _tag("div", "".join(pieces), style="white-space:pre-wrap")


def _faint_line(text: str) -> str:
    return _tag("div", _faint(text))


def _faint(text: str) -> str:
    return _tag("span", _text(text), style="opacity:.7")


def _tag(name: str, content: str, style: str = "", title: str = "") -> str:
    """An element around what is HTML already."""
    attributes = f' title="{escape(title)}"' if title else ""
    if style:
        attributes += f' style="{style}"'
    return f"<{name}{attributes}>{content}</{name}>"


def _text(text: str) -> str:
    """A text that HTML shows as it is; a line end is also seen as a sign."""
    sayable = text.encode("utf-8", "replace").decode()  # JSON can spell halves of characters
    return escape(sayable.translate(_SIGNS).replace("\n", "↵\n"))
