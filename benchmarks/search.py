"""Search in tables of 10^4, 10^5 and 10^6 windows: exact, by index, within one conversation, within dates.

    python -m benchmarks.search locomo 10000      one size: JSON

Embedding a million windows takes a day on two cores, and an index of random vectors says nothing, since random points
have no neighbours. So vectors are real ones, each moved by noise that has the real ones' covariance, as far as a
window lies from its nearest neighbour in the corpus. Texts, speakers and dates are the real ones. Questions are real.
"""

import dataclasses
import datetime
import json
import pathlib
import sys
import tempfile
import time

import numpy as np
import pandas as pd

from benchmarks import measure, ratios
from rawrag_utils import chunking, corpus, ingest, lake, models

SIZES = (10_000, 100_000, 1_000_000)
ASKED = 100  # questions, spread over the corpus
TOP = 15
KINDS = ("IVF_SQ", "IVF_HNSW_SQ", "IVF_PQ")
SLOW = {("IVF_HNSW_SQ", 1_000_000)}  # a quarter of an hour to build
DAYS = 30  # from the first day of the corpus: what dates are narrowed to


def measured(dataset):
    """Rows of windows, how they were searched, seconds to build, bytes, milliseconds (median, 95 %) and recall."""
    for windows in SIZES:
        yield from measure.apart("search", dataset, windows)


def moved(vectors, count, seed=0):
    """`count` unit vectors (float32): those of `vectors` in turn, moved by noise of their covariance; see the module.

    The noise's size is the one at which a moved vector's cosine with its origin is, in the mean, the cosine of a
    vector with its nearest other one.
    """
    random = np.random.default_rng(seed)
    factor = np.linalg.cholesky(np.cov(vectors.T) + 1e-6 * np.eye(vectors.shape[1])).astype(np.float32).T
    wanted, low, high = nearest(vectors), 0.0, 8.0
    noise = random.standard_normal(vectors.shape, np.float32) @ factor
    for _ in range(20):  # the cosine falls as the noise grows
        scale = (low + high) / 2
        cosine = (_unit(vectors + scale * noise) * vectors).sum(1).mean()
        low, high = (scale, high) if cosine > wanted else (low, scale)
    for start in range(0, count, len(vectors)):
        rows = vectors[: min(len(vectors), count - start)]
        yield _unit(rows + scale * (random.standard_normal(rows.shape, np.float32) @ factor))


def nearest(vectors):
    """The mean cosine of a vector with its nearest other one."""
    cosines = vectors @ vectors.T
    np.fill_diagonal(cosines, -1)
    return float(cosines.max(1).mean())


def _unit(rows):
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


def fill(place, loaded, windows):
    """A table of so many windows at `place`: the corpus again and again, under other ids, with moved vectors."""
    base = ratios.vectors_of(loaded)
    vectors = np.concatenate([part["embeddings"] for part in base.values()])
    table = lake.make_table(
        place, {**ingest.encoder("local"), "CHUNK_SIZE": 256, "CHUNK_OVERLAP": 32}, vectors.shape[1]
    )
    pending, left = [], windows
    for copy, new in enumerate(moved(vectors, windows)):
        start = 0
        for c in loaded.conversations:
            part = base[c.conversation_id]
            chunks = part["chunks"][: max(0, len(new) - start)]
            if chunks:
                pending.append(_rows(c, copy, chunks, new[start : start + len(chunks)]))
            start += len(part["chunks"])
        left -= len(new)
        if sum(map(len, pending)) > ingest.COMMIT_BYTES // vectors[0].nbytes or not left:
            lake.write(table, pending)
            pending = []
    lake.tidy(table)
    return table


def _rows(conversation, copy, chunks, vectors):
    """`lake.rows` of the first windows of a conversation, under the id of its `copy`."""
    name = f"{conversation.conversation_id}.{copy}"
    own = dataclasses.replace(conversation, conversation_id=name)
    renamed = [{**c, "chunk_id": f"{name}_chunk_{c['chunk_index']}"} for c in chunks]
    return lake.rows(own, chunking.Document(name, "", [], [], []), renamed, vectors, f"{copy}", "corpus.json")


def timed(table, questions, vectors, **how):
    """(ranking of all questions, milliseconds of each), asked one by one, the first once more before the clock runs."""
    rankings, milliseconds = [], []
    for number in (0, *range(len(questions))):
        started = time.perf_counter()
        found = lake.search(table, questions[number : number + 1], vectors[number : number + 1], TOP, **how)
        milliseconds.append((time.perf_counter() - started) * 1e3)
        rankings.append(found)
    return pd.concat(rankings[1:]), milliseconds[1:]


def compared(table, questions, vectors, between):
    """Rows: each way to search a table, its index built first, with its recall of what exact search finds."""
    exact, milliseconds = timed(table, questions, vectors, everywhere=True)
    yield row("exact", milliseconds)
    yield row("exact, one conversation", timed(table, questions, vectors)[1])
    dates = dict.fromkeys((q.question_id for q in questions), between)
    dated, milliseconds = timed(table, questions, vectors, everywhere=True, dates=dates)
    yield row("exact, thirty days", milliseconds)
    for kind in KINDS:
        if (kind, table.count_rows()) in SLOW:
            continue
        started = time.perf_counter()
        lake.build_index(table, kind)
        built = time.perf_counter() - started
        found, milliseconds = timed(table, questions, vectors, everywhere=True, approximate=True)
        yield row(kind, milliseconds, lake.recall(exact, found).mean(), built)
        if kind == KINDS[0]:
            found, milliseconds = timed(table, questions, vectors, everywhere=True, approximate=True, dates=dates)
            yield row(f"{kind}, thirty days", milliseconds, lake.recall(dated, found).mean(), built)


def month(loaded):
    """(from, to), ISO days: the first DAYS days of a corpus."""
    first = datetime.date.fromisoformat(min(t.session_date for c in loaded.conversations for t in c.turns))
    return str(first), str(first + datetime.timedelta(DAYS - 1))


def row(search, milliseconds, recall=1.0, built=0.0):
    """A row of the table of searches; its two quantiles are over questions."""
    middle, slow = np.quantile(milliseconds, [0.5, 0.95])
    return {"search": search, "built_seconds": built, "ms_median": middle, "ms_95": slow, "recall": recall}


def main(dataset, windows):
    loaded, windows = corpus.load(dataset), int(windows)
    answerable = corpus.select(loaded.questions)
    asked = answerable[:: max(1, len(answerable) // ASKED)][:ASKED]
    vectors = models.embed(models.load_embedder("local"), [q.text for q in asked], "query")
    first = [dataclasses.replace(q, conversation_id=f"{q.conversation_id}.0") for q in asked]
    with tempfile.TemporaryDirectory() as folder:
        started = time.perf_counter()
        table = fill(f"{folder}/windows", loaded, windows)
        filled = time.perf_counter() - started
        held = {"windows": windows, "filled_seconds": filled, "bytes_table": _bytes(folder)}
        rows = [{**held, **found} for found in compared(table, first, vectors, month(loaded))]
    print(json.dumps([{**r, "bytes_peak": measure.peak()} for r in rows]))


def _bytes(folder):
    return sum(p.stat().st_size for p in pathlib.Path(folder).rglob("*") if p.is_file())


if __name__ == "__main__":
    main(*sys.argv[1:])
