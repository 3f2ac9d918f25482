"""Views: every window and touched turn is drawn where it lies, and no text of a conversation becomes markup."""

import html.parser
import re
import xml.etree.ElementTree

import matplotlib.pyplot as plt
import pytest
from conftest import HOSTILE as TURNS
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.colors import to_hex

from rawrag_utils import chunking, corpus, index, strips, views
from rawrag_utils import desk as desks
from rawrag_utils.corpus import Conversation, Turn
from rawrag_utils.paths import BadInput


def talk(*said, date="2024-03-02", speakers=("Nora", "Tobias")):
    """A conversation from (speaker, text) pairs."""
    turns = (Turn(f"D1:{i}", 1, date, date, speaker, text) for i, (speaker, text) in enumerate(said, 1))
    return Conversation("c", "c", *speakers, tuple(turns))


def part_of(conversation, size=256, overlap=32, dates=True):
    built = index.build([conversation], lambda doc: chunking.cut(doc, size, overlap), dates=dates)
    return built[conversation.conversation_id]


@pytest.fixture
def draw():
    """`chunk_map`, reduced to what it drew: rectangles as (kind, left, right), texts, legend and markers."""
    figures = []

    def drawn(part, *arguments, **options):
        figure = views.chunk_map(part, *arguments, **options)
        figures.append(figure)
        figure.canvas.draw()  # a layout that does not work out warns, and a warning is an error
        (ax,) = figure.axes
        kinds = {colour: name for name, colour in views.SPEAKER_COLOURS.items()}
        boxes = []
        for box in ax.patches:
            kind = "restored" if box.get_hatch() else kinds.get(to_hex(box.get_facecolor()).upper(), "window")
            boxes.append((kind, round(box.get_x()), round(box.get_x() + box.get_width())))
        legend = [text.get_text() for text in ax.get_legend().get_texts()]
        return boxes, [text.get_text() for text in ax.texts], legend, [line.get_xdata()[0] for line in ax.lines]

    yield drawn
    for figure in figures:
        plt.close(figure)


# ---------------------------------------------------------------------------------------------------------------- map


def test_windows_turns_and_what_expansion_restores_lie_where_they_should(draw):
    part = part_of(talk(("Nora", "clay " * 9), ("Tobias", "kiln " * 9), ("Nora", "glaze " * 9)), 40, 8)
    spans = part["turn_context"]["turn_spans"]
    boxes, *_ = draw(part)
    turns = [(a, b) for kind, a, b in boxes if kind.startswith("speaker")]
    assert turns == [tuple(span) for span in spans]
    assert [box for box in boxes if box[0] == "window"] == [
        ("window", c["start_token"], c["end_token"]) for c in part["chunks"]
    ]
    wanted = []
    for c in part["chunks"]:
        edges = (spans[c["start_turn"]][0], c["start_token"]), (c["end_token"], spans[c["end_turn"]][1])
        wanted += [("restored", a, b) for a, b in edges if a < b]
    assert [box for box in boxes if box[0] == "restored"] == wanted


def test_the_sample_shows_six_windows_and_no_word_of_the_dialogue(draw):
    part = part_of(corpus.load("sample").conversations[0])
    boxes, texts, legend, markers = draw(part, 2, 7, evidence={12, 15, 9999})
    assert [text.split("\n")[0] for text in texts if "window" in text] == [f"window {k}" for k in range(2, 8)]
    assert all(re.fullmatch(r"\d+|window \d+\nturns \d+ to \d+", text) for text in texts)
    assert legend[:2] == ["speaker A", "speaker B"] and legend[-1] == "evidence turn"
    assert markers == [sum(part["turn_context"]["turn_spans"][i]) / 2 for i in (12, 15)]


def test_the_last_window_may_lie_beyond_the_end(draw):
    part = part_of(talk(("Nora", "clay " * 60)), 40, 8)
    count = len(part["chunks"])
    boxes, *_ = draw(part, count - 2, count + 9)
    assert [kind for kind, *_ in boxes].count("window") == 2


def test_a_conversation_of_one_turn_and_one_window(draw):
    boxes, texts, legend, _ = draw(part_of(talk(("Nora", "Hi"))))
    assert [kind for kind, *_ in boxes] == ["speaker A", "window"]
    assert "window 0\nturns 0 to 0" in texts
    assert "evidence turn" not in legend


