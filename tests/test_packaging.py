"""One set of packages in three files, and a front door (the Makefile) that explains itself and fails in one line."""

import ast
import os
import pathlib
import re
import shutil
import subprocess
import tomllib
from importlib import metadata

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

import rawrag_utils
from rawrag_utils.paths import ROOT


def requirements(lines):
    """Name -> `Requirement` of all lines that are neither empty, comments nor pip options; no name twice."""
    parsed = [Requirement(line) for line in lines if line.strip() and not line.startswith(("#", "-"))]
    named = {canonicalize_name(requirement.name): requirement for requirement in parsed}
    assert len(named) == len(parsed)
    return named


def pins(named):
    """Name -> version of requirements that must be exact."""
    for requirement in named.values():
        assert re.fullmatch(r"==[^=*,]+", str(requirement.specifier)), f"{requirement} is not pinned with =="
    return {name: str(requirement.specifier).removeprefix("==") for name, requirement in named.items()}


PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = PROJECT["optional-dependencies"]
FLOORS = requirements(PROJECT["dependencies"] + EXTRAS["dev"] + EXTRAS["scale"])
LOCK_TEXT = (ROOT / "requirements.lock").read_text(encoding="utf-8")
LOCK = pins(requirements(LOCK_TEXT.splitlines()))
ENVIRONMENT_TEXT = (ROOT / "environment.yml").read_text(encoding="utf-8")
ENVIRONMENT = yaml.safe_load(ENVIRONMENT_TEXT)
PIP_SECTION = next(entry["pip"] for entry in ENVIRONMENT["dependencies"] if isinstance(entry, dict))


def test_environment_names_the_direct_dependencies():
    assert requirements(PIP_SECTION).keys() == FLOORS.keys()


def test_environment_pins_equal_the_lock():
    environment = pins(requirements(PIP_SECTION))
    assert environment == {name: LOCK[name] for name in environment}
    assert "--constraint requirements.lock" in PIP_SECTION


def test_environment_gives_each_line_a_reason():
    entries = re.findall(r"^ +- (?!pip:$).+$", ENVIRONMENT_TEXT.split("dependencies:")[1], flags=re.MULTILINE)
    assert len(entries) == len(PIP_SECTION) + 2  # python and pip stand before the section
    assert [entry for entry in entries if not re.search(r" # \w", entry)] == []


def test_lock_satisfies_every_floor():
    for name, requirement in FLOORS.items():
        assert [clause.operator for clause in requirement.specifier] == [">="], f"{requirement} has no minimum"
        assert requirement.specifier.contains(LOCK[name]), f"{requirement}, but the lock has {LOCK[name]}"


def test_lock_fits_every_place():
    assert LOCK["torch"] == "2.13.0"
    assert "setuptools" in LOCK  # the package is installed without build isolation
    body = [line for line in LOCK_TEXT.splitlines() if not line.startswith("#")]
    assert [line for line in body if not re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.!]+", line)] == []  # no +, @, URL
    assert [name for name in LOCK if name.startswith(("nvidia", "cuda", "triton"))] == []


def test_python_versions_agree():
    assert PROJECT["requires-python"] == ">=3.11"
    assert "python=3.11" in ENVIRONMENT["dependencies"]
    # Any 3.11 will do: a lock made with 3.11.7 may hold releases that shut out the 3.11.2 of a stable distribution.
    for name, version in LOCK.items():
        installed = metadata.distribution(name).metadata
        if installed["Version"].split("+")[0] == version:
            needs = installed["Requires-Python"] or ""
            assert SpecifierSet(needs).contains("3.11.0"), f"{name} {version} needs Python {needs}"


# The front door. Each test has a folder of its own with a blank and a letter beyond ASCII in its name.

TARGETS = re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE)
USERS = {"setup", "lab", "data", "models", "results", "report", "run", "grid", "test", "lint", "check", "bench", "lock"}
# Stands for Python: prints its arguments, each in brackets.
RECORDER = """#!/bin/sh
printf '[%s]' "$@" "FORCE=$FORCE"
echo
"""


@pytest.fixture
def checkout(tmp_path):
    """A folder with the Makefile and nothing that it could run yet."""
    folder = tmp_path / "a chäckout"
    folder.mkdir()
    for name in ("Makefile", "pyproject.toml", "requirements.lock"):
        shutil.copyfile(ROOT / name, folder / name)
    return folder


def make(folder, *arguments, **environment):
    """The finished `make` in `folder`, apart from a make that may have started these tests and from its variables."""
    outer = {"MAKEFLAGS", "MAKEOVERRIDES", "MAKELEVEL", "MFLAGS", "ARGS", "PYTHON", "FORCE", "P", "NB"}
    variables = {name: value for name, value in os.environ.items() if name not in outer} | environment
    return subprocess.run(
        ["make", *arguments], cwd=folder, env=variables, capture_output=True, encoding="utf-8", timeout=60
    )


