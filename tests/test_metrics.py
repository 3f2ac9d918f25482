"""Recall in all its forms, worked by hand and against a plain walk; intervals by hand and by simulation."""

import math
import random

import ir_measures
import numpy as np
import pandas as pd
import pytest

from rawrag_utils import chunking, index, metrics
from rawrag_utils.corpus import Conversation, Corpus, Question, Turn

COSTS = (10, 20, 30, 40, 50, 60)  # tokens that handing over turn 0 to 5 costs: its line and 1


def talk(name="c", sessions=(1, 1, 1, 2, 2, 2)):
    turns = (Turn(f"T{i}", s, None, None, "Nora", "") for i, s in enumerate(sessions))
    return Conversation(name, name, "Nora", "Tobias", tuple(turns))


def ask(number, *evidence, name="c", category="temporal"):
    return Question(f"{name}#{number}", name, "?", None, category, tuple(f"T{i}" for i in evidence), ())


def corpus_of(questions, *talks):
    return Corpus("made", "made.json", "", list(talks or (talk(),)), questions, [])


def part(windows, costs=COSTS, name="c"):
    """An index object as far as recall needs it: `windows` are (start_turn, end_turn), inclusive."""
    ends = np.cumsum(costs).tolist()
    chunks = [{"chunk_id": f"{name}{k}", "start_turn": a, "end_turn": b} for k, (a, b) in enumerate(windows)]
    spans = [[end - cost, end - 1] for end, cost in zip(ends, costs, strict=True)]
    return {"chunks": chunks, "turn_context": {"turn_spans": spans}}


def ranked(query_id, *windows, name="c"):
    """A ranking of window numbers, best first."""
    rows = {"query_id": query_id, "doc_id": [f"{name}{k}" for k in windows], "rank": range(1, len(windows) + 1)}
    return pd.DataFrame(rows)


def hits_of(questions, windows, ranking, **options):
    """(turn, rank, session_rank, tokens) a row."""
    hits = metrics.evidence_hits(corpus_of(questions), {"c": part(windows)}, ranking, **options)
    return list(hits[["turn", "rank", "session_rank", "tokens"]].itertuples(index=False, name=None))


# -------------------------------------------------------------------------------------------- evidence, turn by turn

WINDOWS = [(0, 1), (1, 3), (3, 5)]


def test_turns_are_handed_over_down_the_ranking_and_in_order_within_a_window():
    # Window 1 brings turns 1, 2, 3 (20, 50, 90 tokens by then), window 0 turn 0 (100; turn 1 is there already),
    # window 2 turns 4 and 5 (150, 210). Window 1 touches both sessions.
    hits = hits_of([ask(0, 0, 3, 5)], WINDOWS, ranked("c#0", 1, 0, 2))
    assert hits == [(0, 2, 1, 100), (3, 1, 1, 90), (5, 3, 1, 210)]


def test_the_first_turn_that_does_not_fit_ends_the_budget():
    hits = metrics.evidence_hits(corpus_of([ask(0, 0, 3, 5)]), {"c": part(WINDOWS)}, ranked("c#0", 1, 0, 2))
    # 99 tokens hold turn 3 (90). Turn 0 would cost 10 more and end at 100: nothing after it is handed over.
    recall = metrics.evidence_recall(hits, cutoffs=[], budgets=[89, 90, 99, 100, 209, 210]).loc["c#0"]
    assert recall.tolist() == pytest.approx([0, 1 / 3, 1 / 3, 2 / 3, 2 / 3, 1])


def test_what_the_cut_ranking_does_not_touch_is_never_handed_over():
    hits = hits_of([ask(0, 0, 3, 5)], WINDOWS, ranked("c#0", 0))
    assert hits == [(0, 1, 1, 10), (3, math.inf, math.inf, math.inf), (5, math.inf, math.inf, math.inf)]


