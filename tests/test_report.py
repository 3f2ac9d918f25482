"""The report: what it takes in, what it refuses, and that page, Markdown and LaTeX say the same and stand alone."""

import base64
import html.parser
import io
import json
import os
import re
import shutil
import subprocess
import sys
import urllib.parse

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from rawrag_utils import findings, metrics, paths, report, results, tables
from rawrag_utils.paths import BadInput

COMMITTED = paths.ROOT / "results"
DATA_URI = re.compile(r"data:image/png;base64,([A-Za-z0-9+/=]+)")
NOWHERE = float("nan")


def row(variant="dense", metric="recall@15", category="all", value=0.25, **more):
    interval = {"ci_low": value - 0.05, "ci_high": value + 0.05}
    return {"variant": variant, "metric": metric, "category": category, "n": 30, "value": value, **interval, **more}


def compared(variant, delta, p, metric=metrics.FAMILY):
    interval = {"delta_ci_low": delta - 0.02, "delta_ci_high": delta + 0.02}
    return row(variant, metric, baseline="dense", delta=delta, p_value=p, p_holm=p, **interval)


def pages(folder):
    return report.build(findings.collect(folder), folder)


class Page(html.parser.HTMLParser):
    """What a page holds: (tag, attributes) in order; elements that were opened and not closed are a fault."""

    VOID = {"meta", "img", "br", "wbr"}

    def __init__(self, text):
        super().__init__()
        self.elements, self.open = [], []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def all(self, tag):
        return [attributes for name, attributes in self.elements if name == tag]


@pytest.fixture(scope="module")
def committed():
    return pages(COMMITTED)


@pytest.fixture(scope="module")
def page(committed):
    return Page(committed["report.html"])


# ---------------------------------------------------------------------------------------------- the committed report


def test_committed_report_is_built_from_the_committed_results(committed):
    kept = {name: (COMMITTED / name).read_bytes() for name in committed}
    assert set(kept) == {"report.html", "report.md", "report.tex"}
    for name, text in committed.items():
        # Byte for byte, but that another build of zlib packs the same pixels differently.
        assert DATA_URI.sub("", text).encode() == DATA_URI.sub("", kept[name].decode()).encode(), "run make report"
    old, new = (DATA_URI.findall(text) for text in (kept["report.html"].decode(), committed["report.html"]))
    for one, other in zip(old, new, strict=True):
        pixels = [np.asarray(Image.open(io.BytesIO(base64.b64decode(uri))).convert("RGB")) for uri in (one, other)]
        assert np.array_equal(*pixels), "run make report"


def test_readme_tables_are_those_of_the_result_files():
    text = (paths.ROOT / "README.md").read_text(encoding="utf-8")
    assert text.count("<!-- table ") >= 2 and report.filled(text) == text, "run make report"


def test_page_stands_alone(committed, page):
    text = committed["report.html"]
    assert len(text.encode()) < report.LIMIT
    assert not page.all("script") and not page.all("link") and not page.all("iframe") and "url(" not in text
    assert all(image["src"].startswith("data:image/png;base64,") for image in page.all("img"))
    assert not re.search(r"(?:https?:)?//[a-z]", DATA_URI.sub("", text))
    assert str(paths.ROOT) not in text and not re.search(r"\b20[0-9]{2}-[0-9]{2}-[0-9]{2}", DATA_URI.sub("", text))


def test_every_link_leads_somewhere(page):
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    links = [a["href"] for a in page.all("a")]
    assert any(link.endswith(".csv") for link in links)
    for link in links:
        if link.startswith("#"):
            assert link[1:] in ids
        else:
            assert (COMMITTED / urllib.parse.unquote(link)).is_file(), link


def test_each_table_and_figure_is_one_link_from_its_provenance(committed, page):
    runs = findings.collect(COMMITTED)
    assert {run.id for run in runs} == {d["id"] for d in page.all("details") if "id" in d}
    captions = re.findall(
        r"<(?:p class=\"caption\"|figcaption)>(.*?)</(?:p|figcaption)>", committed["report.html"], re.S
    )
    shown = sum(len(e["tables"]) for entries in report.sections(runs).values() for e in entries)
    assert len(captions) == shown + len(page.all("img"))
    assert all(re.search(r"href=\"#provenance-[^\"]+\">provenance</a>", caption) for caption in captions)
    for run in runs:
        for digest in (run.record["run_id"], *run.record["files"].values()):
            assert digest in committed["report.html"]


def test_figures_have_size_and_words(page):
    images = page.all("img")
    assert len(images) == len(list(COMMITTED.glob("*/*/figures/*.png")))
    for image in images:
        width, height = Image.open(io.BytesIO(base64.b64decode(image["src"].partition(",")[2]))).size
        assert abs(int(image["width"]) / int(image["height"]) - width / height) < 0.01 and len(image["alt"]) > 20