@pytest.mark.parametrize("size", [1, 2, 5])
def test_windows_that_touch_no_turn_have_no_turns(draw, size):
    part = part_of(talk(("Nora", "Hi"), ("Tobias", "Hello")), size, 0)
    boxes, texts, *_ = draw(part, 0, 2)  # all of them within the header
    assert [kind for kind, *_ in boxes] == ["window"] * 3
    assert "window 0\nno turn" in texts
    boxes, *_ = draw(part, 0, len(part["chunks"]))
    assert {kind for kind, *_ in boxes} >= {"window", "speaker A", "speaker B"}


@pytest.mark.parametrize(("first", "last"), [(1, 5), (-1, 5), (0, -2)])
def test_windows_that_do_not_exist_are_refused(first, last):
    with pytest.raises(BadInput, match="^windows? "):
        views.chunk_map(part_of(talk(("Nora", "Hi"))), first, last)


@pytest.mark.parametrize("date", ["2024-03-02", None], ids=["dated", "undated"])
@pytest.mark.parametrize("dates", [True, False], ids=["prefix", "bare"])
@pytest.mark.parametrize(
    "speakers",
    [
        ("Nora", "Tobias"),
        ("Dr: Nora", "Dr: Tobias"),
        ("[x] Nora", "[x] Tobias"),
        ("Ann", "Ann: the elder"),
        ("Nora\nB", "a.*"),
        ("陶", ""),
    ],
)
def test_speakers_are_told_apart_whatever_their_names_hold(date, dates, speakers):
    a, b = speakers
    part = part_of(
        talk((a, "Hi: you"), (b, "] Hi"), (b, ""), ("Guest", "Hi"), (a, ""), date=date, speakers=speakers), dates=dates
    )
    found = views.speakers(part["turn_context"])
    assert found == ["speaker A", "speaker B", "speaker B", "others", "speaker A"]


def test_others_stand_in_the_legend_when_they_speak(draw):
    _, _, legend, _ = draw(part_of(talk(("Guest", "Hi"), ("Tobias", "Hi"))))
    assert legend[:2] == ["speaker B", "others"]


# ------------------------------------------------------------------------------------------------------ window in words

HOSTILE = [
    "<script>alert(1)</script>",
    "</style></td></table>",
    "\"'&amp;",
    "\u2067right to left\u2069",
    "<mark>",
    "</p>",
]


class Reader(html.parser.HTMLParser):
    """The elements of a page, the text of its two cells, and what of the second is not marked."""

    def __init__(self, page):
        super().__init__(convert_charrefs=True)
        self.open, self.tags, self.cells, self.turns = [], [], [], []
        self.feed(page)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attributes):
        self.open.append(tag)
        self.tags.append(tag)
        if tag == "td":
            self.cells.append("")
        if tag == "p":
            self.turns.append(["", ""])

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if "td" in self.open:
            self.cells[-1] += data
        if "p" in self.open:
            self.turns[-1][0] += data
            self.turns[-1][1] += "" if "mark" in self.open else data


@pytest.mark.parametrize("text", HOSTILE)
def test_text_never_becomes_markup(text):
    conversation = talk((text, text), ("Tobias", text), speakers=(text, "Tobias"))
    part = part_of(Conversation(text, text, text, "Tobias", conversation.turns))
    page = views.window_and_turns(part, 0)
    read = Reader(page)
    tags = {"section", "style", "table", "caption", "bdi", "mark", "thead", "tbody", "tr", "th", "td", "p"}
    assert set(read.tags) == tags
    assert read.cells[0] == part["chunks"][0]["content"]
    assert [turn for turn, _ in read.turns] == part["turn_context"]["turn_lines"]
    assert "<script" not in page


def test_each_turn_takes_its_own_direction():
    page = views.window_and_turns(part_of(talk(("Nora", "שלום"), ("Tobias", "Hi"))), 0)
    assert page.count('<p dir="auto"') == 2 and page.count('<td dir="auto"') == 2


