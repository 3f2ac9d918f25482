"""Batched generation by a tiny model with random weights: a batch gives what each prompt gives alone."""

import types

import numpy as np
import pytest
import torch
import transformers

from rawrag_utils import generation

PROMPTS = [[5, 6, 7, 8, 9, 10], [5, 6, 7, 11], [5, 6, 7, 12, 13, 14, 15, 16, 17]]


@pytest.fixture(scope="module")
def model():
    shape = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = transformers.Qwen2Config(**shape, num_key_value_heads=2, vocab_size=64, max_position_embeddings=256)
    torch.manual_seed(1)
    return transformers.Qwen2ForCausalLM(config).eval()


@pytest.fixture(scope="module")
def tokenizer():
    return types.SimpleNamespace(pad_token_id=0, eos_token_id=1, decode=lambda ids: " ".join(str(i) for i in ids))


def plain(model, prompt, count):
    """transformers' own greedy answer to one prompt."""
    options = {"do_sample": False, "pad_token_id": 0, "eos_token_id": [0, 1], "max_new_tokens": count}
    row = model.generate(torch.tensor([prompt]), **options)[0, len(prompt) :].tolist()
    return next((row[:i] for i, token in enumerate(row) if token < 2), row)


@pytest.mark.parametrize(
    "prompts",
    [PROMPTS, PROMPTS[:1], [[9], [10, 11]], [[5, 6, 7]] * 3, [[5], [5]]],
    ids=["mixed", "one", "no share", "same", "short"],
)
def test_a_batch_answers_as_each_prompt_does_alone(model, tokenizer, prompts):
    together = generation.generate(model, tokenizer, prompts, 1, 12, 0.0, 0)
    for prompt, (answer,) in zip(prompts, together, strict=True):
        assert answer.text == tokenizer.decode(plain(model, prompt, 12))
        assert answer.prompt_tokens == len(prompt) and answer.finish in ("stop", "length")


def test_several_samples_read_the_prompt_once_and_stand_with_it(model, tokenizer):
    rows = generation.generate(model, tokenizer, PROMPTS, 3, 8, 0.0, 0)
    assert [len(row) for row in rows] == [3, 3, 3]
    for prompt, row in zip(PROMPTS, rows, strict=True):
        assert {answer.text for answer in row} == {tokenizer.decode(plain(model, prompt, 8))}


def test_a_seed_repeats_its_draws_and_another_does_not(model, tokenizer):
    first, again, other = (generation.generate(model, tokenizer, PROMPTS, 4, 10, 1.0, seed) for seed in (7, 7, 8))
    assert first == again != other
    assert len({answer.text for row in first for answer in row}) > 3


def test_the_end_and_the_limit_are_told_apart(model, tokenizer):
    rows = [[3, 4, 1, 0], [3, 4, 5, 6], [1, 0, 0, 0], [3, 0, 9, 9]]
    ends = [generation._generated(tokenizer, row, 5, {0, 1}) for row in rows]
    assert [(e.text, e.completion_tokens, e.finish) for e in ends] == [
        ("3 4", 3, "stop"),
        ("3 4 5 6", 4, "length"),
        ("", 1, "stop"),
        ("3", 2, "stop"),
    ]


def test_the_gap_lies_between_what_is_shared_and_the_rest():
    rows, masks, shared = generation._left_padded(PROMPTS, 0)
    assert shared == 3 and {len(row) for row in rows} == {9}
    for prompt, row, mask in zip(PROMPTS, rows, masks, strict=True):
        assert [token for token, seen in zip(row, mask, strict=True) if seen] == prompt
        assert row[:3] == prompt[:3] and np.diff(mask[3:]).min(initial=0) >= 0  # zeros, then ones
