"""Where things live, and how a file gets there whole: repository root, cache root, atomic writes, checked downloads."""

import contextlib
import hashlib
import http.client
import json
import os
import pathlib
import re
import tempfile
import unicodedata
import urllib.error
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[1]
TIMEOUT = 30  # seconds a download may stay silent
LONGEST = 1000  # characters of a message
LONGEST_NAME = 80  # characters of a file's name that comes from data: 240 bytes of UTF-8 in most scripts
NAME_BYTES = 255  # of a name that every file system keeps
DEVICES = re.compile(r"(?:con|prn|aux|nul|com\d|lpt\d)(?:\..*)?", re.IGNORECASE)  # on Windows no names of files


class BadInput(ValueError):
    """Input that cannot be used. The message is one line: the place, what is wrong there, and the remedy.

    Messages quote what was read, so each is made `printable` here, once for all.
    """

    def __init__(self, message):
        super().__init__(printable(message))


def printable(text, longest=LONGEST):
    r"""`text` as one line that a terminal shows and does not obey: breaks and control characters as escapes.

    Of one longer than `longest` characters the middle is left out.

    >>> printable("my\n\x1b[31m.json: \ud800 is no text"), len(printable("x" * 5000))
    ('my\\n\\x1b[31m.json: \\ud800 is no text', 1000)
    """
    shown = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in str(text))
    return shown if len(shown) <= max(longest, LONGEST) else f"{shown[:700]} … {shown[703 - LONGEST :]}"


def resolve(path):
    """Absolute `pathlib.Path` of `path`; a relative one starts at the repository root, not at the working directory.

    Jupyter starts a notebook in its own folder, papermill in the root: only a fixed start means the same in both.

    >>> resolve("results/README.md").relative_to(ROOT).as_posix()
    'results/README.md'
    """
    try:
        found = (ROOT / pathlib.Path(path).expanduser()).resolve()
        with contextlib.suppress(FileNotFoundError, NotADirectoryError, PermissionError):  # for who opens it to say
            found.lstat()
        return found
    except (OSError, RuntimeError, ValueError) as error:  # no home for ~, a loop of links, a zero byte, too long
        reason = getattr(error, "strerror", None) or error
        raise BadInput(f"{str(path)!r}: not a usable path ({reason}); choose another") from error


def relative(path):
    """`path` as written in messages and provenance: from the root where it lies below it, else its name alone.

    Absolute paths would put a user's name into committed files.

    >>> relative(ROOT / "data" / "sample"), relative("/somewhere/else/my.json")
    ('data/sample', 'my.json')
    """
    path = pathlib.Path(path)
    return path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else path.name


def portable(name):
    """Whether Linux, macOS and Windows can all keep a file of this name.

    >>> portable("06_router types.csv"), portable("recall@5?.csv"), portable("nul.csv"), portable("etc. ")
    (True, False, False, False)
    """
    return not (re.search(r'[\x00-\x1f<>:"/\\|?*]|[. ]$|^$', name) or DEVICES.fullmatch(name))


def file_name(text):
    """`text` as a portable file name: letters, digits and ``_ . -``, no dot at either end, not long; may be empty.

    Letters are composed (NFC): macOS may hand over an accented letter in two parts, and both spell one name.

    >>> file_name("Is it 5:30?"), file_name("../.."), file_name("con"), file_name("cafe\u0301") == "caf\u00e9"
    ('Is_it_5_30_', '_', '_con', True)
    """
    name = re.sub(r"[^\w.-]+", "_", unicodedata.normalize("NFC", text)).strip(".")[:LONGEST_NAME].strip(".")
    return f"_{name}" if DEVICES.fullmatch(name) else name


def inside(name):
    r"""Whether `name`, read from data, stays below the folder it is put behind, on every system, and is not too long.

    >>> [inside(name) for name in ("figures/a.png", "../a", "/a", "a/../../b", "C:a", "a\\b", "", "a" * 256)]
    [True, False, False, False, False, False, False, False]
    """
    if not name.isprintable() or len(name.encode()) > NAME_BYTES:
        return False
    return not set(name) & set(":\\") and all(p not in ("", ".", "..") for p in name.split("/"))


