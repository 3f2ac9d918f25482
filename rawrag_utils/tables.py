"""Tables of what runs found: each a frame of strings, so that page, Markdown and LaTeX show the same cells.

Which tables a notebook has, what is in a cell, what is bold and what is folded away is said here; nothing is computed
anew. Profiles of one data set stand side by side in one table.
"""

import dataclasses
import itertools

from rawrag_utils import results

LONG = 16  # rows; of longer tables the arms with changed settings are folded away

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


def of_notebook(runs):
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
