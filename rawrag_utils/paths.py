"""Where things live, and how a file gets there whole: repository root, cache root, atomic writes, checked downloads."""

import contextlib
import hashlib
import os
import pathlib
import tempfile
import urllib.error
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[1]
TIMEOUT = 30  # seconds a download may stay silent


class BadInput(ValueError):
    """Input that cannot be used. The message is one line: the place, what is wrong there, and the remedy."""


def resolve(path):
    """Absolute `pathlib.Path` of `path`; a relative one starts at the repository root, not at the working directory.

    Jupyter starts a notebook in its own folder, papermill in the root: only a fixed start means the same in both.

    >>> resolve("results/README.md").relative_to(ROOT).as_posix()
    'results/README.md'
    """
    return (ROOT / pathlib.Path(path).expanduser()).resolve()


def relative(path):
    """`path` as written in messages and provenance: from the root where it lies below it, else its name alone.

    Absolute paths would put a user's name into committed files.

    >>> relative(ROOT / "data" / "sample"), relative("/somewhere/else/my.json")
    ('data/sample', 'my.json')
    """
    path = pathlib.Path(path)
    return path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else path.name


def cache_root():
    """The cache folder: `RAWRAG_CACHE`, else `XDG_CACHE_HOME`/rawrag, else ~/.cache/rawrag, else .cache in the root."""
    if "RAWRAG_CACHE" in os.environ:
        return resolve(os.environ["RAWRAG_CACHE"])
    if "XDG_CACHE_HOME" in os.environ:
        return resolve(os.environ["XDG_CACHE_HOME"]) / "rawrag"
    try:
        return pathlib.Path.home() / ".cache" / "rawrag"
    except RuntimeError:  # no home folder
        return ROOT / ".cache"


def sha256(path):
    """Hexadecimal SHA-256 of the file at `path`, read in blocks."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextlib.contextmanager
def atomic(path, mode="w"):
    """Open a temporary file beside `path` and move it there when the block ends well; else `path` stays as it was.

    >>> target = pathlib.Path(tempfile.mkdtemp()) / "numbers.txt"
    >>> with atomic(target) as file:
    ...     _ = file.write("42")
    >>> target.read_text(), len(list(target.parent.iterdir()))
    ('42', 1)
    """
    path = pathlib.Path(path)
    options = {} if "b" in mode else {"encoding": "utf-8", "newline": "\n"}
    temporary = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(mode, dir=path.parent, prefix=".part-", delete=False, **options) as file:
            temporary = file.name
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)  # temporary files are private; what they become is not
        os.replace(temporary, path)
    except OSError as error:
        raise BadInput(
            f"{relative(path)}: not written ({error.strerror}); nothing was changed, free space or "
            "choose another folder and run again"
        ) from error
    finally:
        if temporary and os.path.exists(temporary):
            os.unlink(temporary)


def fetch(url, path, digest, *, progress=True):
    """Download `url` to `path` unless a file with the SHA-256 `digest` is there already; returns the path.

    A broken download leaves `<path>.part`, from which the next call goes on (HTTP Range). The file appears under its
    own name only once its hash is right. Raises `BadInput` when offline or when the bytes are not those expected.
    """
    path = pathlib.Path(path)
    if path.exists() and sha256(path) == digest:
        return path
    part = path.with_name(path.name + ".part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _download(url, part, progress)
    except (OSError, urllib.error.URLError) as error:
        raise BadInput(
            f"{path.name}: download from {url} broke off ({getattr(error, 'reason', error)}); "
            "run again to go on where it stopped"
        ) from error
    found = sha256(part)
    if found != digest:
        part.unlink()
        raise BadInput(
            f"{path.name}: {url} gave sha256 {found[:12]}…, expected {digest[:12]}…; the download was "
            "discarded, upstream may have changed"
        )
    os.replace(part, path)
    return path


def _download(url, part, progress):
    from tqdm import tqdm

    have = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(url, headers={"Range": f"bytes={have}-"} if have else {})
    try:
        response = urllib.request.urlopen(request, timeout=TIMEOUT)
    except urllib.error.HTTPError as error:
        if error.code == 416:  # the part is whole already: nothing is left to ask for
            return
        raise
    with response:
        resumed = response.status == 206
        left = int(response.headers.get("Content-Length") or 0)
        total = left + have if resumed else left
        bar = tqdm(
            total=total or None,
            initial=have if resumed else 0,
            unit="B",
            unit_scale=True,
            desc=part.stem,
            disable=None if progress else True,
        )
        with bar, open(part, "ab" if resumed else "wb") as file:
            while block := response.read(1 << 16):
                file.write(block)
                bar.update(len(block))
        if total and part.stat().st_size != total:
            raise OSError(f"{part.stat().st_size:,} of {total:,} bytes came")
