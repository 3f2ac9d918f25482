"""Scores and their uncertainty: evidence recall in all its forms, intervals over conversations, paired comparisons.

All recalls come from one table, `evidence_hits`: for each evidence turn of each question, the rank of the first window
that touches it and what had been handed over by then. Estimate: the mean over questions. Interval: estimate ± t(.975,
G − 1)·SE with SE from the delete-one-conversation jackknife; LoCoMo has ten conversations and questions within
one are not independent.
"""

import numpy as np
import pandas as pd

from rawrag_utils.corpus import UNANSWERABLE, turn_places
from rawrag_utils.scores import bleu1, locomo_f1, mem0_f1  # noqa: F401 (answer scores, under the name that is relied on)

CUTOFFS = (1, 5, 10, 15, 30)
BUDGETS = (400, 1000, 2000, 3500)
FAMILY = "recall@1000tok"  # the one metric, named beforehand, on which a notebook's arms are tested
MIN_CLUSTERS = 5  # below this no interval is given
COLUMNS = ("variant", "metric", "category", "n", "value", "ci_low", "ci_high")  # of a result row without a baseline


def evidence_hits(corpus, index, ranking, extra=0, reader=None, questions=None, shown=None):
    """When each evidence turn is handed over: columns `query_id, turn, rank, session_rank, tokens`, a row a turn.

    `rank` is that of the first window that touches the turn (`extra` turns around a window count as touched),
    `session_rank` that of the first window touching its session, `tokens` the cl100k tokens of all turn lines handed
    over up to and including this one (+1 each for the newline), walking down the ranking and through each window's
    turns in order, each turn once. All three are infinite where no ranked window touches the turn. Lines are those of
    the index `reader` where the ranked index holds others: an arm without captions searches without them, its reader
    still gets whole turns. Questions without usable evidence have no row, nor have those without a row in the
    ranking, unless they are among `questions`, the questions asked: what found nothing (an empty pool) then counts as
    infinite instead of leaving the mean. `shown` is a metadata filter: for a query_id it holds a boolean array, one a
    turn; turns that it hides are never handed over and cost nothing.
    """
    reader = index if reader is None else reader
    conversations = {c.conversation_id: c for c in corpus.conversations}
    asked = {q.question_id: q for q in corpus.questions}
    prepared, pieces = {}, []
    for query_id, doc_ids in _complete(_runs(ranking), questions):
        question = asked[query_id]
        name = question.conversation_id
        if name not in prepared:
            spans = reader[name]["turn_context"]["turn_spans"]
            prepared[name] = _prepare(conversations[name], index[name]["chunks"], spans, extra)
        windows, costs, sessions, positions = prepared[name]
        turns = [positions[turn_id] for turn_id in question.evidence]
        if turns:
            ranks = _first_ranks([windows[d] for d in doc_ids], len(costs))
            if shown and query_id in shown:
                ranks = np.where(shown[query_id], ranks, np.inf)
            pieces.append(
                (query_id, turns, ranks[turns], _session_ranks(ranks, sessions)[turns], _tokens(ranks, costs)[turns])
            )
    columns = ("query_id", "turn", "rank", "session_rank", "tokens")
    if not pieces:
        return pd.DataFrame({c: [] for c in columns})
    stacked = [np.concatenate([p[i] for p in pieces]) for i in range(1, 5)]
    return pd.DataFrame(
        dict(zip(columns, [np.repeat([p[0] for p in pieces], [len(p[1]) for p in pieces]), *stacked], strict=True))
    )


def touches_evidence(corpus, index, ranking):
    """Boolean Series aligned with `ranking`: does the row's window touch a turn that is evidence for its question?"""
    asked = {q.question_id: q for q in corpus.questions}
    positions = turn_places(corpus)
    spans = {c["chunk_id"]: (c["start_turn"], c["end_turn"]) for part in index.values() for c in part["chunks"]}

    def test(query_id, doc_id):
        first, last = spans[doc_id]
        place = positions[asked[query_id].conversation_id]
        return any(first <= place[turn_id] <= last for turn_id in asked[query_id].evidence)

    return pd.Series(map(test, ranking["query_id"], ranking["doc_id"]), index=ranking.index, dtype=bool)


def _runs(ranking):
    """(query_id, its doc_ids by rank) for every question in order of first appearance, however the rows are sorted."""
    codes, queries = pd.factorize(ranking["query_id"])
    docs = ranking["doc_id"].to_numpy(object)[np.lexsort((ranking["rank"], codes))]
    return zip(queries, np.split(docs, np.cumsum(np.bincount(codes))[:-1]), strict=True) if len(docs) else ()


