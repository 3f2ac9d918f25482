"""Subtitles: every fault of real files is mended and listed, cues are merged by the rule, turns know their times."""

import random
import re
import time
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rawrag_utils import answering, chunking, corpus, index, retrieval, subtitle_files, subtitles, views
from rawrag_utils.corpus import Question
from rawrag_utils.paths import BadInput
from rawrag_utils.subtitles import Cue, Segment

TRADITIONAL = "今天我們講潮汐。\n月亮的引力把海水拉起來，另一邊也一樣。"
SIMPLIFIED = "今天我们讲地震波。\n第一种叫纵波，速度最快，请大家看这张图。"
CANTONESE = "佢哋喺度講緊嘢，唔該你哋靜啲。\n我哋今日講潮汐嘅原理，點解會有兩次。"


def srt(*texts):
    """A faultless file: cue i from second 2·i, 1.5 seconds each, not much in between."""
    stamp = "00:{:02d}:{:02d},{:03d}".format
    return "\n".join(
        f"{i}\n{stamp(2 * i // 60, 2 * i % 60, 0)} --> {stamp(2 * i // 60, (2 * i + 1) % 60, 500)}\n{text}\n"
        for i, text in enumerate(texts, 1)
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("subtitles")


@pytest.fixture(scope="module")
def read(folder):
    """Writes bytes, or text as UTF-8, and reads the file."""

    def written_and_read(content, name="talk.srt", **options):
        (folder / name).write_bytes(content.encode() if isinstance(content, str) else content)
        return subtitles.read(folder / name, **options)

    return written_and_read


def texts(found):
    return [cue.text for cue in found.cues]


def times(found):
    return [(some.start_ms, some.end_ms) for some in getattr(found, "cues", found)]


def noted(found, fault):
    """Where the report names `fault`, without the file's name: {place: handling}."""
    rows = [row for row in found.report if row["fault"] == fault]
    return {row["place"].removeprefix("talk.srt ").removeprefix("talk.vtt "): row["handling"] for row in rows}


def refusal(read, content, **options):
    """The one line with which a file is refused, without its name."""
    with pytest.raises(BadInput) as caught:
        read(content, **options)
    message = str(caught.value)
    assert message.startswith("talk.srt: ") and "\n" not in message
    return message.removeprefix("talk.srt: ")


def test_a_faultless_file_is_read_without_a_note(read):
    found = read(srt("Welcome.", "Tides have\ntwo causes.", "42"))
    assert found == ("talk.srt", found.cues, [])
    assert found.cues == (
        Cue(1, 2000, 3500, "Welcome."),
        Cue(2, 4000, 5500, "Tides have\ntwo causes."),
        Cue(3, 6000, 7500, "42"),
    )


def test_a_faultless_vtt_file_is_read_without_a_note(read):
    content = """WEBVTT - a lecture
Kind: captions

STYLE
::cue { color: lime }

NOTE the speaker
never says this

intro
00:01.000 --> 00:02.000 align:start position:0%
Welcome.

REGION
id:fred

42
100:00:03.000 --> 100:00:04.250
42
"""
    found = read(content, "talk.vtt")
    assert found.cues == (Cue(1, 1000, 2000, "Welcome."), Cue(2, 360_003_000, 360_004_250, "42"))
    assert found.report == []


# ----------------------------------------------------------------------------------------------------------- encodings


@pytest.mark.parametrize(
    ("encoding", "spoken", "said"),
    [
        ("utf-8", TRADITIONAL, None),
        ("utf-8-sig", TRADITIONAL, None),
        ("utf-16", TRADITIONAL, "utf-16"),
        ("utf-16-le", TRADITIONAL, "utf-16-le"),
        ("utf-16-be", "plain", "utf-16-be"),
        ("utf-32", TRADITIONAL, "utf-32"),
        ("big5", TRADITIONAL, "cp950"),
        ("big5hkscs", CANTONESE, "big5hkscs"),
        ("gb18030", SIMPLIFIED, "gb18030"),
        ("gb18030", TRADITIONAL, "gb18030"),
        ("cp1252", "Le café est fermé\nà côté, n’est-ce pas", "cp1252"),
    ],
)
def test_encodings_are_told_apart(read, encoding, spoken, said):
    found = read(srt(*spoken.split("\n")).encode(encoding))
    assert texts(found) == spoken.split("\n")
    assert noted(found, "not UTF-8") == ({"file": f"read as {said}"} if said else {})
    assert noted(found, "byte order mark") == ({"file": "removed"} if encoding == "utf-8-sig" else {})


@pytest.mark.parametrize("encoding", ["big5", "gb18030"])
def test_one_chinese_line_among_hundreds_of_english_ones_shows_the_encoding(read, encoding):
    lines = [*["This line is English."] * 300, "潮汐的原理"]
    found = read(
        "\n".join(f"{i}\n01:00:00,000 --> 01:00:01,000\n{t}\n" for i, t in enumerate(lines, 1)).encode(encoding)
    )
    assert texts(found)[-1] == "潮汐的原理"


@pytest.mark.parametrize("encoding", ["utf-8", "big5", "gb18030"])
def test_a_damaged_character_does_not_change_the_encoding(read, encoding):
    raw = srt(*[TRADITIONAL.replace("\n", "")] * 9).encode(encoding)
    cut = raw[:-2] if encoding != "utf-8" else raw[:-3]  # the last cue's full stop lacks its end
    found = read(cut + b"\n")
    assert texts(found)[:8] == [TRADITIONAL.replace("\n", "")] * 8
    assert noted(found, "bytes that are no characters") == {"file": "1 times U+FFFD"}


def test_an_encoding_can_be_named(read):
    raw = srt("Привет всем", "潮").encode("gb18030")
    assert texts(read(raw, encoding="gb18030")) == ["Привет всем", "潮"]
    raw = srt("Сегодня приливы").encode("cp1251")
    assert texts(read(raw, encoding="cp1251")) == ["Сегодня приливы"]
    assert "or name its encoding" in refusal(read, raw)


@pytest.mark.parametrize("encoding", ["klingon", "hex", "", 7])
def test_what_is_no_encoding_is_refused(read, encoding):
    assert "name another" in refusal(read, srt("Hi"), encoding=encoding)


def test_zero_bytes_and_inner_marks_are_removed(read):
    found = read(srt("One", "Two") + "\ufeff" + srt("Three") + "\0" * 50)
    assert texts(found) == ["One", "Three", "Two"]
    assert noted(found, "zero bytes") == {"file": "removed"}


# -------------------------------------------------------------------------------------------------------------- layout


@pytest.mark.parametrize("end", ["\r\n", "\r", "\r\r\n", "\n\n"])
def test_line_ends(read, end):
    assert read(srt("One\ntwo", "Three", "4").replace("\n", end)).cues == read(srt("One\ntwo", "Three", "4")).cues


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("00:00:01,000 --> 00:00:02,500", (1000, 2500)),
        ("00:00:01.000 --> 00:00:02.500", (1000, 2500)),
        ("0:0:1,0 --> 0:0:2,5", (1000, 2500)),
        ("00:01.000 --> 00:02.5", (1000, 2500)),
        ("00:00:01 --> 00:00:02", (1000, 2000)),
        ("00:00:01,000000-->00:00:02,500999", (1000, 2500)),
        ("00 : 00 : 01 , 000 --> 00 : 00 : 02 , 500", (1000, 2500)),
        ("00:00:01,000 -> 00:00:02,500", (1000, 2500)),
        ("00:00:01,000 → 00:00:02,500", (1000, 2500)),
        ("00:00:01,000 --&gt; 00:00:02,500", (1000, 2500)),
        ("\uff10\uff10\uff1a00\uff1a01\uff0c000 --> 00:00:02,500", (1000, 2500)),
        ("-00:00:01,000 --> 00:00:02,500", (0, 2500)),
        ("00:90:00,000 --> 01:31:00,000", (5_400_000, 5_460_000)),
        ("100:00:00,000 --> 999:59:59,999", (360_000_000, 3_599_999_999)),
        ("00:00:01,000 --> 00:00:02,500 X1:40 X2:600 Y1:20 Y2:50", (1000, 2500)),
    ],
)
def test_times_as_files_write_them(read, line, found):
    seen = read(f"1\n{line}\nHi\n")
    assert times(seen) == [found]
    usual = bool(re.fullmatch(r"\d{2,}:[0-5]\d:\d\d,\d{3} --> \d{2,}:\d\d:\d\d,\d{3}( X.*)?", line))
    assert noted(seen, "unusual time stamp") == ({} if usual else {"cue 1 (line 2)": "read"})


