"""Grids: what they refuse before anything starts, and that a run that fails or is killed costs nothing but itself."""

import contextlib
import os
import pathlib
import secrets
import signal
import subprocess
import sys
import tempfile

import pandas as pd
import psutil
import pytest
import yaml
from test_run import FINISH, gone, wait_for, write_notebook

from rawrag_utils import grid, paths, results, scale
from rawrag_utils.paths import BadInput

# Numbers of the parameters and of the environment, so that two engines can be seen to have given both the same.
MEASURE = """
import pandas as pd
rows = [dict(variant=f"n{NUMBER}", metric="threads", category="all", n=1, value=float(os.environ["OMP_NUM_THREADS"]))]
results.save_table(run, rows)
results.save_per_question(run, pd.DataFrame({"query_id": ["q"], "share": [SHARE / 3]}))
_ = results.finish(run)
"""
# Whoever runs this notebook, the parent of its kernel, is killed by it as often as `times` says.
KILLER = """
marks = pathlib.Path({marks!r})
if NUMBER == 2 and len(list(marks.glob("*"))) < {times}:
    (marks / str(time.time_ns())).touch()
    os.kill({victim}, 9)
    time.sleep(60)
"""


@pytest.fixture(autouse=True)
def roots(tmp_path, monkeypatch):
    """Nothing a test runs may land in the checkout."""
    monkeypatch.setenv("RAWRAG_RUNS", str(tmp_path / "runs"))
    monkeypatch.delenv("FORCE", raising=False)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)


def write_grid(tmp_path, notebook, **parameters):
    file = tmp_path / "few.yaml"
    file.write_text(yaml.safe_dump([{"notebook": str(notebook), "parameters": parameters}]), encoding="utf-8")
    return file


def killer(tmp_path, times, victim="os.getppid()"):
    marks = tmp_path / "marks"
    marks.mkdir()
    return write_notebook(tmp_path / "n.ipynb", KILLER.format(marks=str(marks), times=times, victim=victim), MEASURE)