def test_a_session_counts_from_the_first_window_that_touches_it():
    hits = hits_of([ask(0, 0, 5)], WINDOWS, ranked("c#0", 2, 0))
    assert [h[2] for h in hits] == [2, 1]


def test_extra_turns_around_a_window_count_as_touched_and_cost():
    # Window 2 with one neighbour: turns 2 to 5 (30, 70, 120, 180), so session 1 is met at once; window 0 with one: 0 to
    # 2, of which 0 and 1 are new.
    hits = hits_of([ask(0, 0, 2, 5)], WINDOWS, ranked("c#0", 2, 0), extra=1)
    assert hits == [(0, 2, 1, 190), (2, 1, 1, 30), (5, 1, 1, 180)]


def test_a_window_that_touches_no_turn_keeps_its_rank_and_hands_over_nothing():
    assert hits_of([ask(0, 1)], [(0, -1), (1, 0), (1, 1)], ranked("c#0", 0, 1, 2)) == [(1, 3, 3, 20)]


def test_the_reader_gets_the_lines_of_its_own_index():
    reader = {"c": part([(0, 5)], costs=[c + 5 for c in COSTS])}  # five tokens a turn more: captions, say
    assert hits_of([ask(0, 3)], WINDOWS, ranked("c#0", 1), reader=reader) == [(3, 1, 1, 105)]


def test_costs_are_the_lines_tokens_and_the_newline():
    turns = tuple(Turn(f"T{i}", 1, None, None, "Nora", "陶 clay " * (i + 1), None) for i in range(4))
    made = Conversation("c", "c", "Nora", "Tobias", turns)
    built = index.build([made])
    hits = metrics.evidence_hits(
        corpus_of([ask(0, 0, 1, 2, 3)], made), built, ranked("c#0", 0).assign(doc_id="c_chunk_0")
    )
    assert hits["tokens"].tolist() == np.cumsum(chunking.line_costs(built["c"]["turn_context"]["turn_lines"])).tolist()


def test_the_order_of_the_rows_does_not_matter():
    questions = [ask(0, 0, 3), ask(1, 5)]
    ranking = pd.concat([ranked("c#0", 1, 0, 2), ranked("c#1", 0, 2, 1)], ignore_index=True)
    wanted = hits_of(questions, WINDOWS, ranking)
    assert len(wanted) == 3
    for order in ([3, 0, 4, 1, 5, 2], [5, 4, 3, 2, 1, 0]):  # interleaved, reversed
        assert sorted(hits_of(questions, WINDOWS, ranking.loc[order])) == sorted(wanted)


def test_questions_without_evidence_or_without_ranking_have_no_row():
    questions = [ask(0), ask(1, 2), ask(2, 2)]
    ranking = pd.concat([ranked("c#0", 0), ranked("c#1", 1)])
    hits = metrics.evidence_hits(corpus_of(questions), {"c": part(WINDOWS)}, ranking)
    assert hits["query_id"].tolist() == ["c#1"]


def test_asked_questions_without_a_row_count_as_nothing_found():
    questions = [ask(0, 1), ask(1, 0, 3), ask(2), ask(3, 5)]
    ranking, data = ranked("c#0", 0, 1), corpus_of(questions)
    hits = metrics.evidence_hits(data, {"c": part(WINDOWS)}, ranking, questions=questions[:3])
    assert hits["query_id"].tolist() == ["c#0", "c#1", "c#1"]  # c#2 has no evidence, c#3 was not asked
    assert hits["turn"].tolist() == [1, 0, 3]
    assert hits.loc[1:, ["rank", "session_rank", "tokens"]].to_numpy().tolist() == [[math.inf] * 3] * 2
    recall = metrics.evidence_recall(hits, [1], [1000])
    assert recall.loc["c#0"].eq(1).all() and recall.loc["c#1"].eq(0).all()


