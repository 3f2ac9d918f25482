"""Query-side methods on a conversation made here, with vectors and answers made here: no weights, no model."""

import dataclasses

import numpy as np
import pandas as pd
import pytest

from rawrag_utils import chunking, index, llm, metrics, models, prompts, queries, retrieval
from rawrag_utils.corpus import Conversation, Corpus, Question, Turn
from rawrag_utils.paths import BadInput

TEXTS = (
    "The kiln is hot again.",
    "I sold two clay bowls.",
    "My bicycle has a flat tyre.",
    "Let us meet at the harbour.",
    "The violin lesson was hard.",
    "Rain all week, the tram is full.",
)
SPEAKERS = ("Nora", "Tobias")


@pytest.fixture
def corpus():
    turns = tuple(
        Turn(
            f"D{1 + i // 3}:{1 + i % 3}", 1 + i // 3, None, ("2024-03-02", "2024-05-09")[i // 3], SPEAKERS[i % 2], text
        )
        for i, text in enumerate(TEXTS)
    )
    asked = ("What is hot?", "What did Nora have trouble with in March 2024?", "小雅賣了什麼?")
    evidence = (("D1:1",), ("D1:3",), ("D1:2", "D2:3"))
    questions = [
        Question(f"c#{i}", "c", text, "x", "single-hop", e, e)
        for i, (text, e) in enumerate(zip(asked, evidence, strict=True))
    ]
    conversation = Conversation("c", "c", *SPEAKERS, turns)
    return Corpus("made", "made.json", "0" * 64, [conversation], questions, [])


def vector(text):
    """A unit vector that depends on the text's letters, so that texts that share words are near."""
    counts = np.array([text.lower().count(chr(97 + i)) for i in range(26)], np.float64) + 1e-3
    return (counts / np.linalg.norm(counts)).astype(np.float32)


def vectors(texts):
    return np.stack([vector(t) for t in texts]) if texts else np.zeros((0, 0), np.float32)


@pytest.fixture
def bench(corpus, monkeypatch):
    monkeypatch.setattr(models, "embed", lambda embedder, texts, kind="document": vectors(texts))
    monkeypatch.setattr(
        "rawrag_utils.rerankers.score",
        lambda reranker, asked, windows: [
            np.array([len(set(q.lower().split()) & set(w.lower().split())) for w in some], float)
            for q, some in zip(asked, windows, strict=True)
        ],
    )
    built = index.build(corpus.conversations, chunking.turn_windows)
    built = index.with_vectors(built, models.embed(None, index.contents(built)))
    return queries.Bench(corpus, corpus.questions, built, None, None, top=2, pool=4)


def completion(text="x", finish="stop", tokens=(10, 3), seconds=0.5):
    return llm.Completion(text, *tokens, seconds, finish)


def wrote(*texts, wanted=None):
    return queries.Written(texts, wanted or len(texts), tuple(completion() for _ in texts))


def same(a, b):
    columns = ["query_id", "doc_id", "rank"]
    assert a[columns].to_numpy().tolist() == b[columns].to_numpy().tolist()


# ------------------------------------------------------------------------------------------------------------- asking


def test_each_language_has_its_own_request_and_every_question_a_place(corpus):
    asked = queries.requests(corpus, corpus.questions, "multi_query")
    assert {name: places for name, (places, _) in asked.items()} == {"en": [0, 1], "zh": [2]}
    english, chinese = asked["en"][1], asked["zh"][1]
    assert english.prompts[0][0] == english.prompts[1][0] != chinese.prompts[0][0]
    assert "What is hot?" in english.prompts[0][1]["content"]


def test_hyde_is_told_who_speaks_and_when_and_nothing_else(corpus):
    (_, request) = queries.requests(corpus, corpus.questions[:1], "hyde_dialogue", samples=3)["en"]
    told = request.prompts[0][1]["content"]
    assert told == "The friends: Nora and Tobias. The chat runs from March 2024 to May 2024.\nQuestion: What is hot?"
    assert request.samples == 3 and request.temperature == 0.7


