"""Fusion of rankings: cases worked by hand, plain loops, ties by chunk index, and what must not matter."""

import collections
import itertools

import numpy as np
import pandas as pd
import pytest

from rawrag_utils import chunking, corpus, index, retrieval
from rawrag_utils.corpus import Conversation, Question, Turn
from rawrag_utils.paths import BadInput


def ranked(scores, query_id="q", similarity=False):
    """A ranking from {window number: score}, in the order given."""
    rows = pd.DataFrame(
        {
            "query_id": query_id,
            "doc_id": [f"c_chunk_{k}" for k in scores],
            "rank": range(1, len(scores) + 1),
            "score": [float(s) for s in scores.values()],
        }
    )
    return rows.assign(similarity=rows["score"]) if similarity else rows


def fused(ranking, query_id="q"):
    """{window number: score} of one question, in the order of the ranking."""
    rows = ranking[ranking["query_id"] == query_id]
    assert rows["rank"].tolist() == list(range(1, len(rows) + 1))
    return dict(zip(retrieval.positions(rows["doc_id"]).tolist(), rows["score"], strict=True))


def is_close(found, wanted, within=1e-12):
    """The same windows in the same order with about the same scores."""
    return list(found) == list(wanted) and list(found.values()) == pytest.approx(list(wanted.values()), abs=within)


METHODS = {
    "rrf": retrieval.rrf,
    "combsum": retrieval.combsum,
    "scaled": lambda rankings: retrieval.combsum(rankings, scale=True),
    "zsum": retrieval.zsum,
}


@pytest.fixture(params=METHODS)
def fuse(request):
    return METHODS[request.param]


# ------------------------------------------------------------------------------------------------------------ by hand

A, B = {7: 9, 2: 5, 4: 1}, {4: 3, 7: 2, 5: 1}  # window 2 is missing from the second list, 5 from the first


def test_rrf_by_hand():
    wanted = {7: 1 / 61 + 1 / 62, 4: 1 / 63 + 1 / 61, 2: 1 / 62, 5: 1 / 63}
    assert is_close(fused(retrieval.rrf([ranked(A), ranked(B)])), wanted)


def test_rrf_with_another_k():
    # With k = 0 a first place outweighs: 1 + 1/2, 1/3 + 1, 1/2, 1/3.
    assert is_close(fused(retrieval.rrf([ranked(A), ranked(B)], k=0)), {7: 1.5, 4: 4 / 3, 2: 1 / 2, 5: 1 / 3})


def test_rrf_sees_ranks_only():
    other = {k: 100 - i for i, k in enumerate(A)}
    assert fused(retrieval.rrf([ranked(other), ranked(B)])) == fused(retrieval.rrf([ranked(A), ranked(B)]))


def test_combsum_by_hand():
    assert is_close(fused(retrieval.combsum([ranked(A), ranked(B)])), {7: 11, 2: 5, 4: 4, 5: 1})


def test_scaled_combsum_by_hand():
    # A: 1, 1/2, 0; B: 1, 1/2, 0. Windows 4 (0 + 1) and 7 (1 + 1/2).
    wanted = {7: 1.5, 4: 1, 2: 0.5, 5: 0}
    assert is_close(fused(retrieval.combsum([ranked(A), ranked(B)], scale=True)), wanted)


def test_zsum_by_hand():
    # Both lists have three scores at equal distances: z = ±√(3/2) and 0 (standard deviation over n, not n − 1).
    z = 1.5**0.5
    assert is_close(fused(retrieval.zsum([ranked(A), ranked(B)])), {7: z, 2: 0, 4: 0, 5: -z})


def test_weighted_zsum_by_hand():
    z = 1.5**0.5
    found = retrieval.zsum([ranked(A), ranked(B)], weights=[0.25, 0.75])
    assert is_close(fused(found), {4: 0.5 * z, 7: 0.25 * z, 2: 0, 5: -0.75 * z})
    with pytest.raises(ValueError):
        retrieval.zsum([ranked(A), ranked(B)], weights=[1.0])