def test_asked_questions_that_all_have_rows_change_nothing():
    questions = [ask(0, 0, 3), ask(1, 5)]
    ranking = pd.concat([ranked("c#1", 0, 2, 1), ranked("c#0", 1, 0, 2)])
    alone = metrics.evidence_hits(corpus_of(questions), {"c": part(WINDOWS)}, ranking)
    for asked in (questions, [], questions[:1], questions * 2):
        hits = metrics.evidence_hits(corpus_of(questions), {"c": part(WINDOWS)}, ranking, questions=asked)
        pd.testing.assert_frame_equal(hits, alone)


def test_an_empty_ranking_of_asked_questions_has_recall_zero():
    hits = metrics.evidence_hits(corpus_of([ask(0, 2)]), {"c": part(WINDOWS)}, ranked("c#0"), questions=[ask(0, 2)])
    assert metrics.evidence_recall(hits, [15], [1000]).loc["c#0"].eq(0).all()


def test_no_hits_give_empty_tables_with_their_columns():
    hits = metrics.evidence_hits(corpus_of([ask(0)]), {"c": part(WINDOWS)}, ranked("c#0", 0))
    assert hits.columns.tolist() == ["query_id", "turn", "rank", "session_rank", "tokens"]
    recall = metrics.evidence_recall(hits, [15], [1000])
    assert len(recall) == 0 and {"recall@15", "recall@1000tok"} <= set(recall.columns)
    tidy = metrics.summarise({"dense": recall}, corpus_of([ask(0)]), ["recall@15"], "dense")
    assert len(tidy) == 0 and tidy.columns.tolist() == list(metrics.COLUMNS)


def test_hidden_turns_are_never_handed_over_and_cost_nothing():
    # Turn 1 is hidden from the first question: window 1 brings turns 2 and 3 (30, 70), window 0 turn 0 (80).
    questions, ranking = [ask(0, 0, 1, 3), ask(1, 3)], pd.concat([ranked("c#0", 1, 0), ranked("c#1", 1)])
    shown = {"c#0": np.array([True, False, True, True, True, True])}
    hits = hits_of(questions, WINDOWS, ranking, shown=shown)
    assert hits == [(0, 2, 1, 80), (1, math.inf, 1, math.inf), (3, 1, 1, 70), (3, 1, 1, 90)]
    assert hits_of(questions, WINDOWS, ranking, shown={}) == hits_of(questions, WINDOWS, ranking)


def test_a_hidden_turn_does_not_meet_its_session():
    hits = hits_of(
        [ask(0, 5)], WINDOWS, ranked("c#0", 1, 2), shown={"c#0": np.array([True] * 3 + [False] + [True] * 2)}
    )
    assert hits == [(5, 2, 2, 50 + 50 + 60)]  # turns 1, 2 of session 1, then 4, 5; turn 3 would have met session 2


def test_touches_evidence_marks_the_rows_whose_window_touches_it():
    ranking = pd.concat([ranked("c#0", 1, 0, 2), ranked("c#1", 0)], ignore_index=True).iloc[::-1]
    data = corpus_of([ask(0, 3, 5), ask(1)])
    marked = metrics.touches_evidence(data, {"c": part(WINDOWS)}, ranking)
    assert marked.to_dict() == {0: True, 1: False, 2: True, 3: False}


@pytest.mark.parametrize(("turn", "windows"), [(0, [0]), (1, [0, 1]), (2, [1]), (3, [1, 2]), (5, [2])])
def test_the_first_and_the_last_turn_of_a_window_are_touched(turn, windows):
    marked = metrics.touches_evidence(corpus_of([ask(0, turn)]), {"c": part(WINDOWS)}, ranked("c#0", 0, 1, 2))
    assert marked.index[marked].tolist() == windows


def test_an_empty_ranking_has_an_empty_boolean_mark():
    marked = metrics.touches_evidence(corpus_of([ask(0, 1)]), {"c": part(WINDOWS)}, ranked("c#0"))
    assert len(marked) == 0 and marked.dtype == bool


# ------------------------------------------------------------------------------------------------------------- recall


