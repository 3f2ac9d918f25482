"""The report: every result as one page to read, its tables as Markdown and LaTeX, and the tables in README.md.

    python -m rawrag_utils.report      what `make report` does

Nothing is computed here. `collect` reads what runs left under `results/<dataset>/<profile>/` and takes no file that
its run.json does not vouch for; `build` makes the three files from it, the same bytes from the same results. Profiles
of one data set stand side by side in one table.
"""

import base64
import dataclasses
import io
import itertools
import json
import os
import pathlib
import re
import sys
import urllib.parse

from rawrag_utils import corpus, paths, results
from rawrag_utils.paths import BadInput

LIMIT = 5_000_000  # bytes of the page: it is mailed about and opened on phones
LONG = 16  # rows; of longer tables the arms with changed settings are folded away
COLOURS = 128  # of an embedded figure; a third of the bytes, and no difference to be seen

# What a figure or a further table shows, by its name; one that is not here goes by its name.
CAPTIONS = {
    "map": "Windows over the turns of one conversation; hatched is what the reader gets beyond a window's edges",
    "sizes": "What the window size changes: turns that an edge cuts, and the tokens that a window brings",
    "cosines": "Cosines between questions and windows, with and without evidence",
    "equal_tokens": "Evidence handed over within a budget of tokens",
    "recall_at_k": "Evidence touched by the first k windows",
    "waterfall": "Where evidence is lost on the way to the reader",
    "weights": "Weights learnt for the cues, a row for each conversation they were not learnt on",
    "answers": "Recall by the number of imagined answers",
    "variants": "Recall by the number of variants",
    "differences": "Each arm's difference from its baseline with its interval; filled where p_holm < .05",
    "categories": "Differences by category; bold where a cell's own interval excludes zero",
    "price": "Recall against the tokens that a question takes of the language model",
    "faults": "Answers of the language model that could not be read, were too few, were cut or withheld",
    "types": "Question types by category, as the router sees them",
    "confidence": "The router's threshold, swept: share of questions routed away, and recall",
    "differ": "Questions on which the methods differ at all",
    "levels": "Scores by category, each with its interval",
    "use": "Was the evidence handed over, and was it used? Right: an official F1 of one half or more",
    "stages": "Where answers were lost: the first stage that lost the evidence, by category",
    "abstention": "Precision and recall of abstaining from questions that have no answer",
    "judges": "What each judge accepts of answers whose verdict is known",
    "merging": "Cues, the segments made of them, and where answers are said, over the first minutes",
    "seconds": "Gold ranges found, over the seconds of lecture handed over",
    "citations": "Answers, their citations, and those flagged because nobody handed over what they cite",
    "oracles": "What an oracle gains over plain search and over mere draws of one method",
}


# --------------------------------------------------------------------------------------------------------- collecting


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


def title(notebook):
    """The title of a notebook, first line of its first cell; its name where it is not in `notebooks/`."""
    file = paths.ROOT / "notebooks" / f"{notebook}.ipynb"
    try:
        first = json.loads(file.read_text(encoding="utf-8"))["cells"][0]["source"]
    except (OSError, ValueError, KeyError, IndexError):
        return notebook
    return "".join(first).splitlines()[0].lstrip("# ")


# ------------------------------------------------------------------------------------------------------------- tables


@dataclasses.dataclass
class Table:
    """A table to be read: strings by arm and column (or column and profile), what is bold, and whose results it shows.

    `file` is the result file's name in each run's folder; `folded` tables are opened by the reader; `first` are the
    rows of a long table that are seen at once.
    """

    title: str
    frame: object
    file: str
    runs: list
    bold: object = None
    note: str = ""
    folded: bool = False
    first: list = dataclasses.field(default_factory=list)

    @property
    def heads(self):
        """Rows of column heads as (text, columns that it spans)."""
        if self.frame.columns.nlevels == 1:
            return [[(str(c), 1) for c in self.frame.columns]]
        groups = [(name, len(list(same))) for name, same in itertools.groupby(c for c, _ in self.frame.columns)]
        return [groups, [(profile, 1) for _, profile in self.frame.columns]]

    @property
    def parts(self):
        """The rows seen at once and those folded away, as lists of (arm, [(text, is bold), ...])."""
        bold = self.bold.to_numpy() if self.bold is not None else [[False] * self.frame.shape[1]] * len(self.frame)
        rows = [
            (name, list(zip(cells, marks, strict=True)))
            for name, cells, marks in zip(self.frame.index, self.frame.to_numpy(), bold, strict=True)
        ]
        first = set(self.first or self.frame.index)
        return [r for r in rows if r[0] in first], [r for r in rows if r[0] not in first]


