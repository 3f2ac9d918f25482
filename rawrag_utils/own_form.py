"""The project's own JSON form for conversations, as pydantic models; `data/README.md` describes it for users."""

import datetime
import reprlib
from collections import Counter
from typing import Annotated

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, field_validator, model_validator

NAMES = ("multi-hop", "temporal", "open-domain", "single-hop", "adversarial")

# What pydantic calls a fault, and what somebody who wrote the file by hand needs to read.
WORDING = {
    "missing": "is missing; add it",
    "extra_forbidden": "is no field of the form; correct its spelling or remove it",
    "string_type": "is not text; write it in double quotes",
    "string_unicode": "holds a lone surrogate; write the character itself",
    "string_too_long": "is longer than 80 characters; shorten it",
    "string_pattern_mismatch": "may hold letters a-z, digits, _ . - and starts with a letter or digit; choose another",
    "int_type": "is not a whole number; write it in digits, without quotes",
    "tuple_type": "is not a pair; write [start_ms, end_ms]",
    "list_type": "is not a list; write [ ] around its parts",
    "too_short": "is empty; put at least one in or remove what holds it",
    "model_type": "is not an object; write { } around its fields",
}


def explain(error):
    """The first fault of a pydantic `ValidationError` as one line: place, what is wrong, remedy, how many follow.

    >>> try:
    ...     File.model_validate({"conversations": [{"conversation_id": "a", "speaker_a": 1}]})
    ... except ValueError as error:
    ...     explain(error)
    'conversations[0].speaker_a: is not text; write it in double quotes (2 more faults after this one)'
    """
    first, *others = error.errors()
    place = "".join(f"[{part}]" if isinstance(part, int) else f".{_word(part)}" for part in first["loc"]).lstrip(".")
    own = first.get("ctx", {}).get("error")  # a validator of this module
    fault = str(own or WORDING.get(first["type"], first["msg"]))
    more = f" ({len(others)} more fault{'s' * (len(others) > 1)} after this one)" if others else ""
    return f"{place or 'top level'}: {fault}{more}"


def _word(name):
    return name if name.isidentifier() else reprlib.repr(name)  # one line, whatever the key holds


def _encodable(text):
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"character {error.start} is a lone surrogate; write the character itself") from error
    return text


def _filled(text):
    if not text.strip():
        raise ValueError("is empty; write something or, where it may be missing, leave the field out")
    return text


def _category(value):
    if isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= len(NAMES):
        return NAMES[value - 1]
    if value not in NAMES:
        raise ValueError(f"unknown category {reprlib.repr(value)}; use one of {', '.join(NAMES)} (or 1 to 5)")
    return value


def _date(value):
    try:
        # Dates are compared as they are written: the clock on the wall where the conversation took place.
        return datetime.datetime.fromisoformat(value).replace(tzinfo=None)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"{reprlib.repr(value)} is not a date; write it as 2024-03-02 or 2024-03-02T18:30, in double quotes"
        ) from error


Text = Annotated[str, AfterValidator(_encodable)]
Name = Annotated[Text, AfterValidator(_filled)]
# A conversation's id becomes part of file names and chunk ids.
Identifier = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$", max_length=80)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class Turn(_Strict):
    turn_id: Name
    speaker: Name
    text: Text
    caption: Name | None = None


class Session(_Strict):
    session: int
    date: Annotated[datetime.datetime, BeforeValidator(_date)]
    turns: Annotated[list[Turn], Field(min_length=1)]


class Question(_Strict):
    question: Name
    answer: Name | None = None
    category: Annotated[str, BeforeValidator(_category)] = "single-hop"
    evidence: list[str] = []
    adversarial_answer: Name | None = None


class Conversation(_Strict):
    conversation_id: Identifier
    source_id: Identifier | None = None
    speaker_a: Name
    speaker_b: Name
    sessions: Annotated[list[Session], Field(min_length=1)]
    questions: list[Question] = []

    @model_validator(mode="after")
    def _parts_agree(self):
        turn_ids = [turn.turn_id for session in self.sessions for turn in session.turns]
        _once("turn_id", turn_ids, "turn")
        _once("session", [session.session for session in self.sessions], "session")
        for number, (before, after) in enumerate(zip(self.sessions, self.sessions[1:], strict=False), 1):
            if after.date < before.date:
                raise ValueError(
                    f"sessions[{number}].date lies before that of the session above it; put sessions in order of time"
                )
        known = set(turn_ids)
        for index, question in enumerate(self.questions):
            if stray := [turn_id for turn_id in question.evidence if turn_id not in known]:
                raise ValueError(
                    f"questions[{index}].evidence names {reprlib.repr(stray[0])}, which is no turn's turn_id in this "
                    "conversation; correct or remove it"
                )
        return self


class File(_Strict):
    conversations: Annotated[list[Conversation], Field(min_length=1)]
    name: str | None = None
    license: str | None = None
    description: str | None = None

    @model_validator(mode="after")
    def _ids_differ(self):
        _once("conversation_id", [c.conversation_id for c in self.conversations], "conversation")
        # Question ids are made of it.
        _once("source_id", [c.source_id or c.conversation_id for c in self.conversations], "conversation")
        return self


class LectureQuestion(BaseModel):
    """One question of a `questions.json` beside subtitles; what else it holds is the user's."""

    id: Name
    lecture: Name
    text: Name
    type: Name
    answer: str | None = None
    ranges: Annotated[list[tuple[int, int]], Field(min_length=1)]

    @field_validator("ranges")
    @classmethod
    def _have_length(cls, ranges):
        if wrong := [r for r in ranges if not 0 <= r[0] < r[1]]:
            raise ValueError(f"{list(wrong[0])} is no range; wanted [start_ms, end_ms], the start before the end")
        return ranges


class LectureQuestions(BaseModel):
    """That file."""

    questions: list[LectureQuestion]


def _once(field, values, owner):
    if twice := [value for value, times in Counter(values).items() if times > 1]:
        raise ValueError(f"{field} {reprlib.repr(twice[0])} stands there twice; give each {owner} its own")
