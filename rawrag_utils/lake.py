"""Windows of a whole corpus in one LanceDB table, in a folder or an object store: written whole, searched, read back.

A row is a window: its coordinates, speakers and session dates, its conversation, its vector. The first window of a
conversation also carries what belongs to the whole of it (`FIRST`): a digest, where it came from, the turn context. A
conversation is added in one commit or not at all, so what was killed half-way needs no repair.
"""

import contextlib
import datetime
import os
import pathlib
import re

import numpy as np
import pandas as pd

from rawrag_utils import chunking, index, paths, retrieval
from rawrag_utils.paths import BadInput

SCHEMA = 1  # of the table's columns and settings
FIRST = ("digest", "source", "context")  # columns that only a conversation's window 0 fills
SET_ASIDE = "_set_aside"  # ending of the table beside it, with what could not be read
MARGIN = 16  # windows fetched beyond those asked for, so that ties at the cut are settled by chunk index
KEEP = datetime.timedelta(hours=1)  # how long a compacted table keeps its older versions for those who read them
CACHE = 32_000_000  # bytes of LanceDB's caches where a table is written: its own are of gigabytes, for those who search


# ----------------------------------------------------------------------------------------------------- table and rows


def split_place(place):
    """(database, table name) of a table's place, a path or an address of an object store.

    >>> split_place("s3://bucket/talks/windows")
    ('s3://bucket/talks', 'windows')
    """
    place = str(place)
    database, _, name = place.rstrip("/").rpartition("/")
    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]*", name) or name.endswith(SET_ASIDE):
        raise BadInput(f"table {place!r}: wanted FOLDER/NAME or s3://…/NAME; the name holds letters, digits, _ . -")
    return (database if "://" in place else str(paths.resolve(database or "."))), name


def schema(dimensions, settings):
    """The table's Arrow schema; `settings`, which decide what its windows are, travel as its metadata."""
    import orjson
    import pyarrow as pa

    texts, number = pa.list_(pa.string()), pa.int32()
    return pa.schema(
        [
            ("chunk_id", pa.string()),
            ("chunk_index", number),
            ("conversation_id", pa.string()),
            ("content", pa.string()),
            *((name, number) for name in ("start_token", "end_token", "start_turn", "end_turn")),
            ("speakers", texts),  # of the turns it touches, in order of appearance
            ("dates", texts),  # their session dates, ISO, sorted; undated turns have none
            ("first_date", pa.string()),
            ("last_date", pa.string()),
            ("vector", pa.list_(pa.float32(), dimensions)),
            *((name, pa.string()) for name in FIRST),
        ],
        metadata={"rawrag": orjson.dumps({"schema": SCHEMA, **settings}, option=orjson.OPT_SORT_KEYS)},
    )


def rows(conversation, doc, chunks, vectors, digest, source):
    """The Arrow table of one conversation's windows; `vectors` (windows, dimensions), `doc` its `chunking.Document`."""
    import orjson
    import pyarrow as pa

    turns = [conversation.turns[c["start_turn"] : c["end_turn"] + 1] for c in chunks]
    dates = [sorted({t.session_date for t in some if t.session_date}) for some in turns]
    nothing = [None] * (len(chunks) - 1)
    context = orjson.dumps(index.entry(conversation, doc, chunks)["turn_context"]).decode()
    flat = pa.array(np.ascontiguousarray(vectors, np.float32).reshape(-1))
    columns = {field: [c[field] for c in chunks] for field in chunking.FIELDS} | {
        "conversation_id": [conversation.conversation_id] * len(chunks),
        "speakers": [list(dict.fromkeys(t.speaker for t in some)) for some in turns],
        "dates": dates,
        "first_date": [d[0] if d else None for d in dates],
        "last_date": [d[-1] if d else None for d in dates],
        "vector": pa.FixedSizeListArray.from_arrays(flat, vectors.shape[1]),
        "digest": [digest, *nothing],
        "source": [source, *nothing],
        "context": [context, *nothing],
    }
    wanted = schema(vectors.shape[1], {}).remove_metadata()
    return pa.Table.from_pydict({field.name: columns[field.name] for field in wanted}, schema=wanted)


