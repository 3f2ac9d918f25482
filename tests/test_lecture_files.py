"""Subtitle files as a data set: one file, a folder, questions beside it, and what is refused."""

import json

import pytest

from rawrag_utils import corpus, lectures
from rawrag_utils.paths import BadInput


def srt(*spans):
    """Cues of (start, end) seconds below a minute."""
    stamp = "00:00:{:02},000".format
    return "\n\n".join(f"{i}\n{stamp(a)} --> {stamp(b)}\nWord {i} is said here" for i, (a, b) in enumerate(spans, 1))


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "b talk.srt").write_text(srt((0, 9), (10, 19), (20, 29)))
    (tmp_path / "a.vtt").write_text("WEBVTT\n\n00:01.000 --> 00:05.000\nHello there, all of you\n")
    return tmp_path


ROW = {"id": "b#0", "lecture": "b talk.srt", "text": "What?", "type": "factual", "ranges": [[10_000, 19_000]]}


def ask(folder, *rows, **change):
    rows = rows or ({**ROW, **change},)
    (folder / "questions.json").write_text(json.dumps({"questions": list(rows)}), encoding="utf-8")
    return corpus.load(str(folder))


def refused(call, *arguments, **options):
    with pytest.raises(BadInput) as caught:
        call(*arguments, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_one_file_is_one_conversation_without_questions(folder):
    data = corpus.load(str(folder / "b talk.srt"))
    (talk,) = data.conversations
    assert (data.name, talk.conversation_id, data.questions) == ("b_talk", "b_talk", [])
    assert [t.times for t in talk.turns] == [(0, 9000), (10_000, 19_000), (20_000, 29_000)]


def test_a_folder_holds_lectures_by_name_and_their_questions(folder):
    data = ask(folder)
    assert [c.conversation_id for c in data.conversations] == ["a", "b_talk"]
    (question,) = data.questions
    assert (question.question_id, question.conversation_id, question.category) == ("b#0", "b_talk", "factual")
    assert question.ranges == ((10_000, 19_000),) and question.evidence == ("S2",) and question.answer is None
    assert question.date is None


def test_limits_of_merging_reach_the_files(folder):
    data = corpus.load(str(folder / "b talk.srt"), merging={"max_gap_ms": 1000, "full_ms": 30_000})
    assert [t.times for t in data.conversations[0].turns] == [(0, 19_000), (20_000, 29_000)]


def test_evidence_is_what_lies_in_a_range_by_half_or_longest(folder):
    def evidence(*ranges):
        return ask(folder, ranges=list(ranges)).questions[0].evidence

    assert evidence([4_500, 29_000]) == ("S1", "S2", "S3")
    assert evidence([4_501, 29_000]) == ("S2", "S3")
    assert evidence([8_000, 13_000]) == ("S2",)  # half of neither: the longer piece
    assert evidence([0, 9_000], [20_000, 29_000]) == ("S1", "S3")


def test_the_digest_is_over_subtitles_and_questions(folder):
    before = ask(folder).sha256
    (folder / "a.vtt").write_text("WEBVTT\n\n00:01.000 --> 00:05.000\nGood bye, all of you\n")
    assert ask(folder).sha256 != before
    assert ask(folder, text="Who?").sha256 != before


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"lecture": "c.srt"}, "questions.json: b#0: there is no 'c.srt' beside it; correct `lecture`"),
        ({"ranges": []}, "questions.json: questions[0].ranges: is empty"),
        ({"ranges": [[5, 5]]}, "[5, 5] is no range; wanted [start_ms, end_ms], the start before the end"),
        ({"ranges": [[-1, 5]]}, "[-1, 5] is no range"),
        ({"ranges": [[1]]}, "questions[0].ranges[0]"),
        ({"ranges": [["a", 5]]}, "questions[0].ranges[0][0]"),
        ({"ranges": [[40_000, 50_000]]}, "b#0: nobody speaks at 00:40~00:50; correct `ranges`"),
        ({"text": " "}, "questions[0].text: is empty"),
        ({"type": 3}, "questions[0].type: is not text"),
        ({"id": None}, "questions[0].id: is not text"),
    ],
)
def test_a_fault_in_the_questions_is_one_line_with_its_place(folder, change, line):
    assert line in refused(ask, folder, **change)


def test_other_faults_of_the_questions(folder):
    assert "'b#0' stands twice" in refused(ask, folder, ROW, ROW)
    (folder / "questions.json").write_text("{")
    assert "questions.json: top level" in refused(corpus.load, str(folder))
    (folder / "questions.json").write_text("[]")
    assert "questions.json: top level: is not an object" in refused(corpus.load, str(folder))


def test_two_files_of_one_name_are_refused(folder):
    (folder / "b talk.vtt").write_text("WEBVTT\n\n00:01.000 --> 00:05.000\nHello\n")
    assert "b talk.srt and b talk.vtt are one lecture by name; rename one" in refused(corpus.load, str(folder))


def test_a_file_that_is_no_subtitle_is_refused(tmp_path):
    (tmp_path / "x.srt").write_text("Dear diary")
    assert "x.srt: line 1, 'Dear diary', is not how a cue begins" in refused(corpus.load, str(tmp_path / "x.srt"))
    assert "no such data set or file" in refused(corpus.load, str(tmp_path / "none.srt"))


def test_a_folder_without_subtitles_is_no_lecture(tmp_path):
    assert not lectures.holds(tmp_path)
    assert "the folder holds no .json file" in refused(corpus.load, str(tmp_path))


def test_the_bundled_lectures():
    data = corpus.load("lectures")
    assert [c.conversation_id for c in data.conversations] == ["earthquakes_zh", "tides_en"]
    assert len(data.questions) == 98 and all(q.evidence and q.ranges for q in data.questions)
    assert not any("\n" in t.text for c in data.conversations for t in c.turns)
