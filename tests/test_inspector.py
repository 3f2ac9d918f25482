"""Pictures: every window and touched turn is drawn where it lies, and no text of a conversation becomes markup."""

import html.parser
import re

import matplotlib.pyplot as plt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.colors import to_hex

from rawrag_utils import chunking, corpus, index, inspector
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
        figure = inspector.chunk_map(part, *arguments, **options)
        figures.append(figure)
        figure.canvas.draw()  # a layout that does not work out warns, and a warning is an error
        (ax,) = figure.axes
        kinds = {colour: name for name, colour in inspector.SPEAKER_COLOURS.items()}
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
        inspector.chunk_map(part_of(talk(("Nora", "Hi"))), first, last)


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
    found = inspector._speakers(part["turn_context"])
    assert found == ["speaker A", "speaker B", "speaker B", "others", "speaker A"]


def test_others_stand_in_the_legend_when_they_speak(draw):
    _, _, legend, _ = draw(part_of(talk(("Guest", "Hi"), ("Tobias", "Hi"))))
    assert legend[:2] == ["speaker B", "others"]


# ------------------------------------------------------------------------------------------------------ window in words

HOSTILE = ["<script>alert(1)</script>", "</style></td></table>", "\"'&amp;", "\u202eright to left", "<mark>", "</p>"]


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
    page = inspector.window_and_turns(part, 0)
    read = Reader(page)
    assert set(read.tags) == {"table", "caption", "bdi", "mark", "tr", "th", "td", "p"}
    assert read.cells[0] == part["chunks"][0]["content"]
    assert [turn for turn, _ in read.turns] == part["turn_context"]["turn_lines"]
    assert "<script" not in page


def test_no_dollar_begins_a_formula():
    page = inspector.window_and_turns(part_of(talk(("Nora", "$5 or $6?"))), 0)
    assert page.startswith("<table class='mathjax_ignore tex2jax_ignore'")


def test_each_turn_takes_its_own_direction():
    page = inspector.window_and_turns(part_of(talk(("Nora", "שלום"), ("Tobias", "Hi"))), 0)
    assert page.count("<p dir='auto'") == 2 and page.count("<td dir='auto'") == 2


def test_the_parts_beyond_the_windows_edges_are_marked():
    part = part_of(talk(("Nora", "one two three four"), ("Tobias", "five six")), 8, 0)
    start = part["turn_context"]["turn_spans"][0][0]
    # [ 202 4 - 03 - 02 "] N" ora : one two three four: the window holds the three words after the colon.
    window = {**part["chunks"][0], "start_token": start + 10, "end_token": start + 13, "start_turn": 0, "end_turn": 0}
    (turn,) = Reader(inspector.window_and_turns({**part, "chunks": [window]}, 0)).turns
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
        read = Reader(inspector.window_and_turns(part, k))
        start, end, first, last = (window[field] for field in chunking.FIELDS[3:])
        assert [turn for turn, _ in read.turns] == doc.lines[first : last + 1]
        if read.turns:  # before and after them the window may hold a part of the header and a newline
            seen = "\n".join(plain for _, plain in read.turns)
            before, after = text(start, doc.turn_spans[first][0]), text(doc.turn_spans[last][1], end)
            assert window["content"] == before + seen + after


def test_a_window_that_touches_no_turn_says_so():
    page = inspector.window_and_turns(part_of(talk(("Nora", "Hi")), 2, 0), 0)
    assert "no turn" in page and Reader(page).turns == []


@pytest.mark.parametrize("chunk_index", [-1, 1])
def test_a_window_that_does_not_exist_is_refused(chunk_index):
    with pytest.raises(BadInput, match=f"^window {chunk_index}: the conversation has 1 windows"):
        inspector.window_and_turns(part_of(talk(("Nora", "Hi"))), chunk_index)
