"""A corpus from files to a table: read, cut and embedded by Ray Data's workers, written by one hand.

What streams is a row a conversation. It is added in one commit or not at all, by its id and a digest of what it says:
a run that was killed goes on where it was, and a second one adds nothing. Memory depends on the largest conversation
(and JSON file), not on how many there are.
"""

import collections
import dataclasses
import hashlib
import itertools
import json
import logging
import os
import pathlib
import time
import warnings

from rawrag_utils import chunking, dialogue, grid, lake, lectures, models, own_form, paths
from rawrag_utils import corpus as corpora
from rawrag_utils.execution import say
from rawrag_utils.paths import BadInput

KINDS = (".json", ".jsonl", ".parquet", *lectures.ENDINGS)
CONVERSATIONS = 2  # handed to a worker at a time: few, so that no worker waits for another at the end …
CONVERSATIONS_GPU = 32  # … but a GPU wants enough windows to fill its batches
COMMIT_BYTES = 20_000_000  # of windows added to the table at a time (8,000 windows of 384 dimensions) …
COMMIT_SECONDS = 60  # … or what came by then: what a killed run loses
TIDY = 32  # commits between two times of merging what they left behind
FAULTS = 1000  # noted in the table beside it; more are counted only


# ------------------------------------------------------------------------------------------------------------- reading


def files(folder):
    """(path, its name below `folder`) of all files there with an ending of `KINDS`, sorted. Raises `BadInput`.

    The questions about lectures beside their subtitles are no conversations and left out.
    """
    root = paths.resolve(folder)
    listed = root.rglob("*") if root.is_dir() else [root]
    found = sorted(p for p in listed if p.suffix.lower() in KINDS and p.is_file() and not _questions(p))
    if not found:
        raise BadInput(f"{paths.relative(root)}: no file in {', '.join(KINDS)}; name the folder that has some")
    names = [p.relative_to(root).as_posix() if root.is_dir() else p.name for p in found]
    # A file's name may be no text: it travels as bytes, and is told as messages tell it.
    return [(os.fsencode(p), paths.printable(name)) for p, name in zip(found, names, strict=True)]


def _questions(path):
    return path.name == lectures.QUESTIONS_FILE and lectures.holds(path.parent)


def read(path, source):
    """Yields a dict for each conversation of a file: source, place, bytes of the file, conversation or reason.

    `conversation` is a `corpus.Conversation` as JSON, `reason` why it cannot be read; the other is empty. JSON Lines
    and Parquet hold one conversation in the own form a line or a row, and are read piece by piece; a JSON file is read
    as a whole and may have any shape that `corpus.load` knows. A subtitle file is one conversation.
    """
    import orjson

    path, seen = pathlib.Path(os.fsdecode(path)), set()
    one = {"source": source, "place": "", "share": 0.0, "conversation": b"", "reason": ""}
    try:
        one["share"] = size = float(os.path.getsize(path))
        for place, share, item in _items(path, source):
            found = {**one, "place": place, "share": share * size}
            try:
                conversation = item if isinstance(item, corpora.Conversation) else _checked(item)
                if conversation.conversation_id in seen:
                    raise BadInput(f"conversation_id {conversation.conversation_id!r} stands in the file twice")
                seen.add(conversation.conversation_id)
                yield {**found, "conversation": orjson.dumps(conversation)}
            except (BadInput, orjson.JSONEncodeError) as error:  # the latter of half a character, which is no text
                yield {**found, "reason": str(error)}
    except OSError as error:  # it is gone, or not ours to read
        yield {**one, "reason": f"{source}: cannot be read ({error.strerror}); check that it is there, and its rights"}
    except BadInput as error:
        yield {**one, "reason": str(error)}


def _items(path, source):
    """(place, share of the file, conversation as the file has it) of a file, one after the other."""
    kind = path.suffix.lower()
    if kind == ".parquet":
        return _parquet_rows(path)
    if kind == ".jsonl":
        return _json_lines(path)
    if kind in lectures.ENDINGS:
        return [("", 1, _by_path(*corpora.load(str(path)).conversations, source))]
    try:
        content = corpora.parse(path)
        own = corpora.is_own(content) and isinstance(content["conversations"], list)
        found = content["conversations"] if own else corpora.load(str(path)).conversations
    except RecursionError as error:
        raise BadInput(f"{path.name}: nested too deeply for conversations") from error
    if not own and len(found) == 1:  # LoCoMo's older layout, a file a conversation: each would be the first
        found = [_by_path(*found, source)]
    return ((f"conversations[{i}]", 1 / len(found), item) for i, item in enumerate(found))


