"""Scores of pairs: MaxSim against a plain loop, tiny cross-encoders made here, a rerank server on this machine."""

import collections
import email.utils
import functools
import json
import logging
import sqlite3
import threading
import time

import numpy as np
import pandas as pd
import pytest
from conftest import use
from servers import KEY, serving
from test_models import LETTERS, REVISION, flip, publish, refused, tiny_bert, write_profile

from rawrag_utils import chunking, index, models, paths, rerankers, retrieval
from rawrag_utils.corpus import Conversation, Question, Turn
from rawrag_utils.paths import BadInput


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """A cache of its own for every test."""
    monkeypatch.setenv("RAWRAG_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def change(file, statement):
    connection = sqlite3.connect(file)
    with connection:
        connection.execute(statement)
    connection.close()


# -------------------------------------------------------------------------------------------------------------- MaxSim


def tokens(rng, length, dimensions=16):
    """Random token vectors, coded as the cache holds them, and the vectors before coding."""
    vectors = rng.normal(size=(length, dimensions)).astype(np.float32)
    return rerankers._coded(rng.integers(0, 50, length), vectors), vectors / np.linalg.norm(
        vectors, axis=1, keepdims=True
    )


def some_tokens(rng, lengths, dimensions=16):
    return [rerankers.Tokens(*tokens(rng, n, dimensions)[0]) for n in lengths]


def plain_loop(queries, documents, weights=None):
    def vectors(t):
        return t.codes.astype(np.float64) * t.scales[:, None]

    weights = [np.ones(len(q.ids)) for q in queries] if weights is None else weights
    scores = np.zeros((len(queries), len(documents)))
    for i, query in enumerate(queries):
        for j, document in enumerate(documents):
            best = [max(float(a @ b) for b in vectors(document)) for a in vectors(query)]
            scores[i, j] = sum(w * b for w, b in zip(weights[i], best, strict=True)) / sum(weights[i])
    return scores


@pytest.mark.parametrize("lengths", [[1], [1, 1, 1], [5, 9, 7, 8], [1, 300, 2, 40, 1], [3] * 70])
def test_maxsim_equals_a_plain_loop(lengths):
    rng = np.random.default_rng(len(lengths))
    queries, documents = some_tokens(rng, [1, 7, 3]), some_tokens(rng, lengths)
    weights = [rng.uniform(0.1, 3, len(q.ids)) for q in queries]
    assert rerankers.maxsim(queries, documents) == pytest.approx(plain_loop(queries, documents), abs=2e-6)
    weighted = plain_loop(queries, documents, weights)
    assert rerankers.maxsim(queries, documents, weights) == pytest.approx(weighted, abs=2e-6)


def test_maxsim_weights_by_hand():
    unit = np.eye(3, dtype=np.int8) * 127
    texts = [rerankers.Tokens(np.array(i), unit[i], np.full(len(i), 1 / 127, np.float32)) for i in ([0, 1], [0], [2])]
    assert rerankers.maxsim(texts[:1], texts[1:], [np.array([3.0, 1.0])]).tolist() == [[0.75, 0]]
    assert rerankers.maxsim(texts[:1], texts[1:], [np.zeros(2)]).tolist() == [[0, 0]]  # no word counts: not NaN


def test_maxsim_of_nothing():
    one = some_tokens(np.random.default_rng(0), [2])
    assert rerankers.maxsim([], one).shape == (0, 1) and rerankers.maxsim(one, []).shape == (1, 0)


@pytest.mark.parametrize("dimensions", [16, 384, 2560])
def test_company_does_not_change_a_score(dimensions):
    rng = np.random.default_rng(0)
    queries, documents = some_tokens(rng, [1, 9, 4], dimensions), some_tokens(rng, [3, 60, 1, 17, 60], dimensions)
    together = rerankers.maxsim(queries, documents)
    alone = [[rerankers.maxsim([q], [d])[0, 0] for d in documents] for q in queries]
    np.testing.assert_allclose(together, alone, atol=1e-6 if dimensions > 1000 else 0)
    np.testing.assert_array_equal(rerankers.maxsim(queries, documents[::-1]), together[:, ::-1])


def test_blocks_hold_all_and_no_more_than_they_may(monkeypatch):
    rng = np.random.default_rng(0)
    lengths = [*rng.integers(1, 30, 200).tolist(), 5000]  # one very long one does not blow the others up
    for limit in (1, 64, 1000):
        blocks = rerankers._blocks(lengths, limit)
        assert sorted(p for block in blocks for p in block) == list(range(201))
        assert all(len(b) == 1 or len(b) * max(lengths[p] for p in b) <= limit for b in blocks)
    queries, documents = some_tokens(rng, [3, 4]), some_tokens(rng, [1, 12, 3, 4])
    whole = rerankers.maxsim(queries, documents)
    monkeypatch.setattr(rerankers, "BLOCK_COSINES", 40)
    np.testing.assert_array_equal(rerankers.maxsim(queries, documents), whole)


def test_int8_codes_are_close():
    rng = np.random.default_rng(0)
    for _ in range(20):
        (ids, codes, scales), exact = tokens(rng, 40, 384)
        coded = codes.astype(np.float32) * scales[:, None]
        assert codes.dtype == np.int8 and scales.dtype == np.float32 and np.abs(codes).max() == 127
        assert (np.abs(coded - exact) <= scales[:, None] * 0.5001).all()  # half a step
        cosines = (coded * exact).sum(1) / np.linalg.norm(coded, axis=1)
        assert cosines.min() > 0.9998
    zero = rerankers._coded([1], np.zeros((1, 4), np.float32))
    assert not zero[1].any() and np.isfinite(zero[2]).all()


def test_rarity_by_hand():
    def text(*ids):
        return rerankers.Tokens(np.array(ids), None, None)

    lines = [text(1, 1, 2), text(1), text(1, 3), text(4)]  # df: 1 is in three lines, 2, 3 and 4 in one, 9 in none
    (weights,) = rerankers.rarity(lines, [text(1, 2, 9, 1)])
    expected = [np.log(1 + (4 - df + 0.5) / (df + 0.5)) for df in (3, 1, 0, 3)]
    assert weights == pytest.approx(expected) and weights.argmax() == 2


# ------------------------------------------------------------------------------------------------------- token vectors


@pytest.fixture(scope="session")
def shelf(tmp_path_factory):
    """A hub cache with a tiny embedder and tiny cross-encoders."""
    hub = tmp_path_factory.mktemp("hub")
    makers = {"bert": tiny_bert, "judge": tiny_judge, "yesno": tiny_yesno, "labels": tiny_labels, "chat": tiny_chat}
    for name, make in makers.items():
        publish(make(tmp_path_factory.mktemp(name)), hub, f"tiny/{name}")
    return hub


@functools.cache
def encoder():
    return tiny_embedder().model


def tiny_embedder(max_length=64, **more):
    config = {"kind": "sentence-transformers", "model": "tiny/bert", "revision": REVISION, "max_length": max_length}
    return models.Embedder(models.EmbedderConfig(**config | more), "cpu", "float32")


@pytest.fixture
def embedder(hub):
    made = tiny_embedder()
    made.model = encoder()
    return made


def ids(text, special=True):
    return encoder().tokenizer(text, add_special_tokens=special, verbose=False)["input_ids"]


def test_windows_keep_special_tokens_and_questions_lose_them(embedder):
    window, question = (rerankers.token_vectors(embedder, ["a clay bowl"], kind)[0] for kind in ("document", "query"))
    assert window.ids.tolist() == ids("a clay bowl") and question.ids.tolist() == ids("a clay bowl", False)
    np.testing.assert_array_equal(window.codes[1:-1], question.codes)  # [CLS] … [SEP]
    with pytest.raises(KeyError):
        rerankers.token_vectors(embedder, ["a"], "question")


def prompted():
    made = tiny_embedder(query_prompt="ask ", document_prompt="a text ")
    made.model = encoder()
    return made


def test_a_prompt_is_read_but_takes_no_part(embedder):
    for kind, before in (("document", "a text "), ("query", "ask ")):
        for text in ("a clay bowl", "a text about text", "sk", "?"):
            (found,) = rerankers.token_vectors(prompted(), [text], kind)
            (whole,) = rerankers.token_vectors(embedder, [before + text])
            skipped, special = len(ids(before, False)), [0, -1] if kind == "document" else []
            rows = [*special[:1], *range(1 + skipped, len(whole.ids) - 1), *special[1:]]
            for part, expected in zip(found, whole, strict=True):
                np.testing.assert_array_equal(part, expected[rows])
            assert found.ids.tolist() == ids(text, kind == "document")
    assert not np.array_equal(found.codes, rerankers.token_vectors(embedder, ["?"], "query")[0].codes)


def test_a_prompt_alone_and_one_over_several_pieces(hub):
    made = prompted()
    assert rerankers.token_vectors(made, [""])[0].ids.tolist() == ids("")  # [CLS] [SEP]
    (empty,) = rerankers.token_vectors(made, [""], "query")
    assert len(empty.ids) and np.isfinite(rerankers.maxsim([empty], [empty])).all()
    short = tiny_embedder(max_length=16, document_prompt="a text ")
    short.model = encoder()
    text = "wheel throwing is fun " * 3
    (found,) = rerankers.token_vectors(short, [text])
    assert [i for i in found.ids.tolist() if i > 4] == ids(text, False)


def test_a_question_is_known_the_second_time(embedder, passes):
    (first,) = rerankers.token_vectors(embedder, ["a clay bowl"], "query")
    (again,) = rerankers.token_vectors(embedder, ["a clay bowl"], "query")
    assert all(map(np.array_equal, first, again)) and len(passes) == 1


def test_rarity_does_not_see_the_prompt(embedder):
    lines, asked = ["a clay bowl", "kiln"], ["clay kiln"]
    weights = [
        rerankers.rarity(rerankers.token_vectors(e, lines), rerankers.token_vectors(e, asked, "query"))[0]
        for e in (embedder, prompted())
    ]
    np.testing.assert_array_equal(*weights)


def test_a_question_of_special_tokens_alone_keeps_them(embedder):
    (empty,) = rerankers.token_vectors(embedder, [""], "query")
    assert empty.ids.tolist() == ids("")
    windows = rerankers.token_vectors(embedder, ["clay", ""])
    assert np.isfinite(rerankers.maxsim([empty], windows)).all()


def test_token_vectors_are_the_models(embedder):
    texts = ["a clay bowl", "kiln", "wheel throwing is fun"]
    for text, found in zip(texts, rerankers.token_vectors(embedder, texts), strict=True):
        exact = encoder().encode([text], output_value="token_embeddings")[0].numpy()
        exact = exact / np.linalg.norm(exact, axis=1, keepdims=True)
        np.testing.assert_allclose(found.codes * found.scales[:, None], exact, atol=found.scales.max())


def test_a_text_past_the_limit_is_joined_from_its_pieces(hub):
    short = tiny_embedder(max_length=16)
    short.model = encoder()
    text = "wheel throwing is fun " * 3
    (found,) = rerankers.token_vectors(short, [text])
    whole = ids(text, False)
    pieces = [[2, *whole[start : start + 14], 3] for start in range(0, len(whole), 14)]
    assert len(pieces) > 2 and found.ids.tolist() == [i for piece in pieces for i in piece]
    alone = [rerankers._coded(piece, models.forward(short, [piece], "token_embeddings")[0]) for piece in pieces]
    np.testing.assert_array_equal(found.codes, np.concatenate([codes for _, codes, _ in alone]))


def test_an_endpoint_has_no_token_vectors():
    config = models.EmbedderConfig(kind="endpoint", model="m", max_length=8)
    assert "no token vectors" in refused(
        rerankers.token_vectors, models.Embedder(config, "endpoint", "float32"), ["one"]
    )


@pytest.fixture
def passes(monkeypatch):
    """Token lists that went through the encoder."""
    forward, seen = models.forward, []
    monkeypatch.setattr(models, "forward", lambda e, batch, output: seen.extend(batch) or forward(e, batch, output))
    return seen


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE tokens SET codes = X'00' || substr(codes, 2)",
        "UPDATE tokens SET codes = substr(codes, 1, 3)",
        "UPDATE tokens SET ids = X'0a' || substr(ids, 2)",
        "UPDATE tokens SET scales = X'ff' || substr(scales, 2)",
        "UPDATE tokens SET ids = NULL",
        "UPDATE tokens SET scales = 'text'",
        "UPDATE tokens SET codes = 7",
        "UPDATE tokens SET crc = crc + 1",
        "UPDATE tokens SET crc = NULL",
        "DELETE FROM tokens",
    ],
)
def test_changed_token_vectors_are_made_again(embedder, cache, passes, statement):
    (first,) = rerankers.token_vectors(embedder, ["clay"])
    change(cache / "vectors" / f"{embedder.key}-tokens.sqlite", statement)
    for _ in range(2):
        (again,) = rerankers.token_vectors(embedder, ["clay"])
        assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    assert len(passes) == 2


