"""Encoders in a packed 4-bit file: read, and written anew as a folder that sentence-transformers loads.

Such a file (its first bytes are E5S1) carries a BERT encoder with the SentencePiece vocabulary of XLM-R, for a small
engine that is not needed here. Little-endian, without gaps up to the tensors:

- `E5S1`, u32 version; i32 hidden size, layers, heads, feed-forward size, rows of the word table, positions, token
  types; f32 epsilon of the layer norms; i32 weights a block (32)
- i32 pieces, then the ids of `<s>`, `</s>`, `<pad>`, `<unk>`; u64 bytes of all pieces; u32 offsets (pieces + 1) into
  these; f32 log probability of each piece; the pieces as UTF-8
- i32 entries of the normalisation map, u32 its bytes; an entry is u32 code point, u8 n, n times u32: what it becomes
- i32 tensors; for each u16 length and name, u8 type (0: float32, 1: Q4_0), u32 numbers, u64 place in the file, u64
  bytes

Q4_0 holds 32 weights in 18 bytes: a float16 scale and 16 bytes whose low halves are weights 0 to 15 and whose high
halves are weights 16 to 31, each from 0 to 15; the weight is (half - 8) * scale.
"""

import os
import re
import struct
from typing import NamedTuple

import numpy as np

from rawrag_utils.paths import BadInput

MAGIC = b"E5S1\1\0\0\0"
SIZES = ("hidden", "layers", "heads", "inner", "words", "positions", "types", "epsilon", "block")
SPECIAL = ("<s>", "</s>", "<pad>", "<unk>")
Q4_0 = np.dtype([("scale", "<f2"), ("halves", "u1", 16)])


class Packed(NamedTuple):
    """What a packed file holds, its tensors as float32 in one row each."""

    sizes: dict  # by SIZES
    pieces: list  # of (text, log probability); a piece's place is its id
    special: dict  # id of each of SPECIAL
    becomes: dict  # character -> what normalisation makes of it
    tensors: dict


def read(file):
    """The `Packed` content of `file`. Raises `BadInput` for one that is damaged or has another layout."""
    try:
        with open(file, "rb") as stream:
            if stream.read(len(MAGIC)) != MAGIC:
                raise ValueError("it does not begin with E5S1, version 1")
            sizes = dict(zip(SIZES, _take(stream, "7ifi"), strict=True))
            if sizes["block"] != 32:
                raise ValueError(f"blocks of {sizes['block']} weights")
            return Packed(sizes, *_vocabulary(stream), _normalisation(stream), _tensors(stream))
    except (struct.error, ValueError, OverflowError) as error:
        reason = str(error).splitlines()[0]
        raise BadInput(f"{file.name}: no packed encoder that can be read ({reason}); correct the profile") from error


def _take(stream, form):
    """Numbers from the stream, as `struct` names them."""
    return struct.unpack("<" + form, _bytes(stream, struct.calcsize("<" + form)))


def _array(stream, dtype, count):
    return np.frombuffer(_bytes(stream, np.dtype(dtype).itemsize * count), dtype, count)


def _bytes(stream, count):
    """The next bytes. No room is made for more than there are, whatever a damaged file says."""
    if count > os.fstat(stream.fileno()).st_size - stream.tell():
        raise ValueError("it is cut off")
    return stream.read(count)


def _vocabulary(stream):
    """The pieces with their log probabilities, and the ids of the special ones."""
    count, *special, length = _take(stream, "I4IQ")
    offsets = _array(stream, "<u4", count + 1).tolist()
    scores = _array(stream, "<f4", count).tolist()
    text = _bytes(stream, length)
    if not count or max(special) >= count:
        raise ValueError("its vocabulary is cut off")
    starts = zip(offsets[:-1], offsets[1:], strict=True)
    pieces = [(text[a:b].decode(), score) for (a, b), score in zip(starts, scores, strict=True)]
    return pieces, dict(zip(SPECIAL, special, strict=True))


def _normalisation(stream):
    count, _ = _take(stream, "II")
    becomes = {}
    for _ in range(count):
        code, length = _take(stream, "IB")
        becomes[chr(code)] = "".join(map(chr, _take(stream, f"{length}I")))
    return becomes