def test_times_below_zero_are_zero(read):
    found = read("1\n-00:00:01,000 --> 00:00:02,000\nHi\n")
    assert noted(found, "time below zero") == {"cue 1 (line 2)": "zero"}


def test_text_behind_the_times_is_kept(read):
    found = read("1\n00:00:01,000 --> 00:00:02,000 Welcome\nback\n")
    assert texts(found) == ["Welcome\nback"]
    assert noted(found, "text on the time line") == {"cue 1 (line 2)": "kept"}


def test_missing_numbers(read):
    stamps = ["00:00:01,000 --> 00:00:02,000", "00:00:03,000 --> 00:00:04,000", "00:00:05,000 --> 00:00:06,000"]
    said = ["One", "The answer is\n42", "43"]
    found = read("\n".join(f"{stamp}\n{text}\n" for stamp, text in zip(stamps, said, strict=True)))
    assert texts(found) == said and [cue.number for cue in found.cues] == [1, 2, 3]
    assert list(noted(found, "no number")) == ["cue 1 (line 1)", "cue 2 (line 4)", "cue 3 (line 8)"]
    assert set(noted(found, "no number").values()) == {"numbered by place"}


def test_numbers_that_repeat_skip_or_begin_elsewhere(read):
    content = srt("One", "Two", "Three", "Four").replace("\n3\n", "\n\x1c2\x1f\n").replace("\n4\n", "\n9\n")
    found = read("0" + content[1:])
    assert [cue.number for cue in found.cues] == [1, 2, 3, 4]
    assert noted(found, "number twice") == {"cue 3 (line 10)": "numbered by place"}
    assert list(noted(found, "number out of turn")) == ["cue 1 (line 2)", "cue 2 (line 6)", "cue 4 (line 14)"]


