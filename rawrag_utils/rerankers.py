"""Scores of question-window pairs: late interaction over token vectors, cross-encoders, rerank endpoints.

Every backend is called the same way, `score(reranker, queries, documents)`, and gives one number a pair. Late
interaction (MaxSim, Khattab & Zaharia 2020) takes the mean over the question's token vectors of the largest cosine with
any token vector of the window; it needs no weights beyond the embedder's. Token vectors, and the scores of the other
two backends, are cached by content in sqlite as they come: a run that was stopped goes on, a second one computes and
pays nothing.
"""

import dataclasses
import datetime
import email.utils
import functools
import hashlib
import json
import os
import struct
import time
import zlib
from typing import Literal, NamedTuple

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, model_validator

from rawrag_utils import models, paths, store, weights
from rawrag_utils.paths import BadInput

TOKENS = "CREATE TABLE IF NOT EXISTS tokens (key BLOB PRIMARY KEY, ids BLOB, codes BLOB, scales BLOB, crc INT)"
SCORES = "CREATE TABLE IF NOT EXISTS scores (key BLOB PRIMARY KEY, score REAL, pieces INT, crc INT)"
SPECIAL = b"special tokens"  # the key of what is no text's: see `_own_ids`
BLOCK_TOKENS = 16384  # window tokens multiplied at once …
BLOCK_COSINES = 2**26  # … and how many cosines that may give: 256 MB
BLOCK_PAIRS = 1024  # pairs a cross-encoder scores before they are kept; batches of one length are formed among them


class Tokens(NamedTuple):
    """One text's token vectors, L2-normalised and stored as int8: `codes[i] * scales[i]` is token i's vector."""

    ids: np.ndarray  # (tokens,) int32, the tokenizer's
    codes: np.ndarray  # (tokens, dimensions) int8
    scales: np.ndarray  # (tokens,) float32


class RerankerConfig(BaseModel):
    """The `reranker` block of a profile."""

    model_config = ConfigDict(extra="forbid")

    kind: Literal["maxsim", "cross-encoder", "endpoint"]
    encoder: str | None = None  # the profile whose embedder gives late interaction its token vectors; None: this one
    model: str = ""
    revision: str | None = Field(None, pattern=r"^[0-9a-f]{40}$")  # of a cross-encoder: a hub commit
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    max_length: int = Field(8192, ge=8)  # tokens a pair may have; of longer ones the window is scored in pieces
    prompt: str | None = None  # instruction of a cross-encoder that takes one; None is the model's own
    url: str = Field("", pattern=r"^(https?://\S+)?$")  # of an endpoint: where {model, query, documents} is posted
    key_variable: str = "COHERE_API_KEY"  # the environment variable that holds the endpoint's key
    batch: int = Field(1000, ge=1)  # windows a request
    usd_per_search: float | None = None  # one question with up to 100 windows

    @model_validator(mode="after")
    def _names_what_it_needs(self):
        needs = {"maxsim": (), "cross-encoder": ("model", "revision"), "endpoint": ("model", "url")}[self.kind]
        if missing := [name for name in needs if not getattr(self, name)]:
            raise ValueError(f"a reranker of kind {self.kind} needs {' and '.join(missing)}")
        return self


@dataclasses.dataclass
class Reranker:
    """A profile's reranker; a cross-encoder is loaded at the first pair that is not in the cache."""

    config: RerankerConfig
    embedder: models.Embedder
    device: str = ""
    dtype: str = ""
    calls: int = 0  # forward passes of pairs, or requests to an endpoint
    searches: float = 0  # that an endpoint bills
    split: set = dataclasses.field(default_factory=set)  # keys of the pairs past the limit that were met

    @functools.cached_property
    def model(self):
        return _load_cross_encoder(self)

    @property
    def key(self):
        """Names the cache file: a hash of all that decides a pair's score."""
        c = self.config
        decides = [c.kind, c.model, c.revision, c.prompt, c.max_length, c.url, self.device, self.dtype]
        return hashlib.sha256(json.dumps(decides).encode()).hexdigest()[:16]


