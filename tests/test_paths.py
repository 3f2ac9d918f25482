"""Paths, atomic writes and downloads: what stays as it was when something goes wrong, and what the user is told."""

import errno
import hashlib
import http.server
import os
import pathlib
import re
import socket
import stat
import subprocess
import sys
import threading
import time

import pytest

from rawrag_utils import paths
from rawrag_utils.paths import BadInput

# ---------------------------------------------------------------------------------------------------- where things lie


def test_relative_paths_start_at_the_root(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert paths.resolve("data/x.json") == paths.ROOT / "data" / "x.json"
    assert paths.resolve(tmp_path / "x.json") == (tmp_path / "x.json").resolve()


@pytest.mark.parametrize("path", ["~no-such-user/x", "a\0b"])
def test_impossible_path_is_refused_in_one_line(path):
    with pytest.raises(BadInput, match="not a usable path") as caught:
        paths.resolve(path)
    assert "\n" not in str(caught.value)


def test_a_message_is_one_line_that_a_terminal_does_not_obey():
    assert str(BadInput("a\r\n\x1b[2J\ud800\u202eb")) == "a\\r\\n\\x1b[2J\\ud800\\u202eb"
    assert str(BadInput("阿哲 🎻: naïve \\ 'x'")) == "阿哲 🎻: naïve \\ 'x'"
    long = str(BadInput(f"my.json: {'x' * 10**6}; correct it"))
    assert len(long) == 1000 and long.startswith("my.json: x") and " … " in long and long.endswith("; correct it")


LAUGHS = "[&a [x,x]" + "".join(f",&{b} [*{a},*{a},*{a}]" for a, b in zip("abcdefghi", "bcdefghij", strict=True)) + "]"


@pytest.mark.parametrize(
    "text, said",
    [
        (LAUGHS, "an alias"),
        ("a: &a [*a]", "an alias"),
        ("[" * 50_000, "nested too deeply"),
        ("a: [", "line 1 is not YAML"),
        ("a: 1\n\tb: 2", "line 2 is not YAML"),
        (b"\xff\x00", "is not YAML"),
        *(
            (text, "a value is no number")
            for text in ("2024-05-01", "2024-13-45", "!!set {a}", "!!binary aGk=", "!!int ''")
        ),
        *((text, "a value is no number") for text in ("!!bool x", "!!timestamp x", "9" * 5000, '"\\uD800"')),
        ("!!python/object/apply:os.getcwd []", "is not YAML"),
    ],
)
def test_yaml_holds_plain_values_only(tmp_path, text, said):
    file = tmp_path / "mine.yaml"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(BadInput, match=rf"^mine\.yaml: .*{said}"):
        paths.read_yaml(file)


def test_a_yaml_file_that_cannot_be_read_is_one_line(tmp_path):
    for name, said in (("nosuch.yaml", "no such file"), (".", "cannot be read")):
        with pytest.raises(BadInput, match=said):
            paths.read_yaml(tmp_path / name)


def test_messages_name_no_folder_outside():
    assert paths.relative(paths.ROOT / "data" / "README.md") == "data/README.md"
    assert paths.relative("/home/somebody/secret.json") == "secret.json"


@pytest.fixture
def home(tmp_path, monkeypatch):
    for name in ("RAWRAG_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pathlib.Path, "home", lambda: tmp_path)
    return tmp_path


def test_cache_lies_in_the_home_folder(home):
    assert paths.cache_root() == home / ".cache" / "rawrag"


def test_cache_follows_the_environment(home, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(home / "xdg"))
    assert paths.cache_root() == (home / "xdg" / "rawrag").resolve()
    monkeypatch.setenv("RAWRAG_CACHE", "some/cache")
    assert paths.cache_root() == paths.ROOT / "some" / "cache"


def test_empty_variables_count_as_unset(home, monkeypatch):
    monkeypatch.setenv("RAWRAG_CACHE", "")
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    assert paths.cache_root() == home / ".cache" / "rawrag"


def test_cache_lies_in_the_root_where_there_is_no_home(home, monkeypatch):
    def nowhere():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(pathlib.Path, "home", nowhere)
    assert paths.cache_root() == paths.ROOT / ".cache"


def test_sha256_of_what_cannot_be_read(tmp_path):
    for path in (tmp_path, tmp_path / "nosuch"):
        with pytest.raises(BadInput, match=rf"^{path.name}: cannot be read \("):
            paths.sha256(path)


# ------------------------------------------------------------------------------------------------------ atomic writes


@pytest.fixture
def target(tmp_path):
    """A file that is there already, alone in its folder."""
    path = tmp_path / "folder" / "numbers.csv"
    path.parent.mkdir()
    path.write_text("old")
    return path


def unchanged(target):
    return target.read_text() == "old" and [p.name for p in target.parent.iterdir()] == [target.name]


@pytest.mark.parametrize("mode, content, raw", [("w", "é\n", b"\xc3\xa9\n"), ("wb", b"\0\r\n", b"\0\r\n")])
def test_file_is_replaced_whole(target, mode, content, raw):
    with paths.atomic(target, mode) as file:
        file.write(content)
        assert target.read_text() == "old"
    assert target.read_bytes() == raw
    assert [p.name for p in target.parent.iterdir()] == [target.name]
    assert stat.S_IMODE(target.stat().st_mode) == 0o644


def test_folders_are_made(tmp_path):
    with paths.atomic(tmp_path / "a" / "b" / "c.txt") as file:
        file.write("new")
    assert (tmp_path / "a" / "b" / "c.txt").read_text() == "new"


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_failure_leaves_the_old_file_and_no_litter(target, error):
    with pytest.raises(error), paths.atomic(target) as file:
        file.write("half")
        raise error
    assert unchanged(target)


def full(*_):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("call", ["fsync", "replace", "chmod"])
def test_full_disk_is_one_line_and_leaves_the_old_file(target, monkeypatch, call):
    monkeypatch.setattr(os, call, full)
    with pytest.raises(BadInput) as caught, paths.atomic(target) as file:
        file.write("new")
    assert str(caught.value) == (
        "numbers.csv: not written (No space left on device); nothing was changed. Free space or choose another "
        "folder, then run again"
    )
    assert unchanged(target)


def test_full_disk_while_writing(target):
    with pytest.raises(BadInput, match="No space left on device"), paths.atomic(target) as file:
        file.write("half")
        full()
    assert unchanged(target)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_full_disk_found_when_the_buffer_is_emptied(target, monkeypatch):
    real = paths.tempfile.NamedTemporaryFile

    def on_a_full_disk(*args, **options):
        file = real(*args, **options)
        os.dup2(os.open("/dev/full", os.O_WRONLY), file.fileno())
        return file

    monkeypatch.setattr(paths.tempfile, "NamedTemporaryFile", on_a_full_disk)
    with pytest.raises(BadInput, match="No space left on device"), paths.atomic(target) as file:
        file.write("new")
    assert unchanged(target)


def test_file_where_a_folder_is_wanted(target):
    with pytest.raises(BadInput, match=r"^inner\.csv: not written \("), paths.atomic(target / "inner.csv") as file:
        file.write("new")
    assert unchanged(target)


def test_unfinished_files_are_ignored_by_git(target):
    ignored = (paths.ROOT / ".gitignore").read_text().split()
    with paths.atomic(target):
        (unfinished,) = [p.name for p in target.parent.iterdir() if p != target]
    assert unfinished.endswith(".part") and "*.part" in ignored


# ---------------------------------------------------------------------------------------------------------- downloads

CONTENT = bytes(range(256)) * 2000  # half a megabyte
DIGEST = hashlib.sha256(CONTENT).hexdigest()


class Handler(http.server.BaseHTTPRequestHandler):
    """Serves `CONTENT`; the server's attributes say how badly."""

    def do_GET(self):
        server = self.server
        wanted = self.headers.get("Range")
        server.requests.append(wanted)
        if server.status:
            return self.send_error(server.status)
        start = int(re.fullmatch(r"bytes=(\d+)-", wanted)[1]) if wanted and server.ranges else 0
        if start >= len(CONTENT):
            return self.send_error(416)
        body = server.content[start:]
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(CONTENT) - 1}/{len(CONTENT)}")
        if server.length:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        cut, server.cut = server.cut, None
        time.sleep(server.slow)
        self.wfile.write(body[:cut])

    def log_message(self, *_):
        pass


@pytest.fixture
def server():
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.requests, server.content, server.status, server.cut = [], CONTENT, None, None
        server.ranges, server.length, server.slow = True, True, 0
        server.url = f"http://127.0.0.1:{server.server_port}/data.bin"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def wanted(tmp_path):
    return tmp_path / "cache" / "data.bin"


def part(wanted):
    return wanted.with_name("data.bin.part")


def fetch(server, wanted, digest=DIGEST):
    return paths.fetch(server.url, wanted, digest, progress=False)


def fails(server, wanted, match, digest=DIGEST):
    with pytest.raises(BadInput, match=match) as caught:
        fetch(server, wanted, digest)
    assert "\n" not in str(caught.value) and not wanted.exists()


def test_download(server, wanted):
    assert fetch(server, wanted) == wanted
    assert wanted.read_bytes() == CONTENT
    assert [p.name for p in wanted.parent.iterdir()] == ["data.bin"]


def test_what_is_there_is_not_asked_for(server, wanted):
    wanted.parent.mkdir()
    wanted.write_bytes(CONTENT)
    fetch(server, wanted)
    assert server.requests == []


def test_what_is_there_but_wrong_is_replaced(server, wanted):
    wanted.parent.mkdir()
    wanted.write_bytes(b"something else")
    fetch(server, wanted)
    assert wanted.read_bytes() == CONTENT


def test_broken_download_goes_on_where_it_stopped(server, wanted):
    server.cut = 100_000
    fails(server, wanted, r"^data\.bin: download from http.* broke off \(.*; run again to go on where it stopped$")
    assert part(wanted).read_bytes() == CONTENT[:100_000]
    fetch(server, wanted)
    assert server.requests == [None, "bytes=100000-"]
    assert wanted.read_bytes() == CONTENT and not part(wanted).exists()


def test_server_without_ranges_sends_all_again(server, wanted):
    server.ranges, server.cut = False, 100_000
    fails(server, wanted, "broke off")
    fetch(server, wanted)
    assert wanted.read_bytes() == CONTENT


def test_broken_download_of_unknown_length_is_found_by_its_hash(server, wanted):
    server.length, server.cut = False, 100_000
    fails(server, wanted, "gave sha256 .* the download was discarded")
    fetch(server, wanted)
    assert wanted.read_bytes() == CONTENT


def test_wrong_content_is_discarded(server, wanted):
    server.content = CONTENT[::-1]
    fails(server, wanted, rf"^data\.bin: .* gave sha256 [0-9a-f]{{12}}…, expected {DIGEST[:12]}…; .* may have changed$")
    assert not part(wanted).exists()


def test_part_of_another_version_is_fetched_anew_at_once(server, wanted):
    wanted.parent.mkdir()
    part(wanted).write_bytes(b"another version")
    fetch(server, wanted)
    assert server.requests == ["bytes=15-", None]
    assert wanted.read_bytes() == CONTENT


def test_part_that_was_whole_is_taken(server, wanted):
    wanted.parent.mkdir()
    part(wanted).write_bytes(CONTENT)
    fetch(server, wanted)
    assert server.requests == [f"bytes={len(CONTENT)}-"]
    assert wanted.read_bytes() == CONTENT


def test_part_that_is_too_long_is_fetched_anew(server, wanted):
    wanted.parent.mkdir()
    part(wanted).write_bytes(CONTENT + b"more")
    fetch(server, wanted)
    assert wanted.read_bytes() == CONTENT


@pytest.mark.parametrize("status", [403, 404, 416, 500])
def test_refusal_of_the_server_is_named(server, wanted, status):
    server.status = status
    fails(server, wanted, rf"^data\.bin: http.*/data\.bin answered {status} .*; run again later, or upstream has moved")


def test_offline(wanted):
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{closed.getsockname()[1]}/data.bin"
        with pytest.raises(BadInput, match=r"^data\.bin: download from .* broke off \(.*refused"):
            paths.fetch(url, wanted, DIGEST, progress=False)
    assert list(wanted.parent.iterdir()) == []


def test_silent_server_is_given_up(server, wanted, monkeypatch):
    monkeypatch.setattr(paths, "TIMEOUT", 0.1)
    server.slow = 0.5
    fails(server, wanted, "broke off .*timed out")


def test_not_http(wanted):
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer():
            connection, _ = listener.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(b"hello\r\n\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(BadInput, match="broke off"):
            paths.fetch(f"http://127.0.0.1:{listener.getsockname()[1]}/", wanted, DIGEST, progress=False)
        thread.join()


def test_full_disk(server, wanted, monkeypatch):
    monkeypatch.setattr(os, "replace", full)
    fails(server, wanted, "broke off .*No space left on device")


def test_processes_at_the_same_time_download_once(server, wanted):
    server.slow = 0.3
    code = "import sys; from rawrag_utils import paths; paths.fetch(*sys.argv[1:], progress=False)"
    command = [sys.executable, "-c", code, server.url, str(wanted), DIGEST]
    processes = [subprocess.Popen(command, cwd=paths.ROOT, stderr=subprocess.PIPE, text=True) for _ in range(3)]
    assert [(p.communicate()[1], p.returncode) for p in processes] == [("", 0)] * 3
    assert wanted.read_bytes() == CONTENT
    assert [p.name for p in wanted.parent.iterdir()] == ["data.bin"]
    assert server.requests == [None]
