"""Grids: every combination of notebooks and parameter values, each run in a process of its own, here or over Ray.

A grid file is a YAML list like the plan's; a parameter with a list of values is an axis:

    - notebook: 02_embedding
      parameters: {DATASET: locomo, CHUNK_SIZE: [128, 256], CHUNK_OVERLAP: [16, 32]}

A parameter that is a list itself (CATEGORIES) is an axis where its values are lists. Runs land under `runs/` as all
others do; those that are finished are skipped, so a grid that was stopped goes on.
"""

import collections
import contextlib
import io
import itertools
import json
import math
import multiprocessing
import multiprocessing.connection
import os
import pathlib
import signal
import socket
import threading
import time
from typing import NamedTuple

from rawrag_utils import execution, paths, results, run
from rawrag_utils.execution import Dry, Failed, say
from rawrag_utils.paths import BadInput

ENGINES = ("local", "ray")
MOST = 10_000  # combinations of an entry: more are a slip of the pen, and hours before the first one starts
RETRIES = 2  # times a run is started again whose process or kernel was killed
OBJECT_STORE = 500_000_000  # bytes of shared memory of an embedded Ray: what streams through it is small
STARTS = 3  # times an embedded Ray is started: its parts wait 15 s for each other, too short for a cold or busy disk
REACH = 10  # seconds to wait for a cluster's first node; Ray itself would ask for minutes


class Step(NamedTuple):
    """One run of a grid: the notebook's path, all its parameters, and what a person calls it."""

    path: pathlib.Path
    parameters: dict
    name: str


class Outcome(NamedTuple):
    """How a run ended: `done`, `skipped` (finished before), `failed` or `not run`; why, seconds, and its folder."""

    run: str
    state: str
    seconds: float
    reason: str
    folder: pathlib.Path


# --------------------------------------------------------------------------------------------------------- what to run


def combinations(given, defaults):
    """Every combination of the values in `given`, a list of dicts in the order of the file, the last axis fastest.

    A list is an axis; for a parameter whose default in `defaults` is a list, a list of lists is.

    >>> combinations({"POOL": [30, 50], "CATEGORIES": [1, 2]}, {"POOL": 50, "CATEGORIES": [1]})
    [{'POOL': 30, 'CATEGORIES': [1, 2]}, {'POOL': 50, 'CATEGORIES': [1, 2]}]
    >>> len(combinations({"CATEGORIES": [[1], [2]], "POOL": [30, 50]}, {"POOL": 50, "CATEGORIES": [1]}))
    4
    """

    def values(name, value):
        if not isinstance(value, list):
            return [value]
        kept_whole = isinstance(defaults.get(name), list) and not (value and all(isinstance(v, list) for v in value))
        return [value] if kept_whole else value

    axes = [[(name, v) for v in values(name, value)] for name, value in given.items()]
    if (count := math.prod(map(len, axes))) > MOST:
        raise BadInput(f"{count:,} combinations; a grid may have {MOST:,}, give its axes fewer values")
    return [dict(chosen) for chosen in itertools.product(*axes)]


def read(file):
    """The `Step`s of a grid file, each combination once. Raises `BadInput` with the place of the first fault.

    All of them are checked before the first one starts: unknown parameters, values of another kind, windows that would
    not move on.
    """
    file, steps = paths.resolve(file), {}
    entries = paths.read_yaml(file)
    if not isinstance(entries, list) or not entries:
        raise BadInput(f"{paths.relative(file)}: wanted a list of {{notebook: NAME, parameters: {{NAME: [values]}}}}")
    for number, entry in enumerate(entries, 1):
        place = f"{paths.relative(file)}: entry {number}"
        path, given = run.read_entry(entry, place)
        try:
            defaults = results.declared(path)
            for chosen in combinations(given, defaults):
                parameters = run.checked(chosen, defaults)
                if parameters.get("DRY_RUN"):
                    raise BadInput("DRY_RUN: a dry run leaves no results; leave it out, ask make estimate instead")
                name = "  ".join((path.stem, *run.worth_saying(parameters, defaults)))
                key = str(path), json.dumps(parameters, sort_keys=True)
                steps.setdefault(key, Step(path, parameters, name))
        except BadInput as error:
            raise BadInput(f"{place}: {error}") from error
    if not steps:
        raise BadInput(f"{paths.relative(file)}: an axis is an empty list, so there is nothing to run; give it values")
    return list(steps.values())


