"""Units, cache and accounting with a pretended local model, and every fault of a chat server on this machine."""

import concurrent.futures
import contextlib
import errno
import hashlib
import json
import logging
import os
import signal
import sqlite3
import ssl
import subprocess
import sys
import threading
import time
import traceback
import types

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from servers import KEY, completion, serving
from test_models import refused, write_profile

from rawrag_utils import endpoint, generation, llm, models, paths, store
from rawrag_utils.llm import Request
from rawrag_utils.paths import ROOT, BadInput


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """A cache of its own for every test."""
    monkeypatch.setenv("RAWRAG_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def chats(*texts):
    return [[{"role": "system", "content": "Be brief."}, {"role": "user", "content": text}] for text in texts]


def local(**config):
    config = {"kind": "local", "model": "tiny", "max_context": 256, "hub_url": "x", "gguf_sha256": "0" * 64} | config
    return llm.Chat(llm.ChatConfig(**{"batch": 3} | config), "cpu", "float32")


def pretend(chat, made, before=lambda: None):
    """Give `chat` a model whose texts depend on all that they may depend on; `made` notes each batch."""
    chat.loaded = "model", "tokenizer"

    def generate(model, tokenizer, prompts, samples, max_tokens, temperature, seed):
        assert (model, tokenizer) == chat.loaded
        before()
        made.append([len(p) for p in prompts])
        company = hashlib.sha256(repr((prompts, max_tokens, temperature, seed)).encode()).hexdigest()[:8]
        return [
            [
                generation.Generated(f"{bytes(p).decode()}|{company}|{i} 🙂", len(p), 2 + i, "stop")
                for i in range(samples)
            ]
            for p in prompts
        ]

    generation.generate = generate
    generation.tokens = lambda tokenizer, messages: [list(m[1]["content"].encode()) for m in messages]
    return chat


@pytest.fixture
def made(monkeypatch):
    """The batches that were made, as lengths of their prompts."""
    monkeypatch.setattr(generation, "generate", None)  # so that what `pretend` sets is undone
    monkeypatch.setattr(generation, "tokens", None)
    return []


TEXTS = ["who " * n for n in (9, 2, 5, 1, 7, 3, 8, 4, 6, 10)]  # in no order
REQUEST = Request(chats(*TEXTS), 16)


def texts(answers):
    return [[c.text for c in row] for row in answers]


def database(cache):
    return cache / "llm" / "answers.sqlite"


def change(cache, statement, *values):
    connection = sqlite3.connect(database(cache))
    with connection:
        connection.execute(statement, values)
    connection.close()


# --------------------------------------------------------------------------------------------------------------- units


def test_answers_are_in_the_order_of_the_prompts(made):
    answers = llm.complete(pretend(local(), made), REQUEST)
    assert [row[0].text.split("|")[0] for row in answers] == TEXTS
    assert [row[0].prompt_tokens for row in answers] == [len(t) for t in TEXTS]
    assert {(row[0].completion_tokens, row[0].finish) for row in answers} == {(2, "stop")}


def test_the_same_request_twice_makes_no_call(made):
    first = llm.complete(pretend(local(), made), REQUEST)
    assert made == [[4, 8, 12], [16, 20, 24], [28, 32, 36], [40]]  # batches from the whole list, by length
    again = local()
    again.loaded = None  # nothing is left to make
    assert llm.complete(again, REQUEST) == first and len(made) == 4 and again.made == 0


def test_nothing_asked_is_nothing(made):
    chat = pretend(local(), made)
    assert llm.complete(chat, Request([], 16)) == [] and made == [] and llm.totals(chat)["calls"] == 0


def test_a_resumed_run_gets_the_texts_that_it_would_have_got(made, cache, tmp_path, monkeypatch):
    whole = texts(llm.complete(pretend(local(), made), REQUEST))
    made.clear()
    monkeypatch.setenv("RAWRAG_CACHE", str(tmp_path / "other"))

    def broken():
        if len(made) == 2:
            raise MemoryError

    with pytest.raises(MemoryError):
        llm.complete(pretend(local(), made, broken), REQUEST)
    assert made == [[4, 8, 12], [16, 20, 24]]
    resumed = pretend(local(), made)
    assert texts(llm.complete(resumed, REQUEST)) == whole
    assert made[2:] == [[28, 32, 36], [40]] and resumed.made == 4


def test_batches_do_not_depend_on_what_is_known(made):
    """The fourth prompt was asked before, in another batch: its text of then is not used, and no batch shifts."""
    llm.complete(pretend(local(), made), Request(chats(TEXTS[3]), 16))
    made.clear()
    answers = llm.complete(pretend(local(), made), REQUEST)
    assert made[0] == [4, 8, 12] and len({t.split("|")[1] for (t,) in texts(answers)}) == 4


@settings(deadline=None, max_examples=50)
@given(st.lists(st.integers(1, 400), max_size=40), st.integers(1, 5), st.integers(1, 400), st.integers(1, 9))
def test_batches_keep_both_limits(lengths, samples, max_tokens, rows):
    chat = local(batch=rows)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(llm, "BATCH_TOKENS", 2000)
        patch.setattr(llm, "length", lambda prompt: prompt)
        batches = [b for b, _ in llm._batches(chat, Request(lengths, max_tokens, samples=samples))]
    assert sorted(p for b in batches for p in b) == list(range(len(lengths)))
    cut = [lengths[p] for b in batches for p in b]
    assert cut == sorted(lengths)
    for batch in batches:
        texts_of = len(batch) * samples
        tokens = texts_of * (max(lengths[p] for p in batch) + max_tokens)
        assert len(batch) == 1 or (texts_of <= rows and tokens <= 2000)


def test_samples_stand_together_and_a_prompt_is_read_once(made):
    chat = pretend(local(batch=4), made)
    answers = llm.complete(chat, REQUEST._replace(samples=2))
    assert [[t.split("|")[2] for t in row] for row in texts(answers)] == [["0 🙂", "1 🙂"]] * 10
    assert len(made) == 5  # two texts each of two prompts
    assert [c.prompt_tokens for c in answers[0]] == [36, 0] and [c.completion_tokens for c in answers[0]] == [2, 3]
    assert llm.totals(chat)["calls"] == 20 and llm.totals(chat)["prompt_tokens"] == sum(map(len, TEXTS))


OTHERS = [
    REQUEST._replace(max_tokens=17),
    REQUEST._replace(temperature=0.7),
    REQUEST._replace(samples=2),
    REQUEST._replace(seed=1),
    REQUEST._replace(prompts=REQUEST.prompts[:-1] + chats("who else")),
]


@pytest.mark.parametrize("other", OTHERS)
def test_what_decides_a_text_names_its_unit(made, other):
    llm.complete(pretend(local(), made), REQUEST)
    kept = len(made)
    found = llm.complete(pretend(local(), made), other)
    alone = [row for row in texts(found) if row not in texts(llm.complete(local(), REQUEST))]
    assert len(made) > kept and alone


def test_another_model_or_device_has_its_own_texts():
    config = local().config
    chosen = [
        local(),
        local(model="other"),
        local(gguf_sha256="1" * 64),
        llm.Chat(config, "cuda", "float32"),
        llm.Chat(config, "cpu", "bfloat16"),
    ]
    assert len({llm._units(chat, REQUEST)[0].key for chat in chosen}) == 5


def test_seeds_differ_by_batch_and_by_request(made, monkeypatch):
    seeds = []
    chat = pretend(local(), made)
    generate = generation.generate
    monkeypatch.setattr(generation, "generate", lambda *a: seeds.append(a[-1]) or generate(*a))
    llm.complete(chat, REQUEST)
    llm.complete(chat, REQUEST._replace(seed=1))
    assert len(set(seeds)) == 8 and all(0 <= s < 2**48 for s in seeds)


def test_a_prompt_that_does_not_fit_is_one_line(made):
    chat = pretend(local(), made)
    line = refused(llm.complete, chat, Request(chats("a" * 10, "b" * 250, "c" * 240), 16))
    assert "tiny: a prompt of 250 tokens and 16 for the answer do not fit in max_context 256" in line
    assert "TOP_K" in line
    llm.complete(chat, Request(chats("c" * 240), 16))  # exactly as long as it may be


# --------------------------------------------------------------------------------------------------------------- cache


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE units SET answers = replace(answers, 'who', 'why')",
        "UPDATE units SET answers = CAST(X'ff' || CAST(answers AS BLOB) AS TEXT)",  # no UTF-8 any more
        "UPDATE units SET answers = CAST(replace(CAST(answers AS BLOB), X'f09f', X'f01f') AS TEXT)",
        "UPDATE units SET answers = substr(answers, 1, 30)",
        "UPDATE units SET answers = '{}'",
        "UPDATE units SET answers = NULL",
        "UPDATE units SET answers = 7",
        "UPDATE units SET answers = CAST(answers AS BLOB)",
        "UPDATE units SET crc = crc + 1",
        "UPDATE units SET crc = NULL",
        "UPDATE units SET key = zeroblob(32) WHERE rowid = (SELECT min(rowid) FROM units)",
        "DELETE FROM units",
    ],
)
def test_a_changed_unit_is_made_again(made, cache, statement):
    request = Request(chats("who"), 16)
    first = texts(llm.complete(pretend(local(), made), request))
    change(cache, statement)
    for _ in range(2):
        assert texts(llm.complete(pretend(local(), made), request)) == first
    assert len(made) == 2


