"""What every source becomes: conversations of turns, and questions about them."""

import dataclasses
import re

from rawrag_utils import paths

# Characters of scripts that are written without blanks: ideographs, kana, bopomofo, Hangul; with the marks that repeat
# or lengthen, without punctuation. A class for regular expressions.
CJK = (
    "[\u3005\u3007\u3041-\u3096\u309d-\u309f\u30a1-\u30fa\u30fc-\u30ff\u3105-\u312f\u31f0-\u31ff\u3400-\u4dbf"
    "\u4e00-\u9fff\uac00-\ud7a3\uf900-\ufaff\uff66-\uff9f\U00020000-\U000323af]"
)

# What a question may ask for, by LoCoMo's numbers; other data sets bring names of their own.
CATEGORIES = {1: "multi-hop", 2: "temporal", 3: "open-domain", 4: "single-hop", 5: "adversarial"}
NAMED = {str(number): name for number, name in CATEGORIES.items()} | {name: name for name in CATEGORIES.values()}


@dataclasses.dataclass(frozen=True, slots=True)
class Turn:
    """One message. `timestamp` and `session_date` are ISO, None where the source has no readable date.

    `times`, (start_ms, end_ms), is what a segment of subtitles has in place of a date; its `speaker` may be empty.
    """

    turn_id: str
    session: int
    timestamp: str | None
    session_date: str | None
    speaker: str
    text: str
    caption: str | None = None
    times: tuple[int, int] | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Conversation:
    """A dated dialogue: `turns` in order, at least one."""

    conversation_id: str
    source_id: str
    speaker_a: str
    speaker_b: str
    turns: tuple[Turn, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Question:
    """A question about one conversation; `evidence` holds turn ids that exist, `raw_evidence` what the file says.

    `ranges` are the (start_ms, end_ms) of a lecture in which its answer is said.
    """

    question_id: str
    conversation_id: str
    text: str
    answer: str | None
    category: str
    evidence: tuple[str, ...]
    raw_evidence: tuple[str, ...]
    adversarial_answer: str | None = None
    date: str | None = None
    ranges: tuple[tuple[int, int], ...] = ()


def iso(stamp):
    """A turn's (timestamp, session_date) of a datetime; (None, None) where there is none.

    >>> import datetime
    >>> iso(datetime.datetime(2023, 5, 8, 13, 56))
    ('2023-05-08T13:56:00', '2023-05-08')
    """
    return (stamp.isoformat(), stamp.date().isoformat()) if stamp else (None, None)


def label(dataset):
    """Short name of a data set for folders and tables: its name, or the stem of its file.

    >>> label("locomo"), label("path/to/my talk.json"), label("talk.srt")
    ('locomo', 'my_talk', 'talk')
    """
    stem = str(dataset).replace("\\", "/").rstrip("/").rsplit("/", 1)[-1]
    stem = re.sub(r"\.(?:json|srt|vtt)$", "", stem, flags=re.IGNORECASE)
    return paths.file_name(stem) or "corpus"  # never a folder outside: `..` is no label