def params():
    """The folder of profiles and of the plan, `notebooks/params`."""
    return ROOT / "notebooks" / "params"


def cache_root():
    """The cache folder: `RAWRAG_CACHE`, else `XDG_CACHE_HOME`/rawrag, else ~/.cache/rawrag, else .cache in the root.

    An empty variable counts as unset.
    """
    if own := os.environ.get("RAWRAG_CACHE"):
        return resolve(own)
    if shared := os.environ.get("XDG_CACHE_HOME"):
        return resolve(shared) / "rawrag"
    try:
        return pathlib.Path.home() / ".cache" / "rawrag"
    except RuntimeError:  # no home folder
        return ROOT / ".cache"


def sha256(path):
    """Hexadecimal SHA-256 of the file at `path`, read in blocks; `BadInput` where it cannot be read."""
    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise BadInput(
            f"{relative(path)}: cannot be read ({error.strerror}); check that the file is there and may be read"
        ) from error


def read_yaml(path):
    """What the YAML file at `path` holds, see `yaml_value`. Raises `BadInput` with the line of the fault."""
    try:
        return yaml_value(pathlib.Path(path).read_bytes())
    except FileNotFoundError as error:
        raise BadInput(f"{relative(path)}: no such file; correct the name or restore it with git checkout") from error
    except OSError as error:
        raise BadInput(f"{relative(path)}: cannot be read ({error.strerror}); check who may read it") from error
    except BadInput as error:
        raise BadInput(f"{relative(path)}: {error}") from error


def _check_events(events):
    """Refuse what is short and costs much: aliases of aliases, and brackets in brackets (PyYAML takes their square)."""
    depth = 0
    for event in events:
        kind = type(event).__name__
        depth += kind.endswith("StartEvent") - kind.endswith("EndEvent")
        if kind == "AliasEvent":
            raise BadInput("an alias (*name) is not read; write out what it stands for")
        if depth > 50:
            raise BadInput("nested too deeply; write it flatter")


def yaml_value(text):
    """The value of YAML in `text` (or bytes): numbers, texts, true, false, null, lists and mappings, as JSON has them.

    No objects, dates or sets, and no aliases: nine lines of them can stand for a billion values. Raises `BadInput`.

    >>> yaml_value("{POOL: 30, CATEGORIES: [1, temporal]}")
    {'POOL': 30, 'CATEGORIES': [1, 'temporal']}
    """
    import yaml

    try:
        _check_events(yaml.parse(text, yaml.SafeLoader))
        value = yaml.safe_load(text)
        json.dumps(value, ensure_ascii=False).encode()  # a lone surrogate is no text
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place, reason = f"line {mark.line + 1}" if mark else "the file", getattr(error, "problem", None) or error
        raise BadInput(f"{place} is not YAML ({reason})") from error
    except BadInput:
        raise
    except (ValueError, TypeError, LookupError, AttributeError) as error:  # of dates that are none, odd tags and keys
        raise BadInput("a value is no number, text, list or mapping; put what is meant as text in quotes") from error
    return value


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
        # Named like other unfinished files, which git ignores: a killed process leaves it behind.
        place = {"dir": path.parent, "prefix": f".{path.name[:80]}-", "suffix": ".part"}
        with tempfile.NamedTemporaryFile(mode, delete=False, **place, **options) as file:
            temporary = file.name
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)  # temporary files are private; what they become is not
        os.replace(temporary, path)
    except OSError as error:
        raise BadInput(
            f"{relative(path)}: not written ({error.strerror or error}); nothing was changed. Free space or "
            "choose another folder, then run again"
        ) from error
    finally:
        if temporary and os.path.exists(temporary):
            os.unlink(temporary)


