"""Rankings: the scores of a plain loop and of the formula, ties by chunk index, the same table from every function."""

import collections
import math
import re

import numpy as np
import pandas as pd
import pytest

from rawrag_utils import chunking, corpus, index, retrieval
from rawrag_utils.corpus import Conversation, Question, Turn
from rawrag_utils.paths import BadInput


def talk(name, *texts):
    turns = (Turn(f"D1:{i}", 1, None, None, "Nora", text) for i, text in enumerate(texts, 1))
    return Conversation(name, name, "Nora", "Tobias", tuple(turns))


def ask(*pairs):
    """Questions from (conversation, text) pairs."""
    return [Question(f"{name}#{i}", name, text, None, "temporal", (), ()) for i, (name, text) in enumerate(pairs)]


def turn_index(*talks):
    """One window a turn, its line without date: `Nora: <text>`."""
    return index.build(talks, chunking.turn_windows, dates=False)


def unit(rng, *shape):
    vectors = rng.normal(size=shape)
    return (vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)).astype(np.float32)


def order(ranking, query_id):
    """Chunk indices of one question's ranking."""
    return [int(d.rsplit("_", 1)[1]) for d in ranking.loc[ranking["query_id"] == query_id, "doc_id"]]


ONE, TWO = talk("one", "kiln", "glaze", "clay"), talk("two", "trail", "map")


# ------------------------------------------------------------------------------------------------------------- dense


def test_dense_equals_a_plain_loop():
    rng = np.random.default_rng(0)
    built = index.with_vectors(turn_index(ONE, TWO), unit(rng, 5, 16))
    questions = ask(("two", ""), ("one", ""), ("two", ""), ("one", ""))
    asked = unit(rng, 4, 16)
    rows = []
    for question, q in zip(questions, asked, strict=True):
        part = built[question.conversation_id]
        cosines = [sum(float(a) * float(b) for a, b in zip(q, w, strict=True)) for w in part["embeddings"]]
        best = sorted(range(len(cosines)), key=lambda k, cosines=cosines: (-cosines[k], k))
        for rank, k in enumerate(best, 1):
            rows.append((question.question_id, part["chunks"][k]["chunk_id"], rank, cosines[k], cosines[k]))
    wanted = pd.DataFrame(rows, columns=["query_id", "doc_id", "rank", "score", "similarity"])
    pd.testing.assert_frame_equal(retrieval.dense(built, questions, asked), wanted, rtol=1e-6)


@pytest.mark.parametrize("half", [3, 23, 47, 53, 59])
def test_equal_windows_rank_by_chunk_index_wherever_they_stand(half):
    # As a float32 product their scores differ in the last bit, depending on their place in the batch.
    rng = np.random.default_rng(1)
    vectors = unit(rng, half, 384)
    built = index.with_vectors(turn_index(talk("c", *["Hi"] * (2 * half))), np.concatenate([vectors, vectors]))
    for count in (1, 7, 10):
        questions = ask(*[("c", "?")] * count)
        ranking = retrieval.dense(built, questions, unit(rng, count, 384))
        for question in questions:
            first, second = np.reshape(order(ranking, question.question_id), (-1, 2)).T
            assert (second == first + half).all()


def test_a_question_ranks_the_same_alone_and_among_others():
    rng = np.random.default_rng(2)
    built = index.with_vectors(turn_index(talk("c", *["Hi"] * 60)), unit(rng, 60, 384))
    questions, asked = ask(*[("c", "?")] * 40), unit(rng, 40, 384)
    together = retrieval.dense(built, questions, asked)
    alone = [retrieval.dense(built, [q], asked[i : i + 1]) for i, q in enumerate(questions)]
    pd.testing.assert_frame_equal(pd.concat(alone, ignore_index=True), together, check_exact=True)


@pytest.mark.parametrize(
    ("vectors", "message"),
    [
        (np.ones((1, 4)), "1 query vectors for 2 questions"),
        (np.ones((2, 5)), r"shape \(5,\), the index's \(4,\)"),
        (np.ones(2), r"shape \(\), the index's \(4,\)"),
        (np.array([[1, 0, 0, 0], [0, np.nan, 0, 0]]), "one#1: its vector is not finite"),
        (np.array([[1, 0, 0, np.inf], [0, 0, 0, 0]]), "one#0: its vector is not finite"),
    ],
    ids=["count", "dimensions", "flat", "nan", "infinite"],
)
def test_query_vectors_that_do_not_fit_are_refused(vectors, message):
    built = index.with_vectors(turn_index(ONE), np.eye(3, 4))
    with pytest.raises(BadInput, match=message):
        retrieval.dense(built, ask(("one", "?"), ("one", "?")), vectors)


