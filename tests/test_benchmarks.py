"""The benchmarks run on small input, and their page shows what was measured: no number there is typed."""

import time

import numpy as np
import pandas as pd
import pytest

from benchmarks import growth, limits, measure, page, ratios, search, workers, writer
from benchmarks.__main__ import PARTS
from rawrag_utils import answering, corpus, index, ingest, lake, paths, results, retrieval
from rawrag_utils.paths import BadInput


@pytest.fixture(scope="module")
def sample():
    return corpus.load("sample")


def unit(rows, dimensions=16):
    vectors = np.random.default_rng(3).standard_normal((rows, dimensions)).astype(np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


# --------------------------------------------------------------------------------------------------------------- page


def test_the_page_s_tables_are_those_of_the_committed_files():
    text = page.PAGE.read_text(encoding="utf-8")
    assert page.filled(text) == text, "run make bench, or python -m benchmarks --only with no part to fill it again"
    assert {f"<!-- table {name} -->" for name in page.TABLES} <= set(text.splitlines())


def test_every_file_of_the_benchmarks_is_as_its_record_lists_it():
    records = sorted(page.FOLDER.glob("*.run.json"))
    listed = {}
    for record in map(results.read_run, records):
        assert record["parameters"]["machine"].keys() == {"processor", "cores", "memory_gb", "system"}
        listed |= record["files"]
    assert {record.name.partition(".")[0] for record in records} == PARTS.keys()
    there = {p.relative_to(page.FOLDER).as_posix(): p for p in page.FOLDER.rglob("*") if p.suffix in (".csv", ".png")}
    assert {name: paths.sha256(path) for name, path in there.items()} == listed


def test_a_table_that_is_not_there_is_named(monkeypatch, tmp_path):
    with pytest.raises(BadInput, match="no table 'speed'; there are machine, ratios"):
        page.filled("<!-- table speed -->\n<!-- end -->")
    monkeypatch.setattr(page, "FOLDER", tmp_path)
    with pytest.raises(BadInput, match=r"growth.csv: not there; make it with make bench ARGS='--only growth'"):
        page.read("growth")


# --------------------------------------------------------------------------------------------------------------- work


def test_copies_are_conversations_of_their_own_with_the_same_words(sample):
    conversations, questions = growth.copies(sample, 3)
    names = [c.conversation_id for c in conversations]
    assert len(set(names)) == len(names) == 3 * len(sample.conversations)
    assert len({q.question_id for q in questions}) == 3 * len(sample.questions)
    built = index.build(conversations)
    lines = [part["turn_context"]["turn_lines"] for part in built.values()]
    assert lines == lines[: len(sample.conversations)] * 3
    assert set(retrieval.bm25(built, questions)["query_id"]) == {q.question_id for q in questions}


@pytest.mark.parametrize("stage", ["chunk", "bm25", "fuse", "context"])
def test_a_stage_is_measured_in_a_process_of_its_own(stage):
    one, two = (measure.apart("growth", "sample", stage, size) for size in (1, 2))
    assert two["count"] == 2 * one["count"] > 0 and one["seconds"] > 0
    assert one["bytes_peak"] >= one["bytes_before"] > 1e7


def test_work_that_fails_is_one_line(capfd):
    with pytest.raises(BadInput, match="benchmarks.growth sample nothing 1: ended with 1, see above"):
        measure.apart("growth", "sample", "nothing", 1)
    assert "KeyError: 'nothing'" in capfd.readouterr().err


def test_ratios_are_measured_beside_their_baselines(sample):
    base = index.build(sample.conversations)
    base = index.with_vectors(base, unit(len(index.contents(base))))
    questions = sample.questions[:8]
    rows = [ratios.chunk(sample.conversations), ratios.words(base, questions), ratios.context(base, questions)]
    rows += ratios.files(base)
    frame = pd.DataFrame(rows)
    assert list(frame.columns) == measure.COLUMNS and len(frame) == 5
    assert (frame["ratio_low"] <= frame["ratio_high"]).all() and (frame["seconds"] > 0).all()


def test_the_loop_beside_contexts_joins_the_same_turns(sample):
    base = index.build(sample.conversations)
    found = {c["chunk_id"]: (name, c) for name, part in base.items() for c in part["chunks"]}
    for ranking in ratios.rankings(base, sample.questions[:4]):
        shown = answering.format_context(base, ranking).splitlines()
        lines = [line for line in shown if line and not line.startswith("Memory ")]
        assert [line for line in ratios.joined(base, found, ranking).splitlines() if line] == lines


def test_files_for_the_corpus_path_hold_the_conversations(sample, tmp_path):
    workers.write(sample.conversations, tmp_path)
    found = [row for path, name in ingest.files(tmp_path) for row in ingest.read(path, name)]
    assert [row["reason"] for row in found] == [""] * len(sample.conversations)


def test_the_writer_alone_adds_and_merges_until_it_has_enough(sample, tmp_path, monkeypatch):
    monkeypatch.setattr(ingest, "COMMIT_BYTES", 1_000_000)
    monkeypatch.setattr(ingest, "TIDY", 2)
    rows = list(writer.added(sample, tmp_path / "windows", sizes=(500, 1000)))
    assert [row["windows"] >= size for row, size in zip(rows, (500, 1000), strict=True)] == [True, True]
    table = lake.open_table(tmp_path / "windows")
    assert table.count_rows() == rows[-1]["windows"] > rows[0]["windows"]
    assert rows[0]["bytes_peak"] <= rows[1]["bytes_peak"]
    assert len(table.search().where("chunk_index = 0").limit(None).to_list()) > len(sample.conversations)  # copies


def test_memory_is_watched_while_work_goes_on():
    def work():
        held = np.ones(40_000_000)  # 320 MB
        time.sleep(3 * workers.TICK)
        return len(held)

    result, own, largest, everything = workers.watched(work)
    assert result == 40_000_000 and own > 320e6 and everything >= own + largest


# ------------------------------------------------------------------------------------------------------------- search


def test_moved_vectors_lie_as_near_as_real_neighbours():
    real = unit(400)
    moved = np.concatenate(list(search.moved(real, 1000)))
    assert moved.shape == (1000, 16) and moved.dtype == np.float32
    assert np.allclose(np.linalg.norm(moved, axis=1), 1, atol=1e-5)
    cosine = (moved[:400] * real).sum(1).mean()
    assert abs(cosine - search.nearest(real)) < 0.03
    assert np.array_equal(moved, np.concatenate(list(search.moved(real, 1000))))


def test_a_table_of_moved_vectors_is_searched_in_every_way(sample, tmp_path, monkeypatch):
    base = index.build(sample.conversations)
    count = len(index.contents(base))
    base = index.with_vectors(base, unit(count))
    monkeypatch.setattr(ratios, "vectors_of", lambda loaded: base)
    table = search.fill(tmp_path / "w", sample, 900)
    assert table.count_rows() == 900
    names = {c["chunk_id"] for c in table.search().select(["chunk_id"]).limit(None).to_arrow().to_pylist()}
    assert len(names) == 900
    asked = [growth.copies(sample, 1)[1][i] for i in range(4)]
    asked = [search.dataclasses.replace(q, conversation_id=f"{q.conversation_id}.0") for q in asked]
    rows = pd.DataFrame(search.compared(table, asked, unit(4), search.month(sample)))
    assert list(rows["search"][:3]) == ["exact", "exact, one conversation", "exact, thirty days"]
    assert set(search.KINDS) <= set(rows["search"]) and (rows["recall"] > 0.5).all()
    assert lake.settings_of(table)["CHUNK_SIZE"] == 256


def test_operations_of_an_encoder_grow_with_its_text():
    class Shape:
        num_hidden_layers, hidden_size, intermediate_size = 2, 8, 32

    one, two = (limits.encoder_operations(Shape, n) for n in (10, 20))
    assert one == 2 * 10 * (2 * (4 * 64 + 2 * 8 * 32) + 4 * 10 * 8) and 2 * one < two < 4 * one