def test_any_flipped_bit_in_the_file_is_noticed(made, cache, capfd):
    """Of each unit's stored text, one bit: it is made again, or the file is set aside; never another text."""
    first = texts(llm.complete(pretend(local(), made), REQUEST))
    content = database(cache).read_bytes()
    start = content.index(b'{"answers"')
    for place in range(start, start + 160, 13):
        for suffix in ("", "-wal", "-shm"):
            database(cache).with_name(f"answers.sqlite{suffix}").unlink(missing_ok=True)
        changed = bytearray(content)
        changed[place] ^= 0x80
        database(cache).write_bytes(changed)
        assert texts(llm.complete(pretend(local(), made), REQUEST)) == first


@pytest.mark.parametrize("keep", [0, 100, 5000])
def test_a_damaged_file_is_set_aside(made, cache, capfd, keep):
    first = texts(llm.complete(pretend(local(), made), REQUEST))
    database(cache).write_bytes(database(cache).read_bytes()[:keep] + b"no database" * 2000)
    assert texts(llm.complete(pretend(local(), made), REQUEST)) == first and len(made) == 8
    assert "the cache was damaged" in capfd.readouterr().err
    assert (cache / "llm" / "damaged-answers.sqlite").exists()


def python(code, **environment):
    """A running Python that executes `code` with the names of this file at hand."""
    return subprocess.Popen(
        [sys.executable, "-c", f"from test_llm import *\n{code}"],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tests'}"} | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
    )