def test_every_notebook_of_the_results_has_its_title(committed):
    for file in (paths.ROOT / "notebooks").glob("0[1-6]*.ipynb"):
        title = report.title(file.stem)
        assert title.startswith(f"{file.stem[:2]} · ") and all(title in text for text in list(committed.values())[:2])
    assert report.title("77_not_there") == "77_not_there"


# ------------------------------------------------------------------------------------------------------------- tables


def test_profiles_stand_side_by_side_where_they_have_the_notebook(finished_run, tmp_path):
    finished_run("talks", "local", "02_made", [row(value=0.25), row("bm25", value=0.5)])
    finished_run("talks", "other", "02_made", [row(value=0.75), row(metric="extra")])
    finished_run("talks", "other", "03_made", [row(value=0.125)])
    made = pages(tmp_path / "results")
    lines = made["report.md"].splitlines()
    heads = "n, local | n, other | recall@15, local | recall@15, other | extra, other"
    assert f"| variant | {heads} |" in lines
    assert "| dense | 30 | 30 | .250 [.200, .300] | .750 [.700, .800] | .250 [.200, .300] |" in lines
    assert "| bm25 | 30 |  | .500 [.450, .550] |  |  |" in lines  # what a profile does not have stays empty
    assert "| variant | n | recall@15 |" in lines  # one profile alone has no second row of heads
    text = re.sub(r"\s+", " ", made["report.html"])
    assert (
        '<th scope="colgroup" colspan="2">recall@15</th>' in text and '<th scope="col" colspan="1">other</th>' in text
    )
    assert r"\multicolumn{2}{l}{recall@15}" in made["report.tex"]
    assert "talks/other/02_made.csv" in text and "talks/local/02_made.csv" in text


def test_a_difference_is_bold_where_p_holm_says_so(finished_run, tmp_path):
    plain = row("dense", metrics.FAMILY)
    rows = [plain, compared("hyde", 0.125, 0.0004), compared("rewrite", -0.25, 0.049), compared("router", 0.5, 0.05)]
    finished_run("talks", "local", "04_hyde", [*rows, compared("none", 0.0002, 1.0)])
    made = pages(tmp_path / "results")
    assert "| hyde | dense | 30 | **+.125 [.105, .145]** | &lt;.001 |" in made["report.md"]
    assert "| rewrite | dense | 30 | **-.250 [-.270, -.230]** | .049 |" in made["report.md"]
    assert "| router | dense | 30 | +.500 [.480, .520] | .050 |" in made["report.md"]
    assert "| none | dense | 30 | .000 [-.020, .020] | 1.000 |" in made["report.md"]
    assert len(re.findall('<td class="sure">', made["report.html"])) == 2
    assert r"\textbf{+.125 [.105, .145]} & \textless{}.001" in made["report.tex"]
    assert r"\textbf{$-$.250 [$-$.270, $-$.230]}" in made["report.tex"]


def test_few_conversations_have_no_interval_and_no_p():
    bare = {"ci_low": NOWHERE, "ci_high": NOWHERE, "delta_ci_low": NOWHERE, "delta_ci_high": NOWHERE}
    table = pd.DataFrame([compared("hyde", 0.125, NOWHERE) | bare])
    frame, bold = tables.differences(table, metrics.FAMILY)
    assert frame.loc["hyde"].to_dict() == {"against": "dense", "n": "30", "difference": "+.125"}
    assert not bold.to_numpy().any()


def test_categories_come_with_their_n_and_their_sums_last():
    rows = [row(category=c, value=v) for c, v in (("all", 0.5), ("temporal", 0.25), ("single-hop", 0.75))]
    frame = tables.by_category(
        pd.DataFrame([*rows, row("bm25", category="temporal", value=0.125) | {"n": 7}]), "recall@15"
    )
    assert list(frame) == ["temporal (n = 7 to 30)", "single-hop (n = 30)", "all (n = 30)"]
    assert frame.loc["bm25"].to_list() == [".125 [.075, .175]", "", ""]


def test_a_long_table_folds_changed_settings_away(finished_run, tmp_path):
    arms = ["dense", "rrf|POOL=30", *(f"dense|POOL={i}" for i in range(20)), "hyde|rerank"]
    rows = [row(name) for name in arms] + [row("hyde", baseline="rrf|POOL=30", delta=0.1)]
    finished_run("talks", "local", "04_made", rows)
    table = tables.of_notebook(findings.collect(tmp_path / "results"))[0]
    shown, folded = table.parts
    assert [name for name, _ in shown] == ["dense", "rrf|POOL=30", "hyde|rerank", "hyde"] and len(folded) == 20
    assert "20 more arms, with other settings" in pages(tmp_path / "results")["report.html"]


