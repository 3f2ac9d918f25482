"""A run from validated parameters to files: run id, tidy tables, figures, per-question numbers, provenance.

A notebook calls `begin` after its parameters cell, `save_table`, `save_per_question` and `save_figure` on the way and
`finish` at the end. `finish` writes `<notebook>.run.json`, last: a run without that file did not end.
"""

import ast
import contextlib
import dataclasses
import hashlib
import importlib.metadata
import json
import os
import pathlib
import platform
import re
import subprocess
import sys
import time

import rawrag_utils
from rawrag_utils import corpus as corpora
from rawrag_utils import models, paths
from rawrag_utils.paths import BadInput

SCHEMA = 1  # of run.json; a file of another schema is refused, not guessed at
COLUMNS = (
    "variant",
    "metric",
    "category",
    "n",
    "value",
    "ci_low",
    "ci_high",
    "baseline",
    "delta",
    "delta_ci_low",
    "delta_ci_high",
    "p_value",
    "p_holm",
)
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")
PACKAGES = (
    "torch",
    "transformers",
    "sentence-transformers",
    "tokenizers",
    "tiktoken",
    "bm25s",
    "numpy",
    "pandas",
    "scipy",
)


class DryRun(Exception):
    """Raised by a notebook that was only to say what it would ask: takes the table of `llm.estimate`."""

    def __init__(self, table):
        super().__init__(f"nothing was asked; a run would take\n{table.round(3).to_string()}")

    def _render_traceback_(self):  # IPython's hook: no traceback, this is no fault
        return str(self).splitlines()


# ---------------------------------------------------------------------------------------------- notebooks, parameters


def notebook_path(name):
    """Path of a notebook by name (`02_embedding`), file name or path. Raises `BadInput` with the names there are."""
    folder = paths.ROOT / "notebooks"
    for path in (folder / f"{name}.ipynb", folder / name, paths.resolve(name)):
        if path.suffix == ".ipynb" and os.path.isfile(path):  # unlike is_file, false of a name too long
            return path
    known = ", ".join(sorted(p.stem for p in folder.glob("*.ipynb")))
    raise BadInput(f"{name}: no such notebook; there are {known}")


def declared(notebook):
    """Names and default values of the cell tagged `parameters`, read without running it."""
    cells = [c for c in _code_cells(notebook) if "parameters" in c["metadata"].get("tags", [])]
    if len(cells) != 1:
        raise BadInput(f"{pathlib.Path(notebook).name}: {len(cells)} cells tagged parameters, wanted 1")
    try:
        return {
            statement.targets[0].id: ast.literal_eval(statement.value)
            for statement in ast.parse(_source(cells[0])).body
        }
    except (SyntaxError, ValueError, AttributeError) as error:
        raise BadInput(
            f"{pathlib.Path(notebook).name}: the parameters cell may hold lines NAME = constant only ({error})"
        ) from error


def check_parameters(given, defaults):
    """`defaults` updated by `given`. Raises `BadInput` naming an unknown parameter or a value of wrong kind or range.

    >>> check_parameters({"TOP_K": 5}, {"TOP_K": 15, "PROFILE": "local"})
    {'TOP_K': 5, 'PROFILE': 'local'}
    >>> check_parameters({"TOPK": 5}, {"TOP_K": 15})
    Traceback (most recent call last):
    rawrag_utils.paths.BadInput: TOPK: unknown parameter; this notebook has TOP_K
    """
    for name, value in given.items():
        refuse_secret(name, value)
        if name not in defaults:
            raise BadInput(f"{name}: unknown parameter; this notebook has {', '.join(defaults)}")
        wanted = type(defaults[name])
        number = wanted is float and isinstance(value, int) and not isinstance(value, bool)
        if not (number or type(value) is wanted):
            raise BadInput(f"{name}={value!r}: wanted a value of kind {wanted.__name__}, like {defaults[name]!r}")
    merged = {**defaults, **given}
    for name, (test, remedy) in _RULES.items():
        if name in merged and not test(merged[name]):
            raise BadInput(f"{name}={merged[name]!r}: {remedy}")
    if {"CHUNK_SIZE", "CHUNK_OVERLAP"} <= set(merged) and merged["CHUNK_OVERLAP"] >= merged["CHUNK_SIZE"]:
        raise BadInput(
            f"CHUNK_OVERLAP={merged['CHUNK_OVERLAP']}: the overlap must be smaller than "
            f"CHUNK_SIZE={merged['CHUNK_SIZE']}"
        )
    return merged