def test_the_parts_beyond_the_windows_edges_are_marked():
    part = part_of(talk(("Nora", "one two three four"), ("Tobias", "five six")), 8, 0)
    start = part["turn_context"]["turn_spans"][0][0]
    # [ 202 4 - 03 - 02 "] N" ora : one two three four: the window holds the three words after the colon.
    window = {**part["chunks"][0], "start_token": start + 10, "end_token": start + 13, "start_turn": 0, "end_turn": 0}
    (turn,) = Reader(views.window_and_turns({**part, "chunks": [window]}, 0)).turns
    assert turn == ["[2024-03-02] Nora: one two three four", " one two three"]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.text("ab 陶🦜👩‍👩‍👧\u0301<&\n", max_size=12), min_size=1, max_size=4),
    st.integers(1, 24).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n - 1))),
)
def test_what_is_not_marked_is_what_the_retriever_sees(texts, sizes):
    conversation = talk(*(("Nora", text) for text in texts))
    part, doc = part_of(conversation, *sizes), chunking.document(conversation)

    def text(start, end):
        return chunking.encoding().decode_bytes(doc.tokens[start:end]).decode()

    for k, window in enumerate(part["chunks"]):
        read = Reader(views.window_and_turns(part, k))
        start, end, first, last = (window[field] for field in chunking.FIELDS[3:])
        assert [turn for turn, _ in read.turns] == doc.lines[first : last + 1]
        if read.turns:  # before and after them the window may hold a part of the header and a newline
            seen = "\n".join(plain for _, plain in read.turns)
            before, after = text(start, doc.turn_spans[first][0]), text(doc.turn_spans[last][1], end)
            assert window["content"] == before + seen + after


def test_a_window_that_touches_no_turn_says_so():
    page = views.window_and_turns(part_of(talk(("Nora", "Hi")), 2, 0), 0)
    assert "no turn" in page and Reader(page).turns == []


@pytest.mark.parametrize("chunk_index", [-1, 1])
def test_a_window_that_does_not_exist_is_refused(chunk_index):
    with pytest.raises(BadInput, match=f"^window {chunk_index}: the conversation has 1 windows"):
        views.window_and_turns(part_of(talk(("Nora", "Hi"))), chunk_index)


# ---------------------------------------------------------------------------------------------------- what is found


class Page(html.parser.HTMLParser):
    """What a browser would make of a page: elements with their attributes, and text outside of styles."""

    def __init__(self, page):
        super().__init__(convert_charrefs=True)
        self.elements, self.text, self.within = [], "", []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        self.within.append(tag)

    def handle_endtag(self, tag):
        while self.within and self.within.pop() != tag:
            pass

    def handle_data(self, data):
        self.text += "" if "style" in self.within else data


def found(desk, place=1, method="rrf+maxsim", dates=None):
    return desks.find(desk, desks.questions(desk, "one")[place], method, dates)


def every(desk, one, other):
    """All views of a question."""
    best = next(iter(views.places(one.ranking)))
    made = [views.card(desk, one), views.strip(desk, one, best), views.close_up(desk, one, best)]
    windows = len(desks.built(desk, "one")["one"]["chunks"])
    made += [views.window(desk, one, index, tokens) for index in range(windows) for tokens in (False, True)]
    made += [views.moving_lines(desk, one), views.ranks(desk, one), views.moved(desk, one, other)]
    return [*made, views.side_by_side(desk, one, other), *(views.context(desk, one, copy) for copy in (False, True))]


SAFE = {"section", "style", "table", "caption", "thead", "tbody", "tr", "th", "td", "p", "b", "bdi", "mark", "span"}
SAFE |= {"pre", "textarea", "svg", "title", "defs", "pattern", "rect", "line", "path", "g", "text"}


@pytest.mark.parametrize("method", ["dense", "rrf+maxsim"])
def test_nothing_in_any_view_can_run(desk, method):
    question = desks.questions(desk, "one")[2]  # hostile itself, and so is its evidence
    pages = every(desk, *(desks.find(desk, question, m) for m in (method, "zsum")))
    for page in pages:
        read = Page(page)
        assert {tag for tag, _ in read.elements} <= SAFE
        for _, attributes in read.elements:
            assert not any(name.startswith("on") or name in ("href", "src", "action", "srcdoc") for name in attributes)
            assert not any("javascript:" in str(v) and n != "aria-label" for n, v in attributes.items())
    shown = "".join(Page(page).text for page in pages)
    assert all(text.replace("\x07", "\ufffd").partition("\u202e")[2][:13] in shown for text in TURNS)
    assert TURNS[0] in shown and TURNS[1] in shown and TURNS[2] in shown


