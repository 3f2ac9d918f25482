"""Fixtures that several test files share. Those of models bring a `shelf` of their own, laid out as the hub's cache."""

import hashlib
import json
import os
import subprocess
import sys
import time
import zlib

# Before torch is imported, here and in kernels: processes beside each other would share the cores in strife.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")

import browser
import huggingface_hub.constants
import numpy as np
import pytest
import servers
import torture
from hypothesis import Phase, settings

from rawrag_utils import desk as desks
from rawrag_utils import models, paths, rerankers, results

# For `mutmut run`: a planted fault is found or not, its smallest example is of no interest and takes a minute.
settings.register_profile("mutation", deadline=None, database=None, phases=[Phase.explicit, Phase.generate])


SLOW = ("notebooks", "faults", "subtitles_notebook", "ingest", "grid", "contributing", "security", "fuzz")


def pytest_collection_modifyitems(items):
    """The slow files first, so that the two processes of `make test` end at about the same time."""
    rank = {f"test_{name}": n for n, name in enumerate(SLOW)}
    items.sort(key=lambda item: rank.get(item.path.stem, len(rank)))


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
            time.monotonic(),
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


def options(parameters):
    """`parameters` as the words of a command line: -p NAME VALUE for each."""
    return [str(word) for item in parameters.items() for word in ("-p", *item)]


@pytest.fixture
def run_stub(tmp_path):
    """A function that runs a notebook with `parameters` and a pretended chat model, into `<tmp_path>/runs/`.

    For tests that ask whether all runs through: a real model takes minutes to write what they do not look at. Runs in a
    copy of the checkout with the profile `stub`; returns the finished process. Retrieval has the models of `local`.
    """
    with servers.serving(servers.pretended) as server:
        copy = torture.checkout(tmp_path / "checkout", {})
        place = torture.Place(copy, tmp_path, f"http://127.0.0.1:{server.server_port}/v1")
        (tmp_path / "tmp").mkdir()
        environment = place.environment | {"RAWRAG_CACHE": str(paths.cache_root())}

        def run(notebook, parameters):
            words = options({"PROFILE": "stub", **parameters})
            command = [sys.executable, "-m", "rawrag_utils.run", notebook, *words]
            return subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True, timeout=300)

        yield run


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


HOSTILE = (
    "<script>document.title = 'ran'</script>",
    "</style></textarea></pre></title><img src=x onerror=alert(1)>",
    "\"' onmouseover=alert(1) &lt;b&gt; javascript:alert(1)",
    "\u202eright to left\u2066 and \x07 a bell",
)


def talk():
    """Two conversations in the own form: words in turns, three dated sessions, hostile texts, five questions."""
    said = [f"kiln {i} clay bowl" if i % 3 else f"rain {i} tram harbour and the violin" for i in range(18)]
    said[4:4] = HOSTILE
    turns = [{"turn_id": f"t{i}", "speaker": ("Nora", "Tobias")[i % 2], "text": text} for i, text in enumerate(said)]
    days = ("2024-03-02", "2024-05-09", "2024-07-01")
    sessions = [
        {"session": n + 1, "date": day, "turns": turns[n * 8 : n * 8 + 8]}
        for n, day in enumerate(days)
        if turns[n * 8 :]
    ]
    asked = [("What about the kiln 1?", "single-hop", ["t1"]), ("Where is the tram?", "temporal", ["t3", "t19"])]
    asked += [(HOSTILE[0], "multi-hop", ["t5", "t7"]), ("Is there a violin?", "temporal", ["t20"])]
    asked += [("Who is on the moon?", "adversarial", [])]
    questions = [{"question": q, "answer": f"a {q}", "category": c, "evidence": e} for q, c, e in asked]
    questions[-1] = questions[-1] | {"answer": None, "adversarial_answer": "Nora"}
    one = {"conversation_id": "one", "speaker_a": "Nora", "speaker_b": "Tobias", "sessions": sessions}
    two = {"conversation_id": "two", "speaker_a": "Ada", "speaker_b": "Lin"}
    two["questions"] = []
    two["sessions"] = [
        {
            "session": 1,
            "date": "2024-01-01",
            "turns": [{"turn_id": "u1", "speaker": "Ada", "text": "Nobody asks about this."}],
        }
    ]
    return {"conversations": [one | {"questions": questions}, two]}


def letters(texts):
    """Unit vectors that depend on the texts' letters."""
    counts = np.array([[t.lower().count(chr(97 + i)) + 1e-3 for i in range(26)] for t in texts])
    return (counts / np.linalg.norm(counts, axis=1, keepdims=True)).astype(np.float32)


def word_tokens(text):
    """A `rerankers.Tokens` with a vector for each word, the same for the same word."""
    ids = np.array([zlib.crc32(w.encode()) % 1000 for w in text.lower().split()] or [0], np.int32)
    return rerankers._coded(ids, np.stack([np.random.default_rng(i).normal(size=16) for i in ids]).astype(np.float32))


@pytest.fixture
def computed(monkeypatch, tmp_path):
    """Pretended models without weights, an empty cache; a list of the texts that were embedded, batch by batch."""
    monkeypatch.setenv("RAWRAG_CACHE", str(tmp_path / "cache"))
    batches = []

    def embed(embedder, texts, kind="document"):
        batches.append(list(texts))
        return letters(texts)

    def token_vectors(embedder, texts, kind="document"):
        batches.append(list(texts))
        return [rerankers.Tokens(*word_tokens(text)) for text in texts]

    monkeypatch.setattr(models, "embed", embed)
    monkeypatch.setattr(rerankers, "token_vectors", token_vectors)
    return batches


@pytest.fixture
def desk(computed, tmp_path):
    """A desk over `talk` with small windows and a small pool."""
    path = tmp_path / "talk.json"
    path.write_text(json.dumps(talk()), encoding="utf-8")
    return desks.prepare(str(path), settings=desks.Settings(size=60, overlap=10, pool=6, top=3, budget=120))
