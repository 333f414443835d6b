"""HTML of traces and stores: what is shown, and that texts stay texts."""

import json
from html.parser import HTMLParser

import numpy as np
import pytest
import torch
from small import make_store

from store import Column
from store.traces import notebook
from store.traces.notebook import store_html, trace_html

TAGS = {"div", "span", "b", "bdi", "table", "tr", "th", "td"}
HOSTILE = ["<img src=x onerror=alert(1)>", "</bdi></div><script>alert(1)</script>"]
HOSTILE += ['"><svg onload=alert(1)>', "' onmouseover='alert(1)", "&lt;b&gt;&amp;amp;"]
HOSTILE += ["\u202eright to left", "\u2066\u2067 never closed", "\x00\x1b[31m\x7f\x9b"]
HOSTILE += ["\ud83d half", "-->]]><!--", "{{constructor}} ${7*7} `x`", "🙂 naïve 中文"]


class Reader(HTMLParser):
    """What a browser makes of it: the texts, and every tag and attribute."""

    def __init__(self, text):
        super().__init__()
        self.opened = []
        self.tokens = []  # (text, attributes)
        self.texts = []
        self.feed(text)
        self.close()
        assert not self.opened

    def handle_starttag(self, tag, attributes):
        assert tag in TAGS
        assert {name for name, _ in attributes} <= {"style", "title"}
        assert not any("url(" in value for _, value in attributes)
        self.opened.append(tag)
        if tag == "bdi":
            self.tokens.append(["", dict(attributes)])

    def handle_endtag(self, tag):
        assert self.opened.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)
        if "bdi" in self.opened:
            self.tokens[-1][0] += data

    def handle_comment(self, data):
        raise AssertionError(f"a comment: {data}")

    handle_decl = handle_pi = unknown_decl = handle_comment

    @property
    def text(self):
        return "".join(self.texts)


def make(path, rows, **more):
    """A store with tokens and what is given of each, and the traces of it."""
    columns = {"tokens": Column("int32", axis="tokens"), "token_texts": "utf8"}
    columns |= {"logprob": Column("float32", axis="tokens"), "prompt_len": "int32", "label": "int8"}
    columns |= {"score": "bfloat16", "question": "utf8", "references": "utf8"}
    names = set().union(*rows, more)
    chosen = {name: column for name, column in columns.items() if name in names} | more
    return make_store(path, chosen, {f"t{i}": row for i, row in enumerate(rows)})


def row(texts, logprob, prompt_len=2, **more):
    values = {
        "tokens": np.arange(100, 100 + len(texts), dtype=np.int32),
        "token_texts": json.dumps(texts),
        "logprob": np.array(logprob, np.float32),
        "prompt_len": prompt_len,
    }
    return values | more


def show(path, *rows, **more):
    return Reader(make(path, rows, **more)[0]._repr_html_())


def opacity(attributes):
    style = attributes.get("style")
    return float(style.split(",")[-1].removesuffix(")")) if style else 0.0


def test_tokens_are_shaded_by_how_unlikely_they_were(tmp_path):
    """Nothing behind the first token, which nothing predicted; the full shade from 8 nats on."""
    logprob = [np.nan, 0.0, -4.0, -8.0, -80.0, -np.inf, 0.5]
    found = show(tmp_path / "s.zarr", row([*"abcdefg"], logprob))
    assert [text for text, _ in found.tokens] == [*"abcdefg"]
    shades = [opacity(attributes) for _, attributes in found.tokens]
    assert shades == [0, 0, 0.3, 0.6, 0.6, 0.6, 0]
    assert found.tokens[2][1]["title"] == "token 2, id 102, log-probability -4.000"


@pytest.mark.parametrize(
    "texts, prompt_len, shown",
    [
        ("abcde", 3, "prompt, 3 tokensabcanswer, 2 tokensde"),
        ("", 0, "prompt, 0 tokensanswer, 0 tokens"),
        ("abc", -1, "tokens, 3 tokensabc"),
        ("abc", 9, "tokens, 3 tokensabc"),
    ],
)
def test_prompt_and_answer_are_divided(tmp_path, texts, prompt_len, shown):
    """But by a prompt that cannot be."""
    found = show(tmp_path / "s.zarr", row([*texts], [0.0] * len(texts), prompt_len))
    assert shown in found.text


