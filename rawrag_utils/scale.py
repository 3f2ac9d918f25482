"""Past one machine: grids of runs, corpora streamed through Ray Data into LanceDB, search there.

    python -m rawrag_utils.scale grid notebooks/params/grid_windows.yaml --engine ray
    python -m rawrag_utils.scale corpus path/to/conversations lake/windows --workers 2
    python -m rawrag_utils.scale search lake/windows "What did Nora buy?" --from 2024-03-01
    python -m rawrag_utils.scale index lake/windows       an index for approximate search
    python -m rawrag_utils.scale recall lake/windows sample   what it finds of what exact search finds, and how fast

A table's place is FOLDER/NAME or an object store's address (s3://bucket/folder/NAME). RAY_ADDRESS names a cluster,
else Ray runs inside the program. Exit status: 0 done, 1 something failed or was set aside, 2 input that cannot be
used, 130 stopped.
"""

import argparse
import os
import signal
import statistics
import sys
import time

from rawrag_utils import corpus as corpora
from rawrag_utils import execution, grid, ingest, lake, models, paths, run
from rawrag_utils.execution import say
from rawrag_utils.paths import BadInput

SHOWN = 10  # faults printed


# ------------------------------------------------------------------------------------------------------- command line


def main(arguments=None):
    """The command line; returns the exit status. Every fault of input is one line on stderr."""
    given = _parser().parse_args(arguments)

    def stop(number, frame):
        for s in (signal.SIGINT, signal.SIGTERM):
            signal.signal(s, signal.SIG_IGN)  # what runs is being shut down
        raise KeyboardInterrupt

    before = {s: signal.signal(s, stop) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        return given.command(given)
    except BadInput as error:
        say(f"error: {error}")
        return 2
    except KeyboardInterrupt:
        say("stopped; what is finished is kept, run again to go on")
        return 130
    finally:
        for s, handler in before.items():
            signal.signal(s, handler)


def _parser():
    parser = argparse.ArgumentParser(prog="python -m rawrag_utils.scale", description=__doc__.partition("\n")[0])
    commands = parser.add_subparsers(required=True, metavar="grid | corpus | search | index | recall")

    def command(name, function, about, *places):
        added = commands.add_parser(name, help=about, description=about)
        added.set_defaults(command=function)
        for place in places:
            added.add_argument(place.lower(), metavar=place)
        return added

    one = command("grid", _run_grid, "run every combination of notebooks and values", "FILE")
    one.add_argument("--engine", default="local", help="local (processes here) or ray")
    one.add_argument("--workers", type=int, help="runs at a time")
    one.add_argument("--threads", type=int, default=1, help="threads of a run (OMP_NUM_THREADS)")
    one.add_argument("--force", action="store_true", help="repeat finished runs (as FORCE=1 does)")
    one.add_argument("--silence", type=float, default=run.SILENCE, metavar="SECONDS", help="stop a cell silent so long")
    one = command("corpus", _run_corpus, "cut and embed a folder of conversations into a table", "FOLDER", "TABLE")
    one.add_argument("--profile", default="local", help="whose embedder")
    one.add_argument("--size", type=int, default=256, help="tokens of a window")
    one.add_argument("--overlap", type=int, default=32, help="tokens that neighbours share")
    one.add_argument("--workers", type=int, help="that embed at a time (default: one a processor)")
    one.add_argument("--threads", type=int, default=1, help="processors of a worker")
    one.add_argument("--gpus", type=float, default=0, help="GPUs of a worker, may be a fraction")
    one = command("search", _run_search, "rank the windows of a table for one question", "TABLE", "QUESTION")
    one.add_argument("--conversation", help="only this one's windows (an id)")
    one.add_argument("--from", dest="start", metavar="DATE", help="only windows with a turn from this day on (ISO)")
    one.add_argument("--to", dest="end", metavar="DATE", help="… up to this day")
    one = command("index", _run_index, "make the index of approximate search", "TABLE")
    one.add_argument("--kind", default="IVF_SQ", help="IVF_SQ, IVF_HNSW_SQ or IVF_PQ")
    one.add_argument("--partitions", type=int, help="LanceDB chooses unless given")
    one = command("recall", _run_recall, "compare approximate with exact search", "TABLE", "DATASET")
    for name in ("search", "recall"):
        one = commands.choices[name]
        one.add_argument("--top", type=int, default=15, help="windows a question")
        one.add_argument("--probes", type=int, default=60, help="partitions of the index that are searched")
        one.add_argument("--refine", type=int, default=4, help="how many times more windows are compared exactly")
    commands.choices["search"].add_argument("--approximate", action="store_true", help="go through the index")
    return parser


def _run_grid(given):
    force = given.force or os.environ.get("FORCE", "0") not in ("", "0")
    outcomes = grid.execute(given.file, given.engine, given.workers, given.threads, force, given.silence)
    print(*grid.summary(outcomes), sep="\n")
    print("summary:", execution.where(grid.summary_path(given.file)))
    return 0 if {o.state for o in outcomes} <= {"done", "skipped"} else 1


def _run_corpus(given):
    cut = given.profile, given.size, given.overlap
    tally = ingest.corpus(given.folder, given.table, *cut, given.workers, given.threads, given.gpus)
    minutes, seconds = divmod(round(time.monotonic() - tally.started), 60)
    states = ", ".join(f"{n:,} {state}" for state, n in sorted(tally.states.items())) or "none"
    print(f"conversations: {states}; windows added: {tally.windows:,}; {minutes}:{seconds:02} min")
    for fault in tally.faults[:SHOWN]:
        print(paths.printable(f"set aside: {fault['source']} {fault['place']}: {fault['reason']}"))
    if len(tally.faults) > SHOWN:
        more, kept = tally.states["set aside"] - SHOWN, f"table {given.table}{lake.SET_ASIDE}"
        print(f"… and {more:,} more; {kept} has the first {ingest.FAULTS:,}")
    return 1 if tally.states["set aside"] else 0


def _run_search(given):
    table = lake.open_table(given.table)
    name = given.conversation
    question = corpora.Question("question", name or "", given.question, None, "single-hop", (), ())
    vectors = _asked(given.table, table, [question])
    dates = {"question": (given.start, given.end)}
    effort = {"approximate": given.approximate, "probes": given.probes, "refine": given.refine}
    ranking = lake.search(table, [question], vectors, given.top, dates, everywhere=name is None, **effort)
    if ranking.empty:
        print("no window matches the filter")
    else:
        print(ranking[["rank", "doc_id", "similarity"]].to_string(index=False))
    return 0


def _run_index(given):
    table = lake.open_table(given.table)
    started = time.monotonic()
    with lake.writing(given.table):
        lake.tidy(table)
        lake.build_index(table, given.kind, given.partitions)
    print(f"{given.kind} over {table.count_rows():,} windows in {time.monotonic() - started:.1f} s")
    return 0


def _run_recall(given):
    import pandas as pd

    table, questions = lake.open_table(given.table), corpora.load(given.dataset).questions
    vectors, taken, rankings = _asked(given.table, table, questions), {}, {}
    for kind in ("exact", "approximate"):
        effort = {"approximate": kind == "approximate", "probes": given.probes, "refine": given.refine}
        pieces, seconds = [], []
        for question, vector in zip(questions, vectors, strict=True):
            started = time.perf_counter()
            pieces.append(lake.search(table, [question], vector[None], given.top, everywhere=True, **effort))
            seconds.append(time.perf_counter() - started)
        rankings[kind], taken[kind] = pd.concat(pieces), statistics.median(seconds)
    share = lake.recall(rankings["exact"], rankings["approximate"])
    print(f"recall@{given.top} against exact: {share.mean():.4f} (least {share.min():.2f}), {len(share)} questions")
    print(f"median a question: exact {taken['exact'] * 1e3:.1f} ms, approximate {taken['approximate'] * 1e3:.1f} ms")
    print(f"windows: {table.count_rows():,}")
    return 0


def _asked(place, table, questions):
    """The vectors of questions, by the embedder of the table's profile, which must be what it was then."""
    profile = lake.settings_of(table)["PROFILE"]
    lake.find_table(place, ingest.encoder(profile))
    return models.embed(models.load_embedder(profile), [q.text for q in questions], "query")


if __name__ == "__main__":
    sys.exit(main())