@pytest.mark.parametrize("score", [0, 1, 0.1, -0.1, 1 / 3, 1e-9, -12345.678])
@pytest.mark.parametrize("method", ["zsum", "scaled"])
def test_a_list_of_equal_scores_says_nothing(method, score):
    for count in (1, 3, 7, 100):
        flat = ranked(dict.fromkeys(range(count), score))
        found = fused(METHODS[method]([flat]))
        assert found == dict.fromkeys(range(count), 0)
        informed = ranked({1: 2, 0: 1})
        assert fused(METHODS[method]([informed, flat]))[1] == fused(METHODS[method]([informed]))[1]


def test_a_small_spread_is_not_a_flat_list():
    assert is_close(fused(retrieval.zsum([ranked({0: 0.5 + 1e-7, 1: 0.5})])), {0: 1, 1: -1}, within=1e-6)


@pytest.mark.parametrize("method", ["scaled", "zsum"])
def test_each_question_is_scaled_on_its_own(method):
    two = pd.concat([ranked(A, "p"), ranked({k: 1000 * s for k, s in A.items()}, "q")])
    found = METHODS[method]([two])
    assert is_close(fused(found, "p"), fused(METHODS[method]([ranked(A)])))
    assert is_close(fused(found, "q"), fused(found, "p"))


# ---------------------------------------------------------------------------------------------- what all have in common


def test_one_list_keeps_its_order(fuse):
    assert list(fused(fuse([ranked(A)]))) == list(A)


def test_ties_are_broken_by_chunk_index(fuse):
    # Mirror images: 10 and 9 have the same ranks and scores, as have 3 and 2.
    first, second = {10: 4, 9: 3, 3: 2, 2: 1}, {9: 4, 10: 3, 2: 2, 3: 1}
    assert list(fused(fuse([ranked(first), ranked(second)]))) == [9, 10, 2, 3]


def test_ties_hold_in_whatever_list_a_window_got_its_ranks(fuse):
    # Every window has each place once, in another list: floats added in another order would differ in the last bit.
    scores = (0.7, 0.3, 0.1)
    for places in itertools.permutations(range(3)):
        lists = [np.roll(places, shift) for shift in range(3)]
        rankings = [ranked(dict(zip(windows.tolist(), scores, strict=True))) for windows in lists]
        assert list(fused(fuse(rankings))) == [0, 1, 2]
    many = [ranked({(k + shift) % 9: 0.1 + 0.7 / (k + 1) for k in range(9)}) for shift in range(9)]
    found = fused(fuse(many))
    assert list(found) == list(range(9)) and len(set(found.values())) == 1


def test_the_order_of_the_lists_does_not_matter(fuse):
    rng = np.random.default_rng(0)
    lists = [retrieval._sorted(ranked(dict(enumerate(rng.random(20)))).drop(columns="rank")) for _ in range(4)]
    wanted = fuse(lists)
    for order in ([3, 2, 1, 0], [1, 3, 0, 2]):
        pd.testing.assert_frame_equal(fuse([lists[i] for i in order]), wanted, check_exact=True)


def test_questions_keep_their_order_and_stay_apart(fuse):
    names = ["q#10", "q#9", "p#0", "q#2"]
    first = pd.concat([ranked(A, name) for name in names])
    second = pd.concat([ranked(B, name) for name in reversed(names)])
    found = fuse([first, second])
    assert list(dict.fromkeys(found["query_id"])) == names
    for name in names:
        assert is_close(fused(found, name), fused(fuse([ranked(A), ranked(B)])))


def test_a_question_that_one_list_lacks_is_ranked_by_the_other(fuse):
    found = fuse([ranked(A, "p"), pd.concat([ranked(B, "q"), ranked(B, "p")])])
    assert list(dict.fromkeys(found["query_id"])) == ["p", "q"]
    assert is_close(fused(found, "q"), fused(fuse([ranked(B)])))


@pytest.mark.parametrize("numbered", [True, False], ids=["unique labels", "repeated labels"])
def test_the_order_of_the_rows_does_not_matter(fuse, numbered):
    rng = np.random.default_rng(0)
    lists = [pd.concat([ranked(A, "p"), ranked(B, "q")], ignore_index=numbered) for _ in range(2)]
    wanted = fuse(lists)
    for _ in range(5):
        found = fuse([rows.iloc[rng.permutation(len(rows))] for rows in lists])
        for name in "pq":
            assert fused(found, name) == fused(wanted, name)


