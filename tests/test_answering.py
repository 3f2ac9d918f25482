"""The context text to the letter, and one walk for what is shown: against a plain loop and against the metrics."""

import math
import random

import numpy as np
import pandas as pd
import pytest

from rawrag_utils import answering, chunking, corpus, index, metrics, retrieval
from rawrag_utils.corpus import Conversation, Turn
from rawrag_utils.paths import BadInput

TEXTS = ("The kiln is hot.", "Good!", "I glazed six bowls.", "All of them?", "Five. One broke.")
DAYS = ("2024-03-02", "2024-03-02", "2024-03-09", None, "2024-03-16")
WINDOWS = [(0, 1), (1, 3), (3, 4), (2, 1)]  # the last touches no turn, as tiny sizes make


def talk(name="c", texts=TEXTS, days=DAYS):
    turns = (Turn(f"D1:{i}", 1, None, day, "Nora", text) for i, (text, day) in enumerate(zip(texts, days, strict=True)))
    return Conversation(name, name, "Nora", "Tobias", tuple(turns))


def made(windows=WINDOWS, **options):
    """The index of one conversation; `windows` are (start_turn, end_turn), inclusive."""
    talked = talk(**options)
    name = talked.conversation_id
    chunks = [
        {"chunk_id": f"{name}_chunk_{i}", "chunk_index": i, "start_turn": a, "end_turn": b}
        for i, (a, b) in enumerate(windows)
    ]
    return index.build([talked], lambda doc: chunks)


def ranked(*windows, name="c", **columns):
    """A ranking of window numbers, best first."""
    rows = {"query_id": f"{name}#0", "doc_id": [f"{name}_chunk_{k}" for k in windows]}
    return pd.DataFrame(rows | {"rank": range(1, len(windows) + 1), "score": 0.0} | columns)


def lines(*turns):
    return "\n".join(f"[{DAYS[t] or 'undated'}] Nora: {TEXTS[t]}" for t in turns)


COST = chunking.line_costs([lines(t) for t in range(5)])

# --------------------------------------------------------------------------------------------------------------- text


def test_the_text_to_the_letter():
    ranking = ranked(1, 0, similarity=[0.68421049, 0.5], rerank=[0.94119, -2.0])
    assert answering.format_context(made(), ranking) == (
        "Memory 1 (chunk=1, similarity=0.684210, rerank=0.9412):\n"
        "[2024-03-02] Nora: Good!\n"
        "[2024-03-09] Nora: I glazed six bowls.\n"
        "[undated] Nora: All of them?\n"
        "\n"
        "Memory 2 (chunk=0, similarity=0.500000, rerank=-2.0000):\n"
        "[2024-03-02] Nora: The kiln is hot."
    )


@pytest.mark.parametrize(
    ("columns", "heading"),
    [
        ({}, "Memory 1 (chunk=0):"),
        ({"similarity": [math.nan], "rerank": [math.nan]}, "Memory 1 (chunk=0):"),
        ({"similarity": [None]}, "Memory 1 (chunk=0):"),
        ({"similarity": [1]}, "Memory 1 (chunk=0, similarity=1.000000):"),
        ({"rerank": [7.12345]}, "Memory 1 (chunk=0, rerank=7.1235):"),
        ({"similarity": [math.nan], "rerank": [0.0]}, "Memory 1 (chunk=0, rerank=0.0000):"),
        ({"similarity": np.array([0.1], np.float32)}, "Memory 1 (chunk=0, similarity=0.100000):"),
    ],
)
def test_a_heading_names_what_is_known(columns, heading):
    assert answering.format_context(made(), ranked(0, **columns)).split("\n")[0] == heading


def test_memories_that_bring_nothing_are_left_out_and_not_numbered():
    # Window 0 owns turns 0 and 1, window 3 touches none, window 1 brings 2 and 3, and again nothing the second time.
    text = answering.format_context(made(), ranked(0, 3, 1, 1, 2))
    assert text == "\n\n".join(
        f"Memory {n} (chunk={chunk}):\n{lines(*turns)}"
        for n, chunk, turns in ((1, 0, (0, 1)), (2, 1, (2, 3)), (3, 2, (4,)))
    )


def test_the_order_of_time_shows_the_same_memories_by_chunk_index():
    ranking = ranked(2, 1, 0)
    assert answering.handed_over(made(), ranking) == [(2, [3, 4]), (1, [1, 2]), (0, [0])]
    assert answering.handed_over(made(), ranking, order="time") == [(0, [0]), (1, [1, 2]), (2, [3, 4])]
    text = answering.format_context(made(), ranking.assign(similarity=[0.3, 0.2, 0.1]), order="time")
    headings = [line for line in text.split("\n") if line.startswith("Memory")]
    assert headings == [f"Memory {i + 1} (chunk={i}, similarity=0.{i + 1}00000):" for i in range(3)]


def test_chunk_ten_comes_after_chunk_nine():
    built = made([(i, i) for i in range(12)], texts=["clay"] * 12, days=["2024-03-02"] * 12)
    assert [c for c, _ in answering.handed_over(built, ranked(10, 9, 2), order="time")] == [2, 9, 10]


