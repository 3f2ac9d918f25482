"""The corpus path on Ray: one worker against two, and whether memory grows with the corpus.

    python -m benchmarks.workers local 2 256 files/ lake/windows    two workers, windows of 256 tokens: a line of JSON

Rates are those of the longer of two corpora beyond the shorter one, so that starting Ray and loading the model, which
a long run does once, do not count.
"""

import concurrent.futures
import json
import pathlib
import sys
import tempfile
import threading
import time

import orjson
import psutil

from benchmarks import growth, measure
from rawrag_utils import index, ingest, models

LONGER = 2  # times the shorter one that the longer corpus of a rate is
SIZES = (2, 4, 8)  # times the corpus in small windows, many enough for several commits: does memory grow?
SMALL = 64  # tokens of these
TICK = 0.2  # seconds between two looks at memory


def measured(loaded):
    """Rows of path, profile, workers, size, windows, seconds and the memory of writer, largest worker and all."""
    texts = index.contents(index.build(loaded.conversations))
    for workers in (1, 2):  # what the machine gives to processes that share nothing
        yield bare(workers, texts)
    corpus(loaded, "multilingual", 2, SMALL, 1)  # not counted: files that no one has read yet make a first start slow
    for workers in (1, 2):
        for size in (1, LONGER):
            yield corpus(loaded, "local", workers, 256, size)
    for size in SIZES:
        yield corpus(loaded, "multilingual", 2, SMALL, size)


def bare(workers, texts, count=128):
    """Windows that plain processes embed at the same time, `count` each, on one thread each."""
    with concurrent.futures.ThreadPoolExecutor(workers) as pool:
        told = {"OMP_NUM_THREADS": "1"}
        found = list(pool.map(lambda _: measure.apart("workers", "bare", count, **told), range(workers)))
    seconds = max(f["seconds"] for f in found)
    return {"path": "bare", "profile": "local", "workers": workers, "windows": workers * count, "seconds": seconds}


def corpus(loaded, profile, workers, tokens, size):
    """`scale corpus` over `size` copies of a corpus, a JSON Lines file each, into a new table."""
    with tempfile.TemporaryDirectory() as folder:
        files = pathlib.Path(folder, "files")
        files.mkdir()
        write(growth.copies(loaded, size)[0], files)
        row = measure.apart("workers", profile, workers, tokens, files, pathlib.Path(folder, "lake", "windows"))
    return {"path": "corpus", "profile": profile, "workers": workers, "size": size, **row}


def write(conversations, folder):
    """A JSON Lines file of the own form for each conversation."""
    for number, c in enumerate(conversations):
        sessions = {}
        for turn in c.turns:
            told = {"turn_id": turn.turn_id, "speaker": turn.speaker, "text": turn.text, "caption": turn.caption}
            session = sessions.setdefault(turn.session, {"session": turn.session, "date": turn.session_date})
            session.setdefault("turns", []).append(told)
        told = {"conversation_id": c.conversation_id, "speaker_a": c.speaker_a, "speaker_b": c.speaker_b}
        content = {**told, "sessions": [_without_none(s) for s in sessions.values()]}
        (folder / f"{number:05}.jsonl").write_bytes(orjson.dumps(content))


def _without_none(session):
    turns = [{k: v for k, v in turn.items() if v is not None} for turn in session["turns"]]
    return {k: v for k, v in {**session, "turns": turns}.items() if v is not None}


def watched(work):
    """(result, bytes of this process, of its largest descendant, of all) at most while `work` goes on."""
    most, over = [0, 0, 0], threading.Event()

    def look():
        me = psutil.Process()
        while not over.wait(TICK):
            own, rest = _held(me), [_held(p) for p in me.children(recursive=True)]
            now = own, max(rest, default=0), own + sum(rest)
            most[:] = map(max, most, now)

    watcher = threading.Thread(target=look)
    watcher.start()
    try:
        return work(), *most
    finally:
        over.set()
        watcher.join()


def _held(process):
    """Bytes that only this process holds: shared memory would count once for each who sees it."""
    try:
        return process.memory_full_info().uss
    except (psutil.Error, FileNotFoundError):  # it has ended
        return 0


def main(profile, *arguments):
    if profile == "bare":
        from rawrag_utils import corpus as corpora

        texts = index.contents(index.build(corpora.load("locomo").conversations))[: int(arguments[0])]
        embedder = models.load_embedder("local")
        models.embed(embedder, texts[:1], cache=False)
        started = time.perf_counter()
        models.embed(embedder, texts, cache=False)
        row = {"seconds": time.perf_counter() - started}
    else:
        (workers, tokens), (folder, place) = map(int, arguments[:2]), arguments[2:]
        started = time.perf_counter()
        tally, writer, largest, everything = watched(
            lambda: ingest.corpus(folder, place, profile, tokens, tokens // 8, workers)
        )
        row = {"windows": tally.windows, "seconds": time.perf_counter() - started}
        row |= {"bytes_writer": writer, "bytes_worker": largest, "bytes_all": everything}
    print(json.dumps(row))


if __name__ == "__main__":
    main(*sys.argv[1:])
