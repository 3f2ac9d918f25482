"""The report: every result as one page to read, its tables as Markdown and LaTeX, and the tables in README.md.

    python -m rawrag_utils.report      what `make report` does

Nothing is computed here. `build` makes the three files from what `findings.collect` read, the same bytes from the same
results; `publish` puts them where they belong.
"""

import base64
import io
import json
import os
import pathlib
import re
import sys
import urllib.parse

from rawrag_utils import findings, paths, results, tables
from rawrag_utils.paths import BadInput

LIMIT = 5_000_000  # bytes of the page: it is mailed about and opened on phones
COLOURS = 128  # of an embedded figure; a third of the bytes, and no difference to be seen


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
            entry["tables"] = tables.of_notebook(entry["runs"])
    return made


def title(notebook):
    """The title of a notebook, first line of its first cell; its name where it is not in `notebooks/`."""
    file = paths.ROOT / "notebooks" / f"{notebook}.ipynb"
    try:
        first = json.loads(file.read_text(encoding="utf-8"))["cells"][0]["source"]
    except (OSError, ValueError, KeyError, IndexError):
        return notebook
    return "".join(first).splitlines()[0].lstrip("# ")


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
    environment.filters |= {"facts": facts, "picture": picture, "caption": tables.caption}
    return environment.get_template("report.html.jinja").render(
        runs=runs, overview=findings.overview(runs), sections=parts, link=lambda run, name: _link(run, name, base)
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
    lines = ["# Raw-RAG: results", "", markdown(findings.overview(runs))]
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
        written = write(build(findings.collect(root), root), root)
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