def test_the_forms_of_recall():
    rows = {"query_id": ["b", "b", "b", "a"], "rank": [1, 7, math.inf, 5], "session_rank": [1, 1, 9, 5], "tokens": 1}
    recall = metrics.evidence_recall(pd.DataFrame(rows), cutoffs=[5, 10], budgets=[])
    assert recall.index.tolist() == ["b", "a"]  # in order of appearance
    assert recall.index.name == "query_id"  # a column of this name in the per-question results
    assert recall.loc["b"].to_dict() == pytest.approx(
        {
            **{"recall@5": 1 / 3, "recall_any@5": 1, "recall_all@5": 0, "session_recall@5": 2 / 3},
            **{"recall@10": 2 / 3, "recall_any@10": 1, "recall_all@10": 0, "session_recall@10": 1},
        }
    )
    assert (recall.loc["a"] == 1).all()


def walk(question, windows, costs, sessions, ranking, k, budget):
    """(recall@k, session recall@k, recall within the budget) by handing turns over one by one."""
    evidence = [int(t[1:]) for t in question.evidence]
    touched = {t for w in ranking[:k] for t in range(windows[w][0], windows[w][1] + 1)}
    seen, left = set(), budget
    for turn in (t for w in ranking for t in range(windows[w][0], windows[w][1] + 1)):
        if turn in seen:
            continue
        if costs[turn] > left:
            break
        seen.add(turn)
        left -= costs[turn]
    met = {sessions[t] for t in touched}
    shares = [
        sum(t in touched for t in evidence),
        sum(sessions[t] in met for t in evidence),
        sum(t in seen for t in evidence),
    ]
    return [s / len(evidence) for s in shares]


@pytest.mark.parametrize("seed", range(40))
def test_recall_equals_a_plain_walk(seed):
    rng = random.Random(seed)
    turns = rng.randint(1, 12)
    costs = [rng.randint(2, 30) for _ in range(turns)]
    sessions = sorted(rng.choices([1, 2, 5, 9], k=turns))
    starts = sorted(rng.choices(range(turns), k=rng.randint(1, 9)))
    windows = [(a, min(turns - 1, a + rng.randint(-1, 4))) for a in starts]
    ranking = rng.sample(range(len(windows)), rng.randint(1, len(windows)))
    question = ask(0, *rng.sample(range(turns), rng.randint(1, turns)))
    k, budget = rng.randint(1, 9), rng.randint(0, 120)
    data = corpus_of([question], talk(sessions=sessions))
    hits = metrics.evidence_hits(data, {"c": part(windows, costs)}, ranked("c#0", *ranking))
    recall = metrics.evidence_recall(hits, [k], [budget]).loc["c#0"]
    found = recall[[f"recall@{k}", f"session_recall@{k}", f"recall@{budget}tok"]].tolist()
    assert found == pytest.approx(walk(question, windows, costs, sessions, ranking, k, budget))
    assert recall[f"recall_any@{k}"] == (found[0] > 0) and recall[f"recall_all@{k}"] == (found[0] == 1)


def test_recall_of_a_ranking_of_turns_is_that_of_ir_measures():
    rng = np.random.default_rng(0)
    turns, questions = 40, [ask(i, *np.random.default_rng(i).choice(40, 1 + i % 4, replace=False)) for i in range(30)]
    ranking = pd.concat([ranked(q.question_id, *rng.permutation(turns)) for q in questions])
    data = corpus_of(questions, talk(sessions=[1] * turns))
    hits = metrics.evidence_hits(data, {"c": part([(i, i) for i in range(turns)], [5] * turns)}, ranking)
    ours = metrics.evidence_recall(hits, [10], [], prefix="turn_")["turn_recall@10"]
    judged = [ir_measures.Qrel(q.question_id, f"c{t[1:]}", 1) for q in questions for t in q.evidence]
    run = ranking.assign(score=-ranking["rank"])[["query_id", "doc_id", "score"]]
    theirs = {m.query_id: m.value for m in ir_measures.iter_calc([ir_measures.R @ 10], judged, run)}
    assert ours.to_dict() == pytest.approx(theirs)


