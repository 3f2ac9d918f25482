"""Rankings of windows: dense search, BM25, late interaction, fusion, reranking. Table in, table out.

Every function returns the same table, ir-measures' column names: `query_id, doc_id, rank, score` (+ `similarity`,
`rerank` where known), rank from 1, sorted by question (in the order given) and rank. Ties are broken by chunk index.
A first stage ranks the windows of the question's own conversation, or those of them that its `dates` leave: a dict of
question id to (from, to), ISO dates, inclusive, None for an open side. Idf and vectors stay those of the whole
conversation. A question whose pool is empty gets no row; `empty_pools` lists such questions.
"""

import collections
import datetime
import re

import numpy as np
import pandas as pd

from rawrag_utils.dialogue import CJK
from rawrag_utils.paths import BadInput


def dense(index, questions, vectors, top=None, dates=None):
    """Rank windows by cosine: `vectors` (questions, dimensions) against the index's, all L2-normalised.

    Exact, one matrix product a conversation. `top` cuts each ranking; None keeps every window. Raises `BadInput` for
    a question about a conversation that the index does not hold, for dates that are none, and for vectors that are not
    finite or of another length than the index's.
    """
    vectors = np.asarray(vectors, np.float64)
    if len(vectors) != len(questions):
        raise BadInput(f"{len(vectors)} query vectors for {len(questions)} questions; wanted one each")
    if len(broken := np.argwhere(~np.isfinite(vectors))):
        name = questions[broken[0][0]].question_id
        raise BadInput(f"{name}: its vector is not finite (NaN or infinity); embed the question again")

    def score(part, rows):
        asked, windows = vectors[rows], part["embeddings"]
        if asked.shape[1:] != windows.shape[1:]:
            raise BadInput(
                f"query vectors of shape {asked.shape[1:]}, the index's {windows.shape[1:]}; "
                "embed both with the same profile"
            )
        # In float32 a product's last bit depends on its place in the batch: equal windows would not tie, and fewer
        # questions could rank otherwise. Rounded from float64 it does not.
        return (asked @ windows.T.astype(np.float64)).astype(np.float32)

    ranking = rank_by(index, questions, score, top, dates)
    ranking["similarity"] = ranking["score"]
    return ranking


def bm25(index, questions, top=None, dates=None):
    """Rank windows by BM25 (lucene, k1 1.5, b .75; English stop words and Snowball stems), idf over the conversation.

    Chinese, Japanese and Korean text is matched by pairs of neighbouring characters, as blanks do not part its words.
    A question of stop words alone scores 0 everywhere and keeps the windows' order.
    """
    import bm25s

    def score(part, rows):
        retriever = bm25s.BM25(method="lucene", k1=1.5, b=0.75)
        words = _words([chunk["content"] for chunk in part["chunks"]])
        if not any(words):  # no word at all, as in a conversation of emoji: nothing to match
            return np.zeros((len(rows), len(words)))
        retriever.index(words, show_progress=False)
        asked = _words([questions[r].text for r in rows])
        return np.stack([retriever.get_scores(q) if q else np.zeros(len(words)) for q in asked])

    return rank_by(index, questions, score, top, dates)


_CJK = re.compile(f"{CJK}+")


def _words(texts):
    """Tokens of each text: bm25s's words without CJK characters, and pairs of those (alone, one stands for itself).

    >>> _words(["The tides of 潮汐力", "COVID19疫苗。茶", "running"])
    [['tide', '潮汐', '汐力'], ['covid19', '疫苗', '茶'], ['run']]
    """
    import bm25s
    import Stemmer

    words = bm25s.tokenize(
        [text if text.isascii() else _CJK.sub(" ", text) for text in texts],
        stopwords="en",
        stemmer=Stemmer.Stemmer("english"),
        return_ids=False,
        show_progress=False,
    )
    return [[*some, *_pairs(text)] for some, text in zip(words, texts, strict=True)]


def _pairs(text):
    runs = () if text.isascii() else _CJK.findall(text)
    return [run[i : i + 2] for run in runs for i in range(max(1, len(run) - 1))]


# -------------------------------------------------------------------------------------------------------- date filter


def empty_pools(index, questions, dates):
    """Ids of the questions whose `dates` leave no window of their conversation to rank."""
    return [q.question_id for q in questions if not candidates(_part(index, q), q, dates).any()]


def without_empty_pools(index, questions, dates):
    """`dates` without those of questions whose pool is empty: the fallback to no filter, for who asks for it.

    Give the result to the first stages and to the context builder alike, so that what is found is also shown.
    """
    empty = set(empty_pools(index, questions, dates))
    return {name: between for name, between in dates.items() if name not in empty}