KILLS = {
    "while a batch is made": "pretend(chat, made, lambda: len(made) == 2 and os.kill(os.getpid(), signal.SIGKILL))",
    "while a batch is written": """
pretend(chat, made)
def killed(connection):
    connection.execute("PRAGMA cache_size=1")  # so that the file itself is half changed by then
    connection.executemany("INSERT INTO units VALUES (?, ?, 0)", ((bytes([i]), "x" * 4000) for i in range(200)))
    os.kill(os.getpid(), signal.SIGKILL)
write = llm._write
llm._write = lambda *a: llm._in_cache(killed) if len(made) == 3 else write(*a)
""",
    "just after a batch is written": """
pretend(chat, made)
write = llm._write
llm._write = lambda *a: (write(*a), len(made) == 2 and os.kill(os.getpid(), signal.SIGKILL))
""",
}


@pytest.mark.parametrize("kill", KILLS.values(), ids=KILLS)
def test_a_killed_run_keeps_whole_units_and_goes_on(made, cache, monkeypatch, tmp_path, kill):
    process = python(f"made, chat = [], local()\n{kill}\nllm.complete(chat, REQUEST)")
    process.communicate(timeout=300)
    assert process.returncode == -signal.SIGKILL
    resumed = texts(llm.complete(pretend(local(), made), REQUEST))
    assert made == [[28, 32, 36], [40]]
    assert llm._in_cache(lambda c: c.execute("SELECT count(*) FROM units").fetchone()) == (4,)
    monkeypatch.setenv("RAWRAG_CACHE", str(tmp_path / "other"))
    assert texts(llm.complete(pretend(local(), made), REQUEST)) == resumed


def test_two_processes_make_each_unit_once(made, cache, tmp_path):
    code = f"""
made, log = [], {str(tmp_path / "log")!r}
def slow():
    time.sleep(0.05)
    with open(log, "a") as file:
        file.write("x")
answers = llm.complete(pretend(local(batch=1), made, slow), REQUEST)
print(len(made))
print(hashlib.sha256(repr(texts(answers)).encode()).hexdigest())
"""
    results = [process.communicate(timeout=300) for process in [python(code), python(code)]]
    (first, second), errors = [out.split() for out, _ in results], [e for _, e in results]
    assert errors == ["", ""] and first[1] == second[1]
    assert int(first[0]) + int(second[0]) == 10 == len((tmp_path / "log").read_text())


def test_a_unit_made_elsewhere_meanwhile_is_taken(made):
    """The other run ended between this run's look into the cache and its turn."""
    chat, other = pretend(local(), made), local()
    other.loaded = chat.loaded
    units = llm._units(chat, REQUEST)
    first = texts(llm.complete(other, REQUEST))
    for _ in llm._make_local(chat, units):
        pass
    assert len(made) == 4 and chat.made == 0 and texts(llm.complete(chat, REQUEST)) == first


def test_a_full_disk_is_one_line_and_what_was_kept_is_whole(made, cache):
    code = """
import resource
made, lines = [], []
llm.complete(pretend(local(), made), REQUEST)
size = (paths.cache_root() / "llm" / "answers.sqlite").stat().st_size
resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, resource.RLIM_INFINITY))
try:
    chat, long = local(batch=1, max_context=10**6), chats(*["who" * n for n in range(9000, 9040)])
    llm.complete(pretend(chat, made), Request(long, 1))
except BadInput as error:
    print(str(error).count("\\n"), error)
"""
    out, errors = python(code).communicate(timeout=300)
    assert errors == "" and out.startswith("0 cache answers.sqlite: ") and "free space or set RAWRAG_CACHE" in out
    llm.complete(pretend(local(), made), REQUEST)
    assert made == []


@pytest.mark.parametrize(
    "error", [sqlite3.OperationalError("database or disk is full"), OSError(errno.EROFS, "Read-only file system")]
)
def test_a_cache_that_cannot_be_written_is_one_line(made, monkeypatch, error):
    def connect(*arguments, **options):
        raise error

    monkeypatch.setattr(sqlite3, "connect", connect)
    line = refused(llm.complete, pretend(local(), made), REQUEST)
    assert line.startswith("cache ") and "RAWRAG_CACHE" in line and error.args[-1] in line and made == []