def test_pictures_are_well_formed_and_say_what_they_show(desk):
    one, other = found(desk), found(desk, method="dense")
    for page in (p for p in every(desk, one, other) if p.startswith("<svg")):
        root = xml.etree.ElementTree.fromstring(page)
        assert root.attrib["role"] == "img" and root.attrib["aria-label"]
        assert root[0].tag.endswith("title") and root[0].text == root.attrib["aria-label"]
    label = xml.etree.ElementTree.fromstring(views.strip(desk, one)).attrib["aria-label"]
    assert "22 turns" in label and "evidence turns: 3, 19" in label


def test_every_table_has_a_caption_and_heads_with_their_scope(desk):
    for page in every(desk, found(desk), found(desk, method="bm25")):
        read = Page(page)
        tags = [tag for tag, _ in read.elements]
        assert tags.count("table") == tags.count("caption")
        assert all("scope" in attributes for tag, attributes in read.elements if tag == "th")
        assert all(a.get("tabindex") == "0" and a["aria-label"] for tag, a in read.elements if tag == "pre")


def test_marks_that_turn_the_reading_direction_end_with_an_excerpt():
    assert views.clean("\u202eabc\u2066 def", 99) == "\u202eabc\u2066 def\u2069\u202c"
    assert views.clean("\u202eabc\u202c", 99) == "\u202eabc\u202c"
    assert views.clean("\u202eabc") == "\u202eabc"  # a whole text stays as it is, its element isolates it


def test_the_card_says_where_each_turn_of_the_evidence_went(desk):
    one = found(desk)
    rows = desks.evidence(desk, one)
    text = Page(views.card(desk, one)).text
    assert [int(t) for t in rows["turn"]] == [3, 19] and "Where is the tram?" in text and "Gold answer" in text
    for stage in rows["stage"]:
        assert ("✓" if stage == "handed over" else "✗") + f" {stage}" in text
    narrow = views.card(desk, found(desk, dates=("2024-07-01", None)))
    assert narrow.count("✗ outside the dates") == 1


def test_a_typed_question_has_no_evidence_and_no_gold(desk):
    one = desks.find(desk, desks.typed("one", "<b>Tram</b>?"), "rrf+maxsim")
    page = views.card(desk, one)
    assert "typed by hand" in page and "No evidence is known" in page and "Gold" not in page
    assert "<b>" not in page and "▲" not in views.moving_lines(desk, one)


def test_dates_that_leave_no_window_are_said_in_one_line(desk):
    none = found(desk, dates=("2025-01-01", "2025-02-01"))
    views_ = views.card, views.moving_lines, views.ranks, views.context
    pages = [view(desk, none) for view in views_] + [
        views.side_by_side(desk, none, none),
        views.moved(desk, none, none),
    ]
    assert all("No window touches a turn of the sessions from 2025-01-01 to 2025-02-01" in page for page in pages)
    assert views.strip(desk, none).startswith("<svg")


def drawn(page, fill):
    """(left, width) in percent of the rectangles of that fill."""
    boxes = [a for tag, a in Page(page).elements if tag == "rect" and a.get("fill") == fill]
    return [(float(b["x"].rstrip("%")), float(b["width"].rstrip("%"))) for b in boxes if "x" in b]


def test_the_strip_draws_every_turn_and_window_and_marks_what_counts(desk):
    one, part = found(desk), desks.built(desk, "one")["one"]
    page = views.strip(desk, one)
    speakers = [drawn(page, views.SPEAKER_COLOURS[s]) for s in ("speaker A", "speaker B")]
    assert sum(map(len, speakers)) == 22
    titles = re.findall(r"<title>window (\d+): tokens (\d+) to (\d+), (rank|no candidate)", page)
    assert [(int(i), int(a), int(b)) for i, a, b, _ in titles] == [
        (c["chunk_index"], c["start_token"], c["end_token"]) for c in part["chunks"]
    ]
    assert [kind for *_, kind in titles].count("rank") == 6  # the pool
    total = part["turn_context"]["turn_spans"][-1][1]
    starts = [round(x * total / 100) for x, _ in sorted(speakers[0] + speakers[1])]
    assert starts == pytest.approx([a for a, _ in part["turn_context"]["turn_spans"]], abs=1)
    assert len(drawn(page, strips.READER)) == len(desks.handed(desk, one))
    assert page.count(strips.TRIANGLE) == 2 + 1


