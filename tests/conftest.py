"""Fixtures that several test files share. Those of models bring a `shelf` of their own, laid out as the hub's cache."""

import hashlib
import os
import time

import browser
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


# A browser. What is skipped where there is none fails where everything is to be tested.


@pytest.fixture(scope="session")
def _browser_is_there():
    if reason := browser.missing():
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(reason)


@pytest.fixture(scope="session")
def lab(_browser_is_there, tmp_path_factory):
    """A running JupyterLab over a copy of the notebooks, for all tests that open one: a `browser.Lab`."""
    with browser.serving(tmp_path_factory.mktemp("lab")) as running:
        yield running


@pytest.fixture(scope="module")  # while its driver runs, no other event loop can in this thread
def _chromium(_browser_is_there):
    with browser.chromium() as running:
        yield running


@pytest.fixture
def strayed():
    """What the test's tab did that it should not, as `browser.watched` notes it; must be empty at the end."""
    return []


@pytest.fixture
def tab(_chromium, strayed):
    """A new tab of Chromium, a Playwright page that asked no other machine and opened no dialog, or the test fails."""
    with browser.watched(_chromium, strayed) as page:
        yield page
    assert strayed == []