def refuse_secret(name, value):
    """Raise `BadInput`, without the value, where a parameter holds what looks like a key: papermill writes it to files.

    >>> refuse_secret("TEXT", "sk-" + "a1B2" * 8)
    Traceback (most recent call last):
    rawrag_utils.paths.BadInput: TEXT: looks like a key, and parameters are written into files; export it instead
    """
    known = [v for k, v in os.environ.items() if k.endswith(("_KEY", "_TOKEN", "_SECRET")) and len(v) >= 12]
    text = json.dumps(value) if isinstance(value, list) else str(value)
    if any(secret in text for secret in known) or re.search(r"\b(sk|pk|hf|ghp|co)[-_][A-Za-z0-9_-]{20,}", text):
        raise BadInput(f"{name}: looks like a key, and parameters are written into files; export it instead")


def _query_side():
    from rawrag_utils import queries  # brings pandas, which not every start needs

    return [name for name, recipe in queries.METHODS.items() if recipe.needs]


_POSITIVE = (lambda v: v >= 1, "a whole number from 1")
_NOT_NEGATIVE = (lambda v: v >= 0, "a whole number from 0")
_ODD = (
    lambda v: v and v[0] == 1 and all(isinstance(s, int) and s % 2 for s in v),
    "a list of odd numbers that begins with 1",
)
_RULES = {
    "CHUNK_SIZE": _POSITIVE,
    "CHUNK_OVERLAP": _NOT_NEGATIVE,
    "POOL": _POSITIVE,
    "TOP_K": _POSITIVE,
    "QUESTIONS": (lambda v: v >= 0, "0 for all, else how many"),
    "EXPAND_TURNS": _NOT_NEGATIVE,
    "SEED": _NOT_NEGATIVE,
    "PROFILE": (lambda v: v.replace("-", "").replace("_", "").isalnum(), "the name of a YAML file in notebooks/params"),
    "DATASET": (bool, "sample, lectures, locomo or the path of a JSON or subtitle file"),
    "RESULTS": (bool, "the folder that holds <dataset>/<profile>/"),
    "DATASETS": (lambda v: all(isinstance(d, str) and d for d in v), "a list of names, empty for all there are"),
    "PROFILES": (lambda v: all(isinstance(p, str) and p for p in v), "a list of names, empty for all there are"),
    "CATEGORIES": (
        lambda v: v and all(isinstance(c, str) or c in (1, 2, 3, 4, 5) for c in v),
        "a list of LoCoMo's numbers 1 to 5 or of category names",
    ),
    "BM25_SIZES": (lambda v: all(isinstance(s, int) and s >= 8 for s in v), "a list of whole numbers from 8"),
    "MAP_CONVERSATION": _NOT_NEGATIVE,
    "MAP_WINDOW": _NOT_NEGATIVE,
    "CHUNK_SIZES": (lambda v: v and all(isinstance(s, int) and s >= 8 for s in v), "a list of whole numbers from 8"),
    "POOLS": (lambda v: all(isinstance(s, int) and s >= 1 for s in v), "a list of whole numbers from 1"),
    "TURN_SIZES": _ODD,
    "SIZES": _ODD,
    "ANSWERS": (lambda v: 1 <= v <= 20, "a whole number from 1 to 20"),
    "VARIANTS": (lambda v: 1 <= v <= 5, "a whole number from 1 to 5: one call writes five variants"),
    "METHOD": (
        lambda v: v == "named" or v in _query_side(),
        "named (filter by speaker and month) or a method of queries.METHODS that asks a model",
    ),
    "BUDGET": _POSITIVE,
    **dict.fromkeys(("MIN_MS", "MIN_CHARS", "MAX_GAP_MS", "MAX_MS", "FULL_MS", "NEIGHBOURS"), _NOT_NEGATIVE),
    "SECONDS": _POSITIVE,
    "ADVERSARIAL": _NOT_NEGATIVE,
    "GOLDS": _NOT_NEGATIVE,
    "VOICE": (lambda v: v in ("dialogue", "lecture"), "dialogue or lecture"),
    "CONFIDENCE": (lambda v: 0 <= v <= 1, "a number from 0 to 1"),
    "BUDGETS": (lambda v: v and all(isinstance(s, int) and s >= 1 for s in v), "a list of whole numbers from 1"),
}


