"""Kill the plan of the sample data set with SIGKILL at random moments, again and again, and let the next run go on.

    python tests/torture.py --kills 50

A round begins with nothing but weights. Its run is killed a few times, then completes, and must leave what an
undisturbed run leaves: the same files, of which tables, per-question numbers and figures are equal to the byte, a
report of them, no process, and nothing unfinished. Left out is what is measured in seconds. After every kill each
record of a finished run (run.json) must have its files beside it, whole. The chat model is a server on this machine's
loopback. Exit status 0 where all held.
"""

import argparse
import contextlib
import os
import pathlib
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from typing import NamedTuple

import psutil
import servers
import yaml

from rawrag_utils import findings, models, paths, report, results, weights

NOTEBOOKS = {  # the plan, with few questions and few sizes: a run takes a minute, two thirds of it to import torch
    "01_chunking": {"QUESTIONS": 12, "CHUNK_SIZES": [256, 448]},
    "02_embedding": {"QUESTIONS": 12, "CHUNK_SIZES": [448], "BM25_SIZES": []},
    "03_reranking": {"QUESTIONS": 12, "CHUNK_SIZES": [448], "POOLS": [15], "TURN_SIZES": [1]},
    "04_hyde": {"QUESTIONS": 12, "ANSWERS": 2},
    "05_multi_query": {"QUESTIONS": 12, "ANSWERS": 2},
    "06_router": {"QUESTIONS": 12, "ANSWERS": 2},
    "07_answer_evaluation": {"QUESTIONS": 12, "ADVERSARIAL": 2, "GOLDS": 4},
}
READ = ("rawrag_utils", "notebooks", "data/sample", "results/locomo/local/03_reranking_weights.csv")
ROUND = 6  # kills, at most, before a run may complete
SOON = 12  # seconds, at least, among which the moment of a kill is drawn
PATIENCE = 15  # seconds in which what a killed runner started must have ended by itself
LIMIT = 600  # seconds that no run takes


class Wrong(Exception):
    """What did not hold. The message is one line."""


class Place(NamedTuple):
    """A checkout of its own and the folders of a round."""

    checkout: pathlib.Path
    folder: pathlib.Path
    address: str

    @property
    def environment(self):
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("RAWRAG_", "OPENAI_"))}
        own = {f"RAWRAG_{name.upper()}": str(self.folder / name) for name in ("runs", "results", "cache")}
        told = {"OPENAI_BASE_URL": self.address, "OPENAI_API_KEY": "none", "NO_PROXY": "127.0.0.1"}
        told |= {"PYTHONPATH": str(self.checkout), "PYTHONDONTWRITEBYTECODE": "1", "TMPDIR": str(self.folder / "tmp")}
        return kept | own | told | {"FORCE": ""}


# ------------------------------------------------------------------------------------------------------------- a place