def test_a_last_line_that_is_a_number_is_spoken(read):
    found = read(srt("The answer is\n42", "7", "And now\n\n8"))
    assert texts(found) == ["The answer is\n42", "7", "And now\n8"]
    assert noted(found, "blank line inside") == {"cue 3 (line 11)": "joined"}


@pytest.mark.parametrize("name", ["talk.srt", "talk.vtt"])
def test_missing_blank_lines(read, name):
    content = re.sub(r"\n+", "\n", srt("One", "Two", "", "Four"))
    if name == "talk.vtt":
        content = "WEBVTT\n" + content.replace(",", ".")
    found = read(content, name)
    assert texts(found) == ["One", "Two", "Four"]
    assert list(noted(found, "no blank line before it").values()) == ["taken apart"] * 3


def test_an_unreadable_time_line_takes_its_cue_along_and_no_other(read):
    found = read(srt("One", "Two", "Three").replace("00:00:04,000", "00:00:0four"))
    assert texts(found) == ["One", "Three"] and [cue.number for cue in found.cues] == [1, 3]
    assert noted(found, "unreadable time line") == {"cue 2 (line 6)": "left out"}


def test_an_arrow_in_speech_is_speech(read):
    assert texts(read(srt("a --> b", "from 1 -> 2", "at 00:01.000 or 00:02.000"))) == [
        "a --> b",
        "from 1 -> 2",
        "at 00:01.000 or 00:02.000",
    ]


def test_lines_before_the_first_cue_are_left_out(read):
    found = read("A lecture\nin two parts\n\n" + srt("One"))
    assert texts(found) == ["One"]
    assert noted(found, "lines before the first cue") == {"line 1": "2 left out"}


# --------------------------------------------------------------------------------------------------------------- texts


@pytest.mark.parametrize(
    ("said", "text", "faults"),
    [
        ("<i>Tides</i> and <b>moons</b>", "Tides and moons", ["markup"]),
        ('<font color="#ffffff">Tides</font><br/>turn', "Tides\nturn", ["markup"]),
        (r"{\an8}{\pos(1,2)}Tides\Nturn", "Tides\nturn", ["markup"]),
        ("{y:i}Tides", "Tides", ["markup"]),
        (r"\h\h\hTides", "Tides", ["markup"]),
        (r"$\nabla x \neq \nu$ C:\new", r"$\nabla x \neq \nu$ C:\new", []),
        (r"$\hat{x} \in \{n | n < 3\}$", r"$\hat{x} \in \{n | n < 3\}$", []),
        ("a <b and c> d, List<String>, 1 < 2", "a <b and c> d, List<String>, 1 < 2", []),
        ("Q&amp;A &lt;b&gt; &#39;x&#x27; &copy=2", "Q&A <b> 'x' &copy=2", ["HTML entity"]),
        ("&#58;&nbsp;&#0;", ": \ufffd", ["HTML entity"]),
        ("&#" + "9" * 5000 + ";", "&#" + "9" * 5000 + ";", []),
        ("♪ la la ♪", "la la", ["music mark"]),
        ("# la la #", "la la", ["music mark"]),
        ("#include, C# and #1", "#include, C# and #1", []),
        ("[Music] Welcome", "Welcome", ["music mark"]),
        ("(音樂)大家好", "大家好", ["music mark"]),
        ("[ ♪♪ ♫ ] Hi [music playing] [laughs] ( )", "Hi [laughs] ( )", ["music mark"]),
        ("  Tides \t turn\u3000now ", "Tides turn now", []),
        ("\u202aTides\u202c\x07", "Tides", ["control character"]),
        ("👩‍👩‍👧‍👦 e\u0301", "👩‍👩‍👧‍👦 e\u0301", []),
    ],
)
def test_texts_are_clean(read, said, text, faults):
    found = read(srt(said))
    assert texts(found) == [text]
    assert [row["fault"] for row in found.report] == faults
    assert all(row["place"] == "talk.srt cue 1 (line 2)" for row in found.report)


