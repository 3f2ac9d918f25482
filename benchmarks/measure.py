"""Clocks and scales: pieces timed in turns, work in a process of its own, the machine in words."""

import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import time

import psutil

from rawrag_utils import paths
from rawrag_utils.paths import BadInput

COLUMNS = ["piece", "baseline", "seconds", "baseline_seconds", "ratio", "ratio_low", "ratio_high", "bound"]


def in_turns(repeats, **pieces):
    """Seconds of each piece (a function of no arguments), a list a piece, run in turns so that noise hits all alike."""
    seconds = {name: [] for name in pieces}
    for _ in range(repeats):
        for name, piece in pieces.items():
            started = time.perf_counter()
            piece()
            seconds[name].append(time.perf_counter() - started)
    return seconds


def ratio(piece, baseline, seconds, bound=""):
    """A row of ratios from `in_turns(ours=…, theirs=…)`: medians, their ratio, the extremes of ratios turn by turn.

    >>> row = ratio("ours", "theirs", {"ours": [2.0, 3.0, 2.0], "theirs": [1.0, 1.0, 1.0]})
    >>> row["ratio"], row["ratio_low"], row["ratio_high"]
    (2.0, 2.0, 3.0)
    """
    ours, theirs = (statistics.median(seconds[name]) for name in ("ours", "theirs"))
    turns = [a / b for a, b in zip(seconds["ours"], seconds["theirs"], strict=True)]
    row = [piece, baseline, ours, theirs, ours / theirs, min(turns), max(turns), bound]
    return dict(zip(COLUMNS, row, strict=True))


def apart(module, *arguments, **environment):
    """What `python -m benchmarks.<module> arguments…` prints as JSON in its last line: work whose memory is its own."""
    command = [sys.executable, "-m", f"benchmarks.{module}", *map(str, arguments)]
    told = {**os.environ, **environment}
    done = subprocess.run(command, cwd=paths.ROOT, env=told, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        raise BadInput(f"benchmarks.{module} {' '.join(map(str, arguments))}: ended with {done.returncode}, see above")
    return json.loads(done.stdout.splitlines()[-1])


def peak():
    """Bytes of memory that this process held at most until now."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def machine():
    """The machine in words a reader can compare with: processor, cores, memory, system. No names."""
    return {
        "processor": _processor(),
        "cores": psutil.cpu_count(logical=False) or os.cpu_count(),
        "memory_gb": round(psutil.virtual_memory().total / 1e9),
        "system": f"{platform.system()} {platform.machine()}, Python {platform.python_version()}",
    }


def _processor():
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            return next(line.partition(":")[2].strip() for line in file if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()