def _code_cells(notebook):
    try:
        cells = json.loads(pathlib.Path(notebook).read_text(encoding="utf-8"))["cells"]
    except (ValueError, KeyError) as error:
        raise BadInput(
            f"{pathlib.Path(notebook).name}: not a notebook ({error}); restore it with git checkout"
        ) from error
    return [c for c in cells if c["cell_type"] == "code"]


def _source(cell):
    return "".join(cell["source"])


# ------------------------------------------------------------------------------------------------------ run id, begin


def run_id(notebook, parameters):
    """16 hex digits over the notebook's code cells, parameters, profile file, data and this package's source.

    Not over commit or time: what would give the same numbers has the same id. The package counts by its source, not
    by its version alone, since a changed metric under an old id would be skipped as finished.
    """
    pieces = [_source(c) for c in _code_cells(notebook) if "injected-parameters" not in c["metadata"].get("tags", [])]
    pieces.append(json.dumps(parameters, sort_keys=True))
    package = pathlib.Path(rawrag_utils.__file__).parent
    pieces += [paths.sha256(p) for p in sorted(package.iterdir()) if p.suffix in (".py", ".jinja")]
    if "PROFILE" in parameters:
        pieces += models.deciding(parameters["PROFILE"])
    if "RESULTS" in parameters:  # a report's data are the files of other runs
        root = paths.resolve(parameters["RESULTS"])
        files = [file for folder in sorted(root.glob("*/*")) for file in result_files(folder)]
        pieces += [f"{p.relative_to(root).as_posix()} {paths.sha256(p)}" for p in files]
    for name in ("DATASET", "SUBTITLES"):
        if parameters.get(name):
            pieces.append(corpora.digest(corpora.locate(parameters[name])))
    return hashlib.sha256("\0".join([rawrag_utils.__version__, *pieces]).encode()).hexdigest()[:16]


def result_files(folder):
    """What runs leave in a folder `<dataset>/<profile>`, sorted: tables, figures, per-question numbers, records."""
    patterns = ("*.csv", "*.run.json", "figures/*.png", "per_question/*.parquet")
    return sorted(path for pattern in patterns for path in folder.glob(pattern))


@dataclasses.dataclass
class Run:
    """One execution of a notebook; `files` fills as things are saved."""

    notebook: str
    parameters: dict
    run_id: str
    folder: pathlib.Path
    started: float  # as time.monotonic counts: the clock may be set meanwhile
    files: list = dataclasses.field(default_factory=list)