# ---------------------------------------------------------------------------------------------------------- intervals


def test_jackknife_by_hand():
    # Sums and sizes of the clusters 2/2, 0/1, 1/2, 0/3, 2/2; mean 5/10.
    values = [1, 1, 0, 1, 0, 0, 0, 0, 1, 1]
    clusters = ["a", "a", "b", "c", "c", "d", "d", "d", "e", "e"]
    left_out = [3 / 8, 5 / 9, 4 / 8, 5 / 7, 3 / 8]
    mean = sum(left_out) / 5
    error = math.sqrt(4 / 5 * sum((x - mean) ** 2 for x in left_out))
    assert metrics.jackknife(values, clusters) == pytest.approx((0.5, error, 5))
    assert error == pytest.approx(0.2533, abs=1e-4)
    # t(.975, 4) = 2.7764 from the table
    assert metrics.interval(values, clusters) == pytest.approx(
        (0.5, 0.5 - 2.7764 * error, 0.5 + 2.7764 * error), abs=1e-4
    )


def test_the_level_of_an_interval_is_a_choice():
    # The error of the doctest's five values is .2449; t(.95, 4) = 2.1318.
    found = metrics.interval([1, 0, 1, 1, 0], list("abcde"), level=0.9)
    assert found == pytest.approx((0.6, 0.6 - 2.1318 * 0.24495, 0.6 + 2.1318 * 0.24495), abs=1e-4)


def test_with_clusters_of_one_the_error_is_that_of_the_mean():
    values = np.random.default_rng(0).normal(size=20)
    _, error, _ = metrics.jackknife(values, range(20))
    assert error == pytest.approx(values.std(ddof=1) / math.sqrt(20))


def test_the_order_of_questions_does_not_matter():
    rng = np.random.default_rng(0)
    values, clusters, order = rng.random(50), rng.integers(7, size=50), rng.permutation(50)
    assert metrics.interval(values[order], clusters[order]) == pytest.approx(metrics.interval(values, clusters))


@pytest.mark.parametrize("groups", [0, 1, 2, 4])
def test_fewer_than_five_conversations_have_no_interval(groups):
    mean, low, high = metrics.interval([1.0, 0.0] * groups, [name for name in "abcd"[:groups] for _ in "01"])
    assert math.isnan(low) and math.isnan(high)
    assert mean == 0.5 if groups else math.isnan(mean)


LOCOMO_SIZES = [150, 81, 152, 199, 178, 123, 150, 191, 156, 156]  # questions with evidence, categories 1-4: 1,536


@pytest.mark.parametrize("correlation", [0, 0.02, 0.2])
def test_an_interval_covers_the_truth_in_95_percent_of_data_sets(correlation):
    # Hits with probability .6; with correlation, each conversation draws its own p from a Beta with this mean.
    rng, truth = np.random.default_rng(0), 0.6
    clusters = np.repeat(np.arange(10), LOCOMO_SIZES)
    scale = 1 / correlation - 1 if correlation else None
    covered = 0
    for _ in range(4000):
        p = rng.beta(truth * scale, (1 - truth) * scale, 10) if scale else np.full(10, truth)
        _, low, high = metrics.interval(rng.random(len(clusters)) < p[clusters], clusters)
        covered += low <= truth <= high
    assert 0.93 <= covered / 4000 <= 0.97


# --------------------------------------------------------------------------------------------------------------- Holm