def test_vtt_marks_and_inner_times(read):
    content = """WEBVTT

00:01.000 --> 00:04.000
<v.loud Ann Lee>Welcome</v> <00:00:02.000><c.red> to</c><00:00:03.000><c> tides</c>

00:05.000 --> 00:06.000
<lang en>1 &lt; 2</lang> <ruby>潮<rt>chao</rt></ruby>
"""
    found = read(content, "talk.vtt")
    assert found.cues == (Cue(1, 1000, 4000, "Welcome to tides", "Ann Lee"), Cue(2, 5000, 6000, "1 < 2 潮chao"))


@pytest.mark.parametrize(
    ("said", "speaker", "text"),
    [
        ("PROFESSOR: Welcome", "PROFESSOR", "Welcome"),
        ("STUDENT 2:\nWhy?", "STUDENT 2", "Why?"),
        (">> Dr. Lee: Because.", None, "Dr. Lee: Because."),
        (">> Welcome", None, "Welcome"),
        ("&gt;&gt; TEACHER: Hi", "TEACHER", "Hi"),
        ("Teacher: Hi", "Teacher", "Hi"),
        ("老師：早安", "老師", "早安"),
        ("Professor Lee: Hi", "Professor Lee", "Hi"),
        ("Host cells: these", None, "Host cells: these"),
        ("<v Ann>NOTE: this", "Ann", "NOTE: this"),
        ("Remember: the moon", None, "Remember: the moon"),
        ("At 10:30 we stop", None, "At 10:30 we stop"),
        ("Https://example.org", None, "Https://example.org"),
        ("PROFESSOR:", None, "PROFESSOR:"),
    ],
)
def test_speaker_labels(read, said, speaker, text):
    (cue,) = read(srt(said)).cues
    assert (cue.speaker, cue.text) == (speaker, text.removeprefix(">> "))


def test_a_name_that_begins_several_cues_is_a_speaker(read):
    found = read(srt("Dr. Lee: One", "Two", "Dr. Lee: Three", "so then: four", "so then: five"))
    assert [cue.speaker for cue in found.cues] == ["Dr. Lee", None, "Dr. Lee", None, None]
    assert noted(found, "speaker label") == {"cue 1 (line 2)": "kept apart", "cue 3 (line 10)": "kept apart"}


def test_cues_without_words_are_left_out(read):
    found = read(srt("One", "", "♪♪", "<i></i>", "\u200b", "Six"))
    assert [cue.number for cue in found.cues] == [1, 6]
    assert list(noted(found, "no words")) == ["cue 3 (line 10)", "cue 4 (line 14)", "cue 5 (line 18)"]
    assert noted(found, "empty") == {"cue 2 (line 6)": "left out"}


# --------------------------------------------------------------------------------------------------------------- times


def cue_lines(*spans):
    """A file of cues at these seconds (start, end), each saying its place."""
    stamp = "00:00:{:02d},000".format
    return "\n".join(f"{i}\n{stamp(a)} --> {stamp(b)}\nCue {i}.\n" for i, (a, b) in enumerate(spans, 1))


def test_cues_out_of_order_are_sorted(read):
    found = read(cue_lines((10, 12), (5, 6), (20, 22), (5, 7)))
    assert [cue.number for cue in found.cues] == [2, 4, 1, 3]
    assert list(noted(found, "out of order")) == ["cue 2 (line 6)", "cue 4 (line 14)"]


def test_overlaps_are_kept_and_listed(read):
    found = read(cue_lines((1, 9), (2, 3), (8, 10), (10, 11)))
    assert times(found) == [(1000, 9000), (2000, 3000), (8000, 10_000), (10_000, 11_000)]
    assert list(noted(found, "overlaps one before it")) == ["cue 2 (line 6)", "cue 3 (line 10)"]


def test_cues_of_no_length_keep_their_words(read):
    found = read(cue_lines((1, 1), (5, 3)))
    assert times(found) == [(1000, 1000), (5000, 5000)]
    assert list(noted(found, "zero length")) == ["cue 1 (line 2)"]
    assert list(noted(found, "ends before it starts")) == ["cue 2 (line 6)"]


