"""The corpus path's one writer alone, with windows of noise: does its memory stay bounded as the table grows?

    python -m benchmarks.writer locomo lake/windows     a line of JSON

The corpus path embeds first, at tens of windows a second here, so millions of windows are out of its reach. What holds
memory is the writer: it gathers windows, adds them in one commit and merges what many commits leave, as it does here.
"""

import dataclasses
import itertools
import json
import pathlib
import sys
import tempfile
import time

import numpy as np

from benchmarks import measure
from benchmarks.workers import SMALL
from rawrag_utils import chunking, corpus, ingest, lake

SIZES = (250_000, 500_000, 1_000_000, 2_000_000, 3_000_000)  # windows in the table
DIMENSIONS = 512  # as of profile multilingual, with which the whole path is measured


def measured(dataset):
    """Rows of windows, seconds and bytes that the writer held at most until then."""
    with tempfile.TemporaryDirectory() as folder:
        yield from measure.apart("writer", dataset, pathlib.Path(folder, "windows"))


def added(loaded, place, sizes=SIZES):
    """Add copies of a corpus with vectors of noise to a new table; yields a row when it has each of `sizes`."""
    documents = [(c, chunking.document(c)) for c in loaded.conversations]
    cut = [(c, doc, chunking.cut(doc, SMALL, SMALL // 8)) for c, doc in documents]
    table, noise = lake.make_table(place, ingest.encoder("multilingual"), DIMENSIONS), np.random.default_rng(0)
    copies, wanted, windows, started = itertools.count(), iter(sizes), 0, time.perf_counter()
    size = next(wanted)
    for commit in itertools.count(1):
        pending = []
        while sum(part.nbytes for part in pending) < ingest.COMMIT_BYTES:
            number = next(copies)
            conversation, doc, chunks = cut[number % len(cut)]
            conversation = dataclasses.replace(conversation, conversation_id=f"{number}")
            vectors = noise.standard_normal((len(chunks), DIMENSIONS), np.float32)
            pending.append(lake.rows(conversation, doc, chunks, vectors, digest="", source=""))
        lake.write(table, pending)
        windows += sum(map(len, pending))
        if commit % ingest.TIDY == 0:
            lake.tidy(table)
        if windows >= size:
            yield {"windows": windows, "seconds": time.perf_counter() - started, "bytes_peak": measure.peak()}
            size = next(wanted, None)
            if size is None:
                return


def main(dataset, place):
    print(json.dumps(list(added(corpus.load(dataset), place))))


if __name__ == "__main__":
    main(*sys.argv[1:])
