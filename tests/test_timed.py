"""Scores in seconds: what is handed over, when a gold range is found, clusters for intervals."""

import dataclasses
import math

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rawrag_utils import chunking, index, lectures, timed
from rawrag_utils.corpus import Conversation, Corpus, Question, Turn


def talk(times, name="talk"):
    turns = (Turn(f"S{i + 1}", 1, None, None, "", f"word{i}", times=t) for i, t in enumerate(times))
    return Conversation(name, name, "", "", tuple(turns))


def asked(*ranges, name="talk", number=0, kind="factual"):
    return Question(f"{name}#{number}", name, "What?", None, kind, (), (), ranges=ranges)


def corpus_of(times, *questions):
    return Corpus("c", "c", "0", [talk(times)], list(questions), [])


def ranking(*windows, query="talk#0"):
    rows = [(query, f"talk_chunk_{w}", rank, -rank) for rank, w in enumerate(windows, 1)]
    return pd.DataFrame(rows, columns=["query_id", "doc_id", "rank", "score"])


TEN = [(10_000 * i, 10_000 * i + 10_000) for i in range(6)]
SEGMENTS = index.build([talk(TEN)], chunking.turn_windows)


def hits(question, *windows, extra=0, times=TEN):
    return timed.range_hits(corpus_of(times, question), SEGMENTS, ranking(*windows), extra)["seconds"].tolist()


def test_segments_are_handed_over_until_one_does_not_fit():
    windows = [SEGMENTS["talk"]["chunks"][i] for i in (4, 0, 2)]
    assert timed.handed_over(TEN, windows, 30) == [4, 0, 2]
    assert timed.handed_over(TEN, windows, 29.999) == [4, 0]
    assert timed.handed_over(TEN, windows, 9) == [] == timed.handed_over(TEN, [], 60)
    assert timed.handed_over(TEN, windows, 60, extra=1) == [3, 4, 5, 0, 1, 2]  # each once
    longer = [TEN[0], (10_000, 90_000), TEN[2]]
    windows = [{"start_turn": i, "end_turn": i} for i in (1, 0, 2)]
    assert timed.handed_over(longer, windows, 60) == []  # what does not fit ends it, though later ones would fit


def test_a_range_is_found_when_half_of_it_is_handed_over():
    assert hits(asked((0, 20_000)), 3, 0) == [20.0]  # half of it exactly
    assert hits(asked((0, 20_002)), 3, 0) == [math.inf]
    assert hits(asked((0, 30_000)), 0, 1) == [20.0]  # two pieces make a half
    assert hits(asked((0, 10_000), (50_000, 60_000)), 5, 2) == [math.inf, 10.0]
    assert hits(asked((52_000, 53_000)), 3, extra=1) == [math.inf]
    assert hits(asked((42_000, 43_000)), 3, extra=1) == [30.0]


def test_overlapping_segments_count_once_for_a_range():
    twice = [(0, 4_000), (1_000, 4_000), *TEN[2:]]
    assert hits(asked((0, 10_000)), 0, 1, times=twice) == [math.inf]  # 4 of 10 seconds, though 7 were handed over


def test_recall_is_the_share_of_ranges_within_the_budget():
    found = pd.DataFrame({"query_id": ["b", "b", "a"], "range": [0, 1, 0], "seconds": [60.0, 180.1, math.inf]})
    recalls = timed.range_recall(found)
    assert recalls.index.tolist() == ["b", "a"]
    assert recalls.loc["b"].to_dict() == {"recall@60s": 0.5, "recall@180s": 0.5}
    assert recalls.loc["a"].to_dict() == {"recall@60s": 0.0, "recall@180s": 0.0}
    assert timed.range_recall(found, [200]).loc["b"].tolist() == [1.0]


def test_questions_without_ranges_have_no_row():
    assert timed.range_hits(corpus_of(TEN, asked()), SEGMENTS, ranking(0)).empty


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 500), st.integers(1, 90)), min_size=1, max_size=8),
    st.tuples(st.integers(0, 400), st.integers(1, 300)),
    st.integers(1, 400),
    st.integers(0, 2),
    st.randoms(),
)
def test_recall_agrees_with_what_is_handed_over(spans, gold, seconds, extra, random):
    """Two ways to the same answer: the budget of the hits, and the turns that `handed_over` names."""
    times = sorted((1000 * a, 1000 * (a + b)) for a, b in spans)
    order = random.sample(range(len(times)), len(times))
    question = asked((1000 * gold[0], 1000 * (gold[0] + gold[1])))
    built = index.build([talk(times)], chunking.turn_windows)
    found = timed.range_hits(corpus_of(times, question), built, ranking(*order), extra)["seconds"][0]
    given_turns = timed.handed_over(times, [built["talk"]["chunks"][i] for i in order], seconds, extra)
    covered = lectures.overlap([times[t] for t in given_turns], question.ranges)
    assert (found <= seconds) == (2 * covered >= 1000 * gold[1])


def test_parts_of_lectures_are_clusters_where_lectures_are_too_few():
    questions = [asked((a, a + 1000), number=i) for i, a in enumerate((0, 299_999, 300_000))]
    moved = timed.by_part(corpus_of(TEN, *questions, asked(number=9)))
    assert [q.conversation_id for q in moved.questions] == ["talk/0", "talk/0", "talk/1", "talk"]
    many = dataclasses.replace(corpus_of(TEN, *questions), conversations=[talk(TEN, f"t{i}") for i in range(5)])
    assert timed.by_part(many) is many


def test_result_rows_by_type_by_lecture_and_over_all():
    kinds = ["factual", "conceptual"] * 3
    questions = [asked((300_000 * i, 300_000 * i + 9), number=i, kind=kind) for i, kind in enumerate(kinds)]
    names = [q.question_id for q in questions]
    arms = {
        "a": pd.DataFrame({"recall@180s": [1.0, 0, 1, 0, 1, 0]}, names),
        "b": pd.DataFrame({"recall@180s": [1.0, 1, 1, 0, 1, 1]}, names),
    }
    table = timed.summarise(arms, corpus_of(TEN, *questions), ["recall@180s"], {"b": "a"})
    rows = table.set_index(["variant", "category"])
    assert rows.index.tolist() == [(v, c) for v in "ab" for c in ("factual", "conceptual", "all")] + [
        ("a", "talk"),
        ("b", "talk"),
    ]
    assert rows.loc[("b", "talk"), ["value", "delta", "n"]].tolist() == pytest.approx([5 / 6, 2 / 6, 6])
    assert rows.loc[("b", "all"), "p_value"] > 0.05 and pd.isna(rows.loc[("b", "talk"), "p_value"])
    assert rows.loc[("b", "all"), "ci_low"] < 5 / 6  # six parts: there is an interval


def test_curves_have_a_line_for_each_arm_and_lecture():
    data = corpus_of(TEN, asked((0, 10_000)), asked((20_000, 30_000), number=1))
    both = pd.concat([ranking(0), ranking(1, 2, query="talk#1")])
    curves = timed.curves(data, {"arm": timed.range_hits(data, SEGMENTS, both)}, [5, 10, 20])
    assert curves == {"talk": {"arm": [0.0, 0.5, 1.0]}}