# ------------------------------------------------------------------------------------------------------------- one run


def attempt(path, parameters, threads, force, silence):
    """Run one notebook to its end in this process; returns (state, seconds, reason). What every worker does.

    `threads` is OMP_NUM_THREADS of its kernel: engines that set it themselves would give other last digits. A kernel
    that was killed is started again, up to `RETRIES` times.
    """
    os.environ["OMP_NUM_THREADS"] = str(threads)
    started, state, reason = time.monotonic(), "failed", ""
    for _ in range(RETRIES + 1):
        try:
            with contextlib.redirect_stderr(io.StringIO()):  # cell by cell is too much where many run at a time
                folder = run.run_notebook(pathlib.Path(path), parameters, force=force, silence=silence)
            state, reason = _judged(folder, path, parameters)
            break
        except execution.Died as error:
            reason = f"{error} (started {RETRIES + 1} times)"
        except (Failed, BadInput, Dry) as error:
            reason = str(error)
            break
        except Exception as error:  # a full disk, a fault of ours: the other runs go on, the summary names it
            reason = f"{type(error).__name__}: {error}"
            break
    return state, time.monotonic() - started, " ".join(reason.split())


def _judged(folder, path, parameters):
    path = pathlib.Path(path)
    if run.finished(folder, path.stem, results.run_id(path, parameters)):
        return "done", ""
    return "failed", f"ended without the files of results.finish, or its inputs changed; see {execution.where(folder)}"


# ------------------------------------------------------------------------------------------------------------- engines


def _local(steps, workers, *settings):
    """Yields (place in `steps`, (state, seconds, reason)) as runs end, each in a process of its own."""
    context = multiprocessing.get_context("spawn")  # a forked process would share locks with threads that are not there
    waiting, running = collections.deque((place, 0) for place in range(len(steps))), {}
    try:
        while waiting or running:
            while waiting and len(running) < workers:
                place, tries = waiting.popleft()
                receive, send = context.Pipe(duplex=False)
                arguments = send, str(steps[place].path), steps[place].parameters, *settings
                process = context.Process(target=_child, args=arguments)
                process.start()
                send.close()
                running[receive] = place, tries, process
            for receive in multiprocessing.connection.wait(list(running)):
                place, tries, process = running.pop(receive)
                with receive:
                    outcome = _received(receive)
                process.join()
                if outcome is None and tries < RETRIES:
                    waiting.appendleft((place, tries + 1))
                else:
                    yield place, outcome or _killed()
    finally:  # stopped: each child shuts its kernel down
        for _, _, process in running.values():
            process.terminate()
        for _, _, process in running.values():
            process.join()


def _received(connection):
    try:
        return connection.recv()
    except (EOFError, ConnectionError):  # it was killed
        return None


def _killed():
    return "failed", 0.0, f"its process was killed {RETRIES + 1} times, perhaps for want of memory"


def _child(connection, *arguments):
    """`attempt` in a process of its own: stopped like the runner itself, and gone when the grid's process is gone."""

    def stop(number, frame):
        for s in (signal.SIGINT, signal.SIGTERM):
            signal.signal(s, signal.SIG_IGN)
        raise KeyboardInterrupt

    def watch():
        multiprocessing.parent_process().join()
        os.kill(os.getpid(), signal.SIGTERM)

    for s in (signal.SIGINT, signal.SIGTERM):
        signal.signal(s, stop)
    threading.Thread(target=watch, daemon=True).start()
    with contextlib.suppress(KeyboardInterrupt):
        connection.send(attempt(*arguments))


