"""Markdown in the chat page: rendering, marks of drafted text, and no injection of HTML."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from peagle.engines.serving.server import Server
from tests.engines.serving.browser import Browser, Page

Runs = list[list[Any]]  # of [text, is drafted]

# Renders each list of runs into a separate element, run by run, and describes the result.
_RENDER = """
window.rendered = async (all, stepwise) => {
  const { Markdown } = await import(new URL("page/markdown.js", document.baseURI));
  return all.map(runs => {
    const element = document.createElement("div"), view = new Markdown(element);
    document.body.append(element);
    if (stepwise) for (let count = 1; count <= runs.length; count += 1) view.update(runs.slice(0, count), false);
    view.update(runs, !stepwise);
    const texts = document.createTreeWalker(element, NodeFilter.SHOW_TEXT), said = [];
    for (let node; (node = texts.nextNode()); ) said.push([node.data, node.parentElement.closest(".drafted") !== null]);
    const nodes = [...element.querySelectorAll("*")].map(each => [
      each.localName, [...each.attributes].map(one => [one.name, one.value])]);
    const html = element.innerHTML;
    element.remove();
    return { html, said, nodes };
  });
}, 0"""


@pytest.fixture(scope="module")
def page(browser: Browser, server: Server) -> Iterator[Page]:
    with browser.open(server.url) as page:
        page.until("document.activeElement?.id === 'text'")
        page.value(_RENDER)
        for language in ("py", "html"):  # those of the texts below, so that none changes when it arrives
            _coloured(page, f"```{language}\n<a>def\n```")
        yield page
        assert page.complaints == []


def rendered(page: Page, *all_runs: Runs, stepwise: bool = False) -> list[dict[str, Any]]:
    """For each text: its HTML, its pieces of text with whether they are marked, and its elements with attributes."""
    found: list[dict[str, Any]] = page.value(f"rendered({json.dumps(all_runs)}, {json.dumps(stepwise)})")
    return found


def text_of(found: dict[str, Any]) -> str:
    """All text of what was rendered."""
    return "".join(text for text, _ in found["said"])


def _coloured(page: Page, *texts: str) -> None:
    """Wait until the code in all texts is highlighted."""
    all_runs = json.dumps([[[text, 0]] for text in texts])
    page.until(f"rendered({all_runs}).then(all => all.every(each => each.html.includes('<span class=\"code-')))")


def html_of(page: Page, text: str) -> str:
    """The HTML of a text that was not drafted."""
    found: str = rendered(page, [[text, 0]])[0]["html"]
    return found


@pytest.mark.parametrize(
    ("text", "html"),
    [
        ("# Title\nbelow", "<h3>Title</h3><p>below</p>"),
        ("a **b** *c* ~~d~~ `e<f>`", "<p>a <strong>b</strong> <em>c</em> <del>d</del> <code>e&lt;f&gt;</code></p>"),
        ("- a\n  - b\n- c", '<ul><li class="">a<ul><li class="">b</li></ul></li><li class="">c</li></ul>'),
        ("3. a\n4. b", '<ol start="3"><li class="">a</li><li class="">b</li></ol>'),
        ("> a\n>\n> b", "<blockquote><p>a</p><p>b</p></blockquote>"),
        ("a  \nb\n\n---", "<p>a<br>b</p><hr>"),
        ("a &lt; b &#65;&nbsp;\\*", "<p>a &lt; b A&nbsp;*</p>"),
        ("<b>a</b><br>b", "<p>&lt;b&gt;a&lt;/b&gt;<br>b</p>"),
    ],
)
def test_markdown_becomes_elements(page: Page, text: str, html: str) -> None:
    assert html_of(page, text) == html


def test_tables_and_tasks_are_accessible_to_screen_readers(page: Page) -> None:
    table = html_of(page, "| a | b |\n|---|--:|\n| c | d |")
    assert '<th scope="col">a</th>' in table
    assert '<td class="right">d</td>' in table
    assert 'tabindex="0"' in table
    tasks = html_of(page, "- [x] a\n- [ ] b")
    assert 'aria-label="done"' in tasks
    assert 'aria-label="to do"' in tasks


def test_links_open_elsewhere_and_images_are_links(page: Page) -> None:
    link = html_of(page, "[a](https://example.com/b?c=1&d=2 'title')")
    assert 'href="https://example.com/b?c=1&amp;d=2"' in link
    assert 'rel="noopener noreferrer nofollow"' in link
    assert 'target="_blank"' in link
    image = html_of(page, "![chart](https://example.com/chart.png)")
    assert "<img" not in image
    assert ">Image: chart</a>" in image
    assert "mailto:a@example.com" in html_of(page, "<a@example.com>")


def test_code_is_coloured_once_its_language_is_there(page: Page) -> None:
    html = html_of(page, "```py\ndef f(x):\n    return 'a' # b\n```")
    assert '<span class="code-keyword">def</span>' in html
    assert "<span class=\"code-string\">'a'</span>" in html
    assert 'aria-label="Code, py"' in html
    unknown = html_of(page, "```brainfog\n<i>+</i>\n```")
    assert "<code>&lt;i&gt;+&lt;/i&gt;</code>" in unknown


LANGUAGES = [
    "bash", "c", "c++", "css", "diff", "go", "html", "java", "js", "json", "python", "rust", "sql", "ts", "yaml",
]  # fmt: skip


def test_every_language_can_be_loaded(page: Page) -> None:
    code = 'if true: x = "a"; // 1\n<a b="c">{"d": 2}</a>\n- select * from t\n+ fn main() { return; }\n.a { top: 0 }'
    _coloured(page, *(f"```{language}\n{code}\n```" for language in LANGUAGES))


# ---------------------------------------------------------------------------------------------------- hostile text

ELEMENTS = {
    "a", "blockquote", "br", "button", "code", "del", "div", "em", "figcaption", "figure", "h3", "h4", "h5", "h6", "hr",
    "input", "li", "ol", "p", "pre", "span", "strong", "table", "tbody", "td", "th", "thead", "tr", "ul",
}  # fmt: skip
ATTRIBUTES = {
    "aria-label", "checked", "class", "disabled", "href", "rel", "role", "scope", "start", "tabindex", "target", "type",
}  # fmt: skip

HOSTILE = (
    "<script>window.hacked = 1</script>",
    "<img src=x onerror=window.hacked=1>",
    "<svg onload=window.hacked=1></svg>",
    "<svg><script>window.hacked=1</script></svg>",
    "<iframe srcdoc='<script>parent.hacked=1</script>'></iframe>",
    "[a](javascript:window.hacked=1)",
    "[a](JaVaScRiPt:window.hacked=1)",
    "[a](&#106;avascript:window.hacked=1)",
    "[a](java\tscript:window.hacked=1)",
    "[a](data:text/html,<script>window.hacked=1</script>)",
    "[a](vbscript:x)",
    "![a](javascript:window.hacked=1)",
    '![a](x" onerror="window.hacked=1)',
    "![](http://127.0.0.1:9/leak.png)",
    '<a href="javascript:window.hacked=1">a</a>',
    "<javascript:window.hacked=1>",
    "[a]: javascript:window.hacked=1\n\n[a]",
    '[a](https://e.x/"onmouseover="window.hacked=1)',
    "[a](https://e.x 'x\" onmouseover=\"window.hacked=1')",
    '```"><script>window.hacked=1</script>\nx\n```',
    "```html\n<script>window.hacked=1</script>\n```",
    "<style>*{display:none}</style>",
    "<base href=https://e.x/>",
    "<meta http-equiv=refresh content=0;url=https://e.x>",
    "<form action=//e.x><input name=a></form>",
    "<math><mtext></p><script>window.hacked=1</script>",
    "<!-- --!><script>window.hacked=1</script>",
    "<![CDATA[<script>]]>",
    "&lt;script&gt;window.hacked=1&lt;/script&gt;",
    "<details open ontoggle=window.hacked=1>",
    "\x00<scr\x00ipt>",
    "[a](//e.x)",
    "[a](blob:https://e.x/1)",
    "[a](file:///etc/passwd)",
    "<object data=x>",
    "<link rel=stylesheet href=//e.x>",
    "| a |\n|---|\n| <script>window.hacked=1</script> |",
)


def harmless(page: Page, *all_runs: Runs, stepwise: bool = False) -> None:
    """Nothing but the elements and attributes of Markdown, links to where links may lead, and no script that ran."""
    for runs, found in zip(all_runs, rendered(page, *all_runs, stepwise=stepwise), strict=True):
        for name, attributes in found["nodes"]:
            assert name in ELEMENTS, runs
            assert {key for key, _ in attributes} <= ATTRIBUTES, runs
            assert all(
                value.startswith(("http://", "https://", "mailto:")) for key, value in attributes if key == "href"
            ), runs
    assert page.value("window.hacked") is None
    entries = "performance.getEntriesByType('resource').map(each => each.name)"
    assert all(name.startswith(page.value("location.origin")) for name in page.value(entries))


def test_hostile_text_stays_text(page: Page) -> None:
    harmless(page, *([[text, 1]] for text in HOSTILE))
    harmless(page, *([[f"> - **{text}**", 0]] for text in HOSTILE))


_PIECES = st.sampled_from((
    *HOSTILE, "a", " ", "\n", "\n\n", "**", "*", "`", "```", "```py\n", "[", "](", ")", "<", ">", "|", "\n|---|\n",
    "\n- ", "\n1. ", "\n> ", "    ", "\\", "&", "&amp;", "#", "~~", "é", "\U0001f600", "\r\n", "\t", "![", "x = 1",
    "https://a.b/c", "\n---\n", "- [ ] ",
))  # fmt: skip
_RUNS = st.lists(st.tuples(_PIECES, st.integers(0, 1)).map(list), min_size=1, max_size=14)
_SOME = st.lists(_RUNS, min_size=1, max_size=20)


@settings(max_examples=15)
@given(_SOME)
def test_mixed_hostile_text_stays_text(page: Page, all_runs: list[Runs]) -> None:
    harmless(page, *all_runs, stepwise=True)


@pytest.mark.parametrize("mark", [">", "- ", "**", "[", "`", "|", "* a\n "])
def test_deeply_nested_text_is_shown(page: Page, mark: str) -> None:
    assert "end" in text_of(rendered(page, [[mark * 2000 + "end", 0]])[0])


# ---------------------------------------------------------------------------------------------------------- drafts


@settings(max_examples=15)
@given(_SOME)
def test_marks_do_not_change_the_text(page: Page, all_runs: list[Runs]) -> None:
    plain = [[["".join(text for text, _ in runs), 0]] for runs in all_runs]
    marked, unmarked = rendered(page, *all_runs), rendered(page, *plain)
    assert [text_of(each) for each in marked] == [text_of(each) for each in unmarked]
    assert not any(mark for each in unmarked for _, mark in each["said"])


@settings(max_examples=15)
@given(_SOME)
def test_text_that_arrives_in_pieces_is_rendered_like_a_whole(page: Page, all_runs: list[Runs]) -> None:
    """But for links that a later block defines, until the answer ends."""
    all_runs = [[run for run in runs if "[a]:" not in run[0]] or [["a", 0]] for runs in all_runs]
    assert rendered(page, *all_runs, stepwise=True) == rendered(page, *all_runs)


MARKDOWN = """\
Some **bold `code`** text, a [link](https://a.b/some) and some.

- one
- two
  continued

   ```js
   let two = 2;
   ```

| one | two |
|---|---|
| three | four &amp; |

> five
> six
"""
LABELS = {"Copy", "js"}


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_drafted_text_is_marked_wherever_it_is_rendered(page: Page, end: str) -> None:
    found = rendered(page, [[MARKDOWN.replace("\n", end), 1]])[0]
    assert {text.strip() for text, mark in found["said"] if not mark} <= {*LABELS, ""}


@pytest.mark.parametrize("word", ["bold", "code", "link", "two\n  continued", "let", "four", "six", "and some"])
def test_drafted_word_alone_is_marked(page: Page, word: str) -> None:
    at = MARKDOWN.index(word)
    runs = [[MARKDOWN[:at], 0], [word, 1], [MARKDOWN[at + len(word) :], 0]]
    found = rendered(page, runs)[0]
    assert "".join(text for text, mark in found["said"] if mark).split() == word.split()


def test_indentation_is_not_marked(page: Page) -> None:
    found = rendered(page, [["```\nif a:\n    ", 0], ["    b\n", 1], ["```", 0]])[0]
    assert "".join(text for text, mark in found["said"] if mark).strip("\n") == "b"