def test_the_close_up_hatches_what_expansion_restores(desk):
    one, part = found(desk), desks.built(desk, "one")["one"]
    spans = part["turn_context"]["turn_spans"]
    for k, chunk in enumerate(part["chunks"]):
        near = part["chunks"][max(0, k - 1) : k + 2]
        cut = sum(
            (spans[c["start_turn"]][0] < c["start_token"]) + (c["end_token"] < spans[c["end_turn"]][1]) for c in near
        )
        page = views.close_up(desk, one, k)
        assert page.count("restored by expansion") == cut
        assert f"window {k} of" in page and chunk["start_turn"] <= chunk["end_turn"]
    with pytest.raises(BadInput, match="window 99"):
        views.close_up(desk, one, 99)


def test_lines_join_the_places_of_a_window(desk):
    one = found(desk)
    page = views.moving_lines(desk, one)
    before, after = (views.places(ranking) for _, ranking in one.steps)
    for window, (rank, _) in after.items():
        assert f"<title>window {window}: rank {before[window][0]}, then rank {rank}</title>" in page
    holding = [
        c["chunk_index"]
        for c in desks.built(desk, "one")["one"]["chunks"]
        for t in (3, 19)
        if c["start_turn"] <= t <= c["end_turn"]
    ]
    assert page.count(f'stroke="{strips.EVIDENCE}" stroke-width="3"') == len(set(holding))


def test_windows_below_the_last_line_are_named_when_they_hold_evidence():
    ranking = {w: (w + 1, 1 / (w + 1)) for w in range(30)}
    page = strips.moves(ranking, dict(list(ranking.items())[:25]), ("a", "b"), frozenset({24, 29}))
    assert "▲ 24 (rank 25), 29 (rank 30)" in page and "▲ 24 (rank 25), 29 (no rank)" in page


def test_the_ramp_is_ordered_by_lightness_and_read_with_its_ink():
    def luminance(colour):
        channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    shades = [strips.colour(i / 20) for i in range(21)]
    lights = [luminance(fill) for fill, _ in shades]
    assert lights == sorted(lights, reverse=True)
    for light, (_, ink) in zip(lights, shades, strict=True):
        other = 0.0 if ink == "#000" else 1.0
        assert (max(light, other) + 0.05) / (min(light, other) + 0.05) >= 4.5


@pytest.mark.parametrize("copyable", [False, True])
def test_the_context_is_the_exact_text(desk, copyable):
    for question in desks.questions(desk, "one"):
        one = desks.find(desk, question, "rrf+maxsim")
        page = views.context(desk, one, copyable)
        assert Page(page).text.partition(" tokens.")[2] == desks.context(desk, one)
        assert "readonly" not in page  # JupyterLab would take the keys of such a field for commands


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.text("ab 陶🦜👩‍👩‍👧\u0301<&\n", max_size=12), min_size=1, max_size=4),
    st.integers(1, 24).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n - 1))),
)
def test_token_boundaries_change_no_character(texts, sizes):
    part = part_of(talk(*(("Nora", text) for text in texts)), *sizes)
    for k, window in enumerate(part["chunks"]):
        page = views.window_and_turns(part, k, tokens=True)
        assert Reader(page).cells[0] == window["content"]
        count, length = page.count('class="rr-token"'), window["end_token"] - window["start_token"]
        assert count == length if "".join(texts).isascii() else count <= length


def test_a_character_that_the_edge_cuts_hides_no_later_boundary():
    part = part_of(talk(("Nora", "👩‍👩‍👧 and then some plain words")), 1, 0)
    pieces = [chunking.encoding().decode_single_token_bytes(views._window_tokens(part, c)[0]) for c in part["chunks"]]
    half = next(i for i, piece in enumerate(pieces) if piece[0] & 0xC0 == 0x80)  # begins within a character
    window = {**part["chunks"][half], "chunk_index": 0, "end_token": part["chunks"][-1]["end_token"]}
    page = views.window_and_turns({**part, "chunks": [window]}, 0, tokens=True)
    assert re.findall(r'rr-token">( and| then| some)<', page) == [" and", " then", " some"]


def test_no_dollar_begins_a_formula():
    page = views.window_and_turns(part_of(talk(("Nora", "$5 or $6?"))), 0)
    assert re.match('<section class="rr-view mathjax_ignore tex2jax_ignore"', page)