@pytest.mark.parametrize("keep", [0, 100, 5000])
def test_a_damaged_file_of_token_vectors_is_set_aside(embedder, cache, passes, keep, capfd):
    texts = [f"{a} {b}" for a in LETTERS for b in LETTERS[:3]]
    rerankers.token_vectors(embedder, texts)
    file = cache / "vectors" / f"{embedder.key}-tokens.sqlite"
    file.write_bytes(file.read_bytes()[:keep] + b"no database" * 100)
    rerankers.token_vectors(embedder, texts)
    assert len(passes) == 2 * len(texts) and "the cache was damaged" in capfd.readouterr().err


def test_what_is_encoded_is_kept_when_the_run_stops(embedder, monkeypatch):
    forward = models.forward

    def interrupted(e, batch, output):
        if len(batch[0]) < 5:
            raise KeyboardInterrupt
        return forward(e, batch, output)

    with monkeypatch.context() as patch:
        patch.setattr(models, "forward", interrupted)
        with pytest.raises(KeyboardInterrupt):
            rerankers.token_vectors(embedder, ["clay bowl", "a"])
    seen = []
    monkeypatch.setattr(models, "forward", lambda e, batch, output: seen.extend(batch) or forward(e, batch, output))
    rerankers.token_vectors(embedder, ["clay bowl", "a"])
    assert seen == [ids("a")]


