"""What a reader sees in a real browser: a notebook in JupyterLab, the report from disk, and texts that stay texts."""

import json
import re

import browser
import pandas as pd
import pytest
from browser import HOSTILE

from rawrag_utils import findings, report, results

IMAGE = "<img src=x onerror=window.ran=1> $5 $6"  # fits into a folder's name and into a cell of a table
NAME = "02_&lt;img src=x onerror=window.ran=1&gt; $5 $6"  # a notebook's, which every system can keep


def test_a_notebook_runs_by_run_all_and_again_with_other_parameters(tab, lab):
    browser.open_notebook(tab, lab, "01_chunking.ipynb")
    browser.run_all(tab)
    assert browser.errors(tab) == []
    shown = "\n".join(browser.outputs(tab))
    assert re.search(r"^sample_0\t8\t154\t", shown, re.MULTILINE)
    assert "the retriever sees" in shown and "window|CHUNK_SIZE=1024" in shown and "'run_id'" in shown
    assert tab.locator("td mark").count() == 2  # what expansion restores, at either edge of the window
    assert len(browser.pictures(tab)) == 2 and min(min(browser.pictures(tab))) > 300
    assert (lab.runs / "sample/local/01_chunking.csv").is_file()  # and nothing under results/

    browser.set_parameters(tab, CHUNK_SIZE=32, CHUNK_OVERLAP=32)
    browser.run_all(tab)
    (error,) = browser.errors(tab)
    assert error.endswith("BadInput: CHUNK_OVERLAP=32: the overlap must be smaller than CHUNK_SIZE=32")


def test_widgets_are_shown_and_move_what_depends_on_them(tab, lab):
    slider = "import ipywidgets\n\nipywidgets.interact(lambda k: print(f'window {k}'), k=(0, 5));"
    unescaped = f"from IPython.display import HTML\n\nHTML({HOSTILE[1]!r})"
    browser.open_notebook(tab, lab, browser.put(lab, "widgets.ipynb", slider, unescaped))
    browser.run_all(tab)
    tab.get_by_text("window 2", exact=True).wait_for()
    tab.get_by_role("slider").press("ArrowRight")
    tab.get_by_text("window 3", exact=True).wait_for()
    # The Lab runs what a notebook shows: without this the tests of hostile texts would prove nothing.
    tab.wait_for_function("window.ran === 1")


# ------------------------------------------------------------------------------------------------------- hostile texts


def locomo(texts):
    """One conversation of LoCoMo's shape, whose ids, unlike the own form's, are any text: everything in it hostile."""
    turns = [{"dia_id": f"D1:{i} {t}", "speaker": t, "text": t, "blip_caption": t} for i, t in enumerate(texts, 1)]
    asked = [{"question": t, "answer": t, "category": 4, "evidence": [turns[0]["dia_id"]]} for t in texts]
    talk = {"speaker_a": texts[0], "speaker_b": texts[1], "session_1": turns, "session_1_date_time": texts[2]}
    return {"sample_id": IMAGE, "conversation": talk, "qa": [*asked, {"question": texts[0], "category": IMAGE}]}


def own(texts):
    """The same in the own form, as far as it admits any text."""
    turns = [{"turn_id": f"{i} {t}", "speaker": t, "text": t, "caption": t} for i, t in enumerate(texts)]
    asked = [{"question": t, "answer": t, "evidence": [turns[0]["turn_id"]]} for t in texts]
    talk = {"conversation_id": "own", "speaker_a": texts[0], "speaker_b": texts[1], "questions": asked}
    return {"conversations": [{**talk, "sessions": [{"session": 1, "date": "2024-03-02", "turns": turns}]}]}


