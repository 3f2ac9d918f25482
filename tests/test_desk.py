"""The desk: rankings equal those of the stages themselves, evidence is accounted for, nothing is computed twice."""

import dataclasses
import sqlite3

import numpy as np
import pytest
from conftest import word_tokens

from rawrag_utils import answering, llm, models, paths, queries, rerankers, retrieval
from rawrag_utils import desk as desks
from rawrag_utils.evaluation import EVIDENCE_STAGES
from rawrag_utils.paths import BadInput

DATES = ("2024-04-01", "2024-06-30")


def asked(desk):
    return desks.questions(desk, "one")


def reranker():
    return rerankers.Reranker(rerankers.RerankerConfig(kind="maxsim"), None)


def by_stages(desk, question, method, dates=None):
    """The ranking that the stages themselves give."""
    built, between = desks.built(desk, "one"), {question.question_id: dates} if dates else None
    dense = retrieval.dense(built, [question], models.embed(None, [question.text], "query"), dates=between)
    bm25 = retrieval.bm25(built, [question], dates=between)
    late = retrieval.maxsim(built, [question], None, dates=between)
    rrf = retrieval.rrf([dense, bm25])
    return {
        "dense": lambda: dense,
        "bm25": lambda: bm25,
        "rrf": lambda: rrf,
        "dense+maxsim": lambda: retrieval.rerank(built, [question], dense, reranker(), desk.settings.pool),
        "rrf+maxsim": lambda: retrieval.rerank(built, [question], rrf, reranker(), desk.settings.pool),
        "zsum": lambda: retrieval.zsum([dense, bm25, late]),
    }[method]()


def rows(ranking):
    return ranking[["query_id", "doc_id", "rank", "score"]].to_numpy().tolist()


@pytest.mark.parametrize("dates", [None, DATES, (None, "2024-05-09")], ids=["all", "between", "until"])
@pytest.mark.parametrize("method", desks.PLAIN)
def test_a_method_ranks_as_its_stages_do(desk, method, dates):
    for question in asked(desk):
        found = desks.find(desk, question, method, dates)
        assert rows(found.ranking) == rows(by_stages(desk, question, method, dates))
        assert found.steps[-1][0] == method


def test_all_questions_at_once_rank_as_one_by_one(desk):
    for method in desks.PLAIN:
        table = desks.rankings(desk, asked(desk), method)
        singly = [row for q in asked(desk) for row in rows(desks.find(desk, q, method).ranking)]
        assert rows(table) == singly


def test_what_was_looked_at_is_not_computed_again(desk, computed, monkeypatch):
    first = {(q, m): desks.find(desk, q, m) for q in asked(desk) for m in desks.PLAIN}
    computed.clear()
    monkeypatch.setattr(retrieval, "bm25", None)
    for (question, method), found in first.items():
        assert desks.find(desk, question, method) is found
        desks.find(desk, question, method, DATES)  # other dates leave windows out, no score changes
        desks.evidence(desk, found)
        desks.context(desk, found)
    assert computed == []


def test_scores_of_late_interaction_come_from_the_cache_of_another_day(desk, computed, monkeypatch):
    before = rows(desks.rankings(desk, asked(desk), "zsum"))
    monkeypatch.setattr(rerankers, "token_vectors", None)
    again = dataclasses.replace(desk, known={})
    assert rows(desks.rankings(again, asked(desk), "zsum")) == before

    connection = sqlite3.connect(paths.cache_root() / "scores" / "late.sqlite")
    with connection:
        connection.execute("UPDATE late SET scores = zeroblob(length(scores))")
    connection.close()
    monkeypatch.setattr(
        rerankers, "token_vectors", lambda e, texts, kind="": [rerankers.Tokens(*word_tokens(t)) for t in texts]
    )
    assert rows(desks.rankings(dataclasses.replace(desk, known={}), asked(desk), "zsum")) == before


