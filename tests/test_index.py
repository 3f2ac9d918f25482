"""The three-field index: what is in it, that it comes back to the last bit, and that damage is named."""

import copy
import json
import math

import numpy as np
import orjson
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rawrag_utils import chunking, index
from rawrag_utils.corpus import Conversation, Turn
from rawrag_utils.paths import BadInput

DROPPED = object()


def talk(name):
    turns = (
        Turn("D1:1", 1, "2024-03-02T18:30:00", "2024-03-02", "Nora", "The kiln is 陶 hot"),
        Turn("D1:2", 1, None, None, "Tobias", "Good. <script>", "a blue bowl"),
        Turn("D2:1", 2, "2024-03-05T09:00:00", "2024-03-05", "Nora", "Cold again"),
    )
    return Conversation(name, name, "Nora", "Tobias", turns)


TALKS = [talk("first"), talk("second")]


def built(dimensions=3, size=20):
    bare = index.build(TALKS, lambda doc: chunking.cut(doc, size, 4))
    return index.with_vectors(bare, np.arange(len(index.contents(bare)) * dimensions).reshape(-1, dimensions) / 7)


def content():
    """The JSON content of `built()` as plain lists and dicts, to be damaged."""
    plain = built()
    return {name: {**part, "embeddings": part["embeddings"].tolist()} for name, part in plain.items()}


def refused(path, *places):
    with pytest.raises(BadInput) as error:
        index.load(path)
    assert "\n" not in str(error.value)
    assert str(error.value).startswith(path.name) and "build the index again" in str(error.value)
    assert all(place in str(error.value) for place in places), str(error.value)


# ---------------------------------------------------------------------------------------------------- what is in it


def test_it_holds_dialogue_windows_vectors_and_coordinates_and_nothing_else(tmp_path):
    index.save(built(), tmp_path / "rag_index.json")
    for talk, (name, part) in zip(TALKS, json.loads((tmp_path / "rag_index.json").read_text()).items(), strict=True):
        doc = chunking.document(talk)
        assert name == talk.conversation_id
        assert part.keys() == {"chunks", "embeddings", "turn_context"}
        assert part["turn_context"] == {
            "header": doc.header,
            "turn_spans": [list(span) for span in doc.turn_spans],
            "turn_timestamps": [t.timestamp for t in talk.turns],
            "turn_session_dates": [t.session_date for t in talk.turns],
            "turn_lines": [chunking.turn_line(t) for t in talk.turns],
        }
        assert part["chunks"] == chunking.cut(doc, 20, 4)
        assert all(chunk["content"] in doc.header + "\n".join(doc.lines) for chunk in part["chunks"])
        assert len(part["embeddings"]) == len(part["chunks"])
        assert all(type(number) is float for vector in part["embeddings"] for number in vector)


def test_the_same_index_gives_the_same_file(tmp_path):
    for name in ("a", "b"):
        index.save(built(), tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_contents_and_vectors_run_over_all_conversations_in_order():
    part = built(dimensions=1)
    numbers = np.concatenate([p["embeddings"][:, 0] for p in part.values()])
    assert np.allclose(numbers * 7, np.arange(len(index.contents(part))))


# ------------------------------------------------------------------------------------------------------- round trip


@settings(max_examples=100, deadline=None)
@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1, max_size=40))
@example([-0.0, 0.0, 2.0**-149, -(2.0**-149), 2.0**-126, (2 - 2.0**-23) * 2.0**127])  # subnormal, smallest, largest
@example([float(index.ROUNDED_TWICE), -float(index.ROUNDED_TWICE), 0.1])  # its shortest digits are not enough
def test_vectors_come_back_bit_for_bit(tmp_path_factory, numbers):
    path = tmp_path_factory.mktemp("round") / "rag_index.json"
    bare = index.build(TALKS[:1])
    windows = len(index.contents(bare))
    vectors = np.tile(np.array(numbers, np.float32), (windows, 1))
    index.save(index.with_vectors(bare, vectors), path)
    found = index.load(path)["first"]["embeddings"]
    assert found.dtype == np.float32
    assert (found.view(np.uint32) == vectors.view(np.uint32)).all()


def test_all_but_the_vectors_compares_equal_after_the_round_trip(tmp_path):
    index.save(built(), tmp_path / "rag_index.json")
    for (name, part), (found_name, found) in zip(
        built().items(), index.load(tmp_path / "rag_index.json").items(), strict=True
    ):
        assert name == found_name
        assert part["chunks"] == found["chunks"] and part["turn_context"] == found["turn_context"]


def test_an_index_without_vectors_is_one_too(tmp_path):
    index.save(index.build(TALKS), tmp_path / "rag_index.json")
    assert index.load(tmp_path / "rag_index.json")["first"]["embeddings"].shape == (1, 0)


