"""From parameters to files: validation, run ids, tables, provenance."""

import json
import pathlib

import nbformat
import pandas as pd
import pytest

from rawrag_utils import corpus, paths, results
from rawrag_utils import run as runner
from rawrag_utils.paths import BadInput

DEFAULTS = {"DATASET": "sample", "CHUNK_SIZE": 256, "CHUNK_OVERLAP": 32, "CATEGORIES": [1], "SHARE": 0.5, "SHOW": True}


@pytest.fixture
def notebook(tmp_path):
    """A function that writes a notebook with these parameters cells and returns its path."""

    def write(*sources, extra="x = 1"):
        nb = nbformat.v4.new_notebook()
        nb.cells = [nbformat.v4.new_code_cell(s, metadata={"tags": ["parameters"]}) for s in sources]
        nb.cells.append(nbformat.v4.new_code_cell(extra))
        nbformat.write(nb, tmp_path / "05_made.ipynb")
        return tmp_path / "05_made.ipynb"

    return write


@pytest.fixture
def run(notebook, tmp_path, monkeypatch):
    monkeypatch.setenv("RAWRAG_RUN_FOLDER", str(tmp_path / "run"))
    return results.begin(str(notebook("TOP_K = 15")), {"TOP_K": 3, "HTML": print, "_X": 1, "plain": 2})


def test_no_dollar_in_a_table_begins_a_formula(run):
    assert "mathjax_ignore" in pd.DataFrame({"question": ["$5 or $6?"]}).to_html(notebook=True)


def tidy(**changes):
    row = {"variant": "dense", "metric": "recall@15", "category": "all", "n": 9, "value": 0.25}
    return pd.DataFrame([{**row, "ci_low": 0.2, "ci_high": 0.3, **changes}])


@pytest.mark.parametrize(
    "given, said",
    [
        ({"CHUNKSIZE": 1}, "CHUNKSIZE: unknown parameter"),
        ({"CHUNK_SIZE": "256"}, "CHUNK_SIZE='256': wanted a value of kind int"),
        ({"CHUNK_SIZE": True}, "CHUNK_SIZE=True: wanted a value of kind int"),
        ({"CHUNK_SIZE": 0}, "CHUNK_SIZE=0: a whole number from 1"),
        ({"CHUNK_OVERLAP": 256}, "CHUNK_OVERLAP=256: the overlap must be smaller than CHUNK_SIZE=256"),
        ({"CATEGORIES": []}, "CATEGORIES=[]"),
        ({"SHARE": "x"}, "SHARE='x': wanted a value of kind float"),
        ({"DATASET": ""}, "DATASET=''"),
    ],
)
def test_bad_parameters_are_named(given, said):
    with pytest.raises(BadInput) as refused:
        results.check_parameters(given, DEFAULTS)
    assert str(refused.value).startswith(said) and "\n" not in str(refused.value)


def test_a_whole_number_is_a_share_too():
    assert results.check_parameters({"SHARE": 1}, DEFAULTS)["SHARE"] == 1


@pytest.mark.parametrize(
    "sources", [(), ("A = 1", "B = 2"), ("import os",), ("A, B = 1, 2",), ("A = 1 + x",), ("A = (",)]
)
def test_a_parameters_cell_holds_constants_and_stands_once(notebook, sources):
    with pytest.raises(BadInput, match="05_made.ipynb"):
        results.declared(notebook(*sources))


def test_a_file_that_is_no_notebook_is_refused(tmp_path):
    (tmp_path / "05_made.ipynb").write_text("{")
    with pytest.raises(BadInput, match="not a notebook"):
        results.declared(tmp_path / "05_made.ipynb")
    with pytest.raises(BadInput, match="there are 01_chunking"):
        results.notebook_path("99_missing")


def test_begin_takes_upper_case_scalars_only(run):
    assert run.parameters == {"TOP_K": 3} and run.notebook == "05_made"


def test_run_id_follows_code_parameters_and_data_not_prose(notebook, tmp_path):
    identity = results.run_id(notebook("A = 1"), {"A": 1})
    assert identity == results.run_id(notebook("A = 1"), {"A": 1})
    assert identity != results.run_id(notebook("A = 1"), {"A": 2})
    assert identity != results.run_id(notebook("A = 1", extra="x = 2"), {"A": 1})
    nb = nbformat.read(notebook("A = 1"), as_version=4)
    nb.cells.append(nbformat.v4.new_markdown_cell("prose"))
    nbformat.write(nb, tmp_path / "05_made.ipynb")
    assert identity == results.run_id(tmp_path / "05_made.ipynb", {"A": 1})
    data = tmp_path / "d.json"
    ids = set()
    for content in ("{}", "[]"):
        data.write_text(content)
        ids.add(results.run_id(tmp_path / "05_made.ipynb", {"DATASET": str(data)}))
    assert len(ids) == 2


def test_run_id_of_a_report_follows_the_result_files(notebook, finished_run, tmp_path):
    path, parameters = notebook("RESULTS = 'results'"), {"RESULTS": str(tmp_path / "results")}
    folder = finished_run("sample", "local", "01_tiny", tidy())
    identity = results.run_id(path, parameters)
    (folder / "log.txt").write_text("no result")
    assert results.run_id(path, parameters) == identity
    (folder / "01_tiny.csv").write_text("changed")
    assert results.run_id(path, parameters) != identity


