"""What is deterministic gives the same bytes: another hash seed, time zone, language, thread count, other folders."""

import json
import os
import subprocess
import sys

import pandas as pd
import pytest

from rawrag_utils import corpus, paths, results

# All cells of 01, and of 02 and 03 what needs no model: BM25, fusion with another ranking, the statistics.
SCRIPT = """
import json, sys
import matplotlib
matplotlib.use("Agg")
from rawrag_utils import chunking, corpus, index, metrics, paths, results, retrieval

cells = json.loads((paths.ROOT / "notebooks" / "01_chunking.ipynb").read_text(encoding="utf-8"))["cells"]
scope = {}
for cell in cells:
    if cell["cell_type"] == "code":
        exec("".join(cell["source"]), scope)

run = results.Run("02_made", {"SEED": 0}, "0", scope["run"].folder, 0.0)
data = corpus.load("sample")
asked = corpus.select(data.questions, (1, 2, 3, 4, 5), 0, 0)
arms = {}
for name, cut in {"bm25": lambda d: chunking.cut(d, 256, 32), "bm25|WINDOW=1turn": chunking.turn_windows}.items():
    built = index.build(data.conversations, cut)
    ranked = retrieval.bm25(built, asked)
    for arm, ranking in {name: ranked, f"{name}+rrf": retrieval.rrf([ranked, ranked])}.items():
        hits = metrics.evidence_hits(data, built, ranking, questions=asked)
        arms[arm] = metrics.evidence_recall(hits, [5, 15], [1000])
results.save_table(run, metrics.summarise(arms, data, ["recall@5", "recall@15", "recall@1000tok"], "bm25"))
results.save_per_question(run, __import__("pandas").concat(arms, names=["variant", "query_id"]).reset_index())
results.finish(run, data, n=len(asked))
"""


def made(folder, **environment):
    """{file: bytes} of what the script leaves, and the two records without what names the machine or the moment."""
    shown = {**os.environ, "RAWRAG_RUN_FOLDER": str(folder), "RAWRAG_CACHE": str(folder / "cache"), **environment}
    folder.mkdir()
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        cwd=folder,
        env=shown | {"PYTHONPATH": str(paths.ROOT)},
        capture_output=True,
        encoding="utf-8",
    )
    assert done.returncode == 0, done.stderr[-2000:]
    files = {p.relative_to(folder).as_posix(): p.read_bytes() for p in results.result_files(folder)}
    records = {name: json.loads(files.pop(name)) for name in list(files) if name.endswith(".run.json")}
    return files, records


def test_two_runs_give_the_same_files_and_the_committed_numbers(tmp_path):
    once, records = made(tmp_path / "one", PYTHONHASHSEED="1", TZ="Pacific/Kiritimati", LC_ALL="C", OMP_NUM_THREADS="1")
    again, others = made(
        tmp_path / "zwei 二", PYTHONHASHSEED="2", TZ="America/Lima", LC_ALL="C.UTF-8", OMP_NUM_THREADS="2"
    )
    assert len(once) == 6 and once == again
    limits = [r["01_chunking.run.json"]["device"].pop("limits")["OMP_NUM_THREADS"] for r in (records, others)]
    assert limits == ["1", "2"] and [r["02_made.run.json"]["seeds"]["PYTHONHASHSEED"] for r in (records, others)] == [
        "1",
        "2",
    ]
    for name, record in records.items():
        assert record["device"]["threads"] is None and record["device"]["blas"]  # torch was not loaded, numpy was
        for key in record.keys() - {"wall_seconds", "device", "seeds"}:
            assert record[key] == others[name][key], key

    committed = paths.ROOT / "results" / "sample" / "local"
    assert once["01_chunking.csv"] == (committed / "01_chunking.csv").read_bytes()
    keys, values = ["variant", "metric", "category"], {}
    for folder, file in ((tmp_path / "one", "02_made.csv"), (committed, "02_embedding.csv")):
        values[file] = results.read_table(folder / file).set_index(keys)["value"]
    shared = values["02_made.csv"].index.intersection(values["02_embedding.csv"].index)
    assert len(shared) > 20
    pd.testing.assert_series_equal(values["02_made.csv"][shared], values["02_embedding.csv"][shared], check_exact=True)


def test_one_order_of_questions_a_seed():
    asked = [q.question_id for q in corpus.select(corpus.load("sample").questions, count=12, seed=0)]
    assert asked == [q.question_id for q in corpus.select(corpus.load("sample").questions, count=30, seed=0)][:12]
    assert asked != [q.question_id for q in corpus.select(corpus.load("sample").questions, count=12, seed=1)]


@pytest.mark.parametrize("path", sorted((paths.ROOT / "results").glob("*/*/*.run.json")), ids=lambda p: p.stem)
def test_committed_provenance_names_precision_and_threads(path):
    record = results.read_run(path)
    local = [m for m in record["models"] if m["role"] != "reranker" and m.get("kind") != "endpoint"]
    assert all({"dtype", "device"} <= m.keys() for m in local)
    assert {"cores", "threads", "cpu_capability"} <= record["device"].keys()