def test_a_lock_that_cannot_be_made_is_one_line(made, monkeypatch):
    def full(lock):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("filelock.FileLock.acquire", full)
    line = refused(llm.complete, pretend(local(), made), REQUEST)
    assert line.startswith("cache llm: No space left on device") and made == []


def test_a_cache_folder_that_is_a_file_is_one_line(made, cache):
    cache.write_text("in the way")
    assert "set RAWRAG_CACHE" in refused(llm.complete, pretend(local(), made), REQUEST)


def test_no_locks_are_left_behind(made, cache):
    llm.complete(pretend(local(), made), REQUEST)
    assert [p.name for p in (cache / "llm").iterdir() if p.suffix == ".lock"] == []


# ---------------------------------------------------------------------------------------------------------- accounting


def test_totals_add_up(made):
    chat = pretend(local(), made)
    answers = llm.complete(chat, REQUEST)
    llm.complete(chat, REQUEST)  # again: not counted twice
    more = llm.complete(chat, Request(chats("new"), 16))
    flat = [c for row in answers + more for c in row]
    found = llm.totals(chat)
    assert found["calls"] == found["calls_made"] == len(flat) == 11
    assert found["prompt_tokens"] == sum(c.prompt_tokens for c in flat)
    assert found["completion_tokens"] == sum(c.completion_tokens for c in flat)
    assert found["seconds"] == pytest.approx(sum(c.seconds for c in flat), abs=0.1)
    assert found["retries"] == 0 and found["cost_usd"] == 0.0
    warm = local()
    llm.complete(warm, REQUEST)
    assert llm.totals(warm)["calls"] == 10 and llm.totals(warm)["calls_made"] == 0
    assert json.loads(json.dumps(found)) == found


def test_an_estimate_spends_nothing_and_needs_no_weights(made):
    chat = local()  # no `loaded`: its weights are out of reach
    wanted = {"first": REQUEST, "drawn": REQUEST._replace(samples=3, max_tokens=100)}
    table = llm.estimate(chat, wanted)
    read = sum(llm.length(p) for p in REQUEST.prompts)
    assert table.loc["first"].tolist()[:4] == [10, 0, read, 160]
    assert table.loc["drawn"].tolist()[:4] == [30, 0, read, 3000]
    assert table.loc["in all"].tolist()[:4] == [40, 0, 2 * read, 3160]
    minutes = (2 * read / llm.PROMPT_RATE + 3160 / llm.COMPLETION_RATE) / 60
    assert table.loc["in all", "minutes"] == pytest.approx(minutes)
    assert chat.made == 0 and not chat.units and "loaded" not in vars(chat)
    llm.complete(pretend(local(), made), REQUEST)
    after = llm.estimate(local(), wanted)
    assert after.loc["first"].tolist() == [10, 10, 0, 0, 0] and (after.loc["drawn"] == table.loc["drawn"]).all()


def test_an_estimate_of_nothing():
    assert llm.estimate(local(), {}).loc["in all"].tolist() == [0, 0, 0, 0, 0]
    assert llm.estimate(local(), {"none": Request([], 16)}).loc["none"].tolist() == [0, 0, 0, 0, 0]


def test_provenance_of_a_local_model():
    about = llm.describe(local())
    assert about["role"] == "chat" and about["weights_sha256"] == "0" * 64 and about["batch"] == 3
    assert about["device"] == "cpu" and about["dtype"] == "float32"


# -------------------------------------------------------------------------------------------------------- the endpoint


def answer(body):
    """What the server below answers."""
    said = body["messages"][-1]["content"]
    return completion(f"{said}? {body['seed']}", len(said), 3)


def honest(body):
    return 200, {}, answer(body)


@pytest.fixture
def server(monkeypatch):
    """A chat server. `server.waits` are the client's waits before it asks again, in seconds; none is really waited."""
    with serving(honest) as instance:
        instance.waits = []
        monkeypatch.setenv("OPENAI_BASE_URL", f"http://127.0.0.1:{instance.server_port}/v1")
        monkeypatch.setenv("OPENAI_API_KEY", KEY)
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        clock = types.SimpleNamespace(sleep=instance.waits.append, time=time.time)
        monkeypatch.setattr("openai._base_client.time", clock)
        plain = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # reading all certificates takes longer than a test
        monkeypatch.setattr("ssl.create_default_context", lambda *a, **k: plain)
        yield instance


def remote(**config):
    config = {"kind": "endpoint", "model": "m", "max_context": 1000, "parallel": 1} | config
    return llm.Chat(llm.ChatConfig(**config), "endpoint", "")


ONE = Request(chats("one"), 16)
THREE = Request(chats("one", "two", "three"), 16, seed=5)


def said(bodies):
    return [body["messages"][-1]["content"] for body in bodies]


