"""Subtitles of a lecture: cues merged into segments, segments as turns that know their times, times as text."""

import re
from typing import NamedTuple

from rawrag_utils.dialogue import CJK, Conversation, Turn, label
from rawrag_utils.paths import BadInput
from rawrag_utils.subtitle_files import Cue, Subtitles, read

__all__ = [
    "Cue",
    "Segment",
    "Subtitles",
    "cite",
    "clock",
    "document",
    "merge",
    "one_line",
    "ranges",
    "read",
    "span",
    "turns_of",
]


_WIDE = rf"(?:{CJK}|[\u3000-\u303f\uff00-\uff65])"  # with their punctuation
_INNER_BREAK = re.compile(rf"(?<={_WIDE})[ \t]*\n[ \t]*(?={_WIDE})")


class Segment(NamedTuple):
    """Cues that belong together; their texts joined by newlines. `source` is the file, `speaker` who is named in it."""

    id: str
    start_ms: int
    end_ms: int
    text: str
    source: str = ""
    speaker: str | None = None


# ------------------------------------------------------------------------------------------------------------- merging


def merge(cues, min_ms=3000, min_chars=8, max_gap_ms=700, max_ms=20000, full_ms=8500, source=""):
    """Merge cues into `Segment`s, in order of start; one walk, nothing of `cues` is changed.

    A cue joins the current segment when the segment is shorter than `min_ms`, or has fewer than `min_chars`
    characters, or the gap is at most `max_gap_ms`, and the joined segment lasts at most `max_ms`. Before that is
    asked, a segment of at least `full_ms` is closed when the gap exceeds `max_gap_ms`. A segment ends where the latest
    of its cues ends. Times are milliseconds; characters count the newlines between texts. Raises `BadInput` for a
    parameter that is no whole number from 0.

    >>> cues = [Cue(1, 0, 2000, "The moon"), Cue(2, 2500, 4000, "pulls."), Cue(3, 9000, 12000, "Now the sun.")]
    >>> [(s.id, s.start_ms, s.end_ms, s.text) for s in merge(cues)]
    [('S1', 0, 4000, 'The moon\\npulls.'), ('S2', 9000, 12000, 'Now the sun.')]
    """
    limits = {"MIN_MS": min_ms, "MIN_CHARS": min_chars, "MAX_GAP_MS": max_gap_ms, "MAX_MS": max_ms, "FULL_MS": full_ms}
    for name, value in limits.items():
        if not (type(value) is int and value >= 0):  # True is no time
            raise BadInput(f"{name}={value!r:.40}; wanted a whole number from 0")
    groups, start, end, length = [], 0, 0, 0
    for cue in sorted(cues, key=lambda cue: cue.start_ms):
        near = cue.start_ms - end <= max_gap_ms
        full = end - start >= full_ms and not near
        wanted = end - start < min_ms or length < min_chars or near
        if groups and wanted and not full and max(end, cue.end_ms) - start <= max_ms:
            groups[-1].append(cue)
            end, length = max(end, cue.end_ms), length + 1 + len(cue.text)
        else:
            groups.append([cue])
            start, end, length = cue.start_ms, cue.end_ms, len(cue.text)
    return [_segment(number, group, source) for number, group in enumerate(groups, 1)]


def _segment(number, group, source):
    speakers = dict.fromkeys(speaker for cue in group if (speaker := getattr(cue, "speaker", None)))
    return Segment(
        f"S{number}",
        group[0].start_ms,
        max(cue.end_ms for cue in group),
        "\n".join(cue.text for cue in group),
        source,
        ", ".join(speakers) or None,
    )


# --------------------------------------------------------------------------------------------------- segments as turns