def test_an_undated_conversation_has_no_period_and_a_question_stays_on_one_line(corpus):
    talk = corpus.conversations[0]
    bare = dataclasses.replace(talk, turns=tuple(dataclasses.replace(t, session_date=None) for t in talk.turns))
    question = dataclasses.replace(corpus.questions[0], text="What\nis {hot}\n?")
    undated = dataclasses.replace(corpus, conversations=[bare])
    (_, request) = queries.requests(undated, [question], "hyde_dialogue")["en"]
    assert request.prompts[0][1]["content"] == "The friends: Nora and Tobias.\nQuestion: What is {hot} ?"


def answered(monkeypatch, text, finish="stop"):
    def complete(chat, request):
        return [[completion(text, finish)] * request.samples for _ in request.prompts]

    monkeypatch.setattr(llm, "complete", complete)


def test_what_cannot_be_read_falls_back_and_is_counted(corpus, monkeypatch):
    answered(monkeypatch, "```\n```", "length")
    written = {p: queries.write(None, corpus, corpus.questions, p) for p in queries.PURPOSES}
    assert all(w.texts == (None,) for some in written.values() for w in some)
    counts = queries.faults(written)
    assert (counts["fallback"] == 3).all() and (counts["too few"] == 0).all() and (counts["cut"] == 3).all()


def test_too_few_variants_are_used_and_counted(corpus, monkeypatch):
    answered(monkeypatch, "1. hot kiln\n2. hot oven")
    written = queries.write(None, corpus, corpus.questions, "multi_query")
    assert written[0].texts == ("hot kiln", "hot oven") and written[0].wanted == 5
    assert queries.faults({"multi_query": written})["too few"].item() == 3


def test_a_copied_example_is_no_answer(corpus, monkeypatch):
    copied = prompts.template("step_back", "en").system.splitlines()[-1]
    answered(monkeypatch, copied)
    assert queries.write(None, corpus, corpus.questions[:1], "step_back")[0].texts == (None,)


def test_withheld_answers_are_counted(corpus, monkeypatch):
    answered(monkeypatch, "", "content_filter")
    assert queries.faults({"rewrite": queries.write(None, corpus, corpus.questions, "rewrite")})["withheld"].item() == 3


def test_no_question_with_evidence_is_one_line(corpus):
    bare = [dataclasses.replace(q, evidence=()) for q in corpus.questions]
    with pytest.raises(BadInput, match="no question with evidence in categories"):
        queries.answerable(dataclasses.replace(corpus, questions=bare), [1, 2, 3, 4], 0, 0)


# ------------------------------------------------------------------------------------------------------------ methods


def test_without_a_usable_text_every_method_is_the_plain_search(bench):
    plain, nothing = queries.direct(bench), [wrote(None)] * 3
    head = plain.dense[plain.dense["rank"] <= bench.top]
    for method in (
        queries.multi_query(bench, nothing, 3),
        queries.step_back(bench, nothing),
        queries.combination(bench, nothing, nothing),
        queries.one_answer(bench, nothing),
    ):
        same(method.dense, head)
        same(method.pool, plain.pool)
    same(queries.multi_query(bench, nothing, 3, exchanged=True).dense, head)
    same(queries.step_back(bench, nothing, exchanged=True).dense, head)
    for method in (queries.hyde(bench, nothing, 3), queries.hyde(bench, nothing, 3, question=False)):
        same(method.dense, plain.dense)
    same(queries.rewrite(bench, nothing).dense, plain.dense)


def test_multi_query_is_combsum_of_lists_cut_at_top(bench):
    variants = ["kiln heat", "bicycle tyre", "clay bowls sold"]
    method = queries.multi_query(bench, [wrote(v, "unused") for v in variants], 1)
    asked = [dataclasses.replace(q, text=v) for q, v in zip(bench.questions, variants, strict=True)]
    lists = []
    for some in (bench.questions, asked):
        ranking = retrieval.dense(bench.index, some, np.stack([vector(q.text) for q in some]))
        lists.append(ranking[ranking["rank"] <= bench.top])
    same(method.dense, retrieval.combsum(lists))
    assert method.bill["completion_tokens"].tolist() == [6, 6, 6]


