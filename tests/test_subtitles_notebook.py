"""08 on subtitles of one's own: an answer with its times, the measured arms on a folder with questions, refusals."""

import json
import re

import conftest
import pytest

from rawrag_utils import results, run, subtitles

TOLD = (
    "Welcome to a short talk about kilns and the people who fire them.",
    "Nora bought her kiln in the spring, from a school in Leeds that closed.",
    "It needs nine hours to reach twelve hundred degrees, and a night to cool.",
    "Opening it early cracks the glaze, because cold air shrinks it too fast.",
    "To load it, put the heavy pots below and leave a finger between them.",
    "Gas kilns are quicker than electric ones, but they cost more to keep.",
)


def talk(folder, name="talk.srt"):
    stamp = "00:{:02}:{:02},000".format
    cues = (
        f"{i + 1}\n{stamp(*divmod(12 * i, 60))} --> {stamp(*divmod(12 * i + 10, 60))}\n{text}\n"
        for i, text in enumerate(TOLD)
    )
    (folder / name).write_text("\n".join(cues), encoding="utf-8")
    return folder / name


@pytest.fixture(autouse=True)
def runs(tmp_path, monkeypatch):
    monkeypatch.setenv("RAWRAG_RUNS", str(tmp_path / "runs"))


def ask(subtitles_path, **parameters):
    given = {"SUBTITLES": subtitles_path, "PROFILE": "small", **parameters}
    return run.main(["08_subtitles", *conftest.options(given)])


def test_an_own_file_is_asked_and_the_answer_has_its_times(tmp_path, capfd):
    assert ask(talk(tmp_path), QUESTION="Why should the kiln not be opened early?") == 0, capfd.readouterr().err
    told = capfd.readouterr().out
    assert "Why should the kiln not be opened early?" in told
    (read,) = re.findall(r"^read: (.*)$", told, re.MULTILINE)
    (cited,) = re.findall(r"^cited: (.*)$", told, re.MULTILINE)
    spans = [(12_000 * i, 12_000 * i + 10_000) for i in range(len(TOLD))]
    assert read == subtitles.cite(spans, range(len(TOLD)))  # all of it lasts less than three minutes
    assert cited == "nothing" or all(re.fullmatch(r"\d\d:\d\d~\d\d:\d\d", one) for one in cited.split(", "))


def test_a_folder_with_questions_is_measured(tmp_path, run_stub):
    lectures = tmp_path / "lectures"
    lectures.mkdir()
    talk(lectures)
    rows = [
        ("What did Nora buy?", "factual", 1),
        ("Why do glazes crack?", "conceptual", 3),
        ("How are pots put into a kiln?", "procedural", 4),
        ("Is gas better than electricity?", "my own type", 5),
    ]
    questions = [
        {
            "id": f"k{i}",
            "lecture": "talk.srt",
            "text": text,
            "type": kind,
            "ranges": [[12_000 * at, 12_000 * at + 10_000]],
        }
        for i, (text, kind, at) in enumerate(rows)
    ]
    (lectures / "questions.json").write_text(json.dumps({"questions": questions}))
    done = run_stub("08_subtitles", {"SUBTITLES": lectures, "ANSWERS": 1})
    assert done.returncode == 0, done.stderr
    (folder,) = (tmp_path / "runs" / "lectures" / "stub").iterdir()
    table = results.read_table(folder / "08_subtitles.csv")
    found = table[(table["metric"] == "recall@180s") & (table["category"] == "all")].set_index("variant")["value"]
    assert found["multisize"] == 1.0 and "router|rerank" in found and "rrf|INDEX=questions" in found
    assert {"talk", "my own type", "all"} <= set(table["category"])
    read = table[(table["variant"] == "read|evidence") & (table["category"] == "all")].set_index("metric")["value"]
    assert read["covered"] == 1.0 and 0 <= read["range_iou"] <= 1
    record = results.read_run(folder / "08_subtitles.run.json")
    assert record["data"]["questions_asked"] == 4
    assert {"figures/08_subtitles_merging.png", "figures/08_subtitles_seconds.png"} <= set(record["files"])


@pytest.mark.parametrize(
    ("name", "parameters", "line"),
    [
        ("talk.srt", {}, "QUESTION is empty and the subtitles come without questions; type one: QUESTION='…'"),
        ("none.srt", {"QUESTION": "What?"}, "none.srt': no such data set or file"),
        ("talk.txt", {"QUESTION": "What?"}, "talk.txt: no subtitles; name a file that ends in .srt or .vtt"),
        ("talk.srt", {"QUESTION": "What?", "MAX_MS": "-1"}, "MAX_MS=-1: a whole number from 0"),
        ("talk.srt", {"QUESTION": "What?", "SIZES": "[3]"}, "SIZES=[3]: a list of odd numbers that begins with 1"),
    ],
)
def test_what_cannot_be_asked_is_one_line(tmp_path, capfd, name, parameters, line):
    talk(tmp_path, "talk.txt" if name == "talk.txt" else "talk.srt")
    assert ask(tmp_path / name, **parameters) in (1, 2)
    error = capfd.readouterr().err
    assert line in error and "Traceback" not in error