def begin(notebook, variables):
    """Validate the UPPER_CASE names of `variables` (pass `globals()`) against the parameters cell and open a run.

    The runner says through RAWRAG_RUN_FOLDER where the run's files go; interactively they go to
    `runs/<dataset>/<profile>/`, never to `results/`: no experiment overwrites a committed table. From here on tables
    show a $ as a $: JupyterLab would make a formula of "$5 or $6".
    """
    import pandas as pd

    pd.set_option("display.html.use_mathjax", False)
    path = notebook_path(notebook)
    _refuse_name(path.name)
    defaults = declared(path)
    given = {  # other upper-case names, as the class HTML, are parameters only if they could be injected ones
        name: value
        for name, value in variables.items()
        if name in defaults
        or (name.isupper() and name[0] != "_" and isinstance(value, bool | int | float | str | list))
    }
    parameters = check_parameters(given, defaults)
    root = paths.resolve(os.environ.get("RAWRAG_RUNS") or "runs")
    default = root / corpora.label(parameters.get("DATASET", "none")) / parameters.get("PROFILE", "none")
    folder = pathlib.Path(os.environ.get("RAWRAG_RUN_FOLDER", default))
    return Run(path.stem, parameters, run_id(path, parameters), folder, time.monotonic())


def kept(run, relative_path):
    """Path of a file of this run below its folder, noted for provenance; the folder exists after the call.

    Raises `BadInput` for a name that some system cannot keep, or takes for that of another file of the run.
    """
    for part in pathlib.PurePosixPath(relative_path).parts:
        _refuse_name(part)
    if same := [f for f in run.files if f.lower() == relative_path.lower() and f != relative_path]:
        raise BadInput(
            f"{relative_path}: on macOS and Windows this is {same[0]}; choose a name that differs in letters"
        )
    path = run.folder / relative_path
    path.parent.mkdir(parents=True, exist_ok=True)
    if relative_path not in run.files:
        run.files.append(relative_path)
    return path


def _refuse_name(name):
    if not paths.portable(name):
        raise BadInput(
            f'{name!r}: Windows cannot keep a file of this name, and results travel; leave out < > : " / \\ | ? * '
            "and a dot or blank at its end, and choose none like con or nul"
        )


# ------------------------------------------------------------------------------------------------------------- saving


def save_table(run, rows):
    """Write tidy result rows (DataFrame or list of dicts; see `COLUMNS`) to `<notebook>.csv`; returns the DataFrame."""
    import pandas as pd

    table = pd.DataFrame(rows)
    if extra := set(table.columns) - set(COLUMNS):
        raise BadInput(f"{run.notebook}: result columns {sorted(extra)} are not of the schema {', '.join(COLUMNS)}")
    table = table.reindex(columns=COLUMNS)
    with paths.atomic(kept(run, f"{run.notebook}.csv")) as file:
        table.to_csv(file, index=False, float_format="%.6f", lineterminator="\n")
    return table


def number(value):
    """Three decimals, without the zero that every share begins with; one decimal from 10 on.

    >>> number(0.77), number(-0.0312), number(1), number(302.74), number(-0.0003)
    ('.770', '-.031', '1.000', '302.7', '.000')
    """
    value = round(value, 3) + 0.0  # no minus before a zero
    if abs(value) >= 10:
        return f"{value:.1f}"
    return f"{value:.3f}".replace("0.", ".", 1) if abs(value) < 1 else f"{value:.3f}"


def estimate(value, low, high):
    """A number with its interval, which is left out where it is not a number.

    >>> estimate(0.77, 0.729, 0.815), estimate(0.77, float("nan"), float("nan"))
    ('.770 [.729, .815]', '.770')
    """
    return number(value) + (f" [{number(low)}, {number(high)}]" if low == low else "")


