"""Each stage with 1, 2, 4 and 8 times the data, each time in a process of its own, so that its memory is its own.

    python -m benchmarks.growth bm25 4      one stage at one size: a line of JSON

More data are more conversations, as in the corpora that people have: copies under other ids, with the same texts and
vectors. What grows with the length of one conversation is another question.
"""

import dataclasses
import json
import pathlib
import sys
import tempfile
import time
from typing import NamedTuple

import numpy as np

from benchmarks import measure, ratios
from rawrag_utils import answering, corpus, index, models, rerankers, retrieval

SIZES = (1, 2, 4, 8)
EMBEDDED = 128  # windows embedded at size 1
ASKED = 20  # questions of each conversation that are reranked and given a context


def measured(dataset):
    """Rows of stage, size, what is counted, how many, seconds, and bytes of memory before and at most."""
    for stage in STAGES:
        for size in SIZES:
            yield {"stage": stage, "size": size, **measure.apart("growth", dataset, stage, size)}


def copies(loaded, size):
    """(conversations, questions) of `size` copies of a corpus, all but the first under ids of their own."""
    conversations, questions = list(loaded.conversations), list(loaded.questions)
    for copy in range(1, size):
        for c in loaded.conversations:
            conversations.append(dataclasses.replace(c, conversation_id=f"{c.conversation_id}.{copy}"))
        for q in loaded.questions:
            names = {"question_id": f"{q.question_id}.{copy}", "conversation_id": f"{q.conversation_id}.{copy}"}
            questions.append(dataclasses.replace(q, **names))
    return conversations, questions


def few(questions):
    """The first questions of each conversation."""
    count, kept = {}, []
    for question in questions:
        count[question.conversation_id] = count.get(question.conversation_id, 0) + 1
        kept += [question] if count[question.conversation_id] <= ASKED else []
    return kept


# Each stage takes a `Given` and returns what is counted, how many of it, and the work to be timed.


class Given(NamedTuple):
    """`size` copies of a corpus that was loaded, and a folder for files."""

    conversations: list
    questions: list
    size: int
    loaded: corpus.Corpus
    folder: pathlib.Path


def chunk(given):
    count = given.size * len(index.contents(index.build(given.loaded.conversations)))
    return "windows", count, lambda: index.build(given.conversations)


def embed(given):
    texts = index.contents(index.build(given.conversations))[: EMBEDDED * given.size]
    embedder = models.load_embedder("local")
    models.embed(embedder, texts[:1], cache=False)  # loaded before the timing
    return "windows", len(texts), lambda: models.embed(embedder, texts, cache=False)


def embedded(given):
    """The index of the copies; their vectors are the originals', which lie in the cache."""
    vectors = np.concatenate([part["embeddings"] for part in ratios.vectors_of(given.loaded).values()])
    return index.with_vectors(index.build(given.conversations), np.tile(vectors, (given.size, 1)))


def dense(given):
    base = embedded(given)
    asked = models.embed(models.load_embedder("local"), [q.text for q in given.loaded.questions], "query")
    asked = np.tile(asked, (given.size, 1))
    return "questions", len(asked), lambda: retrieval.dense(base, given.questions, asked)


def bm25(given):
    base = index.build(given.conversations)
    return "questions", len(given.questions), lambda: retrieval.bm25(base, given.questions)


def fuse(given):
    ranking = retrieval.bm25(index.build(given.conversations), given.questions)
    return "questions", len(given.questions), lambda: retrieval.rrf([ranking, ranking])


def rerank(given):
    base, asked = index.build(given.conversations), few(given.questions)
    ranking = retrieval.bm25(base, asked)
    reranker = rerankers.Reranker(rerankers.RerankerConfig(kind="maxsim"), models.load_embedder("local"))
    for texts, kind in ((index.contents(base), "document"), ([q.text for q in asked], "query")):
        rerankers.token_vectors(reranker.embedder, texts, kind)  # from here on they are stored, as in a second run
    return "questions", len(asked), lambda: retrieval.rerank(base, asked, ranking, reranker, ratios.POOL)


def context(given):
    base, asked = index.build(given.conversations), few(given.questions)
    ranked = ratios.rankings(base, asked)
    return "questions", len(asked), lambda: [answering.format_context(base, r) for r in ranked]


def write(given):
    base = embedded(given)
    return "windows", len(index.contents(base)), lambda: index.save(base, given.folder / "index.json")


def read(given):
    base = embedded(given)
    index.save(base, given.folder / "index.json")
    return "windows", len(index.contents(base)), lambda: index.load(given.folder / "index.json")


STAGES = {function.__name__: function for function in (chunk, embed, dense, bm25, fuse, rerank, context, write, read)}


def main(dataset, stage, size):
    loaded, size = corpus.load(dataset), int(size)
    with tempfile.TemporaryDirectory() as folder:
        unit, count, work = STAGES[stage](Given(*copies(loaded, size), size, loaded, pathlib.Path(folder)))
        before, started = measure.peak(), time.perf_counter()
        work()
        seconds = time.perf_counter() - started
    row = {"unit": unit, "count": count, "seconds": seconds, "bytes_before": before, "bytes_peak": measure.peak()}
    print(json.dumps(row))


if __name__ == "__main__":
    main(*sys.argv[1:])