# -------------------------------------------------------------------------------------------------------------- BM25


def lucene(query, documents, k1=1.5, b=0.75):
    """BM25 as Lucene has it: a word of the question that stands there twice counts twice.

    score(q, d) = Σ ln(1 + (n - df + .5) / (df + .5)) · tf / (tf + k1 · (1 - b + b · |d| / mean |d|))
    """
    words = [collections.Counter(d.lower().replace(":", "").split()) for d in documents]
    mean = sum(w.total() for w in words) / len(words)
    scores = []
    for document in words:
        length = k1 * (1 - b + b * document.total() / mean)
        score = 0
        for word in query.lower().split():
            df = sum(word in other for other in words)
            idf = math.log(1 + (len(words) - df + 0.5) / (df + 0.5))
            score += idf * document[word] / (document[word] + length)
        scores.append(score)
    return scores


@pytest.mark.parametrize("text", ["kiln", "glaze kiln", "kiln kiln glaze", "pond kiln", "Nora GLAZE"])
def test_bm25_is_the_formula(text):
    # Words without a stem of their own or a place among the stop words: the lines are the tokens.
    texts = ("kiln glaze kiln", "glaze clay", "kiln clay clay clay clay", "pot")
    built = turn_index(talk("c", *texts))
    ranking = retrieval.bm25(built, ask(("c", text)))
    scores = dict(zip(order(ranking, "c#0"), ranking["score"], strict=True))
    assert [scores[k] for k in range(4)] == pytest.approx(lucene(text, index.contents(built)), rel=1e-5)


def test_bm25_by_hand():
    # Two windows of two words. "kiln" stands in one: idf = ln(1 + 1.5 / 1.5) = ln 2; tf / (tf + 1.5) = 1 / 2.5.
    ranking = retrieval.bm25(turn_index(talk("c", "glaze", "kiln")), ask(("c", "Kilns?")))
    assert list(ranking["doc_id"]) == ["c_chunk_1", "c_chunk_0"]
    assert ranking["score"].tolist() == pytest.approx([math.log(2) / 2.5, 0])


def test_idf_is_of_the_questions_own_conversation():
    alone = retrieval.bm25(turn_index(ONE), ask(("one", "kiln")))
    beside = retrieval.bm25(turn_index(ONE, talk("two", "kiln", "kiln")), ask(("one", "kiln")))
    pd.testing.assert_frame_equal(alone, beside)


@pytest.mark.parametrize(
    "text", ["", "the of and", "?!", "👩‍👩‍👧‍👦", "zeppelin"], ids=["empty", "stop", "marks", "emoji", "unknown"]
)
def test_a_question_without_a_known_word_keeps_the_order_of_the_windows(text):
    ranking = retrieval.bm25(turn_index(ONE), ask(("one", text)))
    assert order(ranking, "one#0") == [0, 1, 2]
    assert (ranking["score"] == 0).all()


def test_a_conversation_of_emoji_has_no_word_to_match():
    emoji = Conversation("c", "c", "🐸", "🦜", tuple(Turn(f"D1:{i}", 1, None, None, "🐸", "🦜🦜") for i in range(3)))
    ranking = retrieval.bm25(turn_index(emoji), ask(("c", "kiln"), ("c", "🦜")))
    assert order(ranking, "c#0") == order(ranking, "c#1") == [0, 1, 2]


def test_windows_without_a_word_rank_below():
    built = turn_index(Conversation("c", "c", "🐸", "🦜", (Turn("D1:1", 1, None, None, "🐸", "🦜"), ONE.turns[0])))
    assert order(retrieval.bm25(built, ask(("c", "kiln"))), "c#0") == [1, 0]


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("潮汐力很大", ["潮汐", "汐力", "力很", "很大"]),
        ("潮汐，月亮。茶 水", ["潮汐", "月亮", "茶", "水"]),
        ("The COVID19疫苗 of 潮", ["covid19", "疫苗", "潮"]),
        ("コーヒーの時々、ｶﾅ", ["コー", "ーヒ", "ヒー", "ーの", "の時", "時々", "ｶﾅ"]),
        ("조석 이야기", ["조석", "이야", "야기"]),
        ("𠮷野家", ["𠮷野", "野家"]),
        ("「」・…！", []),
        ("Running tides", ["run", "tide"]),
    ],
)
def test_chinese_japanese_and_korean_are_pairs_of_characters(text, tokens):
    assert retrieval._words([text]) == [tokens]


