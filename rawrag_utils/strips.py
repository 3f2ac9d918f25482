"""Pictures of one question as SVG text: the conversation as a strip of turns, and rankings as moving lines.

SVG and not matplotlib, because a picture must follow a click within a fifth of a second. Places are percentages, so
text keeps its size at any width. Colours are Okabe-Ito's or of one ramp whose lightness alone orders it, and whatever
a colour says a shape, a number or a hatch says too. The ground is the theme's, white where there is none.
"""

import html
import re
from typing import NamedTuple

from rawrag_utils import subtitles

INK, SOFT, PAPER = (
    f"var(--jp-{name}, {fallback})"
    for name, fallback in (
        ("content-font-color1", "#1a1a1a"),
        ("content-font-color2", "#595959"),
        ("layout-color0", "#ffffff"),
    )
)
SPEAKERS = {"speaker A": "#56B4E9", "speaker B": "#F0E442", "others": "#009E73"}
EVIDENCE, READER, KEPT = "#D55E00", "#0072B2", "#CC79A7"
RAMP = ((245, 234, 241), (204, 121, 167), (74, 20, 60))  # of scores, the lowest candidate to the highest
GUTTER = 5.5  # percent on the left for the first token of a line
LINE_TOKENS, LONG_LINE, LINES = 4096, 8192, 16  # tokens a line of a strip, of a long conversation's, lines at most
SHOWN, TOP = 20, 47  # ranks on each side of moving lines, pixels above the first
TITLE = 90  # characters of a turn in its tooltip

# Attributes say how things look where a host drops styles; the style only lets the theme's colours in.
SOFT_TEXT = 'class="rr-soft" fill="#595959" font-size="10"'
LINE = 'class="rr-line" stroke="#1a1a1a"'
CUT, KEPT = f'{LINE} stroke-width="1.2" stroke-dasharray="3 2"', f'{LINE} stroke-width="1.6"'
WINDOW, CHOSEN = 'stroke="#8a8a8a"', f'fill="none" stroke="{EVIDENCE}" stroke-width="2.5" stroke-dasharray="5 2"'
TRIANGLE = f'<path fill="{EVIDENCE}" {LINE} stroke-width=".6" d="M0 0L5.5 9H-5.5Z"/>'
STYLE = f"""<style>
.rr-svg {{ background: {PAPER}; display: block; }}
.rr-svg .rr-paper {{ fill: {PAPER}; }}
.rr-svg .rr-turns {{ stroke: {PAPER}; }}
.rr-svg .rr-line {{ stroke: {INK}; }}
.rr-svg text:not(.rr-on) {{ fill: {INK}; }}
.rr-svg text.rr-soft {{ fill: {SOFT}; }}
</style>"""


class Marks(NamedTuple):
    """What a strip shows beside windows and turns."""

    candidates: dict = {}  # chunk index to (rank, score)
    kept: int = 0  # how many of the first ranks are kept
    evidence: frozenset = frozenset()  # indices of turns
    handed: frozenset = frozenset()  # indices of the turns handed over
    chosen: int | None = None  # the chunk index that is looked at


def clean(text, length=None):
    """Text that may stand in SVG and HTML: escaped, and without the characters that XML forbids.

    An excerpt of at most `length` characters also ends what marks of the reading direction have begun in it.

    >>> clean("<b>\\x00 & \\"so\\"")
    '&lt;b&gt;\ufffd &amp; &quot;so&quot;'
    """
    text = re.sub(r"[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", "\ufffd", text)
    if length is None:
        return html.escape(text)
    text = text if len(text) <= length else text[: length - 1] + "…"
    embedded = sum(c in "\u202a\u202b\u202d\u202e" for c in text) - text.count("\u202c")
    isolated = sum(c in "\u2066\u2067\u2068" for c in text) - text.count("\u2069")
    return html.escape(text) + "\u2069" * max(0, isolated) + "\u202c" * max(0, embedded)


