"""Windows and turns: no byte is lost, spans are exact, and what touches what is never off by one."""

import bisect
import itertools
import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rawrag_utils import chunking, corpus, paths
from rawrag_utils.corpus import Conversation, Turn
from rawrag_utils.paths import BadInput

# What breaks tokenisers: characters of several tokens, sequences of several characters, text that spells a special
# token, right-to-left text, and turns longer than any window.
AWKWARD = [
    "",
    "\n",
    "\n\n  \n",
    "<|endoftext|>",
    "陶艺工作室",
    "👩‍👩‍👧‍👦",
    "e\u0301\u0323",
    "שלום",
    "\u202e\u200f",
    "a" * 300,
    "clay " * 90,
]
UNICODE = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)  # Cs: lone surrogates are not UTF-8
TEXT = st.lists(UNICODE | st.sampled_from(AWKWARD), max_size=3).map("".join)
DATE = st.sampled_from([None, "2024-03-02"])
TURN = st.builds(Turn, st.just("D1:1"), st.just(1), DATE, DATE, TEXT, TEXT, st.none() | TEXT)
TALK = st.builds(Conversation, UNICODE, UNICODE, TEXT, TEXT, st.lists(TURN, min_size=1, max_size=6).map(tuple))
SIZES = st.one_of(st.integers(1, 5), st.integers(6, 80)).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n - 1)))
PROPERTY = settings(max_examples=60, deadline=None)


def talk(*texts, date="2024-03-02", caption=None):
    turns = (Turn(f"D1:{i}", 1, date, date, "Nora", text, caption) for i, text in enumerate(texts, 1))
    return Conversation("c", "c", "Nora", "Tobias", tuple(turns))


def decode(tokens):
    return chunking.encoding().decode_bytes(tokens)


def whole_text(doc):
    return (doc.header + "\n".join(doc.lines)).encode()


# -------------------------------------------------------------------------------------------------------------- tokens


@PROPERTY
@given(TALK)
def test_tokens_are_the_document_and_spans_are_its_lines(conversation):
    doc = chunking.document(conversation)
    assert decode(doc.tokens) == whole_text(doc)
    assert [decode(doc.tokens[a:b]) for a, b in doc.turn_spans] == [line.encode() for line in doc.lines]
    assert chunking.line_costs(doc.lines) == [b - a + 1 for a, b in doc.turn_spans]


def test_newline_tokens_belong_to_no_turn():
    doc = chunking.document(talk("one", "two", "three"))
    ends, starts = [b for _, b in doc.turn_spans[:-1]], [a for a, _ in doc.turn_spans[1:]]
    assert [decode(doc.tokens[a:b]) for a, b in zip(ends, starts, strict=True)] == [b"\n", b"\n"]
    assert doc.turn_spans[-1][1] == len(doc.tokens)


def test_text_that_spells_a_special_token_is_ordinary_text():
    doc = chunking.document(talk("<|endoftext|>"))
    assert chunking.encoding().eot_token not in doc.tokens


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({}, "[2024-03-02] Nora: Look [shared image: a bowl]"),
        ({"captions": False}, "[2024-03-02] Nora: Look"),
        ({"dates": False}, "Nora: Look [shared image: a bowl]"),
    ],
)
def test_captions_and_dates_are_choices(options, line):
    assert chunking.document(talk("Look", caption="a bowl"), **options).lines == [line]


def test_a_line_has_caption_and_date_unless_told():
    assert (
        chunking.turn_line(talk("Look", caption="a bowl").turns[0]) == "[2024-03-02] Nora: Look [shared image: a bowl]"
    )


def test_a_turn_without_date_says_so():
    assert chunking.document(talk("Look", date=None)).lines == ["[undated] Nora: Look"]


@pytest.mark.parametrize(
    ("speaker", "line"), [("", "[12:05~12:40] High tide"), ("Nora", "[12:05~12:40] Nora: High tide")]
)
def test_a_segment_has_its_times_and_names_only_who_is_known(speaker, line):
    turn = Turn("1", 1, None, "2024-03-02", speaker, "High tide", None, times=(725_900, 760_000))
    assert chunking.turn_line(turn) == line