def test_part_of_a_chinese_sentence_finds_it():
    built = turn_index(talk("c", "太陽的引力比較小", "月亮的引力拉起海水", "我們休息十分鐘", "茶"))
    questions = ask(("c", "海水為什麼升高？"), ("c", "休息多久"), ("c", "喝茶 or 茶?"))
    ranking = retrieval.bm25(built, questions)
    assert [order(ranking, q.question_id)[0] for q in questions] == [1, 2, 3]


def test_text_without_such_characters_has_the_tokens_of_bm25s():
    import bm25s
    import Stemmer

    data = corpus.load("sample")
    built = index.build(data.conversations)
    english = [name for name, part in built.items() if not re.search(r"[\u3040-\ud7ff]", str(part["chunks"]))]
    assert len(english) == 2
    windows = [chunk["content"] for name in english for chunk in built[name]["chunks"]]
    asked = [q.text for q in data.questions if q.conversation_id in english]
    for texts in (windows, asked, ["naïve Größe שלום 42 👩‍👩‍👧‍👦 _x_"]):
        plain = bm25s.tokenize(
            texts, stopwords="en", stemmer=Stemmer.Stemmer("english"), return_ids=False, show_progress=False
        )
        assert retrieval._words(texts) == plain


# --------------------------------------------------------------------------------------------- what both have in common


def both(*talks):
    """(name, function of questions and top) for dense and BM25 over one index."""
    rng = np.random.default_rng(3)
    bare = turn_index(*talks)
    built = index.with_vectors(bare, unit(rng, len(index.contents(bare)), 8))

    def dense(questions, top=None):
        return retrieval.dense(built, questions, unit(np.random.default_rng(4), len(questions), 8), top)

    return {"dense": dense, "bm25": lambda questions, top=None: retrieval.bm25(built, questions, top)}


@pytest.fixture(params=["dense", "bm25"])
def rank(request):
    return lambda *talks: both(*talks)[request.param]


def test_questions_keep_their_order_and_ranks_run_from_one(rank):
    questions = ask(("two", "map"), ("one", "kiln"), ("two", "trail"), ("one", "glaze"))
    ranking = rank(ONE, TWO)(questions)
    assert list(dict.fromkeys(ranking["query_id"])) == ["two#0", "one#1", "two#2", "one#3"]
    assert ranking["rank"].tolist() == [1, 2, 1, 2, 3, 1, 2, 1, 2, 3]
    assert (ranking.groupby("query_id")["score"].diff().dropna() <= 0).all()
    windows = ranking["doc_id"].str.split("_").str[0]
    assert (windows == ranking["query_id"].str.split("#").str[0]).all()


@pytest.mark.parametrize(("top", "kept"), [(1, 1), (2, 2), (99, 3), (None, 3)])
def test_top_cuts_the_same_ranking(rank, top, kept):
    questions = ask(("one", "glaze"), ("one", "clay"))
    whole, cut = rank(ONE)(questions), rank(ONE)(questions, top)
    pd.testing.assert_frame_equal(cut, whole[whole["rank"] <= kept].reset_index(drop=True))


def test_a_conversation_of_one_window(rank):
    assert rank(talk("c", "Hi"))(ask(("c", "kiln")))["doc_id"].tolist() == ["c_chunk_0"]


def test_no_questions_give_an_empty_table_with_the_same_columns(rank):
    some, none = rank(ONE)(ask(("one", "kiln"))), rank(ONE)([])
    assert len(none) == 0
    assert none.columns.tolist() == some.columns.tolist()
    assert none.dtypes[["rank", "score"]].tolist() == some.dtypes[["rank", "score"]].tolist()


def test_a_second_run_gives_the_same_table(rank):
    questions = ask(("one", "kiln clay"), ("two", "map"))
    pd.testing.assert_frame_equal(rank(ONE, TWO)(questions), rank(ONE, TWO)(questions), check_exact=True)


def test_a_question_about_an_unknown_conversation_is_refused(rank):
    with pytest.raises(BadInput, match="three#1: its conversation 'three' is not in the index") as error:
        rank(ONE)(ask(("one", "kiln"), ("three", "kiln")))
    assert "\n" not in str(error.value)
