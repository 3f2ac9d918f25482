"""The table of windows: the rankings that memory gives, the filter before the ranking, conversations whole."""

import re

import numpy as np
import pandas as pd
import pytest

from rawrag_utils import answering, chunking, index, inspector, lake, retrieval
from rawrag_utils.corpus import Conversation, Question, Turn
from rawrag_utils.paths import BadInput

SETTINGS = {"PROFILE": "local", "CHUNK_SIZE": 40}
DAYS = ("2024-03-02", "2024-03-05", None, "2024-03-09", "2024-03-20")


def talk(name, turns=12):
    """A conversation whose turns are of five days in a row, one of them undated."""
    dated = ((i, DAYS[i * len(DAYS) // turns]) for i in range(turns))
    told = (Turn(f"D1:{i}", 1, day, day, ("Nora", "Tobias")[i % 2], f"{name} clay {i}") for i, day in dated)
    return Conversation(name, name, "Nora", "Tobias", tuple(told))


def unit(rng, *shape):
    vectors = rng.normal(size=shape)
    return (vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)).astype(np.float32)


def ask(*names):
    return [Question(f"{name}#{i}", name, "?", None, "temporal", (), ()) for i, name in enumerate(names)]


def made(place, talks, seed=0, cut=lambda doc: chunking.cut(doc, 40, 8)):
    """A table of `talks` with random vectors, and the same in memory."""
    rng, built, rows = np.random.default_rng(seed), {}, []
    for conversation in talks:
        doc = chunking.document(conversation)
        chunks = cut(doc)
        vectors = unit(rng, len(chunks), 16)
        built[conversation.conversation_id] = index.entry(conversation, doc, chunks) | {"embeddings": vectors}
        rows.append(lake.rows(conversation, doc, chunks, vectors, "digest", "a.json"))
    table = lake.make_table(place, SETTINGS, 16)
    lake.write(table, rows)
    return table, built


TALKS = [talk("one"), talk("two", 30), talk("o'three")]


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    return made(tmp_path_factory.mktemp("lake") / "windows", TALKS)


def same(a, b):
    pd.testing.assert_frame_equal(a, b, check_exact=True)


# -------------------------------------------------------------------------------------------------------------- search


@pytest.mark.parametrize("top", [1, 3, 15])
def test_exact_search_is_dense_retrieval_to_the_last_bit(both, top):
    table, built = both
    questions = ask("two", "one", "o'three", "two")
    asked = unit(np.random.default_rng(1), 4, 16)
    same(lake.search(table, questions, asked, top), retrieval.dense(built, questions, asked, top))


@pytest.mark.parametrize(
    "between",
    [
        ("2024-03-05", None),
        (None, "2024-03-04"),
        ("2024-03-03", "2024-03-04"),
        ("2024-03-06", "2024-03-08"),
        ("2024-03-05", "2024-03-09"),
        ("0001-01-01", "9999-12-31"),
        ("2025-01-01", None),
        (None, None),
        None,
    ],
)
@pytest.mark.parametrize("size", [12, 40, 200])  # windows that touch no turn whole, some, and up to all five days
def test_dates_filter_before_ranking_as_they_do_in_memory(tmp_path, between, size):
    table, built = made(tmp_path / "w", TALKS[:2], cut=lambda doc: chunking.cut(doc, size, 4))
    questions = ask("two", "one")
    dates = {q.question_id: between for q in questions}
    asked = unit(np.random.default_rng(2), 2, 16)
    found = lake.search(table, questions, asked, 5, dates)
    same(found, retrieval.dense(built, questions, asked, 5, dates))


def test_a_bad_date_and_vectors_that_do_not_fit_are_refused(both):
    table, _ = both
    (question,) = ask("one")
    with pytest.raises(BadInput, match="one#0: 'May' is no ISO date"):
        lake.search(table, [question], np.ones((1, 16)), dates={"one#0": ("May", None)})
    for vectors in (np.ones((1, 8)), np.ones((2, 16)), np.full((1, 16), np.nan)):
        with pytest.raises(BadInput, match=r"wanted finite ones of \(1, 16\)"):
            lake.search(table, [question], vectors)
    with pytest.raises(BadInput, match="the table has no index"):
        lake.search(table, [question], np.ones((1, 16)), approximate=True)
    for number in ("top", "probes", "refine"):
        with pytest.raises(BadInput, match=f"{number} 0.*whole numbers from 1"):
            lake.search(table, [question], np.ones((1, 16)), **{number: 0})


def test_equal_windows_stand_by_chunk_index_however_many_there_are(tmp_path):
    conversation = talk("c", 300)
    doc = chunking.document(conversation)
    chunks = chunking.turn_windows(doc)
    vectors = np.zeros((300, 4), np.float32)
    vectors[:, 0] = 1
    table = lake.make_table(tmp_path / "w", SETTINGS, 4)
    shuffled = lake.rows(conversation, doc, chunks, vectors, "d", "a.json")
    lake.write(table, [shuffled.take(np.random.default_rng(0).permutation(300))])
    found = lake.search(table, ask("c"), vectors[:1], top=7)
    assert list(found["doc_id"]) == [f"c_chunk_{i}" for i in range(7)] and list(found["rank"]) == list(range(1, 8))


def test_everywhere_searches_all_conversations(both):
    table, built = both
    asked = unit(np.random.default_rng(3), 1, 16)
    found = lake.search(table, ask("nobody's"), asked, 9, everywhere=True)
    pairs = [pair for p in built.values() for pair in zip(p["chunks"], p["embeddings"], strict=True)]
    scores = {chunk["chunk_id"]: vector @ asked[0] for chunk, vector in pairs}
    assert list(found["doc_id"]) == sorted(scores, key=scores.get, reverse=True)[:9]
    assert lake.search(table, ask("nobody's"), asked).empty
    assert list(lake.search(table, [], np.zeros((0, 16))).columns) == list(found.columns)


def test_an_index_finds_nearly_all_and_keeps_to_the_filter(tmp_path):
    talks = [talk(f"t{i}", 150) for i in range(8)]
    table, built = made(tmp_path / "w", talks, cut=chunking.turn_windows)
    lake.build_index(table, partitions=8)
    questions, asked = ask(*[t.conversation_id for t in talks]), unit(np.random.default_rng(4), 8, 16)
    exact = lake.search(table, questions, asked, everywhere=True)
    found = lake.search(table, questions, asked, everywhere=True, approximate=True, probes=4)
    share = lake.recall(exact, found)
    one = lake.search(table, questions, asked, everywhere=True, approximate=True, probes=1)
    assert len(share) == 8 and lake.recall(exact, one).mean() < share.mean() <= 1 and share.mean() > 0.6
    # All partitions and enough whole vectors compared: nothing is lost.
    same(lake.search(table, questions, asked, everywhere=True, approximate=True, probes=8, refine=50), exact)
    # One conversation is an eighth of the windows, one probe hits fewer than fifteen of them: the search goes on.
    narrow = lake.search(table, questions, asked, approximate=True, probes=1)
    assert narrow.groupby("query_id").size().eq(15).all()
    own = narrow["query_id"].str.partition("#")[0] + "_chunk_"
    assert all(d.startswith(name) for d, name in zip(narrow["doc_id"], own, strict=True))
    with pytest.raises(BadInput, match="no such kind; there are IVF_SQ"):
        lake.build_index(table, "LSH")


def test_recall_counts_what_both_have():
    exact = pd.DataFrame({"query_id": ["a", "a", "b", "b"], "doc_id": ["x", "y", "x", "z"]})
    found = pd.DataFrame({"query_id": ["a", "b", "b"], "doc_id": ["y", "z", "x"]})
    assert lake.recall(exact, found).to_dict() == {"a": 0.5, "b": 1.0}
    assert lake.recall(exact, found[:0]).to_dict() == {"a": 0.0, "b": 0.0}


# ----------------------------------------------------------------------------------------------------- rows and tables


def test_what_is_read_back_is_the_index_that_was_written(both):
    table, built = both
    read = lake.read_index(table, ["two", "o'three", "two"])
    assert list(read) == ["two", "o'three"]
    for name, part in read.items():
        assert part["chunks"] == built[name]["chunks"]
        assert part["turn_context"] == built[name]["turn_context"]
        assert (part["embeddings"] == built[name]["embeddings"]).all()
    with pytest.raises(BadInput, match="nobody: no such conversation in the table"):
        lake.read_index(table, ["nobody"])


def test_later_stages_and_the_inspector_take_it_from_there(both):
    table, built = both
    questions, asked = ask("two"), unit(np.random.default_rng(5), 1, 16)
    ranking, read = lake.search(table, questions, asked, 3), lake.read_index(table, ["two"])
    context = answering.format_context(read, ranking)
    assert context == answering.format_context(built, retrieval.dense(built, questions, asked, 3))
    assert re.match(r"Memory 1 \(chunk=\d+, similarity=0\.\d{6}", context)
    assert retrieval.rrf([ranking, retrieval.bm25(read, questions)])["rank"].iloc[0] == 1
    assert inspector.chunk_map(read["two"], 0, 2)


def test_a_window_knows_its_speakers_and_days(both):
    table, built = both
    rows = table.search().where("conversation_id = 'two'").limit(None).to_arrow().sort_by("chunk_index").to_pylist()
    turns = talk("two", 30).turns
    for row, chunk in zip(rows, built["two"]["chunks"], strict=True):
        touched = turns[chunk["start_turn"] : chunk["end_turn"] + 1]
        assert set(row["speakers"]) == {t.speaker for t in touched}
        assert row["dates"] == sorted({t.session_date for t in touched} - {None})
        assert (row["first_date"], row["last_date"]) == ((row["dates"] or [None])[0], (row["dates"] or [None])[-1])
        assert (row["digest"] is None) == (row["chunk_index"] > 0)


def test_a_conversation_is_replaced_whole_and_known_by_its_id(tmp_path):
    table, _ = made(tmp_path / "w", TALKS)
    windows = table.count_rows()
    longer = talk("one", 40)
    doc = chunking.document(longer)
    chunks = chunking.cut(doc, 40, 8)
    vectors = unit(np.random.default_rng(6), len(chunks), 16)
    before = len(lake.read_index(table, ["one"])["one"]["chunks"])
    lake.write(table, [lake.rows(longer, doc, chunks, vectors, "new", "a.json")], replaced=["one"])
    assert table.count_rows() == windows - before + len(chunks)
    assert lake.known(table, ["one", "o'three", "x"]) == {"one": ("new", "a.json"), "o'three": ("digest", "a.json")}
    lake.tidy(table)
    assert lake.known(table, ["one"]) == {"one": ("new", "a.json")} and lake.known(table, []) == {}


def test_a_table_keeps_to_the_settings_it_was_made_with(tmp_path):
    place = tmp_path / "w"
    with pytest.raises(BadInput, match="w: no such table; make it with"):
        lake.open_table(place)
    assert lake.find_table(place, SETTINGS) is None
    made(place, TALKS[:1])
    assert lake.find_table(place, SETTINGS).count_rows() == lake.open_table(place).count_rows() > 0
    with pytest.raises(BadInput, match="made with CHUNK_SIZE 40, now 256; choose another table"):
        lake.find_table(place, {**SETTINGS, "CHUNK_SIZE": 256})
    lake._connect(str(tmp_path)).create_table("other", [{"a": 1}])
    with pytest.raises(BadInput, match="other: not a table of windows"):
        lake.open_table(tmp_path / "other")


@pytest.mark.parametrize("place", ["", "/", "lake/a b", "lake/w_set_aside", "s3://bucket/a'b"])
def test_a_table_needs_a_usable_name(place):
    with pytest.raises(BadInput, match="wanted FOLDER/NAME or s3://"):
        lake.split_place(place)


def test_what_is_set_aside_is_replaced_by_the_next_run(tmp_path):
    place = tmp_path / "w"
    assert lake.set_aside(place) == []
    faults = [{"source": "a.json", "place": "row 1", "reason": "it's empty"}]
    assert lake.set_aside(place, faults) == faults == lake.set_aside(place)
    assert lake.set_aside(place, []) == []
