"""Fixtures that several test files share. Those of models bring a `shelf` of their own, laid out as the hub's cache."""

import hashlib
import time

import huggingface_hub.constants
import pytest

from rawrag_utils import results


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


@pytest.fixture
def finished_run(tmp_path, monkeypatch):
    """A function that leaves a finished run in `<tmp_path>/results/<dataset>/<profile>/`; returns that folder.

    `rows` are result rows; `frame` a further table, saved as `types`; `figure` saves one of a single dot.
    """
    monkeypatch.setattr(results, "device", dict)  # asks torch, which takes seconds to import

    def make(dataset, profile, notebook, rows, frame=None, figure=False):
        folder = tmp_path / "results" / dataset / profile
        run = results.Run(
            notebook,
            {"DATASET": dataset, "PROFILE": profile},
            hashlib.sha256(profile.encode()).hexdigest()[:16],
            folder,
            time.time(),
        )
        results.save_table(run, rows)
        if frame is not None:
            results.save_frame(run, frame, "types")
        if figure:
            import matplotlib

            matplotlib.use("Agg")
            import matplotlib.pyplot as plt

            shown, ax = plt.subplots()
            ax.plot([1], [1], "o")
            results.save_figure(run, shown, "map")
            plt.close(shown)
        results.finish(run)
        return folder

    return make