def turns_between(part, between, name):
    """Boolean array, one a turn of the index object `part`: is its session date in `between`?

    `between` is (from, to), inclusive, None for an open side. An undated turn is in no range; None and (None, None)
    are no range, so every turn stays. Raises `BadInput`, naming the question `name`, for what is no ISO date or no
    pair, and for a from after its to.

    >>> part = {"turn_context": {"turn_session_dates": ["2024-03-02", None, "2024-03-09"]}}
    >>> turns_between(part, ("2024-03-03", None), "q").tolist()
    [False, False, True]
    """
    start, end = check_between(between, name)
    dates = part["turn_context"]["turn_session_dates"]
    if start is None and end is None:
        return np.ones(len(dates), bool)
    days = _days(dates)
    inside = ~np.isnat(days)
    if start is not None:
        inside &= days >= np.datetime64(start)
    return inside if end is None else inside & (days <= np.datetime64(end))


def _days(dates):
    try:
        return np.array(dates, "datetime64[D]")  # None becomes NaT
    except ValueError as error:
        raise BadInput(f"the index holds a session date that is not ISO ({error}); build the index again") from error


def check_between(between, name):
    """(from, to) as dates, None for an open side. Raises `BadInput`, naming the question, for what is no such pair."""
    pair = (None, None) if between is None else between
    if not (isinstance(pair, tuple | list) and len(pair) == 2):
        raise BadInput(f"{name}: dates {between!r:.60}; wanted a pair (from, to), None for an open side")
    start, end = (_check_date(value, name) for value in pair)
    if start and end and start > end:
        raise BadInput(f"{name}: dates from {start} to {end}; the first must not be after the second")
    return start, end


def _check_date(value, name):
    if value is None or type(value) is datetime.date:  # as YAML reads an ISO date
        return value
    try:
        return datetime.date.fromisoformat(value)
    except (TypeError, ValueError) as error:
        raise BadInput(f"{name}: {value!r:.60} is no ISO date; wanted one like '2024-03-02', or None") from error


def candidates(part, question, dates):
    """Boolean array, one a window of the index object `part`: does it touch a turn in the question's range?

    `dates` is that of the first stages; without a range every window is a candidate. Raises `BadInput` as
    `turns_between` does.
    """
    name = question.question_id
    between = check_between(dates.get(name) if dates else None, name)
    if between == (None, None):  # no filter: windows that touch no turn stay too
        return np.ones(len(part["chunks"]), bool)
    before = np.concatenate([[0], np.cumsum(turns_between(part, between, name))])
    first, last = np.array([(c["start_turn"], c["end_turn"]) for c in part["chunks"]]).T
    return before[last + 1] > before[first]


# ------------------------------------------------------------------------------------------------------------- fusion


def rrf(rankings, k=60):
    """Reciprocal rank fusion: the sum of 1 / (k + rank) over `rankings`, rank from 1 (Cormack et al. 2009).

    >>> a = pd.DataFrame({"query_id": "q", "doc_id": ["c_chunk_0", "c_chunk_1"], "rank": [1, 2], "score": [9.0, 1.0]})
    >>> rrf([a, a[1:]])[["doc_id", "rank"]].to_dict("list")
    {'doc_id': ['c_chunk_1', 'c_chunk_0'], 'rank': [1, 2]}
    """
    return _fused(rankings, [1 / (k + ranking["rank"]) for ranking in rankings])


def combsum(rankings, scale=False):
    """CombSUM: the sum of scores (Fox & Shaw 1994); `scale` brings each question's list to [0, 1] first.

    Raw scores add up within one retriever; across retrievers they need scaling.
    """
    return _fused(rankings, [_min_max(ranking) if scale else ranking["score"] for ranking in rankings])


def zsum(rankings, weights=None):
    """The sum, weighted where `weights` are given, of each question's z-scored lists (0 where all scores are equal)."""
    weights = [1.0] * len(rankings) if weights is None else weights
    return _fused(rankings, [w * _z_scores(r) for w, r in zip(weights, rankings, strict=True)])


def _min_max(ranking):
    scores = ranking["score"].groupby(ranking["query_id"], sort=False)
    low, spread = scores.transform("min"), scores.transform("max") - scores.transform("min")
    return ((ranking["score"] - low) / spread.where(spread > 0, 1)).where(spread > 0, 0.0)


def _z_scores(ranking):
    scores = ranking["score"].groupby(ranking["query_id"], sort=False)
    spread = scores.transform("std", ddof=0)
    # All-equal lists can show a spread of rounding errors.
    varies = spread > 1e-12 * scores.transform("max").abs()
    return ((ranking["score"] - scores.transform("mean")) / spread.where(varies, 1)).where(varies, 0.0)


