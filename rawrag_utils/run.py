"""Run notebooks headlessly through papermill: one folder a run, finished runs skipped, the plan's results published.

    python -m rawrag_utils.run 02_embedding -p CHUNK_SIZE 128      one run, into runs/
    python -m rawrag_utils.run --plan locomo --profile qwen3       the data set's plan, published under results/
    python -m rawrag_utils.run --plan locomo --dry-run             what its language model would be asked, and no more
    python -m rawrag_utils.run --check locomo                      01 to 03 anew, compared with results/expected.yaml

Exit status: 0 done, 1 a notebook or the check failed, 2 input that cannot be used, 130 stopped. RAWRAG_RUNS and
RAWRAG_RESULTS name other folders than runs/ and results/, FORCE=1 repeats finished runs.
"""

import argparse
import json
import math
import os
import re
import shlex
import sys
import time

from rawrag_utils import corpus, execution, models, paths, report, results
from rawrag_utils.execution import Dry, Failed, say, where
from rawrag_utils.paths import BadInput

PROFILE = "local"
SILENCE = 1800  # seconds a cell may go without a word
MAIN = (
    "recall@15",
    "recall@1000tok",
    "turn_recall@10",
    "official_f1",
    "recall@180s",
)  # columns of the table printed at the end
LARGEST = 1e9  # that a result may be
CHECKED = ("01", "02", "03")  # what these notebooks compute is deterministic; later ones ask models


# ----------------------------------------------------------------------------------------------- parameters and plans


def parse_value(name, text, default):
    """The value that `text` from a command line stands for, by the type of the declared default.

    A string stays as it was typed, whatever it looks like; all else is YAML. Raises `BadInput`.

    >>> parse_value("QUERY", "x=1", ""), parse_value("SEED", "7", 0), parse_value("CATEGORIES", "[1, 2]", [])
    ('x=1', 7, [1, 2])
    """
    results.refuse_secret(name, text)  # before a message can show it
    if isinstance(default, str):
        return text
    try:
        return float(text) if isinstance(default, float) else paths.yaml_value(text)  # YAML takes 1e-3 for a string
    except ValueError as error:
        wanted = type(default).__name__
        raise BadInput(f"{name}={text!r:.200}: wanted a value of kind {wanted}, like {json.dumps(default)}") from error


def checked(given, defaults):
    """`results.check_parameters`, and the profile is one of those there are. Raises `BadInput`."""
    parameters = results.check_parameters(given, defaults)
    if "PROFILE" in parameters:
        _check_profile(parameters["PROFILE"])
    return parameters


def _check_profile(name):
    if name not in models.profiles():
        raise BadInput(f"PROFILE={name}: no such profile in notebooks/params; there are {', '.join(models.profiles())}")


def split_assignments(text):
    """(name, text) pairs of a shell-like line of assignments. Raises `BadInput`.

    >>> split_assignments("A=1 B='x = y'")
    [('A', '1'), ('B', 'x = y')]
    """
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise BadInput(f"--set {text}: {error}; quote values with blanks like B='x y'") from error
    if wrong := [w for w in words if not re.match(r"\w+=", w)]:
        raise BadInput(f"--set {text}: {wrong[0]!r} is not NAME=VALUE; quote values with blanks like B='x y'")
    return [tuple(w.split("=", 1)) for w in words]


def plan(dataset, profile):
    """The data set's runs in order, as (notebook path, parameters), and whether they are to be published.

    All of them are checked here, so that the last one's misspelt parameter shows before the first one starts.
    Raises `BadInput` with the place in plan.yaml.
    """
    file = paths.params() / "plan.yaml"
    lists = paths.read_yaml(file)
    if not isinstance(lists, dict) or "sample" not in lists:
        raise BadInput(f"{paths.relative(file)}: wanted lists of runs by data set, sample among them")
    published = dataset in lists
    if not published:
        corpus.locate(dataset)  # says so where there is no such file
    _check_profile(profile)
    name, steps = dataset if published else "sample", []
    entries = lists[name] if isinstance(lists[name], list) else [None]
    for number, entry in enumerate(entries, 1):
        place = f"{paths.relative(file)}: {name}, entry {number}"
        path, given = read_entry(entry, place)
        try:
            defaults = results.declared(path)
            common = {k: v for k, v in (("DATASET", dataset), ("PROFILE", profile)) if k in defaults}
            if path in [p for p, _ in steps]:
                raise BadInput(f"{path.stem} is listed twice; the second table would replace the first")
            if profile != PROFILE and "PROFILE" in given:  # named on the command line
                given = {**given, "PROFILE": profile}
            steps.append((path, checked({**common, **given}, defaults)))
        except BadInput as error:
            raise BadInput(f"{place}: {error}") from error
    return steps, published