@pytest.mark.parametrize(
    ("p_values", "adjusted"),
    [
        ([0.01, 0.04, 0.03, 0.005], [0.03, 0.06, 0.06, 0.02]),  # sorted: .005·4, .01·3, .03·2, then .04·1 lifted to .06
        ([0.5, 0.6], [1, 1]),
        ([0.02, 0.02], [0.04, 0.04]),
        ([0.03], [0.03]),
        ([0.01, math.nan, 0.04], [0.02, math.nan, 0.04]),  # a missing p is no member of the family
        ([0.01, None, 0.04], [0.02, math.nan, 0.04]),
        ([math.nan], [math.nan]),
        ([], []),
    ],
)
def test_holm_by_hand(p_values, adjusted):
    np.testing.assert_allclose(metrics.holm(p_values), adjusted)


def test_holm_is_the_closed_test_of_bonferroni():
    # Closure principle: a hypothesis falls when every intersection that holds it falls by Bonferroni.
    rng = np.random.default_rng(0)
    for _ in range(20):
        p = rng.random(5) ** 3
        closed = np.zeros(5)
        for subset in range(1, 32):
            members = [i for i in range(5) if subset >> i & 1]
            closed[members] = np.maximum(closed[members], min(1, len(members) * p[members].min()))
        np.testing.assert_allclose(metrics.holm(p), closed)


# ---------------------------------------------------------------------------------------------------------- summaries

NAMES = [f"c{i}" for i in range(6)]
FAMILY = metrics.FAMILY


def made_up(categories=("temporal", "single-hop", "adversarial")):
    """Six conversations with one question a category, and a function that makes an arm from a value a question."""
    questions = [ask(i, 0, name=name, category=category) for name in NAMES for i, category in enumerate(categories)]
    data = corpus_of(questions, *(talk(name) for name in NAMES))

    def arm(value, metric=FAMILY):
        return pd.DataFrame({metric: {q.question_id: float(value(q)) for q in questions}})

    return data, arm


def row(tidy, variant, category, metric=FAMILY):
    (found,) = tidy[(tidy[["variant", "metric", "category"]] == [variant, metric, category]).all(axis=1)].to_dict(
        "records"
    )
    return found


def number(question):
    return int(question.conversation_id[1:])


def test_categories_are_pooled_without_and_with_the_unanswerable():
    data, arm = made_up()
    tidy = metrics.summarise({"dense": arm(lambda q: q.category == "adversarial")}, data, [FAMILY])
    found = {r["category"]: (r["n"], r["value"]) for r in tidy.to_dict("records")}
    assert found == {
        **{"temporal": (6, 0), "single-hop": (6, 0), "adversarial": (6, 1)},
        **{"all": (12, 0), "all+adversarial": (18, pytest.approx(1 / 3))},
    }
    assert tidy.columns.tolist() == list(metrics.COLUMNS)


def test_another_data_set_keeps_its_own_category_names():
    data, arm = made_up(("multi-session", "knowledge-update", "abstention"))
    tidy = metrics.summarise({"dense": arm(lambda q: 1)}, data, [FAMILY])
    assert tidy["category"].tolist() == ["multi-session", "knowledge-update", "abstention", "all", "all+adversarial"]
    assert tidy["n"].tolist() == [6, 6, 6, 12, 18]


@pytest.mark.parametrize(
    ("categories", "rows"),
    [(("temporal",), ["temporal", "all"]), (("adversarial",), ["adversarial"])],
)
def test_a_pool_that_would_be_empty_or_a_copy_has_no_row(categories, rows):
    data, arm = made_up(categories)
    assert metrics.summarise({"dense": arm(lambda q: 1)}, data, [FAMILY])["category"].tolist() == rows


def test_a_conversation_without_a_category_is_left_out_of_it():
    data, arm = made_up(("temporal", "open-domain"))
    gone = [q for q in data.questions if not (q.conversation_id == "c0" and q.category == "open-domain")]
    table = arm(number).loc[[q.question_id for q in gone]]
    found = row(metrics.summarise({"dense": table}, corpus_of(gone), [FAMILY]), "dense", "open-domain")
    assert (found["n"], found["value"]) == (5, 3)  # (1 + 2 + 3 + 4 + 5) / 5
    assert (found["ci_low"], found["ci_high"]) == pytest.approx(
        (3 - 2.7764 * 0.5**0.5, 3 + 2.7764 * 0.5**0.5), abs=1e-3
    )


