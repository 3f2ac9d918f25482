"""What the reader LLM sees: the memories that a ranking hands over, as whole turns, and the context text made of them.

Windows are searched, turns are read. One walk decides what is handed over, `handed_over`; the text prints it. Under a
budget it stops where `recall@Btok` of `metrics` stops.
"""

import numbers

import numpy as np
import pandas as pd

from rawrag_utils import chunking, retrieval
from rawrag_utils.paths import BadInput

ORDERS = ("relevance", "time")


def format_context(index, ranking, order="relevance", budget=None, extra=0, dates=None):
    """The context text for one question's `ranking`: memories, numbered from 1, with whole turns, one a line.

    A heading gives the window's chunk index and, where the ranking knows them, its similarity (six decimals) and the
    reranker's score (four). Arguments and errors are those of `handed_over`. Nothing to show is an empty text.

    >>> from rawrag_utils.corpus import Conversation, Turn
    >>> from rawrag_utils.index import build
    >>> day = "2024-03-02"
    >>> turns = (Turn("D1:1", 1, None, day, "Nora", "The kiln is hot."), Turn("D1:2", 1, None, day, "Tobias", "Good!"))
    >>> built = build([Conversation("c", "c", "Nora", "Tobias", turns)], chunking.turn_windows)
    >>> rows = {"query_id": "c#0", "doc_id": ["c_chunk_1", "c_chunk_0"], "rank": [1, 2], "similarity": [0.5, None]}
    >>> print(format_context(built, pd.DataFrame(rows)).replace("\\n\\n", "\\n-\\n"))
    Memory 1 (chunk=1, similarity=0.500000):
    [2024-03-02] Tobias: Good!
    -
    Memory 2 (chunk=0):
    [2024-03-02] Nora: The kiln is hot.
    """
    memories = handed_over(index, ranking, order, budget, extra, dates)
    if not memories:
        return ""
    part, chunks, rows = _look_up(index, ranking)
    lines = part["turn_context"]["turn_lines"]
    headings = {}
    for chunk, row in zip(chunks, rows, strict=True):
        headings.setdefault(chunk["chunk_index"], _heading(chunk, row))  # the best rank's, should a window stand twice
    texts = ("\n".join([headings[c], *(lines[t] for t in turns)]) for c, turns in memories)
    return "\n\n".join(f"Memory {number} {text}" for number, text in enumerate(texts, 1))


def handed_over(index, ranking, order="relevance", budget=None, extra=0, dates=None):
    """What the reader gets for one question's `ranking`: a list of (chunk index of the window, its turn indices).

    `index` is the index (a dict of conversations) whose windows the ranking ranks. Every touched turn comes whole and
    once, in its best window, with `extra` neighbours on both sides; windows that bring no turn are left out. `order` is
    `relevance` (best window first) or `time` (by chunk index; the best window still owns a turn). `budget`, in cl100k
    tokens, ends the walk down the ranking before the first turn that does not fit: each costs its line and 1, headings
    are not counted. `dates` = (from, to) leaves out turns whose session date is not within, see
    `retrieval.turns_between`. Raises `BadInput` for rows of several questions or conversations, a window that the index
    does not hold, an unknown order, a budget or extra below 0, and bad dates.

    >>> chunks = [{"chunk_id": f"c_chunk_{i}", "chunk_index": i, "start_turn": i, "end_turn": i + 1} for i in range(2)]
    >>> context = {"turn_lines": ["a", "b", "c"], "turn_spans": [(0, 9), (10, 19), (20, 29)]}
    >>> index = {"c": {"chunks": chunks, "turn_context": context | {"turn_session_dates": [None] * 3}}}
    >>> ranking = pd.DataFrame({"query_id": "c#0", "doc_id": ["c_chunk_1", "c_chunk_0"], "rank": [1, 2]})
    >>> handed_over(index, ranking), handed_over(index, ranking, order="time", budget=29)
    ([(1, [1, 2]), (0, [0])], [(1, [1, 2])])
    """
    _check_options(order, budget, extra)
    if not len(ranking):
        return []
    part, chunks, _ = _look_up(index, ranking)
    shown = retrieval.turns_between(part, dates, ranking["query_id"].iloc[0])
    turns = chunking.expand(chunks, len(shown), extra)
    memories = [(c["chunk_index"], [t for t in brought if shown[t]]) for c, brought in zip(chunks, turns, strict=True)]
    if budget is not None:
        memories = _within(memories, part["turn_context"]["turn_spans"], budget)
    memories = [memory for memory in memories if memory[1]]
    return sorted(memories) if order == "time" else memories


def _within(memories, spans, budget):
    """The memories up to the first turn that exceeds the budget, which may end within a memory."""
    kept = []
    for chunk_index, turns in memories:
        costs = np.array([spans[t][1] - spans[t][0] + 1 for t in turns], int)
        fits = int(np.searchsorted(np.cumsum(costs), budget, side="right"))
        kept.append((chunk_index, turns[:fits]))
        if fits < len(turns):
            break
        budget -= int(costs.sum())
    return kept


def _heading(chunk, row):
    facts = [f"chunk={chunk['chunk_index']}"]
    facts += [
        f"{name}={row[name]:.{decimals}f}"
        for name, decimals in (("similarity", 6), ("rerank", 4))
        if not pd.isna(row.get(name))
    ]
    return f"({', '.join(facts)}):"


def _look_up(index, ranking):
    """(the conversation's index object, its ranked chunks, their rows as dicts), best first."""
    if len(asked := ranking["query_id"].unique()) > 1:
        raise BadInput(f"a ranking of {len(asked)} questions ({asked[0]}, {asked[1]}, ...); wanted one question's rows")
    rows = ranking.iloc[np.argsort(ranking["rank"].to_numpy(), kind="stable")].to_dict("records")
    chunks = [_chunk(index, str(row["doc_id"])) for row in rows]
    names = list(dict.fromkeys(name for name, _ in chunks))
    if len(names) > 1:
        raise BadInput(f"{asked[0]}: ranks windows of {names[0]} and {names[1]}; wanted those of one conversation")
    return index[names[0]], [chunk for _, chunk in chunks], rows


def _chunk(index, doc_id):
    """(conversation, chunk) of a doc_id, `<conversation>_chunk_<index>`."""
    name, _, position = doc_id.rpartition("_chunk_")
    chunks = index[name]["chunks"] if name in index else []
    place = int(position) if position.isdecimal() else len(chunks)
    if place >= len(chunks) or chunks[place]["chunk_id"] != doc_id:
        raise BadInput(f"window {doc_id!r:.80} is not in the index; give the index that was searched")
    return name, chunks[place]


def _check_options(order, budget, extra):
    if order not in ORDERS:
        raise BadInput(f"order={order!r:.60}; wanted one of {', '.join(ORDERS)}")
    if budget is not None and not (isinstance(budget, numbers.Real) and budget >= 0):  # NaN is not >= 0 either
        raise BadInput(f"budget={budget!r:.60}; wanted a number of tokens from 0, or None for no limit")
    if not (isinstance(extra, numbers.Integral) and extra >= 0):
        raise BadInput(f"extra={extra!r:.60}; wanted a whole number of neighbouring turns from 0")