@pytest.mark.parametrize(
    ("a", "b", "speakers"),
    [("", "", ""), ("Nora", "", "Speaker A: Nora\nSpeaker B: \n"), ("", "阿哲", "Speaker A: \nSpeaker B: 阿哲\n")],
)
def test_the_header_names_speakers_where_there_are_any(a, b, speakers):
    doc = chunking.document(Conversation("c", "c", a, b, talk("Hi").turns))
    assert doc.header == f"Conversation ID: c\n{speakers}\n"
    assert doc.conversation_id == "c"


# ------------------------------------------------------------------------------------------------------------- windows


@PROPERTY
@given(TALK, SIZES)
def test_windows_without_their_overlaps_decode_to_the_document(conversation, sizes):
    doc = chunking.document(conversation)
    windows = chunking.cut(doc, *sizes)
    seen, tokens = 0, []
    for window in windows:
        assert window["start_token"] <= seen < window["end_token"]  # no gap, and never a subset of the one before
        tokens += doc.tokens[seen : window["end_token"]]
        seen = window["end_token"]
    assert decode(tokens) == whole_text(doc)


@PROPERTY
@given(TALK, SIZES)
def test_windows_start_where_they_should_and_keep_their_size(conversation, sizes):
    size, overlap = sizes
    windows = chunking.chunk(conversation, size, overlap)
    assert [w["start_token"] for w in windows] == [k * (size - overlap) for k in range(len(windows))]
    lengths = [w["end_token"] - w["start_token"] for w in windows]
    assert set(lengths[:-1]) <= {size}
    assert (overlap if len(windows) > 1 else 0) < lengths[-1] <= size


@PROPERTY
@given(TALK, SIZES)
def test_a_window_touches_the_turns_it_shares_a_token_with(conversation, sizes):
    doc = chunking.document(conversation)
    touched = set()
    for window in chunking.cut(doc, *sizes):
        a, b = window["start_token"], window["end_token"]
        shares = [i for i, (start, end) in enumerate(doc.turn_spans) if max(a, start) < min(b, end)]
        assert list(range(window["start_turn"], window["end_turn"] + 1)) == shares
        if not shares:
            assert window["end_turn"] == window["start_turn"] - 1
        touched.update(shares)
    assert touched == set(range(len(doc.lines)))


@PROPERTY
@given(TALK, SIZES)
def test_content_is_the_characters_that_lie_wholly_in_the_window(conversation, sizes):
    doc = chunking.document(conversation)
    text = whole_text(doc).decode()
    characters = list(itertools.accumulate((len(c.encode()) for c in text), initial=0))  # where each begins, in bytes
    tokens = list(itertools.accumulate((len(decode([t])) for t in doc.tokens), initial=0))
    for window in chunking.cut(doc, *sizes):
        first = bisect.bisect_left(characters, tokens[window["start_token"]])
        last = bisect.bisect_right(characters, tokens[window["end_token"]]) - 1
        assert window["content"] == text[first:last]


def test_windows_have_the_size_and_overlap_of_the_scheme_unless_told():
    conversation = talk(*["clay " * 50] * 12, caption="a bowl")
    doc = chunking.document(conversation, captions=False, dates=False)
    assert chunking.chunk(conversation) == chunking.cut(chunking.document(conversation), 256, 32)
    assert chunking.cut(doc) == chunking.chunk(conversation, 256, 32, captions=False, dates=False)
    assert len(chunking.cut(doc)) > 2
    first, *_ = chunking.recursive(chunking.document(talk("clay " * 600)))  # cut within the line
    assert first["end_token"] == 256


def test_a_character_of_several_tokens_may_be_in_no_window():
    # 🦜 is three tokens: windows of one token hold a part of it each, and nothing to read.
    line = chunking.turn_line(talk("🦜").turns[0])
    assert len(chunking.encoding().encode_ordinary("🦜")) == 3
    assert "🦜" in line
    windows = chunking.chunk(talk("🦜"), size=1, overlap=0)
    assert not any("🦜" in w["content"] or "\ufffd" in w["content"] for w in windows)


