"""What time words mean on the day they are written: hand-worked rows, and text that must stay as it is."""

import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rawrag_utils import timewords

MONDAY = "2023-05-08"
ROWS = [
    ("yesterday", "7 May 2023"),
    ("today", "8 May 2023"),
    ("tonight", "8 May 2023"),
    ("this morning", "8 May 2023"),
    ("last night", "7 May 2023"),
    ("Tomorrow", "9 May 2023"),
    ("the day before yesterday", "6 May 2023"),
    ("day before yesterday", "6 May 2023"),
    ("the day  after tomorrow", "10 May 2023"),
    ("last week", "the week before 8 May 2023"),
    ("this week", "the week of 8 May 2023"),
    ("next week", "the week after 8 May 2023"),
    ("past weekend", "the weekend before 8 May 2023"),
    ("last month", "April 2023"),
    ("next month", "June 2023"),
    ("last year", "2022"),
    ("next year", "2024"),
    ("last Friday", "the Friday before 8 May 2023"),
    ("last thurs", "the Thursday before 8 May 2023"),
    ("next Sunday", "the Sunday after 8 May 2023"),
    ("this Saturday", "the Saturday after 8 May 2023"),
    ("two days ago", "6 May 2023"),
    ("8 days ago", "30 April 2023"),
    ("a couple of days ago", "6 May 2023"),
    ("a few days ago", "a few days before 8 May 2023"),
    ("a week ago", "a week before 8 May 2023"),
    ("3 weeks from now", "3 weeks after 8 May 2023"),
    ("five months ago", "December 2022"),
    ("eleven months from now", "April 2024"),
    ("10 years ago", "2013"),
]


@pytest.mark.parametrize("words, meaning", ROWS)
def test_what_time_words_mean(words, meaning):
    assert timewords.explained(f"I saw it {words}, really.", MONDAY) == f"I saw it {words} ({meaning}), really."


@pytest.mark.parametrize(
    "text",
    [
        "the other day",
        "last summer",
        "ages ago",
        "last December",
        "this sun is hot",
        "yesterdays",
        "at last weekly",
        "a hundred days ago",
        "my last years",
        "昨天我上課了",
        "half a year ago",
        "1.5 years ago",
        "2,5 years ago",
        "twenty-two years ago",
        "thirty-one days ago",
        "2-3 days ago",
        "two or three days ago",
        "a year ago of course",
        "the last week of August",
        "",
    ],
)
def test_what_has_no_plain_meaning_stays_as_it_is(text):
    assert timewords.explained(text, MONDAY) == text


def test_month_and_year_ends():
    assert timewords.explained("yesterday", "2024-03-01") == "yesterday (29 February 2024)"
    assert timewords.explained("last year", "2024-02-29") == "last year (2023)"
    assert timewords.explained("last month", "2024-01-31") == "last month (December 2023)"
    assert timewords.explained("next month", "2023-12-31") == "next month (January 2024)"


def test_no_date_and_no_calendar():
    assert timewords.explained("yesterday", None) == "yesterday"
    assert timewords.explained("next year, tomorrow", "9999-12-31") == "next year, tomorrow"
    assert timewords.explained("99 years ago", "0050-01-01") == "99 years ago"


def test_the_part_with_a_meaning_of_its_own_is_explained():
    assert timewords.explained("a year ago today", MONDAY) == "a year ago today (8 May 2023)"


PHRASES = st.sampled_from([words for words, _ in ROWS]) | st.text("ab .,(-'\n", max_size=4)


@given(st.lists(PHRASES, max_size=8).map(" ".join), st.dates(), st.booleans())
def test_nothing_but_brackets_is_added(text, date, capitals):
    text = text.upper() if capitals else text
    explained = timewords.explained(text, date.isoformat())
    rest, start = explained, 0
    for found in timewords.EXPRESSION.finditer(text):
        meaning = f"{found[0]} ({timewords._meaning(found, date)})" if in_calendar(found, date) else found[0]
        assert explained[start:].startswith(text[found.pos : found.start()][-5:]) or meaning in rest
        assert meaning in rest
        rest = rest.replace(meaning, found[0], 1)
    assert rest == text


def in_calendar(found, date):
    try:
        return bool(timewords._meaning(found, date))
    except (OverflowError, ValueError):
        return False


@given(st.dates(min_value=datetime.date(2, 1, 1)), st.integers(1, 12))
def test_months_are_counted_as_a_calendar_does(date, months):
    found = timewords.explained(f"{months} months ago", date.isoformat())
    year, month = divmod(date.year * 12 + date.month - 1 - months, 12)
    assert found == f"{months} months ago ({datetime.date(year, month + 1, 1):%B %Y})"