def maxsim_reranker(embedder):
    return rerankers.Reranker(rerankers.RerankerConfig(kind="maxsim"), embedder)


def test_maxsim_backend_equals_each_question_alone(embedder):
    reranker, rng = maxsim_reranker(embedder), np.random.default_rng(0)
    windows = [f"{a} {b} clay" for a in LETTERS[:9] for b in LETTERS[:3]]
    queries = [f"who {a}" for a in LETTERS[:12]]
    pools = [rng.choice(windows, n, replace=False).tolist() for n in (1, 27, 3, 0, 5, 5, 2, 9, 1, 1, 27, 4)]
    scores = rerankers.score(reranker, queries, pools)
    assert [len(s) for s in scores] == [len(p) for p in pools]
    for query, pool, found in zip(queries, pools, scores, strict=True):
        (alone,) = rerankers.score(reranker, [query], [pool])
        np.testing.assert_allclose(found, alone, atol=1e-6)


# ------------------------------------------------------------------------------------------------------ cross-encoders


def vocabulary():
    return ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *LETTERS, *(f"##{x}" for x in LETTERS)]


def tiny_judge(folder, labels=1):
    """A random BERT layer with a classifier over pairs: shaped like a MiniLM cross-encoder."""
    import torch
    from transformers import BertConfig, BertForSequenceClassification, BertTokenizerFast

    torch.manual_seed(0)
    words = vocabulary()
    shape = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
    sizes = {"max_position_embeddings": 64, "num_labels": labels, "initializer_range": 0.5}
    BertForSequenceClassification(BertConfig(vocab_size=len(words), **shape, **sizes)).save_pretrained(folder / "model")
    BertTokenizerFast(vocab={w: i for i, w in enumerate(words)}).save_pretrained(folder / "model")
    return folder / "model"


def tiny_labels(folder):
    return tiny_judge(folder, labels=3)


def said(role):
    return f"{{{{ messages | selectattr('role', 'eq', '{role}') | map(attribute='content') | first }}}}"


TEMPLATE = f"<Instruct>: {said('system')} <Query>: {said('query')} <Document>: {said('document')}<end>"
CHAT = "{%- for m in messages if m.role in ('user', 'assistant') -%}{{ m.content }}<end>{%- endfor -%}"


def tiny_yesno(folder, template=TEMPLATE):
    """A random decoder over bytes that says yes or no to a chat of query and document: shaped like Qwen3-Reranker."""
    import torch
    from sentence_transformers import CrossEncoder
    from tokenizers import Tokenizer, pre_tokenizers
    from tokenizers.models import BPE
    from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(0)
    alphabet = [*sorted(pre_tokenizers.ByteLevel.alphabet()), "<end>", "yes", "no"]
    letters = Tokenizer(BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    letters.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    kept = {"pad_token": "<end>", "eos_token": "<end>", "padding_side": "left", "chat_template": template}
    shape = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2}
    sizes = {"head_dim": 8, "intermediate_size": 64, "max_position_embeddings": 256, "initializer_range": 0.3}
    config = Qwen3Config(vocab_size=len(alphabet), tie_word_embeddings=True, **shape, **sizes)
    Qwen3ForCausalLM(config).save_pretrained(folder / "plain")
    PreTrainedTokenizerFast(tokenizer_object=letters, **kept).save_pretrained(folder / "plain")
    prompts = {"prompts": {"query": "judge it"}, "default_prompt_name": "query"}
    CrossEncoder(str(folder / "plain"), device="cpu", **prompts).save(str(folder / "model"))
    return folder / "model"


def tiny_chat(folder):
    """One whose template knows users and assistants only."""
    return tiny_yesno(folder, CHAT)


def cross_encoder(name="tiny/judge", dtype="float32", **more):
    config = {"kind": "cross-encoder", "model": name, "revision": REVISION, "max_length": 64, **more}
    return rerankers.Reranker(rerankers.RerankerConfig(**config), None, "cpu", dtype)


def theirs(shelf, name):
    from sentence_transformers import CrossEncoder

    folder = next(shelf.glob(f"models--{name.replace('/', '--')}/snapshots/*"))
    return CrossEncoder(str(folder), device="cpu")


QUERIES = ["who", "where is the bowl"]
WINDOWS = [["a clay bowl", "hello you", "x", "in the kiln"], ["hello you", "the bowl is on the wheel"]]
ALL = {"tiny/judge": {}, "tiny/yesno": {"max_length": 256}}


@pytest.mark.parametrize("name", ALL)
def test_cross_encoders_equal_sentence_transformers(hub, shelf, name):
    reranker = cross_encoder(name, **ALL[name])
    scores = rerankers.score(reranker, QUERIES, WINDOWS)
    for query, windows, found in zip(QUERIES, WINDOWS, scores, strict=True):
        assert found.dtype == np.float64
        expected = theirs(shelf, name).predict([(query, text) for text in windows])
        np.testing.assert_allclose(found, expected, atol=2e-6)
    assert rerankers.describe(reranker)["calls"] == 6 and rerankers.describe(reranker)["split_inputs"] == 0


def test_qwen_style_reads_instruction_question_and_window(hub, shelf):
    """By hand: the template's text through the bare decoder, log-odds of yes against no at the last position."""
    import torch

    model = theirs(shelf, "tiny/yesno")
    text = "<Instruct>: judge it <Query>: who <Document>: a clay bowl<end>"
    read = model.tokenizer(text, return_tensors="pt", add_special_tokens=False)["input_ids"]
    with torch.inference_mode():
        logits = model[0].model(read).logits[0, -1]
    expected = torch.sigmoid(logits[257] - logits[258]).item()
    ((found,),) = rerankers.score(cross_encoder("tiny/yesno", **ALL["tiny/yesno"]), ["who"], [["a clay bowl"]])
    assert found == pytest.approx(expected, abs=2e-6)
    other = cross_encoder("tiny/yesno", prompt="be strict", **ALL["tiny/yesno"])
    assert rerankers.score(other, ["who"], [["a clay bowl"]])[0][0] != pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("name", ALL)