def wide(table, metrics, category="all"):
    """Tidy rows as people read them: a DataFrame, a row a variant, a column a metric, cells `value [low, high]`.

    The interval is left out where there is none (fewer than five conversations) and for what was spent (tokens,
    seconds, dollars); `n` says over how many the mean was taken, from and to where the metrics differ.

    >>> import pandas as pd
    >>> tidy = pd.DataFrame([{"variant": "dense", "metric": "recall@15", "category": "all", "n": 9, "value": 0.77,
    ...                       "ci_low": 0.729, "ci_high": 0.815}])
    >>> wide(tidy, ["recall@15"]).loc["dense"].to_dict()
    {'n': 9, 'recall@15': '.770 [.729, .815]'}
    """
    import pandas as pd

    rows = {}
    for row in table[(table["category"] == category) & table["metric"].isin(metrics)].to_dict("records"):
        if row["metric"].endswith("_tokens"):
            text = f"{row['value']:.0f}"
        elif row["metric"].endswith("_seconds"):
            text = number(row["value"])
        elif row["metric"] == "usd":
            text = f"{row['value']:.6f}".rstrip("0").rstrip(".")  # a question costs thousandths of a cent
        else:
            text = estimate(row["value"], row["ci_low"], row["ci_high"])
        known = rows.setdefault(row["variant"], {"n": set()})
        known[row["metric"]] = text
        known["n"].add(row["n"])
    for row in rows.values():
        least, most = min(row["n"]), max(row["n"])
        row["n"] = most if least == most else f"{least} to {most}"
    return pd.DataFrame.from_dict(rows, orient="index").reindex(columns=["n", *metrics]).fillna("")


def read_table(path):
    """A result table as `save_table` wrote it. Raises `BadInput` where it is missing, cut off or of another schema."""
    import pandas as pd

    try:
        table = pd.read_csv(path)
    except FileNotFoundError as error:
        raise BadInput(f"{paths.relative(path)}: no such table; make it with make results or make run") from error
    except (ValueError, OSError) as error:
        raise BadInput(f"{paths.relative(path)}: not a result table ({error}); run the notebook again") from error
    if list(table.columns) != list(COLUMNS):
        raise BadInput(f"{paths.relative(path)}: columns are not {', '.join(COLUMNS)}; run the notebook again")
    return table


def save_frame(run, frame, name):
    """Write another table of numbers, index included, to `<notebook>_<name>.csv`."""
    with paths.atomic(kept(run, f"{run.notebook}_{name}.csv")) as file:
        frame.to_csv(file, float_format="%.6f", lineterminator="\n")


def save_per_question(run, frame):
    """Write per-question numbers (ids and numbers only, never text) to `per_question/<notebook>.parquet`."""
    texts = [
        c
        for c in frame.select_dtypes(exclude="number").columns
        if c not in ("query_id", "conversation_id", "category", "variant")
    ]
    if texts:
        raise BadInput(f"{run.notebook}: per-question columns {texts} hold text; only ids and numbers are kept")
    with paths.atomic(kept(run, f"per_question/{run.notebook}.parquet"), "wb") as file:
        frame.to_parquet(file, index=False)


def save_answer(run, text):
    """Write what was asked for in words to `<notebook>_answer.txt` and print it; `make run` prints it at its end.

    It is no result: no run.json lists it, so nothing copies it to results/.
    """
    text = "\n".join(paths.printable(line, len(text)) for line in text.splitlines())  # terminals obey what models write
    run.folder.mkdir(parents=True, exist_ok=True)
    with paths.atomic(run.folder / f"{run.notebook}_answer.txt") as file:
        file.write(f"{text}\n")
    print(text)


def save_figure(run, figure, name):
    """Write a matplotlib figure to `figures/<notebook>_<name>.png`, without a time stamp, and return the figure."""
    import io

    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=150, bbox_inches="tight", metadata={"Software": None})
    with paths.atomic(kept(run, f"figures/{run.notebook}_{name}.png"), "wb") as file:
        file.write(buffer.getvalue())
    return figure