def checkout(folder, notebooks):
    """A copy of what a run reads, in `folder`, with a plan of `notebooks` and a profile whose chat is an endpoint."""
    for name in READ:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        if (paths.ROOT / name).is_file():
            shutil.copy(paths.ROOT / name, folder / name)
        else:
            shutil.copytree(paths.ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__", ".*"))
    plan = {"sample": [{"notebook": name, "parameters": given} for name, given in notebooks.items()]}
    stub = {"extends": "local", "chat": {"kind": "endpoint", "model": "pretended", "max_context": 32768}}
    for name, content in (("plan", plan), ("stub", stub)):
        (folder / f"notebooks/params/{name}.yaml").write_text(yaml.safe_dump(content, sort_keys=False))
    return folder


def emptied(place, warm=None):
    """The place as a round finds it: a cache of the encoder's weights, and of the vectors of `warm`, another place."""
    shutil.rmtree(place.folder, ignore_errors=True)
    source = pathlib.Path(weights.encoder_folder(models.profile("local").embedder))
    (place.folder / "tmp").mkdir(parents=True)
    (place.folder / "cache/weights").mkdir(parents=True)
    (place.folder / "cache/weights" / source.name).symlink_to(source)
    if warm:
        shutil.copytree(warm.folder / "cache/vectors", place.folder / "cache/vectors")
    return place


def files(place):
    """Names of all files below the place's folder, sorted."""
    return sorted(path.relative_to(place.folder).as_posix() for path in place.folder.rglob("*") if path.is_file())


# ---------------------------------------------------------------------------------------------------------------- runs


def start(place):
    """The plan as a program of its own; what it says goes to a file beside the place's folder."""
    command = [sys.executable, "-m", "rawrag_utils.run", "--plan", "sample", "--profile", "stub"]
    with open(said(place), "w", encoding="utf-8") as log:
        return subprocess.Popen(command, cwd=place.checkout, env=place.environment, stdout=log, stderr=log)


def said(place):
    return place.folder.with_suffix(".log")


def complete(place):
    """Let a run end by itself; seconds it took. Raises `Wrong` with its last line where it did not end well."""
    started = time.monotonic()
    status = start(place).wait(LIMIT)
    if status:
        last = [*said(place).read_text(encoding="utf-8").splitlines(), "nothing said"][-1]
        raise Wrong(f"a run ended with status {status}: {last}")
    return time.monotonic() - started


def alive(place):
    """The processes that belong to the place, by their environment."""
    found, mark = [], str(place.folder / "runs")
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.status() != psutil.STATUS_ZOMBIE and process.environ().get("RAWRAG_RUNS") == mark:
                found.append(process)
    return found


def kill(place, process, whole):
    """SIGKILL to the runner and, where `whole`, to all that it started; else they must end by themselves."""
    process.kill()
    process.wait()
    end = time.monotonic() + PATIENCE
    while left := alive(place):
        for one in left if whole else ():
            with contextlib.suppress(psutil.NoSuchProcess):
                one.send_signal(signal.SIGKILL)
        if time.monotonic() > end:
            raise Wrong(f"{len(left)} processes live on {PATIENCE} s after the kill: {left[0].name()}")
        time.sleep(0.1)


def reached(place):
    """Where a run stood, from what it said: `[2/7] 02_embedding, cell 3`."""
    text = said(place).read_text(encoding="utf-8")
    step = (re.findall(r"^(\[\d+/\d+\] \w+)(?!.*skipped)", text, re.MULTILINE) or ["before the first notebook"])[-1]
    cells = re.findall(r"^  cell +(\d+)/", text.rpartition(step)[2], re.MULTILINE)
    return f"{step}, cell {int(cells[-1]) + 1 if cells else 1}" if step.startswith("[") else step


# ------------------------------------------------------------------------------------------------------------- compare


def whole(place):
    """Raise `Wrong` where a record of a finished run stands beside a file that is not as the record has it."""
    for record in place.folder.rglob("*.run.json"):
        for name, digest in results.read_run(record)["files"].items():
            if not (record.parent / name).is_file() or paths.sha256(record.parent / name) != digest:
                raise Wrong(f"{record.relative_to(place.folder)} is there, but {name} is not what it lists")


def compare(reference, place):
    """Raise `Wrong` with the first difference between what two completed runs left."""
    wanted, found = files(reference), files(place)
    if wanted != found:
        more, less = sorted(set(found) - set(wanted)), sorted(set(wanted) - set(found))
        raise Wrong(f"left behind: {more[:3]}, missing: {less[:3]}")
    for name in wanted:
        compared = name.startswith("results/sample/") and not name.endswith(".run.json")
        if compared and content(reference.folder / name) != content(place.folder / name):
            raise Wrong(f"{name} differs from the undisturbed run's")
    root = place.folder / "results"
    for name, text in report.build(findings.collect(root), root).items():  # it shows seconds: only its own tables tell
        if (root / name).read_text(encoding="utf-8") != text:
            raise Wrong(f"{name} is not the report of the tables beside it")


def content(path):
    """What must be equal of a file: its bytes, of tables without what is measured in seconds."""
    import pandas as pd

    if path.suffix == ".parquet":
        frame = pd.read_parquet(path)
        return frame.drop(columns=[c for c in frame if c.endswith("_seconds")]).to_csv()
    if path.suffix == ".csv":
        return [line for line in path.read_text(encoding="utf-8").splitlines() if "_seconds," not in line]
    return path.read_bytes()


# --------------------------------------------------------------------------------------------------------------- kills


def disturbed(place, reference, seconds, kills, draw, tell):
    """A round of at most `kills` kills, then a run that completes; how many there were.

    `seconds` is what a whole run takes. The first kill falls anywhere in it, each further one soon after it went on.
    """
    for number in range(kills):
        process = start(place)
        moment = draw.uniform(0, seconds if number == 0 else max(seconds / 6, SOON))
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(moment)
            kills = number  # it was done before
            break
        everything, where = draw.random() < 0.75, reached(place)
        kill(place, process, everything)
        whole(place)
        tell(f"  killed {'all' if everything else 'the runner'} after {moment:5.1f} s, at {where}")
    took = complete(place)
    if left := alive(place):
        raise Wrong(f"{len(left)} processes live on after the run: {left[0].name()}")
    whole(place)
    compare(reference, place)
    tell(f"  completed in {took:.0f} s: files, tables and figures are those of the undisturbed run")
    return kills


def torture(kills, seed, notebooks=NOTEBOOKS, tell=print):
    """Kill runs of a plan of `notebooks` so often, at moments drawn with `seed`. Raises `Wrong`; `tell` takes lines."""
    draw, done, number, started = random.Random(seed), 0, 0, time.monotonic()
    with tempfile.TemporaryDirectory(prefix="rawrag torture ") as top, servers.serving(servers.pretended) as server:
        folder, address = pathlib.Path(top).resolve(), f"http://127.0.0.1:{server.server_port}/v1"
        copy = checkout(folder / "checkout", notebooks)
        reference = emptied(Place(copy, folder / "undisturbed", address))
        seconds = complete(reference)
        whole(reference)
        size = f"{len(notebooks)} notebooks takes {seconds:.0f} s and leaves {len(files(reference))} files"
        tell(f"seed {seed}; a run of {size}")
        while done < kills:
            number += 1
            warm = number % 2 == 1  # half of the rounds: then most kills fall where no vectors are made
            tell(f"round {number}, {done} of {kills} kills done, {'vectors' if warm else 'nothing'} in the cache")
            place = emptied(Place(copy, folder / "disturbed", address), reference if warm else None)
            share = 0.6 if warm else 0.9
            try:
                done += disturbed(place, reference, seconds * share, min(ROUND, kills - done), draw, tell)
            finally:
                for process in alive(place):
                    process.kill()
    tell(f"{done} kills in {(time.monotonic() - started) / 60:.0f} min: all held")


def main(arguments=None):
    """The command line; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    given = parser.parse_args(arguments)
    try:
        torture(given.kills, given.seed, tell=lambda line: print(line, flush=True))
    except Wrong as error:
        print(f"FAILED: {error}", flush=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