def read_entry(entry, place):
    """(notebook path, parameters as written) of an entry of a plan or a grid. Raises `BadInput` naming the `place`."""
    if not (
        isinstance(entry, dict)
        and isinstance(entry.get("notebook"), str)
        and entry.keys() <= {"notebook", "parameters"}
        and isinstance(entry.get("parameters", {}), dict)
    ):
        raise BadInput(f"{place}: wanted {{notebook: NAME, parameters: {{NAME: value}}}}, found {entry!r}")
    try:
        return results.notebook_path(entry["notebook"]), entry.get("parameters", {})
    except BadInput as error:
        raise BadInput(f"{place}: {error}") from error


# ------------------------------------------------------------------------------------------------------------ one run


def run_notebook(path, parameters, *, force=False, silence=SILENCE, title=""):
    """Run the notebook at `path` with all its `parameters` unless it is finished; returns the run's folder.

    Raises `BadInput` when the same run is going on elsewhere, `Failed` when a cell fails, falls silent for `silence`
    seconds or its kernel dies. What was executed by then stays in the folder as `<notebook>.ipynb`.
    """
    import filelock

    folder, identity = place(path, parameters)
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with filelock.FileLock(folder / ".lock", timeout=0):
            # Both are left by a run that was killed, perhaps when all but this was done.
            paths.sweep(folder)
            execution.clear(folder)
            if finished(folder, path.stem, identity) and not force:
                say(f"{title}  finished before, skipped (FORCE=1 repeats it)")
                return folder
            # A repeated run that is killed half-way must not look finished.
            (folder / f"{path.stem}.run.json").unlink(missing_ok=True)
            say("  ".join((title, *worth_saying(parameters, results.declared(path)))))
            execution.execute(path, parameters, folder, silence)
    except filelock.Timeout as error:
        raise BadInput(f"{path.stem}: this very run is already going on in {where(folder)}; wait for it") from error
    return folder


def place(path, parameters):
    """(folder, run id) of the run of the notebook at `path` with all its `parameters`, whether it is there or not."""
    identity = results.run_id(path, parameters)
    return _folder("RAWRAG_RUNS", "runs", parameters) / f"{path.stem}-{identity}", identity


def worth_saying(parameters, defaults):
    """`NAME=value` of the parameters that tell a run from others: data set, profile, and what is no default."""
    return [f"{k}={v}" for k, v in parameters.items() if k in ("DATASET", "PROFILE") or v != defaults[k]]


def finished(folder, notebook, identity):
    """Whether `folder` holds the finished run of that id, with every file that its run.json lists, unchanged."""
    try:
        record = results.read_run(folder / f"{notebook}.run.json")
    except BadInput:
        return False
    files = {folder / name: digest for name, digest in record["files"].items()}
    return record["run_id"] == identity and all(p.is_file() and paths.sha256(p) == d for p, d in files.items())


# ------------------------------------------------------------------------------------------- publishing and comparing


def publish(folder, notebook, target):
    """Copy what the run.json of a finished run lists from `folder` to `target`, run.json last; returns what was copied.

    Each file is replaced whole, files that are the same already stay untouched, and those that the run.json before it
    listed and this one does not are removed. Executed notebooks and logs are never listed.
    """
    name = f"{notebook}.run.json"
    listed = results.read_run(folder / name)["files"]
    stale = set(results.read_run(target / name)["files"]) - set(listed) if (target / name).exists() else set()
    if outside := [f for f in (*listed, *stale) if not (target / f).resolve().is_relative_to(target.resolve())]:
        raise BadInput(f"{name}: lists {outside[0]!r}, which lies outside its folder; delete {name} and run again")
    copied = []
    for file in (*listed, name):
        content = (folder / file).read_bytes()
        if not (target / file).is_file() or (target / file).read_bytes() != content:
            with paths.atomic(target / file, "wb") as out:
                out.write(content)
            copied.append(file)
    for file in stale:
        (target / file).unlink(missing_ok=True)
    return copied


def main_numbers(table):
    """Lines of a compact table of a notebook's results: a row a variant, the metrics that matter most as columns.

    >>> import pandas as pd
    >>> row = {"variant": "dense", "metric": "recall@15", "category": "all", "n": 1536, "value": 0.77}
    >>> print(*main_numbers(pd.DataFrame([{**row, "ci_low": 0.74, "ci_high": 0.8}])), sep="\\n")
              n          recall@15
    dense  1536  .770 [.740, .800]
    """
    there = list(dict.fromkeys(table["metric"]))
    metrics = [m for m in MAIN if m in there] or there[:4]
    category = "all" if "all" in set(table["category"]) else "all+adversarial"
    return results.wide(table, metrics, category).to_string().splitlines()


