"""Markdown shows texts as they are, whatever they hold."""

import pytest
from markdown_it import MarkdownIt

from train.report.render import Section, Table, escape, render_markdown

HOSTILE = ["a|b", "a\\|b", "<script>alert(1)</script>", "<b>", "&lt;", "lstm_solo", "_a_b_"]
HOSTILE += ["*bold* _it_ __x__ `code`", "[link](http://x.y)", "![img](http://x.y)", "~~gone~~"]
HOSTILE += ["<http://x.y>", "back\\", "[.883, .925]"]
NOT_TEXT = {"link_open", "image", "html_inline", "html_block"}
NOT_TEXT |= {"em_open", "strong_open", "s_open", "code_inline"}


def page_of(table):
    return render_markdown("", [Section("", tables=[table])], "")


def tokens(text):
    for token in MarkdownIt("commonmark").enable(["table", "strikethrough"]).parse(text):
        yield token
        yield from token.children or []


@pytest.mark.parametrize("text", HOSTILE)
def test_a_cell_shows_its_text(text):
    """By a parser of CommonMark: one cell, nothing but text in it."""
    found = list(tokens(page_of(Table(("x", "y"), [(text, "end")]))))
    kinds = {token.type for token in found}
    assert not kinds & NOT_TEXT
    inline = [token.children for token in found if token.type == "inline"]
    shown = ["".join(child.content for child in children) for children in inline]
    assert [one for one in shown if one] == ["x", "y", text, "end"]


def test_names_stay_readable():
    assert escape("gnn_det_lstm .906 [.883, .925]") == "gnn_det_lstm .906 [.883, .925]"


def test_a_report_has_its_parts():
    sections = [Section("One", "Text."), Section("Two", tables=[Table(("a", "b"), [("1", "2")])])]
    assert render_markdown("Title", sections, "figures") == (
        "# Title\n\n## One\n\nText.\n\n## Two\n\n| a | b |\n| :-- | --: |\n| 1 | 2 |\n"
    )