def test_endpoint_answers_are_kept_and_counted(server):
    chat = remote(usd_per_million_prompt_tokens=2, usd_per_million_completion_tokens=10)
    answers = llm.complete(chat, THREE)
    assert texts(answers) == [["one? 5"], ["two? 5"], ["three? 5"]]
    assert [row[0][1:3] for row in answers] == [(3, 3), (3, 3), (5, 3)]
    body = server.asked[0]
    assert (body["model"], body["max_tokens"], body["temperature"], body["seed"]) == ("m", 16, 0.0, 5)
    assert body["messages"] == THREE.prompts[0] and server.keys[0] == f"Bearer {KEY}"
    found = llm.totals(chat)
    assert (found["calls"], found["calls_made"], found["retries"]) == (3, 3, 0)
    assert found["cost_usd"] == pytest.approx((11 * 2 + 9 * 10) / 1e6)
    again = remote()
    assert llm.complete(again, THREE) == answers and len(server.asked) == 3
    assert llm.totals(again)["calls_made"] == 0 and llm.totals(again)["cost_usd"] is None  # unknown is not nothing


def test_endpoint_samples_have_seeds_of_their_own(server):
    chat = remote(parallel=4)
    answers = llm.complete(chat, THREE._replace(samples=3, temperature=1.0))
    assert texts(answers)[1] == ["two? 5", "two? 6", "two? 7"] and len(server.asked) == 9
    assert llm.totals(chat)["prompt_tokens"] == 3 * 11  # each call reads its prompt
    llm.complete(chat, THREE._replace(samples=4, temperature=1.0))
    assert sorted(body["seed"] for body in server.asked[9:]) == [8, 8, 8]  # a further sample asks for that one only


def test_endpoint_equal_prompts_are_asked_once(server):
    chat = remote(parallel=4)
    answers = llm.complete(chat, Request(chats("one", "two", "one"), 16))
    assert texts(answers) == [["one? 0"], ["two? 0"], ["one? 0"]] and len(server.asked) == 2


def test_endpoint_requests_are_parallel_and_all_counted(server):
    """No request is answered before four are under way."""
    meeting = threading.Barrier(4, timeout=10)
    server.rule = lambda body: (meeting.wait(), honest(body))[1]
    chat = remote(parallel=4)
    prompts = chats(*(f"q{i}" for i in range(40)))
    assert texts(llm.complete(chat, Request(prompts, 16))) == [[f"q{i}? 0"] for i in range(40)]
    assert len(server.asked) == chat.made == llm.totals(chat)["calls"] == 40


def test_endpoint_further_fields_are_sent(server):
    llm.complete(remote(extra_body={"top_k": 7}), ONE)
    assert server.asked[0]["top_k"] == 7


def test_endpoint_of_the_profile_comes_before_the_environments(server, monkeypatch):
    url = os.environ["OPENAI_BASE_URL"]
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9/v1")
    monkeypatch.setenv("OTHER_KEY", " other \n")
    llm.complete(remote(base_url=url, key_variable="OTHER_KEY"), ONE)
    assert server.keys == ["Bearer other"]
    monkeypatch.setenv("OPENAI_BASE_URL", f" {url}\n")
    llm.complete(remote(), THREE)
    assert len(server.asked) == 4


def fails(status, code=None, **headers):
    def reply(body):
        error = {"message": f"Incorrect key {KEY}\nfor you", "type": KEY, "param": KEY, "code": code}
        return status, {k.replace("_", "-"): v for k, v in headers.items()}, {"error": error}

    return reply


def spoilt(change):
    def reply(body):
        good = answer(body)
        change(good)
        return 200, {}, good

    return reply


def cut_stream(body):
    """Server-sent events in chunks, which end in the middle."""
    event = b'data: {"choices": [{"delta": {"content": "on'
    return (
        200,
        {"Content-Type": "text/event-stream", "Transfer-Encoding": "chunked", "Content-Length": None},
        (f"{len(event) + 900:x}\r\n".encode() + event),
    )


def whole_stream(body):
    return 200, {"Content-Type": "text/event-stream"}, b'data: {"choices": [{"delta": {"content": "one"}}]}\n\n'


CUT = {"Content-Length": 9000}
PASSING = {
    "429": (fails(429), 0.5),
    "429 that says when": (fails(429, Retry_After="7"), 7),
    "429 that says nonsense": (fails(429, Retry_After="soon"), 0.5),
    "500": (fails(500), 0.5),
    "503": (fails(503, Retry_After="3"), 3),
    "408": (fails(408), 0.5),
    "hung up": (lambda body: (0, {}, b""), 0.5),
    "cut off": (lambda body: (200, CUT, answer(body)), 0.5),
    "a stream that breaks off": (cut_stream, 0.5),
}


