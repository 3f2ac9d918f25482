"""Rankings of windows: dense search, BM25, late interaction, fusion, reranking. Table in, table out.

Every function returns the same table, ir-measures' column names: `query_id, doc_id, rank, score` (+ `similarity`,
`rerank` where known), rank from 1, sorted by question (in the order given) and rank. Ties are broken by chunk index.
A first stage ranks the windows of the question's own conversation.
"""

import collections

import numpy as np
import pandas as pd

from rawrag_utils.paths import BadInput


def dense(index, questions, vectors, top=None):
    """Rank windows by cosine: `vectors` (questions, dimensions) against the index's, all L2-normalised.

    Exact, one matrix product a conversation. `top` cuts each ranking; None keeps every window. Raises `BadInput` for
    a question about a conversation that the index does not hold, and for vectors that are not finite or of another
    length than the index's.
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

    ranking = _rank(index, questions, score, top)
    ranking["similarity"] = ranking["score"]
    return ranking


def bm25(index, questions, top=None):
    """Rank windows by BM25 (lucene, k1 1.5, b .75; English stop words and Snowball stems), idf over the conversation.

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

    return _rank(index, questions, score, top)


def _words(texts):
    import bm25s
    import Stemmer

    return bm25s.tokenize(
        texts, stopwords="en", stemmer=Stemmer.Stemmer("english"), return_ids=False, show_progress=False
    )


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
    """One ranking of all windows that occur, by the sum of what each list gives them."""
    rows = pd.concat([r[["query_id", "doc_id"]].assign(part=p) for r, p in zip(rankings, parts, strict=True)])
    queries, names = pd.factorize(rows["query_id"])
    docs, ids = pd.factorize(rows["doc_id"])
    pairs, place = np.unique(queries * len(ids) + docs, return_inverse=True)
    fused = pd.DataFrame({"query_id": names[pairs // len(ids)], "doc_id": ids[pairs % len(ids)]})
    return _sorted(fused.assign(score=np.bincount(place, rows["part"])), rankings)


def _sorted(table, rankings=()):
    """`table` (query_id, doc_id, score, …) ranked by score; similarity comes from the first list that knows it."""
    order = np.lexsort((_positions(table["doc_id"]), -table["score"], pd.factorize(table["query_id"])[0]))
    table = table.iloc[order].reset_index(drop=True)
    table.insert(2, "rank", table.groupby("query_id", sort=False).cumcount() + 1)
    for known in (r for r in rankings if "similarity" in r and "similarity" not in table):
        table = table.merge(known[["query_id", "doc_id", "similarity"]], on=["query_id", "doc_id"], how="left")
    return table


def _positions(doc_ids):
    """The chunk index at the end of each doc_id."""
    codes, ids = pd.factorize(doc_ids)
    return np.array([int(i.rpartition("_")[2]) for i in ids], int)[codes]


def by_turn(index, ranking):
    """A ranking of turns from one of windows: each turn has the score of the best window that touches it.

    Its doc_ids are those of `chunking.turn_windows`, whose window i is turn i's.
    """
    spans = {c["chunk_id"]: (c["start_turn"], c["end_turn"] + 1) for p in index.values() for c in p["chunks"]}
    names = ranking["doc_id"].str.rpartition("_")[0] + "_"
    starts, ends = np.array([spans[d] for d in ranking["doc_id"]]).reshape(-1, 2).T
    row = np.repeat(np.arange(len(ranking)), ends - starts)
    turn = np.arange(len(row)) - np.repeat(np.cumsum(ends - starts) - (ends - starts), ends - starts) + starts[row]
    turns = pd.DataFrame({"query_id": ranking["query_id"].to_numpy()[row], "score": ranking["score"].to_numpy()[row]})
    turns["doc_id"] = names.to_numpy()[row] + turn.astype(str).astype(object)
    best = turns.groupby(["query_id", "doc_id"], sort=False, as_index=False)["score"].max()
    return _sorted(best[["query_id", "doc_id", "score"]])


def _rank(index, questions, score, top):
    """The ranking table from `score(part, rows)`, which gives (questions of one conversation, its windows) scores."""
    groups = collections.defaultdict(list)
    for row, question in enumerate(questions):
        if question.conversation_id not in index:
            raise BadInput(
                f"{question.question_id}: its conversation {question.conversation_id!r} is not in the index; "
                "build the index of the data set that holds the question"
            )
        groups[question.conversation_id].append(row)
    pieces = [None] * len(questions)
    for conversation, rows in groups.items():
        scores = np.asarray(score(index[conversation], rows), np.float64)
        order = np.argsort(-scores, axis=1, kind="stable")[:, :top]
        for row, best, values in zip(rows, order, np.take_along_axis(scores, order, 1), strict=True):
            pieces[row] = best, values
    return _table(index, questions, pieces)


def _table(index, questions, pieces):
    ids = {name: np.array([c["chunk_id"] for c in part["chunks"]], object) for name, part in index.items()}
    lengths = [len(best) for best, _ in pieces]
    empty = [np.zeros(0)]
    return pd.DataFrame(
        {
            "query_id": np.repeat(np.array([q.question_id for q in questions], object), lengths),
            "doc_id": np.concatenate(
                [ids[q.conversation_id][p[0]] for q, p in zip(questions, pieces, strict=True)] or empty
            ),
            "rank": np.concatenate([np.arange(1, n + 1) for n in lengths] or empty).astype(np.int64),
            "score": np.concatenate([p[1] for p in pieces] or empty),
        }
    )
