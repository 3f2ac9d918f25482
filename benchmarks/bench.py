"""Speed and memory as ratios within one run: `make bench`, or with ARGS="--notebooks" also 01 and 02 from cold.

Machines differ and are noisy, so nothing here is a timed test: each piece is measured beside its plain baseline, in
turns, and the medians are compared.
"""

import argparse
import os
import pathlib
import resource
import statistics
import subprocess
import sys
import tempfile
import time

from rawrag_utils import chunking, corpus, generation, index, llm, models, paths, queries, rerankers, weights

REPEATS = 5
WINDOWS = 192  # windows embedded a repeat
PROMPTS, ALONE, TOKENS = 32, 3, 48  # prompts in one batch, prompts one by one, tokens written for each
ASKED, POOL, PAIRS = 100, 50, 256  # questions and windows each that are reranked; pairs for the cross-encoder


def medians(repeats, **pieces):
    """Median seconds of each piece (a function of no arguments), run in turns so that noise hits all alike."""
    seconds = {name: [] for name in pieces}
    for _ in range(repeats):
        for name, piece in pieces.items():
            started = time.perf_counter()
            piece()
            seconds[name].append(time.perf_counter() - started)
    return {name: statistics.median(taken) for name, taken in seconds.items()}


def report(what, ours, baseline, wanted):
    print(f"{what:<58} {ours:8.3f} s  {baseline:8.3f} s  ×{ours / baseline:<6.2g} ({wanted})", flush=True)


def bench_chunking(conversations):
    encode = chunking.encoding().encode_ordinary
    documents = [chunking.document(c) for c in conversations]
    texts = [d.header + "\n".join(d.lines) for d in documents]
    taken = medians(
        REPEATS,
        ours=lambda: [chunking.cut(chunking.document(c)) for c in conversations],
        bare=lambda: [encode(text) for text in texts],
    )
    report("tokenise, cut and map / bare encode of the same text", taken["ours"], taken["bare"], "at most 1.5")


def bench_embedding(conversations):
    from sentence_transformers import SentenceTransformer

    embedder = models.load_embedder("local")
    plain = SentenceTransformer(weights.encoder_folder(embedder.config), device=embedder.device)
    texts = index.contents(index.build(conversations))
    texts = texts[:: max(1, len(texts) // WINDOWS)][:WINDOWS]  # spread over all conversations

    def ours():
        with tempfile.TemporaryDirectory() as cold:
            os.environ["RAWRAG_CACHE"] = cold
            models.embed(embedder, texts)

    before = os.environ.get("RAWRAG_CACHE")
    assert embedder.model is not None  # loaded from the warm cache, before the timing
    taken = medians(3, ours=ours, theirs=lambda: plain.encode(texts, show_progress_bar=False))
    os.environ.pop("RAWRAG_CACHE")
    if before is not None:
        os.environ["RAWRAG_CACHE"] = before
    wanted = "at most 0.4 where the CPU has AMX, never above 1; theirs cuts windows at 256 word pieces"
    report(
        f"embed {len(texts)} windows, {embedder.dtype} / sentence-transformers", taken["ours"], taken["theirs"], wanted
    )


def bench_reranking(loaded):
    """Questions of one conversation with the first POOL windows each; token vectors are stored, as in a second run."""
    conversation = loaded.conversations[0]
    windows = index.contents(index.build([conversation]))[:POOL]
    asked = [q.text for q in loaded.questions if q.conversation_id == conversation.conversation_id][:ASKED]
    pools = [windows] * len(asked)
    reranker = rerankers.Reranker(rerankers.RerankerConfig(kind="maxsim"), models.load_embedder("local"))
    queries = rerankers.token_vectors(reranker.embedder, asked, "query")
    documents = rerankers.token_vectors(reranker.embedder, windows)
    unpacked = [[t.codes * t.scales[:, None] for t in texts] for texts in (queries, documents)]
    taken = medians(
        REPEATS,
        ours=lambda: rerankers.score(reranker, asked, pools),
        loop=lambda: [[(q @ d.T).max(1).mean() for d in unpacked[1]] for q in unpacked[0]],
    )
    what = f"rerank {len(asked)} × {len(windows)}: MaxSim / plain loop over pairs"
    report(what, taken["ours"], taken["loop"], "at most 0.5, though ours reads its vectors from the cache")
    some = max(1, PAIRS // len(windows))
    model = _cross_encoder(reranker.embedder)
    pairs = [(query, window) for query in asked[:some] for window in windows]
    taken = medians(
        3,
        ours=lambda: rerankers.score(reranker, asked[:some], pools[:some]),
        theirs=lambda: model.predict(pairs, show_progress_bar=False),
    )
    what = f"rerank {len(pairs)} pairs: MaxSim / CrossEncoder of the same size"
    report(what, taken["ours"], taken["theirs"], "at most 0.02; theirs with random weights, MiniLM-L6's shape")


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


def bench_generation(loaded):
    """Tokens a second of the small chat model: a batch, against the same prompts one by one; no cache in between."""
    chat = llm.load_chat("small")
    model, tokenizer = chat.loaded
    asked = corpus.select(loaded.questions)[:PROMPTS]
    (_, request), *_ = queries.requests(loaded, asked, "multi_query").values()
    prompts = generation.tokens(tokenizer, request.prompts)

    def seconds_a_token(batches):
        started = time.perf_counter()
        answers = [generation.generate(model, tokenizer, batch, 1, TOKENS, 0.0, 0) for batch in batches]
        return (time.perf_counter() - started) / sum(
            t.completion_tokens for some in answers for row in some for t in row
        )

    alone, together = seconds_a_token([[p] for p in prompts[:ALONE]]), seconds_a_token([prompts])
    what = f"a token of {chat.config.model.partition('-Instruct')[0]}: {len(prompts)} at once / one by one"
    report(what, together, alone, "at most 0.125")


def bench_notebooks(dataset):
    """01 and 02 with no vector cached and results elsewhere; weights stay."""
    with tempfile.TemporaryDirectory() as cold:
        pathlib.Path(cold, "weights").symlink_to(paths.cache_root() / "weights")
        environment = {
            **os.environ,
            "RAWRAG_CACHE": cold,
            "RAWRAG_RUNS": f"{cold}/runs",
            "RAWRAG_RESULTS": f"{cold}/out",
        }
        started = time.perf_counter()
        for notebook in ("01_chunking", "02_embedding"):
            command = [sys.executable, "-m", "rawrag_utils.run", notebook, "-p", "DATASET", dataset]
            subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)
        seconds = time.perf_counter() - started
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    print(f"01 and 02 on {dataset}, cold: {seconds:.0f} s, largest process {peak / 1e9:.1f} GB (LoCoMo: 240 s, 3 GB)")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dataset", default="locomo")
    parser.add_argument("--notebooks", action="store_true", help="also run 01 and 02 from cold (minutes)")
    given = parser.parse_args()
    loaded = corpus.load(given.dataset)
    print(f"{'piece / its baseline':<58} {'ours':>10}  {'baseline':>10}   ratio")
    bench_chunking(loaded.conversations)
    bench_embedding(loaded.conversations)
    bench_reranking(loaded)
    bench_generation(loaded)
    if given.notebooks:
        bench_notebooks(given.dataset)


if __name__ == "__main__":
    try:
        main()
    except corpus.BadInput as error:
        sys.exit(f"error: {error}")
