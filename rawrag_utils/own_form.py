"""The project's own JSON form for conversations, as pydantic models; `data/README.md` describes it for users."""

import datetime
from typing import Annotated

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

NAMES = ("multi-hop", "temporal", "open-domain", "single-hop", "adversarial")


def _encodable(text):
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"character {error.start} is a lone surrogate; write the character itself") from error
    return text


def _category(value):
    if isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= len(NAMES):
        return NAMES[value - 1]
    if value not in NAMES:
        raise ValueError(f"unknown category {value!r}; use one of {', '.join(NAMES)}")
    return value


def _date(value):
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is not a date; write it as 2024-03-02 or 2024-03-02T18:30")
    try:
        return datetime.datetime.fromisoformat(value)
    except ValueError as error:
        raise ValueError(f"{value!r} is not a date; write it as 2024-03-02 or 2024-03-02T18:30") from error


Text = Annotated[str, AfterValidator(_encodable)]
Name = Annotated[Text, Field(min_length=1)]
# A conversation's id becomes part of file names and chunk ids.
Identifier = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$", max_length=80)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class Turn(_Strict):
    turn_id: Name
    speaker: Name
    text: Text
    caption: Text | None = None


class Session(_Strict):
    session: int
    date: Annotated[datetime.datetime, BeforeValidator(_date)]
    turns: Annotated[list[Turn], Field(min_length=1)]


class Question(_Strict):
    question: Name
    answer: Text | None = None
    category: Annotated[str, BeforeValidator(_category)] = "single-hop"
    evidence: list[str] = []
    adversarial_answer: Text | None = None


class Conversation(_Strict):
    conversation_id: Identifier
    source_id: Identifier | None = None
    speaker_a: Name
    speaker_b: Name
    sessions: Annotated[list[Session], Field(min_length=1)]
    questions: list[Question] = []

    @model_validator(mode="after")
    def _ids_agree(self):
        ids = [t.turn_id for s in self.sessions for t in s.turns]
        if twice := next((i for i in ids if ids.count(i) > 1), None) if len(set(ids)) < len(ids) else None:
            raise ValueError(f"turn_id {twice!r} stands there twice; give each turn its own")
        known = set(ids)
        for index, question in enumerate(self.questions):
            for turn_id in question.evidence:
                if turn_id not in known:
                    raise ValueError(f"questions[{index}].evidence names {turn_id!r}, which is no turn's turn_id")
        return self


class File(_Strict):
    conversations: Annotated[list[Conversation], Field(min_length=1)]
    name: str | None = None
    license: str | None = None
    description: str | None = None