def rolling(lines):
    """Captions as players roll them: each line comes below the last one, stays 10 ms alone, then moves up."""
    stamp, cues = "00:00:{:02d}.{:03d}".format, []
    for i, line in enumerate(lines):
        above = lines[i - 1] if i else " "
        cues.append(f"{stamp(2 * i, 0)} --> {stamp(2 * i + 1, 990)} align:start\n{above}\n<c>{line}</c>\n")
        cues.append(f"{stamp(2 * i + 1, 990)} --> {stamp(2 * i + 2, 0)} align:start\n{line}\n \n")
    return "WEBVTT\nKind: captions\n\n" + "\n".join(cues)


def test_rolling_captions_say_each_line_once(read):
    lines = ["hello everyone", "this is about", "tides and the", "moon"]
    found = read(rolling(lines), "talk.vtt")
    assert texts(found) == lines
    assert times(found) == [(2000 * i, 2000 * i + 1990) for i in range(4)]
    assert set(noted(found, "line shown before").values()) == {"left out"}


def test_who_repeats_himself_is_not_rolling(read):
    said = ["No.", "No.", "Two\nlines", "Two\nlines", "lines\nmore", *"abcdefghijk"]
    found = read("\n".join(f"{i}\n00:00:{i:02d},000 --> 00:00:{i + 1:02d},000\n{t}\n" for i, t in enumerate(said, 1)))
    assert texts(found) == said


# ------------------------------------------------------------------------------------------------------------ refusals


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "line 1: neither here nor below is a cue"),
        ("\n \n", "line 1: neither here nor below is a cue"),
        ("WEBVTT\n\nNOTE\nnothing\n", "line 1: neither here nor below is a cue"),
        ("\nDear diary,\nnothing.\n", "line 2, 'Dear diary,', is not how a cue begins"),
        ("1\n2\n", "line 1, '1', is not how a cue begins"),
        ("1\n00:00:01,000 --> soon\nHi\n", "line 2, '00:00:01,000 --> soon', is not how"),
        ("[Script Info]\nTitle: x\n", "line 1, '[Script Info]', is not how"),
        ("An essay\non\nhow\nto write\n\n" + srt("like this"), "line 1, 'An essay', is not how"),
        (srt("♪", ""), "none of its 2 cues holds a word"),
    ],
)
def test_what_is_no_subtitle_is_refused_with_its_first_offending_line(read, content, message):
    assert refusal(read, content).startswith(message)


def test_files_that_cannot_be_read(read, folder, monkeypatch):
    for path in (folder / "none.srt", folder, "bad\0name.srt"):
        with pytest.raises(BadInput) as caught:
            subtitles.read(path)
        assert "\n" not in str(caught.value)
    monkeypatch.setattr(subtitle_files, "LARGEST", 10)
    assert "12 bytes are more than any subtitle has" in refusal(read, "x" * 12)


# ---------------------------------------------------------------------------------------------------------- any bytes

PIECES = [
    *(
        "1",
        "2",
        "42",
        "",
        " ",
        "Hi",
        "潮汐",
        "WEBVTT",
        "NOTE x",
        "STYLE",
        "-->",
        "♪",
        "<i>",
        "</i>",
        "<v Ann>",
        "{\\an8}",
    ),
    *(
        "&amp;",
        "&#0;",
        "\\N",
        "\\h",
        "JOHN: Hi",
        "老師：",
        ">>",
        "\ufeff",
        "\0",
        "\u2028",
        "\x1c",
        "\x85",
        "\ufffd",
        "# a #",
    ),
    *(
        "00:00:01,000 --> 00:00:02,000",
        "00:05.000 --> 00:01.000 align:start",
        "999:99:99,9 --> 0:0:0",
        "x --> 00:00:01",
    ),
    *("-1:00:00,000 --> 00:00:01", "00:00:01,000 -->", "00:01.000 00:02.000", "<00:00:01.000>a<00:00:02.000>", ":" * 9),
]
LINES = st.lists(st.sampled_from(PIECES) | st.text(max_size=8), max_size=25)
ENCODED = st.tuples(
    LINES, st.sampled_from(["\n", "\r\n", "\r", "\n\n"]), st.sampled_from(["utf-8", "utf-16", "gb18030"])
)
FILES = st.binary(max_size=200) | ENCODED.map(lambda f: f[1].join(f[0]).encode(f[2], "replace"))


@settings(max_examples=400, deadline=2000)
@given(FILES, st.sampled_from([b"", b"WEBVTT\n\n", b"1\n00:00:01,000 --> 00:00:02,000\n", b"\xff\xfe", b"\xfe\xff"]))
def test_any_bytes_are_read_or_refused(read, raw, head):
    try:
        found = read(head + raw)
    except BadInput as error:
        assert "\n" not in str(error) and str(error).startswith("talk.srt: ")
        return
    assert found.cues and [c.start_ms for c in found.cues] == sorted(c.start_ms for c in found.cues)
    assert len({c.number for c in found.cues}) == len(found.cues)
    for cue in found.cues:
        assert 0 <= cue.start_ms <= cue.end_ms
        assert cue.text.strip() and "\n\n" not in cue.text and not re.search("[\r\0\ufeff]|<i>", cue.text)
        cue.text.encode()
    assert all(row.keys() == {"place", "fault", "handling"} for row in found.report)
    segments = subtitles.merge(found.cues)
    assert "\n".join(s.text for s in segments) == "\n".join(texts(found))
    assert len(chunking.chunk(subtitles.document(segments), 16, 4)) > 0