def test_fields_are_exactly_those_of_the_design():
    (window,) = chunking.chunk(talk("Hi"))
    assert tuple(window) == chunking.FIELDS
    assert window["chunk_id"] == "c_chunk_0"
    assert window["content"] == "Conversation ID: c\nSpeaker A: Nora\nSpeaker B: Tobias\n\n[2024-03-02] Nora: Hi"


def test_windows_of_header_or_newline_alone_touch_no_turn():
    doc = chunking.document(talk("one", "two"))
    windows = chunking.cut(doc, size=1, overlap=0)
    newline = doc.turn_spans[0][1]
    assert [(windows[i]["start_turn"], windows[i]["end_turn"]) for i in (0, newline)] == [(0, -1), (1, 0)]


@pytest.mark.parametrize(
    ("before", "after", "turns"),
    [(0, 0, [(0, 0), (1, 1), (2, 2)]), (1, 1, [(0, 1), (0, 2), (1, 2)]), (9, 0, [(0, 0), (0, 1), (0, 2)])],
)
def test_turn_windows_are_centred_and_shorter_at_the_ends(before, after, turns):
    doc = chunking.document(talk("one", "two", "three"))
    windows = chunking.turn_windows(doc, before, after)
    assert [(w["start_turn"], w["end_turn"]) for w in windows] == turns
    assert [w["content"] for w in windows] == ["\n".join(doc.lines[a : b + 1]) for a, b in turns]
    assert [w["chunk_id"] for w in windows] == ["c_chunk_0", "c_chunk_1", "c_chunk_2"]
    assert [w["chunk_index"] for w in windows] == [0, 1, 2]


def test_without_neighbours_a_turn_window_is_its_line_and_a_window_brings_what_it_touches():
    doc = chunking.document(talk("one", "two", "three"))
    assert [w["content"] for w in chunking.turn_windows(doc)] == doc.lines
    assert chunking.expand([{"start_turn": 1, "end_turn": 1}], turns=3) == [[1]]


# ----------------------------------------------------------------------------------------------------------- expansion


@PROPERTY
@given(TALK, SIZES, st.integers(0, 2), st.randoms(use_true_random=False))
def test_expansion_gives_each_touched_turn_once_in_its_best_window(conversation, sizes, extra, random):
    windows = chunking.chunk(conversation, *sizes)
    random.shuffle(windows)
    turns, given_out = len(conversation.turns), set()
    for window, memory in zip(windows, chunking.expand(windows, turns, extra), strict=True):
        reach = set(range(window["start_turn"] - extra, window["end_turn"] + 1 + extra)) & set(range(turns))
        assert memory == sorted(reach - given_out)
        given_out |= reach
    assert given_out == set(range(turns))


# ----------------------------------------------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("size", "overlap"),
    [(0, 0), (-1, 0), (32, 32), (32, 40), (32, -1), (25.6, 3), (256, 3.2), ("256", 32), (256, None), (True, False)],
)
def test_a_size_that_would_not_move_on_is_refused(size, overlap):
    with pytest.raises(BadInput, match="CHUNK_SIZE=.*CHUNK_OVERLAP=") as error:
        chunking.chunk(talk("Hi"), size, overlap)
    assert "\n" not in str(error.value) and "the overlap must be a whole number from 0 to size − 1" in str(error.value)
    if overlap == 0:
        with pytest.raises(BadInput, match=f"CHUNK_SIZE={size}, CHUNK_OVERLAP=0:"):
            chunking.recursive(chunking.document(talk("Hi")), size)


def test_a_conversation_without_turns_is_refused():
    with pytest.raises(BadInput, match="'c' has no turns"):
        chunking.chunk(talk())


# -------------------------------------------------------------------------------------------------------------- LoCoMo


def test_locomo_has_the_tokens_and_windows_of_the_protocol():
    path = paths.resolve(os.environ.get("RAWRAG_LOCOMO", "../shared/data/locomo10.json"))
    if not path.exists():
        pytest.skip("LoCoMo is not here; set RAWRAG_LOCOMO to its locomo10.json")
    documents = [chunking.document(c) for c in corpus.load("locomo", path).conversations]
    assert documents[0].turn_spans[0][0] == 18  # the header's tokens
    assert sum(len(d.tokens) for d in documents) == 253_443
    assert [len(chunking.cut(d)) for d in documents] == [88, 70, 133, 115, 134, 130, 125, 123, 98, 121]


