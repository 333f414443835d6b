"""A trace and a store as HTML, for notebooks. Pure, but for the columns that are read of the trace.

Texts of a store may be anything: they are escaped, control characters are shown as signs, and each
token is isolated, so that none turns the direction of its neighbours. There is no script, no
link and no style sheet; colours are those of the page, under a transparent shade.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any

from store.format.schema import Column
from store.reports import count
from store.text_records import parse_list

__all__ = ["store_html", "trace_html"]

MAX_TOKENS = 2000  # shown of the prompt, its last ones, and of the answer, its first ones
MAX_CHARS = 1000  # of a text
DARKEST = 8.0  # nats; 0.03% and everything less likely has the full shade
SHADE = "214,69,65"
FULL = 0.6  # opacity of the full shade, under which text stays readable in light and dark
LINE = "border-top:1px solid rgba(128,128,128,.4);margin-top:.4em"
TOKENS = "white-space:pre-wrap;overflow-wrap:anywhere;font-family:monospace"

Values = Mapping[str, Any]
Token = tuple[int, int, str, float]  # position, id, text, log-probability

# C0 without tab and line end, DEL and C1, as the signs of Unicode for them, or as the one for none
_SIGNS = {code: 0x2400 + code for code in range(32) if chr(code) not in "\t\n"}
_SIGNS |= {0x7F: 0x2421} | dict.fromkeys(range(0x80, 0xA0), 0xFFFD)


def trace_html(title: str, values: Values, columns: Mapping[str, Column]) -> str:
    """A trace as HTML: its numbers, and its tokens shaded by how unlikely they were.

    `values` are those of the row, as a `Trace` gives them; only columns that are shown are read.
    """
    has_tokens = _is_of_tokens(columns, "tokens")
    parts = [_headline(title), _facts(values, columns)]
    shown = ["references"] if has_tokens else ["question", "answer", "references"]
    names = [name for name in shown if _is_text(columns, name)]
    parts += [_named(name, values[name]) for name in names]
    if has_tokens:
        parts += _token_parts(values, columns)
    return _tag("div", "".join(parts), style="line-height:1.6;max-width:70em")


def store_html(title: str, columns: Mapping[str, tuple[str, str]]) -> str:
    """The columns of a store as an HTML table: name -> dtype and shape."""
    lines = [_table_line("th", ["column", "dtype", "shape"])]
    lines += [_table_line("td", [name, *described]) for name, described in columns.items()]
    return _headline(title) + _tag("table", "".join(lines))


def _table_line(tag: str, texts: Sequence[str]) -> str:
    cells = [_tag(tag, _text(text), style="text-align:left") for text in texts]
    return _tag("tr", "".join(cells))


def _headline(title: str) -> str:
    return _tag("div", _tag("b", _text(title)))


def _facts(values: Values, columns: Mapping[str, Column]) -> str:
    """The numbers of a row in one line."""
    names = [name for name in columns if _is_number(columns, name)]
    facts = [f"{name} {_number(values[name])}" for name in names]
    return _tag("div", _faint(" · ".join(facts)))


def _number(value: Any) -> str:
    number = value.item()
    return f"{number:.4g}" if isinstance(number, float) else str(number)


def _named(name: str, text: str) -> str:
    shown = text if len(text) <= MAX_CHARS else f"{text[:MAX_CHARS]} …"
    return _tag("div", f"{_faint(name)} {_tag('bdi', _text(shown))}")


def _is_text(columns: Mapping[str, Column], name: str) -> bool:
    return name in columns and columns[name].is_text


def _is_number(columns: Mapping[str, Column], name: str) -> bool:
    return name in columns and columns[name].is_single and not columns[name].is_text


def _is_of_tokens(columns: Mapping[str, Column], name: str) -> bool:
    """Whether a column has a number for each token."""
    return name in columns and columns[name].axis is not None and not columns[name].item_shape


def _token_parts(values: Values, columns: Mapping[str, Column]) -> Iterator[str]:
    """Prompt and answer under a headline each; what does not fit the tokens is not shown."""
    ids = values["tokens"].tolist()
    texts = _texts(ids, values, columns)
    logprobs = [math.nan] * len(ids)
    if _is_of_tokens(columns, "logprob") and len(values["logprob"]) == len(ids):
        logprobs = values["logprob"].tolist()
    tokens = [*zip(range(len(ids)), ids, texts, logprobs, strict=True)]
    n_prompt = -1
    if _is_number(columns, "prompt_len"):
        n_prompt = int(values["prompt_len"].item())
    if not 0 <= n_prompt <= len(ids):
        yield from _part("tokens", tokens, tokens[:MAX_TOKENS])
        return
    prompt = tokens[:n_prompt]
    answer = tokens[n_prompt:]
    yield from _part("prompt", prompt, prompt[-MAX_TOKENS:])
    yield from _part("answer", answer, answer[:MAX_TOKENS])


def _texts(ids: Sequence[int], values: Values, columns: Mapping[str, Column]) -> list[str]:
    """The texts of tokens, their ids where no texts fit."""
    if _is_text(columns, "token_texts"):
        texts = parse_list(values["token_texts"]) or []
        if len(texts) == len(ids) and all(isinstance(text, str) for text in texts):
            return texts
    return [f"{number} " for number in ids]


def _part(name: str, tokens: Sequence[Token], shown: Sequence[Token]) -> Iterator[str]:
    headline = f"{name}, {count(len(tokens), 'token')}"
    if len(shown) < len(tokens):
        side = "last" if name == "prompt" else "first"
        headline += f", the {side} {len(shown):,} are shown"
    yield _tag("div", _faint(headline), style=LINE)
    yield _tag("div", "".join(_token(*one) for one in shown), style=TOKENS)


def _token(i: int, number: int, text: str, logprob: float) -> str:
    about = f"token {i}, id {number}, log-probability {logprob:.3f}"
    # bdi: what turns the direction of a text ends with it
    return _tag("bdi", _text(text), _shade(logprob), about)


def _shade(logprob: float) -> str:
    """The colour behind a token; none for a likely one, or where nothing predicted it (NaN)."""
    if math.isnan(logprob):
        return ""
    share = min(1.0, max(0.0, -logprob / DARKEST))
    opacity = round(FULL * share, 2)
    return f"background:rgba({SHADE},{opacity})" if opacity else ""


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