def _complete(runs, questions):
    """`runs`, then (question id, no window) for each of `questions` that they lack."""
    runs = dict(runs)
    return (runs | {q.question_id: [] for q in questions or () if q.question_id not in runs}).items()


def _prepare(conversation, chunks, spans, extra):
    turns = len(conversation.turns)
    windows = {c["chunk_id"]: (max(0, c["start_turn"] - extra), min(turns, c["end_turn"] + 1 + extra)) for c in chunks}
    sessions = np.unique([t.session for t in conversation.turns], return_inverse=True)[1]
    positions = {t.turn_id: i for i, t in enumerate(conversation.turns)}
    return windows, np.array([end - start + 1 for start, end in spans]), sessions, positions


def _first_ranks(spans, turns):
    ranks = np.full(turns, np.inf)
    for rank in range(len(spans), 0, -1):  # backwards, so that the best window has the last word
        ranks[slice(*spans[rank - 1])] = rank
    return ranks


def _session_ranks(ranks, sessions):
    best = np.full(sessions.max() + 1, np.inf)
    np.minimum.at(best, sessions, ranks)
    return best[sessions]


def _tokens(ranks, costs):
    order = np.argsort(ranks, kind="stable")  # by best window, then in the order of the conversation
    tokens = np.empty(len(ranks))
    tokens[order] = np.cumsum(costs[order])
    return np.where(np.isinf(ranks), np.inf, tokens)


def evidence_recall(hits, cutoffs=CUTOFFS, budgets=BUDGETS, prefix=""):
    """Recall of every question: one row a question, indexed by `query_id`, a column a metric.

    `recall@k` is the share of its evidence turns touched by the first k windows; `recall_any@k`, `recall_all@k`:
    whether any, all are; `session_recall@k`: share of turns whose session is touched; `recall@Btok`: share handed
    over within B tokens. `prefix="turn_"` names the metrics of a ranking of turns.

    >>> hits = pd.DataFrame({"query_id": ["a", "a"], "rank": [2, 40], "session_rank": [2, 3], "tokens": [90, 4000]})
    >>> evidence_recall(hits, cutoffs=[15], budgets=[1000]).loc["a"].to_dict()
    {'recall@15': 0.5, 'recall_any@15': 1.0, 'recall_all@15': 0.0, 'session_recall@15': 1.0, 'recall@1000tok': 0.5}
    """
    columns = {}
    for k in cutoffs:
        columns[f"{prefix}recall@{k}"] = hits["rank"] <= k, "mean"
        columns[f"{prefix}recall_any@{k}"] = hits["rank"] <= k, "max"
        columns[f"{prefix}recall_all@{k}"] = hits["rank"] <= k, "min"
        columns[f"{prefix}session_recall@{k}"] = hits["session_rank"] <= k, "mean"
    for budget in budgets:
        columns[f"recall@{budget}tok"] = hits["tokens"] <= budget, "mean"
    frame = pd.DataFrame({name: test.astype(float) for name, (test, _) in columns.items()})
    grouped = frame.groupby(hits["query_id"].to_numpy(), sort=False).agg({n: how for n, (_, how) in columns.items()})
    return grouped.rename_axis("query_id")


# ------------------------------------------------------------------------------------------------------- uncertainty


def jackknife(values, clusters):
    """Mean of `values`, its standard error by the delete-one-cluster jackknife, and the number of clusters G.

    SE² = (G − 1)/G · Σ(θ₋ᵢ − mean θ₋)², θ₋ᵢ the mean without cluster i (Efron & Tibshirani 1993, ch. 11). The error is
    NaN below `MIN_CLUSTERS` clusters.

    >>> mean, error, groups = jackknife([1, 0, 1, 1, 0], ["a", "b", "c", "d", "e"])
    >>> mean, round(error, 4), groups
    (0.6, 0.2449, 5)
    """
    values = np.asarray(values, float)
    member, names = pd.factorize(np.asarray(clusters, object))
    groups = len(names)
    mean = float(values.mean()) if len(values) else float("nan")
    if groups < MIN_CLUSTERS:
        return mean, float("nan"), groups
    left_out = (values.sum() - np.bincount(member, values)) / (len(values) - np.bincount(member))
    error = np.sqrt((groups - 1) / groups * np.sum((left_out - left_out.mean()) ** 2))
    return mean, float(error), groups


def interval(values, clusters, level=0.95):
    """(mean, low, high): the clustered t interval; low and high are NaN with too few clusters.

    >>> [round(x, 3) for x in interval([1, 0, 1, 1, 0], list("abcde"))]
    [0.6, -0.08, 1.28]
    """
    return _t_interval(*jackknife(values, clusters), level)


