"""The committed notebooks: house rules, and that each runs unchanged on every kind of data set."""

import json
import os
import re

import conftest
import nbformat
import pytest

from rawrag_utils import paths, results, run

NOTEBOOKS = sorted((paths.ROOT / "notebooks").glob("*.ipynb"))
WORDS = ("kettle", "rain", "window", "tram", "soup", "violin", "bicycle", "lantern", "orchard", "postcard", "harbour")


def code_cells(path):
    return [c for c in nbformat.read(path, as_version=4).cells if c.cell_type == "code"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_house_rules(path):
    nb = nbformat.read(path, as_version=4)
    cells = code_cells(path)
    lengths = sorted(len(c.source.splitlines()) for c in cells)
    assert nb.metadata.kernelspec.name == "python3" and "widgets" not in nb.metadata
    assert not any(c.outputs or c.execution_count for c in cells)
    assert len(cells) <= 30 and lengths[len(lengths) // 2] <= 10 and path.stat().st_size < 60_000
    assert any(re.search(r"^\s*assert\b", c.source, re.MULTILINE) for c in cells)
    assert nb.cells[0].source.startswith(f"# {path.stem[:2]} ·") or not path.stem[:2].isdigit()
    assert "**Next:**" in nb.cells[-1].source or not path.stem[:2].isdigit()
    kinds = [c.cell_type for c in nb.cells]
    bare = sum(pair == ("code", "code") for pair in zip(kinds, kinds[1:], strict=False))
    assert bare <= len(cells) // 3, "prose stands before code"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_every_parameter_has_a_comment_and_an_upper_case_name(path):
    (cell,) = [c for c in code_cells(path) if "parameters" in c.metadata.get("tags", [])]
    assert all(re.fullmatch(r"[A-Z0-9_]+ = .+  # .+", line) for line in cell.source.splitlines())
    assert results.check_parameters({}, results.declared(path)) == results.declared(path)


def say(seed, n):
    return " ".join(WORDS[(seed * 7 + i * 3) % len(WORDS)] for i in range(n))


def longmemeval(conversations=6):
    """A file of LongMemEval's shape: sessions out of order, one question a conversation, one that has no answer."""
    items = []
    for i in range(conversations):
        sessions = [
            [
                {"role": role, "content": say(i + s + t, 12 + 9 * t), "has_answer": s == 1 and t == 0}
                for t, role in enumerate(("user", "assistant", "user", "assistant"))
            ]
            for s in range(3)
        ]
        items.append(
            {
                "question_id": f"q{i}" + ("_abs" if i == 5 else ""),
                "question_type": "single-session-user" if i % 2 else "temporal-reasoning",
                "question": say(i + 1, 8) + "?",
                "answer": say(i, 2),
                "question_date": "2024/05/30 (Thu) 10:00",
                "haystack_session_ids": [f"s{s}" for s in range(3)],
                "haystack_dates": [f"2024/05/{day:02} (Mon) 09:15" for day in (20, 6, 13)],
                "haystack_sessions": sessions,
                "answer_session_ids": ["s1"],
            }
        )
    return items


def own():
    turns = [{"turn_id": f"t{i}", "speaker": ("Ada", "Lin")[i % 2], "text": say(i, 20)} for i in range(30)]
    asked = [{"question": say(3, 6), "answer": say(3, 2), "category": "temporal", "evidence": ["t3", "t9"]}]
    sessions = [{"session": 1, "date": "2024-03-02", "turns": turns}]
    talk = {"conversation_id": "mine", "speaker_a": "Ada", "speaker_b": "Lin", "sessions": sessions, "questions": asked}
    return {"conversations": [talk]}


# Talks this short fit any reader, so FULL is true.
LITTLE = {"ANSWERS": 2, "VARIANTS": 2, "GOLDS": 4, "FULL": "true"}

# 08 reads subtitles and no conversation: test_subtitles_notebook.py runs it.
TALKS = [p for p in NOTEBOOKS if "DATASET" in results.declared(p) and "SUBTITLES" not in results.declared(p)]


def look_at_the_run(tmp_path, path, profile):
    """The one run of a notebook on `my talk.json` left what its readers look for."""
    (folder,) = (tmp_path / "runs" / "my_talk" / profile).iterdir()
    table = results.read_table(folder / f"{path.stem}.csv")
    assert "all" in set(table["category"]) and table["value"].notna().all()
    assert ("full" in set(table["variant"])) == ("FULL" in results.declared(path))
    record = results.read_run(folder / f"{path.stem}.run.json")
    assert record["data"]["file"] == "my talk.json"


def given_to(path, tmp_path, content):
    """Parameters for a run on `content`, which becomes a file."""
    data = tmp_path / "my talk.json"
    data.write_text(json.dumps(content), encoding="utf-8")
    return {"DATASET": data} | {name: value for name, value in LITTLE.items() if name in results.declared(path)}


@pytest.mark.parametrize("path", TALKS, ids=lambda p: p.stem)
def test_notebook_runs_unchanged_on_own_data(path, tmp_path, monkeypatch, capfd):
    monkeypatch.setenv("RAWRAG_RUNS", str(tmp_path / "runs"))
    # A language model a third of the size, asked little: what is tested is that all runs through.
    profile = "small" if "DRY_RUN" in results.declared(path) else "local"
    given = given_to(path, tmp_path, own()) | {"PROFILE": profile}
    assert run.main([path.stem, *conftest.options(given)]) == 0, capfd.readouterr().err
    look_at_the_run(tmp_path, path, profile)


@pytest.mark.parametrize("path", TALKS, ids=lambda p: p.stem)
def test_notebook_runs_unchanged_on_files_of_longmemeval(path, tmp_path, run_stub):
    done = run_stub(path.stem, given_to(path, tmp_path, longmemeval()))
    assert done.returncode == 0, done.stderr
    look_at_the_run(tmp_path, path, "stub")


def test_the_inspector_runs_headlessly_and_its_page_runs_nothing(tmp_path, monkeypatch, capfd):
    monkeypatch.setenv("RAWRAG_RUNS", str(tmp_path / "runs"))
    asked = ["-p", "CONVERSATION", "sample_2", "-p", "QUESTION", "<script>who</script> sings?", "-p", "TOKENS", "true"]
    assert run.main(["inspect_chunks", *asked, "-p", "FROM", "2024-02-01"]) == 0, capfd.readouterr().err
    (copy,) = (tmp_path / "runs").glob("sample/local/*/inspect_chunks.ipynb")
    assert copy.stat().st_size < 2_000_000 / 4  # of LoCoMo's longest conversation four times as much
    nb = nbformat.read(copy, as_version=4)
    bundles = [o.get("data", {}) for c in nb.cells if c.cell_type == "code" for o in c.outputs]
    assert sum("image/svg+xml" in b for b in bundles) == 4 and "widgets" not in nb.metadata
    assert not any("widget" in kind or "javascript" in kind for b in bundles for kind in b)
    pages = "".join("".join(b.get(kind, "")) for b in bundles for kind in ("text/html", "image/svg+xml"))
    assert "&lt;script&gt;who&lt;/script&gt; sings?" in pages and "<script" not in pages
    assert "typed by hand" in pages and 'class="rr-token"' in pages


def report_run(tmp_path, *parameters):
    """The folder of a run of 09."""
    assert run.main(["09_report", *parameters]) == 0
    return max((tmp_path / "runs" / "none" / "none").iterdir(), key=os.path.getmtime)


def test_the_report_runs_on_the_committed_results_and_on_profiles_side_by_side(tmp_path, monkeypatch, finished_run):
    monkeypatch.setenv("RAWRAG_RUNS", str(tmp_path / "runs"))
    folder = report_run(tmp_path, "-p", "DATASETS", "[locomo]")
    record = results.read_run(folder / "09_report.run.json")
    assert sorted(record["files"]) == ["report.html", "report.md", "report.tex"]
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert "06 · Router" in page and ">sample<" not in page

    row = {"variant": "dense", "metric": "recall@15", "category": "all", "n": 30}
    for profile, value in (("local", 0.25), ("other", 0.75)):
        finished_run("sample", profile, "02_embedding", [{**row, "value": value}], figure=True)
    made = report_run(tmp_path, "-p", "RESULTS", str(tmp_path / "results"))
    assert made != folder
    assert "| dense | 30 | 30 | .250 | .750 |" in (made / "report.md").read_text(encoding="utf-8")
    (tmp_path / "results" / "sample" / "other" / "02_embedding.csv").write_text("half")
    assert run.main(["09_report", "-p", "RESULTS", str(tmp_path / "results")]) == 1  # not skipped as finished


def test_a_notebook_that_needs_questions_says_so(tmp_path, monkeypatch, capfd):
    monkeypatch.setenv("RAWRAG_RUNS", str(tmp_path / "runs"))
    content = own()
    content["conversations"][0]["questions"] = []
    data = tmp_path / "silent.json"
    data.write_text(json.dumps(content), encoding="utf-8")
    assert run.main(["02_embedding", "-p", "DATASET", str(data)]) == 1
    assert "no question with evidence" in capfd.readouterr().err
    assert run.main(["01_chunking", "-p", "DATASET", str(data)]) == 0


@pytest.mark.skipif("RAWRAG_LOCOMO" not in os.environ, reason="set RAWRAG_LOCOMO to look for LoCoMo's text in results")
def test_committed_results_hold_no_text_of_locomo():
    items = json.loads(paths.resolve(os.environ["RAWRAG_LOCOMO"]).read_text(encoding="utf-8"))
    turns = [t["text"] for i in items for v in i["conversation"].values() if isinstance(v, list) for t in v]
    probes = {text[:40] for text in turns if len(text) > 40} | {q["question"][:40] for i in items for q in i["qa"]}
    for file in (paths.ROOT / "results").rglob("*"):
        if file.is_file():
            content = file.read_bytes()
            found = [p for p in probes if p.encode() in content]
            assert not found, file.name