def tables(runs):
    """The tables of one notebook on one data set, `runs` being its profiles: main, differences, by category, others."""
    made = _tidy_tables([run for run in runs if run.table is not None and len(run.table)])
    for run in runs:
        for name, frame in run.frames.items():
            profile = f" ({run.profile})" if len(runs) > 1 else ""
            made.append(Table(caption(name) + profile, frame, f"{run.notebook}_{name}.csv", [run], folded=True))
    return made


def main_metrics(notebook):
    """(metrics of a notebook's main table, the one it compares by); of an unknown notebook (None, the usual one)."""
    from rawrag_utils import metrics  # brings pandas, which not every start needs

    usual = metrics.FAMILY
    query_side = ["recall@15", usual, "pool_recall", "prompt_tokens", "completion_tokens"], usual
    known = {
        "01_chunking": (
            [
                "turns_cut",
                "turns_never_whole",
                "evidence_cut",
                "evidence_never_whole",
                "turns_per_window",
                "tokens_handed_over",
            ],
            "evidence_never_whole",
        ),
        "02_embedding": (["recall@5", "recall@15", usual], usual),
        "03_reranking": (["recall@5", "recall@15", usual, "turn_recall@10"], usual),
        "04_hyde": query_side,
        "05_multi_query": query_side,
        "06_router": query_side,
        "08_subtitles": (["recall@60s", "recall@180s", "range_precision", "range_recall", "range_iou"], "recall@180s"),
        "07_answer_evaluation": (
            [
                "official_f1",
                "official_f1_audited",
                "mem0_f1",
                "bleu1",
                "judge_lenient",
                "judge_strict",
                "coverage",
                "answer_words",
                "memory_tokens",
                "prompt_tokens",
                "llm_seconds",
                "usd",
            ],
            "official_f1",
        ),
    }
    return known.get(notebook, (None, usual))


def _tidy_tables(runs):
    """Those that are made from tidy rows."""
    if not runs:
        return []
    file, tidy = f"{runs[0].notebook}.csv", {run.profile: run.table for run in runs}
    there = list(dict.fromkeys(m for table in tidy.values() for m in table["metric"]))
    shown, family = main_metrics(runs[0].notebook)
    shown = [m for m in shown or () if m in there] or there[:5]
    family = family if family in there else shown[0]
    baselines = {b for table in tidy.values() for b in table["baseline"].dropna()}

    main = _side_by_side({profile: main_frame(table, shown) for profile, table in tidy.items()})
    made = [Table("Results", main, file, runs, first=_first(main, baselines))]
    compared = {profile: pair for profile, table in tidy.items() if len((pair := differences(table, family))[0])}
    if compared:
        frame = _side_by_side({profile: pair[0] for profile, pair in compared.items()})
        bold = _side_by_side({profile: pair[1] for profile, pair in compared.items()}, False)
        some = [run for run in runs if run.profile in compared]
        title = f"Differences in {family} from the baseline, paired by question"
        made.append(Table(title, frame, file, some, bold, _note(frame, bold), first=_first(frame, baselines)))
    category = {profile: by_category(table, family) for profile, table in tidy.items()}
    if any(frame.shape[1] > 1 for frame in category.values()):
        made.append(Table(f"{family} by category", _side_by_side(category), file, runs, folded=True))
    return made


def _note(frame, bold):
    if "p_holm" not in frame.columns.get_level_values(0):
        return "Fewer than five conversations: no interval and no p. "
    return "Bold where p_holm < .05. " if bold.to_numpy().any() else "No p_holm is below .05. "


def caption(name):
    """What a figure or further table of that name shows."""
    return CAPTIONS.get(name, name.replace("_", " "))