def find_table(place, settings=None):
    """The LanceDB table at `place`, None where there is none. Raises `BadInput` where it has other `settings`.

    Who names `settings` is going to write, and gets small caches.
    """
    database, name = split_place(place)
    table = _found(_connect(database, writes=settings is not None), name)
    if table is None:
        return None
    have = settings_of(table, place)
    if differ := [k for k, v in (settings or {}).items() if have.get(k) != v]:
        k, remedy = differ[0], "choose another table, or take that back"
        raise BadInput(f"{_said(place)}: made with {k} {have.get(k)!r}, now {settings[k]!r}; {remedy}")
    return table


def open_table(place):
    """The LanceDB table at `place`. Raises `BadInput` where there is none."""
    table = find_table(place)
    if table is None:
        raise BadInput(f"{_said(place)}: no such table; make it with python -m rawrag_utils.scale corpus FOLDER TABLE")
    return table


@contextlib.contextmanager
def writing(place):
    """Hold the table at `place` as long as the block lasts: raises `BadInput` where another process writes to it.

    A table in an object store has no lock file: there, only one run at a time may write to it.
    """
    import filelock

    database, name = split_place(place)
    if "://" in database:
        yield
        return
    lock = filelock.FileLock(pathlib.Path(database) / f".{name}.lock", timeout=0)
    try:
        os.makedirs(database, exist_ok=True)
        held = lock.acquire()
    except filelock.Timeout as error:
        raise BadInput(f"{_said(place)}: another run is writing to it; wait for it, then run again") from error
    except OSError as error:
        raise BadInput(f"{_said(place)}: cannot be written ({error.strerror}); choose another place") from error
    with held:
        yield


def make_table(place, settings, dimensions):
    """A new, empty table at `place` for vectors of so many `dimensions`."""
    database, name = split_place(place)
    connection = _connect(database, writes=True)
    from lancedb.index import BTree  # once its log is quiet

    with _working(name, "made"):
        table = connection.create_table(name, schema=schema(dimensions, settings), exist_ok=True)
        table.create_index("conversation_id", config=BTree())  # every look-up and every filter goes by it
    return table


def _connect(database, writes=False):
    os.environ.setdefault("LANCEDB_LOG", "error")  # it warns of new tables and of its own next release
    try:
        import lancedb
    except ImportError as error:
        raise BadInput("LanceDB is not installed; run pip install -e '.[scale]', or make setup") from error
    caches = {"index_cache_size_bytes": CACHE, "metadata_cache_size_bytes": CACHE}
    try:
        return lancedb.connect(database, session=lancedb.Session(**caches) if writes else None)
    except (OSError, ValueError, RuntimeError) as error:
        raise BadInput(f"{_said(database)}: cannot be opened ({_one_line(error)}); check address and rights") from error


def _found(connection, name):
    try:
        return connection.open_table(name)
    except (OSError, ValueError, RuntimeError) as error:
        if "not found" in str(error):
            return None
        raise BadInput(f"table {name}: cannot be opened ({_one_line(error)}); check place and rights") from error


def _one_line(error):
    said = re.sub(r"(, )?/\S+\.rs:\d+:\d+", "", " ".join(str(error).split()))  # where in its own source it was raised
    return said.removeprefix("lance error: ")[:200]


@contextlib.contextmanager
def _working(name, doing):
    """What LanceDB raises, as one line: no space, no rights, a table that somebody deleted."""
    try:
        yield
    except (OSError, RuntimeError, ValueError) as error:
        remedy = "free space, mend rights or, where files of it are missing, delete it; then run again to go on"
        raise BadInput(f"table {name}: cannot be {doing} ({_one_line(error)}); {remedy}") from error


def _said(place):
    return place if "://" in str(place) else paths.relative(paths.resolve(place))


def settings_of(table, place="table"):
    """The settings that a table was made with. Raises `BadInput` for one that is not of this module's making."""
    import orjson

    found = orjson.loads((table.schema.metadata or {}).get(b"rawrag", b"{}"))
    if found.get("schema") != SCHEMA:
        raise BadInput(f"{_said(place)}: not a table of windows (schema {SCHEMA}); choose another, or make it again")
    return found


def _quoted(text):
    return "'" + str(text).replace("'", "''") + "'"


def _among(names):
    return f"conversation_id IN ({', '.join(map(_quoted, names))})"


def known(table, names):
    """{conversation id: (digest, source)} of those of `names` that the table holds."""
    if not names:
        return {}
    with _working(table.name, "read"):
        query = table.search().where(f"chunk_index = 0 AND {_among(names)}")
        found = query.select(["conversation_id", "digest", "source"]).limit(len(names)).to_arrow().to_pylist()
    return {row["conversation_id"]: (row["digest"], row["source"]) for row in found}