def load_reranker(name):
    """The `Reranker` of the profile `name`. Raises `BadInput` where the profile has none or its block is wrong."""
    config = models.block(name, "reranker", RerankerConfig, "reranker")
    if config.kind == "maxsim":
        return Reranker(config, load_encoder(name))
    if config.kind == "endpoint":
        return Reranker(config, models.load_embedder(name))
    device = models.device_kind()
    dtype = models.fast_dtype(device) if config.dtype == "auto" else config.dtype
    return Reranker(config, models.load_embedder(name), device, dtype)


def load_encoder(name):
    """The `Embedder` that late interaction takes token vectors from under the profile `name`.

    It is the profile's own, or that of the profile which its reranker block names as `encoder`: endpoints and the
    universal sentence encoder give one vector a text. Raises `BadInput` where neither gives token vectors.
    """
    named = models.block(name, "reranker", RerankerConfig, "reranker").encoder
    if named is not None and named not in models.profiles():
        known = ", ".join(models.profiles())
        raise BadInput(f"PROFILE={name}: reranker.encoder: {named}: no such profile; there are {known}")
    embedder = models.load_embedder(name if named is None else named)
    if embedder.config.kind != "sentence-transformers":
        raise BadInput(
            f"PROFILE={name}: reranker.encoder: {embedder.config.model} gives no token vectors; name a profile whose "
            "embedder does, as local"
        )
    return embedder


def describe(reranker):
    """What provenance says of a reranker; MaxSim has no weights beyond its encoder's, nor another precision.

    Of an endpoint also what it billed and cost in US dollars (None where the profile states no price).
    """
    c, price = reranker.config, reranker.config.usd_per_search
    kept = {"role": "reranker", "kind": c.kind, "model": c.model or reranker.embedder.config.model}
    if c.kind == "maxsim":
        return kept | {"dtype": reranker.embedder.dtype, "device": reranker.embedder.device}
    kept |= {"max_length": c.max_length, "split_inputs": len(reranker.split), "calls": reranker.calls}
    if c.kind == "cross-encoder":
        own = {"revision": c.revision, "prompt": c.prompt, "dtype": reranker.dtype, "device": reranker.device}
        return kept | {k: v for k, v in own.items() if v is not None}
    return kept | {
        "searches": reranker.searches,
        "cost_usd": None if price is None else reranker.searches * price,
    }


def score(reranker, queries, documents):
    """Scores of pairs: for each of the texts `queries` a float64 array, one number for each of its `documents`.

    Raises `BadInput` when weights or endpoint are out of reach or give something that is no score; nothing of that is
    kept, what was scored before is.
    """
    scorer = _score_maxsim if reranker.config.kind == "maxsim" else _score_pairs
    return scorer(reranker, queries, documents)


def _score_maxsim(reranker, queries, documents):
    """Consecutive queries whose windows overlap are scored together, so that each window is read once."""
    asked = token_vectors(reranker.embedder, queries, "query")
    scores, start = [], 0
    while start < len(queries):
        union, end, pairs = dict.fromkeys(documents[start]), start + 1, len(documents[start])
        while end < len(queries) and any(d in union for d in documents[end]):
            more = union | dict.fromkeys(documents[end])
            pairs += len(documents[end])
            if len(more) * (end + 1 - start) > 8 * pairs:  # small pools of a large corpus: mostly wasted
                break
            union, end = more, end + 1
        place = {text: column for column, text in enumerate(union)}
        matrix = maxsim(asked[start:end], token_vectors(reranker.embedder, list(union)))
        scores += [row[[place[d] for d in wanted]] for row, wanted in zip(matrix, documents[start:end], strict=True)]
        start = end
    return scores


# ------------------------------------------------------------------------------------- cross-encoders and endpoints


