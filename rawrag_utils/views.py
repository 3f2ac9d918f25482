"""Every view of the inspector: a function that returns a figure, SVG or static HTML; widgets only choose.

`chunk_map` and `window_and_turns` show an index object alone; the other views show what a method `desk.find`s for a
question. All text is escaped, each piece takes its own reading direction, and nothing in a page runs.
"""

import codecs
import html
import re

import numpy as np

from rawrag_utils import chunking, retrieval, strips
from rawrag_utils import desk as desks
from rawrag_utils.paths import BadInput
from rawrag_utils.strips import clean

UNDATED = re.compile(r"\A\[(?:undated|[0-9:]+~[0-9:]+)\] ")  # segments of subtitles have their times there
# Okabe-Ito: told apart by colour-blind readers, and in grey by their lightness.
SPEAKER_COLOURS = strips.SPEAKERS
LEFT = 'align="left" valign="top"'  # of cells, where a host drops styles
WINDOW_COLOURS = ("#BBBBBB", "#DDDDDD")
EXPANSION_COLOUR = "#0072B2"
EVIDENCE_COLOUR = "#D55E00"
# No $ in a text begins a formula: JupyterLab and older viewers each know another class for that.
PLAIN = "mathjax_ignore tex2jax_ignore"


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
    spans, roles = context["turn_spans"], speakers(context)
    figure, ax = plt.subplots(figsize=(11, 3.2), layout="constrained")
    touched = range(windows[0]["start_turn"], max(w["end_turn"] for w in windows) + 1)
    edges = [w[side] for w in windows for side in ("start_token", "end_token")] + [t for i in touched for t in spans[i]]
    width = max(edges) - min(edges)
    for turn in touched:
        start, end = spans[turn]
        colour = SPEAKER_COLOURS[roles[turn]]
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
    _legend(ax, {roles[turn] for turn in touched}, any(turn in evidence for turn in touched))
    return figure


def _check_window(part, index):
    windows = len(part["chunks"])
    if not 0 <= index < windows:
        raise BadInput(f"window {index}: the conversation has {windows} windows, choose from 0 to {windows - 1}")


def speakers(context):
    """For each turn `speaker A`, `speaker B` or `others`: the header names the two, the line starts with one of them.

    A name may hold `: ` or `] `, so names are compared, not cut out of the line.
    """
    match = re.fullmatch(r"Conversation ID: .*\nSpeaker A: (.*)\nSpeaker B: (.*)\n\n", context["header"], re.DOTALL)
    names = zip(("speaker A", "speaker B"), match.groups() if match else (), strict=False)
    names = sorted(names, key=lambda name: -len(name[1]))  # of `Ann` and `Ann: the elder` the longer one first
    found = []
    for line, date in zip(context["turn_lines"], context["turn_session_dates"], strict=True):
        line = line.removeprefix(f"[{date}] ") if date else UNDATED.sub("", line, count=1)
        found.append(next((role for role, name in names if line.startswith(f"{name}: ")), "others"))
    return found


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


def _legend(ax, roles, evidence):
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    handles = [Patch(facecolor=colour, label=name) for name, colour in SPEAKER_COLOURS.items() if name in roles]
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


# ----------------------------------------------------------------------------------------------------- window in words


# The doubled class outdoes JupyterLab's own rules for tables and texts in an output.
STYLE = """<style>
.rr-view { background: var(--jp-layout-color0, #fff); color: var(--jp-content-font-color1, #1a1a1a);
  font: 13px/1.45 system-ui, sans-serif; max-width: 78rem; overflow-x: auto; }
.rr-view.rr-view table { width: 100%; table-layout: auto; border-collapse: collapse; margin: .2rem 0 .8rem;
  font-size: 13px; }
.rr-view.rr-view table.rr-halves { table-layout: fixed; }
.rr-view.rr-view caption { text-align: start; caption-side: top; padding: .2rem 0; font-weight: 600;
  color: var(--jp-content-font-color1, #1a1a1a); }
.rr-view.rr-view tr { background: none; }
.rr-view.rr-view :is(th, td) { text-align: start; vertical-align: top; padding: .25rem .8rem .25rem 0;
  white-space: normal; max-width: none; font-variant-numeric: tabular-nums;
  border: 0; border-bottom: 1px solid var(--jp-border-color2, #d5d5d5); }
.rr-view.rr-view thead th { color: var(--jp-content-font-color2, #595959); font-weight: 600; }
.rr-view.rr-view td.rr-text { white-space: pre-wrap; overflow-wrap: anywhere; }
.rr-view .rr-svg { min-width: 40rem; }
.rr-view p { margin: 0 0 .4rem; }
.rr-view h3 { font-size: 15px; margin: 1rem 0 .3rem; }
.rr-view .rr-question { font-size: 17px; font-weight: 600; line-height: 1.3; }
.rr-view .rr-soft { color: var(--jp-content-font-color2, #595959); }
.rr-view mark { background: #FBE3A6; color: #1a1a1a; border-bottom: 2px dashed #0072B2; }
.rr-view .rr-proof { border-inline-start: 4px solid #D55E00; padding-inline-start: .5rem; }
.rr-view .rr-token { border-inline-start: 1px solid #0072B2; }
.rr-view .rr-token:nth-of-type(even) { background: rgba(86, 180, 233, .22); }
.rr-view.rr-view :is(pre, textarea) { width: 100%; box-sizing: border-box; margin: 0; padding: .6rem; overflow: auto;
  font: 12px/1.45 ui-monospace, monospace; white-space: pre-wrap; overflow-wrap: anywhere; word-break: normal;
  max-height: 26rem; text-align: start; color: var(--jp-content-font-color1, #1a1a1a);
  background: var(--jp-layout-color1, #fafafa); border: 1px solid var(--jp-border-color1, #bbb); }
.rr-view textarea { height: 18rem; resize: vertical; }
</style>"""