@pytest.mark.parametrize(
    "unit",
    [
        "\r",
        "\n",
        " ",
        "<",
        "<b ",
        "{\\",
        "&#1",
        "(",
        "[ ",
        "# ",
        ">> ",
        "0:",
        "- ",
        "00:00:01,000 --> ",
        "1\n",
        "A ",
        "\\h",
    ],
)
def test_no_repetition_makes_it_slow(read, unit):
    start = time.process_time()
    read(srt("Hi") + "\n2\n00:00:09,000 --> 00:00:10,000\nx" + unit * 100_000)
    assert time.process_time() - start < 5


# ------------------------------------------------------------------------------------------------------------- merging


def merged(*spans, text="12345678", **limits):
    """Places of the cues in each segment; the cues are (start, end) in ms, or (start, end, text)."""
    cues = [SimpleNamespace(start_ms=s[0], end_ms=s[1], text=f"{(*s, text)[2]}|{i}") for i, s in enumerate(spans)]
    segments = subtitles.merge(cues, **limits)
    return [[int(line.rpartition("|")[2]) for line in s.text.split("\n")] for s in segments]


LONG = "long enough to count"


@pytest.mark.parametrize(
    ("spans", "groups"),
    [
        # a segment shorter than 3,000 ms takes the next cue whatever the gap; at 3,000 ms it does not
        ([(0, 2999), (9000, 9500)], [[0, 1]]),
        ([(0, 3000), (9000, 9500)], [[0], [1]]),
        # a gap of at most 700 ms joins
        ([(0, 3000), (3700, 5000)], [[0, 1]]),
        ([(0, 3000), (3701, 5000)], [[0], [1]]),
        ([(0, 3000), (2500, 5000)], [[0, 1]]),
        # the joined segment lasts at most 20,000 ms
        ([(0, 3000), (3500, 20_000)], [[0, 1]]),
        ([(0, 3000), (3500, 20_001)], [[0], [1]]),
        ([(0, 100), (150, 20_101)], [[0], [1]]),
        ([(0, 25_000), (25_000, 26_000)], [[0], [1]]),
        # a segment ends where its latest cue ends, which need not be the last one
        ([(0, 8000), (1000, 2000), (8600, 9500)], [[0, 1, 2]]),
        ([(0, 8000), (1000, 2000), (8701, 9500)], [[0, 1], [2]]),
        # at 8,500 ms it is full: closed by a longer gap, not by a shorter one
        ([(0, 8500), (9200, 10_000)], [[0, 1]]),
        ([(0, 8500), (9201, 10_000)], [[0], [1]]),
        # unsorted cues
        ([(3700, 5000), (0, 3000)], [[1, 0]]),
        ([], []),
    ],
)
def test_merging_clause_by_clause(spans, groups):
    assert merged(*spans, text=LONG) == groups


@pytest.mark.parametrize(
    ("length", "end", "groups"),
    [
        (7, 8000, [[0, 1]]),  # fewer than 8 characters: joins over any gap
        (8, 8000, [[0], [1]]),
        (7, 8499, [[0, 1]]),
        (7, 8500, [[0], [1]]),  # unless full, which is asked first
    ],
)
def test_merging_of_few_characters(length, end, groups):
    assert merged((0, end, "x" * (length - 2)), (12_000, 13_000)) == groups  # two characters are the mark


def test_characters_count_over_the_whole_segment_with_its_newlines():
    cues = [Cue(1, 0, 4000, "abc"), Cue(2, 5000, 8000, "wxyz"), Cue(3, 9000, 9500, "end")]
    assert [s.text for s in subtitles.merge(cues)] == ["abc\nwxyz", "end"]
    cues[1] = cues[1]._replace(text="wxy")
    assert [s.text for s in subtitles.merge(cues)] == ["abc\nwxy\nend"]


