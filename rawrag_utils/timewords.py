"""What "yesterday" or "last month" means in a line that bears its date: day, week, month or year, written out.

Small readers copy dates well and count them badly. No model: a pattern finds the expression, the calendar says what it
means, and the meaning is put in brackets behind it. Only what has one plain meaning is explained ("the other day" and
"last summer" are left as they are). English only; other text passes through unchanged.
"""

import datetime
import re

WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
COUNTS = {"a": 1, "an": 1, "a couple of": 2} | {
    word: n
    for n, word in enumerate("one two three four five six seven eight nine ten eleven twelve".split(), 1)  # noqa: SIM905
}
DAYS = {"yesterday": -1, "last night": -1, "tomorrow": 1, "day before yesterday": -2, "day after tomorrow": 2}
_WEEKDAY = r"(?:mon|tues|wednes|thurs|fri|satur|sun)day|mon|tues?|wed|thu(?:rs)?|fri"  # "this sun" is no Sunday
EXPRESSION = re.compile(
    r"(?<![\w.,\u2013-])(?<!\bhalf )(?<!\bor )(?:"  # "1.5 years ago", "twenty-two days ago", "half a year ago"
    r"(?P<day>(?:the\s+)?day\s+before\s+yesterday|(?:the\s+)?day\s+after\s+tomorrow|yesterday|today|tonight|tomorrow|last\s+night"
    r"|this\s+(?:morning|afternoon|evening))"
    rf"|(?P<which>last|past|this|next)\s+(?P<unit>week(?:end)?|month|year|{_WEEKDAY})"
    rf"|(?P<count>a\s+few|a\s+couple\s+of|\d{{1,2}}|{'|'.join(sorted(COUNTS, key=len, reverse=True))})"
    r"\s+(?P<units>day|week|month|year)s?\s+(?P<side>ago|from\s+now)"
    r")\b(?!\s+(?:today|yesterday|of)\b)",  # "a year ago today", "the last week of August"
    re.IGNORECASE,
)


def day(date):
    """A date as it is spoken of.

    >>> day(datetime.date(2023, 5, 7))
    '7 May 2023'
    """
    return f"{date.day} {date:%B %Y}"


def explained(text, date):
    """`text`, written on the ISO day `date`, with what each time expression means in brackets behind it.

    Without a date the text is returned as it is.

    >>> explained("I ran yesterday and last week; it began two years ago.", "2023-05-08")
    'I ran yesterday (7 May 2023) and last week (the week before 8 May 2023); it began two years ago (2021).'
    """
    if not date:
        return text
    written = datetime.date.fromisoformat(date)
    return EXPRESSION.sub(lambda found: _with_meaning(found, written), text)


def _with_meaning(found, written):
    try:
        return f"{found[0]} ({_meaning(found, written)})"
    except (OverflowError, ValueError):  # before year 1 or after 9999: no date
        return found[0]


def _meaning(found, written):
    if found["day"]:
        return day(written + datetime.timedelta(DAYS.get(_plain(found["day"]).removeprefix("the "), 0)))
    if found["which"]:
        step = {"last": -1, "past": -1, "this": 0, "next": 1}[found["which"].lower()]
        return _moved(found["unit"].lower(), step, written)
    side = -1 if found["side"].lower() == "ago" else 1
    word, unit = _plain(found["count"]), found["units"].lower()
    number = int(word) if word.isdecimal() else COUNTS.get(word)
    if number is None or unit == "week":  # a few days, two weeks: no single day
        plural = "" if number == 1 else "s"
        return f"{word} {unit}{plural} {'before' if side < 0 else 'after'} {day(written)}"
    if unit == "day":
        return day(written + datetime.timedelta(side * number))
    return _moved(unit, side * number, written)


def _moved(unit, step, written):
    """The month or year `step` away; the week, weekend or weekday before, of or after the day."""
    if unit == "year":
        return str(written.replace(year=written.year + step, day=1).year)
    if unit == "month":
        months = written.year * 12 + written.month - 1 + step
        return f"{datetime.date(months // 12, months % 12 + 1, 1):%B %Y}"
    weekday = next((w for w in WEEKDAYS if w.lower().startswith(unit[:3])), None)
    side = "before" if step < 0 else "after" if step > 0 or weekday else "of"
    return f"the {weekday or unit} {side} {day(written)}"


def _plain(words):
    return " ".join(words.lower().split())