def finish(run, corpus=None, n=None, models=(), accounting=None, seconds_per_question=None):
    """Write `<notebook>.run.json`: everything needed to say where the numbers come from; returns it as a dict.

    `models` are descriptions as `models.describe` gives them, `accounting` the totals of LLM calls (none were made:
    zeros), `n` the number of questions asked, `seconds_per_question` what each timed stage took.
    """
    record = {
        "schema": SCHEMA,
        "notebook": run.notebook,
        "run_id": run.run_id,
        "parameters": run.parameters,
        "data": None
        if corpus is None
        else {
            "name": corpus.name,
            "file": corpus.path,
            "sha256": corpus.sha256,
            "conversations": len(corpus.conversations),
            "questions": len(corpus.questions),
            "questions_asked": n,
        },
        "models": list(models),
        "llm": accounting or {"calls": 0, "prompt_tokens": 0, "completion_tokens": 0, "cost_usd": 0.0},
        "packages": packages(),
        "git_commit": _commit(),
        "device": device(),
        # Of the order of questions; of Python's hashes, None where each process draws its own. Models name theirs.
        "seeds": {"SEED": run.parameters.get("SEED"), "PYTHONHASHSEED": os.environ.get("PYTHONHASHSEED")},
        "seconds_per_question": {stage: round(s, 6) for stage, s in (seconds_per_question or {}).items()},
        "wall_seconds": round(time.monotonic() - run.started, 1),
        "files": {name: paths.sha256(run.folder / name) for name in sorted(run.files)},
    }
    run.folder.mkdir(parents=True, exist_ok=True)
    with paths.atomic(run.folder / f"{run.notebook}.run.json") as file:
        json.dump(record, file, indent=1, ensure_ascii=False)
        file.write("\n")
    return record


def read_run(path):
    """The record of a finished run. Raises `BadInput` for a file that is half-written or of another schema."""
    try:
        record = json.loads(pathlib.Path(path).read_text(encoding="utf-8"))
        json.dumps(record, ensure_ascii=False).encode()  # a lone surrogate is no text
    except FileNotFoundError as error:
        raise BadInput(f"{paths.relative(path)}: no finished run; make it with make results or make run") from error
    except (ValueError, RecursionError) as error:
        raise BadInput(f"{paths.relative(path)}: half-written; delete it and run the notebook again") from error
    if not isinstance(record, dict) or record.get("schema") != SCHEMA:
        raise BadInput(f"{paths.relative(path)}: not of schema {SCHEMA}; run the notebook again")
    for name, kind in {"run_id": str, "files": dict}.items():
        if not isinstance(record.get(name), kind):
            raise BadInput(f"{paths.relative(path)}: {name} is not as a run writes it; run the notebook again")
    if outside := [name for name in record["files"] if not paths.inside(name)]:
        raise BadInput(
            f"{paths.relative(path)}: lists {outside[0]!r:.200}, which lies outside its folder or is too long; delete "
            "it and run again"
        )
    return record


def packages():
    """Versions of Python, of this package and of those that decide numbers, as far as they are installed."""
    found = {"rawrag_utils": rawrag_utils.__version__, "python": platform.python_version()}
    for name in PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name).split("+")[0]
    return found


def device():
    """What computes: processor features that matter, threads, accelerator, numpy's linear algebra. No host name.

    Of torch only where it was loaded: a run that did not need it is not made to wait for it, and was computed by the
    processor. `limits` are the variables that limit the threads of any library.
    """
    import numpy as np

    torch = sys.modules.get("torch")
    kind = models.device_kind() if torch else "cpu"
    blas = np.show_config(mode="dicts")["Build Dependencies"]["blas"]
    return {
        "kind": torch.cuda.get_device_name(0) if kind == "cuda" else kind,
        "system": platform.system(),
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "threads": torch and torch.get_num_threads(),
        "limits": {name: os.environ[name] for name in THREADS if name in os.environ},
        "cpu_capability": torch and torch.backends.cpu.get_cpu_capability(),
        "blas": f"{blas.get('name')} {blas.get('version')}",
    }


def _commit():
    """The commit, with `+changes` where tracked files differ from it; None outside a git checkout."""

    def git(*arguments):
        return subprocess.run(
            ["git", "-C", str(paths.ROOT), *arguments], capture_output=True, text=True, check=True
        ).stdout

    try:
        dirty = git("status", "--porcelain", "--untracked-files=no", "--", ".", ":!results").strip()
        return git("rev-parse", "HEAD").strip() + ("+changes" if dirty else "")
    except (OSError, subprocess.CalledProcessError):
        return None
