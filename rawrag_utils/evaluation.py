"""What became of the questions: scores of every answer, abstention, and the stage at which an answer was lost.

A table here has one row a question, indexed by `query_id`, and a column a metric, so that `metrics.summarise` makes
result rows of it. Official F1 is the score that every other number here is read against; an answer counts as right
from an official F1 of `RIGHT` on, which is a convention of this module, not of LoCoMo's.
"""

import json

import numpy as np
import pandas as pd

from rawrag_utils import corpus as corpora
from rawrag_utils import derived, llm, metrics, paths, queries, scores
from rawrag_utils.corpus import UNANSWERABLE, turn_places
from rawrag_utils.paths import BadInput

RIGHT = 0.5
SCORES = ("official_f1", "mem0_f1", "bleu1", "rouge_l", "exact_match")
SPENT = ("memory_tokens", "prompt_tokens", "completion_tokens", "llm_seconds", "usd")
OTHERS = ("coverage", "abstained", "answer_words", *SPENT)  # columns of a table that are no scores
STAGES = ("answered", "not in the pool", "not handed over", "lost among the memories", "not read from the evidence")
EVIDENCE_STAGES = (STAGES[1], "below the cut", "beyond the budget", "handed over")  # of a turn, in pipeline order
USES = ("all handed over, right", "all handed over, wrong", "not all handed over, right", "not all handed over, wrong")


def answerable(corpus, categories, count, seed):
    """The questions with an answer that are asked: those of `corpus.select`. Raises `BadInput` for none, or no gold.

    With a count they have usable evidence, as in the retrieval notebooks; with 0 all are asked, evidence or not.
    """
    chosen = corpora.select(corpus.questions, categories, count, seed)
    chosen = [q for q in chosen if q.category not in UNANSWERABLE]
    derived.check_golds(chosen)
    if not chosen:
        raise BadInput(
            f"{corpus.path}: no question with an answer{' and evidence' if count else ''} in categories {categories}; "
            "add questions to the file or choose other CATEGORIES"
        )
    return chosen


def scored(chat, corpus, questions, prompts_asked, answers):
    """The per-question table of one arm: its `answering.Asked`s and `answering.Answer`s against the golds.

    Columns: `SCORES` (of a question without an answer `official_f1` only, which asks for a refusal), `coverage` (share
    of its evidence turns that were handed over, NaN without evidence), `abstained` (0 or 1), `answer_words`, and
    `SPENT`: cl100k tokens of the turns handed over, the model's own tokens, seconds (a batch's shared out) and US
    dollars (NaN where the profile states no price).
    """
    places = turn_places(corpus)
    rows = []
    for question, asked, answer in zip(questions, prompts_asked, answers, strict=True):
        evidence = {places[question.conversation_id][turn_id] for turn_id in question.evidence}
        read, wrote = answer.completion.prompt_tokens, answer.completion.completion_tokens
        rows.append(
            against_gold(answer.text, question)
            | {
                "coverage": len(evidence & set(asked.turns)) / len(evidence) if evidence else None,
                "abstained": float(scores.refuses(answer.text)),
                "answer_words": len(answer.text.split()),
            }
            | dict(zip(SPENT, (asked.tokens, read, wrote, answer.completion.seconds), strict=False))
            | {"usd": llm.cost(chat.config, read, wrote)}
        )
    names = pd.Index([q.question_id for q in questions], name="query_id")
    return pd.DataFrame(rows, names).astype(float)


def with_bill(chat, table, bill):
    """A per-question table with what a query-side method took of the model on top (see `queries.bill`)."""
    table = queries.priced(table, bill.loc[table.index])
    costs = [llm.cost(chat.config, *spent) for spent in table[["prompt_tokens", "completion_tokens"]].to_numpy()]
    return table.assign(usd=pd.Series(costs, table.index, dtype=float))


