"""The three-field index: chunks, embeddings, turn context. JSON in and out; nothing an LLM wrote is ever in it.

`{conversation_id: {"chunks": [...], "embeddings": [[...]], "turn_context": {...}}}` in one file. In memory
`embeddings` is a float32 array (windows, dimensions); the file holds each number in the fewest digits that give the
same float32 back.
"""

import pathlib

import numpy as np

from rawrag_utils import chunking, paths
from rawrag_utils.paths import BadInput

CONTEXT_FIELDS = ("header", "turn_spans", "turn_timestamps", "turn_session_dates", "turn_lines")
REMEDY = "build the index again"


def entry(conversation, doc, chunks):
    """One conversation's index object, still without vectors (`embeddings` has no columns)."""
    return {
        "chunks": chunks,
        "embeddings": np.zeros((len(chunks), 0), np.float32),
        "turn_context": {
            "header": doc.header,
            "turn_spans": doc.turn_spans,
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
    vectors, start, filled = np.asarray(vectors, np.float32), 0, {}
    windows = sum(len(part["chunks"]) for part in index.values())
    if vectors.ndim != 2 or len(vectors) != windows:
        raise BadInput(f"embeddings of shape {vectors.shape} for {windows} windows; wanted one vector a window")
    for name, part in index.items():
        end = start + len(part["chunks"])
        filled[name] = {**part, "embeddings": vectors[start:end]}
        start = end
    return validate(filled)


def save(index, path):
    """Write the index as JSON, atomically. Raises `BadInput` when it is not valid; then `path` stays as it was."""
    import orjson

    validate(index)
    with paths.atomic(path, "wb") as file:
        file.write(
            orjson.dumps(
                {
                    name: {**part, "embeddings": [np.ascontiguousarray(row) for row in part["embeddings"]]}
                    for name, part in index.items()
                },
                option=orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_APPEND_NEWLINE,
            )
        )


def load(path):
    """Read and validate an index. Raises `BadInput` that names the place of the first damage."""
    import orjson

    path = pathlib.Path(path)
    try:
        content = orjson.loads(path.read_bytes())
    except OSError as error:
        raise BadInput(f"{paths.relative(path)}: cannot be read ({error.strerror}); {REMEDY}") from error
    except orjson.JSONDecodeError as error:
        raise BadInput(f"{paths.relative(path)}: character {error.pos} is not JSON ({error.msg}); {REMEDY}") from error
    return validate(content, paths.relative(path))


def validate(index, source="index"):
    """`index` with its vectors as float32. Raises `BadInput` naming conversation, field and position of a fault."""
    if not isinstance(index, dict):
        raise BadInput(f"{source}: holds no object of conversations; {REMEDY}")
    for name, part in index.items():
        _same_fields(part, ("chunks", "embeddings", "turn_context"), f"{source}: {name}")
        context = part["turn_context"]
        _same_fields(context, CONTEXT_FIELDS, f"{source}: {name}.turn_context")
        _check_context(context, f"{source}: {name}.turn_context")
        _check_chunks(part["chunks"], len(context["turn_lines"]), f"{source}: {name}.chunks")
        part["embeddings"] = _vectors(part["embeddings"], len(part["chunks"]), f"{source}: {name}.embeddings")
    return index


def _same_fields(part, fields, place):
    if not isinstance(part, dict) or set(part) != set(fields):
        found = sorted(part) if isinstance(part, dict) else type(part).__name__
        raise BadInput(f"{place}: wanted exactly {', '.join(fields)}; found {found}; {REMEDY}")


def _check_context(context, place):
    lines = context["turn_lines"]
    if not isinstance(context["header"], str) or not isinstance(lines, list):
        raise BadInput(f"{place}: header or turn_lines is not as wanted; {REMEDY}")
    for field in CONTEXT_FIELDS[1:]:
        if not isinstance(context[field], list) or len(context[field]) != len(lines):
            raise BadInput(f"{place}.{field}: not one a turn ({len(lines)} turns); {REMEDY}")
    end = 0
    for i, (span, line) in enumerate(zip(context["turn_spans"], lines, strict=True)):
        if not isinstance(line, str):
            raise BadInput(f"{place}.turn_lines[{i}]: not text; {REMEDY}")
        if not (
            isinstance(span, list | tuple)
            and len(span) == 2
            and all(type(s) is int for s in span)
            and end <= span[0] <= span[1]
        ):
            raise BadInput(f"{place}.turn_spans[{i}]: {span} does not follow {end}; {REMEDY}")
        end = span[1]
    for field in ("turn_timestamps", "turn_session_dates"):
        if bad := next((i for i, v in enumerate(context[field]) if not isinstance(v, str | None)), None):
            raise BadInput(f"{place}.{field}[{bad}]: neither text nor null; {REMEDY}")


def _check_chunks(chunks, turns, place):
    if not isinstance(chunks, list) or not chunks:
        raise BadInput(f"{place}: holds no window; {REMEDY}")
    for i, chunk in enumerate(chunks):
        _same_fields(chunk, chunking.FIELDS, f"{place}[{i}]")
        numbers = [chunk[f] for f in chunking.FIELDS if f not in ("chunk_id", "content")]
        if not all(type(n) is int for n in numbers) or not all(
            isinstance(chunk[f], str) for f in ("chunk_id", "content")
        ):
            raise BadInput(f"{place}[{i}]: a field is of the wrong kind; {REMEDY}")
        if chunk["chunk_index"] != i:
            raise BadInput(f"{place}[{i}].chunk_index: {chunk['chunk_index']}, wanted {i}; {REMEDY}")
        if not 0 <= chunk["start_token"] < chunk["end_token"]:
            raise BadInput(f"{place}[{i}].end_token: does not lie after start_token; {REMEDY}")
        if not (0 <= chunk["start_turn"] <= chunk["end_turn"] + 1 <= turns):
            raise BadInput(f"{place}[{i}].end_turn: outside the {turns} turns; {REMEDY}")


def _vectors(vectors, windows, place):
    if not isinstance(vectors, np.ndarray):
        sizes = {len(v) if isinstance(v, list) else -1 for v in vectors} if isinstance(vectors, list) else {-1}
        if -1 in sizes or len(sizes) > 1:
            raise BadInput(f"{place}: vectors of different lengths {sorted(sizes)}; {REMEDY}")
        try:
            vectors = np.asarray(vectors, np.float32)
        except (TypeError, ValueError) as error:
            raise BadInput(f"{place}: holds something that is no number; {REMEDY}") from error
    if vectors.ndim != 2 or len(vectors) != windows:
        raise BadInput(f"{place}: shape {vectors.shape} for {windows} windows, wanted one vector each; {REMEDY}")
    if not np.isfinite(vectors).all():
        bad = int(np.argwhere(~np.isfinite(vectors))[0][0])
        raise BadInput(f"{place}[{bad}]: not finite (NaN or infinity); {REMEDY}")
    return vectors.astype(np.float32, copy=False)