@pytest.mark.parametrize("reply, wait", PASSING.values(), ids=PASSING)
def test_endpoint_is_asked_again_and_retries_are_counted(server, reply, wait):
    server.replies = [honest, reply, reply]
    chat = remote()
    assert texts(llm.complete(chat, THREE)) == [["one? 5"], ["two? 5"], ["three? 5"]]
    assert len(server.asked) == 5 and llm.totals(chat)["retries"] == 2 and llm.totals(chat)["calls"] == 3
    assert len(server.waits) == 2 and 0.7 * wait <= server.waits[0] <= wait
    again = remote()
    llm.complete(again, THREE)
    assert llm.totals(again)["retries"] == 2  # what the answers took, whenever they were made


def chain(error):
    """All that a traceback could show of an exception: itself, causes and contexts."""
    seen = []
    while error is not None:
        seen += [str(error), repr(error), *traceback.format_exception_only(error)]
        error = error.__cause__ or error.__context__
    return "".join(seen)


FOREVER = {
    "401": (fails(401, "invalid_api_key"), "the endpoint refused the key (401)", 1),
    "403": (fails(403), "the endpoint refused the key (403)", 1),
    "404": (fails(404, "model_not_found"), "does not know the model (404)", 1),
    "400": (fails(400), "the endpoint failed (BadRequestError 400)", 1),
    "422": (fails(422), "the endpoint failed (UnprocessableEntityError 422)", 1),
    "context": (fails(400, "context_length_exceeded"), "longer than the endpoint's context", 1),
    "429": (fails(429), "allows no more requests for now (429)", 3),
    "429 with Retry-After": (fails(429, Retry_After="7"), "allows no more requests for now (429)", 3),
    "429 that says tomorrow": (fails(429, Retry_After="86400"), "allows no more requests for now (429)", 1),
    "no credit": (fails(429, "insufficient_quota"), "(429, no credit left)", 3),
    "500": (fails(500), "the endpoint failed (InternalServerError 500)", 3),
    "hung up": (lambda body: (0, {}, b""), "not reached or hangs up", 3),
    "cut off": (lambda body: (200, CUT, answer(body)), "not reached or hangs up", 3),
    "a stream that breaks off": (cut_stream, "not reached or hangs up", 3),
    "a stream": (whole_stream, "no chat completion", 1),
    "half a JSON": (lambda body: (200, {}, json.dumps(answer(body)).encode()[:-20]), "no chat completion", 1),
    "HTML": (lambda body: (200, {"Content-Type": "text/html"}, b"<h1>Welcome</h1>"), "no chat completion", 1),
    "no text": (lambda body: (200, {}, b"\xff\xfe\x00"), "no chat completion", 1),
    "nothing": (lambda body: (200, {}, b""), "no chat completion", 1),
    "a list": (lambda body: (200, {}, [1, 2]), "no chat completion", 1),
    "null": (lambda body: (200, {}, None), "no chat completion", 1),
    "empty choices": (spoilt(lambda a: a.update(choices=[])), "no chat completion", 1),
    "null choices": (spoilt(lambda a: a.update(choices=None)), "no chat completion", 1),
    "choices by name": (spoilt(lambda a: a.update(choices={"a": a["choices"]})), "no chat completion", 1),
    "brackets": (lambda body: (200, {}, b"[" * 100_000), "no chat completion", 1),
    "usage without end": (spoilt(lambda a: a["usage"].update(prompt_tokens=1e999)), "no chat completion", 1),
    "no choices": (spoilt(lambda a: a.pop("choices")), "no chat completion", 1),
    "no message": (spoilt(lambda a: a["choices"][0].pop("message")), "no chat completion", 1),
    "content of parts": (spoilt(lambda a: a["choices"][0]["message"].update(content=[{}])), "no chat completion", 1),
    "a tool call": (spoilt(lambda a: a["choices"][0].update(finish_reason="tool_calls")), "no chat completion", 1),
    "no finish": (spoilt(lambda a: a["choices"][0].update(finish_reason=None)), "no chat completion", 1),
    "usage of nulls": (spoilt(lambda a: a.update(usage={"prompt_tokens": None})), "no chat completion", 1),
    "an error inside 200": (lambda body: (200, {}, {"error": {"message": KEY}}), "no chat completion", 1),
}


@pytest.mark.parametrize("reply, expected, asked", FOREVER.values(), ids=FOREVER)
def test_endpoint_faults_are_one_line_and_what_was_answered_is_kept(
    server, cache, monkeypatch, caplog, capfd, reply, expected, asked
):
    monkeypatch.setattr(models, "RETRIES", 2)
    caplog.set_level(logging.INFO)
    server.rule, server.replies = reply, [honest]
    with pytest.raises(BadInput) as caught:
        llm.complete(remote(), THREE)
    line = str(caught.value)
    assert line.startswith("m: ") and expected in line and line.endswith("is kept, run again to go on")
    assert "\n" not in line and len(server.asked) == 1 + asked
    files = [p.read_bytes() for p in cache.rglob("*") if p.is_file()]
    said_aloud = chain(caught.value) + caplog.text + "".join(capfd.readouterr())
    assert KEY not in said_aloud and not any(KEY.encode() in content for content in files)
    server.rule = honest
    first = len(server.asked)
    assert texts(llm.complete(remote(), THREE)) == [["one? 5"], ["two? 5"], ["three? 5"]]
    assert said(server.asked[first:]) == ["two", "three"]