def test_company_does_not_change_a_pairs_score(hub, name, monkeypatch):
    monkeypatch.setattr(rerankers, "_read_scores", lambda *arguments: {})
    windows = [f"{a} {b * 3}" for a in LETTERS for b in LETTERS[:4]]
    reranker = cross_encoder(name, **ALL[name])
    (together,) = rerankers.score(reranker, ["who"], [windows])
    alone = [rerankers.score(reranker, ["who"], [[text]])[0][0] for text in windows]
    np.testing.assert_allclose(together, alone, atol=1e-6)
    monkeypatch.setattr(rerankers, "BLOCK_PAIRS", 7)
    np.testing.assert_allclose(rerankers.score(reranker, ["who"], [windows])[0], together, atol=1e-6)


@pytest.mark.parametrize("name", ALL)
def test_bfloat16_scores_do_not_tie(hub, name):
    windows = [f"{a} {b}" for a in LETTERS[:16] for b in LETTERS[:16]]
    half, single = (
        rerankers.score(cross_encoder(name, dtype, **ALL[name]), ["who"], [windows])[0]
        for dtype in ("bfloat16", "float32")
    )
    assert len(set(half.tolist())) > 0.9 * len(set(single.tolist()))
    np.testing.assert_allclose(half, single, atol=0.2)


@pytest.fixture
def predicted(monkeypatch):
    """Pairs that went through a cross-encoder."""
    predict, seen = rerankers._logits, []
    monkeypatch.setattr(rerankers, "_logits", lambda reranker, pairs: seen.extend(pairs) or predict(reranker, pairs))
    return seen


def test_a_pair_is_scored_once(hub, predicted):
    first = rerankers.score(cross_encoder(), QUERIES, WINDOWS)
    again = cross_encoder()
    again.model = None  # nothing is left to score
    second = rerankers.score(again, QUERIES[::-1] * 2, [w[::-1] for w in WINDOWS[::-1]] * 2)
    for a, b in zip(first, second[1::-1], strict=True):
        np.testing.assert_array_equal(a, b[::-1])
    assert len(predicted) == 6 and again.calls == 0
    rerankers.score(cross_encoder(), ["who"], [["new", "a clay bowl", "new"]])
    assert predicted[6:] == [("who", "new")]


def test_what_decides_a_score_names_its_cache():
    base = cross_encoder()
    others = [
        cross_encoder("tiny/other"),
        cross_encoder(dtype="bfloat16"),
        cross_encoder(max_length=32),
        cross_encoder(prompt="judge"),
        cross_encoder(revision="f" * 40),
    ]
    assert len({r.key for r in [base, *others]}) == 6


def test_a_pair_past_the_limit_is_scored_in_pieces_and_counted(hub, shelf):
    text = "the bowl is on the wheel in the kiln and dry by now"
    reranker = cross_encoder(max_length=32)
    ((found, short),) = rerankers.score(reranker, ["who"], [[text, "clay"]])
    half = len(text) // 2
    pieces = theirs(shelf, "tiny/judge").predict([("who", text[:half]), ("who", text[half:])])
    assert found == pytest.approx(max(pieces), abs=2e-6)
    assert rerankers.describe(reranker)["split_inputs"] == 1 and reranker.calls == 3
    again = cross_encoder(max_length=32)
    again.model = None
    rerankers.score(again, ["who"], [[text, "clay"]])
    assert rerankers.describe(again)["split_inputs"] == 1  # when cached too


def test_the_limit_itself_is_not_split(hub):
    reranker = cross_encoder(max_length=16)
    rerankers.score(reranker, ["a"], [["b" * 12]])  # [CLS] a [SEP] b … [SEP]: 16
    assert not reranker.split
    rerankers.score(reranker, ["a"], [["b" * 13]])
    assert len(reranker.split) == 1


def test_a_question_that_fills_the_limit_is_refused(hub):
    line = refused(rerankers.score, cross_encoder(max_length=16), ["where " * 9], [["clay"]])
    assert "leaves no room" in line and "max_length 16" in line


def test_no_warning_of_long_texts(hub, caplog):
    with caplog.at_level(logging.WARNING):
        rerankers.score(cross_encoder(), ["who"], [["bowl " * 60]])
    assert not caplog.records


@pytest.mark.parametrize(
    "config, expected",
    [
        ({"max_length": 65}, "max_length 65"),
        ({"name": "tiny/labels"}, "3 labels"),
        ({"name": "tiny/none"}, "not fetched from the hub"),
        ({"name": "tiny/chat"}, "no model for pairs"),
    ],
)
def test_cross_encoders_that_cannot_be_used(hub, config, expected):
    reranker = cross_encoder(**config)
    line = refused(rerankers.score, reranker, ["who"], [["clay"]])
    assert line.startswith(f"{reranker.config.model}: ") and expected in line


def test_a_cross_encoders_weights_are_checked(shelf, tmp_path, monkeypatch):
    use(tmp_path, monkeypatch)
    publish(next(shelf.glob("models--tiny--judge/snapshots/*")), tmp_path, "tiny/judge")
    snapshot = tmp_path / "models--tiny--judge" / "snapshots" / REVISION
    (snapshot / "config.json").resolve().write_text('{"model_type": "be')
    assert "do not load" in refused(rerankers.score, cross_encoder(), ["who"], [["clay"]])
    flip((snapshot / "model.safetensors").resolve())
    assert "model.safetensors has sha256" in refused(rerankers.score, cross_encoder(), ["who"], [["clay"]])


def test_a_cross_encoder_that_gives_nan(hub, monkeypatch, cache):
    with monkeypatch.context() as patch:
        patch.setattr(rerankers, "BLOCK_PAIRS", 2)
        predict = rerankers._logits
        bad = [float("nan"), float("inf")]
        patch.setattr(rerankers, "_logits", lambda r, p: bad[: len(p)] if ("who", "c") in p else predict(r, p))
        line = refused(rerankers.score, cross_encoder(), ["who"], [["a", "b", "c", "d"]])
    assert line.startswith("tiny/judge: gave a score that is not finite")
    kept = rerankers._in_scores(cross_encoder(), lambda c: c.execute("SELECT count(*) FROM scores").fetchone())
    assert kept == (2,)  # the block before


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE scores SET score = 0.5",
        "UPDATE scores SET score = NULL",
        "UPDATE scores SET score = 'text'",
        "UPDATE scores SET pieces = 2",
        "UPDATE scores SET pieces = 'x'",
        "UPDATE scores SET crc = crc + 1",
        "UPDATE scores SET crc = NULL",
        "UPDATE scores SET key = zeroblob(32)",
        "DELETE FROM scores",
    ],
)
def test_a_changed_score_is_made_again(hub, cache, predicted, statement):
    (first,) = rerankers.score(cross_encoder(), ["who"], [["clay"]])
    change(cache / "scores" / f"{cross_encoder().key}.sqlite", statement)
    for _ in range(2):
        np.testing.assert_array_equal(rerankers.score(cross_encoder(), ["who"], [["clay"]])[0], first)
    assert len(predicted) == 2


