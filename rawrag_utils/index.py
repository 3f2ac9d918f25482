"""The three-field index: chunks, embeddings, turn context. JSON in and out; nothing an LLM wrote is ever in it.

`{conversation_id: {"chunks": [...], "embeddings": [[...]], "turn_context": {...}}}` in one file. In memory
`embeddings` is a float32 array (windows, dimensions); the file holds each number in the fewest digits that give the
same float32 back.
"""

import re

import numpy as np

from rawrag_utils import chunking, paths
from rawrag_utils.paths import BadInput

CONTEXT_FIELDS = ("header", "turn_spans", "turn_timestamps", "turn_session_dates", "turn_lines")
REMEDY = "build the index again"
SURROGATE = re.compile("[\ud800-\udfff]")  # alone they are no text: UTF-8 cannot hold them
# The one float32, but for its sign, whose shortest digits (7.038531e-26) come back as its neighbour when they are read
# as float64 and rounded to float32 (all 2^31 were tried).
ROUNDED_TWICE = np.uint32(0x15AE43FD).view(np.float32)


def entry(conversation, doc, chunks):
    """One conversation's index object, still without vectors (`embeddings` has no columns)."""
    return {
        "chunks": chunks,
        "embeddings": np.zeros((len(chunks), 0), np.float32),
        "turn_context": {
            "header": doc.header,
            "turn_spans": [list(span) for span in doc.turn_spans],
            "turn_timestamps": [t.timestamp for t in conversation.turns],
            "turn_session_dates": [t.session_date for t in conversation.turns],
            "turn_lines": doc.lines,
        },
    }


def build(conversations, cut=chunking.cut, captions=True, dates=True):
    """Index of `conversations`, without vectors; `cut` makes the windows of a `chunking.Document`.

    >>> from rawrag_utils.corpus import Conversation, Turn
    >>> talk = Conversation("c", "c", "Nora", "Tobias", (Turn("D1:1", 1, None, None, "Nora", "Hi"),))
    >>> {name: len(part) for name, part in build([talk])["c"].items()}
    {'chunks': 1, 'embeddings': 1, 'turn_context': 5}
    """
    documents = ((c, chunking.document(c, captions, dates)) for c in conversations)
    return {c.conversation_id: entry(c, doc, cut(doc)) for c, doc in documents}


def contents(index):
    """Texts of all windows, conversation after conversation, in the order in which `with_vectors` takes vectors."""
    return [chunk["content"] for part in index.values() for chunk in part["chunks"]]


def with_vectors(index, vectors):
    """A copy of `index` that holds `vectors` (windows of all conversations, dimensions), validated."""
    start, filled = 0, {}
    windows = sum(len(part["chunks"]) for part in index.values())
    if len(vectors) != windows:
        raise BadInput(f"{len(vectors)} vectors for {windows} windows; wanted one each")
    for name, part in index.items():
        end = start + len(part["chunks"])
        filled[name] = {**part, "embeddings": vectors[start:end]}
        start = end
    return validate(filled)


def save(index, path):
    """Write the index as JSON, atomically. Raises `BadInput` when it is not valid; then `path` stays as it was."""
    import orjson

    content = {name: {**part, "embeddings": _rows(part["embeddings"])} for name, part in validate(index).items()}
    with paths.atomic(paths.resolve(path), "wb") as file:
        file.write(orjson.dumps(content, option=orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_APPEND_NEWLINE))


def _rows(vectors):
    exact = np.float64 if (np.abs(vectors) == ROUNDED_TWICE).any() else np.float32
    return [np.ascontiguousarray(row, exact) for row in vectors]


def load(path):
    """Read and validate an index. Raises `BadInput` that names the place of the first damage."""
    import orjson

    path = paths.resolve(path)
    try:
        content = orjson.loads(path.read_bytes())
    except OSError as error:
        raise BadInput(f"{paths.relative(path)}: cannot be read ({error.strerror}); {REMEDY}") from error
    except orjson.JSONDecodeError as error:
        raise BadInput(f"{paths.relative(path)}: character {error.pos} is not JSON ({error.msg}); {REMEDY}") from error
    return validate(content, paths.relative(path))


def validate(index, source="index"):
    """A copy of `index` with its vectors as float32. Raises `BadInput` naming conversation, field and position."""
    if not isinstance(index, dict):
        raise BadInput(f"{source}: holds no object of conversations; {REMEDY}")
    checked, dimensions = {}, None
    for name, part in index.items():
        place = f"{source}: {name}" if _is_text(name) and name.isprintable() else f"{source}: {name!r:.60}"
        _demand(_is_text(name), place, "a conversation's name must be text")
        _demand_fields(part, ("chunks", "embeddings", "turn_context"), place)
        _check_context(part["turn_context"], f"{place}.turn_context")
        _check_chunks(part["chunks"], name, part["turn_context"]["turn_spans"], f"{place}.chunks")
        vectors = _vectors(part["embeddings"], len(part["chunks"]), f"{place}.embeddings")
        dimensions = vectors.shape[1] if dimensions is None else dimensions
        other = f"{vectors.shape[1]} dimensions, but {dimensions} in the conversation before"
        _demand(vectors.shape[1] == dimensions, f"{place}.embeddings", other)
        checked[name] = {**part, "embeddings": vectors}
    return checked


