"""Batched text generation by a local chat model: transformers and torch, no server.

What is slow on a CPU is reading prompts and one-by-one decoding. So the tokens that all prompts of a batch begin with
are read once, each prompt is read once however many texts are drawn from it, and a batch is decoded together.
"""

import os
from typing import NamedTuple

from rawrag_utils.paths import BadInput


class Generated(NamedTuple):
    """One text a model wrote."""

    text: str
    prompt_tokens: int
    completion_tokens: int
    finish: str  # `stop`, or `length` where the limit on tokens ended it


def load(folder, device, dtype):
    """(model, tokenizer) from a folder in Hugging Face's layout."""
    import torch
    import transformers

    transformers.utils.logging.disable_progress_bar()
    try:
        model = transformers.AutoModelForCausalLM.from_pretrained(
            folder, dtype=getattr(torch, dtype), use_safetensors=True
        )
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    except (OSError, ValueError) as error:
        raise BadInput(
            f"{os.path.basename(folder)}: its files do not load ({str(error).splitlines()[0]}); delete the folder in "
            "the cache and run make models again"
        ) from error
    return model.eval().to(device), tokenizer


def tokens(tokenizer, messages):
    """Token ids of each chat in `messages` (lists of role and content), ready for the model's answer."""
    texts = (tokenizer.apply_chat_template(m, tokenize=False, add_generation_prompt=True) for m in messages)
    return [tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts]


def generate(model, tokenizer, prompts, samples, max_tokens, temperature, seed):
    """`samples` texts for each of `prompts` (lists of token ids), all in one batch: a list of `Generated` a prompt.

    The same arguments give the same texts on the same kind of device; another batch may not, since bf16 rounds by the
    shape of a product. `temperature` 0 takes the likeliest token.
    """
    import torch

    ids, mask, shared = _left_padded(prompts, tokenizer.pad_token_id)
    ids, mask = torch.tensor(ids, device=model.device), torch.tensor(mask, device=model.device)
    torch.manual_seed(seed)
    sampling = {"do_sample": True, "temperature": temperature, "top_k": 0} if temperature else {"do_sample": False}
    with torch.inference_mode():
        cache = _read(model, ids, mask, shared)
        if samples > 1:
            cache.batch_repeat_interleave(samples)
            ids, mask = ids.repeat_interleave(samples, 0), mask.repeat_interleave(samples, 0)
        out = model.generate(
            ids,
            attention_mask=mask,
            cache=cache,
            max_new_tokens=max_tokens,
            pad_token_id=tokenizer.pad_token_id,
            eos_token_id=[tokenizer.eos_token_id, tokenizer.pad_token_id],
            **sampling,
        )[:, ids.shape[1] :].tolist()
    ends = {tokenizer.eos_token_id, tokenizer.pad_token_id}
    written = [_generated(tokenizer, row, len(prompts[i // samples]), ends) for i, row in enumerate(out)]
    return [written[i : i + samples] for i in range(0, len(written), samples)]


def _generated(tokenizer, row, prompt_tokens, ends):
    length = next((i for i, token in enumerate(row) if token in ends), len(row))
    finish = "stop" if length < len(row) else "length"
    return Generated(tokenizer.decode(row[:length]), prompt_tokens, min(length + 1, len(row)), finish)


def _left_padded(prompts, pad):
    """Rows of one length, their masks, and how many tokens all begin with: the gap is left between these and the rest.

    >>> _left_padded([[7, 8, 1, 2], [7, 8, 3]], 0)
    ([[7, 8, 1, 2], [7, 8, 0, 3]], [[1, 1, 1, 1], [1, 1, 0, 1]], 2)
    """
    first, shortest, shared = prompts[0], min(map(len, prompts)), 0
    while shared < shortest - 1 and all(p[shared] == first[shared] for p in prompts):
        shared += 1
    longest = max(map(len, prompts))
    gaps = [longest - len(p) for p in prompts]
    rows = [p[:shared] + [pad] * gap + p[shared:] for p, gap in zip(prompts, gaps, strict=True)]
    masks = [[1] * shared + [0] * gap + [1] * (longest - shared - gap) for gap in gaps]
    return rows, masks, shared


def _read(model, ids, mask, shared):
    """Key-value cache of all columns but the last, which `generate` needs to read itself; the shared ones read once."""
    from transformers import DynamicCache

    cache = DynamicCache(config=model.config)
    if shared:
        model(ids[:1, :shared], cache=cache, use_cache=True, logits_to_keep=1)
        cache.batch_repeat_interleave(len(ids))
    if ids.shape[1] - 1 > shared:
        places = (mask.cumsum(1) - 1).clamp(min=0)
        model(
            ids[:, shared:-1],
            attention_mask=mask[:, :-1],
            position_ids=places[:, shared:-1],
            cache=cache,
            use_cache=True,
            logits_to_keep=1,
        )
    return cache
