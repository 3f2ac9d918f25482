"""A packed encoder made here: what is read of it, what it becomes, and what may be wrong with it."""

import contextlib
import json
import math
import struct

import numpy as np
import pytest
import scipy.special
from test_models import LETTERS, refused

from rawrag_utils import packed, paths
from rawrag_utils.paths import BadInput

SIZES = {"hidden": 32, "layers": 1, "heads": 2, "inner": 64, "words": 48, "positions": 24, "types": 2, "epsilon": 1e-6}
SPECIAL = {"<s>": 0, "</s>": 2, "<pad>": 1, "<unk>": 3}
PIECES = [(text, 0.0) for text in ("<s>", "<pad>", "</s>", "<unk>")]
PIECES += [("▁query", -1.0), ("▁passage", -1.0), (":", -2.0), ("▁", -3.0), ("潮", -4.0), ("ab", -4.5)]
PIECES += [*((letter, -5.0) for letter in LETTERS), ("<mask>", 0.0)]
BECOMES = {"\1": "", "\t": " ", "\u200b": " ", "]": "", "Ａ": "A"}
VECTORS = {"emb.ln.w": 32, "emb.ln.b": 32, "l0.q.b": 32, "l0.k.b": 32, "l0.v.b": 32, "l0.ao.b": 32, "l0.aln.w": 32}
VECTORS |= {"l0.aln.b": 32, "l0.fi.b": 64, "l0.fo.b": 32, "l0.oln.w": 32, "l0.oln.b": 32, "emb.pos": 24 * 32}
VECTORS |= {"emb.type": 2 * 32}
MATRICES = {"emb.word": (48, 32), "l0.q.w": (32, 32), "l0.k.w": (32, 32), "l0.v.w": (32, 32), "l0.ao.w": (32, 32)}
MATRICES |= {"l0.fi.w": (64, 32), "l0.fo.w": (32, 64)}


def made():
    """{name: (type, numbers, bytes)} of random tensors, and their values."""
    rng = np.random.default_rng(0)
    entries, values = {}, {}
    for name, length in VECTORS.items():
        values[name] = rng.normal(size=length).astype("<f4")
        entries[name] = 0, length, values[name].tobytes()
    for name, shape in MATRICES.items():
        blocks = np.prod(shape) // 32
        scales, codes = rng.uniform(0.05, 0.2, blocks).astype("<f2"), rng.integers(0, 16, (blocks, 32))
        halves = (codes[:, :16] + 16 * codes[:, 16:]).astype(np.uint8)
        values[name] = ((codes - 8) * scales[:, None].astype(np.float64)).reshape(shape)
        joined = b"".join(scale.tobytes() + row.tobytes() for scale, row in zip(scales, halves, strict=True))
        entries[name] = 1, int(np.prod(shape)), joined
    values["emb.pos"], values["emb.type"] = values["emb.pos"].reshape(24, 32), values["emb.type"].reshape(2, 32)
    return entries, values


def pack(entries=None, sizes=SIZES, block=32):
    """The bytes of a packed file."""
    entries = made()[0] if entries is None else entries
    texts = [text.encode() for text, _ in PIECES]
    head = packed.MAGIC + struct.pack("<7ifi", *sizes.values(), block)
    head += struct.pack("<5iQ", len(PIECES), *SPECIAL.values(), sum(map(len, texts)))
    head += np.cumsum([0, *map(len, texts)]).astype("<u4").tobytes()
    head += np.array([score for _, score in PIECES], "<f4").tobytes() + b"".join(texts)
    rules = [struct.pack(f"<IB{len(b)}I", ord(a), len(b), *map(ord, b)) for a, b in BECOMES.items()]
    head += struct.pack("<iI", len(rules), sum(map(len, rules))) + b"".join(rules) + struct.pack("<i", len(entries))
    place = len(head) + sum(2 + len(name) + 21 for name in entries)
    directory = b""
    for name, (kind, numbers, data) in entries.items():
        directory += struct.pack("<H", len(name)) + name.encode()
        directory += struct.pack("<BIQQ", kind, numbers, place, len(data))
        place += len(data)
    return head + directory + b"".join(data for *_, data in entries.values())


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "tiny-q4.bin"
    path.write_bytes(pack())
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The tiny file, converted."""
    place = tmp_path_factory.mktemp("packed")
    (place / "tiny-q4.bin").write_bytes(pack())
    (place / "made").mkdir()
    packed.convert(place / "tiny-q4.bin", place / "made")
    return place / "made"


def test_all_of_a_file_is_read(file):
    found = packed.read(file)
    assert found.sizes == pytest.approx(SIZES | {"block": 32}) and found.special == SPECIAL
    assert found.pieces == PIECES and found.becomes == BECOMES
    for name, values in made()[1].items():
        np.testing.assert_array_equal(found.tensors[name], np.ravel(values).astype(np.float32))


def test_the_encoder_computes_what_its_weights_say(folder):
    """BERT's forward pass, mean and normalisation written out."""
    from sentence_transformers import SentenceTransformer

    def norm(x, name):
        x = (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + 1e-6)
        return x * t[f"{name}.w"] + t[f"{name}.b"]

    def linear(x, name):
        return x @ t[f"{name}.w"].T + t[f"{name}.b"]

    model, t = SentenceTransformer(str(folder), device="cpu"), made()[1]
    for text in ("query: abc 潮", "x"):
        ids = model.tokenizer(text)["input_ids"]
        x = norm(t["emb.word"][ids] + t["emb.pos"][: len(ids)] + t["emb.type"][0], "emb.ln")
        q, k, v = (linear(x, f"l0.{part}").reshape(len(ids), 2, 16).transpose(1, 0, 2) for part in "qkv")
        mixed = scipy.special.softmax(q @ k.transpose(0, 2, 1) / 4, axis=2) @ v
        x = norm(x + linear(mixed.transpose(1, 0, 2).reshape(len(ids), 32), "l0.ao"), "l0.aln")
        inner = linear(x, "l0.fi")
        inner = inner * (1 + scipy.special.erf(inner / np.sqrt(2))) / 2
        mean = norm(x + linear(inner, "l0.fo"), "l0.oln").mean(0)
        np.testing.assert_allclose(model.encode(text), mean / np.linalg.norm(mean), atol=2e-5)


