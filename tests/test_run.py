"""The runner: what it accepts, what it leaves behind when a run ends, fails, hangs or is killed, what it publishes."""

import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import time

import nbformat
import pandas as pd
import pytest
import yaml

from rawrag_utils import execution, paths, results, run
from rawrag_utils.paths import BadInput

# `results.device` asks torch, which takes seconds to import: these notebooks compute nothing.
BEGIN = """
import pathlib, os, time
from rawrag_utils import results
results.device = dict
run = results.begin({path!r}, globals())
"""
FINISH = """
results.save_table(run, [
    dict(variant="dense", metric="recall@15", category="all", n=30, value=0.77, ci_low=0.7, ci_high=0.8),
    dict(variant="dense", metric="recall@15", category="temporal", n=10, value=0.5)])
_ = results.finish(run)
"""

STOPPED = "stopped; the kernel is shut down, finished runs are kept"


@pytest.fixture(autouse=True)
def roots(tmp_path, monkeypatch):
    """Nothing a test runs may land in the checkout."""
    monkeypatch.setenv("RAWRAG_RUNS", str(tmp_path / "runs"))
    monkeypatch.setenv("RAWRAG_RESULTS", str(tmp_path / "results"))
    monkeypatch.delenv("FORCE", raising=False)


def write_notebook(path, *cells, parameters="TEXT = 'a'\nNUMBER = 1\nSHARE = 0.5\nLIST = [1]\n"):
    """A notebook of title, parameters, `results.begin`, then `cells` (Markdown where one starts with #)."""
    nb = nbformat.v4.new_notebook()
    nb.cells = [nbformat.v4.new_markdown_cell("# Title"), nbformat.v4.new_code_cell(parameters)]
    nb.cells[1].metadata.tags = ["parameters"]
    for source in (BEGIN.format(path=str(path)), *cells):
        new = nbformat.v4.new_markdown_cell if source.startswith("#") else nbformat.v4.new_code_cell
        nb.cells.append(new(source))
    nb.metadata.kernelspec = {"name": "my-own-env", "display_name": "mine", "language": "python"}  # a baked name
    path.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(nb, path)
    return path


def only_folder(tmp_path):
    (folder,) = (tmp_path / "runs" / "none" / "none").iterdir()
    return folder


def start(path, *arguments, **environment):
    """The runner as a program of its own, for what ends programs."""
    return subprocess.Popen(
        [sys.executable, "-m", "rawrag_utils.run", str(path), *arguments],
        cwd=paths.ROOT,
        env={**os.environ, "TMPDIR": str(path.parent), **environment},
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def wait_for(condition, seconds=30):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.05)


