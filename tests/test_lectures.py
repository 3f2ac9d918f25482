"""The bundled lectures: subtitles as real ones are made, and questions whose gold ranges hold what they claim."""

import re
from collections import Counter
from statistics import median
from typing import Annotated, Literal

import pydantic
import pysubs2
import pytest
import Stemmer

from rawrag_utils.paths import ROOT

FOLDER = ROOT / "data/sample/lectures"
ENGLISH, CHINESE = "tides_en.srt", "earthquakes_zh.srt"
LECTURES = [ENGLISH, CHINESE]
MINUTES = 25  # the least that a lecture lasts
CHARACTERS_A_SECOND = {ENGLISH: 20, CHINESE: 8}  # the fastest that a viewer can read
CHARACTERS_A_LINE = {ENGLISH: 45, CHINESE: 20}
SHORT = {ENGLISH: 20, CHINESE: 8}  # cues up to so many characters may be said twice ("Good.")
SPEAKERS = {ENGLISH: {"STUDENT: ", "LECTURER: "}, CHINESE: {"學生：", "老師："}}
TIMING = r"\d{2}:[0-5]\d:[0-5]\d,\d{3}"
CUE = re.compile(rf"(\d+)\n{TIMING} --> {TIMING}\n([^\n]+)(\n[^\n]+)?")

# Big5 has no simplified characters, save those that are an old or rare Traditional one too: these, as far as common.
SIMPLIFIED_IN_BIG5 = set("优体儿几划厂听坏复宁异怀惊愿扑扰挂据斗机极构柜气洁涂痒确离种筑胜荐触适")

# ------------------------------------------------------------------------------------------------------ the schema


Milliseconds = Annotated[int, pydantic.Field(strict=True, ge=0)]
Text = Annotated[str, pydantic.Field(strict=True, min_length=3, max_length=300, pattern=r"^\S.*\S$")]


class Question(pydantic.BaseModel, extra="forbid"):
    """One question; `ranges` are [start_ms, end_ms] that hold the answer, in order."""

    id: str
    lecture: Literal["tides_en.srt", "earthquakes_zh.srt"]
    text: Text
    type: Literal["factual", "conceptual", "procedural", "comparative", "exploratory"]
    answer: Text
    ranges: Annotated[list[tuple[Milliseconds, Milliseconds]], pydantic.Field(min_length=1, max_length=4)]


class QuestionFile(pydantic.BaseModel, extra="forbid"):
    """`questions.json` as a whole."""

    name: str
    license: Literal["CC0-1.0"]
    description: str
    questions: list[Question]


QUESTIONS = QuestionFile.model_validate_json((FOLDER / "questions.json").read_bytes()).questions


def cues(lecture):
    return list(pysubs2.load(str(FOLDER / lecture), encoding="utf-8"))


def text(cue, lecture):
    """The words of a cue on one line; Chinese has no blank between lines."""
    return cue.plaintext.replace("\n", "" if lecture == CHINESE else " ")


def asked(lecture):
    return [question for question in QUESTIONS if question.lecture == lecture]


def said(question):
    """What is said within a question's ranges."""
    held = [c for c in cues(question.lecture) if any(a <= c.start and c.end <= b for a, b in question.ranges)]
    return ("" if question.lecture == CHINESE else " ").join(text(c, question.lecture) for c in held)


# --------------------------------------------------------------------------------------------------------- subtitles


@pytest.mark.parametrize("lecture", LECTURES)
def test_file_is_plain_srt(lecture):
    raw = (FOLDER / lecture).read_bytes()
    assert not raw.startswith(b"\xef\xbb\xbf") and b"\r" not in raw and raw.endswith(b"\n") and b"\n\n\n" not in raw
    blocks = [CUE.fullmatch(block) for block in raw.decode("utf-8").removesuffix("\n").split("\n\n")]
    assert all(blocks)
    assert [int(block[1]) for block in blocks] == list(range(1, len(blocks) + 1))
    assert len(cues(lecture)) == len(blocks)
    lines = [line.strip("\n") for block in blocks for line in (block[2], block[3] or "")]
    assert max(map(len, lines)) <= CHARACTERS_A_LINE[lecture]
    assert not [line for line in lines if line != line.strip() or re.search(r"[<>{}\\|]|&\w+;", line)]


@pytest.mark.parametrize("lecture", LECTURES)
def test_lecture_is_long_enough(lecture):
    last = cues(lecture)[-1]
    words = " ".join(text(c, lecture) for c in cues(lecture))
    spoken = len(re.findall(r"[\u4e00-\u9fff]", words)) if lecture == CHINESE else len(words.split())
    slowest, fastest = (190, 250) if lecture == CHINESE else (120, 160)
    assert last.end >= MINUTES * 60_000
    assert slowest <= spoken / (last.end / 60_000) <= fastest


@pytest.mark.parametrize("lecture", LECTURES)
def test_times_run_forward_and_cues_can_be_read(lecture):
    events = cues(lecture)
    assert all(before.end < after.start for before, after in zip(events, events[1:], strict=False))
    lengths = [c.end - c.start for c in events]
    assert min(lengths) >= 1000 and max(lengths) <= 7000
    assert sum(1500 <= length <= 6000 for length in lengths) >= 0.9 * len(lengths)
    assert 2000 <= median(lengths) <= 5000
    too_fast = [
        n for n, c in enumerate(events, 1) if len(text(c, lecture)) > CHARACTERS_A_SECOND[lecture] * c.duration / 1000
    ]
    assert too_fast == []
    gaps = [after.start - before.end for before, after in zip(events, events[1:], strict=False)]
    assert median(gaps) <= 700 and sum(gap > 2000 for gap in gaps) >= 10  # mostly close, and pauses between topics


