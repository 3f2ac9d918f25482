"""Scores in seconds: whether the times at which an answer is said are among what is handed over.

A gold range is found when at least half of it lies in the segments handed over. Arms are compared at equal seconds and
not at equal k: five windows of 256 tokens are a quarter of a lecture.
"""

import dataclasses

import numpy as np
import pandas as pd

from rawrag_utils import chunking, lectures, metrics

SECONDS = (60, 180)
CURVE = (15, 30, 45, 60, 90, 120, 180, 240, 300)
FAMILY = "recall@180s"  # the one metric, named beforehand, on which arms are tested
PART_MS = 300_000  # five minutes


def handed_over(times, windows, seconds, extra=0):
    """Turn indices within `seconds`, in the order in which they are handed over.

    `times` holds the (start_ms, end_ms) of every turn, `windows` dicts of `chunking.FIELDS`, best first, with `extra`
    neighbouring turns on both sides. Each turn comes once and costs what it lasts; the first that does not fit ends it.

    >>> times = [(0, 9000), (9000, 20000), (20000, 31000)]
    >>> handed_over(times, [{"start_turn": 1, "end_turn": 1}, {"start_turn": 0, "end_turn": 0}], seconds=20)
    [1, 0]
    """
    turns, spent = _walk(times, windows, extra)
    return turns[: int(np.searchsorted(spent, seconds, side="right"))]


def _walk(times, windows, extra):
    """All turns that `windows` bring, in order, and the seconds handed over with each."""
    turns = [turn for some in chunking.expand(windows, len(times), extra) for turn in some]
    return turns, np.cumsum([times[turn][1] - times[turn][0] for turn in turns]) / 1000


def range_hits(corpus, index, ranking, extra=0):
    """When each gold range is found: a DataFrame `query_id, range, seconds`, a row a range, in the ranking's order.

    `seconds` is what had been handed over when half of the range lay in it, infinite where that never comes. Questions
    without ranges, and those that the ranking does not hold, have no row.
    """
    times = {c.conversation_id: [t.times for t in c.turns] for c in corpus.conversations}
    windows = {c["chunk_id"]: c for part in index.values() for c in part["chunks"]}
    asked = {q.question_id: q for q in corpus.questions}
    rows = []
    for query_id, found in ranking.sort_values("rank", kind="stable").groupby("query_id", sort=False):
        known = times[asked[query_id].conversation_id]
        turns, spent = _walk(known, [windows[d] for d in found["doc_id"]], extra)
        for place, gold in enumerate(asked[query_id].ranges):
            rows.append((query_id, place, _found_at(gold, [known[t] for t in turns], spent)))
    return pd.DataFrame(rows, columns=["query_id", "range", "seconds"])


def _found_at(gold, given, spent):
    held = []
    for times, seconds in zip(given, spent, strict=True):
        if lectures.overlap([times], [gold]):
            held.append(times)
            if 2 * lectures.overlap(held, [gold]) >= gold[1] - gold[0]:
                return float(seconds)
    return float("inf")


def range_recall(hits, seconds=SECONDS):
    """Share of each question's gold ranges that are found: a row a question, a column `recall@Ss` for each budget.

    >>> hits = pd.DataFrame({"query_id": ["q", "q"], "range": [0, 1], "seconds": [61.5, float("inf")]})
    >>> range_recall(hits).loc["q"].to_dict()
    {'recall@60s': 0.0, 'recall@180s': 0.5}
    """
    found = pd.DataFrame({f"recall@{s}s": (hits["seconds"] <= s).astype(float) for s in seconds})
    return found.groupby(hits["query_id"], sort=False).mean()


def curves(corpus, hits, seconds=CURVE):
    """{conversation_id: {arm: mean recall at each of `seconds`}} for a dict of arm to its `range_hits`."""
    about = {q.question_id: q.conversation_id for q in corpus.questions}
    found = {name: range_recall(some, seconds) for name, some in hits.items()}
    return {
        c.conversation_id: {
            name: table[table.index.map(about) == c.conversation_id].mean().tolist() for name, table in found.items()
        }
        for c in corpus.conversations
    }


def summarise(arms, corpus, names, baselines):
    """Tidy result rows as `metrics.summarise` gives them, by type of question, by lecture, and over all."""
    by_type = metrics.summarise(arms, by_part(corpus), names, baselines, FAMILY)
    lectures_only = metrics.summarise(arms, by_part(by_lecture(corpus)), names, baselines, FAMILY)
    return pd.concat([by_type, lectures_only[lectures_only["category"] != "all"]], ignore_index=True)


def by_part(corpus):
    """`corpus` whose questions belong to parts of lectures instead of lectures, for intervals.

    With five lectures or more it is returned as it is: lectures are drawn, and their questions are not independent.
    With fewer no interval over lectures exists. Then a question belongs to the five minutes in which its first range
    begins, and an interval over such parts speaks of other questions about the same lectures, not of other lectures.
    """
    if len(corpus.conversations) >= metrics.MIN_CLUSTERS:
        return corpus
    moved = [
        dataclasses.replace(q, conversation_id=f"{q.conversation_id}/{q.ranges[0][0] // PART_MS}") if q.ranges else q
        for q in corpus.questions
    ]
    return dataclasses.replace(corpus, questions=moved)


def by_lecture(corpus):
    """`corpus` whose questions have their lecture as category, for tables with a row for each."""
    about = [dataclasses.replace(q, category=q.conversation_id) for q in corpus.questions]
    return dataclasses.replace(corpus, questions=about)