def test_evidence_is_handed_over_exactly_where_its_stage_says_so(desk):
    seen = set()
    for budget, top, pool in ((120, 3, 6), (40, 3, 6), (400, 2, 4), (400, 9, 9)):
        some = dataclasses.replace(desk, settings=desk.settings._replace(budget=budget, top=top, pool=pool), known={})
        for question in asked(some):
            for method in ("dense", "rrf+maxsim"):
                for dates in (None, DATES):
                    found = desks.find(some, question, method, dates)
                    table = desks.evidence(some, found)
                    seen |= set(table["stage"])
                    assert len(table) == len(question.evidence)
                    for row in table.to_dict("records"):
                        assert (row["stage"] == "handed over") == (row["turn"] in desks.handed(some, found))
                        ranked = found.ranking["rank"].max() >= row["rank"]
                        assert ranked or row["stage"] in ("not in the pool", "below the cut")
    assert seen == set(EVIDENCE_STAGES)


def test_stages_of_a_conversation_are_those_of_its_questions(desk):
    for method in desks.PLAIN:
        stages = desks.stages(desk, "one", method)
        assert list(stages.index) == [q.question_id for q in asked(desk) if q.evidence]
        for question in asked(desk)[:4]:
            own = desks.evidence(desk, desks.find(desk, question, method))["stage"]
            assert stages[question.question_id] == min(own, key=EVIDENCE_STAGES.index)
    assert desks.stages(desk, "two", "dense").empty


def test_dates_that_leave_no_window_find_nothing(desk):
    found = desks.find(desk, asked(desk)[1], "rrf+maxsim", ("2030-01-01", None))
    assert found.steps == () and desks.context(desk, found) == "" and desks.handed(desk, found) == set()
    assert set(desks.evidence(desk, found)["stage"]) == {"not in the pool"}


def test_the_context_is_what_the_reader_gets_within_the_dates(desk):
    found = desks.find(desk, asked(desk)[1], "dense", DATES)
    kept = found.ranking[found.ranking["rank"] <= 3]
    wanted = answering.format_context(desks.built(desk, "one"), kept, budget=120, dates=DATES)
    assert desks.context(desk, found) == wanted != ""
    turns = desks.conversation(desk, "one").turns
    assert {turns[t].session_date for t in desks.handed(desk, found)} == {"2024-05-09"}


def test_a_typed_question_is_searched_like_any_other(desk):
    known = asked(desk)[1]
    typed = desks.typed("one", f"  {known.text}\n")
    for method in desks.PLAIN:
        found, same = desks.find(desk, typed, method), desks.find(desk, known, method)
        assert found.ranking["doc_id"].tolist() == same.ranking["doc_id"].tolist()
        assert desks.evidence(desk, found).empty and desks.context(desk, found)
    alone = desks.find(desk, desks.typed("two", "Who asks?"), "rrf+maxsim", ("2024-01-01", "2024-01-01"))
    assert len(alone.ranking) == 1  # a conversation without any question of its own


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda desk: desks.typed("one", " \n"), "the question is empty"),
        (lambda desk: desks.find(desk, asked(desk)[0], "magic"), "METHOD='magic': unknown; there are dense, bm25"),
        (lambda desk: desks.conversation(desk, "three"), "no conversation 'three'; there are one, two"),
        (lambda desk: desks.find(desk, asked(desk)[0], "dense", ("2024-13-01", None)), "one#0: '2024-13-01' is no ISO"),
        (lambda desk: desks.prepare("sample", settings=desks.Settings(8, 8)), "CHUNK_SIZE=8, CHUNK_OVERLAP=8"),
    ],
)
def test_what_cannot_be_done_is_said_in_one_line(desk, call, says):
    with pytest.raises(BadInput) as error:
        call(desk)
    assert says in str(error.value) and "\n" not in str(error.value)


# ----------------------------------------------------------------------------------------------------- written answers