def test_hyde_searches_with_the_mean_of_question_and_answers(bench):
    answers = [wrote("[2024-03-02] Nora: The kiln!", None, "[2024-03-02] Nora: Hot!") for _ in bench.questions]
    method = queries.hyde(bench, answers, 3)
    means = [vector(q.text) + vector(answers[0].texts[0]) + vector(answers[0].texts[2]) for q in bench.questions]
    means = [m / np.linalg.norm(m) for m in means]
    same(method.dense, retrieval.dense(bench.index, bench.questions, np.stack(means)))
    only = queries.hyde(bench, answers, 1, first=2, question=False)
    same(only.dense, retrieval.dense(bench.index, bench.questions, np.stack([vector(answers[0].texts[2])] * 3)))


def test_the_bill_counts_the_answers_that_were_used(bench):
    answers = [
        queries.Written(("a", "b"), 2, (completion(tokens=(10, 3)), completion(tokens=(0, 5)))) for _ in bench.questions
    ]
    assert queries.hyde(bench, answers, 1).bill.iloc[0].tolist() == [10, 3, 0.5]
    assert queries.hyde(bench, answers, 2).bill.iloc[0].tolist() == [10, 8, 1.0]
    assert queries.hyde(bench, answers, 1, first=1).bill.iloc[0].tolist() == [10, 5, 0.5]
    assert queries.direct(bench).bill.to_numpy().sum() == 0


def test_a_rewrite_replaces_the_question(bench):
    method = queries.rewrite(bench, [wrote("violin lesson")] * 3)
    same(method.dense, retrieval.dense(bench.index, bench.questions, np.stack([vector("violin lesson")] * 3)))


def test_all_defaults_have_both_arms_with_a_ceiling_and_a_bill(bench):
    some = [wrote("hot kiln", "clay", "tyre")] * 3
    methods = queries.defaults(bench, dict.fromkeys(queries.needs(), some))
    assert list(methods) == list(queries.METHODS)
    for name, method in methods.items():
        arms = queries.arms(bench, method, name)
        assert list(arms) == [name, f"{name}|rerank"]
        assert all(list(table.index) == ["c#0", "c#1", "c#2"] for table in arms.values())
        reranked = arms[f"{name}|rerank"]
        assert (reranked["pool_recall"] >= reranked["recall@1"] - 1e-9).all()
        assert set(queries.BILL) <= set(reranked) and "pool_recall" not in arms[name]


# ------------------------------------------------------------------------------------------------------------- filter


def test_a_named_month_and_speaker_filter_windows_and_turns(bench):
    narrow = queries.filtered(bench)
    assert narrow.dates == {"c#1": ("2024-03-01", "2024-03-31")}
    assert {name: turns.tolist() for name, turns in narrow.shown.items()} == {"c#1": [True, False, True] + [False] * 3}
    ranked = queries.direct(narrow).dense.query("query_id == 'c#1'")["doc_id"]
    assert sorted(ranked) == ["c_chunk_0", "c_chunk_1", "c_chunk_2"]
    hits = metrics.evidence_hits(bench.corpus, bench.index, queries.direct(narrow).dense, shown=narrow.shown)
    assert np.isfinite(hits.query("query_id == 'c#1'")["tokens"]).all()


def test_hidden_turns_cost_nothing_and_are_never_found(bench):
    ranking = pd.DataFrame({"query_id": "c#2", "doc_id": [f"c_chunk_{i}" for i in range(6)], "rank": range(1, 7)})
    whole = metrics.evidence_hits(bench.corpus, bench.index, ranking)
    shown = {"c#2": np.array([False, True, False, False, False, False])}
    hits = metrics.evidence_hits(bench.corpus, bench.index, ranking, shown=shown)
    assert hits["rank"].tolist() == [2, np.inf] and hits["tokens"].iloc[0] < whole["tokens"].iloc[0]
    start, end = bench.index["c"]["turn_context"]["turn_spans"][1]
    assert hits["tokens"].tolist() == [end - start + 1, np.inf]