def sweep(folder):
    """Remove what killed processes left unfinished below `folder`, which nobody else may be writing to meanwhile.

    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> (folder / "deep").mkdir(), (folder / "deep/.table.csv-x1.part").touch(), (folder / "table.csv").touch()
    (None, None, None)
    >>> sweep(folder)
    >>> [path.name for path in folder.rglob("*") if path.is_file()]
    ['table.csv']
    """
    for path in pathlib.Path(folder).rglob(".*-*.part"):
        path.unlink(missing_ok=True)


@contextlib.contextmanager
def alone(folder):
    """In this block no other process publishes into `folder`, where nothing unfinished of a killed one is left."""
    from filelock import FileLock

    lock = FileLock(folder / ".lock")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except OSError as error:
        raise BadInput(
            f"{relative(folder)}: cannot be written ({error.strerror or error}); free space or choose another folder "
            "(RAWRAG_RESULTS)"
        ) from error
    try:
        sweep(folder)
        yield
    finally:
        lock.release()


def fetch(url, path, digest, *, progress=True):
    """Download `url` to `path` unless a file with the SHA-256 `digest` is there already; returns the path.

    A broken download leaves `<path>.part`, from which the next call goes on (HTTP Range). The file appears under its
    own name only once its hash is right. Of two processes one downloads, the other waits and takes what is there.
    Raises `BadInput` when offline or when the bytes are not those expected.
    """
    from filelock import FileLock

    path = pathlib.Path(path)
    part, lock = path.with_name(path.name + ".part"), path.with_name(path.name + ".lock.part")
    try:
        if _has(path, digest):
            return path
        path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(lock):
            try:
                if not _has(path, digest):
                    _complete(url, part, digest, progress)
                    os.replace(part, path)
            finally:
                if not part.exists():  # the lock guards the part and goes with it; Windows keeps open files
                    with contextlib.suppress(OSError):
                        lock.unlink()
    except urllib.error.HTTPError as error:
        error.close()
        raise BadInput(
            f"{path.name}: {url} answered {error.code} {' '.join(str(error.reason).split())}; run again later, or "
            "upstream has moved the file"
        ) from error
    except (OSError, http.client.HTTPException) as error:
        raise BadInput(
            f"{path.name}: download from {url} broke off ({getattr(error, 'reason', error)}); "
            "run again to go on where it stopped"
        ) from error
    return path


def _has(path, digest):
    return path.is_file() and sha256(path) == digest


def _complete(url, part, digest, progress):
    """Download until `part` has the hash; a part whose first half is of another version is fetched anew, once."""
    resumed = part.exists()
    _download(url, part, progress)
    if resumed and not _has(part, digest):
        part.unlink()
        _download(url, part, progress)
    if (found := sha256(part)) != digest:
        part.unlink()
        raise BadInput(
            f"{part.stem}: {url} gave sha256 {found[:12]}…, expected {digest[:12]}…; the download was discarded, "
            "upstream may have changed"
        )


def _download(url, part, progress):
    """Append to `part` what is missing of `url`, or begin anew where the server does not do ranges."""
    from tqdm import tqdm

    have = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(url, headers={"Range": f"bytes={have}-"} if have else {})
    try:
        response = urllib.request.urlopen(request, timeout=TIMEOUT)
    except urllib.error.HTTPError as error:
        if error.code == 416 and have:  # nothing lies behind what is here: whole, or of another version
            error.close()
            return
        raise
    with response:
        if response.status != 206:
            have = 0
        left = int(response.headers.get("Content-Length") or 0)
        bar = {"total": have + left if left else None, "initial": have, "unit": "B", "unit_scale": True}
        with (
            tqdm(desc=part.stem, disable=None if progress else True, **bar) as shown,
            open(part, "ab" if have else "wb") as file,
        ):
            while block := response.read(1 << 16):
                file.write(block)
                shown.update(len(block))
        if left and (size := part.stat().st_size) != have + left:
            raise OSError(f"{size:,} of {have + left:,} bytes came")