@pytest.fixture
def answers(desk, monkeypatch):
    """A cache that knows answers to requests for the first two of the questions asked; nobody may be asked."""
    monkeypatch.setattr(llm, "complete", None)
    wrote = {"rewrite": "the tram", "multi_query": "1. kiln\n2. bowl\n3. tram", "hyde_dialogue": "Nora: The tram."}
    wrote["step_back"] = "What runs in town?"

    def known(chat, request):
        purpose = next(p for p in wrote if (p == "hyde_dialogue") == (request.samples == 3))
        return [
            [llm.Completion(wrote[purpose], 9, 4, 0.1, "stop")] * request.samples if i < 2 else None
            for i in range(len(request.prompts))
        ]

    monkeypatch.setattr(llm, "known", known)
    return known


def test_written_answers_are_read_and_never_asked_for(desk, answers):
    there = desks.written(desk, "hyde")
    assert len(there) == 2 and all(w["hyde_dialogue"].wanted == 3 for w in there.values())
    question = next(q for q in asked(desk) if q.question_id in there)
    dense = desks.find(desk, question, "hyde")
    reranked = desks.find(desk, question, "hyde|rerank")
    assert [name for name, _ in dense.steps] == ["dense", "hyde"]
    assert [name for name, _ in reranked.steps] == ["hyde: pool", "hyde|rerank"]
    bench = queries.Bench(desk.corpus, [question], desks.built(desk, "one"), None, None, 3, 6)
    by_hand = queries.hyde(bench, [there[question.question_id]["hyde_dialogue"]], 3)
    assert rows(dense.ranking) == rows(by_hand.dense)
    pooled = retrieval.rerank(bench.index, [question], by_hand.pool, reranker(), 6)
    assert rows(reranked.ranking) == rows(pooled)
    assert set(desks.stages(desk, "one", "hyde|rerank").index) == set(there)


def test_a_question_that_nothing_was_written_for_says_what_to_run(desk, answers):
    there = desks.written(desk, "rewrite")
    lacking = next(q for q in asked(desk) if q.question_id not in there)
    with pytest.raises(BadInput, match=f"rewrite: the cache has nothing .* for {lacking.question_id}; run 06_router"):
        desks.find(desk, lacking, "rewrite")
    with pytest.raises(BadInput, match="nothing for a typed question; choose one of dense"):
        desks.find(desk, desks.typed("one", "tram"), "combination")


def test_an_empty_cache_knows_nothing(desk, monkeypatch):
    monkeypatch.setattr(llm, "complete", None)
    assert desks.written(desk, "step_back") == {} and desks.stages(desk, "one", "step_back").empty


# ---------------------------------------------------------------------------------------------------------- rerankers


def test_a_reranker_of_its_own_is_asked_for_one_question_at_a_time(desk, monkeypatch):
    own = rerankers.Reranker(rerankers.RerankerConfig(kind="endpoint", model="m", url="http://localhost"), None)
    paid = dataclasses.replace(desk, reranker=own)
    scored = []

    def score(reranker, texts, documents):
        scored.append(texts)
        return [np.arange(len(some), dtype=float) for some in documents]

    monkeypatch.setattr(rerankers, "score", score)
    assert "rrf+endpoint" in desks.methods(paid) and "rrf+endpoint" not in desks.methods(desk)
    found = desks.find(paid, asked(paid)[0], "rrf+endpoint")
    assert len(found.ranking) == 6 and scored == [[asked(paid)[0].text]]
    with pytest.raises(BadInput, match="may cost; choose rrf\\+maxsim"):
        desks.stages(paid, "one", "rrf+endpoint")
    assert len(scored) == 1


def test_late_interaction_takes_the_encoder_that_the_profile_names():
    looked = desks.prepare("sample", "multilingual")
    assert looked.late.config.model == "multilingual-e5-small" and looked.reranker is None
    assert desks.prepare("sample").late.config.model == "all-MiniLM-L6-v2"