def _score_pairs(reranker, queries, documents):
    """Scores from the cache where they are known, the rest from the model or the endpoint."""
    rows = [[(query, text) for text in some] for query, some in zip(queries, documents, strict=True)]
    keys = [[hashlib.sha256(json.dumps(pair).encode()).digest() for pair in row] for row in rows]
    known = _read_scores(reranker, {key for row in keys for key in row})
    pairs = zip((k for row in keys for k in row), (p for row in rows for p in row), strict=True)
    missing = {key: pair for key, pair in pairs if key not in known}
    scorer = {"cross-encoder": _cross_encoder_scores, "endpoint": _endpoint_scores}[reranker.config.kind]
    for found in scorer(reranker, missing) if missing else ():
        if not np.isfinite([value for value, _ in found.values()]).all():
            raise BadInput(f"{reranker.config.model}: gave a score that is not finite; nothing of this batch was kept")
        _write_scores(reranker, found)
        known |= found
    reranker.split |= {key for row in keys for key in row if known[key][1] > 1}
    return [np.array([known[key][0] for key in row], np.float64) for row in keys]


def _fitted(config, pairs, lengths):
    """(position in `pairs`, pair, tokens) of all `pairs`, of one past the limit several: its window in pieces.

    A cut-off end would be evidence that no score has seen. So the window is halved until each piece fits beside the
    question, and its best piece counts, as Cohere documents for its models. `lengths` gives the tokens of pairs.
    """
    fitted, waiting = [], list(enumerate(pairs))
    while waiting:
        halves = []
        for (owner, pair), tokens in zip(waiting, lengths([pair for _, pair in waiting]), strict=True):
            query, text = pair
            if tokens <= config.max_length:
                fitted.append((owner, pair, tokens))
            elif len(text) < 2:
                raise BadInput(
                    f"{config.model}: a question of {len(query)} characters leaves no room for a window in max_length "
                    f"{config.max_length}; raise it in the profile or shorten the question"
                )
            else:
                middle = len(text) // 2
                halves += [(owner, (query, text[:middle])), (owner, (query, text[middle:]))]
        waiting = halves
    return fitted


def _best(keys, owners, values):
    """{key: (its best piece's score, pieces)}; `owners` are positions in `keys`."""
    found = {}
    for owner, value in zip(owners, values, strict=True):
        best, pieces = found.get(keys[owner], (value, 0))
        found[keys[owner]] = max(best, value), pieces + 1
    return found