def test_differences_are_paired_and_tested_on_the_family_in_all_only():
    data, arm = made_up()
    arms = {"dense": arm(lambda q: 0.2), "bm25": arm(lambda q: 0.2 + 0.1 * number(q))}
    arms = {name: table.join(table.rename(columns={FAMILY: "recall@15"})) for name, table in arms.items()}
    tidy = metrics.summarise(arms, data, [FAMILY, "recall@15"], baseline="dense")
    # Differences 0, .1, ... .5 by conversation: mean .25, se .1871 / √6 = .0764, t = 3.273, p = .0221.
    found = row(tidy, "bm25", "all")
    assert (found["baseline"], found["n"]) == ("dense", 12)
    assert (found["delta"], found["delta_ci_low"], found["delta_ci_high"]) == pytest.approx(
        (0.25, 0.25 - 2.5706 * 0.076376, 0.25 + 2.5706 * 0.076376), abs=1e-4
    )
    assert found["p_value"] == pytest.approx(0.0221, abs=1e-4)
    assert tidy["p_value"].notna().sum() == tidy["p_holm"].notna().sum() == 1  # one arm, one metric, one category
    assert tidy.loc[tidy["variant"] == "dense", "delta"].isna().all()


def test_holm_runs_over_all_arms():
    data, arm = made_up(("temporal",))
    arms = {"dense": arm(lambda q: 0), "a": arm(number), "b": arm(lambda q: number(q) - 1), "c": arm(lambda q: 0)}
    tidy = metrics.summarise(arms, data, [FAMILY], baseline="dense")
    p = {v: row(tidy, v, "all")["p_value"] for v in "abc"}
    assert p["a"] < p["b"] < p["c"] == 1
    assert [row(tidy, v, "all")["p_holm"] for v in "abc"] == pytest.approx([3 * p["a"], 2 * p["b"], 1])


def test_a_difference_is_over_the_questions_both_arms_have():
    data, arm = made_up(("temporal",))
    dense = arm(lambda q: 0)
    dense.loc["c5#0"] = math.nan
    tidy = metrics.summarise({"dense": dense, "a": arm(number)}, data, [FAMILY], baseline="dense")
    found = row(tidy, "a", "all")
    assert (found["n"], found["value"], found["delta"]) == (6, 2.5, 2)  # 0 + ... + 5 over 6; 0 + ... + 4 over 5
    assert row(tidy, "dense", "all")["n"] == 5


def test_a_difference_pairs_questions_by_their_id():
    data, arm = made_up(("temporal",))
    dense = arm(lambda q: 10 * number(q)).iloc[::-1]
    tidy = metrics.summarise({"dense": dense, "a": arm(lambda q: 11 * number(q))}, data, [FAMILY], baseline="dense")
    found = row(tidy, "a", "all")  # differences 0 to 5
    assert found["delta"] == 2.5
    assert found["delta_ci_high"] == pytest.approx(2.5 + 2.5706 * 0.76376, abs=1e-4)


def test_each_arm_may_have_its_own_baseline():
    data, arm = made_up(("temporal",))
    arms = {name: arm(lambda q, more=more: number(q) + more) for name, more in zip("abcd", (0, 1, 3, 7), strict=True)}
    tidy = metrics.summarise(arms, data, [FAMILY], baseline={"b": "a", "d": "c"})
    found = {v: (row(tidy, v, "all")["baseline"], row(tidy, v, "all")["delta"]) for v in "bd"}
    assert found == {"b": ("a", 1), "d": ("c", 4)}
    assert tidy.loc[tidy["variant"].isin(["a", "c"]), ["baseline", "delta", "p_value"]].isna().all(axis=None)