# ----------------------------------------------------------------------------------------------------------- endpoints


def relevance(query, text):
    """What the server below answers for a pair."""
    return (len(query) * 31 + sum(map(ord, text))) % 97 / 97


def answer(body, order=-1):
    scored = [{"index": i, "relevance_score": relevance(body["query"], t)} for i, t in enumerate(body["documents"])]
    return {"id": "x", "results": scored[::order], "meta": {"billed_units": {"search_units": 1}}}


def honest(body):
    return 200, {}, answer(body)


def spoilt(spoil):
    """An honest reply after `spoil` has changed it in place."""

    def reply(body):
        made = answer(body)
        spoil(made)
        return 200, {}, made

    return reply


def fails(status, **headers):
    return lambda body: (status, {k.replace("_", "-"): v for k, v in headers.items()}, {"message": f"no: {KEY}"})


@pytest.fixture
def server(monkeypatch):
    """A rerank server. `server.replies`: functions body -> (status, headers, body), used up first to last."""
    with serving(honest) as instance:
        instance.waits = []
        monkeypatch.setenv("COHERE_API_KEY", KEY)
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        monkeypatch.setattr(time, "sleep", instance.waits.append)
        yield instance


def remote(server, **more):
    url = f"http://127.0.0.1:{server.server_port}/v2/rerank"
    config = {"kind": "endpoint", "model": "m", "url": url, "usd_per_search": 0.002} | more
    return rerankers.Reranker(rerankers.RerankerConfig(**config), None)


def expected(queries, windows):
    return [[relevance(q, t) for t in some] for q, some in zip(queries, windows, strict=True)]


def test_endpoint_scores_in_order_of_the_windows(server):
    reranker = remote(server)
    scores = rerankers.score(reranker, QUERIES, WINDOWS)
    assert [s.tolist() for s in scores] == expected(QUERIES, WINDOWS)
    assert server.asked[0] == {"model": "m", "query": "who", "documents": WINDOWS[0], "top_n": 4}
    assert server.keys == [f"Bearer {KEY}"] * 2
    about = rerankers.describe(reranker)
    assert (about["calls"], about["searches"], about["cost_usd"]) == (2, 2, 0.004)


def test_endpoint_is_paid_once(server, monkeypatch):
    rerankers.score(remote(server), QUERIES, WINDOWS)
    monkeypatch.delenv("COHERE_API_KEY")  # what is known needs no key
    again = remote(server)
    scores = rerankers.score(again, QUERIES, WINDOWS)
    assert [s.tolist() for s in scores] == expected(QUERIES, WINDOWS)
    assert len(server.asked) == 2 and rerankers.describe(again)["cost_usd"] == 0
    monkeypatch.setenv("COHERE_API_KEY", KEY)
    rerankers.score(remote(server), ["who"], [[*WINDOWS[0], "new"]])
    assert server.asked[2]["documents"] == ["new"]
    assert rerankers.describe(remote(server, usd_per_search=None))["cost_usd"] is None  # unknown is not nothing


def test_endpoint_bills_by_the_rule_where_it_states_nothing(server):
    server.replies = [spoilt(lambda a: a.pop("meta")), spoilt(lambda a: a.update(meta={"billed_units": None}))]
    reranker = remote(server)
    rerankers.score(reranker, ["who"], [[f"w {i}" for i in range(101)]])
    rerankers.score(reranker, ["you"], [["a"]])
    assert reranker.searches == 3


@pytest.mark.parametrize("billed", [float("nan"), float("inf"), -1, 10**400, "many", None, [1]])
def test_a_bill_that_is_none_is_counted_by_the_rule(server, billed):
    server.replies = [spoilt(lambda a: a.update(meta={"billed_units": {"search_units": billed}}))]
    reranker = remote(server)
    rerankers.score(reranker, ["who"], [["a"]])
    assert reranker.searches == 1


def test_endpoint_in_several_requests(server):
    windows = [f"w {i}" for i in range(5)]
    (scores,) = rerankers.score(remote(server, batch=2), ["who"], [windows])
    assert [len(body["documents"]) for body in server.asked] == [2, 2, 1]
    assert [scores.tolist()] == expected(["who"], [windows])


def test_endpoint_long_windows_in_pieces(server):
    text = "clay 🏺 bowl 陶器 " * 9
    reranker = remote(server, max_length=64)
    ((found, short),) = rerankers.score(reranker, ["who"], [[text, "a"]])
    sent = server.asked[0]["documents"]
    assert sent[0] == "a" and "".join(sent[1:]) == text and len(sent) == server.asked[0]["top_n"] == 3
    assert found == max(relevance("who", piece) for piece in sent[1:]) and len(reranker.split) == 1


BROKEN = [
    spoilt(lambda a: a["results"].pop()),
    spoilt(lambda a: a["results"].append(a["results"][0])),
    spoilt(lambda a: a["results"][0].update(index=a["results"][1]["index"])),
    spoilt(lambda a: a["results"][0].update(index=7)),
    spoilt(lambda a: a["results"][0].update(index=-1)),
    spoilt(lambda a: a["results"][0].update(index="0")),
    spoilt(lambda a: a["results"][0].update(relevance_score=float("nan"))),
    spoilt(lambda a: a["results"][0].update(relevance_score=float("inf"))),
    spoilt(lambda a: a["results"][0].update(relevance_score=10**400)),
    spoilt(lambda a: a["results"][0].update(relevance_score=None)),
    spoilt(lambda a: a["results"][0].update(relevance_score="0.5")),
    spoilt(lambda a: a["results"][0].pop("relevance_score")),
    spoilt(lambda a: a.update(results=[])),
    spoilt(lambda a: a.update(results=None)),
    spoilt(lambda a: a.update(results=[1, 2, 3, 4])),
    spoilt(lambda a: a.pop("results")),
    lambda body: (200, {}, [1, 2]),
    lambda body: (200, {}, None),
]


@pytest.mark.parametrize("reply", BROKEN)
def test_endpoint_answers_that_are_no_scores(server, reply):
    server.replies = [honest, reply]
    line = refused(rerankers.score, remote(server), ["you", "who"], [["a", "b"], WINDOWS[0]])
    assert line.startswith("m: ") and "was kept" in line and KEY not in line
    assert len(server.asked) == 2  # not asked again: it would answer, and bill, the same
    rerankers.score(remote(server), ["you", "who"], [["a", "b"], WINDOWS[0]])
    assert [body["query"] for body in server.asked[2:]] == ["who"]  # the first was kept, nothing of the second