def _fused(rankings, parts):
    """One ranking of all windows that occur, by the sum of what each list gives them; a list without a window gives 0.

    Questions stand in the order in which they first appear.
    """
    if not len(rankings):
        raise BadInput("no ranking to fuse; wanted at least one")
    rows = pd.concat([r[["query_id", "doc_id"]].assign(part=p) for r, p in zip(rankings, parts, strict=True)])
    queries, names = pd.factorize(rows["query_id"])
    docs, ids = pd.factorize(rows["doc_id"])
    pairs, place = np.unique(queries * len(ids) + docs, return_inverse=True)
    fused = pd.DataFrame({"query_id": names[pairs // len(ids)], "doc_id": ids[pairs % len(ids)]})
    # Smallest first: ranks 1, 2, 3 and 3, 2, 1 must tie, but floats added in another order differ in the last bit.
    parts = rows["part"].to_numpy(np.float64)
    order = np.argsort(parts, kind="stable")
    scores = np.bincount(place[order], parts[order]).astype(np.float64)  # no rows at all: integers otherwise
    return _sorted(fused.assign(score=scores), rankings)


def _sorted(table, rankings=()):
    """`table` (query_id, doc_id, score, …) ranked by score; similarity comes from the first list that knows it."""
    order = np.lexsort((positions(table["doc_id"]), -table["score"], pd.factorize(table["query_id"])[0]))
    table = table.iloc[order].drop(columns="rank", errors="ignore").reset_index(drop=True)
    table.insert(2, "rank", table.groupby("query_id", sort=False).cumcount() + 1)
    for known in (r for r in rankings if "similarity" in r and "similarity" not in table):
        table = table.merge(known[["query_id", "doc_id", "similarity"]], on=["query_id", "doc_id"], how="left")
    return table


def positions(doc_ids):
    """The chunk index at the end of each doc_id."""
    codes, ids = pd.factorize(doc_ids)
    return np.array([int(i.rpartition("_")[2]) for i in ids], int)[codes]


def rescored(ranking, scores, pool=None):
    """The first `pool` windows of every question by what `scores`, another ranking of them, gives; adds `rerank`.

    What `rerank` does, where the scores are known. Raises `BadInput` for a window that `scores` lacks.

    >>> a = pd.DataFrame({"query_id": "q", "doc_id": ["c_chunk_0", "c_chunk_1"], "rank": [1, 2], "score": [9.0, 1.0]})
    >>> rescored(a, a.assign(score=[0.2, 0.7]))[["doc_id", "rank", "score"]].to_dict("list")
    {'doc_id': ['c_chunk_1', 'c_chunk_0'], 'rank': [1, 2], 'score': [0.7, 0.2]}
    """
    pooled = ranking if pool is None else ranking[ranking["rank"] <= pool]
    keys = ["query_id", "doc_id"]
    pooled = pooled.drop(columns="score").merge(scores[[*keys, "score"]], on=keys, how="left")
    if pooled["score"].isna().any():
        raise BadInput(f"{pooled['doc_id'][pooled['score'].isna()].iloc[0]}: no score for it; score the whole pool")
    return _sorted(pooled.assign(rerank=pooled["score"]))


def by_turn(index, ranking):
    """A ranking of turns from one of windows: each turn has the score of the best window that touches it.

    Its doc_ids are those of `chunking.turn_windows`, whose window i is turn i's.
    """
    spans = {c["chunk_id"]: (c["start_turn"], c["end_turn"] + 1) for p in index.values() for c in p["chunks"]}
    names = np.array([d.rpartition("_")[0] + "_" for d in ranking["doc_id"]], object)
    starts, ends = np.array([spans[d] for d in ranking["doc_id"]], int).reshape(-1, 2).T
    row = np.repeat(np.arange(len(ranking)), ends - starts)
    turn = np.arange(len(row)) - np.repeat(np.cumsum(ends - starts) - (ends - starts), ends - starts) + starts[row]
    turns = pd.DataFrame({"query_id": ranking["query_id"].to_numpy()[row], "score": ranking["score"].to_numpy()[row]})
    turns["doc_id"] = names[row] + turn.astype(str).astype(object)
    best = turns.groupby(["query_id", "doc_id"], sort=False, as_index=False)["score"].max()
    return _sorted(best[["query_id", "doc_id", "score"]])


def rank_by(index, questions, score, top=None, dates=None):
    """The ranking table from `score(part, rows)`, which gives (questions of one conversation, its windows) scores."""
    pools = [candidates(_part(index, q), q, dates) for q in questions]  # first: what is wrong shows before any work
    groups = collections.defaultdict(list)
    for row, question in enumerate(questions):
        groups[question.conversation_id].append(row)
    pieces = [None] * len(questions)
    for conversation, rows in groups.items():
        scores = np.asarray(score(index[conversation], rows), np.float64)
        for row, order, values in zip(rows, np.argsort(-scores, axis=1, kind="stable"), scores, strict=True):
            best = order[pools[row][order]][:top]
            pieces[row] = best, values[best]
    return _table(index, questions, pieces)


def _part(index, question):
    if question.conversation_id not in index:
        raise BadInput(
            f"{question.question_id}: its conversation {question.conversation_id!r} is not in the index; "
            "build the index of the data set that holds the question"
        )
    return index[question.conversation_id]


def _table(index, questions, pieces):
    ids = {name: np.array([c["chunk_id"] for c in part["chunks"]], object) for name, part in index.items()}
    lengths = [len(best) for best, _ in pieces]
    empty = [np.zeros(0)]  # without questions there is nothing to join
    return pd.DataFrame(
        {
            "query_id": np.repeat(np.array([q.question_id for q in questions], object), lengths),
            "doc_id": np.concatenate(
                [ids[q.conversation_id][p[0]] for q, p in zip(questions, pieces, strict=True)] or [np.zeros(0, object)]
            ),
            "rank": np.concatenate([np.arange(1, n + 1) for n in lengths] or empty).astype(np.int64),
            "score": np.concatenate([p[1] for p in pieces] or empty),
        }
    )


# ----------------------------------------------------------------------------------- late interaction and reranking


def maxsim(index, questions, embedder, rare=False, top=None, dates=None):
    """Rank windows by late interaction: the mean over the question's token vectors of the best cosine in the window.

    `rare` weighs each question token by its idf over the conversation's turn lines.
    """
    from rawrag_utils import rerankers

    asked = rerankers.token_vectors(embedder, [q.text for q in questions], "query")

    def score(part, rows):
        windows = rerankers.token_vectors(embedder, [chunk["content"] for chunk in part["chunks"]])
        queries, weights = [asked[row] for row in rows], None
        if rare:
            lines = rerankers.token_vectors(embedder, part["turn_context"]["turn_lines"])
            weights = rerankers.rarity(lines, queries)
        return rerankers.maxsim(queries, windows, weights)

    return rank_by(index, questions, score, top, dates)


def multisize(index, centred, questions, embedder):
    """A ranking of turns by late interaction at several sizes at once, no weight fitted.

    The sum of z-scores over the conversation's turns: `maxsim(rare=True)` of each index in `centred` (made by
    `chunking.turn_windows`) and, for the windows of `index`, that of the best one which touches the turn.
    """
    parts = [maxsim(part, questions, embedder, rare=True) for part in centred]
    return zsum([*parts, by_turn(index, maxsim(index, questions, embedder, rare=True))])


def rerank(index, questions, ranking, reranker, pool=None, top=None):
    """Score the first `pool` windows of every question anew, all of them, then keep the best `top`.

    The order matters: cut before reranking, and no set measure at the cut can move. Adds `rerank`, which becomes the
    score. Raises `BadInput` for a ranking of other questions or of another index, and when the reranker gives another
    count than asked or something that is no finite number; nothing of that is kept.
    """
    from rawrag_utils import rerankers

    if pool is not None:
        ranking = ranking[ranking["rank"] <= pool]
    texts = {c["chunk_id"]: c["content"] for part in index.values() for c in part["chunks"]}
    asked = {q.question_id: q for q in questions}
    for name, known in (("query_id", asked), ("doc_id", texts)):
        if unknown := [value for value in ranking[name].unique() if value not in known]:
            raise BadInput(f"{unknown[0]}: it is in the ranking, but not among the questions and windows given")
    pooled = _sorted(ranking)  # questions one after the other
    groups = {query: rows["doc_id"].tolist() for query, rows in pooled.groupby("query_id", sort=False)}
    # Questions about one conversation side by side: their pools overlap, and each window is read once.
    order = sorted(groups, key=lambda query: asked[query].conversation_id)
    scores = rerankers.score(reranker, [asked[q].text for q in order], [[texts[d] for d in groups[q]] for q in order])
    values = {query: np.asarray(found, np.float64) for query, found in zip(order, scores, strict=True)}
    for query, docs in groups.items():
        if values[query].shape != (len(docs),) or not np.isfinite(values[query]).all():
            raise BadInput(
                f"{query}: the reranker gave {values[query].size} scores for {len(docs)} windows, or one that is not "
                "finite; nothing was kept, check the reranker and run again"
            )
    pooled["rerank"] = pooled["score"] = np.concatenate([values[query] for query in groups] or [np.zeros(0)])
    ranked = _sorted(pooled)
    names = ["query_id", "doc_id", "rank", "score", "similarity", "rerank"]
    ranked = ranked[[name for name in names if name in ranked]]
    return ranked if top is None else ranked[ranked["rank"] <= top].reset_index(drop=True)