def test_saving_and_validating_leave_the_index_in_memory_alone(tmp_path):
    plain = content()
    before = copy.deepcopy(plain)
    index.save(plain, tmp_path / "rag_index.json")
    assert plain == before


# ----------------------------------------------------------------------------------------------------------- damage

CHUNK, CONTEXT = ("first", "chunks", 1), ("second", "turn_context")
DAMAGE = [  # where, what is put there, and the place the message names
    (("second", "chunks"), DROPPED, "second: wanted exactly"),
    (("second", "embeddings"), DROPPED, "second: wanted exactly"),
    (("second", "turn_context"), DROPPED, "second: wanted exactly"),
    (("second", "summary"), "They talked.", "second: wanted exactly"),
    (("second",), [], "second: wanted exactly"),
    (("second",), None, "second: wanted exactly"),
    *(((*CHUNK, field), DROPPED, "first.chunks[1]: wanted exactly") for field in chunking.FIELDS),
    ((*CHUNK, "keywords"), ["kiln"], "first.chunks[1]: wanted exactly"),
    (("first", "chunks"), [], "first.chunks: holds no window"),
    (("first", "chunks"), "none", "first.chunks: holds no window"),
    ((*CHUNK,), None, "first.chunks[1]"),
    ((*CHUNK, "chunk_index"), 2, "first.chunks[1].chunk_index"),
    ((*CHUNK, "chunk_index"), True, "first.chunks[1].chunk_index"),
    ((*CHUNK, "chunk_id"), "first_chunk_0", "first.chunks[1].chunk_id"),
    ((*CHUNK, "content"), None, "first.chunks[1].content"),
    ((*CHUNK, "start_token"), -1, "first.chunks[1].start_token"),
    ((*CHUNK, "start_token"), 16.0, "first.chunks[1].start_token"),
    ((*CHUNK, "end_token"), 16, "first.chunks[1].end_token"),  # empty: it starts at 16
    ((*CHUNK, "end_token"), 10_000, "first.chunks[1].end_token"),
    ((*CHUNK, "start_turn"), 3, "first.chunks[1].start_turn"),
    ((*CHUNK, "start_turn"), -1, "first.chunks[1].start_turn"),
    ((*CHUNK, "end_turn"), 3, "first.chunks[1].end_turn"),
    ((*CHUNK, "end_turn"), -2, "first.chunks[1].end_turn"),
    *(((*CONTEXT, field), DROPPED, "second.turn_context: wanted exactly") for field in index.CONTEXT_FIELDS),
    ((*CONTEXT, "facts"), [], "second.turn_context: wanted exactly"),
    ((*CONTEXT, "header"), 7, "second.turn_context.header"),
    *(((*CONTEXT, field), None, f"second.turn_context.{field}: not a list") for field in index.CONTEXT_FIELDS[1:]),
    *(((*CONTEXT, field, 2), DROPPED, "second.turn_context.turn_") for field in index.CONTEXT_FIELDS[1:]),
    ((*CONTEXT, "turn_lines"), [], "second.turn_context.turn_lines: holds no turn"),
    ((*CONTEXT, "turn_lines", 0), 7, "second.turn_context.turn_lines[0]"),
    # The first entry counts: `if bad := next(...)` would take index 0 for "none found".
    ((*CONTEXT, "turn_timestamps", 0), 7, "second.turn_context.turn_timestamps[0]"),
    ((*CONTEXT, "turn_session_dates", 0), ["2024"], "second.turn_context.turn_session_dates[0]"),
    ((*CONTEXT, "turn_session_dates", 2), False, "second.turn_context.turn_session_dates[2]"),
    ((*CONTEXT, "turn_spans", 0), None, "second.turn_context.turn_spans[0]"),
    ((*CONTEXT, "turn_spans", 0), [-2, 5], "second.turn_context.turn_spans[0]"),
    ((*CONTEXT, "turn_spans", 1), [19, 21], "second.turn_context.turn_spans[1]"),  # begins inside the one before
    ((*CONTEXT, "turn_spans", 1), [60, 50], "second.turn_context.turn_spans[1]"),
    ((*CONTEXT, "turn_spans", 1), [40, 41, 42], "second.turn_context.turn_spans[1]"),
    ((*CONTEXT, "turn_spans", 1), ["40", "41"], "second.turn_context.turn_spans[1]"),
    ((*CONTEXT, "turn_spans", 1), "4\n", "second.turn_context.turn_spans[1]"),
    (("first", "embeddings"), None, "first.embeddings: not a list"),
    (("first", "embeddings"), {}, "first.embeddings: not a list"),
    (("first", "embeddings"), [], "first.embeddings: shape (0,)"),
    (("first", "embeddings", 0), DROPPED, "first.embeddings: shape"),
    (("first", "embeddings", 0), None, "first.embeddings[0]"),
    (("first", "embeddings", 1), [1.0, 2.0], "first.embeddings[1]: 2 numbers, wanted 3"),
    (("first", "embeddings", 0, 0), None, "first.embeddings[0]"),
    (("first", "embeddings", 1, 2), "0.5", "first.embeddings[1]"),  # numpy would read the text as a number
    (("first", "embeddings", 1, 2), True, "first.embeddings[1]"),
    (("first", "embeddings", 1, 2), [0.5], "first.embeddings[1]"),
    (("first", "embeddings", 1, 2), 1e39, "first.embeddings[1]: not finite"),  # beyond float32
    (("first", "embeddings", 1, 2), math.nan, "is not JSON"),
    (("first", "embeddings", 1, 2), math.inf, "is not JSON"),
]