def test_a_filter_that_leaves_no_window_is_dropped(bench):
    question = dataclasses.replace(bench.questions[0], text="What was hot in July 2031?")
    narrow = queries.filtered(bench._replace(questions=[question]))
    assert narrow.dates == {} and narrow.shown == {}


# ------------------------------------------------------------------------------------------------------------- router


def test_routes_below_the_threshold_and_what_cannot_be_read_go_direct(bench):
    table = queries.route_table(["rewrite", "hyde", "multi_query", "combination", "combination"])
    sure, unsure = prompts.Route("conceptual", 0.9, ""), prompts.Route("factual", 0.4, "")
    written = [queries.Written((r,), 1, ()) for r in (sure, unsure, None)]
    assert queries.routed(bench, written, table, 0.5).tolist() == ["hyde", "dense", "dense"]
    assert queries.routed(bench, written, table, 0.4).tolist() == ["hyde", "rewrite", "dense"]


@pytest.mark.parametrize("methods", [[], ["dense"] * 4, ["dense"] * 4 + ["magic"], ["dense"] * 6])
def test_a_bad_route_table_is_one_line_that_names_types_and_methods(methods):
    with pytest.raises(BadInput) as caught:
        queries.route_table(methods)
    assert "factual" in str(caught.value) and "multi_query" in str(caught.value) and "\n" not in str(caught.value)


def test_picked_rows_prices_and_the_oracle():
    names = pd.Index(["a", "b", "c"])
    bill = dict.fromkeys(queries.BILL, 1.0)
    cheap = pd.DataFrame({"m": [1.0, 0.0, 0.5], **bill}, names)
    dear = pd.DataFrame({"m": [1.0, 1.0, 0.0], **dict.fromkeys(bill, 9.0)}, names)
    best = queries.oracle({"cheap": cheap, "dear": dear}, "m")
    assert best.tolist() == ["cheap", "dear", "cheap"]  # the first of equals
    chosen = queries.picked({"cheap": cheap, "dear": dear}, best)
    assert chosen["m"].tolist() == [1, 1, 0.5] and chosen["llm_seconds"].tolist() == [1, 9, 1]
    assert queries.priced(chosen, cheap)["llm_seconds"].tolist() == [2, 10, 2]


def test_extremes_show_gains_first_then_losses(bench):
    names = [q.question_id for q in bench.questions]
    before, after = pd.DataFrame({"m": [0.0, 1.0, 0.5]}, names), pd.DataFrame({"m": [1.0, 0.0, 0.5]}, names)
    table = queries.extremes(bench, before, after, [wrote("first"), wrote(None), wrote("x")], "m")
    assert table["change"].tolist() == [1, -1] and table["written"].tolist() == ["first", "nothing usable"]


def test_each_variant_is_compared_with_its_own_baseline():
    names = [f"c{i}#0" for i in range(6)]
    questions = [Question(n, n[:2], "?", "", "temporal", ("D1:1",), ()) for n in names]
    corpus = Corpus("made", "made.json", "", [], questions, [])
    values = {"a": 0.1, "b": 0.5, "a+": 0.2, "b+": 0.4}
    arms = {name: pd.DataFrame({metrics.FAMILY: value}, pd.Index(names)) for name, value in values.items()}
    table = metrics.summarise(arms, corpus, [metrics.FAMILY], {"a+": "a", "b+": "b"})
    rows = table[table["category"] == "all"].set_index("variant")
    assert rows.loc["a+", "delta"] == pytest.approx(0.1) and rows.loc["b+", "delta"] == pytest.approx(-0.1)
    assert rows.loc[["a", "b"], "baseline"].isna().all() and rows["p_holm"].notna().sum() == 2
