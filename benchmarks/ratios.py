"""Each piece beside its plain baseline, in turns within one run: what a library alone, or a bare loop, would take."""

import contextlib
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

from benchmarks.measure import in_turns, ratio
from rawrag_utils import (
    answering,
    chunking,
    corpus,
    generation,
    index,
    llm,
    models,
    paths,
    queries,
    rerankers,
    retrieval,
    weights,
)

REPEATS = 5
WINDOWS = 192  # windows embedded a repeat
PROMPTS, ALONE, TOKENS = 32, 3, 48  # prompts in one batch, prompts one by one, tokens written for each
ASKED, POOL, PAIRS = 100, 50, 256  # questions and windows each that are reranked; pairs for the cross-encoder
TOP = 15  # windows of a context


def measured(loaded):
    """The rows of all pieces on a corpus."""
    base, embedder = vectors_of(loaded), models.load_embedder("local")
    yield chunk(loaded.conversations)
    yield embed(embedder, index.contents(base))
    yield words(base, loaded.questions)
    yield from rerank(loaded)
    yield context(base, loaded.questions)
    yield from files(base)
    yield generate(loaded)
    yield runner()


def vectors_of(loaded):
    """The index of a corpus with the vectors of profile `local`, from the cache where they are known."""
    base = index.build(loaded.conversations)
    return index.with_vectors(base, models.embed(models.load_embedder("local"), index.contents(base)))


def chunk(conversations):
    encode = chunking.encoding().encode_ordinary
    documents = [chunking.document(c) for c in conversations]
    texts = [d.header + "\n".join(d.lines) for d in documents]
    taken = in_turns(
        REPEATS,
        ours=lambda: [chunking.cut(chunking.document(c)) for c in conversations],
        theirs=lambda: [encode(text) for text in texts],
    )
    return ratio("tokenise, cut and map turns", "tiktoken: encode the same text", taken, "at most 1.5")