def main_frame(table, shown):
    """`results.wide` as strings; where a row's metrics are means over different things, each column says over how many.

    >>> import pandas as pd
    >>> rows = [{"variant": "window", "metric": m, "category": "all", "n": n, "value": 0.5, "ci_low": float("nan")}
    ...         for m, n in (("turns_cut", 90), ("evidence_cut", 7))]
    >>> main_frame(pd.DataFrame(rows).assign(ci_high=float("nan")), ["turns_cut", "evidence_cut"]).columns.to_list()
    ['turns_cut (n = 90)', 'evidence_cut (n = 7)']
    """
    categories = list(dict.fromkeys(table["category"]))
    category = next((c for c in ("all", "all+adversarial") if c in categories), categories[0] if categories else "all")
    frame = results.wide(table, [m for m in shown if m in set(table["metric"])], category).map(str)
    rows = table[table["metric"].isin(shown) & (table["category"] == category)]
    counts = rows.groupby("variant")["n"]
    if (counts.max() > 2 * counts.min()).any():  # means over different things, as turns and questions
        counts = rows.groupby("metric")["n"].agg(["min", "max"])
        frame = frame.drop(columns="n").rename(columns={m: _with_n(m, *counts.loc[m]) for m in counts.index})
    return frame.rename_axis("variant")


def differences(table, metric):
    """Each arm against its baseline, category `all`: strings, and a frame like it that is true where p_holm < .05."""
    import pandas as pd

    rows = table[(table["metric"] == metric) & (table["category"] == "all") & table["baseline"].notna()]
    rows = rows.set_index("variant")
    frame = pd.DataFrame(
        {
            "against": rows["baseline"],
            "n": rows["n"].map(str),
            "difference": [_signed(*v) for v in rows[["delta", "delta_ci_low", "delta_ci_high"]].to_numpy()],
        }
    )
    if rows["p_holm"].notna().any():
        frame["p_holm"] = ["" if p != p else "<.001" if p < 0.001 else results.number(p) for p in rows["p_holm"]]
    bold = pd.DataFrame(False, frame.index, frame.columns)
    bold["difference"] = rows["p_holm"] < 0.05
    return frame, bold


def by_category(table, metric):
    """One metric, a column a category with its n where all arms share it."""
    rows = table[table["metric"] == metric]
    counts = rows.groupby("category", sort=False)["n"].agg(["min", "max"])
    cells = rows.assign(
        text=[results.estimate(*v) for v in rows[["value", "ci_low", "ci_high"]].to_numpy()],
        column=[_with_n(c, *counts.loc[c]) for c in rows["category"]],
    ).pivot(index="variant", columns="column", values="text")
    order = sorted(counts.index, key=lambda c: c.startswith("all"))  # the categories, then what sums them up
    columns = [_with_n(c, *counts.loc[c]) for c in order]
    return cells.reindex(index=rows["variant"].unique(), columns=columns).fillna("").rename_axis(columns=None)


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


def _side_by_side(frames, empty=""):
    """Frames by profile as one, columns grouped by name and then profile; a single one stays as it is."""
    import pandas as pd

    if len(frames) == 1:
        return next(iter(frames.values()))
    names = list(dict.fromkeys(name for frame in frames.values() for name in frame.index))
    columns = dict.fromkeys(column for frame in frames.values() for column in frame)
    pairs = [(c, profile) for c in columns for profile, frame in frames.items() if c in frame]
    joined = {(c, profile): frames[profile][c].reindex(names) for c, profile in pairs}
    joined = pd.DataFrame(joined, index=pd.Index(names, name="variant"), dtype=object)
    return joined.where(joined.notna(), empty)


def _first(frame, baselines):
    """The rows of a long table that are seen at once: arms at their default settings, and baselines."""
    if len(frame) <= LONG:
        return []
    plain = [name for name in frame.index if "=" not in name or name in baselines]
    return plain if len(plain) > 1 and len(frame) - len(plain) > 4 else []


def _with_n(name, low, high):
    return f"{name} (n = {low})" if low == high else f"{name} (n = {low} to {high})"


def _signed(value, low, high):
    text = results.estimate(value, low, high)
    return f"+{text}" if value >= 0.0005 else text


def _slug(text):
    return re.sub(r"[^\w.]+", "-", text)


# ------------------------------------------------------------------------------------------------------- page and texts


def sections(runs):
    """{data set: [{"notebook", "title", "id", "runs", "tables"}, ...]}, notebooks in order."""
    made = {}
    for run in runs:
        entries = made.setdefault(run.dataset, [])
        if not entries or entries[-1]["notebook"] != run.notebook:
            entries.append({"notebook": run.notebook, "title": title(run.notebook), "id": run.section, "runs": []})
        entries[-1]["runs"].append(run)
    for entries in made.values():
        for entry in entries:
            entry["tables"] = tables(entry["runs"])
    return made


