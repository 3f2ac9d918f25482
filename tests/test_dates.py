"""The date filter before ranking: which windows are candidates, what stays of the whole conversation, empty pools."""

import datetime
import random

import numpy as np
import pandas as pd
import pytest

from rawrag_utils import chunking, corpus, index, retrieval
from rawrag_utils.corpus import Conversation, Question, Turn
from rawrag_utils.paths import BadInput

DAYS = ("2024-03-02", "2024-03-02", "2024-03-09", None, "2024-03-16")
TEXTS = ("kiln kiln", "glaze", "kiln", "kiln clay", "clay")


def talk(name="c", days=DAYS, texts=TEXTS):
    turns = (Turn(f"D1:{i}", 1, None, day, "Nora", text) for i, (day, text) in enumerate(zip(days, texts, strict=True)))
    return Conversation(name, name, "Nora", "Tobias", tuple(turns))


def ask(*pairs):
    """Questions from (conversation, text) pairs."""
    return [Question(f"{name}#{i}", name, text, None, "temporal", (), ()) for i, (name, text) in enumerate(pairs)]


def rankers(*talks, cut=chunking.turn_windows):
    """{name: function of questions, top, dates} for dense and BM25 over one index, and that index."""
    rng = np.random.default_rng(0)
    bare = index.build(talks, cut, dates=False)
    built = index.with_vectors(bare, rng.normal(size=(len(index.contents(bare)), 8)).astype(np.float32))

    def dense(questions, top=None, dates=None):
        vectors = np.random.default_rng(1).normal(size=(len(questions), 8))
        return retrieval.dense(built, questions, vectors, top, dates)

    return {"dense": dense, "bm25": lambda *a, **b: retrieval.bm25(built, *a, **b)}, built


@pytest.fixture(params=["dense", "bm25"])
def rank(request):
    return lambda *talks, **options: rankers(*talks, **options)[0][request.param]


def windows(ranking, query_id="c#0"):
    return {int(d.rsplit("_", 1)[1]) for d in ranking.loc[ranking["query_id"] == query_id, "doc_id"]}


RANGES = [
    (("2024-03-02", "2024-03-02"), {0, 1}),  # both ends belong to the range
    (("2024-03-03", "2024-03-15"), {2}),
    (("2024-03-09", None), {2, 4}),
    ((None, "2024-03-09"), {0, 1, 2}),
    (["2024-03-10", "2024-03-31"], {4}),  # as JSON has pairs
    ((datetime.date(2024, 3, 16), None), {4}),  # as YAML reads dates
    (("20240316", None), {4}),  # ISO, too
    (("0001-01-01", "9999-12-31"), {0, 1, 2, 4}),  # undated turns are in no range
    (("2024-03-10", "2024-03-15"), set()),
    ((None, None), {0, 1, 2, 3, 4}),  # no side: no filter
    (None, {0, 1, 2, 3, 4}),
]


@pytest.mark.parametrize(("between", "left"), RANGES)
def test_windows_with_a_turn_in_the_range_are_ranked(rank, between, left):
    ranking = rank(talk())(ask(("c", "kiln")), dates={"c#0": between})
    assert windows(ranking) == left
    assert ranking["rank"].tolist() == list(range(1, len(left) + 1))


def test_what_is_left_keeps_scores_and_order_of_the_whole_conversation(rank):
    # Idf of the candidates alone would differ: "kiln" stands in three of five turns, in one of these two.
    questions = ask(("c", "kiln clay"), ("c", "glaze"))
    whole = rank(talk())(questions)
    filtered = rank(talk())(questions, dates={q.question_id: ("2024-03-09", None) for q in questions})
    kept = whole[whole["doc_id"].isin(["c_chunk_2", "c_chunk_4"])]
    wanted = kept.assign(rank=kept.groupby("query_id").cumcount() + 1).reset_index(drop=True)
    pd.testing.assert_frame_equal(filtered, wanted, check_exact=True)