def gone(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    # A killed kernel whose parent is gone too stays a zombie where nothing reaps (containers without an init).
    status = pathlib.Path(f"/proc/{pid}/status")
    return status.exists() and "State:\tZ" in status.read_text()


# --------------------------------------------------------------------------------------------------------- parameters


@pytest.mark.parametrize(
    ("text", "default", "value"),
    [
        ("a=b=c", "", "a=b=c"),
        ("007", "", "007"),
        ("[1]", "", "[1]"),
        ("true", "", "true"),
        ("", "x", ""),
        ("7", 1, 7),
        ("1e-3", 0.5, 0.001),
        ("2", 0.5, 2.0),
        ("true", False, True),
        ("[1, temporal]", [1], [1, "temporal"]),
    ],
)
def test_value_is_parsed_by_the_default_s_type(text, default, value):
    parsed = run.parse_value("X", text, default)
    assert parsed == value and type(parsed) is type(default)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-p", "TXET", "a"], "TXET: unknown parameter; this notebook has TEXT, NUMBER"),
        (["-p", "NUMBER", "many"], "NUMBER='many': wanted a value of kind int"),
        (["-p", "NUMBER", "1.5"], "NUMBER=1.5: wanted a value of kind int"),
        (["-p", "SHARE", "half"], "SHARE='half': wanted a value of kind float"),
        (["-p", "LIST", "[1"], "LIST='[1': wanted a value of kind list"),
        (["-p", "LIST", "[2023-05-08]"], "LIST='[2023-05-08]': wanted a value of kind list"),
        (["-p", "LIST", "1, 2"], "LIST='1, 2': wanted a value of kind list"),
        (["--set", "NUMBER 3"], "'NUMBER' is not NAME=VALUE"),
        (["--set", "TEXT='a b"], "No closing quotation"),
        (["--set", "PROFILE=gpt9"], "PROFILE: unknown parameter"),
    ],
)
def test_bad_parameters_are_one_line_before_anything_starts(tmp_path, capsys, arguments, message):
    path = write_notebook(tmp_path / "tiny.ipynb")
    assert run.main([str(path), *arguments]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1
    assert not (tmp_path / "runs").exists()


def test_unknown_notebook_and_profile(tmp_path, capsys):
    assert run.main(["no_such_notebook"]) == 2
    path = write_notebook(tmp_path / "tiny.ipynb", parameters="PROFILE = 'local'\n")
    assert run.main([str(path), "-p", "PROFILE", "gpt9"]) == 2
    assert run.main(["--plan", "sample", "--profile", "plan"]) == 2  # plan.yaml is no profile
    lines = capsys.readouterr().err.splitlines()
    assert "no such notebook" in lines[0] and "PROFILE=gpt9: no such profile" in lines[1]
    assert "there are e5, local" in lines[1] and "PROFILE=plan: no such profile" in lines[2] and len(lines) == 3


# ------------------------------------------------------------------------------------------------------ runs that end


def test_a_run_leaves_its_files_is_skipped_and_forced(tmp_path, capsys, monkeypatch):
    marks = tmp_path / "marks"
    path = write_notebook(
        tmp_path / "a {brace}" / "tiny.ipynb",
        "# Work",
        f"open({str(marks)!r}, 'a').write('x'); print('progress', TEXT, os.getcwd() == os.environ.get('X_ROOT'))",
        "assert os.environ['PYTHONHASHSEED'] == '0' and os.environ['TQDM_DISABLE'] == '1'",
        FINISH,
    )
    monkeypatch.setenv("X_ROOT", str(paths.ROOT))
    tricky = "a='1' \\n \"ß\" {x} # no comment"
    command = [str(path), "-p", "TEXT", tricky, "--set", "NUMBER=2 LIST='[3, 4]'"]

    assert run.main(command) == 0
    out, err = capsys.readouterr()
    folder = only_folder(tmp_path)
    record = results.read_run(folder / "tiny.run.json")
    assert record["parameters"] == {"TEXT": tricky, "NUMBER": 2, "SHARE": 0.5, "LIST": [3, 4]}
    assert folder.name == f"tiny-{record['run_id']}"
    assert f"progress {tricky} True\n" in (folder / "log.txt").read_text()
    assert nbformat.read(folder / "tiny.ipynb", 4).cells[-1].execution_count
    assert "[1/1] tiny" in err and "cell  4/6  Work" in err and "done: 1 notebook in 0:" in err
    assert "dense  30  .770 [.700, .800]" in out and "temporal" not in out

    assert run.main(command) == 0
    assert "skipped (FORCE=1 repeats it)" in capsys.readouterr().err and marks.read_text() == "x"
    (folder / "tiny.csv").write_text("damaged")
    assert not run.finished(folder, "tiny", record["run_id"])
    monkeypatch.setenv("FORCE", "1")
    assert run.main(command) == 0
    assert marks.read_text() == "xx" and run.finished(folder, "tiny", record["run_id"])


def test_a_user_s_python3_kernel_is_not_ours(tmp_path):
    kernel = tmp_path / "data" / "kernels" / "python3" / "kernel.json"
    kernel.parent.mkdir(parents=True)
    kernel.write_text(json.dumps({"argv": ["false", "{connection_file}"], "display_name": "x", "language": "python"}))
    path = write_notebook(tmp_path / "tiny.ipynb", f"import sys; assert sys.prefix == {sys.prefix!r}", FINISH)
    process = start(
        path, JUPYTER_DATA_DIR=str(tmp_path / "data"), JUPYTER_PATH=str(tmp_path / "data"), HOME=str(tmp_path / "home")
    )
    assert process.communicate(timeout=60)[1].count("\n") == 7 and process.returncode == 0
    assert not (tmp_path / "home" / ".ipython").exists()


def test_a_kernel_that_does_not_start_is_started_again(tmp_path, monkeypatch, capsys):
    interpreter = tmp_path / "python"
    interpreter.write_text(f'#!/bin/sh\nmkdir {tmp_path}/failed 2>/dev/null && exit 1\nexec "{sys.executable}" "$@"\n')
    interpreter.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(interpreter))
    assert run.main([str(write_notebook(tmp_path / "tiny.ipynb", FINISH))]) == 0
    assert "the kernel did not start" in capsys.readouterr().err

    interpreter.write_text("#!/bin/sh\necho no ipykernel here >&2\nexit 1\n")
    assert run.main([str(write_notebook(tmp_path / "other.ipynb", FINISH))]) == 1
    assert "attempt 3 of 3" in capsys.readouterr().err
    (log,) = tmp_path.glob("runs/none/none/other-*/log.txt")
    assert "no ipykernel here" in log.read_text()