def build(runs, target):
    """{file name: text} of report.html, report.md and report.tex; their links start at the folder `target`."""
    parts, base = sections(runs), paths.resolve(target)
    page = page_html(runs, parts, base)
    if (size := len(page.encode())) > LIMIT:
        raise BadInput(
            f"report.html: {size:,} bytes, more than {LIMIT:,}; report fewer data sets or profiles (DATASETS and "
            "PROFILES of 09_report), or move a folder out of results"
        )
    return {"report.html": page, "report.md": page_markdown(runs, parts, base), "report.tex": page_latex(parts)}


def write(pages, target):
    """Write what `build` made into the folder `target`; returns the paths."""
    written = [paths.resolve(target) / name for name in pages]
    for path in written:
        with paths.atomic(path) as file:
            file.write(pages[path.name])
    return written


def page_html(runs, parts, base):
    """The page as one string, figures and style inside; every text in it is escaped by the template."""
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(pathlib.Path(__file__).parent),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"facts": facts, "picture": picture, "caption": caption}
    return environment.get_template("report.html.jinja").render(
        runs=runs, overview=overview(runs), sections=parts, link=lambda run, name: _link(run, name, base)
    )


def facts(record):
    """(name, lines) pairs of a run's provenance, files left out."""
    for name, value in record.items():
        if name in ("schema", "notebook", "files") or value in (None, {}, []):
            continue
        if isinstance(value, dict):
            lines = [f"{k}: {_plain(v)}" for k, v in value.items()]
        elif isinstance(value, list):
            dicts = (item if isinstance(item, dict) else {"": item} for item in value)
            lines = [", ".join(f"{k}: {_plain(v)}" for k, v in item.items()) for item in dicts]
        else:
            lines = [_plain(value)]
        yield name.replace("_", " "), lines


def picture(png):
    """(data URI, width, height in CSS pixels) of a figure, its colours reduced so that many fit into one page."""
    from PIL import Image

    with Image.open(io.BytesIO(png)) as image:
        flat = Image.new("RGB", image.size, "white")
        flat.paste(image, mask=image.convert("RGBA").getchannel("A"))
        # 150 dots an inch on paper are 96 on a screen; what is left over makes dense screens sharp.
        width, height = (round(side * 96 / 150) for side in image.size)
    out = io.BytesIO()
    flat.quantize(COLOURS, dither=Image.Dither.NONE).save(out, "PNG", optimize=True)
    return f"data:image/png;base64,{base64.b64encode(out.getvalue()).decode()}", width, height


def page_markdown(runs, parts, base):
    """All tables as Markdown, each with links to its csv and its run.json."""
    lines = ["# Raw-RAG: results", "", markdown(overview(runs))]
    for dataset, entries in parts.items():
        lines += ["", f"## {_cell(dataset)}"]
        for entry in entries:
            lines += ["", f"### {_cell(entry['title'])}"]
            for table in entry["tables"]:
                sources = [
                    f"[{_cell(run.profile)}: {_cell(table.file)}]({_link(run, table.file, base)}), "
                    f"[run {run.record['run_id']}]({_link(run, f'{run.notebook}.run.json', base)})"
                    for run in table.runs
                ]
                lines += ["", f"**{_cell(table.title)}.** {table.note}{'; '.join(sources)}", ""]
                lines.append(markdown(table.frame, table.frame.index.name, table.bold))
    return "\n".join(lines) + "\n"


def page_latex(parts):
    r"""All tables as LaTeX floats for \input into a document that loads booktabs and graphicx."""
    lines = [r"% Tables of Raw-RAG. \usepackage{booktabs,graphicx} first; no table is wider than a line."]
    for dataset, entries in parts.items():
        for entry in entries:
            for number, table in enumerate(entry["tables"], 1):
                sources = "; ".join(f"{run.profile}, run {run.record['run_id']}" for run in table.runs)
                about = f"{table.title}. {table.note}{dataset}, {entry['notebook']} ({sources})."
                lines += [
                    "",
                    r"\begin{table}[htbp]",
                    r"\centering",
                    rf"\caption{{{tex(about)}}}",
                    rf"\label{{tab:{entry['id']}-{number}}}",
                    r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%",
                    latex(table.frame, table.bold) + "}",
                    r"\end{table}",
                ]
            lines += ["", r"\clearpage  % LaTeX holds no more than 52 floats back"]
    return "\n".join(lines) + "\n"