def test_endpoint_that_fails_for_one_lets_those_under_way_end(server):
    """Of four requests at a time one fails: the other three are kept, what was not sent is not sent."""
    meeting = threading.Barrier(4, timeout=10)

    def rule(body):
        with contextlib.suppress(threading.BrokenBarrierError):
            meeting.wait()
        return (fails(401) if body["messages"][-1]["content"] == "q2" else honest)(body)

    server.rule = rule
    prompts = chats(*(f"q{i}" for i in range(4)))
    refused(llm.complete, remote(parallel=4), Request(prompts, 16))
    server.rule, first = honest, len(server.asked)
    llm.complete(remote(parallel=4), Request(prompts, 16))
    assert said(server.asked[first:]) == ["q2"]


@pytest.mark.parametrize("content", ["", None])
@pytest.mark.parametrize("finish", ["content_filter", "length", "stop"])
def test_endpoint_answers_without_text_are_kept_and_counted(server, content, finish):
    def empty(good):
        good["choices"][0]["message"]["content"] = content
        good["choices"][0]["finish_reason"] = finish

    server.replies = [spoilt(empty)]
    for _ in range(2):
        ((found,),) = llm.complete(remote(), ONE)
        assert (found.text, found.finish, found.prompt_tokens) == ("", finish, 3)
    assert len(server.asked) == 1


def test_endpoint_that_states_no_usage(server):
    server.replies = [spoilt(lambda a: a.pop("usage")), spoilt(lambda a: a.update(usage=None))]
    for text in ("one two three", "one two four"):
        ((found,),) = llm.complete(remote(), Request(chats(text), 16))
        assert found.prompt_tokens == 6 and found.completion_tokens == 6  # as cl100k counts: "… three? 0"


def test_endpoint_that_cuts_an_emoji(server):
    server.replies = [spoilt(lambda a: a["choices"][0]["message"].update(content="one \ud83d"))]
    assert texts(llm.complete(remote(), ONE)) == texts(llm.complete(remote(), ONE)) == [["one ?"]]


def test_endpoint_that_is_silent(server, monkeypatch):
    monkeypatch.setattr(models, "RETRIES", 1)
    monkeypatch.setattr(models, "TIMEOUT", 0.2)
    done = threading.Event()
    server.replies = [lambda body: done.wait(10) and honest(body)] * 2
    line = refused(llm.complete, remote(), ONE)
    done.set()
    assert "the endpoint did not answer within 0.2 s, 2 times" in line and len(server.asked) == 2


def test_endpoint_that_is_not_there(server, monkeypatch):
    monkeypatch.setattr(models, "RETRIES", 1)
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9/v1")
    assert "not reached or hangs up; check OPENAI_BASE_URL" in refused(llm.complete, remote(), ONE)
    assert len(server.waits) == 1


@pytest.mark.parametrize("url", ["localhost:8000", "nonsense", "ftp://x/v1", "http://a b/v1", f"http://me:{KEY}@x/v1"])
def test_endpoint_addresses_that_are_none(server, monkeypatch, url):
    monkeypatch.setenv("OPENAI_BASE_URL", url)
    line = refused(llm.complete, remote(), ONE)
    assert "OPENAI_BASE_URL is no address" in line and KEY not in line


@pytest.mark.parametrize(
    "key, expected", [(None, "is not set"), ("  ", "is not set"), ("schlüssel", "no key"), ("a\nb", "no key")]
)
def test_endpoint_without_a_usable_key(server, monkeypatch, key, expected):
    monkeypatch.delenv("OPENAI_API_KEY")
    if key is not None:
        monkeypatch.setenv("OPENAI_API_KEY", key)
    line = refused(llm.complete, remote(), ONE)
    assert "m: OPENAI_API_KEY " in line and expected in line and server.asked == []
    assert not key or not key.strip() or key not in line


@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_endpoint_that_redirects_elsewhere_does_not_pass_the_key_on(server, monkeypatch, status):
    monkeypatch.setattr(models, "RETRIES", 1)
    with serving(lambda body: (404, {}, {})) as elsewhere:
        server.rule = fails(status, Location=f"http://127.0.0.1:{elsewhere.server_port}/v1/chat/completions")
        line = refused(llm.complete, remote(), ONE)
        assert line.startswith("m: ") and KEY not in line
        assert not any(elsewhere.keys)


def test_endpoint_that_redirects_in_a_circle(server, monkeypatch):
    monkeypatch.setattr(models, "RETRIES", 0)
    server.rule = fails(307, Location=f"{os.environ['OPENAI_BASE_URL']}/chat/completions")
    assert refused(llm.complete, remote(), ONE).startswith("m: ")