# ----------------------------------------------------------------------------------------------- runs that do not end


def test_a_failing_cell_is_named_and_its_copy_kept(tmp_path, capsys):
    path = write_notebook(tmp_path / "tiny.ipynb", "# Before", "1", "## Where it breaks", "{}['miss\\ning']", FINISH)
    assert run.main([str(path)]) == 1
    last = capsys.readouterr().err.splitlines()[-1]
    folder = only_folder(tmp_path)
    assert last.startswith("failed: tiny: cell 5 (Where it breaks): KeyError: 'miss\\ning'; see")
    assert "KeyError" in (folder / "tiny.ipynb").read_text() and not (folder / "tiny.run.json").exists()


def test_bad_input_in_a_notebook_surfaces_as_its_message(tmp_path, capsys):
    path = write_notebook(
        tmp_path / "tiny.ipynb",
        "## Data",
        "from rawrag_utils.paths import BadInput\nraise BadInput('my.json: turn 3 has no speaker')",
    )
    assert run.main([str(path)]) == 1
    assert (
        capsys.readouterr()
        .err.splitlines()[-1]
        .startswith("failed: tiny: cell 4 (Data): my.json: turn 3 has no speaker; see")
    )


def test_silence_is_timed_not_length(tmp_path, capsys):
    path = write_notebook(
        tmp_path / "tiny.ipynb",
        "# Long but talking",
        "for i in range(8):\n    print(i, flush=True)\n    time.sleep(0.4)",
        "# Silent",
        "time.sleep(99)",
        FINISH,
    )
    assert run.main([str(path), "--silence", "1.5"]) == 1
    assert "failed: tiny: cell 5 (Silent): silent for 1.5 s, stopped; see" in capsys.readouterr().err
    copy = nbformat.read(only_folder(tmp_path) / "tiny.ipynb", 4)
    assert "KeyboardInterrupt" in str(copy.cells[-2].outputs)  # where it hung