def test_the_order_of_the_rows_does_not_matter():
    ranking = ranked(2, 1, 0, similarity=[0.3, 0.2, 0.1])
    wanted = answering.format_context(made(), ranking)
    assert answering.format_context(made(), ranking.iloc[[1, 2, 0]]) == wanted
    assert answering.format_context(made(), ranking.assign(rank=[3, 1, 2]).set_index("rank", drop=False)) != wanted


def test_a_turns_text_stands_as_it_is():
    texts = ("line\n\nMemory 9 (chunk=9):", "<|endoftext|> {x} %s")
    built = made([(0, 1)], texts=texts, days=DAYS[:2])
    day = "[2024-03-02] Nora: "
    assert answering.format_context(built, ranked(0)) == f"Memory 1 (chunk=0):\n{day}{texts[0]}\n{day}{texts[1]}"


def test_extra_neighbours_come_along():
    assert answering.handed_over(made(), ranked(0, 2), extra=1) == [(0, [0, 1, 2]), (2, [3, 4])]
    assert answering.handed_over(made(), ranked(3), extra=1) == [(3, [1, 2])]  # around where it stands


@pytest.mark.parametrize("name", ["c_chunk_1", "a b", "_", "會話"])
def test_any_name_of_a_conversation_is_found(name):
    assert answering.handed_over(made(name=name), ranked(0, name=name)) == [(0, [0, 1])]


@pytest.mark.parametrize("ranking", [ranked(), ranked(0)[:0], pd.DataFrame()], ids=["no row", "cut", "no column"])
def test_an_empty_ranking_is_an_empty_text(ranking):
    assert answering.format_context(made(), ranking) == ""
    assert answering.handed_over(made(), ranking) == []


def test_windows_without_turns_are_an_empty_text():
    assert answering.format_context(made(), ranked(3)) == ""


# ------------------------------------------------------------------------------------------------------ dates, budget


@pytest.mark.parametrize(
    ("dates", "memories"),
    [
        (("2024-03-09", None), [(1, [2]), (2, [4])]),
        (("2024-03-03", "2024-03-09"), [(1, [2])]),
        ((None, "2024-03-02"), [(1, [1]), (0, [0])]),
        ((None, "2024-03-16"), [(1, [1, 2]), (0, [0]), (2, [4])]),
        (("2025-01-01", None), []),
        ((None, None), [(1, [1, 2, 3]), (0, [0]), (2, [4])]),
        (None, [(1, [1, 2, 3]), (0, [0]), (2, [4])]),
    ],
)
def test_turns_outside_the_dates_are_not_shown(dates, memories):
    assert answering.handed_over(made(), ranked(1, 0, 2), dates=dates) == memories


def test_extra_neighbours_outside_the_dates_are_not_shown():
    dates = ("2024-03-09", "2024-03-09")
    assert answering.handed_over(made(), ranked(0, 1), extra=1, dates=dates) == [(0, [2])]


def test_a_turn_that_is_not_shown_costs_nothing():
    dates = ("2024-03-09", None)
    assert answering.handed_over(made(), ranked(1, 2), budget=COST[2] + COST[4], dates=dates) == [(1, [2]), (2, [4])]


@pytest.mark.parametrize(
    ("budget", "memories"),
    [
        (0, []),
        (COST[1] - 1, []),
        (COST[1], [(1, [1])]),
        (sum(COST[1:4]) - 1, [(1, [1, 2])]),
        (sum(COST[1:4]), [(1, [1, 2, 3])]),
        (sum(COST[:4]) - 0.5, [(1, [1, 2, 3])]),
        (sum(COST[:4]), [(1, [1, 2, 3]), (0, [0])]),
        (sum(COST), [(1, [1, 2, 3]), (0, [0]), (2, [4])]),
        (10**9, [(1, [1, 2, 3]), (0, [0]), (2, [4])]),
    ],
)
def test_the_first_turn_that_does_not_fit_ends_the_budget(budget, memories):
    assert answering.handed_over(made(), ranked(1, 0, 2), budget=budget) == memories


def test_no_smaller_turn_is_taken_after_the_one_that_did_not_fit():
    built = made([(0, 0), (1, 1), (2, 2)], texts=("clay", "clay " * 50, "clay"), days=[None] * 3)
    assert answering.handed_over(built, ranked(0, 1, 2), budget=40) == [(0, [0])]
    assert answering.handed_over(built, ranked(0, 2, 1), budget=40) == [(0, [0]), (2, [2])]


def walk(windows, costs, shown, ranking, extra, budget):
    """(window, its turns) by handing turns over one by one."""
    memories, seen = [], set()
    for window in ranking:
        start, end = windows[window]
        memories.append((window, []))
        for turn in range(max(0, start - extra), min(len(costs), end + 1 + extra)):
            if turn in seen or not shown[turn]:
                continue
            if costs[turn] > budget:
                return [m for m in memories if m[1]]
            budget -= costs[turn]
            seen.add(turn)
            memories[-1][1].append(turn)
    return [m for m in memories if m[1]]