def window_and_turns(part, chunk_index, tokens=False, evidence=()):
    """HTML of one window: left its text as the retriever sees it, right the whole turns that the reader gets.

    What expansion restores (the parts of the first and last turn outside the window) is marked. `tokens` shows where
    each cl100k token of the window begins; `evidence` holds indices of turns to point out. All text is escaped.
    """
    _check_window(part, chunk_index)
    chunk, context = part["chunks"][chunk_index], part["turn_context"]
    spans, rows = context["turn_spans"], []
    for turn in chunking.expand([chunk], len(spans))[0]:
        marked, proof = _marked(context["turn_lines"][turn], spans[turn], chunk), turn in evidence
        rows.append(
            f'<p dir="auto"{" class=rr-proof" if proof else ""}>{"<b>▲ evidence</b> " if proof else ""}{marked}</p>'
        )
    touched = turns_of(part, chunk_index)
    seen = _with_boundaries(part, chunk) if tokens else clean(chunk["content"])
    caption = (
        f"<bdi>{clean(chunk['chunk_id'])}</bdi>: tokens {chunk['start_token']} to {chunk['end_token']} (end "
        f"exclusive), {touched}; <mark>marked</mark>: restored by expansion"
    )
    cells = "".join(f'<td dir="auto" class="rr-text" {LEFT}>{cell}</td>' for cell in (seen, "".join(rows)))
    return _view(f"window {chunk_index}", _halves(caption, ("the retriever sees", "the reader gets"), cells))


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
    return "".join(wrap(clean(piece)) for wrap, piece in pieces if piece)


def _with_boundaries(part, chunk):
    """The window's text with an element for each token; tokens that share a character share an element."""
    decoder = codecs.getincrementaldecoder("utf-8")("ignore")  # of a character that an edge cuts nothing is seen
    tokens = map(chunking.encoding().decode_single_token_bytes, _window_tokens(part, chunk))
    texts = filter(None, map(decoder.decode, tokens))
    return "".join(f'<span class="rr-token">{clean(text)}</span>' for text in texts)


def _window_tokens(part, chunk):
    """The tokens of a window: those of the header, lines and newlines that it covers."""
    encode, context = chunking.encoding().encode_ordinary, part["turn_context"]
    first, last = max(0, chunk["start_turn"] - 1), chunk["end_turn"] + 1
    spans = context["turn_spans"]
    tokens, start = [], spans[first][0]
    if first == 0:
        tokens, start = encode(context["header"]), 0
    for turn in range(first, min(last + 1, len(spans))):
        tokens += [*encode(context["turn_lines"][turn]), *encode("\n")]
    return tokens[chunk["start_token"] - start : chunk["end_token"] - start]


# ---------------------------------------------------------------------------------------------- what a method finds