def test_similarity_comes_from_the_first_list_that_knows_it(fuse):
    plain, known, other = ranked(A), ranked(B, similarity=True), ranked({7: 0.5, 2: 0.4}, similarity=True)
    found = fuse([plain, known, other])
    assert found.columns.tolist() == ["query_id", "doc_id", "rank", "score", "similarity"]
    similarity = dict(zip(retrieval.positions(found["doc_id"]).tolist(), found["similarity"], strict=True))
    assert {k: v for k, v in similarity.items() if v == v} == B  # none for window 2, which that list lacks
    assert "similarity" not in fuse([plain, plain])


def test_what_goes_in_stays_as_it_is(fuse):
    lists = [ranked(A, similarity=True), ranked(B)]
    copies = [rows.copy() for rows in lists]
    fuse(lists)
    for rows, copy in zip(lists, copies, strict=True):
        pd.testing.assert_frame_equal(rows, copy)


@pytest.mark.parametrize("empty", [ranked({}), ranked({}, similarity=True), ranked(A)[:0]], ids=["typed", "sim", "cut"])
def test_empty_rankings(fuse, empty):
    none = fuse([empty, empty])
    assert len(none) == 0 and none["score"].dtype == np.float64
    for lists in ([empty, ranked(A)], [ranked(A), empty]):
        assert fused(fuse(lists)) == fused(fuse([ranked(A)]))


def test_a_search_for_no_question_can_be_fused(fuse):
    built = index.build([Conversation("c", "c", "N", "T", (Turn("D1:1", 1, None, None, "N", "kiln"),))])
    none = retrieval.bm25(built, [])
    assert len(fuse([none, none])) == len(retrieval.by_turn(built, none)) == 0


def test_no_ranking_at_all_is_refused(fuse):
    with pytest.raises(BadInput, match="no ranking to fuse"):
        fuse([])


# ------------------------------------------------------------------------------------------------ against plain loops


def plain(lists, method):
    """{question: [(window, score), ...]} by a loop over rows."""
    totals = collections.defaultdict(lambda: collections.defaultdict(float))
    for rows in lists:
        for query_id, group in rows.groupby("query_id", sort=False):
            scores = group["score"].to_numpy()
            low, spread, deviation = scores.min(), np.ptp(scores), scores.std()
            for doc_id, rank, score in zip(group["doc_id"], group["rank"], scores, strict=True):
                part = {
                    "rrf": 1 / (60 + rank),
                    "combsum": score,
                    "scaled": (score - low) / spread if spread else 0,
                    "zsum": (score - scores.mean()) / deviation if spread else 0,
                }
                totals[query_id][int(doc_id.rsplit("_", 1)[1])] += part[method]
    return {q: sorted(t.items(), key=lambda item: (-item[1], item[0])) for q, t in totals.items()}


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("method", METHODS)
def test_fusion_equals_a_plain_loop(method, seed):
    rng = np.random.default_rng(seed)
    lists = []
    for _ in range(rng.integers(1, 4)):
        pieces = []
        for name in ("p", "q", "r"):
            windows = rng.choice(12, rng.integers(1, 12), replace=False)
            scores = rng.normal(size=len(windows))
            pieces.append(retrieval._sorted(ranked(dict(zip(windows, scores, strict=True)), name).drop(columns="rank")))
        lists.append(pd.concat(pieces, ignore_index=True))
    found = METHODS[method](lists)
    for name, wanted in plain(lists, method).items():
        assert is_close(fused(found, name), dict(wanted))


@pytest.mark.parametrize("seed", range(5))
def test_combsum_of_complete_lists_of_cosines_is_the_search_with_the_summed_vector(seed):
    rng = np.random.default_rng(seed)

    def unit(*shape):
        vectors = rng.normal(size=shape)
        return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)

    turns = tuple(Turn(f"D1:{i}", 1, None, None, "Nora", "kiln") for i in range(50))
    bare = index.build([Conversation("c", "c", "Nora", "Tobias", turns)], chunking.turn_windows)
    built = index.with_vectors(bare, unit(50, 24).astype(np.float32))
    questions = [Question(f"c#{i}", "c", "?", None, "temporal", (), ()) for i in range(6)]
    variants = unit(4, 6, 24)
    summed = retrieval.combsum([retrieval.dense(built, questions, vectors) for vectors in variants])
    at_once = retrieval.dense(built, questions, variants.sum(axis=0))
    names = [q.question_id for q in questions]
    for name in names:
        assert is_close(fused(summed, name), fused(at_once, name), within=1e-6)  # cosines are rounded to float32
    # Of lists cut to 5 it is not.
    cut = retrieval.combsum([retrieval.dense(built, questions, vectors, 5) for vectors in variants])
    assert any(list(fused(cut, name))[:5] != list(fused(at_once, name))[:5] for name in names)


