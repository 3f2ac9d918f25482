"""CONTRIBUTING.md does what it says: its steps, taken from the text, followed in a copy with an awkward name."""

import os
import re
import shutil
import subprocess
import sys

import nbformat
import pandas as pd
import pytest

from rawrag_utils import paths, results

TEXT = (paths.ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
SECTIONS = dict(re.findall(r"(?ms)^## (.+?)$\n(.*?)(?=^## |\Z)", TEXT))
# A step: where a block goes, if the paragraph above it says so, and the block itself.
STEP = re.compile(
    r"(?:(New file|New notebook|At the end of) `([^`]+)`(?:.|\n(?!\n))*?:\n\n)?```(sh|json|yaml|python)\n((?s:.*?))```"
)
# What stands for Python in the copy's .venv, so that `make` takes it for installed.
PYTHON = f'#!/bin/sh\nexec "{sys.executable}" "$@"\n'


def steps(section):
    """[(what to do, file, language, text)] of a section's blocks; each is a file or commands, none is decoration."""
    found = STEP.findall(SECTIONS[section])
    assert len(found) == SECTIONS[section].count("```") // 2
    assert all(bool(place) == (language != "sh") for place, _, language, _ in found)
    return found


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    """A copy of the repository, in a folder whose name has a blank, a quote and letters beyond ASCII."""
    folder = tmp_path_factory.mktemp("home") / "raw rag's cöpy 文件 $1"
    left = shutil.ignore_patterns(".*", "runs", "__pycache__", "*.egg-info", "benchmarks", "locomo10.json")
    shutil.copytree(paths.ROOT, folder, ignore=left)
    (folder / ".venv" / "bin").mkdir(parents=True)
    (folder / ".venv" / "bin" / "python").write_text(PYTHON)
    (folder / ".venv" / "bin" / "python").chmod(0o755)
    (folder / ".venv" / "installed").write_text(f"{folder.resolve()}\n")
    return folder


def sh(folder, commands):
    """What shell commands print, run in the copy, whose package comes before an installed one."""
    outer = {"MAKEFLAGS", "MAKEOVERRIDES", "MAKELEVEL", "MFLAGS", "ARGS", "PYTHON", "FORCE", "P", "NB"}
    private = {"PYTHONPATH": str(folder), "RAWRAG_RUNS": "", "RAWRAG_RESULTS": "", "RAWRAG_RUN_FOLDER": ""}
    environment = {k: v for k, v in os.environ.items() if k not in outer | private.keys()} | {"PYTHONPATH": str(folder)}
    done = subprocess.run(
        ["bash", "-euc", commands], cwd=folder, env=environment, capture_output=True, encoding="utf-8", timeout=300
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout + done.stderr


def cells(text):
    """The cells of a notebook written with `# %%` before each."""
    made = []
    for kind, source in re.findall(r"(?ms)^# %%(.*?)$\n(.*?)(?=^# %%|\Z)", text):
        if "markdown" in kind:
            made.append(nbformat.v4.new_markdown_cell(re.sub(r"(?m)^# ?", "", source).strip()))
        else:
            made.append(
                nbformat.v4.new_code_cell(source.strip(), metadata={"tags": kind.split()} if kind.strip() else {})
            )
    return made


def follow(folder, section):
    """Take the section's steps in the copy; returns what each block of commands prints."""
    said = []
    for place, name, _, text in steps(section):
        target = folder / name
        if place == "New notebook":
            meta = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
            nbformat.write(nbformat.v4.new_notebook(cells=cells(text), metadata=meta), target)
        elif place == "New file":
            assert not target.exists()
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text, encoding="utf-8")
        elif place:
            target.write_text(f"{target.read_text(encoding='utf-8')}\n\n{text}", encoding="utf-8")
        else:
            said.append(sh(folder, text))
    return said


def test_each_section_is_one_screen():
    assert {"A data set", "A profile", "A query method", "A notebook"} < SECTIONS.keys()
    assert all(len(text.splitlines()) <= 48 for text in SECTIONS.values())
    assert max(map(len, TEXT.splitlines())) <= 150


def test_a_data_set(copy):
    alone, _ = follow(copy, "A data set")
    assert "done: 1 notebook" in alone and len(list(copy.glob("runs/tea/local/01_chunking-*/01_chunking.csv"))) == 1
    table = results.read_table(copy / "results" / "tea" / "local" / "01_chunking.csv")
    assert "window" in set(table["variant"]) and table["value"].notna().all()
    record = results.read_run(copy / "results" / "tea" / "local" / "01_chunking.run.json")
    assert record["data"]["file"] == "data/tea/tea.json" and record["data"]["questions"] == 1
    assert ">tea<" in (copy / "results" / "report.html").read_text(encoding="utf-8")


def test_a_profile(copy):
    (said,) = follow(copy, "A profile")
    assert re.search(r"\b1 passed", said)
    broken = copy / "notebooks" / "params" / "lan.yaml"
    broken.write_text(broken.read_text(encoding="utf-8").replace("max_context", "max_contest"), encoding="utf-8")
    with pytest.raises(AssertionError, match=r"PROFILE=lan: chat\.max_context: Field required"):
        sh(copy, ".venv/bin/python -m rawrag_utils.llm lan")
    broken.unlink()


def test_a_query_method(copy):
    (said,) = follow(copy, "A query method")
    assert re.search(r"\d+ passed", said) and "failed" not in said
    estimate = sh(copy, 'make run NB=06_router P="DRY_RUN=true QUESTIONS=3"')
    assert re.search(r"gist \(en\) +\d", estimate)


def test_a_notebook(copy):
    (said,) = follow(copy, "A notebook")
    assert re.search(r"\b4 passed", said) and re.search(r"turn +462", said)
    (folder,) = copy.glob("runs/dialogues/local/10_lengths-*")
    record = results.read_run(folder / "10_lengths.run.json")
    assert record["files"].keys() == {"10_lengths.csv"} and record["data"]["conversations"] == 3
    assert (pd.read_csv(folder / "10_lengths.csv")["metric"] == "words").all()