def test_data_sets_are_text_in_the_lab(tab, lab, tmp_path):
    browser.open_notebook(tab, lab, "01_chunking.ipynb", browser.DARK)
    for name, content in ((f"own {IMAGE}", own(HOSTILE)), (f"locomo {IMAGE}", [locomo(HOSTILE)])):
        file = tmp_path / f"{name}.json"
        file.write_text(json.dumps(content), encoding="utf-8")
        # One window that holds all.
        browser.set_parameters(tab, DATASET=str(file), CHUNK_SIZE=2048, CHUNK_SIZES=[2048], MAP_WINDOW=0)
        browser.run_all(tab)
        assert browser.errors(tab) == []
        shown = browser.outputs(tab)
        (window,) = [text for text in shown if "the retriever sees" in text]
        for text in HOSTILE:  # as speaker, text and caption, in the window and in its turns
            assert window.count(text) >= 6, text
        assert not browser.ran(tab) and len(tab.frames) == 1
    assert f"{IMAGE} " in shown[3]  # the table of repairs names places


@pytest.fixture
def hostile_results(finished_run, tmp_path):
    """A folder of results, of one notebook in two profiles, in which all that can be any text is hostile."""
    row = {"metric": "recall@15", "category": "all", "n": 30, "value": 0.25, "ci_low": 0.125, "ci_high": 0.5}
    rows = [{**row, "variant": text, "category": c} for text in HOSTILE for c in ("all", *HOSTILE)]
    rows += [{**row, "variant": text, "metric": text} for text in HOSTILE]
    frame = pd.DataFrame([HOSTILE], columns=list(HOSTILE), index=pd.Index([HOSTILE[0]], name=HOSTILE[1]))
    for profile in ("local", IMAGE):
        folder = finished_run("talks", profile, NAME, rows, frame, figure=True)
        file = folder / f"{NAME}.run.json"
        record = results.read_run(file)
        record["parameters"] |= {f"P{i}": text for i, text in enumerate(HOSTILE)}
        record["models"] = [{"id": text, text: text} for text in HOSTILE]
        file.write_text(json.dumps(record), encoding="utf-8")
    return tmp_path / "results"


def test_results_are_text_in_the_report(tab, hostile_results):
    report.write(report.build(findings.collect(hostile_results), hostile_results), hostile_results)
    tab.goto((hostile_results / "report.html").as_uri())
    tab.evaluate("for (const details of document.querySelectorAll('details')) details.open = true")
    shown = tab.locator("body").inner_text()
    for text in HOSTILE:  # rows, heads and cells of tables, parameters and models of provenance, each in two profiles
        assert shown.count(text) >= 10, text
    assert f"Provenance: {NAME}, talks, profile {IMAGE}" in shown
    assert set(tab.evaluate("[...document.links].map(link => link.protocol)")) == {"file:"}
    assert not browser.ran(tab) and len(tab.frames) == 1
    assert all(tab.evaluate("[...document.images].map(i => i.src.startsWith('data:') && i.naturalWidth > 0)"))


def test_results_are_text_in_the_lab(tab, lab, hostile_results):
    browser.open_notebook(tab, lab, "09_report.ipynb")
    browser.set_parameters(tab, RESULTS=str(hostile_results))
    browser.run_all(tab)
    assert browser.errors(tab) == []
    shown = "\n".join(browser.outputs(tab))
    assert [text for text in HOSTILE if text not in shown] == []
    inside = tab.frames[1]  # the page once more, in a frame of the notebook's
    assert f"Provenance: {NAME}" in inside.locator("body").inner_text()
    assert not browser.ran(tab) and not browser.ran(inside) and len(tab.frames) == 2


def test_the_same_texts_as_markup_are_noticed(tab, strayed, tmp_path):
    page = tmp_path / "unescaped.html"
    page.write_text(f"<p>{'</p><p>'.join(HOSTILE)}<script>alert('seen')</script>", encoding="utf-8")
    tab.goto(page.as_uri())
    assert browser.ran(tab)
    assert set(strayed) == {"http://outside.invalid/a.png", "dialog: seen"}
    strayed.clear()