PASSING = {
    "429": (fails(429), 0.5),
    "429 that says when": (fails(429, Retry_After="7"), 7),
    "429 that says never": (fails(429, Retry_After="86400"), 0.5),
    "429 that says nonsense": (fails(429, Retry_After="soon"), 0.5),
    "500": (fails(500), 0.5),
    "503": (fails(503, Retry_After="3"), 3),
    "half a JSON": (lambda body: (200, {}, json.dumps(answer(body)).encode()[:-20]), 0.5),
    "HTML": (lambda body: (200, {"Content-Type": "text/html"}, b"<h1>Welcome</h1>"), 0.5),
    "no text": (lambda body: (200, {}, b"\xff\xfe\x00"), 0.5),
    "brackets": (lambda body: (200, {}, b"[" * 100_000), 0.5),
    "hung up": (lambda body: (0, {}, b""), 0.5),
    "cut off": (lambda body: (200, {"Content-Length": 9000}, answer(body)), 0.5),
}


@pytest.mark.parametrize("reply, wait", PASSING.values(), ids=PASSING)
def test_endpoint_is_asked_again(server, reply, wait):
    server.replies = [reply]
    scores = rerankers.score(remote(server), QUERIES, WINDOWS)
    assert [s.tolist() for s in scores] == expected(QUERIES, WINDOWS)
    assert server.waits == [wait] and len(server.asked) == 3


def test_retry_after_may_be_a_date(server):
    server.replies = [fails(429, Retry_After=email.utils.formatdate(time.time() + 20, usegmt=True))]
    rerankers.score(remote(server), ["who"], [["a"]])
    assert 15 < server.waits[0] <= 20


@pytest.mark.parametrize("reply", [reply for reply, _ in PASSING.values()], ids=PASSING)
def test_endpoint_that_stays_down(server, reply, monkeypatch):
    monkeypatch.setattr(models, "RETRIES", 2)
    server.replies = [honest, reply, reply, reply]
    with pytest.raises(BadInput) as caught:
        rerankers.score(remote(server), ["you", "who"], [["a"], ["b"]])
    line = str(caught.value)
    assert line.startswith("m: the endpoint failed (") and "run again to go on" in line
    assert KEY not in line and "\n" not in line and caught.value.__suppress_context__
    assert len(server.asked) == 4 and len(server.waits) == 2
    rerankers.score(remote(server), ["you", "who"], [["a"], ["b"]])
    assert [body["query"] for body in server.asked[4:]] == ["who"]


def test_waits_double(server, monkeypatch):
    server.replies = [fails(500)] * 4
    rerankers.score(remote(server), ["who"], [["a"]])
    assert server.waits == [0.5, 1, 2, 4]


@pytest.mark.parametrize("status", [301, 400, 401, 403, 404, 422])
def test_endpoint_that_refuses_is_not_asked_again(server, status):
    server.replies = [fails(status)]
    line = refused(rerankers.score, remote(server), ["who"], [["a"]])
    assert f"HTTP {status}" in line and KEY not in line and len(server.asked) == 1


def test_endpoint_that_is_silent(server, monkeypatch):
    monkeypatch.setattr(models, "RETRIES", 1)
    monkeypatch.setattr(models, "TIMEOUT", 0.2)
    done = threading.Event()
    server.replies = [lambda body: done.wait(10) and honest(body)] * 2
    assert "ReadTimeout" in refused(rerankers.score, remote(server), ["who"], [["a"]])
    done.set()
    assert len(server.asked) == 2


def test_endpoint_that_is_not_there(server, monkeypatch):
    monkeypatch.setattr(models, "RETRIES", 1)
    assert "ConnectError" in refused(rerankers.score, remote(server, url="http://127.0.0.1:9/"), ["who"], [["a"]])
    assert server.waits == [0.5]


@pytest.mark.parametrize(
    "key, expected", [(None, "not set"), ("  ", "not set"), ("schlüssel", "no key"), ("a\nb", "no key")]
)
def test_endpoint_without_a_usable_key(server, monkeypatch, key, expected):
    monkeypatch.delenv("COHERE_API_KEY")
    if key is not None:
        monkeypatch.setenv("COHERE_API_KEY", key)
    line = refused(rerankers.score, remote(server), ["who"], [["a"]])
    assert f"COHERE_API_KEY {'is' if key is None or not key.strip() else 'holds'}" in line and expected in line
    assert server.asked == [] and (not key or not key.strip() or key not in line)


def test_another_variable_may_hold_the_key(server, monkeypatch):
    monkeypatch.setenv("OTHER_KEY", " other \n")
    rerankers.score(remote(server, key_variable="OTHER_KEY"), ["who"], [["a"]])
    assert server.keys == ["Bearer other"]


# ------------------------------------------------------------------------------------------------------------ profiles


@pytest.mark.parametrize(
    "block, message",
    [
        ({"kind": "none"}, "reranker.kind"),
        ({}, "reranker.kind: Field required"),
        ("maxsim", "reranker: "),
        ({"kind": "maxsim", "depth": 3}, "reranker.depth"),
        ({"kind": "cross-encoder", "model": "m"}, "reranker: a reranker of kind cross-encoder needs revision"),
        ({"kind": "cross-encoder", "model": "m", "revision": "main"}, "reranker.revision"),
        ({"kind": "endpoint", "model": "m"}, "needs url"),
        ({"kind": "endpoint"}, "needs model and url"),
        ({"kind": "endpoint", "model": "m", "url": "ftp://x"}, "reranker.url"),
    ],
)
def test_a_bad_block_is_named(tmp_path, monkeypatch, block, message):
    monkeypatch.setattr(paths, "ROOT", tmp_path)
    embedder = {"kind": "endpoint", "model": "m", "max_length": 8}
    write_profile(tmp_path, "mine", {"embedder": embedder, "reranker": block})
    line = refused(rerankers.load_reranker, "mine")
    assert line.startswith("PROFILE=mine: ") and message in line


def test_a_profile_without_a_reranker(tmp_path, monkeypatch):
    monkeypatch.setattr(paths, "ROOT", tmp_path)
    write_profile(tmp_path, "mine", {"embedder": {"kind": "endpoint", "model": "m", "max_length": 8}})
    assert "has no reranker" in refused(rerankers.load_reranker, "mine")


ENDPOINT = {"kind": "endpoint", "model": "m", "max_length": 8}
OWN = {"kind": "sentence-transformers", "model": "tiny/bert", "revision": REVISION, "max_length": 64}