def _t_interval(mean, error, groups, level=0.95):
    from scipy import special

    half = special.stdtrit(groups - 1, (1 + level) / 2) * error  # quantile of t; the error is NaN with too few groups
    return mean, float(mean - half), float(mean + half)


def holm(p_values):
    """Holm's step-down adjustment of a family of p values, NaN passed through.

    >>> [round(float(p), 3) for p in holm([0.01, 0.04, 0.03])]
    [0.03, 0.06, 0.06]
    """
    p = np.asarray(p_values, float)
    adjusted, family = np.full(len(p), np.nan), np.flatnonzero(~np.isnan(p))
    order = family[np.argsort(p[family], kind="stable")]
    steps = p[order] * (len(order) - np.arange(len(order)))
    adjusted[order] = np.minimum(1, np.maximum.accumulate(steps))
    return adjusted


def leave_one_out(settings, corpus, metric):
    """Per-question table in which each conversation has the setting that is best on the others, and the choices.

    `settings` maps a setting to its per-question table; best is the highest mean of `metric` over the answerable
    questions of the other conversations (the first such setting where several are). No setting is chosen on questions
    it is tested on. With a single conversation the first setting is taken.
    """
    about = {q.question_id: (q.conversation_id, q.category) for q in corpus.questions}
    queries = next(iter(settings.values())).index
    clusters = np.array([about[q][0] for q in queries], object)
    answerable = ~np.isin([about[q][1] for q in queries], UNANSWERABLE)
    values = np.stack([table[metric].to_numpy() for table in settings.values()])
    chosen, rows = {}, []
    for name in dict.fromkeys(clusters):
        others = (clusters != name) & answerable
        best = int(np.argmax(values[:, others].mean(axis=1))) if others.any() else 0
        chosen[name] = list(settings)[best]
        rows.append(settings[chosen[name]][clusters == name])
    return pd.concat(rows).loc[queries], chosen


def summarise(arms, corpus, metrics, baseline=None, family=FAMILY):
    """Tidy result rows for `arms`, a dict of variant name to per-question table (see `evidence_recall`).

    For every variant, metric and category: n, mean, interval; `all` is every answerable category, `all+adversarial`
    every question with evidence. With `baseline` (a variant, or a dict of variant to its own) also the paired
    difference on the questions both have, its interval, and in category `all` on the metric `family`, named beforehand,
    p and Holm's p over all other arms.
    """
    about = {q.question_id: (q.conversation_id, q.category) for q in corpus.questions}
    rows = []
    for variant, table in arms.items():
        for metric in (m for m in metrics if m in table):
            known = table[metric].dropna()
            values = known.to_numpy(float)
            clusters, categories = np.array([about[i] for i in known.index], object).reshape(-1, 2).T
            base = baseline.get(variant) if isinstance(baseline, dict) else baseline
            paired = base and variant != base and metric in arms[base]
            difference = values - arms[base][metric].reindex(known.index).to_numpy(float) if paired else None
            for category, chosen in _categories(categories):
                measured = interval(values[chosen], clusters[chosen])
                row = dict(zip(COLUMNS, (variant, metric, category, int(chosen.sum()), *measured), strict=True))
                if paired:
                    tested = metric == family and category == "all"
                    row |= {"baseline": base} | _compare(difference[chosen], clusters[chosen], tested)
                rows.append(row)
    tidy = pd.DataFrame(rows, columns=None if rows else COLUMNS)
    if "p_value" in tidy:
        tidy["p_holm"] = holm(tidy["p_value"])
    return tidy


def _compare(difference, clusters, tested):
    both = ~np.isnan(difference)
    estimate = jackknife(difference[both], clusters[both])
    row = dict(zip(("delta", "delta_ci_low", "delta_ci_high"), _t_interval(*estimate), strict=True))
    return row | ({"p_value": _p_value(*estimate)} if tested else {})


def _p_value(delta, error, groups):
    from scipy import special

    if np.isnan(error):
        return float("nan")
    if error == 0:
        return 1.0 if delta == 0 else 0.0
    return float(2 * special.stdtr(groups - 1, -abs(delta) / error))  # both tails of t


def _categories(categories):
    """(category, mask of its questions) for each in order of first appearance, then the two pooled ones."""
    for name in dict.fromkeys(categories):
        yield name, categories == name
    answerable = ~np.isin(categories.astype(str), UNANSWERABLE)
    if answerable.any():
        yield "all", answerable
    if answerable.any() and not answerable.all():
        yield "all+adversarial", np.ones(len(categories), bool)