def aligned(rows):
    """Rows of strings as lines with aligned columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in rows]


def verdict(value, expected, tolerance):
    """How a number compares with the expected one: within the tolerance, within twice of it, or neither.

    >>> verdict(0.775, 0.77, 0.005), verdict(0.78, 0.77, 0.005), verdict(0.781, 0.77, 0.005), verdict(None, 1, 1)
    ('OK', 'OKish', 'FAIL', 'FAIL')
    """
    off = abs(value - expected) if value is not None else math.inf
    slack = 1e-9  # 0.775 - 0.77 is a little more than 0.005
    return "OK" if off <= tolerance + slack else "OKish" if off <= 2 * tolerance + slack else "FAIL"


def compare(expected, tables):
    """Compare `expected` {notebook: rows} with `tables` {notebook: result table}; returns lines and if all passed."""
    lines, verdicts = [("", "notebook", "variant", "metric", "category", "value", "expected", "source")], []
    for notebook, wanted in expected.items():
        values = {}
        if notebook in tables:
            values = tables[notebook].set_index(["variant", "metric", "category"])["value"].to_dict()
        for row in wanted:
            key = row["variant"], row["metric"], row["category"]
            value = values.get(key)
            verdicts.append(verdict(value, row["value"], row["tolerance"]))
            numbers = "missing" if value is None else f"{value:.3f}", f"{row['value']:.3f} ±{row['tolerance']:g}"
            lines.append((verdicts[-1], notebook, *key, *numbers, str(row.get("source", ""))))
    return aligned(lines), "FAIL" not in verdicts


def expected_rows(dataset, profile):
    """The rows of results/expected.yaml for a data set and profile: {notebook: rows}. Raises `BadInput`."""
    file = paths.resolve(os.environ.get("RAWRAG_RESULTS", "results")) / "expected.yaml"
    place, found = f"{paths.relative(file)}: {dataset}, {profile}", paths.read_yaml(file)
    for name in (dataset, profile):
        found = found.get(name) if isinstance(found, dict) else None
    if not isinstance(found, dict) or not found:
        raise BadInput(f"{place}: no expected numbers; add them, or check another data set or profile")
    kinds = {"variant": str, "metric": str, "category": str, "value": (int, float), "tolerance": (int, float)}
    for notebook, rows in found.items():
        for number, row in enumerate(rows if isinstance(rows, list) else [None], 1):
            sound = isinstance(row, dict) and all(isinstance(row.get(k), t) for k, t in kinds.items())
            if not sound or not all(abs(row[k]) < LARGEST for k in ("value", "tolerance")):  # nor is it NaN
                raise BadInput(f"{place}, {notebook}, row {number}: wanted {', '.join(kinds)}, found {row!r}")
    return found


# ------------------------------------------------------------------------------------------------------- command line


@execution.stoppable()
def main(arguments=None):
    """The command line; returns the exit status. Every fault of input is one line on stderr."""
    parser = argparse.ArgumentParser(prog="python -m rawrag_utils.run", description=__doc__.partition("\n")[0])
    parser.add_argument("notebook", nargs="?", help="name or path of one notebook")
    parser.add_argument("-p", nargs=2, action="append", default=[], metavar=("NAME", "VALUE"), help="set a parameter")
    parser.add_argument("--set", default="", metavar="'A=1 B=2'", help="set several")
    parser.add_argument("--plan", metavar="DATASET", help="run what notebooks/params/plan.yaml lists, and publish it")
    parser.add_argument("--check", metavar="DATASET", help="run 01 to 03 anew and compare with results/expected.yaml")
    parser.add_argument("--profile", default=PROFILE, help="profile of --plan and --check")
    parser.add_argument("--dry-run", action="store_true", help="of --plan: say what would be asked, and stop there")
    parser.add_argument("--force", action="store_true", help="repeat finished runs (as FORCE=1 does)")
    parser.add_argument("--silence", type=float, default=SILENCE, metavar="SECONDS", help="stop a cell silent so long")
    given = parser.parse_args(arguments)
    if sum(map(bool, (given.notebook, given.plan, given.check))) != 1:
        parser.error("name one notebook, or --plan DATASET, or --check DATASET")
    if given.dry_run and not given.plan:
        parser.error("--dry-run goes with --plan; of one notebook say -p DRY_RUN true")
    if (given.plan or given.check) and (given.p or given.set):
        parser.error("a plan has its own parameters; to change them run one notebook, into runs/")
    force = given.force or os.environ.get("FORCE", "0") not in ("", "0")
    try:
        if given.notebook:
            return _run_one(given.notebook, split_assignments(given.set) + given.p, force, given.silence)
        if given.dry_run:
            return _run_dry(given.plan, given.profile, given.silence)
        if given.plan:
            return _run_plan(given.plan, given.profile, force, given.silence)
        return _run_check(given.check, given.profile, given.silence)
    except Dry as said:
        print(said)
        return 0
    except Failed as error:
        say(f"failed: {error}")
        return 1
    except BadInput as error:
        say(f"error: {error}")
        return 2
    except OSError as error:
        place = where(error.filename or "files of the run")
        say(f"error: {place}: {error.strerror or error}; free space or choose another folder (RAWRAG_RUNS), run again")
        return 2
    except KeyboardInterrupt:
        say("stopped; the kernel is shut down, finished runs are kept")
        return 130


def _run_one(notebook, typed, force, silence):
    path = results.notebook_path(notebook)
    defaults = results.declared(path)
    parameters = checked({k: parse_value(k, text, defaults.get(k, "")) for k, text in typed}, defaults)
    folder = _run_all([(path, parameters)], force, silence)[0]
    _print_tables([(path, folder)])
    if (answer := folder / f"{path.stem}_answer.txt").exists():
        print(f"\n{answer.read_text(encoding='utf-8')}")
    print(f"files: {where(folder)}")
    return 0


def _run_plan(dataset, profile, force, silence):
    steps, published = plan(dataset, profile)
    targets = []

    def after(path, parameters, folder):
        if not finished(folder, path.stem, results.run_id(path, parameters)):
            raise Failed(
                f"{path.stem}: ended without the files of results.finish, or its inputs changed meanwhile; "
                f"see {where(folder)}"
            )
        target = _folder("RAWRAG_RESULTS", "results", parameters, dataset, profile)
        if published:
            with paths.alone(paths.resolve(os.environ.get("RAWRAG_RESULTS", "results"))):
                publish(folder, path.stem, target)
        targets.append(target if published else folder)

    folders = _run_all(steps, force, silence, after)
    _print_tables([(path, folder) for (path, _), folder in zip(steps, folders, strict=True)])
    print("files:", ", ".join(dict.fromkeys(map(where, targets))))
    print("executed notebooks and logs:", ", ".join(dict.fromkeys(where(f.parent) for f in folders)))
    if published:
        print("report:", ", ".join(map(where, report.publish())))
    return 0


def _run_dry(dataset, profile, silence):
    """Print what each notebook of the plan would ask its language model, stopped before anything is spent."""
    for path, parameters in plan(dataset, profile)[0]:
        if "DRY_RUN" in parameters:
            try:
                run_notebook(path, {**parameters, "DRY_RUN": True}, silence=silence, title=path.stem)
            except Dry as said:
                print(f"{path.stem}: {said}\n")
    print("Notebooks share answers: what one of them asks, the next finds in the cache.")
    return 0


def _run_check(dataset, profile, silence):
    expected = expected_rows(dataset, profile)
    steps = [s for s in plan(dataset, profile)[0] if s[0].stem[:2] in CHECKED]
    # Always anew: a run id knows the code, not the versions of the libraries, and those are checked here too.
    folders = _run_all(steps, True, silence)
    tables = {
        path.stem: results.read_table(f / f"{path.stem}.csv") for (path, _), f in zip(steps, folders, strict=True)
    }
    lines, passed = compare({n: rows for n, rows in expected.items() if n[:2] in CHECKED}, tables)
    print(*lines, sep="\n")
    return 0 if passed else 1


def _run_all(steps, force, silence, after=None):
    """Run steps in order, stop at the first failure; `after` sees each as it ends. Returns the folders."""
    started, folders = time.monotonic(), []
    for number, (path, parameters) in enumerate(steps, 1):
        title = f"[{number}/{len(steps)}] {path.stem}"
        folders.append(run_notebook(path, parameters, force=force, silence=silence, title=title))
        if after:
            after(path, parameters, folders[-1])
    minutes, seconds = divmod(round(time.monotonic() - started), 60)
    say(f"done: {len(steps)} notebook{'s' if len(steps) != 1 else ''} in {minutes}:{seconds:02} min")
    return folders


def _print_tables(runs):
    for path, folder in runs:
        if (file := folder / f"{path.stem}.csv").exists():
            print(
                f"\n{path.stem}: category all, value [95 % interval]", *main_numbers(results.read_table(file)), sep="\n"
            )


def _folder(variable, default, parameters, dataset="none", profile="none"):
    """`runs/<dataset>/<profile>` or `results/<dataset>/<profile>`; `variable` of the environment may move the root."""
    label = corpus.label(parameters.get("DATASET", dataset))
    return paths.resolve(os.environ.get(variable, default)) / label / parameters.get("PROFILE", profile)


if __name__ == "__main__":
    sys.exit(main())