def _refuse(place, fault):
    raise BadInput(f"{place}: {fault}; {REMEDY}")


def _demand(condition, place, fault):
    if not condition:
        _refuse(place, fault)


def _demand_fields(part, fields, place):
    found = sorted(map(str, part)) if isinstance(part, dict) else type(part).__name__
    _demand(
        isinstance(part, dict) and set(part) == set(fields),
        place,
        f"wanted exactly the fields {', '.join(fields)}; found {found!r:.200}",
    )


def _is_text(value):
    return isinstance(value, str) and (value.isascii() or not SURROGATE.search(value))


def _check_context(context, place):
    _demand_fields(context, CONTEXT_FIELDS, place)
    _demand(_is_text(context["header"]), f"{place}.header", "not text")
    for field in CONTEXT_FIELDS[1:]:
        _demand(isinstance(context[field], list), f"{place}.{field}", "not a list")
    turns = len(context["turn_lines"])
    _demand(turns, f"{place}.turn_lines", "holds no turn")
    for field in CONTEXT_FIELDS[1:]:
        found = len(context[field])
        _demand(found == turns, f"{place}.{field}", f"{found} entries for {turns} turns")
    # A line a turn from here on: the words of a fault are put together only where there is one.
    for i, line in enumerate(context["turn_lines"]):
        if not _is_text(line):
            _refuse(f"{place}.turn_lines[{i}]", "not text")
    for field in ("turn_timestamps", "turn_session_dates"):
        for i, value in enumerate(context[field]):
            if value is not None and not _is_text(value):
                _refuse(f"{place}.{field}[{i}]", "neither text nor null")
    end = 0
    for i, span in enumerate(context["turn_spans"]):
        numbers = isinstance(span, list | tuple) and len(span) == 2 and type(span[0]) is type(span[1]) is int
        if not (numbers and end <= span[0] < span[1]):
            _refuse(f"{place}.turn_spans[{i}]", f"{span!r:.60} is no interval of tokens after {end}")
        end = span[1]


def _check_chunks(chunks, name, spans, place):
    turns, tokens = len(spans), spans[-1][1]
    _demand(isinstance(chunks, list) and chunks, place, "holds no window")
    for i, chunk in enumerate(chunks):
        _demand_fields(chunk, chunking.FIELDS, f"{place}[{i}]")
        for field, value in chunk.items():
            known = _is_text(value) if field in ("chunk_id", "content") else type(value) is int
            _demand(known, f"{place}[{i}].{field}", "of the wrong kind")
        for field, wanted in (("chunk_index", i), ("chunk_id", f"{name}_chunk_{i}")):
            _demand(chunk[field] == wanted, f"{place}[{i}].{field}", f"{chunk[field]!r:.60}, wanted {wanted!r:.60}")
        start, end, first, last = (chunk[f] for f in chunking.FIELDS[3:])
        _demand(0 <= start < tokens, f"{place}[{i}].start_token", f"{start} is outside the {tokens} tokens")
        _demand(start < end <= tokens, f"{place}[{i}].end_token", f"{end} is not from {start + 1} to {tokens}")
        _demand(0 <= first < turns, f"{place}[{i}].start_turn", f"{first} is outside the {turns} turns")
        _demand(first - 1 <= last < turns, f"{place}[{i}].end_turn", f"{last} is not from {first - 1} to {turns - 1}")


def _vectors(vectors, windows, place):
    """The vectors as a float32 array (windows, dimensions)."""
    if not isinstance(vectors, np.ndarray):
        _demand(isinstance(vectors, list), place, "not a list of vectors")
        for i, row in enumerate(vectors):
            numbers = isinstance(row, list) and set(map(type, row)) <= {int, float}
            _demand(numbers, f"{place}[{i}]", "not a vector of numbers")
            wanted = len(vectors[0])
            _demand(len(row) == wanted, f"{place}[{i}]", f"{len(row)} numbers, wanted {wanted} as in the first vector")
    try:
        with np.errstate(over="ignore"):  # too large for float32 becomes infinite, and is refused as that
            vectors = np.asarray(vectors, np.float32)
    except (TypeError, ValueError, OverflowError) as error:
        raise BadInput(f"{place}: holds something that is no number; {REMEDY}") from error
    shape = f"shape {vectors.shape} for {windows} windows, wanted one vector each"
    _demand(vectors.ndim == 2 and len(vectors) == windows, place, shape)
    broken = np.argwhere(~np.isfinite(vectors))
    _demand(not len(broken), f"{place}[{broken[0][0] if len(broken) else 0}]", "not finite (NaN or infinity)")
    return vectors