def test_what_a_cell_said_long_ago_is_not_shown_as_if_it_went_on(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(execution, "PULSE", 1.0)
    path = write_notebook(tmp_path / "tiny.ipynb", "# Slow", "print('8 of 8', flush=True)\ntime.sleep(4)", FINISH)
    assert run.main([str(path)]) == 0
    beats = re.findall(r"Slow +\d+ s  (.*)", capsys.readouterr().err)
    assert len(beats) >= 2 and set(beats[1:]) == {""}  # one, where the first beat came soon, may still show it


def test_a_dead_kernel_is_named(tmp_path, capsys):
    path = write_notebook(tmp_path / "tiny.ipynb", "# Too much", "os.kill(os.getpid(), 9)")
    assert run.main([str(path)]) == 1
    assert "tiny: cell 4 (Too much): the kernel died" in capsys.readouterr().err


def hanging(tmp_path):
    """A notebook that hangs in its last cell but one, once its kernel's pid is in a file, until `go` exists."""
    wait = f"""
pathlib.Path({str(tmp_path / "part")!r}).write_text(str(os.getpid()))
os.rename({str(tmp_path / "part")!r}, {str(tmp_path / "pid")!r})
while not os.path.exists({str(tmp_path / "go")!r}):
    time.sleep(0.1)
"""
    return write_notebook(tmp_path / "tiny.ipynb", wait, FINISH)


def test_two_at_once_and_a_killed_run_goes_again(tmp_path, capsys):
    path = hanging(tmp_path)
    process = start(path)
    wait_for((tmp_path / "pid").exists)
    folder = only_folder(tmp_path)
    before = {p: p.read_bytes() for p in folder.iterdir()}
    assert run.main([str(path)]) == 2
    error = capsys.readouterr().err
    assert "already going on" in error and "wait for it" in error and error.count("\n") == 1
    assert {p: p.read_bytes() for p in folder.iterdir()} == before

    process.kill()
    process.communicate()
    wait_for(lambda: gone(int((tmp_path / "pid").read_text())))  # no orphan
    assert not (folder / "tiny.run.json").exists()
    (tmp_path / "go").touch()
    assert run.main([str(path)]) == 0
    assert (folder / "tiny.run.json").exists() and "skipped" not in capsys.readouterr().err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stopped_run_leaves_no_kernel_and_one_line(tmp_path, number):
    process = start(hanging(tmp_path))
    wait_for((tmp_path / "pid").exists)
    process.send_signal(number)
    error = process.communicate(timeout=30)[1]
    assert process.returncode == 130
    assert error.splitlines()[-1] == STOPPED
    assert error.count("\n") == 5 and "Traceback" not in error
    assert gone(int((tmp_path / "pid").read_text()))


def test_a_run_stopped_while_its_kernel_starts_leaves_none(tmp_path):
    slow = tmp_path / "python"
    slow.write_text(f"#!/bin/sh\necho $$ > {tmp_path}/part\nmv {tmp_path}/part {tmp_path}/pid\nexec sleep 60\n")
    slow.chmod(0o755)
    path = write_notebook(tmp_path / "tiny.ipynb")
    code = (
        f"import sys; from rawrag_utils import run; sys.executable = {str(slow)!r}; sys.exit(run.main([{str(path)!r}]))"
    )
    process = subprocess.Popen([sys.executable, "-c", code], cwd=paths.ROOT, stderr=subprocess.PIPE, text=True)
    wait_for((tmp_path / "pid").exists)
    time.sleep(0.5)
    process.send_signal(signal.SIGTERM)
    assert process.communicate(timeout=30)[1].splitlines()[1:] == [STOPPED] and process.returncode == 130
    assert gone(int((tmp_path / "pid").read_text()))


def test_runs_that_cannot_be_written_are_one_line(tmp_path, capsys, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("RAWRAG_RUNS", str(tmp_path / "file"))
    assert run.main([str(write_notebook(tmp_path / "tiny.ipynb"))]) == 2
    error = capsys.readouterr().err
    assert "Not a directory" in error and error.count("\n") == 1


# ------------------------------------------------------------------------------------------------- plans and publishing


@pytest.fixture
def params(tmp_path, monkeypatch):
    """A folder of parameters with one profile, and a function that writes its plan."""
    folder = tmp_path / "params"
    folder.mkdir()
    shutil.copy(paths.params() / "local.yaml", folder)  # the kernel reads the real one: run ids must agree
    monkeypatch.setattr(paths, "params", lambda: folder)
    return lambda content: (folder / "plan.yaml").write_text(
        content if isinstance(content, str) else yaml.safe_dump(content)
    )


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("sample: [", "line 1 is not YAML"),
        ("- sample", "wanted lists of runs by data set"),
        ("sample: tiny", "sample, entry 1: wanted {notebook"),
        ("sample: [{notebook: tiny, parameter: {}}]", "sample, entry 1: wanted {notebook"),
        ("sample: [{notebook: tiny, parameters: [1]}]", "sample, entry 1: wanted {notebook"),
        ("sample: [{notebook: no_such}]", "sample, entry 1: no_such: no such notebook"),
        ("sample: [{notebook: NB, parameters: {NUMBRE: 1}}]", "entry 1: NUMBRE: unknown parameter"),
        ("sample: [{notebook: NB}, {notebook: NB, parameters: {NUMBER: 2}}]", "entry 2: tiny is listed twice"),
        ("sample: [{notebook: NB, parameters: {NUMBER: one}}]", "entry 1: NUMBER='one': wanted a value of kind int"),
    ],
)
def test_faults_of_a_plan_show_before_it_starts(tmp_path, capsys, params, content, message):
    params(content.replace("NB", str(write_notebook(tmp_path / "tiny.ipynb"))))
    assert run.main(["--plan", "sample"]) == 2
    error = capsys.readouterr().err
    assert message in error and "plan.yaml" in error and error.count("\n") == 1
    assert not (tmp_path / "runs").exists()


