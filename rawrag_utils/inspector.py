"""Chunk-to-turn pictures: every view is a function that returns a figure or static HTML; widgets only choose."""

import html
import re

from rawrag_utils import chunking
from rawrag_utils.paths import BadInput

UNDATED = re.compile(r"\A\[(?:undated|[0-9:]+~[0-9:]+)\] ")  # segments of subtitles have their times there
# Okabe-Ito: told apart by colour-blind readers, and in grey by their lightness.
SPEAKER_COLOURS = {"speaker A": "#56B4E9", "speaker B": "#F0E442", "others": "#009E73"}
WINDOW_COLOURS = ("#BBBBBB", "#DDDDDD")
EXPANSION_COLOUR = "#0072B2"
EVIDENCE_COLOUR = "#D55E00"


def chunk_map(part, first=0, last=5, evidence=()):
    """Figure of windows `first` to `last` (inclusive) of one conversation's index object over its turns.

    The token axis runs to the right. Turns are the lower strip, coloured by speaker, windows the bars above, on two
    levels so that their overlap shows; what a window's expansion adds at its edges is hatched. `evidence` holds indices
    of turns to mark. Indices and speakers only, no text.
    """
    import matplotlib.pyplot as plt

    _check_window(part, first)
    windows, context = part["chunks"][first : last + 1], part["turn_context"]
    if not windows:
        raise BadInput(f"windows {first} to {last}: the last lies before the first; swap them")
    spans, speakers = context["turn_spans"], _speakers(context)
    figure, ax = plt.subplots(figsize=(11, 3.2), layout="constrained")
    touched = range(windows[0]["start_turn"], max(w["end_turn"] for w in windows) + 1)
    edges = [w[side] for w in windows for side in ("start_token", "end_token")] + [t for i in touched for t in spans[i]]
    width = max(edges) - min(edges)
    for turn in touched:
        start, end = spans[turn]
        colour = SPEAKER_COLOURS[speakers[turn]]
        ax.barh(0, end - start, left=start, height=0.7, color=colour, edgecolor="white", linewidth=0.8)
        if end - start >= 0.006 * width * len(str(turn)):  # room for the digits
            ax.text((start + end) / 2, 0, str(turn), ha="center", va="center", fontsize=7)
        if turn in evidence:
            ax.plot((start + end) / 2, -0.52, marker="^", color=EVIDENCE_COLOUR, markersize=8, clip_on=False)
    for row, window in enumerate(windows):
        _draw_window(ax, window, spans, level=1 + row % 2, width=width)
    ax.set_yticks([0, 1.5], ["turns", "windows"])
    ax.set_xlim(min(edges) - 0.01 * width, max(edges) + 0.01 * width)
    ax.set_ylim(-0.8, 2.6)
    ax.set_xlabel("token of the conversation (cl100k)")
    ax.spines[["top", "right", "left"]].set_visible(False)
    ax.tick_params(axis="y", length=0)
    _legend(ax, {speakers[turn] for turn in touched}, any(turn in evidence for turn in touched))
    return figure


def _check_window(part, index):
    windows = len(part["chunks"])
    if not 0 <= index < windows:
        raise BadInput(f"window {index}: the conversation has {windows} windows, choose from 0 to {windows - 1}")


def _speakers(context):
    """For each turn `speaker A`, `speaker B` or `others`: the header names the two, the line starts with one of them.

    A name may hold `: ` or `] `, so names are compared, not cut out of the line.
    """
    match = re.fullmatch(r"Conversation ID: .*\nSpeaker A: (.*)\nSpeaker B: (.*)\n\n", context["header"], re.DOTALL)
    names = zip(("speaker A", "speaker B"), match.groups() if match else (), strict=False)
    names = sorted(names, key=lambda name: -len(name[1]))  # of `Ann` and `Ann: the elder` the longer one first
    speakers = []
    for line, date in zip(context["turn_lines"], context["turn_session_dates"], strict=True):
        line = line.removeprefix(f"[{date}] ") if date else UNDATED.sub("", line, count=1)
        speakers.append(next((role for role, name in names if line.startswith(f"{name}: ")), "others"))
    return speakers


