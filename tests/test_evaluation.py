"""What became of answers: scores, abstention, use of the evidence and the stage of a loss, by hand."""

import dataclasses
import os
import types

import pandas as pd
import pytest

from rawrag_utils import answering, corpus, evaluation, llm, metrics, paths
from rawrag_utils.corpus import Conversation, Corpus, Question, Turn
from rawrag_utils.paths import BadInput

CHAT = types.SimpleNamespace(config=types.SimpleNamespace(kind="local"))


def made():
    turns = tuple(Turn(f"D{1 + i // 2}:{i}", 1 + i // 2, None, "2024-03-02", "Nora", f"turn {i}") for i in range(6))
    asked = [
        Question("c#0", "c", "What did Nora sell?", "two bowls", "single-hop", ("D1:0",), ()),
        Question("c#1", "c", "What does she like?", "clay, rain", "multi-hop", ("D1:1", "D3:4"), ()),
        Question("c#2", "c", "Would she sing?", "Yes; she hums", "open-domain", (), ()),
        Question("c#3", "c", "What did Tobias sell?", None, "adversarial", ("D1:0",), (), "two bowls"),
    ]
    return Corpus("made", "made.json", "0" * 64, [Conversation("c", "c", "Nora", "Tobias", turns)], asked, [])


def asked(*turns, tokens=90, trimmed=False):
    return answering.Asked([], "en", turns, tokens, trimmed)


def answer(text, finish="stop"):
    return answering.Answer(text, llm.Completion(text, 500, 7, 2.5, finish))


def scored(*texts, handed=((0,), (1,), (), (2,))):
    data = made()
    return evaluation.scored(CHAT, data, data.questions, [asked(*t) for t in handed], [answer(t) for t in texts])


def test_a_table_by_hand():
    table = scored("Two bowls.", "clay", "yes", "No information available")
    assert table["official_f1"].to_list() == [1, 0.5, 1, 1]
    assert table["exact_match"].to_list()[:3] == [1, 0, 0] and table.loc["c#3"].isna()["exact_match"]
    assert table["coverage"].fillna(-1).to_list() == [1, 0.5, -1, 0]
    assert table["abstained"].to_list() == [0, 0, 0, 1] and table["answer_words"].to_list() == [2, 1, 1, 3]
    spent = table.loc["c#0", list(evaluation.SPENT)].to_list()
    assert spent == [90, 500, 7, 2.5, 0]
    assert set(table.columns) == {*evaluation.SCORES, *evaluation.OTHERS}


def test_a_price_that_is_not_known_is_no_number():
    data = made()
    chat = types.SimpleNamespace(
        config=llm.ChatConfig(kind="endpoint", model="m", max_context=4096, usd_per_million_prompt_tokens=2)
    )
    table = evaluation.scored(chat, data, data.questions[:1], [asked(0)], [answer("x")])
    assert table["usd"].isna().all()
    chat.config.usd_per_million_completion_tokens = 4
    table = evaluation.scored(chat, data, data.questions[:1], [asked(0)], [answer("x")])
    assert table["usd"].to_list() == [pytest.approx((500 * 2 + 7 * 4) / 1e6)]


@pytest.mark.parametrize("text", ["", "x" * 10_000, "我不知道", "\x00\ud7ff", "12", "- " * 500])
def test_any_prediction_has_scores_between_0_and_1(text):
    table = scored(text, text, text, text)
    assert table[list(evaluation.SCORES)].stack().dropna().between(0, 1).all()


@pytest.mark.parametrize("gold", ["3", "clay, rain, 3", "", "；"])
def test_any_gold_has_scores(gold):
    question = Question("c#0", "c", "What?", gold, "multi-hop", (), ())
    assert all(0 <= v <= 1 for v in evaluation.against_gold("three", question).values())


def test_other_names_of_questions_without_an_answer():
    question = Question("c#0", "c", "What?", "You did not say.", "abstention", (), ())
    assert evaluation.against_gold("Not mentioned.", question) == {"official_f1": 1.0}


def test_abstention_by_hand():
    data = made()
    tables = {
        "shy": scored(*["Not mentioned"] * 4),
        "bold": scored(*["two bowls"] * 4),
        "wise": scored("two bowls", "No information available", "yes", "no information available"),
    }
    rows = evaluation.abstention(tables, data).to_dict("index")
    assert rows["shy"]["precision"] == 0.25 and rows["shy"]["recall"] == 1 and rows["shy"]["answerable"] == 3
    assert rows["bold"]["precision"] != rows["bold"]["precision"] and rows["bold"]["recall"] == 0
    assert rows["wise"]["precision"] == 0.5 and rows["wise"]["abstained, answerable"] == 1


def test_use_counts_whole_evidence_and_right_answers():
    found = evaluation.used({"arm": scored("two bowls", "rain, clay", "yes", "x")}).loc["arm"].to_list()
    assert found == [1, 0, 1, 1]  # c#2 has no evidence


def test_stages_in_the_order_of_the_pipeline():
    names = ["a", "b", "c", "d", "e"]
    table = pd.DataFrame({"official_f1": [0.9, 0, 0, 0, 0.49], "coverage": [0, 0, 0.5, 1, 1]}, names)
    alone = pd.DataFrame({"official_f1": [0, 1, 1, 1, 0]}, names)
    pool = pd.Series([0, 0.9, 1, 1, 1], names)
    assert evaluation.stages(table, pool, alone).to_list() == list(evaluation.STAGES)
    assert len(evaluation.stages(table.assign(coverage=None), pool, alone)) == 0


def test_the_worst_answers_of_each_stage():
    data = made()
    stage = pd.Series([evaluation.STAGES[4], evaluation.STAGES[0]], ["c#0", "c#1"])
    table = scored("x", "clay, rain", "y", "z")
    rows = evaluation.worst(data.questions, table, [answer("x")] * 4, [answer("bowls")] * 4, stage, {"c#0": "fault"})
    assert rows.index.to_list() == ["c#0"] and rows.loc["c#0", "note"] == "wrong gold"
    assert rows.loc["c#0", ["gold", "answer", "answer from the evidence"]].to_list() == ["two bowls", "x", "bowls"]


def test_the_worst_come_from_the_last_stage_on_and_at_most_so_many():
    names = [f"c#{i}" for i in range(6)]
    asked = [Question(name, "c", "What?", "x", "single-hop", (), ()) for name in names]
    stage = pd.Series([evaluation.STAGES[s] for s in (1, 4, 4, 4, 0, 2)], names)
    table = pd.DataFrame({"official_f1": [0, 0.4, 0.1, 0.2, 1, 0]}, names)
    rows = evaluation.worst(asked, table, [answer("y")] * 6, [answer("z")] * 6, stage, count=2)
    assert rows.index.to_list() == ["c#2", "c#3", "c#5", "c#0"]


def test_a_query_side_model_is_on_the_bill():
    table = scored("x", "x", "x", "x")
    bill = pd.DataFrame(1.0, table.index, ["prompt_tokens", "completion_tokens", "llm_seconds"])
    chat = types.SimpleNamespace(
        config=llm.ChatConfig(
            kind="endpoint",
            model="m",
            max_context=4096,
            usd_per_million_prompt_tokens=1,
            usd_per_million_completion_tokens=1,
        )
    )
    billed = evaluation.with_bill(chat, table, bill)
    assert billed.loc["c#0", ["prompt_tokens", "completion_tokens", "llm_seconds"]].to_list() == [501, 8, 3.5]
    assert billed["usd"].to_list() == [pytest.approx(509e-6)] * 4


def test_only_questions_with_an_answer_are_answerable():
    data = made()
    asked = evaluation.answerable(data, [1, 2, 3, 4, 5], 0, 0)
    assert [q.question_id for q in asked] == ["c#0", "c#1", "c#2"]
    with pytest.raises(BadInput, match="no question with an answer in categories"):
        evaluation.answerable(data, [5], 0, 0)
    data.questions[0] = dataclasses.replace(data.questions[0], answer=None)
    with pytest.raises(BadInput, match="c#0: has no gold answer"):
        evaluation.answerable(data, [1, 2, 3, 4], 0, 0)


def test_faults_are_counted():
    prompted = {"arm": [asked(trimmed=True), asked()], "other": [asked()]}
    answers = {"arm": [answer("", "length"), answer("x", "content_filter")], "other": [answer("y")]}
    rows = evaluation.faults(prompted, answers)
    assert rows.loc["arm"].to_list() == [2, 1, 1, 1, 1] and rows.loc["other"].to_list() == [1, 0, 0, 0, 0]


def test_questions_over_sessions():
    data = made()
    assert [q.question_id for q in evaluation.over_sessions(data, data.questions)] == ["c#1"]


def test_official_f1_as_the_family():
    data = made()
    arms = {"a": scored("x", "x", "x", "x"), "b": scored("two bowls", "clay", "yes", "x")}
    table = metrics.summarise(arms, data, evaluation.SCORES, "a", family="official_f1")
    assert "p_value" in table and table[table["variant"] == "b"]["delta"].notna().any()
    assert set(table[table["metric"] == "bleu1"]["category"]) == {"single-hop", "multi-hop", "open-domain", "all"}


def test_wrong_golds_are_locomos_alone(monkeypatch, tmp_path):
    assert evaluation.wrong_golds(corpus.load("sample")) == {}
    data = made()
    data = dataclasses.replace(data, sha256=corpus.LOCOMO_SHA256)
    assert evaluation.wrong_golds(data) == {}
    monkeypatch.setattr(paths, "ROOT", tmp_path)
    with pytest.raises(BadInput, match=r"locomo_wrong_golds.json: cannot be read .* git checkout"):
        evaluation.wrong_golds(data)


@pytest.mark.skipif("RAWRAG_LOCOMO" not in os.environ, reason="set RAWRAG_LOCOMO to count wrong golds")
def test_ninety_nine_golds_of_locomo_are_wrong():
    data = corpus.load("locomo")
    wrong = evaluation.wrong_golds(data)
    answerable = [q for q in data.questions if q.category != "adversarial"]
    assert len(wrong) == 99 and len(answerable) == 1540
    assert set(wrong) <= {q.question_id for q in answerable} and len(set(wrong.values())) == 5