def test_a_saved_table_reads_back_and_unknown_columns_are_refused(run):
    saved = results.save_table(run, tidy())
    read = results.read_table(run.folder / "05_made.csv")
    assert list(saved.columns) == list(results.COLUMNS) == list(read.columns)
    assert read["value"][0] == 0.25
    with pytest.raises(BadInput, match="text"):
        results.save_table(run, tidy(text="x"))


@pytest.mark.parametrize("content", ["", "a,b\n1,2\n", '"unclosed\n'])
def test_a_damaged_table_is_refused(tmp_path, content):
    (tmp_path / "t.csv").write_text(content)
    with pytest.raises(BadInput, match="t.csv"):
        results.read_table(tmp_path / "t.csv")
    with pytest.raises(BadInput, match="no such table"):
        results.read_table(tmp_path / "missing.csv")


def test_per_question_numbers_hold_no_text(run):
    results.save_per_question(run, pd.DataFrame({"query_id": ["c#0"], "variant": ["dense"], "recall@15": [1.0]}))
    assert len(pd.read_parquet(run.folder / "per_question" / "05_made.parquet")) == 1
    with pytest.raises(BadInput, match="answer"):
        results.save_per_question(run, pd.DataFrame({"query_id": ["c#0"], "answer": ["words"]}))


def test_finish_writes_provenance_last_and_lists_every_file(run):
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    results.save_table(run, tidy())
    figure = results.save_figure(run, plt.figure(), "shape")
    plt.close(figure)
    assert not (run.folder / "05_made.run.json").exists()
    record = results.finish(run, corpus.load("sample"), n=3)
    assert record == results.read_run(run.folder / "05_made.run.json")
    assert set(record["files"]) == {"05_made.csv", "figures/05_made_shape.png"}
    assert all(paths.sha256(run.folder / f) == digest for f, digest in record["files"].items())
    assert record["data"]["questions_asked"] == 3 and record["data"]["file"] == "data/sample/dialogues.json"
    assert {"torch", "rawrag_utils"} <= set(record["packages"]) and "+" not in record["packages"]["torch"]


def test_the_same_figure_gives_the_same_bytes(run):
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    seen = set()
    for _ in range(2):
        figure, ax = plt.subplots()
        ax.plot([1, 2], [3, 4])
        results.save_figure(run, figure, "line")
        plt.close(figure)
        seen.add((run.folder / "figures" / "05_made_line.png").read_bytes())
    assert len(seen) == 1


DISTRUSTED = [
    ("{", "half-written"),
    ('{"schema": 1, "run_id": "\\ud800"}', "half-written"),
    ("[" * 100_000, "half-written"),
    ('{"schema": 0}', "schema"),
    ("[]", "schema"),
]
DISTRUSTED += [('{"schema": 1}', "run_id is not"), ('{"schema": 1, "run_id": "x", "files": null}', "files is not")]
DISTRUSTED += [('{"schema": 1, "run_id": "x", "files": {"../a": ""}}', "'../a', which lies outside its folder")]


@pytest.mark.parametrize("content, said", DISTRUSTED)
def test_a_record_that_cannot_be_trusted_is_refused(tmp_path, content, said):
    (tmp_path / "x.run.json").write_text(content)
    with pytest.raises(BadInput, match=said):
        results.read_run(tmp_path / "x.run.json")


def test_committed_results_have_provenance_and_their_files():
    records = list((paths.ROOT / "results").glob("*/*/*.run.json"))
    assert records
    for path in records:
        record = results.read_run(path)
        for name, digest in record["files"].items():
            assert paths.sha256(path.parent / name) == digest, name
        kept = json.dumps(record)
        assert str(pathlib.Path.home()) not in kept and str(paths.ROOT) not in kept


@pytest.mark.parametrize("place", ["sample/local", "locomo/local"])
def test_committed_tables_meet_the_expected_numbers(place):
    expected = runner.expected_rows(*place.split("/"))
    folder = paths.ROOT / "results" / place
    tables = {notebook: results.read_table(folder / f"{notebook}.csv") for notebook in expected}
    lines, passed = runner.compare(expected, tables)
    assert passed, "\n".join(lines)


def test_run_id_follows_the_subtitles_that_are_named(notebook, tmp_path):
    talk = tmp_path / "talk.srt"
    talk.write_text("1\n00:00:01,000 --> 00:00:02,000\nHello\n")
    identity = results.run_id(notebook("A = 1"), {"SUBTITLES": str(talk)})
    assert identity == results.run_id(notebook("A = 1"), {"SUBTITLES": str(talk)})
    talk.write_text("1\n00:00:01,000 --> 00:00:02,000\nGood bye\n")
    assert identity != results.run_id(notebook("A = 1"), {"SUBTITLES": str(talk)})
    assert results.run_id(notebook("A = 1"), {"SUBTITLES": ""})  # none named


def test_an_answer_is_printed_and_kept_but_is_no_result(tmp_path, capsys):
    run = results.Run("08_made", {}, "0", tmp_path / "new", 0.0)
    results.save_answer(run, "It relaxes. [00:01~00:02]")
    assert capsys.readouterr().out == "It relaxes. [00:01~00:02]\n"
    assert (tmp_path / "new" / "08_made_answer.txt").read_text() == "It relaxes. [00:01~00:02]\n"
    assert run.files == [] and results.result_files(tmp_path / "new") == []