def test_parameters_move_each_boundary():
    spans = [(0, 3000), (3900, 5000), (5800, 9000), (10_000, 11_000)]
    assert merged(*spans, text=LONG) == [[0], [1, 2], [3]]
    assert merged(*spans, text=LONG, max_gap_ms=1000) == [[0, 1, 2, 3]]
    assert merged(*spans, text=LONG, min_ms=3001) == [[0, 1], [2], [3]]
    assert merged(*spans, text=LONG, min_chars=30) == [[0, 1], [2, 3]]
    assert merged(*spans, text=LONG, min_chars=30, full_ms=3000) == [[0], [1, 2], [3]]
    assert merged(*spans, text=LONG, min_ms=0, min_chars=0, max_gap_ms=0) == [[0], [1], [2], [3]]
    assert merged(*spans, text=LONG, max_gap_ms=1000, max_ms=5000) == [[0, 1], [2], [3]]


@pytest.mark.parametrize("limits", [{"min_ms": -1}, {"max_gap_ms": 0.5}, {"full_ms": True}, {"max_ms": None}])
def test_limits_that_are_no_numbers_are_refused(limits):
    name = next(iter(limits)).upper()
    with pytest.raises(BadInput, match=f"^{name}=.*; wanted a whole number from 0$"):
        subtitles.merge([], **limits)


def test_segments_say_what_they_are_made_of():
    cues = [Cue(1, 0, 2000, "Why?", "Student"), Cue(2, 2100, 4000, "Because.", "Teacher"), Cue(3, 4100, 9000, "So.")]
    assert subtitles.merge(cues, source="talk.srt") == [
        Segment("S1", 0, 9000, "Why?\nBecause.\nSo.", "talk.srt", "Student, Teacher")
    ]
    assert cues[0] == Cue(1, 0, 2000, "Why?", "Student")


def by_the_rule(cues):
    """The rule as it is written, with the segment's figures worked out anew for each cue."""
    segments = []
    for cue in cues:
        if segments:
            held = segments[-1]
            end = max(c.end_ms for c in held)
            length, gap = end - held[0].start_ms, cue.start_ms - end
            joins = length < 3000 or len("\n".join(c.text for c in held)) < 8 or gap <= 700
            if not (length >= 8500 and gap > 700) and joins and max(end, cue.end_ms) - held[0].start_ms <= 20_000:
                held.append(cue)
                continue
        segments.append([cue])
    return segments


@pytest.mark.parametrize("seed", range(20))
def test_merging_equals_the_rule_worked_out_anew(seed):
    rng, cues, at = random.Random(seed), [], 0
    for number in range(1, 200):
        at += rng.choice([0, 100, 699, 700, 701, 1500, 6000])
        end = at + rng.choice([0, 500, 1000, 2999, 3000, 5000, 8500, 21_000])
        cues.append(Cue(number, at, end, "x" * rng.randint(1, 12)))
        at = rng.choice([end, at])
    wanted = by_the_rule(cues)
    segments = subtitles.merge(cues)
    assert [s.text for s in segments] == ["\n".join(c.text for c in group) for group in wanted]
    assert [s.start_ms for s in segments] == [group[0].start_ms for group in wanted]
    assert [s.end_ms for s in segments] == [max(c.end_ms for c in group) for group in wanted]
    assert [s.id for s in segments] == [f"S{i}" for i in range(1, len(wanted) + 1)]


def test_ten_hours_merge_in_well_under_a_second():
    cues = [Cue(i, 2000 * i, 2000 * i + 1900, f"the moon pulls {i}") for i in range(18_000)]
    start = time.process_time()
    segments = subtitles.merge(cues)
    assert time.process_time() - start < 0.5 and segments[-1].end_ms > 35_999_000


# --------------------------------------------------------------------------------------------------- times of windows


def lecture(count=60):
    """Segments of ten seconds each, half a minute apart, past an hour; each says its own word."""
    return [
        Segment(f"S{i + 1}", 90_000 * i, 90_000 * i + 10_000, f"the word is\nword{i:02d} indeed", "my talk.srt")
        for i in range(count)
    ]


def test_a_document_is_a_conversation_without_dates():
    talk = subtitles.document(lecture())
    assert (talk.conversation_id, talk.speaker_a, talk.speaker_b) == ("my_talk", "", "")
    assert talk.turns[1] == corpus.Turn("S2", 1, None, None, "", "the word is word01 indeed", times=(90_000, 100_000))
    doc = chunking.document(talk)
    assert doc.header == "Conversation ID: my_talk\n\n"
    assert doc.lines[1] == "[01:30~01:40] the word is word01 indeed"
    assert doc.lines[40] == "[1:00:00~1:00:10] the word is word40 indeed"
    assert chunking.turn_line(talk.turns[1], dates=False) == "the word is word01 indeed"
    decode = chunking.encoding().decode
    assert [decode(doc.tokens[a:b]) for a, b in doc.turn_spans] == doc.lines


