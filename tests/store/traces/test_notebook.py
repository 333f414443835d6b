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


COLUMNS = {
    "tokens": Column("int32", axis="tokens"),
    "token_texts": Column("utf8"),
    "logprob": Column("float32", axis="tokens"),
    "prompt_len": Column("int32"),
    "label": Column("int8"),
    "score": Column("bfloat16"),
    "question": Column("utf8"),
    "references": Column("utf8"),
}


def row(texts, logprob, prompt_len=2, **more):
    values = {
        "tokens": np.arange(100, 100 + len(texts), dtype=np.int32),
        "token_texts": json.dumps(texts),
        "logprob": np.array(logprob, np.float32),
        "prompt_len": np.int32(prompt_len),
    }
    return values | more


def show(values, **columns):
    """What is shown of the values of a row."""
    return Reader(trace_html("t0", values, {name: COLUMNS[name] for name in values} | columns))


def texts_of(found):
    return [text for text, _ in found.tokens]


def opacities(found):
    styles = [attributes.get("style", "0)") for _, attributes in found.tokens]
    return [float(style.split(",")[-1].removesuffix(")")) for style in styles]


def test_tokens_are_shaded_by_how_unlikely_they_were():
    """Nothing behind the first token, which nothing predicted; the full shade from 8 nats on."""
    found = show(row([*"abcdefg"], [np.nan, 0.0, -4.0, -8.0, -80.0, -np.inf, 0.5]))
    assert texts_of(found) == [*"abcdefg"]
    assert opacities(found) == [0, 0, 0.3, 0.6, 0.6, 0.6, 0]
    assert found.tokens[2][1]["title"] == "token 2, id 102, log-probability -4.000"


@pytest.mark.parametrize(
    "texts, prompt_len, shown",
    [
        ("abcde", 3, "prompt, 3 tokensabcanswer, 2 tokensde"),
        ("", 0, "prompt, 0 tokensanswer, 0 tokens"),
        ("ab", 1, "prompt, 1 tokenaanswer, 1 tokenb"),
        ("abc", -1, "tokens, 3 tokensabc"),
        ("abc", 9, "tokens, 3 tokensabc"),
    ],
)
def test_prompt_and_answer_are_divided(texts, prompt_len, shown):
    """But by a prompt that cannot be."""
    assert shown in show(row([*texts], [0.0] * len(texts), prompt_len)).text


def test_hostile_texts_stay_texts():
    """In tokens, in other texts, in titles and in the columns of a store."""
    whole = "".join(HOSTILE).encode("utf-8", "replace").decode()
    found = show(row(HOSTILE, [-1.0] * len(HOSTILE), len(HOSTILE), references=whole))
    for text, expected in zip(texts_of(found)[1:], HOSTILE, strict=True):
        if expected.isprintable() or expected[0] in "\u202e\u2066":
            assert text == expected
    assert texts_of(found)[8:10] == ["␀␛[31m␡�", "? half"]
    assert found.text.encode()
    assert Reader(trace_html("<b>", {}, {})).text == "<b>"
    assert Reader(store_html("<b>", {"</td>": ("<i>", "'\"")})).text.endswith("</td><i>'\"")


def test_line_ends_and_empty_tokens_are_seen():
    found = show(row(["a\n", "", "\t", "\r\n"], [-1.0] * 4))
    assert texts_of(found) == ["a↵\n", "", "\t", "␍↵\n"]
    assert opacities(found)[1] > 0


@pytest.mark.parametrize("texts", ["", '{"a": 1}', '["a"]', "[1, 2]", "[[" * 10**5])
def test_texts_that_do_not_fit_are_replaced_by_ids(texts):
    found = show(row([*"ab"], [-1.0, -1.0]) | {"token_texts": texts})
    assert texts_of(found) == ["100 ", "101 "]


def test_probabilities_that_do_not_fit_shade_nothing():
    values = row([*"ab"], [-9.0, -9.0]) | {"logprob": np.zeros(3, np.float32)}
    assert opacities(show(values, logprob=Column("float32", axis="others"))) == [0, 0]


def test_of_a_long_trace_the_border_of_prompt_and_answer_is_shown():
    n = 5 * notebook.MAX_TOKENS
    found = show(row(["x"] * n, [-1.0] * n, prompt_len=n // 2))
    assert len(found.tokens) == 2 * notebook.MAX_TOKENS
    assert found.tokens[0][1]["title"].startswith("token 3000,")
    assert found.tokens[-1][1]["title"].startswith("token 6999,")
    assert "prompt, 5,000 tokens, the last 2,000 are shown" in found.text
    assert "answer, 5,000 tokens, the first 2,000 are shown" in found.text


def test_a_trace_without_tokens_shows_its_texts():
    found = show({"question": "y" * 5000, "label": np.int8(0)})
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


def test_a_store_shows_its_traces_and_is_a_table_of_its_columns(tmp_path):
    values = row([*"ab"], [0.0, 0.0], 1, label=1, score=torch.tensor(0.25, dtype=torch.bfloat16))
    values |= {"references": '["yes"]', "question": "no"}
    columns = {name: COLUMNS[name] for name in values}
    store = make_store(tmp_path / "<script>alert(1)<\u2215script>", columns, {"t0": values})
    found = Reader(store[0]._repr_html_())
    assert f"t0, row 0 of {store.path}" in found.text
    assert "prompt_len 1 · label 1 · score 0.25" in found.text
    assert 'references ["yes"]' in found.text
    assert "question" not in found.text
    found = Reader(store._repr_html_())
    assert found.text.startswith(f"{store.path}: 1 rows")
    assert "logprobfloat32(tokens,)" in found.text