def against_gold(text, question):
    """`SCORES` of one answer; a question without an answer has the official one only.

    >>> from rawrag_utils.corpus import Question
    >>> question = Question("c#0", "c", "What did Nora sell?", "two bowls", "single-hop", (), ())
    >>> against_gold("bowls", question)["official_f1"], against_gold("Two bowls.", question)["exact_match"]
    (0.6666666666666666, 1.0)
    """
    if question.category in UNANSWERABLE:
        return {"official_f1": scores.locomo_f1(text, question.answer, "adversarial")}
    gold = question.answer
    values = (
        scores.locomo_f1(text, gold, question.category),
        scores.mem0_f1(text, gold),
        scores.bleu1(text, gold),
        scores.rouge_l(text, gold),
        scores.exact_match(text, gold),
    )
    return dict(zip(SCORES, values, strict=True))


def faults(prompted, answers):
    """What went wrong, as counts: a DataFrame, a row an arm; both dicts map an arm to its `Asked`s and `Answer`s.

    `trimmed`: turns left out because the model's context could not hold them; `empty`: nothing usable was answered;
    `cut`: the limit on tokens ended the answer; `withheld`: a content filter did.
    """
    rows = {}
    for name, asked in prompted.items():
        ends = [a.completion.finish for a in answers[name]]
        rows[name] = {
            "questions": len(asked),
            "trimmed": sum(one.trimmed for one in asked),
            "empty": sum(not a.text for a in answers[name]),
            "cut": ends.count("length"),
            "withheld": ends.count("content_filter"),
        }
    return pd.DataFrame.from_dict(rows, orient="index")


def over_sessions(corpus, questions):
    """Those of `questions` whose evidence lies in several sessions: a fact was told anew, and may have changed."""
    sessions = {(c.conversation_id, t.turn_id): t.session for c in corpus.conversations for t in c.turns}
    return [q for q in questions if len({sessions[q.conversation_id, e] for e in q.evidence}) > 1]


def abstention(tables, corpus):
    """How well arms abstain: a DataFrame, a row an arm of `tables` ({name: per-question table}).

    Columns: how many questions without an answer there are and how many of them were abstained from, the same for those
    with one, `precision` (share of abstentions that were right to abstain; NaN without any; it moves with the mix of
    questions) and `recall` (share of questions without an answer that were abstained from) with its interval.
    """
    talks = {q.question_id: q.conversation_id for q in corpus.questions}
    unanswerable = {q.question_id for q in corpus.questions if q.category in UNANSWERABLE}
    rows = {}
    for name, table in tables.items():
        without = table.index.isin(unanswerable)
        right, wrong = table["abstained"][without].sum(), table["abstained"][~without].sum()
        recall = metrics.interval(table["abstained"][without], [talks[name] for name in table.index[without]])
        rows[name] = {
            "no answer": int(without.sum()),
            "abstained, no answer": int(right),
            "answerable": int((~without).sum()),
            "abstained, answerable": int(wrong),
            "precision": right / (right + wrong) if right + wrong else float("nan"),
            **dict(zip(("recall", "ci_low", "ci_high"), recall, strict=True)),
        }
    return pd.DataFrame.from_dict(rows, orient="index")


def used(tables):
    """Was the evidence handed over, and was it used? Counts: a DataFrame, a row an arm, a column for each of `USES`.

    Right is an official F1 of at least `RIGHT`. Questions without evidence are left out.
    """
    rows = {}
    for name, table in tables.items():
        known = table[table["coverage"].notna()]
        whole, right = known["coverage"] == 1, known["official_f1"] >= RIGHT
        rows[name] = [int((a & b).sum()) for a in (whole, ~whole) for b in (right, ~right)]
    return pd.DataFrame.from_dict(rows, orient="index", columns=list(USES))


def stages(table, pool_recall, alone):
    """The stage at which each question was lost, a Series of `STAGES` by query_id, in the order of the pipeline.

    `pool_recall` is the share of evidence in the pool before the cut, `alone` the table of the arm that reads the
    evidence and nothing else: what it answers and `table` does not was lost among the other memories, what neither
    answers was not read. Questions without evidence are left out.
    """
    table = table[table["coverage"].notna()]
    answered = table["official_f1"] >= RIGHT
    found = pool_recall.reindex(table.index) == 1
    whole = table["coverage"] == 1
    read = alone["official_f1"].reindex(table.index) >= RIGHT
    stage = pd.Series(STAGES[4], table.index, dtype=object)
    for name, test in ((STAGES[3], read), (STAGES[2], ~whole), (STAGES[1], ~found), (STAGES[0], answered)):
        stage[test] = name  # the earliest stage has the last word
    return stage