def _draw_window(ax, window, spans, level, width):
    start, end, first, last = (window[f] for f in ("start_token", "end_token", "start_turn", "end_turn"))
    box = {"height": 0.6, "linewidth": 0.8}
    ax.barh(level, end - start, left=start, color=WINDOW_COLOURS[level - 1], edgecolor="black", zorder=3, **box)
    label = str(window["chunk_index"])
    if end - start >= 0.09 * width:  # room for words
        label = f"window {label}\n" + (f"turns {first} to {last}" if first <= last else "no turn")
    ax.text((start + end) / 2, level, label, ha="center", va="center", fontsize=7, zorder=4)
    for a, b in ((spans[first][0], start), (end, spans[last][1])) if first <= last else ():
        if b > a:
            ax.barh(level, b - a, left=a, fill=False, hatch="////", edgecolor=EXPANSION_COLOUR, **box)


def _legend(ax, speakers, evidence):
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    handles = [Patch(facecolor=colour, label=name) for name, colour in SPEAKER_COLOURS.items() if name in speakers]
    handles += [
        Patch(facecolor=WINDOW_COLOURS[0], edgecolor="black", label="window: what the retriever sees"),
        Patch(
            facecolor="white", edgecolor=EXPANSION_COLOUR, hatch="////", label="restored by expansion to whole turns"
        ),
    ]
    if evidence:
        marker = {"marker": "^", "markersize": 8, "linestyle": ""}
        handles.append(Line2D([], [], color=EVIDENCE_COLOUR, label="evidence turn", **marker))
    place = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.22)}
    ax.legend(handles=handles, ncol=len(handles), frameon=False, fontsize=8, **place)


def window_and_turns(part, chunk_index):
    """HTML of one window: left its text as the retriever sees it, right the whole turns that the reader gets.

    What expansion restores (the parts of the first and last turn outside the window) is marked. All text is escaped,
    and no $ in it begins a formula: JupyterLab and older viewers each know another class for that.
    """
    _check_window(part, chunk_index)
    chunk, context = part["chunks"][chunk_index], part["turn_context"]
    spans, rows = context["turn_spans"], []
    for turn in chunking.expand([chunk], len(spans))[0]:
        marked = _marked(context["turn_lines"][turn], spans[turn], chunk)
        rows.append(f"<p dir='auto' style='margin:0 0 .5em'>{marked}</p>")
    touched = f"turns {chunk['start_turn']} to {chunk['end_turn']}" if rows else "no turn"
    text = "text-align:start;white-space:pre-wrap;overflow-wrap:anywhere"
    cell = f"<td dir='auto' style='width:50%;vertical-align:top;{text};padding:.6em'>"
    return (
        "<table class='mathjax_ignore tex2jax_ignore' style='width:100%;table-layout:fixed'>"
        "<caption style='text-align:left'>"
        f"<bdi>{html.escape(chunk['chunk_id'])}</bdi>: tokens {chunk['start_token']} to {chunk['end_token']} (end "
        f"exclusive), {touched}; <mark>marked</mark>: restored by expansion</caption>"
        "<tr><th style='text-align:left'>the retriever sees</th><th style='text-align:left'>the reader gets</th></tr>"
        f"<tr>{cell}{html.escape(chunk['content'])}</td>{cell}{''.join(rows)}</td></tr></table>"
    )


def _marked(line, span, chunk):
    """The line with what the window's content lacks in <mark>: a character that an edge cuts is outside."""
    tokens = chunking.encoding().encode_ordinary(line)
    a, b = max(0, chunk["start_token"] - span[0]), min(len(tokens), chunk["end_token"] - span[0])
    decode = chunking.encoding().decode_bytes
    inside, to_the_end = (decode(part).decode("utf-8", "ignore") for part in (tokens[a:b], tokens[a:]))
    start = len(line) - len(to_the_end)
    end = start + len(inside)
    mark = "<mark>{}</mark>".format
    pieces = (mark, line[:start]), (str, line[start:end]), (mark, line[end:])
    return "".join(wrap(html.escape(piece)) for wrap, piece in pieces if piece)
