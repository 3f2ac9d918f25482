"""Chat through a server that others wrote: llama.cpp's, with the 0.5B weights, on this machine, while the tests run."""

import contextlib
import subprocess
import sys

import httpx
import pytest
from servers import KEY
from test_models import refused

from rawrag_utils import llm, models, weights

SERVER = """
import sys, xllamacpp
params = xllamacpp.CommonParams()
params.model.path, params.port, params.api_keys = sys.argv[1], int(sys.argv[2]), [sys.argv[3]]
params.n_ctx, params.n_parallel = 1024, 2  # each of two requests at a time has half of the context
params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1  # two wait for each other on a busy machine
params.endpoint_metrics, params.warmup = True, False
server = xllamacpp.Server(params)
print(server.listening_address, flush=True)
sys.stdin.read()  # the pipe closes when the tests end, whatever ends them
"""


@contextlib.contextmanager
def serving(file, log, port=0):
    """A running server of the weights in `file`: its process and its address."""
    command = [sys.executable, "-c", SERVER, file, str(port), KEY]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "encoding": "utf-8"}
    with log.open("a") as stderr, subprocess.Popen(command, stderr=stderr, **pipes) as process:
        try:
            address = process.stdout.readline().strip()
            assert address.startswith("http://127.0.0.1:"), log.read_text(encoding="utf-8")
            yield process, address
        finally:
            process.kill()


@pytest.fixture(scope="module")
def file():
    """The weights, from the cache that a user has."""
    return weights.gguf_file(llm.load_chat("small").config)


@pytest.fixture(scope="module")
def server(file, tmp_path_factory):
    with serving(file, tmp_path_factory.mktemp("server") / "log") as (_, address):
        yield address


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """A cache of its own for every test, and the key."""
    monkeypatch.setenv("RAWRAG_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("OPENAI_API_KEY", KEY)


def chat(address, **changes):
    block = {"kind": "endpoint", "model": "qwen", "max_context": 8192, "base_url": f"{address}/v1"}
    return llm.Chat(llm.ChatConfig(**block | changes), "endpoint", "")


def request(*texts, max_tokens=24, **sampling):
    return llm.Request([[{"role": "user", "content": text}] for text in texts], max_tokens, **sampling)


def counted(address):
    """Tokens that the server has read and written so far, as it counts them itself."""
    lines = httpx.get(f"{address}/metrics", headers={"Authorization": f"Bearer {KEY}"}).text.splitlines()
    values = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    return float(values["llamacpp:prompt_tokens_total"]), float(values["llamacpp:tokens_predicted_total"])


TWO = request("What is a kiln? Answer in five words.", "Name one colour.")


def test_prompts_are_answered_and_then_known(server):
    asked = chat(server)
    before = counted(server)
    answers = llm.complete(asked, TWO)
    after = counted(server)
    assert [len(row) for row in answers] == [1, 1]
    for (answer,) in answers:
        assert answer.text.strip() and answer.finish in ("stop", "length")
        assert answer.prompt_tokens > 0 and 0 < answer.completion_tokens <= 24 and answer.seconds > 0
    assert after[1] - before[1] == sum(answer.completion_tokens for (answer,) in answers)
    assert llm.totals(asked)["calls_made"] == 2 and llm.totals(asked)["retries"] == 0
    again = chat(server)
    assert llm.complete(again, TWO) == answers
    assert llm.totals(again)["calls_made"] == 0 and counted(server) == after


def test_the_limit_on_tokens_ends_an_answer(server):
    ((answer,),) = llm.complete(chat(server), request("Count from one to a hundred.", max_tokens=4))
    assert answer.finish == "length" and answer.completion_tokens == 4


def test_requests_at_a_time_give_each_prompt_its_own_answer(server):
    words = ["kiln", "wheel", "bowl", "map", "lamp"]
    asked = request(*(f"Repeat this word: {word}" for word in words), max_tokens=8)
    answers = llm.complete(chat(server, parallel=4), asked)
    assert [word for word, (answer,) in zip(words, answers, strict=True) if word in answer.text.lower()] == words


def test_samples_of_a_prompt_differ(server):
    (answers,) = llm.complete(chat(server), request("Name an animal.", max_tokens=8, temperature=2.0, samples=3))
    assert len(answers) == 3 and len({answer.text for answer in answers}) > 1  # each has a seed of its own


def test_a_prompt_longer_than_the_servers_context_is_one_line(server):
    asked = chat(server, parallel=1)
    line = refused(llm.complete, asked, TWO._replace(prompts=TWO.prompts + request("word " * 2000).prompts))
    assert line.startswith("qwen: a prompt is longer than the endpoint's context") and "is kept" in line
    llm.complete(asked, TWO)
    assert asked.made == 2  # before the long one, and not again


def test_a_key_that_the_server_refuses_is_one_line_without_it(server, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-not-the-key")
    line = refused(llm.complete, chat(server), TWO)
    assert "the endpoint refused the key (401)" in line and "sk-" not in line


def test_a_server_that_stops_is_one_line_and_the_next_run_goes_on(file, tmp_path, monkeypatch):
    monkeypatch.setattr(models, "RETRIES", 1)
    asked = request("Name a colour.", "Name a bird.", "Name a tree.", max_tokens=8)
    with serving(file, tmp_path / "log") as (process, address):
        write = llm._write

        def write_and_stop(*arguments):
            write(*arguments)
            process.kill()
            process.wait()

        monkeypatch.setattr(llm, "_write", write_and_stop)
        stopped = chat(address, parallel=1)
        assert "qwen: the endpoint is not reached" in refused(llm.complete, stopped, asked) and stopped.made == 1
        monkeypatch.setattr(llm, "_write", write)
    with serving(file, tmp_path / "log", address.rsplit(":", 1)[-1]) as (process, address):
        going_on = chat(address)
        answers = llm.complete(going_on, asked)
        assert [len(row) for row in answers] == [1, 1, 1] and going_on.made == 2