# ------------------------------------------------------------------------------------------------------ turns, ranked


def turns_of(built, ranking):
    """{question: {turn: score}} by a loop: the best score of the windows that touch a turn, ties by turn."""
    chunks = {c["chunk_id"]: c for part in built.values() for c in part["chunks"]}
    best = collections.defaultdict(dict)
    for query_id, doc_id, score in zip(ranking["query_id"], ranking["doc_id"], ranking["score"], strict=True):
        for turn in range(chunks[doc_id]["start_turn"], chunks[doc_id]["end_turn"] + 1):
            best[query_id][turn] = max(score, best[query_id].get(turn, -np.inf))
    return {q: dict(sorted(turns.items(), key=lambda item: (-item[1], item[0]))) for q, turns in best.items()}


@pytest.fixture(scope="module")
def sample():
    data = corpus.load("sample")
    built = index.build(data.conversations, lambda doc: chunking.cut(doc, 64, 8))
    return data, built, retrieval.bm25(built, data.questions, 20)


def test_by_turn_equals_a_plain_loop_on_the_sample(sample):
    data, built, ranking = sample
    found = retrieval.by_turn(built, ranking)
    wanted = turns_of(built, ranking)
    assert list(dict.fromkeys(found["query_id"])) == list(wanted) == [q.question_id for q in data.questions]
    for query_id, turns in wanted.items():
        mine = fused(found, query_id)
        assert mine == turns and list(mine) == list(turns)


def test_by_turn_names_the_turn_windows_of_the_conversation(sample):
    data, built, ranking = sample
    turns = index.build(data.conversations, chunking.turn_windows)
    known = {q.question_id: {c["chunk_id"] for c in turns[q.conversation_id]["chunks"]} for q in data.questions}
    found = retrieval.by_turn(built, ranking)
    assert all(doc_id in known[query_id] for query_id, doc_id in zip(found["query_id"], found["doc_id"], strict=True))


def test_by_turn_does_not_depend_on_the_order_of_the_rows(sample):
    _, built, ranking = sample
    wanted = retrieval.by_turn(built, ranking)
    shuffled = retrieval.by_turn(built, ranking.sample(frac=1, random_state=0))
    for query_id in wanted["query_id"].unique():
        assert fused(shuffled, query_id) == fused(wanted, query_id)


def test_by_turn_of_a_ranking_of_turns_is_that_ranking(sample):
    data, _, _ = sample
    turns = index.build(data.conversations, chunking.turn_windows)
    ranking = retrieval.bm25(turns, data.questions[:20])
    pd.testing.assert_frame_equal(retrieval.by_turn(turns, ranking), ranking)


def test_by_turn_by_hand():
    spans = [(0, 1), (1, 3), (3, 2)]  # the last touches no turn
    chunks = [{"chunk_id": f"c_chunk_{i}", "start_turn": a, "end_turn": b} for i, (a, b) in enumerate(spans)]
    found = retrieval.by_turn({"c": {"chunks": chunks}}, ranked({2: 9, 0: 5, 1: 4}))
    assert list(fused(found).items()) == [(0, 5), (1, 5), (2, 4), (3, 4)]
    assert found["doc_id"].tolist() == [f"c_chunk_{i}" for i in range(4)]


@pytest.mark.parametrize("rows", [ranked({}), ranked(A)[:0], ranked({2: 1})], ids=["typed", "cut", "no turn touched"])
def test_by_turn_of_nothing_is_empty(rows):
    chunks = [{"chunk_id": f"c_chunk_{i}", "start_turn": 0, "end_turn": -1} for i in range(3)]
    found = retrieval.by_turn({"c": {"chunks": chunks}}, rows)
    assert len(found) == 0 and found.columns.tolist() == ["query_id", "doc_id", "rank", "score"]