def test_the_committed_plan_has_its_form():
    lists = paths.read_yaml(paths.params() / "plan.yaml")
    assert {"sample", "locomo"} <= set(lists)
    assert all(step.keys() <= {"notebook", "parameters"} for steps in lists.values() for step in steps)


def test_an_entry_of_a_plan_may_name_its_profile_and_the_command_line_another(params):
    lists = paths.read_yaml(paths.ROOT / "notebooks/params/plan.yaml")
    params({"sample": [], "lectures": lists["lectures"]})
    for name in ("multilingual", "small"):
        shutil.copy(paths.ROOT / f"notebooks/params/{name}.yaml", paths.params())
    for typed, used in (("local", "multilingual"), ("small", "small")):
        (((path, parameters),), published) = run.plan("lectures", typed)
        assert (path.stem, parameters["PROFILE"], parameters["DATASET"]) == ("08_subtitles", used, "lectures")
        assert published


def test_a_plan_is_published_an_own_data_set_is_not_and_check_compares(tmp_path, capsys, params):
    path = write_notebook(
        tmp_path / "01_tiny.ipynb", FINISH, parameters="DATASET = 'sample'\nPROFILE = 'local'\nNUMBER = 1\n"
    )
    params({"sample": [{"notebook": str(path), "parameters": {"NUMBER": 5}}]})
    target = tmp_path / "results" / "sample" / "local"
    assert run.main(["--plan", "sample"]) == 0
    assert sorted(p.name for p in target.rglob("*")) == ["01_tiny.csv", "01_tiny.run.json"]
    assert results.read_run(target / "01_tiny.run.json")["parameters"] == {
        "DATASET": "sample",
        "PROFILE": "local",
        "NUMBER": 5,
    }
    (target / "01_tiny.csv").write_text("changed")
    assert run.main(["--plan", "sample"]) == 0  # a skipped run is published where results/ differs
    out, err = capsys.readouterr()
    assert "skipped" in err and ".770 [.700, .800]" in out and str(target) in out
    assert results.read_table(target / "01_tiny.csv")["value"][0] == 0.77
    assert ".770 [.700, .800]" in (tmp_path / "results" / "report.md").read_text() and "report.html" in out

    own = tmp_path / "own.json"
    own.write_text("{}")
    assert run.main(["--plan", str(own)]) == 0
    assert sorted(p.name for p in (tmp_path / "results").iterdir() if p.is_dir()) == ["sample"]
    assert len(list(tmp_path.glob("runs/own/local/01_tiny-*/01_tiny.csv"))) == 1
    capsys.readouterr()

    row = {"variant": "dense", "metric": "recall@15", "category": "all", "value": 0.772, "tolerance": 0.005}
    expected = {"sample": {"local": {"01_tiny": [row], "04_later": [dict(row)]}}}  # no alias
    (tmp_path / "results" / "expected.yaml").write_text(yaml.safe_dump(expected))
    assert run.main(["--check", "sample"]) == 0
    out, err = capsys.readouterr()
    assert "skipped" not in err and out.splitlines()[1].startswith("OK ") and len(out.splitlines()) == 2
    assert run.main(["--check", "sample", "--profile", "none"]) == 2


def test_verdicts_and_missing_rows():
    def row(value, metric="recall@15"):
        return {"variant": "dense", "metric": metric, "category": "all", "value": value, "tolerance": 0.005}

    table = pd.DataFrame(
        {"variant": "dense", "metric": ["recall@15", "empty"], "category": "all", "value": [0.77, float("nan")]}
    )
    lines, passed = run.compare({"02_x": [row(0.775), row(0.761)]}, {"02_x": table})
    assert [line.split()[0] for line in lines[1:]] == ["OK", "OKish"] and passed
    assert len({line.index("dense") for line in lines[1:]}) == 1  # aligned
    wanted = {"02_x": [row(0.78), row(0.7), row(0.7, "empty"), row(0.7, "other")], "03_x": [row(0.7)]}
    lines, passed = run.compare(wanted, {"02_x": table})
    assert [line.split()[0] for line in lines[1:]] == ["OKish", "FAIL", "FAIL", "FAIL", "FAIL"] and not passed
    assert "missing" in lines[-1]


