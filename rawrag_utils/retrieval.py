"""Rankings of windows: exact dense search and BM25, each over the windows of the question's own conversation.

Every function returns the same table, ir-measures' column names: `query_id, doc_id, rank, score` (+ `similarity`),
rank from 1, sorted by question (in the order given) and rank. Ties are broken by chunk index.
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