@pytest.mark.parametrize("lecture", LECTURES)
def test_nothing_is_said_twice(lecture):
    texts = [text(c, lecture) for c in cues(lecture)]
    assert [t for t, n in Counter(texts).items() if n > 1 and len(t) > SHORT[lecture]] == []
    run = 15 if lecture == CHINESE else 8  # characters or words; a copied sentence would hold such a run twice
    units = list("".join(texts)) if lecture == CHINESE else " ".join(texts).lower().split()
    runs = Counter(tuple(units[i : i + run]) for i in range(len(units) - run + 1))
    assert [r for r, n in runs.items() if n > 1] == []


@pytest.mark.parametrize("lecture", LECTURES)
def test_several_people_speak(lecture):
    labelled = [
        m[0] for c in cues(lecture) if (m := re.match(r"[A-Z]{3,}: |[\u4e00-\u9fff]{2}\uff1a", text(c, lecture)))
    ]
    assert set(labelled) == SPEAKERS[lecture]
    assert Counter(labelled).most_common()[-1][1] >= 4


# --------------------------------------------------------------------------------------------------------- questions


def test_questions_are_enough_and_each_its_own():
    for lecture in LECTURES:
        of_it = asked(lecture)
        stem = lecture.removesuffix(".srt")
        assert [question.id for question in of_it] == [f"{stem}#{n}" for n in range(len(of_it))]
        types = Counter(question.type for question in of_it)
        assert len(of_it) >= 32 and len(types) == 5 and min(types.values()) >= 5
    assert len({question.text for question in QUESTIONS}) == len(QUESTIONS)


@pytest.mark.parametrize("lecture", LECTURES)
def test_ranges_lie_on_cue_borders(lecture):
    starts, ends = ({getattr(c, side) for c in cues(lecture)} for side in ("start", "end"))
    for question in asked(lecture):
        for start, end in question.ranges:
            assert start in starts and end in ends and 5_000 <= end - start <= 120_000, question.id
        assert all(a[1] < b[0] for a, b in zip(question.ranges, question.ranges[1:], strict=False)), question.id
    lengths = [end - start for question in asked(lecture) for start, end in question.ranges]
    assert sum(10_000 <= length <= 60_000 for length in lengths) >= 0.9 * len(lengths)
    first, last = min(q.ranges[0][0] for q in asked(lecture)), max(q.ranges[-1][1] for q in asked(lecture))
    assert first < 120_000 and last > cues(lecture)[-1].end - 120_000  # from beginning to end, not the first half


def test_numbers_of_an_answer_are_said_in_its_ranges():
    for question in QUESTIONS:
        numbers = r"[〇一二兩三四五六七八九十百千萬點]{3,}" if question.lecture == CHINESE else r"\d[\d,.]*(?<=\d)"
        missing = [number for number in re.findall(numbers, question.answer) if number not in said(question)]
        assert missing == [], question.id


def content(words, lecture):
    """What a search by words could match: stems of longer English words, or pairs of Chinese characters."""
    if lecture == CHINESE:
        runs = re.findall(r"[\u4e00-\u9fff]+", words)
        return {run[i : i + 2] for run in runs for i in range(len(run) - 1)}
    return set(Stemmer.Stemmer("english").stemWords(re.findall(r"[a-z]{4,}", words.lower())))


@pytest.mark.parametrize("lecture", LECTURES)
def test_half_of_the_questions_paraphrase(lecture):
    of_it = [(content(q.text, lecture), content(said(q), lecture)) for q in asked(lecture)]
    shared = [len(question & gold) / len(question) for question, gold in of_it]
    assert sum(share <= 0.4 for share in shared) >= len(shared) / 2
    assert sum(share > 0.1 for share in shared) >= len(shared) / 2  # and as many are found by their words


def test_each_language_keeps_to_itself():
    english = (FOLDER / ENGLISH).read_text(encoding="utf-8")
    chinese = (FOLDER / CHINESE).read_text(encoding="utf-8")
    english += "".join(q.text + q.answer for q in asked(ENGLISH))
    chinese += "".join(q.text + q.answer for q in asked(CHINESE))
    assert english.isascii()
    ideographs = set(re.findall(r"[\u4e00-\u9fff]", chinese))
    assert [c for c in ideographs if not c.encode("big5", errors="ignore")] == []
    assert SIMPLIFIED_IN_BIG5 & ideographs == set()
    assert set("們這說時會學過動來對沒還發見現問題間") <= ideographs
    words = re.sub(r"\d+\n[\d:, >-]+\n", "", chinese)
    assert set(re.findall(r"[!-~]", words)) == {"P", "S"}  # the waves; its punctuation is full-width


def test_no_file_holds_a_path_or_an_address():
    files = sorted(FOLDER.iterdir())
    assert [path.name for path in files] == [CHINESE, "questions.json", ENGLISH]
    for path in files:
        assert not re.search(r"@|://|www\.|\w/\w|[/\\]\w+[/\\]|[A-Za-z]:\\", path.read_text(encoding="utf-8")), (
            path.name
        )


@pytest.mark.parametrize("lecture", LECTURES)
def test_the_data_page_counts_right(lecture):
    minutes, seconds = divmod(cues(lecture)[-1].end // 1000, 60)
    row = rf"\| `{lecture}` \| .+ \| {minutes}:{seconds:02} \| {len(cues(lecture))} \| {len(asked(lecture))} \|"
    assert re.search(row, (ROOT / "data/README.md").read_text(encoding="utf-8"))