def test_speakers_stand_in_line_and_header():
    segments = [Segment("S1", 0, 1000, "Hi", "a.vtt", "Ann"), Segment("S2", 1000, 2000, "Ho", "a.vtt", "Ben, Ann")]
    talk = subtitles.document(segments, "own-name")
    assert (talk.conversation_id, talk.speaker_a, talk.speaker_b) == ("own-name", "Ann", "Ben, Ann")
    assert chunking.document(talk).lines == ["[00:00~00:01] Ann: Hi", "[00:01~00:02] Ben, Ann: Ho"]
    assert chunking.document(talk).header == "Conversation ID: own-name\nSpeaker A: Ann\nSpeaker B: Ben, Ann\n\n"

    assert views.speakers(index.build([talk])["own-name"]["turn_context"]) == ["speaker A", "speaker B"]


def test_one_speaker_among_unnamed_ones():
    segments = [Segment("S1", 0, 1000, "Hi", "a.vtt", "Ann"), Segment("S2", 1000, 2000, "Ho", "a.vtt")]
    talk = subtitles.document(segments)
    assert chunking.document(talk).lines == ["[00:00~00:01] Ann: Hi", "[00:01~00:02] Ho"]
    assert views.speakers(index.build([talk])["a"]["turn_context"]) == ["speaker A", "others"]


def test_subtitles_become_a_document_at_once(read):
    found = read(srt("Welcome.", "Tides have\ntwo causes."))
    talk = subtitles.document(found)
    assert talk == subtitles.document(subtitles.merge(found.cues, source="talk.srt"))
    assert talk.turns[0].text == "Welcome. Tides have two causes."


def test_nothing_makes_no_document():
    with pytest.raises(BadInput, match="^no segments to make a document of"):
        subtitles.document([])


@pytest.mark.parametrize(("size", "overlap"), [(256, 32), (40, 8), (7, 3)])
def test_every_window_knows_its_times(size, overlap):
    segments = lecture()
    for window in chunking.chunk(subtitles.document(segments), size, overlap):
        touched = [segments[t] for t in subtitles.turns_of(window)]
        said = re.findall(r"word(\d\d)", window["content"])
        assert {f"S{int(number) + 1}" for number in said} <= {s.id for s in touched}
        wanted = [(touched[0].start_ms, touched[-1].end_ms)] if touched else []
        assert subtitles.ranges(times(segments), subtitles.turns_of(window)) == wanted


def test_times_survive_search_and_the_context_builder(tmp_path):
    segments = lecture()
    talk = subtitles.document(segments)
    built = index.build([talk], lambda doc: chunking.cut(doc, 64, 16))
    index.save(index.with_vectors(built, np.eye(len(built["my_talk"]["chunks"]), 99)), tmp_path / "index.json")
    built = index.load(tmp_path / "index.json")
    ranking = retrieval.bm25(built, [Question("q", "my_talk", "word07 word41", None, "factual", (), ())], top=2)
    memories = answering.handed_over(built, ranking)
    turns = [turn for _, some in memories for turn in some]
    assert {7, 41} <= set(turns)
    for _, some in memories:
        assert subtitles.ranges(times(segments), some) == [(segments[min(some)].start_ms, segments[max(some)].end_ms)]
    text = answering.format_context(built, ranking)
    assert all(f"[{subtitles.span(*talk.turns[t].times)}] the word is word{t:02d}" in text for t in turns)


def test_ranges_join_neighbours_only():
    segments = [Segment(f"S{i}", 1000 * i, 1000 * i + 500, "x") for i in range(6)]
    assert subtitles.ranges(times(segments), (5, 0, 1, 1, 3)) == [(0, 1500), (3000, 3500), (5000, 5500)]
    assert subtitles.ranges(times(segments), []) == [] and subtitles.cite(times(segments), []) == ""
    long_first = [segments[0]._replace(end_ms=9000), segments[1]]
    assert subtitles.ranges(times(long_first), [0, 1]) == [(0, 9000)]
    for turn in (6, -1):
        with pytest.raises(BadInput, match=f"turn {turn} is none of the 6 segments"):
            subtitles.ranges(times(segments), [turn])


@pytest.mark.parametrize(
    ("ms", "shown"),
    [
        (0, "00:00"),
        (999, "00:00"),
        (1000, "00:01"),
        (3_599_999, "59:59"),
        (3_600_000, "1:00:00"),
        (360_061_000, "100:01:01"),
    ],
)
def test_clock(ms, shown):
    assert subtitles.clock(ms) == shown


@pytest.mark.parametrize(
    ("start", "end", "shown"),
    [
        (0, 3_599_999, "00:00~59:59"),
        (3_590_000, 3_600_000, "0:59:50~1:00:00"),
        (3_600_000, 7_325_000, "1:00:00~2:02:05"),
    ],
)
def test_span_has_one_form_for_both_ends(start, end, shown):
    assert subtitles.span(start, end) == shown