def card(desk, found):
    """HTML: the question, its gold answer, and where each turn of its evidence went."""
    question, s = found.question, desk.settings
    known = ["typed by hand"] if question.question_id == desks.TYPED else [question.question_id, question.category]
    facts = " · ".join(f"<bdi>{clean(fact)}</bdi>" for fact in (*known, found.method, *_between(found)))
    head = f'<p class="rr-question" dir="auto">{clean(question.text)}</p><p class="rr-soft">{facts}</p>'
    if question.answer:
        head += f'<p>Gold answer: <bdi dir="auto">{clean(question.answer)}</bdi></p>'
    if not found.steps:
        return _view("question", head + _nothing(found))
    if not question.evidence:
        return _view("question", f"{head}<p>No evidence is known for this question, so no turn is marked.</p>")
    rows = [_fate(desk, found, row) for row in desks.evidence(desk, found).to_dict("records")]
    caption = f"Where the evidence went (pool {s.pool}, kept {s.top}, budget {s.budget:,} tokens)"
    heads = ("turn", "what was said", "rank before", "rank after", "stage")
    return _view("question", head + _table(caption, heads, rows))


def strip(desk, found, chosen=None):
    """SVG: the conversation as turns over the token axis, windows above them coloured by their score."""
    talk = desks.conversation(desk, found.question.conversation_id)
    return strips.overview(_part(desk, found), talk, _roles(desk, found), _marks(desk, found, chosen))


def close_up(desk, found, chosen):
    """SVG: one window between its neighbours, its cut edges, and what expansion restores."""
    part, talk = _part(desk, found), desks.conversation(desk, found.question.conversation_id)
    _check_window(part, chosen)
    return strips.detail(part, talk, _roles(desk, found), _marks(desk, found, chosen))


def window(desk, found, chosen, tokens=False):
    """HTML: `window_and_turns` of one window, evidence turns pointed out."""
    return window_and_turns(_part(desk, found), chosen, tokens, _evidence(desk, found))


def moving_lines(desk, found):
    """SVG: the ranking before and after the last step of the method, a line a window; HTML where there is none."""
    if not found.steps:
        return _view("ranking", _nothing(found))
    return _moves(desk, found, found.steps[0], found.steps[-1])


def ranks(desk, found):
    """HTML: the windows that are kept as a table, for those who do not see the lines."""
    if not found.steps:
        return _view("ranking", _nothing(found))
    part, proof = _part(desk, found), _evidence(desk, found)
    before, after = places(found.steps[0][1]), places(found.ranking)
    rows = []
    for index, (rank, score) in list(after.items())[: desk.settings.top]:
        was = before[index][0] if index in before else "none"
        mark = "▲ yes" if _holds(part["chunks"][index], proof) else "no"
        rows.append([rank, index, turns_of(part, index), f"{score:.4f}", was, mark])
    heads = ("rank", "window", "turns", "score", f"rank in {found.steps[0][0]}", "evidence")
    return _view("ranking", _table(f"The windows that {found.method} keeps", heads, rows))


def moved(desk, found, other):
    """SVG: a line a window from its place under one method to that under another; HTML where there is none."""
    if not (found.steps and other.steps):
        return _view("two methods", _nothing(found))
    return _moves(desk, found, *((f.method, f.ranking) for f in (found, other)))


def side_by_side(desk, found, other):
    """HTML: where two methods lose the evidence of one question, and what each hands over."""
    pair = found, other
    if not (found.steps and other.steps):
        return _view("two methods", _nothing(found))
    fates = [[(r, _stage(desk, f, r)) for r in desks.evidence(desk, f).to_dict("records")] for f in pair]
    rows = [
        [f"turn {row['turn']:.0f}", *(f"{stage}, rank {_rank(r['rank'])}" for r, stage in both)]
        for both in zip(*fates, strict=True)
        for row, _ in both[:1]
    ]
    names = [f.method for f in pair]
    evidence = _table("Where the evidence went", ("evidence", *names), rows) if rows else ""
    texts = "".join(f"<td {LEFT}>{_plain(desks.context(desk, f), f.method)}</td>" for f in pair)
    return _view("two methods", evidence + _halves("What the reader gets", names, texts))


def context(desk, found, copyable=False):
    """HTML: the exact context text; `copyable` puts it in a text field, where Ctrl+A and Ctrl+C take it whole."""
    if not found.steps:
        return _view("context", _nothing(found))
    text, turns = desks.context(desk, found), desks.handed(desk, found)
    spans = _part(desk, found)["turn_context"]["turn_spans"]
    spent = sum(spans[t][1] - spans[t][0] + 1 for t in turns)
    head = f"<p>{len(turns)} turns, {spent:,} of {desk.settings.budget:,} tokens.</p>"
    # Not read-only: JupyterLab would take its keys for commands.
    field = f'<textarea aria-label="context text" spellcheck="false" dir="auto">{html.escape(text)}</textarea>'
    return _view("context", head + (field if copyable else _plain(text, "context text")))


def places(ranking):
    """{chunk index: (rank, score)} of one question's ranking, best first."""
    columns = retrieval.positions(ranking["doc_id"]).tolist(), ranking["rank"].tolist(), ranking["score"].tolist()
    return {index: (rank, score) for index, rank, score in zip(*columns, strict=True)}


