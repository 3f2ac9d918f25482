"""The inspector as its user meets it: in JupyterLab by mouse and by keyboard, on a page that runs nothing, readable."""

import itertools
import json
import os
import subprocess
import sys

import browser
import nbformat
import pytest
from browser import HOSTILE
from test_browser import own

from rawrag_utils import corpus

CONTROLS = ["Conversation", "Method", "Compare with", "Search", "Category", "Evidence lost", "Question", "Or type one"]
CONTROLS += ["Sessions", "Sessions", "Window", "Token boundaries"]  # a slider has two handles
FOCUSED = """() => {
    const e = document.activeElement;
    const label = e.getAttribute("aria-label") || e.labels?.[0]?.innerText;
    return label || e.closest(".widget-inline-hbox")?.querySelector(".widget-label")?.innerText || e.tagName;
}"""
# Texts and what each stands on, as "contrast ratio: text", of those that WCAG would call hard to read. Colours of the
# ground are those of the nearest ancestor that has one; SVG texts stand on their picture's ground.
FAINT = """root => {
    const canvas = new OffscreenCanvas(1, 1).getContext("2d", {willReadFrequently: true});
    const rgba = colour => {
        canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = colour; canvas.fillRect(0, 0, 1, 1);
        return [...canvas.getImageData(0, 0, 1, 1).data];
    };
    const light = colour => {
        const [r, g, b] = rgba(colour).map(c => c / 255).map(c => c > .03928 ? ((c + .055) / 1.055) ** 2.4 : c / 12.92);
        return .2126 * r + .7152 * g + .0722 * b;
    };
    const ground = e => {
        for (; e; e = e.parentElement) {
            const colour = getComputedStyle(e).backgroundColor;
            if (rgba(colour)[3] === 255) return colour;
        }
        return "white";
    };
    const found = [];
    for (const e of root.querySelectorAll("*")) {
        const own = [...e.childNodes].some(n => n.nodeType === 3 && n.data.trim());
        if (!own || !e.getClientRects().length || e.closest("title, style, .rr-on, .rr-token")) continue;
        const look = getComputedStyle(e), pair = [light(e.closest("svg") ? look.fill : look.color), light(ground(e))];
        const ratio = (Math.max(...pair) + .05) / (Math.min(...pair) + .05);
        if (ratio < 4.5) found.push(`${ratio.toFixed(1)}: ${e.textContent.trim().slice(0, 40)}`);
    }
    return found;
}"""


@pytest.fixture
def panel(tab):
    """The panel of the notebook in `tab`: a locator; what it shows is asked of it again and again."""
    return tab.locator(".jp-OutputArea-output .widget-vbox").first


def card(panel, *texts):
    """The card about the question, once it holds these texts and the views after it have come too; as text."""
    shown = panel.locator("section[aria-label=question]")
    for text in texts:
        shown = shown.filter(has_text=text)
    shown.wait_for()
    browser.idle(panel.page)
    return panel.locator("section[aria-label=question]").inner_text()


def context(panel):
    return panel.get_by_label("context text", exact=True).input_value()


def control(panel, name):
    return panel.get_by_label(name, exact=True)


def overflows(tab):
    """Outputs that are wider than the room they have, as text; empty when all is to be seen without scrolling aside."""
    wide = "all => all.filter(o => o.scrollWidth > o.clientWidth).map(o => o.innerText.slice(0, 60))"
    return tab.locator(".jp-OutputArea-output").evaluate_all(wide)


def assert_readable(tab):
    for width in (1280, 800):
        tab.set_viewport_size({"width": width, "height": 800})
        assert overflows(tab) == [], width
    faint = [found for o in tab.locator(".jp-OutputArea-output .rr-view").all() for found in o.evaluate(FAINT)]
    assert faint == []


def test_the_inspector_by_mouse_and_keyboard(tab, lab, panel):
    sample = corpus.load("sample")
    talk = sample.conversations[0]
    asked = [q for q in sample.questions if q.conversation_id == talk.conversation_id]
    days = sorted({t.session_date for t in talk.turns})
    browser.open_notebook(tab, lab, "inspect_chunks.ipynb")
    browser.run_all(tab)
    assert browser.errors(tab) == []
    first = next(q for q in asked if q.evidence)
    assert first.answer in card(panel, first.text) and "Memory 1 (chunk=" in context(panel)
    strip = panel.locator("svg[role=img]").first
    assert strip.get_attribute("aria-label").startswith(f"{len(talk.turns)} turns and ")
    assert_readable(tab)

    # Another question, from the list.
    before, other = context(panel), asked[5]
    control(panel, "Question").select_option(index=5)
    assert other.question_id in card(panel, other.text) and context(panel) != before
    assert strip.get_attribute("aria-label").endswith(": " + ", ".join(evidence_turns(talk, other)))

    # Two methods side by side: the columns bear their names.
    control(panel, "Compare with").select_option("bm25")
    pair = panel.locator("section[aria-label='two methods'] .rr-halves th")
    pair.get_by_text("bm25").wait_for()
    assert pair.all_inner_texts() == ["rrf+maxsim", "bm25"]

    # Only questions whose evidence was lost at a stage.
    control(panel, "Evidence lost").select_option("beyond the budget")
    said = panel.locator("[role=status]", has_text=f" of {len(asked)} questions")
    said.wait_for()
    left = control(panel, "Question").locator("option").count()
    assert said.inner_text() == f"{left} of {len(asked)} questions" and 0 < left < len(asked)
    card(panel, "✗ beyond the budget")
    control(panel, "Evidence lost").select_option(index=0)
    said.wait_for(state="detached")
    browser.idle(tab)

    # The dates, dragged by the mouse to the middle, then one further by a key.
    assert panel.locator(".widget-slider .widget-label").get_attribute("title").startswith("From the first")
    low = panel.get_by_role("slider").first
    drag(tab, low, panel.locator(".noUi-base"), 3 / (len(days) - 1))
    card(panel, f"sessions from {days[3]} to {days[-1]}")
    panel.get_by_role("status").get_by_text(f"{days[3]} to {days[-1]}", exact=True).wait_for()
    assert days[2] not in context(panel)
    low.press("ArrowRight")
    card(panel, f"sessions from {days[4]} to {days[-1]}")

    # A question of one's own.
    control(panel, "Or type one").fill("Who keeps geese & <b>bees</b>?")
    control(panel, "Or type one").press("Enter")
    card(panel, "Who keeps geese & <b>bees</b>?", "typed by hand")
    assert len(context(panel)) > 100