def test_further_tables_keep_their_numbers_short(finished_run, tmp_path):
    frame = pd.DataFrame({"share": [0.123456, None], "count": [3, 4]}, index=pd.Index([0.5, 1.0], name="confidence"))
    finished_run("talks", "local", "06_made", [row()], frame)
    assert "| 0.5 | .123 | 3 |\n| 1 |  | 4 |" in pages(tmp_path / "results")["report.md"]


def test_text_from_data_is_text(finished_run, tmp_path):
    nasty = "<script>alert(1)</script> & 5_% [x](y) `a` | \\ #$~^{}"
    frame = pd.DataFrame({nasty: [1]}, index=pd.Index([nasty], name="what"))
    finished_run("talks", "local", "02_made", [row(), row(category=nasty), row(nasty)], frame)
    made = pages(tmp_path / "results")
    assert "<script" not in made["report.html"] + made["report.md"] and Page(made["report.html"])
    assert made["report.html"].count("&lt;script&gt;") >= 4
    heads = [line for line in made["report.md"].splitlines() if line.startswith("| what |")]
    assert heads == [r"| what | &lt;script>alert(1)&lt;/script> &amp; 5_% [x\](y) \`a\` \| \\ #$~^{} |"]
    body = "\n".join(line for line in made["report.tex"].splitlines() if not line.startswith("%"))
    escaped = report.tex(nasty)
    assert escaped in body and not re.search(r"(?<!\\)[#$%_](?![-]\$)", re.sub(r"\\label\{.*?\}|\$-\$", "", escaped))
    depth = re.sub(r"\\[{}]", "", body)
    assert depth.count("{") == depth.count("}")


def test_provenance_of_any_kind_is_shown(finished_run, tmp_path):
    folder = finished_run("talks", "local", "02_made", [row()])
    record = json.loads((folder / "02_made.run.json").read_text())
    (folder / "02_made.run.json").write_text(json.dumps(record | {"wall_seconds": [1.5, "<b>"], "models": "none"}))
    assert "1.5" in (page := pages(tmp_path / "results")["report.html"]) and "&lt;b&gt;" in page


def test_a_run_without_a_table_is_reported_all_the_same(finished_run, tmp_path):
    folder = finished_run("talks", "local", "02_made", [row()])
    file = folder / "02_made.run.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"files": {}}))
    (folder / "02_made.csv").unlink()
    assert "Provenance: 02_made" in pages(tmp_path / "results")["report.html"]


def test_a_report_is_no_result(finished_run, tmp_path):
    folder = finished_run("talks", "local", "02_made", [row()])
    record = json.loads((folder / "02_made.run.json").read_text())
    record |= {"notebook": "09_report", "parameters": {"RESULTS": "results"}, "files": {}}
    (folder / "09_report.run.json").write_text(json.dumps(record))
    assert [run.notebook for run in findings.collect(tmp_path / "results")] == ["02_made"]


def test_an_embedded_figure_looks_the_same_and_weighs_less():
    png = (COMMITTED / "locomo/local/figures/04_hyde_categories.png").read_bytes()
    source, width, height = report.picture(png)
    small = base64.b64decode(source.partition(",")[2])
    before, after = (np.asarray(Image.open(io.BytesIO(b)).convert("RGB")).astype(int) for b in (png, small))
    assert len(small) < len(png) / 2 and before.shape == after.shape and np.abs(before - after).mean() < 2
    assert (width, height) == (round(before.shape[1] * 0.64), round(before.shape[0] * 0.64))


# ---------------------------------------------------------------------------------------------------------- bad input