def program(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    path.chmod(0o755)
    return path


def installed(folder):
    """Make `folder` look installed, with a Python that prints what it was called with."""
    program(folder / ".venv/bin/python", RECORDER)
    (folder / ".venv/installed").write_text(f"{folder.resolve()}\n", encoding="utf-8")


def called(folder, *arguments):
    result = make(folder, *arguments)
    assert result.returncode == 0, result.stderr
    return result.stdout.splitlines()[-1]


@pytest.mark.parametrize("arguments", [[], ["help"]])
def test_help_names_every_target(checkout, arguments):
    result = make(checkout, *arguments)
    named = re.findall(r"^  make ([a-z-]+) +\S", result.stdout, flags=re.MULTILINE)
    assert result.returncode == 0 and named == TARGETS
    assert set(named) >= USERS
    assert max(map(len, result.stdout.splitlines())) <= 120


def test_every_target_runs_though_a_folder_has_its_name():
    phony = re.search(r"^\.PHONY: (help .*)$", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert sorted(phony[1].split()) == sorted(TARGETS)


def test_values_arrive_as_written(checkout):
    installed(checkout)
    values = """SUBTITLES=talk.srt QUESTION='what is "x" for $5, `ls` or 数?'"""
    assert called(checkout, "run", "NB=08_subtitles", f"P={values}", "FORCE=1") == (
        f"[-m][rawrag_utils.run][08_subtitles][--set][{values}][FORCE=1]"
    )
    assert called(checkout, "run", "NB=01_chunking") == "[-m][rawrag_utils.run][01_chunking][FORCE=]"
    assert called(checkout, "results") == "[-m][rawrag_utils.run][--plan][sample][--profile][local][FORCE=]"
    assert called(checkout, "data", "LOCOMO=my files/locomo10.json") == (
        "[-m][rawrag_utils.corpus][my files/locomo10.json][FORCE=]"
    )


def test_a_grid_takes_its_file_and_engine(checkout):
    installed(checkout)
    assert called(checkout, "grid", "GRID=my grids/a.yaml") == (
        "[-m][rawrag_utils.scale][grid][my grids/a.yaml][--engine][local][FORCE=]"
    )
    assert called(checkout, "grid", "GRID=a.yaml", "ENGINE=ray", "ARGS=--workers 8") == (
        "[-m][rawrag_utils.scale][grid][a.yaml][--engine][ray][--workers][8][FORCE=]"
    )
    result = make(checkout, "grid")
    assert result.returncode != 0 and "make grid GRID=" in result.stderr and result.stderr.count("\n") == 1


def test_run_asks_for_a_notebook(checkout):
    installed(checkout)
    result = make(checkout, "run")
    assert result.returncode != 0 and "make run NB=" in result.stderr and result.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("python", "says"),
    [
        ("#!/bin/sh\nexit 1\n", "is not Python 3.11 or newer"),  # too old, or a shim without a Python behind it
        ('#!/bin/sh\n[ "$1" = -c ]\n', "install the package python3-venv"),  # how Debian's looks without that package
    ],
)
def test_a_python_that_will_not_do_gets_one_line(checkout, python, says):
    result = make(checkout, "test", f"PYTHON={program(checkout / 'python', python)}")
    assert result.returncode != 0 and not result.stdout and not (checkout / ".venv").exists()
    assert says in result.stderr and result.stderr.count("\n") == 1


@pytest.mark.parametrize("fault", ["no stamp", "moved", "changed lock", "no Python"])
def test_only_a_finished_install_is_taken_for_done(checkout, fault):
    installed(checkout)
    stamp = checkout / ".venv/installed"
    assert "setup:" not in make(checkout, "--dry-run", "test").stdout
    if fault == "no stamp":
        stamp.unlink()
    elif fault == "moved":
        checkout = checkout.rename(checkout.with_name("elsewhere"))
    elif fault == "changed lock":
        os.utime(stamp, (0, 0))
    else:
        (checkout / ".venv/bin/python").unlink()
    assert "setup:" in make(checkout, "--dry-run", "test").stdout


def test_clean_keeps_what_is_not_its_own(checkout):
    kept = [checkout / name for name in ("results/a.csv", "data/locomo10.json", ".venv/lib/__pycache__/a.pyc")]
    gone = [checkout / name for name in ("runs/a.csv", ".cache/a", "tests/__pycache__/a.pyc", ".pytest_cache/a")]
    for path in kept + gone:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    assert make(checkout, "clean").returncode == 0
    assert [path for path in kept if not path.exists()] == [path for path in gone if path.exists()] == []


def test_ci_runs_what_the_readme_says():
    script = (ROOT / ".ci/run").read_text(encoding="utf-8")
    assert os.access(ROOT / ".ci/run", os.X_OK) and "|| true" not in script
    assert "make test" in script and "shared/data/locomo10.json" in script


def test_a_module_imports_only_from_those_before_it():
    order = re.findall(r"``(\w+)``", rawrag_utils.__doc__)
    files = {path.stem: path for path in pathlib.Path(rawrag_utils.__file__).parent.glob("*.py")}
    assert sorted(order) == sorted(set(files) - {"__init__"})
    for name in order:
        tree = ast.parse(files[name].read_text(encoding="utf-8"))
        used = {
            alias.name if node.module == "rawrag_utils" else node.module.partition(".")[2]
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("rawrag_utils")
            for alias in node.names
        }
        assert not [u for u in used & set(order) if order.index(u) >= order.index(name)], name