def test_late_interaction_takes_the_encoder_that_is_named(tmp_path, monkeypatch, hub):
    monkeypatch.setattr(paths, "ROOT", tmp_path)
    write_profile(tmp_path, "own", {"embedder": OWN, "reranker": {"kind": "maxsim"}})
    write_profile(tmp_path, "far", {"embedder": ENDPOINT, "reranker": {"kind": "maxsim", "encoder": "own"}})
    for name in ("own", "far"):
        reranker = rerankers.load_reranker(name)
        assert reranker.embedder.config == rerankers.load_encoder(name).config == models.profile("own").embedder
        assert rerankers.describe(reranker)["model"] == "tiny/bert"
        assert rerankers.score(reranker, ["clay"], [["a clay bowl", "kiln"]])[0].shape == (2,)


@pytest.mark.parametrize("kind", ["maxsim", "endpoint"])
@pytest.mark.parametrize(
    "encoder, message",
    [
        ({}, "m gives no token vectors; name a profile whose embedder does"),
        ({"encoder": "far"}, "m gives no token vectors"),
        ({"encoder": "nosuch"}, "reranker.encoder: nosuch: no such profile; there are far, own"),
        ({"encoder": "../params/own"}, "no such profile"),
        ({"encoder": 7}, "reranker.encoder: Input should be a valid string"),
    ],
)
def test_an_encoder_without_token_vectors_is_one_line(tmp_path, monkeypatch, kind, encoder, message):
    monkeypatch.setattr(paths, "ROOT", tmp_path)
    block = {"kind": kind, "model": "m", "url": "http://x"} | encoder
    write_profile(tmp_path, "far", {"embedder": ENDPOINT, "reranker": block})
    write_profile(tmp_path, "own", {"embedder": OWN})
    line = refused(rerankers.load_encoder, "far")
    assert line.startswith("PROFILE=far: ") and message in line
    if kind == "maxsim":
        assert refused(rerankers.load_reranker, "far") == line


def test_encoders_of_the_profiles_that_come_along():
    named = {"local": "local", "small": "local", "e5": "e5", "multilingual": "e5", "qwen3": "qwen3"}
    for name, encoder in (named | {"textemb3": "local"}).items():
        assert rerankers.load_encoder(name).config == models.profile(encoder).embedder


def test_rerankers_of_the_profiles_that_come_along(monkeypatch):
    kinds = {"local": "maxsim", "multilingual": "maxsim", "qwen3": "cross-encoder", "textemb3": "endpoint"}
    for name, kind in kinds.items():
        about = rerankers.describe(rerankers.load_reranker(name))
        assert about["kind"] == kind and about["model"] and about["role"] == "reranker"


# ------------------------------------------------------------------------------------------------- retrieval.rerank


def talk(name, *texts):
    turns = (Turn(f"D1:{i}", 1, None, f"2024-03-{i:02}", "Nora", text) for i, text in enumerate(texts, 1))
    return Conversation(name, name, "Nora", "Tobias", tuple(turns))


def ask(*pairs):
    """Questions from (conversation, text) pairs."""
    return [Question(f"{name}#{i}", name, text, None, "temporal", (), ()) for i, (name, text) in enumerate(pairs)]


TALKS = talk("one", "kiln", "glaze", "clay", "a clay bowl", "wheel"), talk("two", "trail", "map", "a kiln on the trail")
QUESTIONS = ask(("two", "map"), ("one", "clay bowl"), ("two", "trail kiln"), ("one", "kiln"))


def turn_index(*talks):
    return index.build(talks, chunking.turn_windows, dates=False)


def ranking(built, questions, similarity=True):
    """A first stage that likes the first windows best."""
    made = retrieval.rank_by(
        built, questions, lambda part, rows: -np.tile(np.arange(len(part["chunks"])), (len(rows), 1))
    )
    return made.assign(similarity=made["score"]) if similarity else made


class Judge:
    """A backend by the dictionary {window text: score}; notes what it was asked."""

    def __init__(self, monkeypatch, scores=None):
        self.scores, self.asked = scores, []
        monkeypatch.setattr(rerankers, "score", self)

    def __call__(self, reranker, queries, documents):
        self.asked += zip(queries, documents, strict=True)
        return [np.array([self.scores(text) for text in some], np.float64) for some in documents]


def order(table, query_id):
    return retrieval.positions(table.loc[table["query_id"] == query_id, "doc_id"]).tolist()


def test_the_whole_pool_is_reranked_before_the_cut(monkeypatch):
    """The evidence is last in the pool: cut first, and no reranker finds it."""
    built, (question,) = turn_index(TALKS[0]), ask(("one", "wheel"))
    judge = Judge(monkeypatch, lambda text: float("wheel" in text))
    first = ranking(built, [question])
    right = retrieval.rerank(built, [question], first, None, pool=5, top=2)
    assert order(right, "one#0") == [4, 0] and len(judge.asked[0][1]) == 5
    cut = first[first["rank"] <= 2]
    wrong = retrieval.rerank(built, [question], cut, None, pool=5, top=2)
    assert set(order(wrong, "one#0")) == set(order(cut, "one#0")) == {0, 1}  # a set measure cannot move
    assert order(retrieval.rerank(built, [question], first, None, pool=4, top=2), "one#0") == [0, 1]


def test_rerank_keeps_questions_in_order_and_adds_its_score(monkeypatch):
    built = turn_index(*TALKS)
    Judge(monkeypatch, lambda text: len(text) / 100)
    first = ranking(built, QUESTIONS)
    table = retrieval.rerank(built, QUESTIONS, first, None)
    assert list(table) == ["query_id", "doc_id", "rank", "score", "similarity", "rerank"]
    assert list(dict.fromkeys(table["query_id"])) == [q.question_id for q in QUESTIONS]
    assert table["rank"].tolist() == [1, 2, 3, 1, 2, 3, 4, 5] * 2
    assert table["rerank"].tolist() == table["score"].tolist()
    kept = table.merge(first, on=["query_id", "doc_id"])
    assert len(kept) == len(first) and (kept["similarity_x"] == kept["similarity_y"]).all()
    shuffled = first.sample(frac=1, random_state=0)
    interleaved = first.sort_values(["rank", "query_id"], ascending=[True, False])
    for other in (shuffled, interleaved):
        again = retrieval.rerank(built, QUESTIONS, other, None)
        names = list(dict.fromkeys(other["query_id"]))  # the order in which questions first appear
        assert list(dict.fromkeys(again["query_id"])) == names
        expected = pd.concat([table[table["query_id"] == name] for name in names], ignore_index=True)
        pd.testing.assert_frame_equal(again, expected)
    assert "similarity" not in retrieval.rerank(built, QUESTIONS, ranking(built, QUESTIONS, False), None)