def drag(tab, handle, base, share):
    """Move a slider's handle by the mouse to this share of its way."""
    handle.scroll_into_view_if_needed()  # the mouse knows only what is in view
    grip, way = handle.bounding_box(), base.bounding_box()
    y = grip["y"] + grip["height"] / 2
    tab.mouse.move(grip["x"] + grip["width"] / 2, y)
    tab.mouse.down()
    tab.mouse.move(way["x"] + way["width"] * share, y, steps=5)
    tab.mouse.up()


def evidence_turns(talk, question):
    places = {turn.turn_id: str(i) for i, turn in enumerate(talk.turns)}
    return sorted((places[name] for name in question.evidence), key=int)


def test_the_keyboard_alone_reaches_and_changes_all(tab, lab, panel):
    sample = corpus.load("sample")
    asked = [q for q in sample.questions if q.conversation_id == sample.conversations[0].conversation_id]
    browser.open_notebook(tab, lab, "inspect_chunks.ipynb", browser.DARK)
    browser.run_all(tab)
    assert_readable(tab)
    control(panel, "Conversation").focus()
    reached = [tab.evaluate(FOCUSED)]
    while len(reached) < 20 and reached[-1] != "context text":
        tab.keyboard.press("Tab")
        reached.append(tab.evaluate(FOCUSED))
    assert [name for name in reached if name in CONTROLS] == CONTROLS and reached[-1] == "context text"
    tab.keyboard.press("Control+a")
    marked = "() => { const a = document.activeElement; return a.value.slice(a.selectionStart, a.selectionEnd); }"
    assert tab.evaluate(marked) == context(panel)

    control(panel, "Question").focus()
    tab.keyboard.press("End")  # arrows on a list are JupyterLab's: they select another cell
    card(panel, asked[-1].text)
    control(panel, "Token boundaries").focus()
    tab.keyboard.press("Space")
    panel.locator(".rr-token").first.wait_for()
    panel.get_by_role("slider").last.focus()
    tab.keyboard.press("ArrowLeft")
    card(panel, "sessions from ")
    control(panel, "Or type one").focus()
    tab.keyboard.type("Who has a goose?")
    tab.keyboard.press("Enter")
    card(panel, "Who has a goose?")


def test_a_hostile_data_set_is_text_in_the_inspector(tab, lab, panel, tmp_path):
    file = tmp_path / "talk.json"
    file.write_text(json.dumps(own(HOSTILE)), encoding="utf-8")
    browser.open_notebook(tab, lab, "inspect_chunks.ipynb")
    browser.set_parameters(tab, DATASET=str(file), TOKENS=True, CHUNK_SIZE=2048)  # one window that holds all
    browser.run_all(tab)
    assert browser.errors(tab) == []
    for text in HOSTILE:
        control(panel, "Or type one").fill(text)
        control(panel, "Or type one").press("Enter")
        card(panel, text, "typed by hand")
        assert [t for t in HOSTILE if t not in context(panel)] == []
    words = panel.locator("section[aria-label^=window]").inner_text()
    assert [text for text in HOSTILE if words.count(text) < 4] == []  # as retriever and as reader, text and caption
    assert not browser.ran(tab) and len(tab.frames) == 1


def test_the_executed_notebook_as_a_page_that_runs_nothing(tab, tmp_path):
    from nbconvert import HTMLExporter

    file = tmp_path / "talk.json"
    file.write_text(json.dumps(own(HOSTILE)), encoding="utf-8")
    given = {"DATASET": file, "QUESTION": HOSTILE[0], "TOKENS": "true"}
    options = itertools.chain.from_iterable(("-p", name, str(value)) for name, value in given.items())
    command = [sys.executable, "-m", "rawrag_utils.run", "inspect_chunks", *options]  # here the browser has the loop
    subprocess.run(command, env={**os.environ, "RAWRAG_RUNS": str(tmp_path / "runs")}, check=True)
    (copy,) = (tmp_path / "runs").glob("talk/local/*/inspect_chunks.ipynb")
    page = tmp_path / "page.html"
    none = dict.fromkeys(("mathjax_url", "require_js_url", "jquery_url", "mermaid_js_url"), "")
    made, _ = HTMLExporter(exclude_input=True, **none).from_notebook_node(nbformat.read(copy, as_version=4))
    page.write_text(made, encoding="utf-8")
    tab.goto(page.as_uri())
    shown = tab.locator("body").inner_text()
    assert [text for text in HOSTILE if shown.count(text) < 6] == []  # window, contexts, evidence
    assert not browser.ran(tab) and len(tab.frames) == 1
    assert tab.locator(".jp-RenderedSVG").count() == 4
    assert [found for view in tab.locator(".rr-view").all() for found in view.evaluate(FAINT)] == []