def _load_cross_encoder(reranker):
    import torch
    import transformers
    from sentence_transformers import CrossEncoder

    config = reranker.config
    transformers.utils.logging.disable_progress_bar()
    folder = weights.hub_folder(config)
    try:
        dtype = getattr(torch, reranker.dtype)
        options = {"model_kwargs": {"dtype": dtype, "use_safetensors": True}}
        model = CrossEncoder(folder, device=reranker.device, **options)
    except (OSError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise BadInput(f"{config.model}: its files do not load ({reason}); delete them in the hub's cache") from error
    holds = getattr(model.config, "max_position_embeddings", None) or config.max_length
    if config.max_length > holds:
        raise BadInput(f"{config.model}: max_length {config.max_length} in the profile, the model holds {holds} tokens")
    if model.num_labels != 1:
        raise BadInput(f"{config.model}: gives {model.num_labels} labels a pair; a reranker gives one score")
    # In bf16 a logit has three digits, and half of a pool would tie: the last layer computes in fp32.
    linear = [name for name, module in model.named_modules() if type(module) is torch.nn.Linear]
    model.set_keep_in_fp32_modules(linear[-1:])
    model.max_seq_length = 2**30  # nothing is cut off: `_fitted` minds the limit
    return model.eval()


def _cross_encoder_scores(reranker, missing):
    """Yields {key: (score, pieces)}; `missing` is {key: (question, window)}. Only pairs of one length share a batch."""
    import scipy.special

    keys = list(missing)
    blocks = (keys[start : start + BLOCK_PAIRS] for start in range(0, len(keys), BLOCK_PAIRS))
    for some in models.told(blocks, len(keys), "rerank"):
        pairs = [missing[key] for key in some]
        fitted = _fitted(reranker.config, pairs, functools.partial(_pair_lengths, reranker))
        owners, logits = [], []
        for batch in models.batches([tokens for *_, tokens in fitted], reranker.device):
            owners += [fitted[i][0] for i in batch]
            logits += _logits(reranker, [fitted[i][1] for i in batch])
        reranker.calls += len(fitted)
        # The probability of "relevant", as cards of models state it; in float64, where the best do not tie at 1.
        yield _best(some, owners, scipy.special.expit(np.array(logits, np.float64)).tolist())


def _pair_lengths(reranker, pairs):
    model, prompt = reranker.model, reranker.config.prompt
    prompt = model.prompts.get(model.default_prompt_name) if prompt is None else prompt
    whole = {"text": {"padding": False, "truncation": False}, "common": {"return_tensors": None}}
    try:
        read = model.preprocess(pairs, prompt=prompt, processing_kwargs=whole)
    except ValueError as error:  # a chat template that knows no question and document
        reason = str(error).splitlines()[0].partition(". ")[0]
        raise BadInput(f"{reranker.config.model}: no model for pairs ({reason}); choose a reranker") from error
    return [len(ids) for ids in read["input_ids"]]


def _logits(reranker, pairs):
    """What the model says of pairs of one length before its activation: log-odds, as floats."""
    import torch

    options = {"batch_size": len(pairs), "show_progress_bar": False, "activation_fn": torch.nn.Identity()}
    return reranker.model.predict(pairs, prompt=reranker.config.prompt, **options).tolist()


def _endpoint_scores(reranker, missing):
    """Yields {key: (score, pieces)} a request, as Cohere's rerank API takes them: one question, many windows."""
    import httpx

    config, questions = reranker.config, {}
    for key, (query, _) in missing.items():
        questions.setdefault(query, []).append(key)
    hooks = {"response": [models.bounded]}
    with httpx.Client(headers=_authorisation(config), timeout=models.TIMEOUT, event_hooks=hooks) as client:
        batches = (
            k[start : start + config.batch] for k in questions.values() for start in range(0, len(k), config.batch)
        )
        for some in models.told(batches, len(missing), "rerank"):
            fitted = _fitted(config, [missing[key] for key in some], _cl100k_lengths)
            texts = [text for _, (_, text), _ in fitted]
            query = missing[some[0]][0]
            body = {"model": config.model, "query": query, "documents": texts, "top_n": len(texts)}
            answer = _post(config, client, body)
            reranker.calls += 1
            reranker.searches += _billed(answer, len(texts))
            yield _best(some, [owner for owner, *_ in fitted], _relevance(config, answer, len(texts)))


def _authorisation(config):
    key = os.environ.get(config.key_variable, "").strip()
    if not key:
        raise BadInput(
            f"{config.model}: {config.key_variable} is not set; export it (any value for a server without keys)"
        )
    if not (key.isascii() and key.isprintable()):  # else the client's own error would show it
        raise BadInput(f"{config.model}: {config.key_variable} holds characters that no key has; export it again")
    return {"Authorization": f"Bearer {key}"}


def _cl100k_lengths(pairs):
    from rawrag_utils.chunking import encoding

    return [sum(map(len, encoding().encode_ordinary_batch(list(pair)))) for pair in pairs]


def _post(config, client, body):
    """The endpoint's answer. What may pass (no answer, half of one, 408, 409, 429, 5xx) is asked again, after a wait
    that doubles; Retry-After is heeded up to a minute."""
    import httpx

    for attempt in range(models.RETRIES + 1):
        wait = 0.5 * 2**attempt
        try:
            answer = client.post(config.url, json=body)
            reason = f"HTTP {answer.status_code}"
            if answer.status_code == 200:
                reason = "its answer is no JSON"
                return answer.json()
            if answer.status_code not in (408, 409, 429) and answer.status_code < 500:
                break
            wait = _retry_after(answer) or wait
        except (httpx.RequestError, ValueError, RecursionError) as error:  # no connection, a timeout; no JSON
            reason = type(error).__name__ if isinstance(error, httpx.RequestError) else reason
        if attempt < models.RETRIES:
            time.sleep(wait)
    # Not `from error`, and no word of the server's: servers echo keys, and a traceback ends up in a notebook.
    raise BadInput(
        f"{config.model}: the endpoint failed ({reason}); what was scored before is kept, run again to go on"
    ) from None


def _retry_after(answer):
    """Seconds that the header Retry-After asks for (a number or a date); None where there is none to heed."""
    asked = answer.headers.get("Retry-After", "")
    try:
        seconds = float(asked)
    except ValueError:
        try:
            until = email.utils.parsedate_to_datetime(asked)
            seconds = (until - datetime.datetime.now(datetime.UTC)).total_seconds()
        except (TypeError, ValueError):
            return None
    return seconds if 0 < seconds <= 60 else None


def _relevance(config, answer, count):
    """The scores in an endpoint's answer, in the order of the windows asked for."""
    try:
        results = [(item["index"], item["relevance_score"]) for item in answer["results"]]
    except models.MALFORMED:
        raise BadInput(
            f"{config.model}: the endpoint's answer is no list of scores; nothing of this request was kept"
        ) from None
    numbers = all(type(i) is int and type(value) in (int, float) and abs(value) < 1e300 for i, value in results)
    if not numbers or sorted(index for index, _ in results) != list(range(count)):
        raise BadInput(
            f"{config.model}: {len(results)} scores for {count} windows, or not one number each; nothing of this "
            "request was kept"
        )
    return [float(value) for _, value in sorted(results)]


def _billed(answer, windows):
    """Searches that an answer says it billed, else by Cohere's rule: one for each 100 windows."""
    try:
        billed = float(answer["meta"]["billed_units"]["search_units"])
    except models.MALFORMED:
        billed = -1
    return billed if 0 <= billed < float("inf") else -(-windows // 100)


def _read_scores(reranker, keys):
    """{key: (score, pieces)} of the keys that are known."""
    typed = "typeof(score) = 'real' AND typeof(pieces) = 'integer'"
    query = f"SELECT key, score, pieces, crc FROM scores WHERE key IN ({{}}) AND {typed}"
    found = _in_scores(reranker, lambda c: list(store.rows(c, query, keys)))
    return {key: (value, n) for key, value, n, crc in found if _score_checksum(key, value, n) == crc}


def _write_scores(reranker, found):
    rows = [(key, value, n, _score_checksum(key, value, n)) for key, (value, n) in found.items()]
    _in_scores(reranker, lambda c: c.executemany("INSERT OR REPLACE INTO scores VALUES (?, ?, ?, ?)", rows))


def _score_checksum(key, value, pieces):
    return zlib.crc32(key + struct.pack("<dq", value, pieces))


def _in_scores(reranker, work):
    return store.in_database(paths.cache_root() / "scores" / f"{reranker.key}.sqlite", SCORES, work)


# ------------------------------------------------------------------------------------------------------ token vectors


def token_vectors(embedder, texts, kind="document"):
    """`Tokens` of every text, from the cache where it is known.

    Windows keep [CLS] and [SEP], questions (`kind="query"`) lose their special tokens. A prompt is read, as the model
    was trained to, and its own tokens are left out of both. A text past the model's limit is encoded in consecutive
    pieces, of which the first has the prompt, and its tokens joined. Int8 codes change no recall on LoCoMo by more than
    .002.
    """
    if embedder.config.kind != "sentence-transformers":
        raise BadInput(f"{embedder.config.model}: it gives no token vectors; choose another reranker or encoder")
    prompt = models.prompt(embedder, kind)
    texts = [prompt + text for text in texts]
    keys = [hashlib.sha256(text.encode()).digest() for text in texts]
    known = _read_tokens(embedder, set(keys))
    missing = {key: text for key, text in zip(keys, texts, strict=True) if key not in known}
    for found in _encode_tokens(embedder, missing) if missing else ():
        _write_tokens(embedder, found)
        known |= found
    tokens = [known[key] for key in keys]
    if kind == "document" and not prompt:
        return tokens
    special = _own_ids(embedder, SPECIAL, lambda tokenizer: tokenizer.all_special_ids)
    of_prompt = b"prompt " + hashlib.sha256(prompt.encode()).digest()
    none = np.zeros(0, np.int32)
    before = _own_ids(embedder, of_prompt, lambda tokenizer: tokenizer(prompt)["input_ids"]) if prompt else none
    return [_without(t, before, special, kind == "query") for t in tokens]


def _without(tokens, before, special, bare):
    """`tokens` less those of a prompt, which encoded alone is `before`; less special ones too where `bare`."""
    of_special, shared = np.isin(tokens.ids, special), min(len(before), len(tokens.ids))
    of_prompt = np.zeros(len(tokens.ids), bool)
    of_prompt[:shared] = np.logical_and.accumulate(tokens.ids[:shared] == before[:shared])
    kept = ~of_special if bare else np.ones(len(tokens.ids), bool)
    kept &= ~of_prompt | of_special
    return Tokens(*(part[kept] for part in tokens)) if kept.any() else tokens


def _own_ids(embedder, key, find):
    """Ids that `find` takes from the tokenizer, kept beside the vectors: no model is loaded for them alone."""
    known = _read_tokens(embedder, {key})
    if key not in known:
        ids = np.array(find(embedder.model.tokenizer), np.int32)
        known[key] = Tokens(ids, np.zeros((len(ids), 1), np.int8), np.zeros(len(ids), np.float32))
        _write_tokens(embedder, known)
    return known[key].ids


def _encode_tokens(embedder, texts):
    """Yields {key: Tokens} as batches finish; `texts` is {key: text}."""
    keys = list(texts)
    encoded, owners = models.token_pieces(embedder, list(texts.values()))
    waiting = {owner: owners.count(owner) for owner in owners} if len(owners) > len(keys) else {}
    parts = {}
    batches = models.batches([len(ids) for ids in encoded], embedder.device)
    for batch in models.told(batches, len(encoded), "token vectors"):
        vectors = models.forward(embedder, [encoded[i] for i in batch], "token_embeddings")
        found = {}
        for i, vector in zip(batch, vectors, strict=True):
            parts.setdefault(owners[i], {})[i] = _coded(encoded[i], vector)
            if len(parts[owners[i]]) == waiting.get(owners[i], 1):
                whole = [piece for _, piece in sorted(parts.pop(owners[i]).items())]
                found[keys[owners[i]]] = Tokens(*(np.concatenate(column) for column in zip(*whole, strict=True)))
        yield found


def _coded(ids, vectors):
    vectors = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    scales = np.maximum(np.abs(vectors).max(axis=1), 1e-12).astype(np.float32) / 127
    return np.asarray(ids, np.int32), np.round(vectors / scales[:, None]).astype(np.int8), scales


def _read_tokens(embedder, keys):
    typed = " AND ".join(f"typeof({column}) = 'blob'" for column in ("ids", "codes", "scales"))
    query = f"SELECT key, ids, codes, scales, crc FROM tokens WHERE key IN ({{}}) AND {typed}"
    found = _in_tokens(embedder, lambda c: list(store.rows(c, query, keys)))
    known = {}
    for key, ids, codes, scales, crc in found:
        if store.vouched(crc, key, ids, codes, scales):  # else a bit flipped: made again
            ids = np.frombuffer(ids, np.int32)
            known[key] = Tokens(
                ids, np.frombuffer(codes, np.int8).reshape(len(ids), -1), np.frombuffer(scales, np.float32)
            )
    return known


def _write_tokens(embedder, found):
    blobs = [(key, *(part.tobytes() for part in tokens)) for key, tokens in found.items()]
    rows = [(*row, store.checksum(*row)) for row in blobs]
    _in_tokens(embedder, lambda c: c.executemany("INSERT OR REPLACE INTO tokens VALUES (?, ?, ?, ?, ?)", rows))


def _in_tokens(embedder, work):
    return store.in_database(paths.cache_root() / "vectors" / f"{embedder.key}-tokens.sqlite", TOKENS, work)


# -------------------------------------------------------------------------------------------------------------- MaxSim


def maxsim(queries, documents, weights=None):
    """MaxSim of every query with every document: float64 (queries, documents). Both are lists of `Tokens`.

    `weights` holds an array for each query, a weight for each of its tokens; None weighs all alike. Scores are rounded
    to six decimals, beyond which a product depends on its batch.

    >>> unit = np.eye(3, dtype=np.int8) * 127
    >>> axis = lambda *i: Tokens(np.array(i), unit[list(i)], np.full(len(i), 1 / 127, np.float32))
    >>> maxsim([axis(0, 1)], [axis(0), axis(1, 0), axis(2)]).tolist()
    [[0.5, 1.0, 0.0]]
    """
    import torch

    if not queries or not documents:
        return np.zeros((len(queries), len(documents)))
    asked = torch.from_numpy(np.concatenate([q.codes for q in queries]).astype(np.float32))
    best = np.empty((len(asked), len(documents)), np.float32)
    for block in _blocks([len(d.ids) for d in documents], min(BLOCK_TOKENS, BLOCK_COSINES // len(asked))):
        width = len(documents[block[-1]].ids)
        # Shorter windows repeat their last token: it changes no maximum.
        rows = [np.minimum(np.arange(width), len(documents[d].ids) - 1) for d in block]
        codes = np.concatenate([documents[d].codes[r] for d, r in zip(block, rows, strict=True)]).astype(np.float32)
        scales = np.concatenate([documents[d].scales[r] for d, r in zip(block, rows, strict=True)])
        # Codes are integers of at most 127: float32 adds up 1,000 products without rounding, in whatever order.
        cosines = (asked @ torch.from_numpy(codes).T).mul_(torch.from_numpy(scales))
        best[:, block] = cosines.view(len(asked), len(block), width).amax(2).numpy()
    best *= np.concatenate([q.scales for q in queries])[:, None]
    weights = [np.ones(len(q.ids)) for q in queries] if weights is None else weights
    starts = np.cumsum([0, *(len(w) for w in weights[:-1])])
    flat = np.concatenate(weights)
    total = np.add.reduceat(flat, starts)
    return np.round(np.add.reduceat(best * flat[:, None], starts, axis=0) / np.where(total > 0, total, 1)[:, None], 6)


def _blocks(lengths, limit):
    """Positions by length, the shortest first, in blocks that hold at most `limit` tokens once padded.

    >>> _blocks([3, 1, 9, 2], 6)
    [[1, 3], [0], [2]]
    """
    blocks = [[]]
    for position in sorted(range(len(lengths)), key=lengths.__getitem__):
        if blocks[-1] and (len(blocks[-1]) + 1) * lengths[position] > limit:
            blocks.append([])
        blocks[-1].append(position)
    return blocks


def rarity(lines, queries):
    """A weight for each token of each query: idf = ln(1 + (n − df + .5) / (df + .5)) over `lines`, the n turn lines.

    `lines` and `queries` are lists of `Tokens` of one embedder; df counts the lines that hold the token, so an unseen
    one weighs most.

    >>> text = lambda *ids: Tokens(np.array(ids), None, None)
    >>> [w.round(2).tolist() for w in rarity([text(1, 2), text(1)], [text(1, 2, 3)])]
    [[0.18, 0.69, 1.79]]
    """
    seen, counts = np.unique(np.concatenate([np.unique(line.ids) for line in lines]), return_counts=True)
    df = dict(zip(seen.tolist(), counts.tolist(), strict=True))
    frequencies = [np.array([df.get(i, 0) for i in query.ids.tolist()]) for query in queries]
    return [np.log(1 + (len(lines) - f + 0.5) / (f + 0.5)) for f in frequencies]
