"""Every profile of the folder is whole: each block is read, and its pins are there. Nothing is fetched or asked."""

import pytest

from rawrag_utils import llm, models, paths, rerankers


@pytest.mark.parametrize("name", models.profiles())
def test_every_block_is_read(name):
    embedder = models.load_embedder(name)
    assert models.describe(embedder)["model"] == embedder.config.model
    loaders = {"reranker": (rerankers.load_reranker, rerankers.describe), "chat": (llm.load_chat, llm.describe)}
    for block, (load, describe) in loaders.items():
        if getattr(models.profile(name), block, None) is not None:
            assert describe(load(name))["role"] == block
    assert paths.portable(f"{name}.yaml")