def write(table, conversations, replaced=()):
    """Add the Arrow tables of some conversations in one commit, once those `replaced` (ids) are removed."""
    import pyarrow as pa

    with _working(table.name, "written"):
        if replaced:  # first: killed in between, they are missing and come with the next run, never there twice
            table.delete(_among(replaced))
        if conversations:
            table.add(pa.concat_tables(conversations))


def tidy(table):
    """Merge small fragments, bring indices up to date, drop old versions: what many commits leave behind."""
    with _working(table.name, "written"):
        table.optimize(cleanup_older_than=KEEP)


def set_aside(place, faults=None):
    """The faults noted beside the table at `place`, dicts `source, place, reason`; `faults` replaces them."""
    import pyarrow as pa

    database, name = split_place(place)
    connection = _connect(database)
    if faults is not None:
        fields = pa.schema([(f, pa.string()) for f in ("source", "place", "reason")])
        with _working(name + SET_ASIDE, "written"):
            connection.create_table(name + SET_ASIDE, pa.Table.from_pylist(faults, fields), mode="overwrite")
    table = _found(connection, name + SET_ASIDE)
    return [] if table is None else table.to_arrow().to_pylist()


# -------------------------------------------------------------------------------------------------------------- search


def where(conversation=None, between=(None, None)):
    """The SQL condition of a search: one conversation, and windows that touch a turn dated in `between`; "" for all.

    First and last date do not settle it for a window that spans a range: there, a date lies in between when more of
    the window's sorted dates stand up to the end of the range than before its start.

    >>> where("talk_1"), where(None, ("2024-03-02", None))
    ("conversation_id = 'talk_1'", "last_date >= '2024-03-02'")
    """
    start, end = (str(d) if d else None for d in between)
    parts = [f"conversation_id = {_quoted(conversation)}"] if conversation is not None else []
    if end:
        parts.append(f"first_date <= {_quoted(end)}")
    if start:
        parts.append(f"last_date >= {_quoted(start)}")
    if start and end:
        up_to, before = (
            f"array_position(array_sort(array_append(dates, {day})), {day})"
            for day in map(_quoted, (f"{end}~", start))  # the mark stands behind the day itself
        )
        parts.append(f"{up_to} > {before}")
    return " AND ".join(parts)


def search(table, questions, vectors, top=15, dates=None, everywhere=False, approximate=False, probes=60, refine=4):
    """The ranking table of `questions` by cosine, as `retrieval.dense` gives it, from windows that stay in the table.

    Each question's own conversation is searched, or `everywhere`; `dates` as in `retrieval`. What does not match is
    left out before ranking. Exact unless `approximate`, which goes through the index of `build_index`: `probes` of its
    partitions (all of them where a filter leaves windows out), and `refine` times as many windows as asked for
    compared by their whole vectors. Scores are those of float64 products, ties stand by chunk index. Raises
    `BadInput` for vectors, dates and numbers that do not fit.
    """
    if min(top, probes, refine) < 1:
        raise BadInput(f"top {top}, probes {probes}, refine {refine}: whole numbers from 1")
    vectors = np.asarray(vectors, np.float64)
    dimensions = table.schema.field("vector").type.list_size
    if vectors.shape != (len(questions), dimensions) or not np.isfinite(vectors).all():
        raise BadInput(
            f"query vectors of shape {vectors.shape}, wanted finite ones of ({len(questions)}, {dimensions}); embed "
            "the questions with the table's profile"
        )
    if approximate and not _index_of(table):
        raise BadInput("the table has no index; make it with python -m rawrag_utils.scale index TABLE")
    conditions = []
    for question in questions:  # first: what is wrong shows before any work
        between = retrieval.check_between((dates or {}).get(question.question_id), question.question_id)
        conditions.append(where(None if everywhere else question.conversation_id, between))
    settings = top, (probes, refine) if approximate else None
    pieces = [_nearest(table, v, c, *settings) for v, c in zip(vectors, conditions, strict=True)]
    lengths = [len(piece) for piece in pieces]
    ranking = pd.concat(pieces, ignore_index=True) if pieces else _candidates(None, np.zeros(dimensions))
    ranking.insert(0, "query_id", np.repeat(np.array([q.question_id for q in questions], object), lengths))
    ranking.insert(2, "rank", np.concatenate([np.arange(1, n + 1) for n in lengths] or [np.zeros(0)]).astype(np.int64))
    return ranking