def test_truth_values_and_gaps_are_numbers_and_left_out():
    data, arm = made_up(("temporal",))
    dense, other = arm(lambda q: 0).astype(object), arm(lambda q: 0).astype(object)
    dense[FAMILY] = [False, True, False, False, False, False]
    other[FAMILY] = [True, True, True, False, False, None]
    tidy = metrics.summarise({"dense": dense, "a": other}, data, [FAMILY], baseline="dense")
    found = row(tidy, "a", "all")
    assert (found["n"], found["value"], found["delta"]) == (5, 0.6, 0.4)


def test_a_metric_that_an_arm_lacks_has_no_row():
    data, arm = made_up()
    arms = {"dense": arm(lambda q: 1), "turns": arm(lambda q: 1, "turn_recall@10")}
    tidy = metrics.summarise(arms, data, [FAMILY, "turn_recall@10"], baseline="dense")
    assert set(zip(tidy["variant"], tidy["metric"], strict=True)) == {("dense", FAMILY), ("turns", "turn_recall@10")}


@pytest.mark.parametrize(("shift", "p"), [(0, 1), (0.5, 0)])
def test_a_constant_difference_is_certain(shift, p):
    data, arm = made_up(("temporal",))
    arms = {"dense": arm(number), "a": arm(lambda q: number(q) + shift)}
    assert row(metrics.summarise(arms, data, [FAMILY], baseline="dense"), "a", "all")["p_value"] == p


def test_with_few_conversations_there_is_neither_interval_nor_p():
    questions = [ask(i, 0, name=name) for name in "ab" for i in range(3)]
    table = pd.DataFrame({FAMILY: {q.question_id: 1.0 for q in questions}})
    tidy = metrics.summarise({"dense": table, "bm25": table - 0.5}, corpus_of(questions), [FAMILY], "dense")
    found = row(tidy, "bm25", "all")
    assert found["delta"] == -0.5
    assert all(math.isnan(found[c]) for c in ("ci_low", "delta_ci_high", "p_value", "p_holm"))


# ---------------------------------------------------------------------------------------------- a setting for the rest


def test_a_conversation_has_the_setting_that_is_best_on_the_others():
    data, arm = made_up(("temporal",))
    lucky, steady = arm(lambda q: 9 * (number(q) == 0)), arm(lambda q: 1)  # best on c0 alone, best without c0
    settings = {name: t.join(t.rename(columns={FAMILY: "recall@15"}) * 2) for name, t in (("a", lucky), ("b", steady))}
    table, chosen = metrics.leave_one_out(settings, data, FAMILY)
    assert chosen == {"c0": "b"} | dict.fromkeys(NAMES[1:], "a")
    assert table[FAMILY].tolist() == [1, 0, 0, 0, 0, 0] and table["recall@15"].tolist() == [2, 0, 0, 0, 0, 0]


def test_the_choice_is_made_on_answerable_questions_and_every_question_keeps_its_place():
    data, arm = made_up(("adversarial", "temporal"))
    order = np.random.default_rng(0).permutation(12)  # rows of a conversation need not stand together
    refusing = arm(lambda q: 9 * (q.category == "adversarial")).iloc[order]
    answering = arm(lambda q: q.category == "temporal").iloc[order]
    table, chosen = metrics.leave_one_out({"refusing": refusing, "answering": answering}, data, FAMILY)
    assert set(chosen.values()) == {"answering"}
    pd.testing.assert_frame_equal(table, answering)


def test_the_first_setting_is_taken_where_several_are_best_or_nothing_can_be_compared():
    data, arm = made_up(("temporal",))
    _, chosen = metrics.leave_one_out({"a": arm(lambda q: 0), "b": arm(number), "c": arm(number)}, data, FAMILY)
    assert set(chosen.values()) == {"b"}
    alone = [q.question_id for q in data.questions if number(q) == 3]
    _, chosen = metrics.leave_one_out({"a": arm(number).loc[alone] - 1, "b": arm(number).loc[alone]}, data, FAMILY)
    assert chosen == {"c3": "a"}