def _tensors(stream):
    (count,) = _take(stream, "I")
    entries = [_entry(stream) for _ in range(count)]
    tensors = {}
    for name, kind, numbers, place, length in entries:
        stream.seek(min(place, os.fstat(stream.fileno()).st_size))  # beyond it the next line finds nothing
        if kind == 1:
            tensors[name] = _weights(_array(stream, Q4_0, length // Q4_0.itemsize))
        else:
            tensors[name] = _array(stream, "<f4", length // 4)
        if kind > 1 or len(tensors[name]) != numbers:
            raise ValueError(f"tensor {name}: {len(tensors[name])} numbers of type {kind}, not {numbers}")
        if not np.isfinite(tensors[name]).all():
            raise ValueError(f"tensor {name}: numbers that are not finite")
    return tensors


def _entry(stream):
    (length,) = _take(stream, "H")
    return (_bytes(stream, length).decode(), *_take(stream, "BIQQ"))


def _weights(blocks):
    """Float32 weights of Q4_0 blocks.

    >>> block = np.array([(0.5, [0x98] * 15 + [0x0F])], Q4_0)
    >>> _weights(block).reshape(2, 16)[:, -2:].tolist()
    [[0.0, 3.5], [0.5, -4.0]]
    """
    halves = np.concatenate([blocks["halves"] & 15, blocks["halves"] >> 4], axis=1)
    with np.errstate(invalid="ignore"):  # an infinite scale, which the caller refuses
        return ((halves.astype(np.float32) - 8) * blocks["scale"].astype(np.float32)[:, None]).ravel()


# --------------------------------------------------------------------------------------------------------- conversion


def convert(file, folder):
    """Write the encoder of `file` into `folder`: BERT in float32, fast tokeniser, mean pooling, unit length.

    Float32, because float16 would round what 4 bits times a scale give. Raises `BadInput` as `read` does, and for
    tensors that are missing or do not fit.
    """
    import transformers
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Normalize, Pooling, Transformer

    transformers.utils.logging.disable_progress_bar()
    found = read(file)
    plain = folder / "plain"
    try:
        _encoder(found).save_pretrained(plain)
    except (KeyError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise BadInput(f"{file.name}: its tensors make no BERT encoder ({reason}); correct the profile") from error
    _tokenizer(found).save_pretrained(plain)
    modules = [Transformer(str(plain)), Pooling(found.sizes["hidden"], "mean"), Normalize()]
    SentenceTransformer(modules=modules, device="cpu").save(str(folder), create_model_card=False)
    for path in plain.iterdir():
        path.unlink()
    plain.rmdir()


def _encoder(found):
    import torch
    from transformers import BertConfig, BertModel

    s = found.sizes
    hidden, inner = s["hidden"], s["inner"]
    shapes = {
        "embeddings.word_embeddings.weight": ("emb.word", s["words"], hidden),
        "embeddings.position_embeddings.weight": ("emb.pos", s["positions"], hidden),
        "embeddings.token_type_embeddings.weight": ("emb.type", s["types"], hidden),
        "embeddings.LayerNorm.weight": ("emb.ln.w", hidden),
        "embeddings.LayerNorm.bias": ("emb.ln.b", hidden),
    }
    parts = {
        "attention.self.query": ("q", hidden, hidden),
        "attention.self.key": ("k", hidden, hidden),
        "attention.self.value": ("v", hidden, hidden),
        "attention.output.dense": ("ao", hidden, hidden),
        "attention.output.LayerNorm": ("aln", hidden),
        "intermediate.dense": ("fi", inner, hidden),
        "output.dense": ("fo", hidden, inner),
        "output.LayerNorm": ("oln", hidden),
    }
    for layer in range(s["layers"]):
        for part, (name, *shape) in parts.items():
            shapes[f"encoder.layer.{layer}.{part}.weight"] = (f"l{layer}.{name}.w", *shape)
            shapes[f"encoder.layer.{layer}.{part}.bias"] = (f"l{layer}.{name}.b", shape[0])
    config = BertConfig(
        vocab_size=s["words"],
        hidden_size=hidden,
        num_hidden_layers=s["layers"],
        num_attention_heads=s["heads"],
        intermediate_size=inner,
        max_position_embeddings=s["positions"],
        type_vocab_size=s["types"],
        layer_norm_eps=s["epsilon"],
        pad_token_id=found.special["<pad>"],
    )
    model = BertModel(config)
    tensors = {name: torch.from_numpy(found.tensors[t].reshape(shape).copy()) for name, (t, *shape) in shapes.items()}
    unused = {  # by mean pooling; random numbers here would make another file each time
        "pooler.dense.weight": torch.zeros(hidden, hidden),
        "pooler.dense.bias": torch.zeros(hidden),
    }
    model.load_state_dict(tensors | unused)
    return model


def _tokenizer(found):
    """XLM-R's tokeniser: normalisation, a mark in place of each blank, the likeliest pieces.

    Of the map only the characters that vanish or become a blank are taken; for the rest NFKC does the same, composes
    what the map cannot, and differs in `～`.
    """
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    ids = found.special
    tokens = Tokenizer(models.Unigram(found.pieces, unk_id=ids["<unk>"]))
    steps = [normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " "), normalizers.Strip()]
    for target in (" ", ""):
        if characters := [character for character, text in found.becomes.items() if text == target]:
            steps.insert(0, normalizers.Replace(Regex(f"[{''.join(map(re.escape, characters))}]"), target))
    tokens.normalizer = normalizers.Sequence(steps)
    tokens.pre_tokenizer, tokens.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    around = [(name, ids[name]) for name in ("<s>", "</s>")]
    tokens.post_processor = processors.TemplateProcessing(single="<s> $A </s>", special_tokens=around)
    names = {"bos": "<s>", "cls": "<s>", "eos": "</s>", "sep": "</s>", "pad": "<pad>", "unk": "<unk>"}
    if "<mask>" in (text for text, _ in found.pieces):
        names["mask"] = "<mask>"
    return PreTrainedTokenizerFast(
        tokenizer_object=tokens,
        model_max_length=found.sizes["positions"],
        **{f"{role}_token": name for role, name in names.items()},
    )