def damaged(folder, fault):
    """Spoil a results folder in one way; returns what the message must name."""
    record = folder / "02_made.run.json"
    content = json.loads(record.read_text())
    if fault == "of another run":
        (folder / "02_made.csv").write_text((folder / "02_made.csv").read_text().replace("dense", "other"))
        return "talks/local/02_made.csv: not the file that 02_made.run.json lists"
    if fault == "cut off":
        (folder / "figures/02_made_map.png").write_bytes(b"half")
        return "talks/local/figures/02_made_map.png: not the file"
    if fault == "missing":
        (folder / "02_made_types.csv").unlink()
        return "talks/local/02_made_types.csv: not the file"
    if fault in ("table of no run", "figure of no run"):
        name = "05_other.csv" if "table" in fault else "figures/05_other_x.png"
        shutil.copy(folder / "02_made.csv", folder / name)
        return f"talks/local/{name}: no run.json lists it"
    if fault == "half-written record":
        record.write_text(record.read_text()[:100])
        return "02_made.run.json: half-written"
    changes = {
        "data of another kind": ({"data": True}, "02_made.run.json: data is not as a run writes it"),
        "older schema": ({"schema": results.SCHEMA - 1}, f"02_made.run.json: not of schema {results.SCHEMA}"),
        "no files": ({"files": None}, "02_made.run.json: files is not as a run writes it"),
        "other notebook": ({"notebook": "03_made"}, "02_made.run.json: notebook is not as a run writes it"),
        "other profile": ({"parameters": {"PROFILE": "qwen3"}}, "02_made.run.json: a run of another data set"),
    }
    record.write_text(json.dumps(content | changes[fault][0]))
    return changes[fault][1]


FAULTS = ["of another run", "cut off", "missing", "table of no run", "figure of no run", "half-written record"]


@pytest.mark.parametrize(
    "fault", [*FAULTS, "data of another kind", "older schema", "no files", "other notebook", "other profile"]
)
def test_what_no_run_vouches_for_is_refused_in_one_line(finished_run, tmp_path, monkeypatch, fault):
    frame = pd.DataFrame({"count": [1]}, index=["a"])
    named = damaged(finished_run("talks", "local", "02_made", [row()], frame, figure=True), fault)
    monkeypatch.setattr(paths, "ROOT", tmp_path)
    with pytest.raises(BadInput) as refused:
        findings.collect(tmp_path / "results")
    assert named in str(refused.value) and "\n" not in str(refused.value)
    assert re.search("make results DATASET=talks PROFILE=local|run the notebook again", str(refused.value))


def test_nothing_to_report_and_names_that_are_not_there(finished_run, tmp_path):
    with pytest.raises(BadInput, match="no finished run to report; make some with make results"):
        findings.collect(tmp_path / "results")
    finished_run("talks", "local", "02_made", [row()])
    with pytest.raises(BadInput, match="novels: no results of this data set in results; there are: talks"):
        findings.collect(tmp_path / "results", ["novels"])
    with pytest.raises(BadInput, match="qwen3: no results of this profile in results; there are: local"):
        findings.collect(tmp_path / "results", profiles=["qwen3"])


def test_a_page_too_large_is_refused(finished_run, tmp_path, monkeypatch):
    finished_run("talks", "local", "02_made", [row()])
    monkeypatch.setattr(report, "LIMIT", 1000)
    with pytest.raises(BadInput, match=r"report.html: [0-9,]+ bytes, more than 1,000; report fewer"):
        pages(tmp_path / "results")


# ------------------------------------------------------------------------------------------------------ command, README


def test_the_command_writes_three_files_and_leaves_the_readme_of_other_results_alone(finished_run, tmp_path):
    def command():
        environment = {**os.environ, "RAWRAG_RESULTS": str(tmp_path / "results")}
        words = [sys.executable, "-m", "rawrag_utils.report"]
        return subprocess.run(words, cwd=paths.ROOT, env=environment, capture_output=True, text=True)

    folder = finished_run("talks", "local", "02_made", [row()])
    before = (paths.ROOT / "README.md").stat().st_mtime_ns
    assert command().stdout == "report: report.html, report.md, report.tex\n"
    files = sorted(path.name for path in (tmp_path / "results").iterdir() if path.is_file())
    assert files == [".lock", "report.html", "report.md", "report.tex"]
    assert (paths.ROOT / "README.md").stat().st_mtime_ns == before
    (folder / "02_made.csv").write_text("half")
    ended = command()
    assert ended.returncode == 1 and ended.stderr.startswith("error: 02_made.csv: not the file")
    assert ended.stderr.count("\n") == 1


def test_a_marked_table_names_what_is_missing(tmp_path):
    results_file = tmp_path / "t.csv"
    pd.DataFrame([row()]).reindex(columns=results.COLUMNS).to_csv(results_file, index=False)
    assert "| dense | 30 | .250 [.200, .300] |" in report.filled(
        f"<!-- table {results_file}: dense: recall@15 --><!-- end -->"
    )
    other = pd.DataFrame([row(), {**row(), "category": "temporal", "value": 0.75}]).reindex(columns=results.COLUMNS)
    other.to_csv(results_file, index=False)
    assert "| dense | 30 | .750" in report.filled(
        f"<!-- table {results_file}: dense: recall@15: temporal --><!-- end -->"
    )
    with pytest.raises(BadInput, match="no variant 'bm25'"):
        report.filled(f"<!-- table {results_file}: bm25: recall@15 --><!-- end -->")