def test_only_questions_with_dates_are_filtered(rank):
    questions = ask(("c", "kiln"), ("d", "kiln"), ("c", "kiln"))
    ranking = rank(talk(), talk("d"))(questions, dates={"c#2": ("2024-03-16", None), "elsewhere#0": ("?", "?")})
    assert ranking["query_id"].value_counts().to_dict() == {"c#0": 5, "d#1": 5, "c#2": 1}
    assert list(dict.fromkeys(ranking["query_id"])) == ["c#0", "d#1", "c#2"]


def test_no_dates_is_no_filter(rank):
    questions = ask(("c", "kiln"))
    pd.testing.assert_frame_equal(rank(talk())(questions, dates={}), rank(talk())(questions), check_exact=True)


@pytest.mark.parametrize("top", [1, 2, 3, 99])
def test_the_cut_comes_after_the_filter(rank, top):
    questions, dates = ask(("c", "glaze clay")), {"c#0": (None, "2024-03-09")}
    whole, cut = rank(talk())(questions, dates=dates), rank(talk())(questions, top, dates=dates)
    pd.testing.assert_frame_equal(cut, whole[:top])


def test_one_touched_turn_is_enough(rank):
    def cut(doc):
        return chunking.turn_windows(doc, before=1, after=1)

    # Window i touches turns i - 1 to i + 1: those around turn 2.
    assert windows(rank(talk(), cut=cut)(ask(("c", "kiln")), dates={"c#0": ("2024-03-09", "2024-03-09")})) == {1, 2, 3}


def test_a_window_that_touches_no_turn_is_a_candidate_only_without_a_filter(rank):
    def cut(doc):
        first, *others = chunking.turn_windows(doc)
        return [{**first, "end_turn": -1}, *others]

    search = rank(talk(), cut=cut)
    assert windows(search(ask(("c", "kiln")), dates={"c#0": ("2024-03-02", "2024-03-02")})) == {1}
    assert windows(search(ask(("c", "kiln")))) == windows(search(ask(("c", "kiln")), dates={"c#0": (None, None)}))


def test_an_empty_pool_leaves_no_row_and_is_listed(rank):
    questions = ask(("c", "kiln"), ("d", "kiln"), ("c", "glaze"), ("u", "clay"))
    talks = talk(), talk("d"), talk("u", days=[None] * 5)
    years = ("2023-01-01", "2023-12-31")
    dates = {"c#0": years, "d#1": ("2024-03-09", None), "u#3": ("2024-01-01", None)}
    ranking = rank(*talks)(questions, dates=dates)
    assert list(dict.fromkeys(ranking["query_id"])) == ["d#1", "c#2"]
    _, built = rankers(*talks)
    assert retrieval.empty_pools(built, questions, dates) == ["c#0", "u#3"]
    kept = retrieval.without_empty_pools(built, questions, dates)
    assert kept == {"d#1": dates["d#1"]}
    assert len(dates) == 3  # the given ones stay as they are
    counts = rank(*talks)(questions, dates=kept)["query_id"].value_counts()
    assert counts.to_dict() == {"c#0": 5, "d#1": 2, "c#2": 5, "u#3": 5}


def test_all_pools_empty_give_an_empty_table_with_the_same_columns(rank):
    questions = ask(("c", "kiln"), ("c", "clay"))
    none = rank(talk())(questions, dates={q.question_id: ("1999-01-01", "1999-12-31") for q in questions})
    some = rank(talk())(questions)
    assert len(none) == 0 and none.columns.tolist() == some.columns.tolist()
    assert none.dtypes[["rank", "score"]].tolist() == some.dtypes[["rank", "score"]].tolist()
    fused = retrieval.rrf([none, some])
    assert len(fused) == len(some)