def damaged(path, value):
    root = content()
    *parents, key = path
    node = root
    for step in parents:
        node = node[step]
    if value is DROPPED:
        del node[key]
    else:
        node[key] = value
    return root


NAMES = [f"{'.'.join(map(str, path))} {'dropped' if value is DROPPED else repr(value)}" for path, value, _ in DAMAGE]


@pytest.mark.parametrize(("path", "value", "place"), DAMAGE, ids=NAMES)
def test_damage_is_refused_with_its_place(tmp_path, path, value, place):
    file = tmp_path / "rag_index.json"
    file.write_text(json.dumps(damaged(path, value)))
    refused(file, place)


def test_vectors_of_two_models_are_refused(tmp_path):
    mixed = content()
    mixed["second"]["embeddings"] = [v[:2] for v in mixed["second"]["embeddings"]]
    (tmp_path / "rag_index.json").write_text(json.dumps(mixed))
    refused(tmp_path / "rag_index.json", "second.embeddings: 2 dimensions, but 3")


def test_a_name_that_is_not_fit_to_print_does_not_break_the_line(tmp_path):
    (tmp_path / "rag_index.json").write_text(json.dumps({"a\nb": None}))
    refused(tmp_path / "rag_index.json", "'a\\nb'")


def test_a_file_cut_off_anywhere_is_refused(tmp_path):
    file = tmp_path / "rag_index.json"
    index.save(built(), file)
    whole = file.read_bytes().rstrip()
    for length in {0, 1, len(whole) - 1, *range(2, len(whole), 97)}:
        file.write_bytes(whole[:length])
        refused(file, "is not JSON")


@pytest.mark.parametrize("whole", ["[]", "null", "7", '"index"'])
def test_json_of_another_shape_is_refused(tmp_path, whole):
    (tmp_path / "rag_index.json").write_text(whole)
    refused(tmp_path / "rag_index.json", "holds no object of conversations")


def test_a_missing_file_is_refused(tmp_path):
    refused(tmp_path / "rag_index.json", "cannot be read (No such file or directory)")


def nodes(value, path=()):
    """Paths of all nodes below the root."""
    if path:
        yield path
    for key in value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        yield from nodes(value[key], (*path, key))


ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=6,
)


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(list(nodes(content()))), st.just(DROPPED) | ANY_JSON)
def test_whatever_stands_in_a_place_it_is_valid_or_refused(path, value):
    try:
        checked = index.validate(damaged(path, value))
    except BadInput as error:
        assert "\n" not in str(error) and len(str(error)) < 500
    else:
        orjson.dumps({name: {**part, "embeddings": part["embeddings"].tolist()} for name, part in checked.items()})


# ----------------------------------------------------------------------------------------------------------- saving


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("first", "embeddings", 0, 0), math.nan),
        (("first", "embeddings", 0), [1.0]),
        (("second", "chunks", 0, "content"), "half a character: \ud83d"),  # orjson could not write it
        (("second", "summary"), "They talked."),
    ],
    ids=["nan", "length", "surrogate", "field"],
)
def test_an_invalid_index_is_not_saved_and_the_old_file_stays(tmp_path, path, value):
    file = tmp_path / "rag_index.json"
    index.save(built(), file)
    before = file.read_bytes()
    with pytest.raises(BadInput, match="^index: "):
        index.save(damaged(path, value), file)
    assert file.read_bytes() == before
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize(
    ("vectors", "message"),
    [
        (np.zeros((5, 3)), "5 vectors for"),
        (np.zeros(8), "wanted one vector each"),
        (np.full((8, 3), np.nan), r"first.embeddings\[0\]: not finite"),
        (np.full((8, 3), 1e300), r"first.embeddings\[0\]: not finite"),
        ([[1.0, 2.0]] + [[1.0]] * 7, r"first.embeddings\[1\]: 1 numbers, wanted 2"),
    ],
    ids=["count", "flat", "nan", "overflow", "ragged"],
)
def test_vectors_that_do_not_fit_are_refused(vectors, message):
    bare = index.build(TALKS, lambda doc: chunking.cut(doc, 20, 4))
    assert len(index.contents(bare)) == 8
    with pytest.raises(BadInput, match=message):
        index.with_vectors(bare, vectors)
