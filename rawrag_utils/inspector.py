"""Chunk-to-turn pictures: every view is a function that returns a figure or static HTML; widgets only choose."""

import html

from rawrag_utils import chunking

# Okabe-Ito: told apart by colour-blind readers, and in grey by their lightness.
SPEAKER_COLOURS = ("#56B4E9", "#F0E442")
WINDOW_COLOURS = ("#BBBBBB", "#DDDDDD")
EVIDENCE_COLOUR = "#D55E00"


def chunk_map(part, first=0, last=5, evidence=()):
    """Figure of windows `first` to `last` (inclusive) of one conversation's index object over its turns.

    The token axis runs to the right. Turns are the lower strip, coloured by speaker, windows the bars above, on two
    levels so that their overlap shows; what a window's expansion adds at its edges is hatched. `evidence` holds indices
    of turns to mark. Indices and speakers only, no text.
    """
    import matplotlib.pyplot as plt

    windows, context = part["chunks"][first : last + 1], part["turn_context"]
    spans, lines = context["turn_spans"], context["turn_lines"]
    figure, ax = plt.subplots(figsize=(11, 3.2), layout="constrained")
    speakers = _speakers(lines)
    touched = range(max(0, windows[0]["start_turn"]), windows[-1]["end_turn"] + 1)
    for turn in touched:
        start, end = spans[turn]
        ax.barh(
            0,
            end - start,
            left=start,
            height=0.7,
            color=SPEAKER_COLOURS[speakers[turn] % 2],
            edgecolor="white",
            linewidth=0.8,
        )
        if end - start >= 14:
            ax.text((start + end) / 2, 0, str(turn), ha="center", va="center", fontsize=7)
        if turn in evidence:
            ax.plot((start + end) / 2, -0.52, marker="^", color=EVIDENCE_COLOUR, markersize=8, clip_on=False)
    for row, window in enumerate(windows):
        _draw_window(ax, window, spans, level=1 + row % 2)
    ax.set_yticks([0, 1.5], ["turns", "windows"])
    ax.set_ylim(-0.8, 2.6)
    ax.set_xlabel("token of the conversation (cl100k)")
    ax.spines[["top", "right", "left"]].set_visible(False)
    ax.tick_params(axis="y", length=0)
    _legend(ax, bool(evidence))
    return figure


def _speakers(lines):
    """A number a line: its speaker's position in order of appearance. The speaker stands between `] ` and `: `."""
    names = [line.split("] ", 1)[-1].split(":", 1)[0] for line in lines]
    order = {name: i for i, name in enumerate(dict.fromkeys(names))}
    return [order[name] for name in names]


def _draw_window(ax, window, spans, level):
    start, end = window["start_token"], window["end_token"]
    ax.barh(
        level,
        end - start,
        left=start,
        height=0.6,
        color=WINDOW_COLOURS[level - 1],
        edgecolor="black",
        linewidth=0.8,
        zorder=3,
    )
    first, last = window["start_turn"], window["end_turn"]
    label = (
        f"window {window['chunk_index']}\nturns {first} to {last}"
        if first <= last
        else f"window {window['chunk_index']}"
    )
    ax.text((start + end) / 2, level, label, ha="center", va="center", fontsize=7, zorder=4)
    if first <= last:
        for a, b in ((spans[first][0], start), (end, spans[last][1])):
            if b > a:
                ax.barh(level, b - a, left=a, height=0.6, fill=False, hatch="////", edgecolor="#0072B2", linewidth=0.6)


def _legend(ax, evidence):
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    handles = [Patch(facecolor=c, label=f"speaker {name}") for c, name in zip(SPEAKER_COLOURS, "AB", strict=True)]
    handles += [
        Patch(facecolor=WINDOW_COLOURS[0], edgecolor="black", label="window: what the retriever sees"),
        Patch(facecolor="white", edgecolor="#0072B2", hatch="////", label="restored by expansion to whole turns"),
    ]
    if evidence:
        handles.append(
            Line2D([], [], color=EVIDENCE_COLOUR, marker="^", linestyle="", markersize=8, label="evidence turn")
        )
    ax.legend(
        handles=handles, loc="upper center", bbox_to_anchor=(0.5, -0.22), ncol=len(handles), frameon=False, fontsize=8
    )


def window_and_turns(part, chunk_index):
    """HTML of one window: left its text as the retriever sees it, right the whole turns that the reader gets.

    What expansion restores (the parts of the first and last turn outside the window) is marked. All text is escaped.
    """
    chunk, context = part["chunks"][chunk_index], part["turn_context"]
    spans, rows = context["turn_spans"], []
    for turn in chunking.expand([chunk], len(spans))[0]:
        rows.append(f"<p style='margin:0 0 .5em'>{_marked(context['turn_lines'][turn], spans[turn], chunk)}</p>")
    cell = "<td style='width:50%;vertical-align:top;text-align:left;white-space:pre-wrap;padding:.6em'>"
    name = html.escape(chunk["chunk_id"])
    return (
        "<table style='width:100%;table-layout:fixed'><caption style='text-align:left'>"
        f"{name}: tokens {chunk['start_token']} to {chunk['end_token']}, turns {chunk['start_turn']} to "
        f"{chunk['end_turn']}; <mark>marked</mark>: restored by expansion</caption>"
        "<tr><th style='text-align:left'>the retriever sees</th><th style='text-align:left'>the reader gets</th></tr>"
        f"<tr>{cell}{html.escape(chunk['content'])}</td>{cell}{''.join(rows)}</td></tr></table>"
    )


def _marked(line, span, chunk):
    """The line with its parts outside the window in <mark>; the cut falls between tokens, on a whole character."""
    tokens = chunking.encoding().encode_ordinary(line)
    a, b = max(0, chunk["start_token"] - span[0]), min(len(tokens), chunk["end_token"] - span[0])
    decode = chunking.encoding().decode_bytes
    before, inside = (decode(part).decode("utf-8", "ignore") for part in (tokens[:a], tokens[:b]))
    pieces = line[: len(before)], line[len(before) : len(inside)], line[len(inside) :]
    mark = "<mark>{}</mark>".format
    return "".join(
        wrap(html.escape(piece)) if piece else "" for wrap, piece in zip((mark, str, mark), pieces, strict=True)
    )