def colour(share):
    """The ramp's colour at `share` (0 to 1), and black or white, whichever is read on it.

    >>> colour(0.0), colour(1.0)
    (('#f5eaf1', '#000'), ('#4a143c', '#fff'))
    """
    place = min(max(share, 0.0), 1.0) * (len(RAMP) - 1)
    low = min(int(place), len(RAMP) - 2)
    mixed = [round(a + (b - a) * (place - low)) for a, b in zip(RAMP[low], RAMP[low + 1], strict=True)]
    return "#{:02x}{:02x}{:02x}".format(*mixed), "#fff" if share > 0.62 else "#000"


# -------------------------------------------------------------------------------------------------------------- strips


def overview(part, conversation, speakers, marks):
    """The whole conversation on some lines of tokens: SVG text. `speakers` holds a key of `SPEAKERS` a turn."""
    total = part["turn_context"]["turn_spans"][-1][1]
    lines = _lines(total)
    edges = [total * i // lines for i in range(lines + 1)]
    spans = zip(edges, edges[1:], strict=False)
    pieces = [_line(part, conversation, speakers, marks, *span, top=76 * row) for row, span in enumerate(spans)]
    height = 76 * lines
    said = f"{len(conversation.turns)} turns and {len(part['chunks'])} windows of the conversation"
    return _svg(pieces + [_legend(speakers, marks, height + 8)], height + 102, f"{said}{_said(marks)}")


def detail(part, conversation, speakers, marks, around=1):
    """The chosen window and `around` neighbours on each side, with cut edges and what expansion restores: SVG text."""
    chunks = part["chunks"]
    near = chunks[max(0, marks.chosen - around) : marks.chosen + around + 1]
    spans = part["turn_context"]["turn_spans"]
    touched = [t for c in near for t in range(c["start_turn"], c["end_turn"] + 1)]
    start = min([c["start_token"] for c in near] + [spans[t][0] for t in touched])
    end = max([c["end_token"] for c in near] + [spans[t][1] for t in touched])
    piece = _line({**part, "chunks": near}, conversation, speakers, marks, start, end, top=0, tall=True)
    return _svg([piece], 112, f"window {marks.chosen} of {len(chunks)} between its neighbours{_said(marks)}")


def _lines(tokens):
    """How many lines: of 4,096 tokens up to six of them, of 8,192 from there on, never more than sixteen.

    >>> [_lines(n) for n in (90, 9_000, 30_000, 115_000, 10**7)]
    [1, 3, 6, 15, 16]
    """
    short, long = -(-tokens // LINE_TOKENS), -(-tokens // LONG_LINE)
    return min(short, max(6, min(long, LINES)))


def _said(marks):
    ranked = sorted((rank, index) for index, (rank, _) in marks.candidates.items())
    best = ", ".join(str(index) for _, index in ranked[:5])
    return (f"; best windows: {best}" if best else "") + (
        f"; evidence turns: {', '.join(map(str, sorted(marks.evidence)))}" if marks.evidence else ""
    )


def _svg(pieces, height, label):
    # A width in pixels, since a picture without one is shown 300 pixels wide where SVG is an image.
    look = 'style="width:100%" font-family="system-ui, sans-serif" font-size="11" fill="#1a1a1a"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="rr-svg" role="img" aria-label="{clean(label)}" width="1000" '
        f'height="{height}" {look}><title>{clean(label)}</title>{STYLE}{HATCH}'
        f'<rect class="rr-paper" width="100%" height="100%" fill="#ffffff"/>{"".join(pieces)}</svg>'
    )


HATCH = (
    '<defs><pattern id="rr-hatch" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
    f'<rect width="6" height="6" fill="#fff"/><line x1="0" y1="0" x2="0" y2="6" stroke="{READER}" stroke-width="3"/>'
    "</pattern></defs>"
)


def _line(part, conversation, speakers, marks, start, end, top, tall=False):
    """One line of the strip, tokens `start` to `end`, as a nested SVG `top` pixels down."""
    box, turn_box = (22, 22) if tall else (11, 13)
    level, y_turns = box + 2, 16 + 2 * (box + 2) + 4
    spans, scale = part["turn_context"]["turn_spans"], 100 / (end - start)

    def x(token):
        return max(0.0, min(100.0, (token - start) * scale))

    def rect(a, b, y, height, attributes, title=""):
        inner = f"><title>{title}</title></rect>" if title else "/>"
        width = max(x(b) - x(a), 0.06)
        return f'<rect x="{x(a):.2f}%" width="{width:.2f}%" y="{y}" height="{height}" {attributes}{inner}'

    out, turns, cuts = _sessions(conversation, spans, start, end, x), [], []
    shown = [i for i, (a, b) in enumerate(spans) if a < end and b > start]
    for i in shown:
        fill = f'fill="{SPEAKERS[speakers[i]]}"'
        turns.append(rect(*spans[i], y_turns, turn_box, fill, _turn(conversation, i)))
        if tall and x(spans[i][1]) - x(spans[i][0]) > 1.2 * len(str(i)):
            out.append(_on(x(sum(spans[i]) / 2), y_turns + 15, str(i), "#000"))
        if i in marks.handed:
            out.append(rect(*spans[i], y_turns + turn_box + 1, 3, f'fill="{READER}"'))
        if i in marks.evidence:
            place, y = x(sum(spans[i]) / 2), y_turns + turn_box + 6
            out.append(f'<svg x="{place:.2f}%" y="{y}" overflow="visible">{TRIANGLE}</svg>')
    low, spread = _range(marks.candidates)
    for chunk in part["chunks"]:
        if chunk["start_token"] < end and chunk["end_token"] > start:
            y = 16 + chunk["chunk_index"] % 2 * level
            out += _window(part, marks, chunk, x, rect, y, box, (low, spread), tall)
            cuts += [(edge, y + box) for edge in _cut_edges(chunk, spans) if start < edge < end]
    bottom = y_turns + (turn_box if tall else 5)
    for edge, y in cuts:
        y = y if tall else y_turns
        out.append(f'<line {CUT} x1="{x(edge):.2f}%" x2="{x(edge):.2f}%" y1="{y}" y2="{bottom}"/>')
    gutter = f'<text {SOFT_TEXT} x="0" y="{top + y_turns + 10}">{_tokens(start)}</text>'
    return (
        f'{gutter}<svg x="{GUTTER}%" width="{100 - GUTTER - 0.5}%" y="{top}" height="{y_turns + turn_box + 18}" '
        f'overflow="visible"><g class="rr-turns" stroke="#ffffff">{"".join(turns)}</g>{"".join(out)}</svg>'
    )


def _window(part, marks, chunk, x, rect, y, box, scale, tall):
    """A window's bar with its label; in a detail also, hatched, what expansion restores at its edges."""
    index, (start, end) = chunk["chunk_index"], (chunk["start_token"], chunk["end_token"])
    rank, score = marks.candidates.get(index, (None, None))
    kept = rank is not None and rank <= marks.kept
    fill, ink = colour((score - scale[0]) / scale[1]) if rank else ("#ffffff", "#000")
    place = f"rank {rank}, score {score:.4f}" if rank else "no candidate"
    title = f"window {index}: tokens {start} to {end}, {place}"
    out = []
    spans = part["turn_context"]["turn_spans"]
    if tall and chunk["start_turn"] <= chunk["end_turn"]:
        for a, b in ((spans[chunk["start_turn"]][0], start), (end, spans[chunk["end_turn"]][1])):
            if b > a:
                out.append(rect(a, b, y, box, f'fill="url(#rr-hatch)" stroke="{READER}"', "restored by expansion"))
    out.append(rect(start, end, y, box, f'{KEPT if kept else WINDOW} fill="{fill}"', title))
    if index == marks.chosen:
        out.append(rect(start, end, y - 2, box + 4, CHOSEN))
    width = x(end) - x(start)
    if tall and width > 14:
        label = f"window {index}" + (f" · rank {rank}" if rank else "")
        out.append(_on((x(start) + x(end)) / 2, y + 15, label, ink))
    elif rank and kept and width > 1.2 * len(str(rank)):
        out.append(_on((x(start) + x(end)) / 2, y + box - 2, str(rank), ink))
    return out


def _tokens(count):
    """A count in few characters.

    >>> _tokens(952), _tokens(24_864)
    ('952', '24.9k')
    """
    return str(count) if count < 1000 else f"{count / 1000:.1f}k"


def _cut_edges(chunk, spans):
    """The window's edges that run through a turn."""
    first, last = chunk["start_turn"], chunk["end_turn"]
    if first > last:
        return []
    edges = [chunk["start_token"]] if spans[first][0] < chunk["start_token"] else []
    return edges + ([chunk["end_token"]] if chunk["end_token"] < spans[last][1] else [])


def _sessions(conversation, spans, start, end, x):
    """Ticks and dates where sessions begin; a date is left out where the one before leaves no room.

    Turns that know their times have these instead, wherever there is room.
    """
    out, free, before = [], 0.0, None
    for i, turn in enumerate(conversation.turns):
        place = x(spans[i][0])
        room = free <= place < 90
        if (room if turn.times else turn.session != before) and start <= spans[i][0] < end:
            out.append(f'<line x1="{place:.2f}%" x2="{place:.2f}%" y1="2" y2="14" {LINE}/>')
            label = subtitles.clock(turn.times[0]) if turn.times else turn.session_date or f"session {turn.session}"
            if room:
                out.append(f'<text {SOFT_TEXT} x="{place:.2f}%" dx="3" y="11">{clean(label, 16)}</text>')
                free = place + 11
        before = turn.session
    return out


def _range(candidates):
    scores = [score for _, score in candidates.values()]
    low = min(scores, default=0.0)
    return low, (max(scores, default=0.0) - low) or 1.0


def _turn(conversation, i):
    turn = conversation.turns[i]
    about = [subtitles.span(*turn.times)] if turn.times else []
    about += [clean(turn.speaker, 40)] if turn.speaker else []
    return f"turn {i} ({clean(turn.turn_id, 40)}){''.join(f', {some}' for some in about)}: {clean(turn.text, TITLE)}"


def _on(place, y, text, ink):
    look = f'class="rr-on" fill="{ink}" font-size="10" font-weight="600" text-anchor="middle" pointer-events="none"'
    return f'<text {look} x="{place:.2f}%" y="{y}">{text}</text>'


def _legend(speakers, marks, top):
    names = {"speaker A": "turn of speaker A", "speaker B": "turn of speaker B", "others": "turn of others"}
    swatch = '<rect y="2" width="14" height="10" {}/>'.format
    if not set(speakers) - {"others"}:
        names["others"] = "turn"
    items = [(swatch(f'fill="{SPEAKERS[s]}"'), names[s]) for s in SPEAKERS if s in set(speakers)]
    if marks.candidates:
        low, high = (swatch(f'{WINDOW} fill="{colour(share)[0]}"') for share in (0.15, 0.85))
        items += [(low, "candidate window …"), (high, "… the darker, the higher its score")]
        items.append((swatch(f'{KEPT} fill="#ffffff"'), "kept, with its rank"))
    items.append((f'<line {CUT} x1="7" x2="7" y1="0" y2="13"/>', "window edge that cuts a turn"))
    if marks.handed:
        items.append((f'<rect fill="{READER}" y="6" width="14" height="3"/>', "turn the reader gets"))
    if marks.evidence:
        items.append((f'<svg x="7" y="3" overflow="visible">{TRIANGLE}</svg>', "evidence turn"))
    out = []
    for place, (mark, text) in enumerate(items):
        at = f'x="{(GUTTER, 50)[place % 2]}%" y="{top + 18 * (place // 2)}"'
        out.append(f'<svg {at} overflow="visible">{mark}<text x="20" y="11">{text}</text></svg>')
    return "".join(out)


# -------------------------------------------------------------------------------------------------------- moving lines


def moves(before, after, names, evidence=frozenset(), kept=15, where=None):
    """Two rankings of windows as columns, a line from each window's place in one to its place in the other: SVG text.

    `before` and `after` are dicts of chunk index to (rank, score), `names` their names, `evidence` the windows that
    touch evidence; `where` says of a chunk index which turns it touches. Ranks past `SHOWN` are below the line.
    """
    shown = [w for w in {**after, **before} if _seen(before, w) or _seen(after, w) or w in evidence]
    rows = min(SHOWN, max([rank for rank, _ in (*before.values(), *after.values())], default=1))
    height = TOP + 16 + 19 * rows
    out = []
    for place, name in ((1, names[0]), (63, names[1])):
        out.append(f'<text x="{place}%" y="14" font-weight="600">{clean(name, 40)}</text>')
        note = f"window (turns); the first {kept} are kept" if place > 1 else "window (turns)"
        out.append(f'<text {SOFT_TEXT} x="{place}%" y="28">{note}</text>')
    if kept < rows:
        y = TOP - 9.5 + 19 * kept
        out.append(f'<line {CUT} x1="62%" x2="100%" y1="{y}" y2="{y}"/>')
    for window in sorted(shown, key=lambda w: (w in evidence, -_rank(after, w))):  # the best and the evidence on top
        out.append(_move(window, before, after, window in evidence, rows, kept))
    for side, ranking in ((0, before), (1, after)):
        for window in (w for w in shown if _seen(ranking, w)):
            out.append(_place(window, ranking, side, window in evidence, where))
        if below := [w for w in sorted(evidence) if not _seen(ranking, w)]:
            text = ", ".join(f"{w} ({_told(ranking, w)})" for w in below[:4]) + (", …" if len(below) > 4 else "")
            out.append(f'<text x="{(1, 63)[side]}%" y="{TOP + 4 + 19 * rows}" font-weight="700">▲ {text}</text>')
    said = [f"{names[0]} to {names[1]}"] + [
        f"window {w} with evidence goes from {_told(before, w)} to {_told(after, w)}" for w in sorted(evidence)
    ]
    return _svg(out, height, "; ".join(said))


def _rank(ranking, window):
    return ranking[window][0] if window in ranking else 10**6


def _seen(ranking, window):
    return _rank(ranking, window) <= SHOWN


def _told(ranking, window):
    return f"rank {ranking[window][0]}" if window in ranking else "no rank"


def _y(ranking, window, rows):
    return TOP + 19 * (min(_rank(ranking, window), rows + 1) - 1)


def _move(window, before, after, evidence, rows, kept):
    left, right = _y(before, window, rows), _y(after, window, rows)
    if evidence:
        look = f'stroke="{EVIDENCE}" stroke-width="3"'
    elif _rank(after, window) <= kept:
        look = f'stroke="{READER}" stroke-width="1.5"'
    else:
        look = 'stroke="#8a8a8a" stroke-dasharray="3 3"'
    title = f"window {window}: {_told(before, window)}, then {_told(after, window)}"
    return f'<line x1="38%" x2="62%" y1="{left}" y2="{right}" {look}><title>{title}</title></line>'


def _place(window, ranking, side, evidence, where):
    rank, score = ranking[window]
    y = TOP + 19 * (rank - 1)
    turns = f" ({clean(where(window), 40)})" if where else ""
    mark = "▲ " if evidence else ""
    weight = ' font-weight="700"' if evidence else ""
    label = f"{mark}{window}{turns}"
    x, numbers = (("1%", "37%"), ("63%", "99.5%"))[side]
    return (
        f'<text x="{x}" y="{y + 4}"{weight}>{rank}. {label}</text>'
        f'<text {SOFT_TEXT} x="{numbers}" y="{y + 4}" text-anchor="end">{score:.4f}</text>'
    )