def markdown(frame, corner=None, bold=None):
    """A DataFrame of short cells as a Markdown table, its index as the first column; `bold` marks cells.

    >>> import pandas as pd
    >>> print(markdown(pd.DataFrame({"n": [9]}, index=["dense|POOL=30"]), "variant"))
    | variant | n |
    |---|---|
    | dense\\|POOL=30 | 9 |
    """
    heads = [", ".join(c) if isinstance(c, tuple) else str(c) for c in frame.columns]
    lines = [[corner if corner is not None else frame.index.name or "", *heads]]
    for name, row, marks in zip(
        frame.index, frame.to_numpy(), bold.to_numpy() if bold is not None else [()] * len(frame), strict=True
    ):
        marks = list(marks) or [False] * len(row)
        cells = [f"**{_cell(v)}**" if mark else _cell(v) for v, mark in zip(row, marks, strict=True)]
        lines.append([_cell(name), *cells])
    lines[0] = [_cell(head) for head in lines[0]]
    lines.insert(1, None)
    return "\n".join(f"| {' | '.join(line)} |" if line else "|" + "---|" * len(lines[0]) for line in lines)


def _cell(value):
    """Text in Markdown, nothing of it taken for markup."""
    text = re.sub(r"([\\|*`]|\](?=\())", r"\\\1", " ".join(str(value).split()))
    return text.replace("&", "&amp;").replace("<", "&lt;")


def latex(frame, bold=None):
    """A DataFrame of short cells as a booktabs `tabular`, its index as the first column; `bold` marks cells."""
    import numpy as np

    frame = frame.rename_axis(index=None)
    columns = "l" * (1 + frame.shape[1])
    style = frame.style.format(tex).format_index(tex, axis=0).format_index(tex, axis=1)
    if bold is not None:
        style = style.apply(lambda _: np.where(bold, "textbf:--rwrap;", ""), axis=None)
    return style.to_latex(hrules=True, column_format=columns, multicol_align="l").rstrip()


def tex(text):
    r"""`text` with what LaTeX would take for a command spelt out.

    >>> tex("multi_query|N=1 & 50 %"), tex("-.031")
    ('multi\\_query\\textbar{}N=1 \\& 50 \\%', '$-$.031')
    """
    text = re.sub(r"[\\&%$#_{}~^|<>]", lambda m: _TEX[m[0]], str(text))
    return re.sub(r"(?<![\w.])-(?=[.\d])", "$-$", text)


_TEX = {c: f"\\{c}" for c in "&%$#_{}"} | {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "|": r"\textbar{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
}


def _link(run, name, base):
    """The address of a run's file, relative to the page's folder `base`."""
    return urllib.parse.quote(pathlib.PurePath(os.path.relpath(run.folder / name, base)).as_posix())


def _plain(value):
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


# ------------------------------------------------------------------------------------------------------------- README


def filled(text):
    """`text` with every marked table made anew from its result file; numbers are never typed by hand.

    A mark names file, variants, metrics and, where it is not `all`, the category, as in `<!-- table
    results/sample/local/02_embedding.csv: dense, bm25: recall@5: temporal -->`; the table ends at `<!-- end -->`.
    """

    def fill(mark):
        file, variants, shown, *category = (part.strip() for part in mark[1].split(":"))
        table = results.wide(results.read_table(paths.resolve(file)), [m.strip() for m in shown.split(",")], *category)
        names = [v.strip() for v in variants.split(",")]
        if missing := [v for v in names if v not in table.index]:
            raise BadInput(f"{file}: no variant {missing[0]!r}; it has {', '.join(table.index)}")
        return f"<!-- table {mark[1]}-->\n{markdown(table.loc[names], 'variant')}\n<!-- end -->"

    return re.sub(r"<!-- table (.*?)-->.*?<!-- end -->", fill, text, flags=re.DOTALL)


def publish():
    """Write the report of all results into their folder, and README's tables where it is the repository's own.

    RAWRAG_RESULTS names another folder, as for `run`. Returns the paths of the report's files.
    """
    root = paths.resolve(os.environ.get("RAWRAG_RESULTS", "results"))
    with paths.alone(root):  # another plan may be publishing its tables
        written = write(build(collect(root), root), root)
    if root == paths.ROOT / "results":
        page = paths.ROOT / "README.md"
        text = filled(page.read_text(encoding="utf-8"))
        with paths.atomic(page) as file:
            file.write(text)
    return written


if __name__ == "__main__":  # `make report`
    try:
        print("report:", ", ".join(map(paths.relative, publish())))
    except BadInput as error:
        sys.exit(f"error: {error}")