@pytest.mark.parametrize(
    "content",
    [
        "sample: {local: {01_tiny: [{variant: dense}]}}",
        *(
            f"sample: {{local: {{01_tiny: [{{variant: a, metric: b, category: c, value: {value}, tolerance: 0}}]}}}}"
            for value in ("1" + "0" * 400, ".nan", "-.inf")
        ),
        "sample: {local: }",
        "[]",
        "a: [",
    ],
)
def test_faults_of_expected_yaml_are_named(tmp_path, content):
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "expected.yaml").write_text(content)
    with pytest.raises(BadInput, match="expected.yaml"):
        run.expected_rows("sample", "local")


def test_publish_copies_what_is_listed_run_json_last(tmp_path, monkeypatch):
    source, target = tmp_path / "source", tmp_path / "target"

    def finish(*names, secret=()):
        for name in (*names, *secret):
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_text(name)
        record = {"schema": results.SCHEMA, "run_id": "x", "files": {n: paths.sha256(source / n) for n in names}}
        (source / "nb.run.json").write_text(json.dumps(record))

    order, atomic = [], paths.atomic
    monkeypatch.setattr(paths, "atomic", lambda path, mode: order.append(path.name) or atomic(path, mode))
    finish("nb.csv", "figures/nb_old.png", secret=("nb.ipynb", "log.txt"))
    run.publish(source, "nb", target)
    assert order == ["nb.csv", "nb_old.png", "nb.run.json"]
    assert sorted(p.relative_to(target).as_posix() for p in target.rglob("*.*")) == [
        "figures/nb_old.png",
        "nb.csv",
        "nb.run.json",
    ]

    order.clear()
    assert run.publish(source, "nb", target) == [] and order == []
    (target / "other.csv").write_text("another notebook's")
    finish("nb.csv", "figures/nb_new.png")
    assert run.publish(source, "nb", target) == ["figures/nb_new.png", "nb.run.json"]
    assert not (target / "figures/nb_old.png").exists() and (target / "other.csv").exists()

    finish("../escape.csv")
    with pytest.raises(BadInput, match="outside its folder"):
        run.publish(source, "nb", target)


# ------------------------------------------------------------------------------------------------------------ dry runs

DRY = "import pandas as pd\nif DRY_RUN:\n    raise results.DryRun(pd.DataFrame({'texts': [12]}, ['hyde']))\n"


def test_a_dry_run_prints_its_table_and_ends_well(tmp_path, capsys):
    path = write_notebook(tmp_path / "tiny.ipynb", DRY, FINISH, parameters="NUMBER = 1\nDRY_RUN = False\n")
    assert run.main([str(path), "-p", "DRY_RUN", "true"]) == 0
    shown = capsys.readouterr()
    assert "nothing was asked" in shown.out and "hyde" in shown.out and "12" in shown.out
    assert "failed" not in shown.err and "Traceback" not in shown.out + shown.err


def test_a_plan_is_estimated_without_running_what_asks_no_model(tmp_path, capsys, params):
    asks = write_notebook(tmp_path / "04_asks.ipynb", DRY, FINISH, parameters="NUMBER = 1\nDRY_RUN = False\n")
    plain = write_notebook(tmp_path / "01_plain.ipynb", FINISH)
    params({"sample": [{"notebook": str(plain)}, {"notebook": str(asks)}]})
    assert run.main(["--plan", "sample", "--dry-run"]) == 0
    shown = capsys.readouterr()
    assert "04_asks: nothing was asked" in shown.out and "01_plain" not in shown.out + shown.err


def test_a_dry_run_needs_a_plan(capsys):
    with pytest.raises(SystemExit):
        run.main(["01_chunking", "--dry-run"])
    assert "-p DRY_RUN true" in capsys.readouterr().err


def test_a_key_is_refused_as_a_parameter_and_not_shown(tmp_path, capsys, monkeypatch):
    path = write_notebook(tmp_path / "tiny.ipynb", FINISH, parameters="NUMBER = 1\nNOTE = ''\n")
    key = "sk-" + "Zz9" * 12
    monkeypatch.setenv("SOME_SERVICE_API_KEY", "hunter2hunter2hunter2")
    for name, value in (("NOTE", key), ("NUMBER", key), ("NOTE", "use hunter2hunter2hunter2")):
        assert run.main([str(path), "-p", name, value]) == 2
        shown = capsys.readouterr()
        assert f"{name}: looks like a key" in shown.err and value not in shown.out + shown.err
    assert not any(key.encode() in f.read_bytes() for f in tmp_path.rglob("*") if f.is_file())