def document(segments, conversation_id=None):
    """Segments (or `Subtitles`, merged by the defaults) as a `Conversation`: turn i is segment i.

    A turn has the segment's id, its time range where others have a date, and its text on one line, so its line reads
    `[12:05~12:40] text`, or `[12:05~12:40] speaker: text`. `conversation_id` defaults to the stem of the source.
    Raises `BadInput` where there is no segment.

    >>> talk = document([Segment("S1", 725000, 760900, "The moon\\npulls.", "tides.srt")])
    >>> from rawrag_utils.chunking import turn_line
    >>> talk.conversation_id, turn_line(talk.turns[0])
    ('tides', '[12:05~12:40] The moon pulls.')
    """
    if isinstance(segments, Subtitles):
        segments = merge(segments.cues, source=segments.path_name)
    if not segments:
        raise BadInput("no segments to make a document of; give those of a subtitle in which somebody speaks")
    name = conversation_id or label(segments[0].source)
    speakers = [*dict.fromkeys(s.speaker for s in segments if s.speaker), "", ""]
    turns = tuple(
        Turn(s.id, 1, None, None, s.speaker or "", one_line(s.text), times=(s.start_ms, s.end_ms)) for s in segments
    )
    return Conversation(name, name, *speakers[:2], turns)


def one_line(text):
    """`text` on one line: lines are joined by a blank, where Chinese, Japanese or Korean meets its like by nothing.

    >>> one_line("The moon\\npulls."), one_line("潮汐力\\n很大，\\n真的")
    ('The moon pulls.', '潮汐力很大，真的')
    """
    return " ".join(_INNER_BREAK.sub("", text).split())


def turns_of(window):
    """Indices of the turns, so of the segments, that a window (a dict of `chunking.FIELDS`) touches.

    >>> turns_of({"start_turn": 3, "end_turn": 5})
    range(3, 6)
    """
    return range(window["start_turn"], window["end_turn"] + 1)


def ranges(times, turns):
    """Time ranges [(start_ms, end_ms), ...] of turn indices in any order, those of neighbouring turns as one.

    `times` holds the (start_ms, end_ms) of every turn of the conversation. `turns` may be `turns_of` a window, a
    memory's turns (`answering.handed_over`) or all that a reader was given (`answering.Asked.turns`). Raises
    `BadInput` for an index that no turn has.

    >>> times = [(10_000 * i, 10_000 * i + 9_000) for i in range(5)]
    >>> ranges(times, [4, 1, 2]), cite(times, [4, 1, 2])
    ([(10000, 29000), (40000, 49000)], '00:10~00:29, 00:40~00:49')
    """
    found, last = [], None
    for turn in sorted(set(turns)):
        if not 0 <= turn < len(times):
            raise BadInput(f"turn {turn} is none of the {len(times)} segments; give those that made the document")
        start, end = times[turn]
        if found and turn == last + 1:
            found[-1] = (min(found[-1][0], start), max(found[-1][1], end))
        else:
            found.append((start, end))
        last = turn
    return found


def cite(times, turns):
    """`ranges` as text: `12:05~12:40, 15:00~15:20`; empty where there are no turns."""
    return ", ".join(span(*some) for some in ranges(times, turns))


def span(start_ms, end_ms):
    """`MM:SS~MM:SS`, or `H:MM:SS~H:MM:SS` where the range ends past an hour.

    >>> span(725_900, 760_000), span(3_599_000, 3_600_000)
    ('12:05~12:40', '0:59:59~1:00:00')
    """
    hours = max(start_ms, end_ms) >= 3_600_000
    return f"{clock(start_ms, hours)}~{clock(end_ms, hours)}"


def clock(ms, hours=None):
    """Milliseconds as players show them, whole seconds begun: `MM:SS`, from an hour on (or if `hours`) `H:MM:SS`.

    >>> clock(65_999), clock(3_600_000), clock(65_999, hours=True)
    ('01:05', '1:00:00', '0:01:05')
    """
    minutes, seconds = divmod(int(ms) // 1000, 60)
    if hours or (hours is None and minutes >= 60):
        return f"{minutes // 60}:{minutes % 60:02d}:{seconds:02d}"
    return f"{minutes:02d}:{seconds:02d}"