def _nearest(table, vector, condition, top, effort):
    """The best `top` windows for one vector: `doc_id, score, similarity`, best first."""
    limit = top + MARGIN
    while True:
        query = table.search(vector.astype(np.float32)).distance_type("cosine").limit(limit)
        query = query.select(["chunk_id", "vector", "_distance"])
        if condition:
            query = query.where(condition, prefilter=True)
        if effort is None:
            query = query.bypass_vector_index()
        else:  # the nearest partitions may hold few windows that match a filter: then none is left out (0)
            probes, refine = effort
            query = query.minimum_nprobes(probes).maximum_nprobes(0 if condition else probes).refine_factor(refine)
        found = _candidates(query.to_arrow(), vector)
        # As many equal windows as were fetched: the one with the least index may not be among them.
        tied = len(found) == limit and found["score"].iloc[top - 1] - found["score"].iloc[-1] < 1e-6
        if effort is not None or not tied:
            return found[:top]
        limit *= 4


def _candidates(found, vector):
    """Candidates of a search with scores from float64, as `retrieval.dense` has them; sorted, ties by chunk index."""
    if found is None or not len(found):
        return pd.DataFrame({"doc_id": np.zeros(0, object), "score": np.zeros(0), "similarity": np.zeros(0)})
    rows = found.column("vector").combine_chunks().flatten().to_numpy().reshape(-1, len(vector))
    scores = (rows.astype(np.float64) @ vector).astype(np.float32).astype(np.float64)
    ids = np.array(found.column("chunk_id").to_pylist(), object)
    order = np.lexsort((ids, retrieval.positions(ids), -scores))
    return pd.DataFrame({"doc_id": ids[order], "score": scores[order], "similarity": scores[order]})


def build_index(table, kind="IVF_SQ", partitions=None):
    """Make the index of approximate search over all vectors: `IVF_SQ`, `IVF_HNSW_SQ` or `IVF_PQ` of LanceDB.

    `partitions` is LanceDB's own choice unless given. Windows added later are found too, by comparing each, until
    `tidy` takes them in. Raises `BadInput` for too few windows to learn from.
    """
    from lancedb import index as kinds

    known_kinds = {"IVF_SQ": kinds.IvfSq, "IVF_HNSW_SQ": kinds.HnswSq, "IVF_PQ": kinds.IvfPq}
    if kind not in known_kinds:
        raise BadInput(f"index {kind!r}: no such kind; there are {', '.join(known_kinds)}")
    try:
        config = known_kinds[kind](distance_type="cosine", num_partitions=partitions)
        table.create_index("vector", config=config, replace=True)
    except (RuntimeError, ValueError) as error:
        raise BadInput(f"index {kind}: not made ({_one_line(error)}); exact search needs none") from error


def _index_of(table):
    return next((i for i in table.list_indices() if i.columns == ["vector"]), None)


def recall(exact, approximate):
    """The share of each question's exact ranking that the approximate one holds too, a Series by `query_id`.

    >>> exact = pd.DataFrame({"query_id": "q", "doc_id": ["a_chunk_0", "a_chunk_1"]})
    >>> recall(exact, exact[:1])["q"]
    np.float64(0.5)
    """
    both = exact[["query_id", "doc_id"]].merge(approximate[["query_id", "doc_id"]], how="left", indicator=True)
    return (both["_merge"] == "both").groupby(both["query_id"], sort=False).mean()


# ----------------------------------------------------------------------------------------------------------- read back


def read_index(table, conversations):
    """The three-field index of some conversations (ids), which every later stage and the inspector work on.

    Raises `BadInput` for one that the table does not hold.
    """
    import orjson

    found = {}
    for name in dict.fromkeys(conversations):
        rows = table.search().where(f"conversation_id = {_quoted(name)}").limit(None).to_arrow().sort_by("chunk_index")
        if not len(rows):
            raise BadInput(f"{name}: no such conversation in the table; correct the id or add it")
        dimensions = rows.schema.field("vector").type.list_size
        found[name] = {
            "chunks": rows.select(list(chunking.FIELDS)).to_pylist(),
            "embeddings": rows.column("vector").combine_chunks().flatten().to_numpy().reshape(-1, dimensions),
            "turn_context": orjson.loads(rows.column("context")[0].as_py()),
        }
    return index.validate(found, "table")