def test_hostile_texts_stay_texts(tmp_path):
    """In tokens, in other texts, in ids and in the path."""
    texts = [*HOSTILE, *HOSTILE]
    whole = "".join(HOSTILE).encode("utf-8", "replace").decode()
    values = row(texts, [-1.0] * len(texts), len(HOSTILE), references=whole)
    store = make(tmp_path / "<script>alert(1)<\u2215script>", [values])
    found = Reader(store[0]._repr_html_())
    shown = [text for text, _ in found.tokens]
    assert shown[1:] == shown[1:13] * 2
    for text, expected in zip(shown[1:], HOSTILE, strict=False):
        if expected.isprintable() or expected[0] in "\u202e\u2066":
            assert text == expected
    assert shown[8] == "␀␛[31m␡�"
    assert shown[9] == "? half"
    assert Reader(store._repr_html_()).text.startswith(str(store.path))
    assert Reader(store_html("<b>", {"</td>": ("<i>", "'\"")})).text.endswith("</td><i>'\"")
    assert found.text.encode()


def test_line_ends_and_empty_tokens_are_seen(tmp_path):
    found = show(tmp_path / "s.zarr", row(["a\n", "", "\t", "\r\n"], [-1.0] * 4))
    assert [text for text, _ in found.tokens] == ["a↵\n", "", "\t", "␍↵\n"]
    assert opacity(found.tokens[1][1]) > 0


@pytest.mark.parametrize("texts", ["", '{"a": 1}', '["a"]', "[1, 2]", "[[" * 10**5])
def test_texts_that_do_not_fit_are_replaced_by_ids(tmp_path, texts):
    values = row([*"ab"], [-1.0, -1.0])
    found = show(tmp_path / "s.zarr", values | {"token_texts": texts})
    assert [text for text, _ in found.tokens] == ["100 ", "101 "]


def test_probabilities_that_do_not_fit_shade_nothing(tmp_path):
    values = row([*"ab"], [-9.0, -9.0]) | {"logprob": np.zeros(3, np.float32)}
    own = Column("float32", axis="others")
    found = show(tmp_path / "s.zarr", values, logprob=own)
    assert not any("style" in attributes for _, attributes in found.tokens)


def test_of_a_long_trace_the_border_of_prompt_and_answer_is_shown(tmp_path):
    """Some thousands of 10^5 tokens, in little time."""
    n = 100_000
    values = row(["x"] * n, [-1.0] * n, prompt_len=n // 2)
    found = show(tmp_path / "s.zarr", values)
    assert len(found.tokens) == 2 * notebook.MAX_TOKENS
    assert found.tokens[0][1]["title"].startswith("token 48000,")
    assert found.tokens[-1][1]["title"].startswith("token 51999,")
    assert "prompt, 50,000 tokens, the last 2,000 are shown" in found.text
    assert "answer, 50,000 tokens, the first 2,000 are shown" in found.text


def test_numbers_of_the_row_are_shown(tmp_path):
    values = row([*"ab"], [0.0, 0.0], 1, label=1, score=torch.tensor(0.25, dtype=torch.bfloat16))
    found = show(tmp_path / "s.zarr", values | {"references": '["yes"]', "question": "no"})
    assert f"t0, row 0 of {tmp_path}" in found.text
    assert "prompt_len 1 · label 1 · score 0.25" in found.text
    assert 'references ["yes"]' in found.text
    assert "question" not in found.text
    assert "prompt, 1 tokena" in found.text


def test_a_trace_without_tokens_shows_its_texts(tmp_path):
    found = show(tmp_path / "s.zarr", {"question": "y" * 5000, "label": 0})
    assert f"question {'y' * notebook.MAX_CHARS} …" in found.text
    assert "label 0" in found.text


def test_columns_of_other_shapes_are_not_taken_for_tokens():
    """Names alone say nothing."""
    columns = {"tokens": Column("int32", (2,)), "prompt_len": Column("utf8")}
    columns |= {"hidden_states": Column("float16", (32, 4096), "tokens")}  # never read
    columns |= dict.fromkeys(("token_texts", "logprob"), Column("float32"))
    values = {"tokens": np.zeros(2, np.int32), "prompt_len": "three"}
    values |= {"token_texts": np.float32(1), "logprob": np.float32(-1)}
    found = Reader(trace_html("t", values, columns))
    assert "token_texts 1 · logprob -1" in found.text
    assert not found.tokens


def test_a_store_is_a_table_of_its_columns(tmp_path):
    store = make(tmp_path / "s.zarr", [row([*"ab"], [0.0, 0.0])])
    found = Reader(store._repr_html_())
    assert f"{store.path}: 1 rows" in found.text
    assert "logprobfloat32(tokens,)" in found.text