def test_the_price_of_an_endpoint_is_estimated(server):
    prices = {"usd_per_million_prompt_tokens": 2, "usd_per_million_completion_tokens": 10}
    wanted = {"first": THREE, "drawn": THREE._replace(samples=2, seed=9)}
    table = llm.estimate(remote(**prices), wanted)
    read = sum(llm.length(p) for p in THREE.prompts)
    assert table.loc["in all"].tolist()[:4] == [9, 0, 3 * read, 9 * 16]
    assert table.loc["in all", "usd"] == pytest.approx((3 * read * 2 + 9 * 16 * 10) / 1e6)
    unknown = llm.estimate(remote(), wanted)
    assert unknown["usd"].isna().all() and unknown.loc["in all"].tolist()[:4] == [9, 0, 3 * read, 9 * 16]
    assert server.asked == []
    llm.complete(remote(), THREE)
    assert llm.estimate(remote(), wanted).loc["first"].tolist()[:4] == [3, 3, 0, 0]


def test_two_runs_on_one_cache_ask_once(server):
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        runs = [pool.submit(llm.complete, remote(parallel=3), Request(chats(*map(str, range(12))), 16)) for _ in "ab"]
        first, second = (texts(run.result()) for run in runs)
    assert first == second and len(server.asked) == 12


# ------------------------------------------------------------------------------------------------------------ profiles

PINNED = {"kind": "local", "model": "m", "max_context": 512, "gguf_sha256": "0" * 64, "wheels": "w.txt"}


@pytest.mark.parametrize(
    "block, message",
    [
        ({}, "chat.kind: Field required"),
        ("gpt", "chat: "),
        (PINNED | {"kind": "vllm"}, "chat.kind"),
        (PINNED | {"max_context": 10}, "chat.max_context"),
        (PINNED | {"temperature": 1}, "chat.temperature"),
        (PINNED | {"gguf_sha256": "main"}, "chat.gguf_sha256"),
        (PINNED | {"batch": 0}, "chat.batch"),
        (PINNED | {"wheels": None}, "needs gguf_sha256 and wheels or hub_url"),
        (PINNED | {"gguf_sha256": None}, "needs gguf_sha256 and wheels or hub_url"),
        ({"kind": "endpoint", "model": "m", "max_context": 512, "base_url": "ftp://x"}, "chat.base_url"),
        ({"kind": "endpoint", "model": "m", "max_context": 512, "base_url": "http://me:pw@x"}, "chat.base_url"),
        ({"kind": "endpoint", "model": "m", "max_context": 512, "parallel": 0}, "chat.parallel"),
    ],
)
def test_a_bad_block_is_named(tmp_path, monkeypatch, block, message):
    monkeypatch.setattr(paths, "ROOT", tmp_path)
    embedder = {"kind": "endpoint", "model": "m", "max_length": 8}
    write_profile(tmp_path, "mine", {"embedder": embedder, "chat": block})
    line = refused(llm.load_chat, "mine")
    assert line.startswith("PROFILE=mine: ") and message in line


def test_a_profile_without_a_chat_model(tmp_path, monkeypatch):
    monkeypatch.setattr(paths, "ROOT", tmp_path)
    write_profile(tmp_path, "mine", {"embedder": {"kind": "endpoint", "model": "m", "max_length": 8}})
    assert "PROFILE=mine: it has no chat model" in refused(llm.load_chat, "mine")


@pytest.mark.parametrize("name", models.profiles())
def test_chat_models_of_the_profiles_that_come_along(name):
    """Nothing is fetched or loaded, and the wheels' file, where there is one, pins every line."""
    chat = llm.load_chat(name)
    about = llm.describe(chat)
    assert about["model"] and about["role"] == "chat" and "loaded" not in vars(chat)
    assert (about["kind"] == "local") == bool(about.get("weights_sha256"))
    if chat.config.kind == "local":
        assert chat.config.hub_url.startswith("https://") and paths.resolve(chat.config.wheels).is_file()
    elif not endpoint.base_url():
        assert llm.totals(chat)["cost_usd"] == 0.0


def test_many_that_open_a_new_cache_at_once_all_get_in(tmp_path):
    """Switching a new file to a write-ahead log waits for nobody by itself."""
    schema = "CREATE TABLE IF NOT EXISTS t (k INTEGER PRIMARY KEY)"
    for attempt in range(20):
        path = tmp_path / f"{attempt}.sqlite"

        def insert(key, path=path):
            store.in_database(path, schema, lambda c: c.execute("INSERT INTO t VALUES (?)", (key,)), durable=True)

        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            list(pool.map(insert, range(8)))
        count = store.in_database(
            path, schema, lambda c: c.execute("SELECT count(*) FROM t").fetchone()[0], durable=True
        )
        assert count == 8


def test_what_the_cache_knows_is_read_and_nothing_is_made(made):
    chat = pretend(local(), made)
    assert llm.known(chat, REQUEST) == [None] * len(TEXTS) and made == []
    answers = llm.complete(chat, REQUEST)
    again = local()
    again.loaded = None  # nothing may be made
    assert llm.known(again, REQUEST) == answers
    assert llm.known(again, REQUEST._replace(prompts=chats("another"))) == [None]
    assert llm.known(again, REQUEST._replace(prompts=[])) == []
