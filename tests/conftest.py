"""Fixtures that several test files share; each brings a `shelf` of its own, a folder laid out as the hub's cache."""

import huggingface_hub
import pytest


def use(hub, monkeypatch):
    """The switches HF_HUB_CACHE and HF_HUB_OFFLINE, which the hub's client reads only once."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(hub))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)


@pytest.fixture
def hub(shelf, monkeypatch):
    """The hub's client, offline, with the tiny models in its cache."""
    import torch

    use(shelf, monkeypatch)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # in matrices this small further threads would only wait for each other
    yield
    torch.set_num_threads(threads)