def turns_of(part, chunk_index):
    """The turns that a window touches, in words.

    >>> turns_of({"chunks": [{"start_turn": 12, "end_turn": 17}, {"start_turn": 4, "end_turn": 3}]}, 0)
    'turns 12 to 17'
    """
    first, last = (part["chunks"][chunk_index][side] for side in ("start_turn", "end_turn"))
    return "no turn" if first > last else f"turn {first}" if first == last else f"turns {first} to {last}"


# -------------------------------------------------------------------------------------------------------- their pieces


def _view(label, body):
    return f'<section class="rr-view {PLAIN}" aria-label="{label}">{STYLE}{body}</section>'


def _table(caption, heads, rows):
    """A table of plain values, the first of a row its head; a `_Html` is markup already."""
    top = "".join(f'<th scope="col" align="left">{clean(head)}</th>' for head in heads)
    body = "".join(
        f'<tr><th scope="row" {LEFT}>{_cell(first)}</th>{"".join(f"<td {LEFT}>{_cell(c)}</td>" for c in rest)}</tr>'
        for first, *rest in rows
    )
    return f"<table><caption>{clean(caption)}</caption><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>"


class _Html(str):
    """Markup made here, its texts escaped."""


def _cell(value):
    return value if isinstance(value, _Html) else clean(str(value))


def _halves(caption, heads, cells):
    """A table of two columns and one row; `caption` and `cells` are markup."""
    top = "".join(f'<th scope="col" align="left" width="50%">{clean(head)}</th>' for head in heads)
    return (
        f'<table class="rr-halves"><caption>{caption}</caption><thead><tr>{top}</tr></thead>'
        f"<tbody><tr>{cells}</tr></tbody></table>"
    )


def _plain(text, label):
    return f'<pre tabindex="0" dir="auto" aria-label="{clean(label)}">{html.escape(text)}</pre>'


def _between(found):
    start, end = found.dates or (None, None)
    return [f"sessions from {start or 'the first'} to {end or 'the last'}"] if found.dates else []


def _nothing(found):
    return f"<p>No window touches a turn of the {clean(_between(found)[0])}; widen the range of dates.</p>"


def _fate(desk, found, row):
    """Cells of an evidence turn: which, what was said, its ranks and its stage."""
    turn = desks.conversation(desk, found.question.conversation_id).turns[int(row["turn"])]
    who = f"<bdi>{clean(turn.speaker, 60)}</bdi>: " if turn.speaker else ""
    said = f'{who}<bdi dir="auto">{clean(turn.text, 240)}</bdi>'
    name = f"{row['turn']:.0f} (<bdi>{clean(turn.turn_id, 40)}</bdi>)"
    return [_Html(name), _Html(said), _rank(row["pool_rank"]), _rank(row["rank"]), _stage(desk, found, row)]


def _stage(desk, found, row):
    """The stage of an evidence turn; one that the date filter hides was lost to it."""
    if found.dates and not desks.within(desk, found)[int(row["turn"])]:
        return "✗ outside the dates"
    return f"{'✓' if row['stage'] == 'handed over' else '✗'} {row['stage']}"


def _rank(value):
    return str(int(value)) if np.isfinite(value) else "none"


def _moves(desk, found, before, after):
    """SVG of two (name, ranking) pairs; the windows that touch evidence stand out."""
    part, proof = _part(desk, found), _evidence(desk, found)
    holding = frozenset(c["chunk_index"] for c in part["chunks"] if _holds(c, proof))
    old, new = places(before[1]), places(after[1])
    top = desk.settings.top
    return strips.moves(
        old, new, (before[0], after[0]), holding, top, where=lambda i: turns_of(part, i).removeprefix("turns ")
    )


def _holds(chunk, turns):
    return any(chunk["start_turn"] <= t <= chunk["end_turn"] for t in turns)


def _part(desk, found):
    return desks.built(desk, found.question.conversation_id)[found.question.conversation_id]


def _roles(desk, found):
    context = _part(desk, found)["turn_context"]
    return desks.once(desk, ("roles", found.question.conversation_id), lambda: speakers(context))


def _evidence(desk, found):
    return frozenset(int(turn) for turn in desks.evidence(desk, found)["turn"])


def _marks(desk, found, chosen):
    ranking = list(places(found.ranking).items())[: desk.settings.pool] if found.steps else ()
    handed = frozenset(desks.handed(desk, found))
    return strips.Marks(dict(ranking), desk.settings.top, _evidence(desk, found), handed, chosen)
