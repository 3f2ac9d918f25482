"""What runs left: the results below `results/<dataset>/<profile>/`, read for the report.

`collect` takes no file that its run.json does not vouch for, and refuses one that no record lists.
"""

import dataclasses
import pathlib
import re

from rawrag_utils import corpus, paths, results
from rawrag_utils.paths import BadInput


@dataclasses.dataclass
class Finished:
    """A finished run: its record, its tidy rows (None where it has none), further tables and PNG bytes by name."""

    dataset: str
    profile: str
    notebook: str
    folder: pathlib.Path
    record: dict
    table: object
    frames: dict
    figures: dict

    @property
    def id(self):
        """Where the page has this run's provenance."""
        return _slug(f"provenance {self.dataset} {self.profile} {self.notebook}")

    @property
    def section(self):
        """Where the page has its data set's section of this notebook."""
        return _slug(f"{self.dataset} {self.notebook}")


def collect(root="results", datasets=(), profiles=()):
    """The finished runs below `root`, by data set, notebook and profile; `datasets` and `profiles` choose among them.

    Raises `BadInput` where nothing is there, where a record is half-written or of another schema, and for each file
    that is not as its record lists it or that no record lists.
    """
    root = paths.resolve(root)
    folders = {(f.parent.name, f.name): f for f in sorted(root.glob("*/*")) if f.is_dir()}
    for wanted, there, kind in (
        (datasets, {d for d, _ in folders}, "data set"),
        (profiles, {p for _, p in folders}, "profile"),
    ):
        if missing := [name for name in wanted if name not in there]:
            known = ", ".join(sorted(there)) or "none"
            raise BadInput(f"{missing[0]}: no results of this {kind} in {paths.relative(root)}; there are: {known}")
    runs = []
    for (dataset, profile), folder in folders.items():
        if (not datasets or dataset in datasets) and (not profiles or profile in profiles):
            runs += _folder_runs(dataset, profile, folder)
    if not runs:
        asked = f" of {', '.join(datasets)} with {', '.join(profiles)}" if datasets and profiles else ""
        raise BadInput(f"{paths.relative(root)}: no finished run{asked} to report; make some with make results")
    return sorted(runs, key=lambda run: (run.dataset, run.notebook, run.profile))


def _folder_runs(dataset, profile, folder):
    mend = f"make results DATASET={dataset} PROFILE={profile}"
    runs, listed = [], set()
    for file in sorted(folder.glob("*.run.json")):
        record, place = results.read_run(file), paths.relative(file)
        kinds = {"notebook": str, "parameters": dict, "data": dict | None}
        wrong = [k for k, kind in kinds.items() if not isinstance(record.get(k), kind)]
        if wrong or record["notebook"] != file.name.removesuffix(".run.json"):
            raise BadInput(f"{place}: {(wrong or ['notebook'])[0]} is not as a run writes it; mend with {mend}")
        given = record["parameters"]
        if (corpus.label(given.get("DATASET", dataset)), given.get("PROFILE", profile)) != (dataset, profile):
            raise BadInput(f"{place}: a run of another data set or profile; mend with {mend}")
        for name, digest in record["files"].items():
            if not (folder / name).is_file() or paths.sha256(folder / name) != digest:
                raise BadInput(
                    f"{paths.relative(folder / name)}: not the file that {file.name} lists (missing, half-written or "
                    f"from another run); mend with {mend}"
                )
        listed |= set(record["files"])
        if "RESULTS" not in given:  # a report is no result
            runs.append(_finished(dataset, profile, folder, record))
    for file in results.result_files(folder):
        if file.suffix != ".json" and file.relative_to(folder).as_posix() not in listed:
            raise BadInput(
                f"{paths.relative(file)}: no run.json lists it (its run did not end, or it was left over); delete it "
                f"or run again: {mend}"
            )
    return runs


def _finished(dataset, profile, folder, record):
    notebook, table, frames, figures = record["notebook"], None, {}, {}
    for file in record["files"]:
        path, name = folder / file, pathlib.PurePosixPath(file).stem.removeprefix(f"{notebook}_")
        if file == f"{notebook}.csv":
            table = results.read_table(path)
        elif path.suffix == ".csv":
            frames[name] = _read_frame(path)
        elif path.suffix == ".png":
            figures[name] = path.read_bytes()
    return Finished(dataset, profile, notebook, folder, record, table, frames, figures)


def _read_frame(path):
    """A table of `results.save_frame` as short strings; its index's name stays."""
    import pandas as pd

    try:
        frame = pd.read_csv(path, index_col=0)
    except (ValueError, OSError) as error:
        raise BadInput(f"{paths.relative(path)}: not a table ({error}); run the notebook again") from error
    corner = "" if str(frame.index.name).startswith("Unnamed") else frame.index.name or ""
    frame.index = pd.Index([f"{i:g}" if isinstance(i, float) else str(i) for i in frame.index], name=corner)
    return frame.map(lambda v: ("" if v != v else results.number(v)) if isinstance(v, float) else str(v))


def overview(runs):
    """The runs as a DataFrame of strings: data set, notebook, profile, questions, conversations, arms, run id."""
    import pandas as pd

    rows = []
    for run in runs:
        data = run.record.get("data") or {}
        arms = run.table["variant"].nunique() if run.table is not None else 0
        asked, talks = (data.get(k) for k in ("questions_asked", "conversations"))
        rows.append(
            {
                "data set": run.dataset,
                "notebook": run.notebook,
                "profile": run.profile,
                "questions": "" if asked is None else str(asked),
                "conversations": "" if talks is None else str(talks),
                "arms": str(arms),
                "run id": run.record["run_id"],
            }
        )
    return pd.DataFrame(rows).set_index("data set")


def _slug(text):
    return re.sub(r"[^\w.]+", "-", text)
