"""How fast this machine could be: what arithmetic, memory and disk give to work that does nothing else."""

import os
import tempfile
import time

import numpy as np

from rawrag_utils import chunking, index, models

SIDE = 2048  # rows and columns of the matrices that are multiplied
BYTES = 1 << 30  # summed in memory, written to disk


def measured(loaded):
    """Rows of name and value: what the machine gives, and what windows and questions of the corpus ask of it."""
    found = machine() | asked(loaded)
    for name, value in found.items():
        yield {"name": name, "value": value}


def machine():
    """Floating-point operations a second by dtype, bytes a second read from memory and written to disk, at best."""
    import torch

    found = {}
    for name in ("float32", "bfloat16"):
        a = torch.randn(SIDE, SIDE).to(getattr(torch, name))
        seconds = _least(lambda a=a: a @ a)
        found[f"flops_{name}"] = 2 * SIDE**3 / seconds
    numbers = torch.ones(BYTES // 4)
    found["memory_bytes_per_s"] = BYTES / _least(numbers.sum)
    found["disk_bytes_per_s"] = BYTES / _least(lambda: _write(bytes(BYTES)), 1)
    return found


def _least(work, repeats=7):
    """The least seconds of some repeats: a limit is what is possible."""
    seconds = []
    for _ in range(repeats):
        started = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - started)
    return min(seconds)


def _write(content):
    with tempfile.NamedTemporaryFile() as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def asked(loaded):
    """What the arithmetic of a mean window is: its tokens, the encoder's operations, and MaxSim's for a question."""
    built = index.build(loaded.conversations)
    windows, questions = index.contents(built), [q.text for q in loaded.questions]
    encode = chunking.encoding().encode_ordinary
    embedder = models.load_embedder("local")
    shape = embedder.model[0].model.config
    pieces = [_lengths(embedder, texts) for texts in (windows, questions)]
    return {
        "conversations": len(loaded.conversations),
        "turns": sum(len(c.turns) for c in loaded.conversations),
        "windows": len(windows),
        "tokens_a_window": float(np.mean([len(encode(text)) for text in windows])),
        "bytes_a_window": float(np.mean([len(text.encode()) for text in windows])),
        "dimensions": shape.hidden_size,
        "encoder_flops_a_window": float(np.mean([encoder_operations(shape, n) for n in pieces[0]])),
        "maxsim_flops_a_pair": 2.0 * shape.hidden_size * np.mean(pieces[0]) * np.mean(pieces[1]),
    }


def _lengths(embedder, texts):
    return [len(ids) for ids in embedder.model.tokenizer(texts, truncation=False)["input_ids"]]


def encoder_operations(shape, tokens):
    """Floating-point operations of a BERT encoder over a text of so many `tokens`: products of matrices, two each.

    A layer has four square matrices of attention and two of its feed-forward part, and compares all tokens with all.

    >>> class Shape: num_hidden_layers, hidden_size, intermediate_size = 6, 384, 1536  # MiniLM-L6
    >>> round(encoder_operations(Shape, 256) / 1e9, 2)
    6.04
    """
    wide, inner = shape.hidden_size, shape.intermediate_size
    a_token = 2 * (4 * wide**2 + 2 * wide * inner) + 4 * tokens * wide
    return shape.num_hidden_layers * tokens * a_token