def _by_path(conversation, source):
    """The conversation under the name of its file, with its folders, for each may hold a talk.srt."""
    name = dialogue.label(source.replace("/", "_"))
    return dataclasses.replace(conversation, conversation_id=name, source_id=name)


def _json_lines(path):
    size = os.path.getsize(path)
    with open(path, "rb") as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                try:
                    item = json.loads(line)
                except (ValueError, RecursionError):
                    item = None  # refused below, with its place
                yield f"line {number}", len(line) / size, item


def _parquet_rows(path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            count = file.metadata.num_rows
            rows = (row for batch in file.iter_batches(batch_size=CONVERSATIONS_GPU) for row in batch.to_pylist())
            for number, row in enumerate(rows):
                yield f"row {number}", 1 / count, _without_nulls(row)
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        reason = " ".join(str(error).split())[:200]
        raise BadInput(f"{path.name}: not a Parquet file that can be read ({reason}); write it again") from error


def _without_nulls(row):
    return {name: value for name, value in row.items() if value is not None}  # how Parquet writes what is left out


def _checked(item):
    from pydantic import ValidationError

    if isinstance(item, dict):  # questions are not looked at
        item = {name: value for name, value in item.items() if name != "questions"}
    try:
        return corpora.from_own(own_form.Conversation.model_validate(item))
    except ValidationError as error:
        raise BadInput(f"{own_form.explain(error)}; see data/README.md for the form") from error


# ------------------------------------------------------------------------------------------------ chunking, embedding


class Windows:
    """What a worker of the corpus path is: conversations in, their windows with vectors out, as Arrow bytes.

    A class, because Ray keeps it, and with it the loaded model, from batch to batch.
    """

    def __init__(self, place, settings):
        self.settings, self.table = settings, lake.find_table(place, settings)
        self.embedder = models.load_embedder(settings["PROFILE"])

    def __call__(self, batch):
        import pyarrow as pa

        found = [self._prepared(row) for row in batch.to_pylist()]
        known = lake.known(self.table, [f["name"] for f in found if f["name"]]) if self.table else {}
        for one in found:
            _decide(one, known)
        new = [one for one in found if one["state"] in ("added", "replaced")]
        documents = [chunking.document(one["object"]) for one in new]
        sizes = self.settings["CHUNK_SIZE"], self.settings["CHUNK_OVERLAP"]
        chunks = [chunking.cut(doc, *sizes) for doc in documents]
        texts = [c["content"] for some in chunks for c in some]
        vectors, start = models.embed(self.embedder, texts, cache=False), 0
        for one, doc, some in zip(new, documents, chunks, strict=True):
            mine, start = vectors[start : start + len(some)], start + len(some)
            one["windows"] = _bytes(lake.rows(one["object"], doc, some, mine, one["digest"], one["source"]))
        return pa.Table.from_pylist(found, schema=_passing())

    def _prepared(self, row):
        """A row of `read` with name, digest and the conversation itself; one that holds no turn is set aside."""
        import orjson

        one = {**row, "name": None, "digest": None, "windows": None, "state": "set aside"}
        if not row["reason"]:
            fields = orjson.loads(row["conversation"])
            turns = tuple(corpora.Turn(**turn) for turn in fields.pop("turns"))
            one["object"] = corpora.Conversation(**fields, turns=turns)
            one["name"], one["state"] = fields["conversation_id"], "added"
            one["digest"] = hashlib.sha256(row["conversation"]).hexdigest()
        return one


def encoder(profile):
    """What decides a window's vector, as settings of a table. Raises `BadInput` for a profile that is not there.

    >>> encoder("local")["model"]
    'all-MiniLM-L6-v2'
    """
    config = models.profile(profile).embedder
    names = ("model", "max_length", "tokenizer_sha256", "document_prompt")
    pinned = config.weights_sha256 or config.revision
    return {"PROFILE": profile, "weights": pinned, **{name: getattr(config, name) for name in names}}


def _decide(one, known):
    """Set the state of a prepared conversation by what the table holds under its id."""
    digest, source = known.get(one["name"], (None, None))
    if one["name"] is None or digest is None:
        return
    if digest == one["digest"]:
        one["state"] = "known"
    elif source == one["source"]:
        one["state"] = "replaced"
    else:
        one["state"] = "set aside"
        one["reason"] = f"conversation_id {one['name']!r} is {source}'s in the table; give each conversation its own"


def _passing():
    """What streams from workers to the writer: a row a conversation, its windows as bytes, so that it stays whole."""
    import pyarrow as pa

    texts = ("source", "place", "reason", "name", "digest", "state")
    return pa.schema([*((name, pa.string()) for name in texts), ("share", pa.float64()), ("windows", pa.binary())])


def _bytes(table):
    import pyarrow as pa

    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()


def _table(data):
    import pyarrow as pa

    return pa.ipc.open_stream(data).read_all()


# ------------------------------------------------------------------------------------------------------------- corpora


@dataclasses.dataclass
class Tally:
    """What became of a corpus: conversations by state, windows added, the faults, the share of bytes read."""

    states: collections.Counter = dataclasses.field(default_factory=collections.Counter)
    windows: int = 0
    faults: list = dataclasses.field(default_factory=list)
    read: float = 0.0
    first: tuple = ()  # (time, read) when the first conversation had come: until then workers were started
    started: float = dataclasses.field(default_factory=time.monotonic)


def corpus(folder, place, profile="local", size=256, overlap=32, workers=None, threads=1, gpus=0):
    """Cut and embed all conversations of `folder` into the table at `place`; returns a `Tally`.

    `workers` embed at a time, each on `threads` processors and `gpus` GPUs. What the table holds already is left as it
    is, a conversation that changed in its file is replaced, one that cannot be read is noted in the table
    `<name>_set_aside` with its reason. Memory depends on the largest conversation (and JSON file), not on the corpus.
    Raises `BadInput` for input that concerns all: no files, another profile than the table's, no weights, and where
    another run writes to the table, which only a local one shows: to one in an object store, run one at a time.
    """
    chunking.check_size(size, overlap)
    found, settings = files(folder), {**encoder(profile), "CHUNK_SIZE": size, "CHUNK_OVERLAP": overlap}
    if threads < 1 or (workers is not None and workers < 1):
        raise BadInput(f"workers {workers}, threads {threads}: whole numbers from 1")
    workers = workers or max(1, (os.cpu_count() or 1) // threads)
    tally, total = Tally(), sum(os.path.getsize(p) for p, _ in found) or 1
    with lake.writing(place):
        with grid.cluster(workers * threads) as ray:  # before LanceDB wakes up: its threads do not survive Ray's forks
            lake.find_table(place, settings)
            try:
                passing = _streamed(ray, found, place, settings, workers, threads, gpus)
                _written(passing, place, settings, tally, total)
            except ray.exceptions.RayError as error:
                raise _cause(error) from error
        lake.set_aside(place, tally.faults)
    return tally


def _streamed(ray, found, place, settings, workers, threads, gpus):
    """Rows of `_passing`, in the order of the files, so that the first of two that share an id is always the same."""
    import ray.data  # a submodule that is loaded only when asked for

    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    context.execution_options.preserve_order = True
    logging.getLogger("ray.data").setLevel(logging.CRITICAL)
    # Of a folder with fewer files than workers, which is no fault.
    warnings.filterwarnings("ignore", r"The (minimum|maximum) number of concurrent", UserWarning)
    pool, tasks = ray.data.ActorPoolStrategy(size=workers), ray.data.TaskPoolStrategy(size=workers)
    # Reading asks for no processor of its own: workers hold them all, and nothing would ever be read.
    rows = ray.data.from_items([{"path": p, "source": s} for p, s in found]).flat_map(
        _read_row, compute=tasks, num_cpus=0
    )
    told = {"place": str(place), "settings": settings}
    return rows.map_batches(
        Windows,
        fn_constructor_kwargs=told,
        batch_size=CONVERSATIONS_GPU if gpus else CONVERSATIONS,
        batch_format="pyarrow",
        compute=pool,
        num_cpus=threads,
        num_gpus=gpus or None,
    ).iter_batches(batch_size=None, batch_format="pyarrow", prefetch_batches=1)


def _read_row(row):
    return read(row["path"], row["source"])


def _written(passing, place, settings, tally, total):
    """The one writer: gathers conversations and commits them, says how far it is.

    Where the stream breaks off, what came before is committed first.
    """
    table, pending, size = lake.find_table(place, settings), {}, 0
    broken = []

    def arriving():
        try:
            yield from (row for batch in passing for row in batch.to_pylist())
        except Exception as error:
            broken.append(error)

    said = committed = time.monotonic()
    commits = itertools.count(1)

    def commit():
        nonlocal table, pending, size, committed
        if pending and table is None:
            dimensions = _table(next(iter(pending.values()))["windows"]).schema.field("vector").type.list_size
            table = lake.make_table(place, settings, dimensions)
        if pending:
            _commit(table, pending, tally)
            if next(commits) % TIDY == 0:
                lake.tidy(table)
        pending, size, committed = {}, 0, time.monotonic()

    for one in arriving():
        tally.read += one["share"]
        tally.first = tally.first or (time.monotonic(), tally.read)
        if one["name"] in pending:
            _decide(one, {one["name"]: (pending[one["name"]]["digest"], pending[one["name"]]["source"])})
        if one["windows"] and one["state"] in ("added", "replaced"):
            pending[one["name"]] = one
            size += len(one["windows"])
        else:
            _count(one, tally)
        if size >= COMMIT_BYTES or time.monotonic() - committed >= COMMIT_SECONDS:
            commit()
        if time.monotonic() - said >= models.PULSE:
            said = time.monotonic()
            say(progress(tally, total))
    commit()
    if broken:
        raise broken[0]
    if table is not None:
        lake.tidy(table)


def _commit(table, pending, tally):
    """Add what is pending; the table is asked once more, since workers saw it as it was when they started."""
    known = lake.known(table, list(pending))
    for one in pending.values():
        one["state"] = "added"
        _decide(one, known)
    new = [one for one in pending.values() if one["state"] in ("added", "replaced")]
    replaced = [one["name"] for one in new if one["state"] == "replaced"]
    added = [_table(one["windows"]) for one in new]
    lake.write(table, added, replaced)
    tally.windows += sum(map(len, added))
    for one in pending.values():
        _count(one, tally)


def _count(one, tally):
    tally.states[one["state"]] += 1
    if one["state"] == "set aside" and len(tally.faults) < FAULTS:
        tally.faults.append({name: one[name] for name in ("source", "place", "reason")})


def progress(tally, total):
    """One line: what was done, the share of bytes read, and about how long the rest takes, at the rate since `first`.

    >>> tally = Tally(collections.Counter({"added": 2}), windows=190, read=55.0, first=(time.monotonic() - 60, 5.0))
    >>> progress(tally, 100)
    '190 windows added; 2 added; 55 % read, about 1 min left'
    """
    states = ", ".join(f"{n:,} {state}" for state, n in tally.states.items()) or "none finished"
    since, before = tally.first or (time.monotonic(), tally.read)
    done, rest = tally.read - before, max(0.0, total - tally.read)
    left = (time.monotonic() - since) * rest / done / 60 if done > 0 else 0
    share = f"{min(1.0, tally.read / total):.0%}".replace("%", " %")
    return f"{tally.windows:,} windows added; {states}; {share} read" + (f", about {left:.0f} min left" * (left >= 0.5))


def _cause(error):
    """The `BadInput` behind what Ray raises, else one that names what was raised."""
    chain, seen = [error], set()
    while chain:
        one = chain.pop()
        if isinstance(one, BadInput):
            return BadInput(str(one.args[0]) if one.args else str(one))
        if one is not None and id(one) not in seen:
            seen.add(id(one))
            chain += [one.__cause__, getattr(one, "cause", None)]
    return BadInput(f"Ray: {type(error).__name__}: {' '.join(str(error).split())[-300:]}; run again to go on")