# ------------------------------------------------------------------------------------------------------ recursive split


@pytest.mark.parametrize("dataset", ["sample", "lectures"])
@pytest.mark.parametrize("size", [256, 64, 20, 5, 1])
def test_recursive_windows_cover_the_document_and_end_with_lines(dataset, size):
    for conversation in corpus.load(dataset).conversations:
        doc = chunking.document(conversation)
        windows = chunking.recursive(doc, size)
        edges = [(w["start_token"], w["end_token"]) for w in windows]
        assert edges[0][0] == 0 and edges[-1][1] == len(doc.tokens)
        assert all(a[1] == b[0] for a, b in itertools.pairwise(edges))
        assert all(0 < end - start <= size for start, end in edges)
        ends = {end for _, end in doc.turn_spans}
        longest = max(b - a for a, b in doc.turn_spans)
        assert size <= longest + 1 or sum(end not in ends for _, end in edges) <= 1  # the header may be one of its own
        for w in windows:
            touched = [i for i, (a, b) in enumerate(doc.turn_spans) if a < w["end_token"] and b > w["start_token"]]
            assert touched == list(range(w["start_turn"], w["end_turn"] + 1))


def test_recursive_split_takes_lines_then_sentences_then_tokens():
    def split(text, size):
        turns = (Turn("1", 1, None, None, "N", text), Turn("2", 1, None, None, "N", "end"))
        doc = chunking.document(Conversation("c", "c", "", "", turns), dates=False)
        return [w["content"].strip() for w in chunking.recursive(doc, size)]

    first = "The kiln is hot today. We should wait for it! Shall we? Yes"
    assert split(first, 64) == [f"Conversation ID: c\n\nN: {first}\nN: end"]
    assert split(first, 16) == [
        "Conversation ID: c\n\nN: The kiln is hot today.",
        "We should wait for it! Shall we? Yes\nN: end",
    ]
    assert split(first, 12)[:2] == [
        "Conversation ID: c\n\nN: The kiln is hot",
        "today. We should wait for it! Shall we? Yes",
    ]
    assert split("窯很熱。我們要等一等！好嗎？好", 18)[1] == "我們要等一等！好嗎？好\nN: end"
    assert len(split("clay " * 60, 16)) == 5


def test_a_line_that_just_fits_is_not_split_to_fill_the_window_before():
    doc = chunking.document(talk("Hi", "The kiln is hot. " * 12 + "We wait."))
    size = doc.turn_spans[1][1] - doc.turn_spans[0][1]  # the second line and the newline before it
    windows = chunking.recursive(doc, size)
    assert [(w["start_turn"], w["end_turn"]) for w in windows] == [(0, 0), (1, 1)]
    assert [w["chunk_id"] for w in windows] == ["c_chunk_0", "c_chunk_1"]


LINES = st.lists(
    st.sampled_from([*".!?…。！？)”」", " ", " ", "clay", "陶", "🦜", '."', "3.5", "\u3000"]), min_size=1, max_size=14
)


@PROPERTY
@given(LINES.map("".join))
def test_a_sentence_ends_with_the_token_that_holds_its_mark(line):
    ends = []
    for i, character in enumerate(line):
        rest = line[i + 1 :]
        if character in "。！？":
            ends.append(i + 1 + (rest[:1] in ("」", "』")))
        elif character in ".!?…":
            closed = rest[:1] in ('"', "”", ")")
            if rest[closed : closed + 1].isspace():
                ends.append(i + 1 + closed)
    tokens = chunking.encoding().encode_ordinary(line)
    reached = list(itertools.accumulate(len(decode([t])) for t in tokens))
    places = [len(line[:end].encode()) for end in ends]
    expected = {next(n for n, r in enumerate(reached, 1) if r >= place) for place in places} | {len(tokens)}
    assert chunking._sentence_ends(line).tolist() == sorted(expected)
