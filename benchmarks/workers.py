"""The corpus path on Ray: one worker against two, and whether memory grows with the corpus.

    python -m benchmarks.workers local 2 256 0 files/ lake/windows    workers, tokens a window, 1 to watch memory

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
from rawrag_utils import corpus as corpora
from rawrag_utils import index, ingest, models
from rawrag_utils.paths import BadInput

LONGER = 5  # times the shorter one that the longer corpus of a rate is: then it matters little which worker ends last
SIZES = (2, 4, 8)  # times the corpus in small windows, many enough for several commits: does memory grow?
SMALL = 64  # tokens of these
TICK = 0.2  # seconds between two looks at memory


def measured(loaded):
    """Rows of path, profile, workers, size, windows, seconds; of some the memory of writer, largest worker and all."""
    for workers in (1, 2):  # what the machine gives to processes that share nothing
        yield bare(loaded.name, workers)
    corpus(loaded, "multilingual", 2, SMALL, 1)  # not counted: files that no one has read yet make a first start slow
    for workers in (1, 2):
        for size in (1, LONGER):
            yield corpus(loaded, "local", workers, 256, size)
    for size in SIZES:
        yield corpus(loaded, "multilingual", 2, SMALL, size, watch=True)


def bare(dataset, workers, count=128):
    """Windows that plain processes embed at the same time, `count` each, on one thread each."""
    with concurrent.futures.ThreadPoolExecutor(workers) as pool:
        told = {"OMP_NUM_THREADS": "1"}
        found = list(pool.map(lambda _: measure.apart("workers", "bare", dataset, count, **told), range(workers)))
    seconds = max(f["seconds"] for f in found)
    return {"path": "bare", "profile": "local", "workers": workers, "windows": workers * count, "seconds": seconds}


def corpus(loaded, profile, workers, tokens, size, watch=False):
    """`scale corpus` over `size` copies of a corpus, a JSON Lines file each, into a new table.

    Watching its memory takes a quarter of a core, so no rate is taken while it is watched.
    """
    with tempfile.TemporaryDirectory() as folder:
        files = pathlib.Path(folder, "files")
        files.mkdir()
        write(growth.copies(loaded, size)[0], files)
        place = pathlib.Path(folder, "lake", "windows")
        row = measure.apart("workers", profile, workers, tokens, int(watch), files, place)
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
        dataset, count = arguments
        texts = index.contents(index.build(corpora.load(dataset).conversations))[: int(count)]
        embedder = models.load_embedder("local")
        models.embed(embedder, texts[:1], cache=False)
        started = time.perf_counter()
        models.embed(embedder, texts, cache=False)
        row = {"seconds": time.perf_counter() - started}
    else:
        (workers, tokens, watch), (folder, place) = map(int, arguments[:3]), arguments[3:]
        started = time.perf_counter()

        def work():
            return ingest.corpus(folder, place, profile, tokens, tokens // 8, workers)

        tally, *held = watched(work) if watch else (work(),)
        if set(tally.states) != {"added"}:
            raise BadInput(f"{folder}: not all conversations were added: {dict(tally.states)}, {tally.faults[:1]}")
        row = {"windows": tally.windows, "seconds": time.perf_counter() - started}
        row |= dict(zip(("bytes_writer", "bytes_worker", "bytes_all"), held, strict=False))  # held: all or none
    print(json.dumps(row))


if __name__ == "__main__":
    main(*sys.argv[1:])