def test_ties_of_a_reranker_are_broken_by_chunk_index(monkeypatch):
    built = turn_index(*TALKS)
    Judge(monkeypatch, lambda text: 0.5)
    first = ranking(built, QUESTIONS)
    first["score"] = -first["score"]
    table = retrieval.rerank(built, QUESTIONS, retrieval._sorted(first), None)
    assert order(table, "one#1") == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    "pool, top, kept", [(2, 5, [2, 2]), (99, 2, [2, 2]), (None, None, [3, 5]), (None, 99, [3, 5]), (4, 4, [3, 4])]
)
def test_pools_smaller_and_larger_than_the_cut(monkeypatch, pool, top, kept):
    built = turn_index(*TALKS)
    judge = Judge(monkeypatch, lambda text: len(text))
    table = retrieval.rerank(built, QUESTIONS[:2], ranking(built, QUESTIONS[:2]), None, pool, top)
    assert table.groupby("query_id", sort=False).size().tolist() == kept
    assert sorted(len(some) for _, some in judge.asked) == [min(pool or 99, 3), min(pool or 99, 5)]


def test_questions_of_a_conversation_reach_the_reranker_side_by_side(monkeypatch):
    built = turn_index(*TALKS)
    judge = Judge(monkeypatch, lambda text: len(text))
    retrieval.rerank(built, QUESTIONS, ranking(built, QUESTIONS), None)
    assert [query for query, _ in judge.asked] == ["clay bowl", "kiln", "map", "trail kiln"]


def test_nothing_to_rerank(monkeypatch):
    built = turn_index(*TALKS)
    Judge(monkeypatch, lambda text: 1 / 0)
    first = ranking(built, QUESTIONS)
    for empty in (first[:0], first[first["rank"] > 99]):
        table = retrieval.rerank(built, QUESTIONS, empty, None)
        assert len(table) == 0 and list(table)[:4] == ["query_id", "doc_id", "rank", "score"] and "rerank" in table


@pytest.mark.parametrize(
    "spoil",
    [
        lambda s: s[:-1],
        lambda s: np.append(s, 1),
        lambda s: np.where(np.arange(len(s)) == 1, np.nan, s),
        lambda s: np.where(np.arange(len(s)) == 0, np.inf, s),
        lambda s: s[:, None],
        lambda s: s[:0],
    ],
)
def test_a_reranker_that_gives_no_scores_is_refused(monkeypatch, spoil):
    built = turn_index(*TALKS)
    first = ranking(built, QUESTIONS)
    before = first.copy()

    def score(reranker, queries, documents):
        found = [np.arange(len(some), dtype=float) for some in documents]
        return [*found[:-1], spoil(found[-1])]

    monkeypatch.setattr(rerankers, "score", score)
    line = refused(retrieval.rerank, built, QUESTIONS, first, None)
    assert line.startswith("two#2: the reranker gave") and "nothing was kept" in line
    pd.testing.assert_frame_equal(first, before)


def test_a_ranking_of_something_else_is_refused(monkeypatch):
    built = turn_index(*TALKS)
    Judge(monkeypatch, lambda text: 0.5)
    first = ranking(built, QUESTIONS)
    assert refused(retrieval.rerank, built, QUESTIONS[:2], first, None).startswith("two#2: ")
    assert refused(retrieval.rerank, turn_index(TALKS[0]), QUESTIONS, first, None).startswith("two_chunk_0: ")


def test_an_all_stop_word_question_is_reranked(embedder):
    built, questions = turn_index(*TALKS), ask(("one", "what was it that they did"), ("one", ""))
    first = retrieval.bm25(built, questions)
    assert not first["score"].any()
    table = retrieval.rerank(built, questions, first, maxsim_reranker(embedder), pool=3, top=2)
    assert table["rank"].tolist() == [1, 2, 1, 2] and np.isfinite(table["rerank"]).all()


def test_rerank_by_maxsim_over_all_windows_is_the_ranking_by_maxsim(embedder):
    built = turn_index(*TALKS)
    table = retrieval.rerank(built, QUESTIONS, ranking(built, QUESTIONS), maxsim_reranker(embedder))
    direct = retrieval.maxsim(built, QUESTIONS, embedder)
    pd.testing.assert_frame_equal(table[list(direct)], direct)
    windows = {c["chunk_id"]: c["content"] for part in built.values() for c in part["chunks"]}
    for row in direct.itertuples():
        query, document = (
            rerankers.token_vectors(embedder, [text], kind)
            for text, kind in (
                ({q.question_id: q.text for q in QUESTIONS}[row.query_id], "query"),
                (windows[row.doc_id], "document"),
            )
        )
        assert row.score == pytest.approx(plain_loop(query, document)[0, 0], abs=2e-6)


def test_maxsim_dates_leave_the_scores_alone(embedder):
    built = turn_index(*TALKS)
    whole = retrieval.maxsim(built, QUESTIONS, embedder, rare=True)
    dates = {"one#1": ("2024-03-02", "2024-03-04"), "two#2": ("2025-01-01", None)}
    some = retrieval.maxsim(built, QUESTIONS, embedder, rare=True, dates=dates)
    assert sorted(order(some, "one#1")) == [1, 2, 3] and order(some, "two#2") == []
    assert order(some, "two#0") == order(whole, "two#0")
    both = some.merge(whole, on=["query_id", "doc_id"])
    assert len(both) == len(some) and (both["score_x"] == both["score_y"]).all()


def test_rare_weighs_the_questions_words(embedder):
    built = turn_index(*TALKS)
    table = retrieval.maxsim(built, QUESTIONS[1:2], embedder, rare=True)
    (query,) = rerankers.token_vectors(embedder, ["clay bowl"], "query")
    part = built["one"]
    lines = rerankers.token_vectors(embedder, part["turn_context"]["turn_lines"])
    documents = rerankers.token_vectors(embedder, [c["content"] for c in part["chunks"]])
    expected = plain_loop([query], documents, rerankers.rarity(lines, [query]))[0]
    assert table["score"].to_numpy() == pytest.approx(expected[order(table, "one#1")], abs=2e-6)


def test_multisize_is_the_sum_of_its_parts(embedder):
    centred = [index.build(TALKS, lambda d, n=n: chunking.turn_windows(d, n, n), dates=False) for n in (0, 1)]
    base = index.build(TALKS)
    table = retrieval.multisize(base, centred, QUESTIONS, embedder)
    assert table.groupby("query_id", sort=False).size().tolist() == [3, 5, 3, 5]
    z = collections.defaultdict(float)
    for built in [*centred, base]:
        part = retrieval.maxsim(built, QUESTIONS, embedder, rare=True)
        part = retrieval.by_turn(base, part) if built is base else part
        for name, rows in part.groupby("query_id"):
            spread = rows["score"].std(ddof=0)
            for doc, value in zip(rows["doc_id"], rows["score"], strict=True):
                z[name, doc] += (value - rows["score"].mean()) / spread if spread > 1e-12 else 0
    expected = [z[row.query_id, row.doc_id] for row in table.itertuples()]
    assert table["score"].to_numpy() == pytest.approx(expected, abs=1e-9)