def evidence_stages(before, after, pool, top, budget):
    """The stage at which each evidence turn was lost: `after` with columns `pool_rank` and `stage` (`EVIDENCE_STAGES`).

    `before` and `after` are `metrics.evidence_hits` of the ranking whose first `pool` windows were reranked and of the
    result, whose first `top` are kept and handed over within `budget` tokens. What `stages` calls not handed over is
    below the cut or beyond the budget.

    >>> hits = pd.DataFrame({"query_id": "a", "turn": [4, 8, 9], "rank": [2, 9, 60], "tokens": [90, 700, 4000]})
    >>> evidence_stages(hits, hits, pool=50, top=5, budget=1000)["stage"].tolist()
    ['handed over', 'below the cut', 'not in the pool']
    """
    ranks = before[["query_id", "turn", "rank"]].rename(columns={"rank": "pool_rank"})
    table = after.merge(ranks, on=["query_id", "turn"], how="left", validate="1:1")
    stage = np.full(len(table), EVIDENCE_STAGES[3], object)
    lost = table["tokens"] > budget, table["rank"] > top, table["pool_rank"] > pool
    for name, test in zip(EVIDENCE_STAGES[2::-1], lost, strict=True):
        stage[test] = name  # the earliest stage has the last word
    return table.assign(stage=stage)


def first_loss(turns):
    """For each question the earliest stage at which one of its evidence turns was lost, a Series by query_id.

    `turns` is a table of `evidence_stages`. A question that lost nothing is `handed over`.

    >>> first_loss(pd.DataFrame({"query_id": ["a", "a"], "stage": ["handed over", "below the cut"]})).to_dict()
    {'a': 'below the cut'}
    """
    order = pd.Series(range(len(EVIDENCE_STAGES)), EVIDENCE_STAGES)
    earliest = turns["stage"].map(order).groupby(turns["query_id"].to_numpy(), sort=False).min()
    return earliest.map(pd.Series(EVIDENCE_STAGES)).rename("stage")


def worst(questions, table, answers, alone, stage, wrong=(), count=3):
    """The answers with the lowest official F1, at most `count` a stage: a DataFrame to read, with texts.

    `answers` and `alone` are the arm's `Answer`s and those from the evidence alone, for `questions` and any that follow
    them; `stage` is what `stages` gave; `wrong` holds ids of golds that are known to be wrong.
    """
    lines = {
        q.question_id: (q.category, q.text, q.answer, a.text, b.text, "wrong gold" if q.question_id in wrong else "")
        for q, a, b in zip(questions, answers, alone, strict=False)
    }
    score = table["official_f1"].reindex(stage.index)
    failed = stage[stage != STAGES[0]].to_frame("stage").assign(f1=score).sort_values("f1", kind="stable")
    chosen = failed.groupby("stage", sort=False).head(count)
    chosen = pd.concat([chosen[chosen["stage"] == name] for name in STAGES[:0:-1]])
    columns = ["category", "question", "gold", "answer", "answer from the evidence", "note"]
    return chosen.join(pd.DataFrame.from_dict(lines, orient="index", columns=columns))


def wrong_golds(corpus):
    """{question_id: kind of fault} of the golds that an audit found wrong (dial481/locomo-audit); {} but for LoCoMo."""
    if corpus.sha256 != corpora.LOCOMO_SHA256:
        return {}
    path = paths.ROOT / "data" / "locomo_wrong_golds.json"
    try:
        known = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise BadInput(f"{paths.relative(path)}: cannot be read ({error}); restore it with git checkout") from error
    return {q.question_id: known[q.question_id] for q in corpus.questions if q.question_id in known}