def _ray(steps, workers, threads, force, silence):
    """The same with one Ray task a run, `threads` processors each."""
    with cluster(workers * threads) as ray:
        task = ray.remote(num_cpus=threads, max_retries=RETRIES)(attempt)
        places = {task.remote(str(s.path), s.parameters, threads, force, silence): i for i, s in enumerate(steps)}
        while places:
            for done in ray.wait(list(places))[0]:
                try:
                    outcome = ray.get(done)
                except (ray.exceptions.WorkerCrashedError, ray.exceptions.OutOfMemoryError):
                    outcome = _killed()
                except ray.exceptions.RayError as error:  # the cluster's own fault: of this run, not of the grid
                    outcome = "failed", 0.0, f"Ray: {type(error).__name__}: {' '.join(str(error).split())[:300]}"
                yield places.pop(done), outcome


@contextlib.contextmanager
def cluster(processors):
    """Ray as long as the block lasts: the cluster at RAY_ADDRESS, else an embedded one of so many `processors`.

    Yields the module `ray`. The embedded one listens on the loopback address only. Nothing is sent home. Raises
    `BadInput` where Ray is not installed, does not start or is not reached.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # else a warning; tasks here ask for no GPU
    address = os.environ.get("RAY_ADDRESS")
    if not address:  # read at import: the loopback address, as Ray takes on macOS, and no port open to the network
        os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
    try:
        import ray
    except ImportError as error:
        raise BadInput("Ray is not installed; run pip install -e '.[scale]', or make setup") from error
    if address:
        # Nodes have their own environment. Not the keys: a runtime environment is shown in Ray's dashboard.
        told = {k: v for k, v in os.environ.items() if k.startswith("RAWRAG_")}
        options = {"address": address, "runtime_env": {"env_vars": told}}
    else:
        options = {"address": "local", "num_cpus": processors, "include_dashboard": False}
        options |= {"object_store_memory": OBJECT_STORE}
    for left in reversed(range(1 if address else STARTS)):
        try:
            if address:
                _reach(ray, address)
            ray.init(logging_level="ERROR", log_to_driver=False, **options)
            break
        except Exception as error:  # Ray raises a bare one where its processes do not come up in time
            ray.shutdown()
            if not left:
                place = f"RAY_ADDRESS={address}" if address else "Ray"
                reason = str(error).partition("\n")[0][:200]
                remedy = "correct it, RAY_AUTH_MODE or the token, or unset it to embed Ray"
                raise BadInput(f"{place}: no cluster ({reason}); {remedy if address else 'run again'}") from error
    try:
        yield ray
    finally:
        ray.shutdown()


def _reach(ray, address):
    """Raises `OSError` where nobody listens at host:port; other forms (auto) are left to Ray."""
    host, _, port = address.rpartition(":")
    host = host.rpartition("/")[2].strip("[]")
    if port.isdecimal():
        here = host in ("localhost", "127.0.0.1", "::1")  # Ray takes this machine's other address for it
        socket.create_connection((ray.util.get_node_ip_address() if here else host, int(port)), REACH).close()


# ------------------------------------------------------------------------------------------------------------- a grid


def execute(file, engine="local", workers=None, threads=1, force=False, silence=run.SILENCE):
    """Run the grid of `file` and return its `Outcome`s in the file's order; a failing run fails alone.

    `workers` runs go on at a time, each with `threads` threads (default: one a processor, at most four; with `ray` on
    a cluster its processors decide). Says each run as it ends, with an estimate of what is left, and writes the
    outcomes to `runs/<file>.grid.csv`. Stopped (KeyboardInterrupt), it writes what there is and raises on.
    """
    if engine not in ENGINES:
        raise BadInput(f"engine {engine!r}: no such engine; there are {', '.join(ENGINES)}")
    if threads < 1 or (workers is not None and workers < 1):
        raise BadInput(f"workers {workers}, threads {threads}: whole numbers from 1")
    steps, started = read(file), time.monotonic()
    workers = workers or max(1, min(4, (os.cpu_count() or 1) // threads))
    outcomes = [_before(step, force) for step in steps]
    open_places = [place for place, outcome in enumerate(outcomes) if outcome.state == "not run"]
    say(f"{len(steps)} runs, {len(steps) - len(open_places)} of them finished before; engine {engine}")
    try:
        engines = {"local": _local, "ray": _ray}
        ending = engines[engine]([steps[p] for p in open_places], workers, threads, force, silence)
        for number, (place, outcome) in enumerate(ending if open_places else (), 1):
            place, (state, seconds, reason) = open_places[place], outcome
            if state == "done" and not outcomes[place].folder.exists():  # a node that keeps its files to itself
                state, reason = "failed", "its files are not here: all nodes must share the folder RAWRAG_RUNS"
            outcomes[place] = outcomes[place]._replace(state=state, seconds=seconds, reason=reason)
            rest = remaining(steps, outcomes, time.monotonic() - started)
            say(f"[{number}/{len(open_places)}] {steps[place].name}: {state}, {seconds:.0f} s{rest}")
            if reason:
                say(f"  {reason}")
    finally:
        _write(file, outcomes)
    return outcomes


def _before(step, force):
    folder, identity = run.place(step.path, step.parameters)
    known = not force and run.finished(folder, step.path.stem, identity)
    return Outcome(step.name, "skipped" if known else "not run", 0.0, "finished before" if known else "", folder)


def remaining(steps, outcomes, elapsed):
    """`; 3 left, about 2 min` for a line of progress: runs of a notebook take what its others took, else the mean.

    >>> steps = [Step(pathlib.Path("a.ipynb"), {}, "a")] * 3
    >>> outcomes = [Outcome("a", "done", 60.0, "", None)] + [Outcome("a", "not run", 0.0, "", None)] * 2
    >>> remaining(steps, outcomes, 60.0)
    '; 2 left, about 2 min'
    """
    took, left = collections.defaultdict(list), []
    for step, outcome in zip(steps, outcomes, strict=True):
        if outcome.state == "not run":
            left.append(step.path)
        elif outcome.state != "skipped":
            took[step.path].append(outcome.seconds)
    every = [s for seconds in took.values() for s in seconds]
    if not left or not sum(every):
        return ""
    mean = {path: sum(seconds) / len(seconds) for path, seconds in took.items()}
    at_a_time = max(1.0, sum(every) / elapsed)
    seconds = sum(mean.get(path, sum(every) / len(every)) for path in left) / at_a_time
    return f"; {len(left)} left, about " + (f"{seconds / 60:.0f} min" if seconds >= 60 else f"{seconds:.0f} s")


def _write(file, outcomes):
    import pandas as pd

    table = pd.DataFrame(outcomes, columns=Outcome._fields)
    table["folder"] = table["folder"].map(execution.where)
    with paths.atomic(summary_path(file)) as out:
        table.to_csv(out, index=False, float_format="%.1f", lineterminator="\n")


def summary_path(file):
    """Where the outcomes of a grid file are written: `runs/<its name>.grid.csv`, RAWRAG_RUNS heeded."""
    return paths.resolve(os.environ.get("RAWRAG_RUNS", "runs")) / f"{pathlib.Path(file).stem}.grid.csv"


def summary(outcomes):
    """Lines of the summary: a row a run with state, seconds and reason, and a last line that counts.

    >>> print(*summary([Outcome("01_chunking", "done", 3.2, "", None)]), sep="\\n")
    run          state  seconds  reason
    01_chunking  done   3.2
    1 done
    """
    rows = [(o.run, o.state, f"{o.seconds:.1f}", o.reason) for o in outcomes]
    counts = collections.Counter(o.state for o in outcomes)
    last = ", ".join(f"{n} {state}" for state, n in counts.items())
    return [*run.aligned([("run", "state", "seconds", "reason"), *rows]), last]