def embed(embedder, texts):
    from sentence_transformers import SentenceTransformer

    plain = SentenceTransformer(weights.encoder_folder(embedder.config), device=embedder.device)
    some = texts[:: max(1, len(texts) // WINDOWS)][:WINDOWS]  # spread over all conversations
    models.embed(embedder, some[:1], cache=False)  # loaded before the timing
    taken = in_turns(
        3,
        ours=lambda: models.embed(embedder, some, cache=False),
        theirs=lambda: plain.encode(some, show_progress_bar=False),
    )
    what = f"embed {len(some)} windows, {embedder.dtype}"
    bound = "below 1; at most 0.4 where the CPU has AMX. Theirs cuts windows at 256 word pieces"
    return ratio(what, "sentence-transformers with its defaults (float32)", taken, bound)


def words(base, questions):
    import bm25s
    import Stemmer

    contents = {name: [c["content"] for c in part["chunks"]] for name, part in base.items()}
    asked = {name: [q.text for q in questions if q.conversation_id == name] for name in base}
    told = {"stopwords": "en", "stemmer": Stemmer.Stemmer("english"), "show_progress": False}

    def theirs():
        for name, texts in contents.items():
            retriever = bm25s.BM25(method="lucene", k1=1.5, b=0.75)
            retriever.index(bm25s.tokenize(texts, **told), show_progress=False)
            if asked[name]:
                tokens = bm25s.tokenize(asked[name], **told)
                retriever.retrieve(tokens, k=len(texts), show_progress=False)

    taken = in_turns(REPEATS, ours=lambda: retrieval.bm25(base, questions), theirs=theirs)
    return ratio(f"BM25: index and rank for {len(questions)} questions", "bm25s alone: the same", taken)


def rerank(loaded):
    """Questions of one conversation with the first POOL windows each; token vectors are stored, as in a second run."""
    conversation = loaded.conversations[0]
    windows = index.contents(index.build([conversation]))[:POOL]
    asked = [q.text for q in loaded.questions if q.conversation_id == conversation.conversation_id][:ASKED]
    pools = [windows] * len(asked)
    reranker = rerankers.Reranker(rerankers.RerankerConfig(kind="maxsim"), models.load_embedder("local"))
    stored = [rerankers.token_vectors(reranker.embedder, *texts) for texts in ((asked, "query"), (windows,))]
    unpacked = [[t.codes * t.scales[:, None] for t in texts] for texts in stored]
    taken = in_turns(
        REPEATS,
        ours=lambda: rerankers.score(reranker, asked, pools),
        theirs=lambda: [[(q @ d.T).max(1).mean() for d in unpacked[1]] for q in unpacked[0]],
    )
    what = f"rerank {len(asked)} × {len(windows)} by MaxSim, vectors from the cache"
    yield ratio(what, "loop over pairs, vectors in memory", taken, "at most 0.5")
    some = max(1, PAIRS // len(windows))
    model = _cross_encoder(reranker.embedder)
    pairs = [(query, window) for query in asked[:some] for window in windows]
    taken = in_turns(
        3,
        ours=lambda: rerankers.score(reranker, asked[:some], pools[:some]),
        theirs=lambda: model.predict(pairs, show_progress_bar=False),
    )
    what = f"rerank {len(pairs)} pairs by MaxSim, vectors from the cache"
    yield ratio(what, "CrossEncoder of the embedder's size, random weights", taken, "at most 0.02")


def _cross_encoder(embedder):
    """sentence-transformers' CrossEncoder over a BERT with random weights, of the embedder's shape and vocabulary."""
    from sentence_transformers import CrossEncoder
    from transformers import BertConfig, BertForSequenceClassification

    with tempfile.TemporaryDirectory() as folder:
        shape = embedder.model[0].model.config
        names = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
        config = BertConfig(**{name: getattr(shape, name) for name in names}, num_labels=1)
        BertForSequenceClassification(config).save_pretrained(folder)
        embedder.model.tokenizer.save_pretrained(folder)
        return CrossEncoder(folder, device=embedder.device)


def rankings(base, questions, top=TOP):
    """Each question's own ranking of its first `top` windows by BM25, a list of tables."""
    ranking = retrieval.bm25(base, questions, top)
    return [group for _, group in ranking.groupby("query_id", sort=False)]


def context(base, questions):
    ranked = rankings(base, questions)
    found = {c["chunk_id"]: (name, c) for name, part in base.items() for c in part["chunks"]}

    def joined(ranking):  # each window's turns, whole, once, in the ranking's order
        seen, lines = set(), []
        for doc_id in ranking["doc_id"]:
            name, c = found[doc_id]
            new = [t for t in range(c["start_turn"], c["end_turn"] + 1) if t not in seen]
            seen.update(new)
            lines += [base[name]["turn_context"]["turn_lines"][t] for t in new]
        return "\n".join(lines)

    taken = in_turns(
        REPEATS,
        ours=lambda: [answering.format_context(base, r) for r in ranked],
        theirs=lambda: [joined(r) for r in ranked],
    )
    return ratio(f"context of {TOP} windows for {len(ranked)} questions", "loop that joins the same turns", taken)


def files(base):
    import orjson

    with tempfile.TemporaryDirectory() as folder:
        ours, theirs = pathlib.Path(folder, "ours.json"), pathlib.Path(folder, "theirs.json")
        plain = {name: {**part, "embeddings": list(part["embeddings"])} for name, part in base.items()}

        def dump():
            theirs.write_bytes(orjson.dumps(plain, option=orjson.OPT_SERIALIZE_NUMPY))

        taken = in_turns(REPEATS, ours=lambda: index.save(base, ours), theirs=dump)
        size = f"{ours.stat().st_size / 1e6:.0f} MB"
        yield ratio(f"write the index, validated, as JSON ({size})", "orjson.dumps and write", taken)
        taken = in_turns(REPEATS, ours=lambda: index.load(ours), theirs=lambda: orjson.loads(theirs.read_bytes()))
        yield ratio(f"read and validate it ({size})", "read and orjson.loads", taken)


def generate(loaded):
    """Tokens of the small chat model: a batch, against the same prompts one by one; no cache in between."""
    chat = llm.load_chat("small")
    model, tokenizer = chat.loaded
    asked = corpus.select(loaded.questions)[:PROMPTS]
    (_, request), *_ = queries.requests(loaded, asked, "multi_query").values()
    prompts = generation.tokens(tokenizer, request.prompts)

    def seconds_a_token(batches):
        answers = []

        def work():
            answers.extend(generation.generate(model, tokenizer, batch, 1, TOKENS, 0.0, 0) for batch in batches)

        (seconds,) = in_turns(1, work=work)["work"]
        return [seconds / sum(t.completion_tokens for some in answers for row in some for t in row)]

    taken = {"theirs": seconds_a_token([[p] for p in prompts[:ALONE]]), "ours": seconds_a_token([prompts])}
    name = chat.config.model.partition("-Instruct")[0]
    return ratio(f"a token of {name}, {len(prompts)} prompts at once", "prompts one by one", taken, "at most 0.125")


def runner():
    """01 on the sample by the project's runner and by papermill alone, each a process of its own."""
    with elsewhere() as folder:
        notebook = paths.ROOT / "notebooks" / "01_chunking.ipynb"
        bare = ["papermill", str(notebook), f"{folder}/out.ipynb", "--no-progress-bar", "-p", "DATASET", "sample"]
        taken = in_turns(
            3,
            ours=lambda: _python("rawrag_utils.run", "01_chunking", "-p", "DATASET", "sample", FORCE="1"),
            theirs=lambda: _python(*bare),
        )
    return ratio("run 01_chunking on the sample", "papermill alone", taken)


def results():
    """`make results` on the sample: with no vector or score cached, with all caches, with everything finished.

    What the language model answered stays in the cache: it takes many times all that is measured here, see `generate`.
    """

    def plan():
        return in_turns(1, plan=lambda: _python("rawrag_utils.run", "--plan", "sample"))["plan"]

    with elsewhere("llm") as folder:
        cold = plan()
        os.rename(f"{folder}/runs", f"{folder}/before")
        os.rename(f"{folder}/results", f"{folder}/published")
        warm = plan()
        again = plan()
    yield ratio("make results of the sample, caches full", "no vectors cached", {"ours": warm, "theirs": cold})
    yield ratio("make results of the sample, all finished", "caches full", {"ours": again, "theirs": warm})


@contextlib.contextmanager
def elsewhere(*kept):
    """Runs, results and caches in a new folder as long as the block lasts, with weights and a copy of caches `kept`."""
    before = dict(os.environ)
    with tempfile.TemporaryDirectory() as folder:
        pathlib.Path(folder, "cache").mkdir()
        pathlib.Path(folder, "cache", "weights").symlink_to(paths.cache_root() / "weights")
        for name in kept:
            shutil.copytree(paths.cache_root() / name, pathlib.Path(folder, "cache", name))
        names = {"RAWRAG_CACHE": "cache", "RAWRAG_RUNS": "runs", "RAWRAG_RESULTS": "results"}
        os.environ.update({name: f"{folder}/{part}" for name, part in names.items()})
        try:
            yield folder
        finally:
            os.environ.clear()
            os.environ.update(before)


def _python(module, *arguments, **environment):
    command = [sys.executable, "-m", module, *arguments]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True}
    done = subprocess.run(command, cwd=paths.ROOT, env={**os.environ, **environment}, **quiet)
    if done.returncode:
        raise paths.BadInput(f"python -m {' '.join(command[2:])}: {done.stderr.strip().splitlines()[-1]}")