@pytest.mark.parametrize("seed", range(30))
def test_candidates_equal_a_plain_loop(seed):
    rng = random.Random(seed)
    days = [rng.choice([None, *(f"2024-03-{d:02}" for d in range(1, 10))]) for _ in range(rng.randint(1, 12))]
    made = talk(days=days, texts=[rng.choice(["kiln", "clay " * 9, "glaze"]) for _ in days])
    searches, built = rankers(made, cut=lambda doc: chunking.cut(doc, size=rng.randint(3, 30), overlap=2))
    start, end = sorted(rng.choices(["2024-03-03", "2024-03-05", "2024-03-06", "2024-03-08"], k=2))
    between = rng.choice([(start, end), (start, None), (None, end)])
    low, high = between[0] or "", between[1] or "9"
    wanted = {
        c["chunk_index"]
        for c in built["c"]["chunks"]
        if any(d and low <= d <= high for d in days[c["start_turn"] : c["end_turn"] + 1])
    }
    questions = ask(("c", "kiln"))
    for search in searches.values():
        assert windows(search(questions, dates={"c#0": between})) == wanted
    assert retrieval.empty_pools(built, questions, {"c#0": between}) == ([] if wanted else ["c#0"])


def test_on_the_sample_every_window_left_touches_the_range():
    data = corpus.load("sample")
    built = index.build(data.conversations)
    days = sorted({t.session_date for c in data.conversations for t in c.turns if t.session_date})
    between = days[len(days) // 3], days[len(days) // 2]
    ranking = retrieval.bm25(built, data.questions, dates={q.question_id: between for q in data.questions})
    spans = {
        c["chunk_id"]: part["turn_context"]["turn_session_dates"][c["start_turn"] : c["end_turn"] + 1]
        for part in built.values()
        for c in part["chunks"]
    }
    left = {d for d, dates in spans.items() if any(day and between[0] <= day <= between[1] for day in dates)}
    assert 0 < len(left) < len(spans)
    assert set(ranking["doc_id"]) == left


@pytest.mark.parametrize(
    ("between", "message"),
    [
        (("8 May 2023", None), "c#1: '8 May 2023' is no ISO date"),
        ((None, "2024-02-30"), "c#1: '2024-02-30' is no ISO date"),
        (("2024-03", None), "c#1: '2024-03' is no ISO date"),
        (("2024-03-02T10:00:00", None), "c#1: '2024-03-02T10:00:00' is no ISO date"),
        (("", None), "c#1: '' is no ISO date"),
        ((20240302, None), "c#1: 20240302 is no ISO date"),
        ((datetime.datetime(2024, 3, 2), None), "c#1: datetime.datetime.* is no ISO date"),
        (("2024-03-09", "2024-03-02"), "c#1: dates from 2024-03-09 to 2024-03-02; the first must not be after"),
        ("2024-03-02", "c#1: dates '2024-03-02'; wanted a pair"),
        (("2024-03-02",), r"c#1: dates \('2024-03-02',\); wanted a pair"),
        (7, "c#1: dates 7; wanted a pair"),
    ],
)
def test_bad_dates_are_refused_with_question_and_value(rank, between, message):
    questions = ask(("c", "kiln"), ("c", "clay"))
    for function in (rank(talk()), lambda q, dates: retrieval.empty_pools(rankers(talk())[1], q, dates)):
        with pytest.raises(BadInput, match=message) as error:
            function(questions, dates={"c#1": between})
        assert "\n" not in str(error.value)


def test_a_session_date_in_the_index_that_is_none_is_refused_only_when_it_is_needed(rank):
    search = rank(talk(days=["2 March", *DAYS[1:]]))
    assert len(search(ask(("c", "kiln")))) == 5
    with pytest.raises(BadInput, match="session date that is not ISO"):
        search(ask(("c", "kiln")), dates={"c#0": ("2024-03-02", None)})


def test_empty_pools_of_an_unknown_conversation_are_refused():
    with pytest.raises(BadInput, match="x#0: its conversation 'x' is not in the index"):
        retrieval.empty_pools(rankers(talk())[1], ask(("x", "kiln")), {})