@pytest.mark.parametrize(
    "text, pieces",
    [
        ("query: ab", "▁query : ▁ ab"),
        ("passage: 潮ab", "▁passage : ▁ 潮 ab"),
        ("a\t\u200b b", "▁ a ▁ b"),  # runs of blanks, and what the map makes one
        ("  a ", "▁ a"),
        ("a\1]b", "▁ ab"),  # what the map drops, though a class of characters would end there
        ("ａ", "▁ a"),  # NFKC, where the map says nothing
        ("a🙂b", "▁ a 🙂 b"),
        ("", ""),
    ],
)
def test_texts_are_cut_as_xlm_r_does(folder, text, pieces):
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert tokenizer.tokenize(text) == pieces.split()
    places = {piece: place for place, (piece, _) in enumerate(PIECES)}
    assert tokenizer(text)["input_ids"] == [0, *(places.get(piece, 3) for piece in pieces.split()), 2]
    assert set(tokenizer.all_special_ids) == {0, 1, 2, 3, len(PIECES) - 1} and tokenizer.model_max_length == 24


def test_a_conversion_gives_the_same_bytes_each_time_and_names_no_folder(folder, file, tmp_path):
    (tmp_path / "again").mkdir()
    packed.convert(file, tmp_path / "again")
    files = sorted(path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    assert files == sorted(p.relative_to(tmp_path / "again") for p in (tmp_path / "again").rglob("*") if p.is_file())
    assert [paths.sha256(folder / f) for f in files] == [paths.sha256(tmp_path / "again" / f) for f in files]
    assert [module["path"] for module in json.loads((folder / "modules.json").read_text())][0] == ""
    assert not [f for f in files if f.suffix == ".json" and str(folder.parent) in (folder / f).read_text()]


def test_a_file_cut_off_anywhere_is_one_line(file):
    whole = file.read_bytes()
    for length in [*range(0, 900, 7), *range(900, len(whole), 501), len(whole) - 1]:
        file.write_bytes(whole[:length])
        assert refused(packed.read, file).startswith("tiny-q4.bin: no packed encoder that can be read (")


PLACES = {"pieces": 44, "bytes of pieces": 64, "size of a layer": 8}  # of numbers in the head


@pytest.mark.parametrize("number", [2**63 - 1, 2**64 - 1, 2**40])
@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES)
def test_a_number_that_is_far_too_large_asks_for_no_memory(file, place, number):
    whole = bytearray(file.read_bytes())
    whole[place : place + 8] = struct.pack("<Q", number)
    file.write_bytes(whole)
    with contextlib.suppress(BadInput):
        packed.read(file)


def test_a_tensor_that_lies_nowhere_is_one_line(file):
    whole = file.read_bytes()
    entry = whole.index(b"emb.ln.w") + len("emb.ln.w") + 5
    for place in (2**64 - 1, 2**63 - 1, len(whole)):
        file.write_bytes(whole[:entry] + struct.pack("<Q", place) + whole[entry + 8 :])
        assert "it is cut off" in refused(packed.read, file)


@pytest.mark.parametrize(
    "data, reason",
    [
        (b"GGUF" + b"\0" * 100, "does not begin with E5S1"),
        (packed.MAGIC[:4] + b"\2\0\0\0" + b"\0" * 100, "version 1"),
        (pack(block=64), "blocks of 64"),
        (pack(made()[0] | {"emb.type": (2, 64, bytes(256))}), "emb.type"),
        (pack(made()[0] | {"emb.type": (0, 65, bytes(256))}), "emb.type: 64 numbers of type 0, not 65"),
        (pack(made()[0] | {"emb.type": (0, 64, struct.pack("<f", math.nan) * 64)}), "emb.type: numbers that are not"),
        (pack(made()[0] | {"l0.fo.w": (1, 32, struct.pack("<e", math.inf) + b"\x88" * 16)}), "l0.fo.w: numbers that"),
    ],
)
def test_another_layout_is_one_line(file, data, reason):
    file.write_bytes(data)
    assert reason in refused(packed.read, file)


@pytest.mark.parametrize(
    "data, reason",
    [
        (pack({name: entry for name, entry in made()[0].items() if name != "l0.fo.w"}), "l0.fo.w"),
        (pack(sizes=SIZES | {"words": 47}), "reshape"),
    ],
)
def test_tensors_that_make_no_encoder_are_one_line(file, tmp_path, data, reason):
    file.write_bytes(data)
    line = refused(packed.convert, file, tmp_path)
    assert line.startswith("tiny-q4.bin: its tensors make no BERT encoder (") and reason in line