def start(file, *arguments, **environment):
    """The grid as a program of its own, for what ends programs."""
    return subprocess.Popen(
        [sys.executable, "-m", "rawrag_utils.scale", "grid", str(file), *arguments],
        cwd=paths.ROOT,
        env={**os.environ, **environment},
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def result_files(root):
    """{path below `root`: bytes} of what runs left there, without provenance, executed copies and logs."""
    listed = [p for p in pathlib.Path(root).rglob("*") if p.suffix in (".csv", ".parquet") and ".grid" not in p.name]
    return {p.relative_to(root).as_posix(): p.read_bytes() for p in listed}


# --------------------------------------------------------------------------------------------------------- what to run


def test_every_combination_once_in_the_order_of_the_file(tmp_path):
    notebook = write_notebook(tmp_path / "n.ipynb", FINISH)
    steps = grid.read(write_grid(tmp_path, notebook, TEXT="b", NUMBER=[1, 2, 1], LIST=[[1], [2, 3]]))
    found = [(s.parameters["NUMBER"], s.parameters["LIST"]) for s in steps]
    assert found == [(n, some) for some in ([1], [2, 3]) for n in (1, 2)]
    assert steps[3].name == "n  TEXT=b  NUMBER=2  LIST=[2, 3]" and steps[3].parameters["SHARE"] == 0.5
    (step,) = grid.read(write_grid(tmp_path, notebook, LIST=[2, 3]))
    assert step.parameters["LIST"] == [2, 3]


def test_the_grid_that_comes_along_can_be_run():
    names = [step.path.stem for step in grid.read("notebooks/params/grid_windows.yaml")]
    assert names == ["01_chunking"] * 6 + ["02_embedding"] * 3


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{notebook: n}", "few.yaml: wanted a list of"),
        ("[]", "few.yaml: wanted a list of"),
        ("- {notebook: nosuch}", "few.yaml: entry 1: nosuch: no such notebook"),
        ("- {notebook: N, parameters: {NUMBERS: [1]}}", "entry 1: NUMBERS: unknown parameter; this notebook has TEXT"),
        ("- {notebook: N}\n- {notebook: N, parameters: {NUMBER: [1, x]}}", "entry 2: NUMBER='x': wanted a value of"),
        ("- {notebook: N, axes: {}}", "entry 1: wanted {notebook: NAME"),
        ("- {notebook: N, parameters: {NUMBER: []}}", "an axis is an empty list"),
        ("- {notebook: 01_chunking, parameters: {CHUNK_SIZE: [64], CHUNK_OVERLAP: [8, 64]}}", "must be smaller than"),
        ("- {notebook: 04_hyde, parameters: {DRY_RUN: true}}", "a dry run leaves no results"),
        ("- [", "few.yaml: line 1 is not YAML"),
        ("- {notebook: 02_embedding, parameters: {CATEGORIES: true}}", "CATEGORIES=True: wanted a value of kind list"),
        ("- {notebook: 02_embedding, parameters: {CATEGORIES: [2024-05-01]}}", "few.yaml: a value is no number, text"),
        ("- {notebook: N, parameters: {NUMBER: &a [*a]}}", "few.yaml: an alias (*name) is not read"),
        (f"- {{notebook: N, parameters: {{NUMBER: {list(range(101))}, TEXT: {['x'] * 101}}}}}", "10,201 combinations"),
    ],
)
def test_a_fault_in_the_file_is_one_line_before_anything_starts(tmp_path, capsys, content, message):
    notebook = write_notebook(tmp_path / "n.ipynb", FINISH)
    file = tmp_path / "few.yaml"
    file.write_text(content.replace("notebook: N", f"notebook: {notebook}"), encoding="utf-8")
    assert scale.main(["grid", str(file)]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1 and not (tmp_path / "runs").exists()


@pytest.mark.parametrize(("engine", "workers", "threads"), [("slurm", 1, 1), ("local", 0, 1), ("local", 1, 0)])
def test_unknown_engine_and_no_workers_are_refused(tmp_path, engine, workers, threads):
    with pytest.raises(BadInput, match="no such engine; there are local, ray|whole numbers from 1"):
        grid.execute(write_grid(tmp_path, "01_chunking"), engine, workers, threads)


# ------------------------------------------------------------------------------------------------- how runs may end


def test_one_failing_cell_fails_its_run_only_and_the_rest_is_skipped_next_time(tmp_path, capsys):
    notebook = write_notebook(tmp_path / "n.ipynb", "# Work", "assert NUMBER != 2, 'no twos'", MEASURE)
    file = write_grid(tmp_path, notebook, NUMBER=[1, 2, 3])
    assert scale.main(["grid", str(file), "--workers", "2"]) == 1
    out, err = capsys.readouterr()
    lines = out.splitlines()
    assert lines[0].split() == ["run", "state", "seconds", "reason"] and lines[4] == "2 done, 1 failed"
    assert lines[1].startswith("n  ") and " done " in lines[1] and " done " in lines[3]
    assert " failed " in lines[2] and "n: cell 4 (Work): AssertionError: no twos; see" in lines[2]
    assert "3 runs, 0 of them finished before" in err and "[3/3] n" in err and "; 1 left, about" in err
    table = pd.read_csv(tmp_path / "runs" / "few.grid.csv")
    assert list(table["state"]) == ["done", "failed", "done"] and table["reason"].isna().tolist() == [True, False, True]

    assert scale.main(["grid", str(file)]) == 1
    assert "1 failed" in (last := capsys.readouterr().out.splitlines()[-2]) and "2 skipped" in last


def test_a_run_whose_process_is_killed_is_started_again(tmp_path):
    file = write_grid(tmp_path, killer(tmp_path, times=2), NUMBER=[1, 2])
    outcomes = grid.execute(file, workers=2)
    assert [o.state for o in outcomes] == ["done", "done"] and len(list((tmp_path / "marks").iterdir())) == 2


def test_a_run_that_is_always_killed_fails_alone(tmp_path):
    file = write_grid(tmp_path, killer(tmp_path, times=99), NUMBER=[1, 2])
    outcomes = grid.execute(file, workers=2)
    assert [o.state for o in outcomes] == ["done", "failed"]
    assert "killed 3 times" in outcomes[1].reason and len(list((tmp_path / "marks").iterdir())) == 3


def test_a_run_whose_kernel_is_killed_is_started_again(tmp_path):
    file = write_grid(tmp_path, killer(tmp_path, times=1, victim="os.getpid()"), NUMBER=[2])
    (outcome,) = grid.execute(file)
    assert outcome.state == "done" and results.read_run(outcome.folder / "n.run.json")


def halting(tmp_path):
    """A notebook whose second run, once its kernel's pid is in a file, hangs until `go` exists."""
    wait = f"""
if NUMBER == 2:
    pathlib.Path({str(tmp_path / "part")!r}).write_text(f"{{os.getpid()}} {{os.getppid()}}")
    os.rename({str(tmp_path / "part")!r}, {str(tmp_path / "pid")!r})
    while not os.path.exists({str(tmp_path / "go")!r}):
        time.sleep(0.1)
"""
    return write_grid(tmp_path, write_notebook(tmp_path / "n.ipynb", wait, MEASURE), NUMBER=[1, 2, 3])


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_grid_that_is_stopped_halfway_leaves_nothing_behind_and_goes_on(tmp_path, capsys, number):
    file = halting(tmp_path)
    process = start(file, "--workers", "1")
    wait_for((tmp_path / "pid").exists, 240)
    process.send_signal(number)
    err = process.communicate(timeout=240)[1]
    kernel, worker = map(int, (tmp_path / "pid").read_text().split())
    wait_for(lambda: gone(kernel) and gone(worker))
    if number == signal.SIGTERM:
        assert process.returncode == 130 and err.splitlines()[-1].startswith("stopped; what is finished is kept")
        states = list(pd.read_csv(tmp_path / "runs" / "few.grid.csv")["state"])
        assert states == ["done", "not run", "not run"] and "Traceback" not in err
    (tmp_path / "go").touch()
    assert scale.main(["grid", str(file)]) == 0
    assert capsys.readouterr().out.splitlines()[-2] in ("1 skipped, 2 done", "2 done, 1 skipped")


# ----------------------------------------------------------------------------------------------------------------- Ray


@pytest.fixture(scope="module")
def nodes():
    """A cluster of one node as the README starts it, on the loopback address: the environment of who may use it."""
    with tempfile.TemporaryDirectory(prefix="ray", dir="/tmp", ignore_cleanup_errors=True) as name:  # sockets: short
        folder = pathlib.Path(name)
        (folder / "token").write_text(secrets.token_hex(32))
        told = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(folder / "token")}
        told |= {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_USAGE_STATS_ENABLED": "0"}  # the first: as grid.cluster
        command = "start --head --block --port 0 --node-ip-address 127.0.0.1 --num-cpus 2 --include-dashboard false"
        command += f" --object-store-memory 100000000 --temp-dir {folder}"
        with open(folder / "log", "w") as log:
            head = psutil.Popen(
                [sys.executable, "-m", "ray.scripts.scripts", *command.split()],
                cwd=paths.ROOT,
                env={**os.environ, **told},
                stdout=log,
                stderr=log,
            )
        try:
            started = folder / "ray_current_cluster"
            wait_for(lambda: head.poll() is not None or (started.exists() and started.read_text()), 240)
            assert head.poll() is None, (folder / "log").read_text()
            yield told | {"RAY_ADDRESS": started.read_text()}
        finally:  # by their ids: ray stop would end every Ray of this machine
            processes = [head, *head.children(recursive=True)]
            for process in processes:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            assert not psutil.wait_procs(processes, 60)[1]


def test_both_engines_leave_the_same_files_though_a_worker_of_the_cluster_is_killed(tmp_path, nodes):
    notebook = killer(tmp_path, times=1)
    file = write_grid(tmp_path, notebook, NUMBER=[1, 2], SHARE=[0.5, 0.7])
    file.write_text(file.read_text() + f"- {{notebook: {notebook}, parameters: {{TEXT: x, SHARE: 0.9}}}}\n")
    process = start(file, "--engine", "ray", "--workers", "2", RAWRAG_RUNS=str(tmp_path / "over_ray"), **nodes)
    out, err = process.communicate(timeout=240)
    assert process.returncode == 0 and out.splitlines()[-2] == "5 done", err
    assert len(list((tmp_path / "marks").iterdir())) == 1  # it was killed
    assert {o.state for o in grid.execute(file, workers=2)} == {"done"}
    there = result_files(tmp_path / "over_ray")
    assert there == result_files(tmp_path / "runs") and len(there) == 10
    assert [line for line in err.splitlines() if "[" not in line] == ["5 runs, 0 of them finished before; engine ray"]


def test_a_wrong_token_is_one_line(tmp_path, nodes):
    (tmp_path / "token").write_text(secrets.token_hex(32))
    file = write_grid(tmp_path, write_notebook(tmp_path / "n.ipynb", FINISH))
    mine = {"RAY_AUTH_TOKEN_PATH": str(tmp_path / "token"), "RAY_NUM_REDIS_GET_RETRIES": "3"}  # Ray: 20, a second each
    process = start(file, "--engine", "ray", **nodes | mine)
    err = process.communicate(timeout=240)[1].splitlines()
    assert process.returncode == 2 and len(err) == 2, err
    assert err[1].startswith(f"error: RAY_ADDRESS={nodes['RAY_ADDRESS']}: no cluster (") and "or the token" in err[1]
    assert not list((tmp_path / "runs").rglob("*.run.json"))


def test_a_cluster_that_does_not_answer_is_one_line(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    file = write_grid(tmp_path, write_notebook(tmp_path / "n.ipynb", FINISH))
    process = start(file, "--engine", "ray")
    err = process.communicate(timeout=120)[1]
    assert process.returncode == 2 and "RAY_ADDRESS=127.0.0.1:1: no cluster" in err.splitlines()[-1], err
