"""The page: complete, without external resources, and with texts of traces as texts."""

import re
import shlex
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from matplotlib.figure import Figure

from train.report import build_sections
from train.report.evidence import find_mistakes
from train.report.render import Picture, Section, draw_svg, render_html
from train.report.tables import build_mistakes

SCRIPT = "<script>alert(1)</script>"
VOID = {"meta", "br", "img", "link"}


class Page(HTMLParser):
    """Which elements there are; fails where one is not closed."""

    def __init__(self, text):
        super().__init__()
        self.elements, self.open, self.attributes = [], [], []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.elements.append(tag)
        self.attributes += attributes
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.elements.append(tag)
        self.attributes += attributes

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


@pytest.fixture(scope="module")
def page(make_evidence):
    """A page whose trace ids, questions and answers are scripts."""
    evidence = make_evidence(
        n_runs=2, trace_id=SCRIPT, question=SCRIPT, answer=f'" onload="{SCRIPT}'
    )
    evidence.results.store.path = f"/data/{SCRIPT[:8]}.zarr"
    return render_html(f"On {SCRIPT}", build_sections(evidence))


def test_no_text_becomes_an_element(page):
    """Trace id, question, answer, title: each is text."""
    assert "<script" not in page
    assert "onload=&#34;" in page
    assert page.count("&lt;script&gt;alert(1)&lt;/script&gt;") > 3
    found = Page(page)
    assert "script" not in found.elements
    assert not [name for name, _ in found.attributes if name.startswith("on")]


def test_the_page_is_alone(page):
    """No resource from anywhere; both light and dark are provided for."""
    places = ("href", "src", "xlink:href", "data", "srcset")
    links = [value for name, value in Page(page).attributes if name in places]
    assert links
    assert all(link.startswith("#") for link in links)
    assert re.findall(r"url\((?!#)", page) == []
    assert "@import" not in page
    assert "prefers-color-scheme: dark" in page


def test_ids_are_unique_and_links_lead_somewhere(page):
    attributes = Page(page).attributes
    ids = [value for name, value in attributes if name == "id"]
    assert len(ids) == len(set(ids))
    assert {value[1:] for name, value in attributes if name in ("href", "xlink:href")} <= set(ids)
    assert set(re.findall(r"url\(#([^)]+)\)", page)) <= set(ids)


def test_pictures_are_drawn_in_the_colour_of_the_text(page):
    """Seven of them, without the time at which they were made."""
    assert page.count("<svg ") == 7
    assert "currentColor" in page
    assert "#24292f" not in page.partition("</style>")[2]
    assert "<metadata" not in page


def test_a_picture_is_the_same_each_time():
    def draw():
        figure = Figure()
        figure.subplots().plot([0, 1], label="<b>&")
        figure.legend()
        return draw_svg(Picture("one", figure, ""))

    assert draw() == draw()
    assert "<b>&" not in draw()


def test_a_trace_carries_the_command_that_opens_it(make_evidence, tmp_path):
    """Quoted for a shell; ids with characters that nobody sees have none."""
    path = tmp_path / "my run"
    ids = ["it's", "-x", "a\u202eb", "ok"]
    evidence = replace(make_evidence(), directory=path)
    evidence.results.store.path = "/data/a b.zarr"
    trace_ids = evidence.frame.test.trace_ids
    trace_ids[:] = [ids[i % 4] for i in range(len(trace_ids))]
    mistakes = find_mistakes(evidence, "model_0", n=60)
    table = build_mistakes(evidence, "model_0", n=60)
    assert {ids[one.position % 4] for one in mistakes} == set(ids)
    for row, mistake in enumerate(mistakes):
        trace_id = ids[mistake.position % 4]
        assert (row in table.commands) == (trace_id != ids[2])
        if row in table.commands:
            words = shlex.split(table.commands[row])
            assert words[:5] == ["python", "-m", "store", "view", "/data/a b.zarr"]
            assert words[5:] == ["--run", str(path), f"--trace={trace_id}"]
    page = render_html("title", [Section("mistakes", tables=[table])])
    assert page.count("<details>") == len(table.commands)
    opened = '<summary><a data-trace="ok">ok</a></summary><code>python -m store view'
    assert f"{opened} &#39;/data/a b.zarr&#39; --run" in page
    assert 'data-trace="a%E2%80%AEb"' not in page  # its text cannot be told