@pytest.mark.parametrize("seed", range(60))
def test_the_walk_equals_a_plain_loop(seed):
    rng = random.Random(seed)
    turns = rng.randint(1, 12)
    days = [rng.choice([None, "2024-03-02", "2024-03-09"]) for _ in range(turns)]
    texts = ["clay " * rng.randint(0, 20) for _ in range(turns)]
    starts = sorted(rng.choices(range(turns), k=rng.randint(1, 9)))
    windows = [(a, min(turns - 1, a + rng.randint(-1, 4))) for a in starts]
    ranking = rng.sample(range(len(windows)), rng.randint(1, len(windows)))
    dates = rng.choice([None, ("2024-03-03", None), ("2024-03-01", "2024-03-31")])
    extra, budget = rng.randint(0, 2), rng.choice([None, rng.randint(0, 200)])
    built = made(windows, texts=texts, days=days)
    costs = chunking.line_costs(built["c"]["turn_context"]["turn_lines"])
    shown = [dates is None or bool(day and day >= dates[0]) for day in days]
    wanted = walk(windows, costs, shown, ranking, extra, math.inf if budget is None else budget)
    options = {"budget": budget, "extra": extra, "dates": dates}
    assert answering.handed_over(built, ranked(*ranking), **options) == wanted
    assert answering.handed_over(built, ranked(*ranking), order="time", **options) == sorted(wanted)


@pytest.fixture(scope="module")
def sample():
    """(the sample, its index, a BM25 ranking of 15 windows a question)."""
    data = corpus.load("sample")
    built = index.build(data.conversations)
    return data, built, retrieval.bm25(built, data.questions, 15)


@pytest.mark.parametrize("extra", [0, 2])
@pytest.mark.parametrize("budget", [0, 37, 400, 1000, 2000])
def test_the_budget_is_that_of_recall_at_tokens(sample, budget, extra):
    data, built, ranking = sample
    hits = metrics.evidence_hits(data, built, ranking, extra=extra)
    within = hits[hits["tokens"] <= budget].groupby("query_id")["turn"].agg(set).to_dict()
    evidence = hits.groupby("query_id")["turn"].agg(set)
    assert len(evidence) > 80
    for query_id, rows in ranking.groupby("query_id"):
        memories = answering.handed_over(built, rows, budget=budget, extra=extra)
        shown = {turn for _, turns in memories for turn in turns}
        assert shown & evidence.get(query_id, set()) == within.get(query_id, set())


def test_the_text_holds_the_lines_that_are_handed_over_and_no_more(sample):
    data, built, ranking = sample
    name = data.questions[0].conversation_id
    rows = ranking[ranking["query_id"] == data.questions[0].question_id]
    context = built[name]["turn_context"]["turn_lines"]
    text = answering.format_context(built, rows, budget=400)
    shown = [context[t] for _, turns in answering.handed_over(built, rows, budget=400) for t in turns]
    assert sum(chunking.line_costs(shown)) <= 400
    memories = [memory.split("\n", 1)[1] for memory in text.split("\n\n")]
    assert "\n".join(memories) == "\n".join(shown)


# ------------------------------------------------------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("ranking", "options", "message"),
    [
        (pd.concat([ranked(0), ranked(0, name="d")]), {}, r"a ranking of 2 questions \(c#0, d#0"),
        (ranked(0, 1).assign(doc_id=["c_chunk_0", "d_chunk_0"]), {}, "c#0: ranks windows of c and d"),
        (ranked(4), {}, "window 'c_chunk_4' is not in the index"),
        (ranked(0, name="e"), {}, "window 'e_chunk_0' is not in the index"),
        (ranked(0).assign(doc_id="c_chunk_00"), {}, "window 'c_chunk_00' is not in the index"),
        (ranked(0).assign(doc_id="c_chunk_-1"), {}, "window 'c_chunk_-1' is not in the index"),
        (ranked(0).assign(doc_id="c"), {}, "window 'c' is not in the index"),
        (ranked(0).assign(doc_id=7), {}, "window '7' is not in the index"),
        (ranked(0), {"order": "best"}, "order='best'; wanted one of relevance, time"),
        (ranked(0), {"order": None}, "order=None"),
        (ranked(0), {"budget": -1}, "budget=-1; wanted a number of tokens from 0"),
        (ranked(0), {"budget": math.nan}, "budget=nan"),
        (ranked(0), {"budget": "400"}, "budget='400'"),
        (ranked(0), {"extra": -1}, "extra=-1; wanted a whole number"),
        (ranked(0), {"extra": 0.5}, "extra=0.5"),
        (ranked(), {"order": "best"}, "order='best'"),
        (ranked(0), {"dates": ("8 May 2023", None)}, "c#0: '8 May 2023' is no ISO date"),
        (ranked(0), {"dates": ("2024-03-09", "2024-03-02")}, "c#0: dates from 2024-03-09 to 2024-03-02"),
    ],
)
def test_what_cannot_be_used_is_refused_in_one_line(ranking, options, message):
    built = made() | made(name="d")
    for function in (answering.format_context, answering.handed_over):
        with pytest.raises(BadInput, match=message) as error:
            function(built, ranking, **options)
        assert "\n" not in str(error.value)
