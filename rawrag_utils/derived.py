"""Answers whose verdict is known, made from gold answers by fixed rules: what a judge is calibrated with.

Right ones say the gold in other words, vague ones stay on the topic without the fact, specific ones are concrete and
false, empty ones say nothing. Nothing is drawn at random: the same questions give the same answers.
"""

import datetime
import functools
import re

from rawrag_utils import cues, prompts, scores
from rawrag_utils.paths import BadInput

RIGHT, WRONG = "right", ("vague", "specific", "empty")  # kinds of answers

_MONTH, _YEAR = "|".join(cues.MONTHS), r"(?:19|20)\d\d(?!\d)"
_DAY = r"(?<!\d)(?P<day{0}>\d{{1,2}})(?:st|nd|rd|th)?"
DATE = re.compile(
    rf"{_DAY.format(1)}\s*(?:of\s+)?(?P<month1>{_MONTH})[\s,.]*(?P<year1>{_YEAR})"  # 7 May 2023
    rf"|(?P<month2>{_MONTH})\s+{_DAY.format(2)}[\s,]+(?P<year2>{_YEAR})"  # May 7th, 2023
    rf"|(?<!\d)(?P<year3>{_YEAR})-(?P<month3>\d\d)-(?P<day3>\d\d)(?!\d)"
    rf"|(?<!\d)(?P<year4>{_YEAR})年(?P<month4>\d{{1,2}})月(?P<day4>\d{{1,2}})日",
    re.IGNORECASE,
)
MONTH = re.compile(rf"(?P<month>{_MONTH})[\s,.]*(?:of\s+)?(?P<year>{_YEAR})", re.IGNORECASE)
YEAR = re.compile(rf"(?<!\d){_YEAR}")
NUMBERS = """zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen
seventeen eighteen nineteen twenty""".split()  # noqa: SIM905
COUNT = re.compile(rf"(\d+|{'|'.join(sorted(NUMBERS, key=len, reverse=True))})((?:[ -][a-z]+){{0,2}})", re.IGNORECASE)
YES_NO = re.compile(
    r"(?:most |very |quite )?(?:(?:likely|probably|presumably|possibly|definitely|certainly)[ ,]+)?"
    r"(?:(?P<yes>yes)|no|not)(?=\W*$|[,;:.(]|\s+(?:because|since))|(?P<likely>likely|probably)\W*$|unlikely\b",
    re.IGNORECASE,
)
MOVED_DAYS, MOVED_YEARS, MORE = 40, -3, 3  # how far a date or number of a false answer lies from the gold's
DATE_WORDS = 4  # that a gold may hold beside its date ("the Friday before …") and still be that date
ALIKE = 0.5  # official F1 from which an answer may be right after all

_SAID = {"en": "I recall: {}.", "zh": "我記得是\uff1a{}。"}
_VAGUE = {
    "en": "They talked about {}, and there was quite a lot to say about it.",
    "zh": "他們聊過{}\uff0c說了不少相關的事。",
}
_VAGUER = {
    "en": (
        "They went into that at some length, and there was quite a lot to say about it.",
        "Hard to put briefly, such things came up every now and then.",
    ),
    "zh": ("這件事他們聊得很詳細\uff0c說了不少。", "一言難盡\uff0c前前後後提過好幾回。"),
}
_TOPIC_WORDS = 8  # of a question that a vague answer repeats
_FELT = re.compile(r"feel|felt|describe|react|respon|think|attitude|emotion|mood", re.IGNORECASE)
_WHEN = re.compile(r"\s*when\b|.*(?:什麼時候|什么时候|哪一?[天年])", re.IGNORECASE)
_ASKING = """whose would could might many much long often kind kinds type types sort name names since ever also get got
considered according likely probably date day year month time using used use one two first last happen happened mention
mentioned say said tell told describe described""".split()  # noqa: SIM905
_ASKING_ZH = re.compile(
    r"[為为][什甚]?[麼么]|[什甚怎][麼么]樣?|哪[一兩幾]?[天個种種年些裡位家次]?|[誰谁]|[幾几][天個次歲點年月]?|多[少久]|"
    r"是否|會不會|有沒有|是不是|如果|就|[嗎吗呢的了是]|[^\w]+"
)


def check_golds(questions):
    """Raise `BadInput` for a question without a gold answer."""
    for question in questions:
        if not (question.answer or "").strip():
            raise BadInput(
                f"{question.question_id}: has no gold answer to judge by; leave it out (CATEGORIES without "
                f"{question.category}) or add its answer to the file"
            )


def answers(questions):
    """Answers made from the gold answers by fixed rules: a dict of kind to a list aligned with `questions`.

    `right`: the gold in other words (dates in another form, small numbers as words or digits, else in a short
    sentence). `vague`: the question's own content words without the fact. `specific`: something concrete and false:
    another date or number, the opposite of yes or no, else the gold of another question that shares no word with this
    one: as far as there are such, in the same script, of the same category, from another conversation, of the same sort
    (a date, a number), to a question that begins alike, and nearest in length. `empty`: nothing. Nothing is drawn at
    random. Raises `BadInput` for a question without gold, for none, and where no other gold differs enough.
    """
    check_golds(questions)
    if not questions:
        raise BadInput("no question with a gold answer to calibrate on; choose other CATEGORIES or more QUESTIONS")
    return {
        RIGHT: [_right(q.answer) for q in questions],
        "vague": [_vague(q) for q in questions],
        "specific": [_specific(q, questions) for q in questions],
        "empty": [""] * len(questions),
    }


def _right(gold):
    """The gold in other words."""
    # Digits beside the date may belong to it ("5 to 19 October 2024"): such a gold stays as it is.
    if not re.search(r"\d", DATE.sub("", gold)):
        changed = DATE.sub(_other_form, gold)
        if changed != gold:
            return changed
    if not re.search(r"\d", MONTH.sub("", gold)):
        changed = MONTH.sub(lambda m: f"{m['month']} of {m['year']}", gold)
        if changed != gold:
            return changed
    return _said(_counted(gold) or gold)


def _said(gold):
    return _SAID[prompts.language(gold)].format(gold.strip().rstrip(".。"))


def _day(match):
    """(the day of a match of `DATE` or None where the calendar lacks it, the number of its form)."""
    parts = {name: value for name, value in match.groupdict().items() if value}
    form = next(iter(parts))[-1]
    month = parts[f"month{form}"].lower()
    month = cues.MONTHS.index(month) + 1 if month in cues.MONTHS else int(month)
    try:
        return datetime.date(int(parts[f"year{form}"]), month, int(parts[f"day{form}"])), form
    except ValueError:
        return None, form


def _written(day, form):
    """A day in one of the forms that `DATE` reads."""
    month = cues.MONTHS[day.month - 1].capitalize()
    return {
        "1": f"{day.day} {month} {day.year}",
        "2": f"{month} {day.day}, {day.year}",
        "3": day.isoformat(),
        "4": f"{day.year}年{day.month}月{day.day}日",
    }[form]


def _other_form(match):
    day, form = _day(match)
    return _written(day, {"1": "2", "2": "1", "3": "1", "4": "3"}[form]) if day else match[0]


def _counted(gold):
    """A gold that is a number up to twenty, alone or with its unit, with digits for words and the reverse, else None.

    >>> _counted("3"), _counted("Two weeks"), _counted("430 euros"), _counted("one of them all")
    ('three', '2 weeks', None, None)
    """
    number, unit, spelt = _count(gold) or (None, "", False)
    return None if number is None else (str(number) if spelt else NUMBERS[number]) + unit


def _count(gold):
    """(number, unit, whether the number is a word) of such a gold, else None. A day of a month is no number."""
    found = COUNT.fullmatch(gold.strip().rstrip("."))
    if not found or set(found[2].lower().split()) & set(cues.MONTHS):
        return None
    spelt = found[1].lower() in NUMBERS
    number = NUMBERS.index(found[1].lower()) if spelt else int(found[1][:4])
    return (number, found[2], spelt) if number < len(NUMBERS) else None


def _vague(question):
    """On the topic, without the fact; less on the topic where the question holds the fact."""
    language = prompts.language(question.text)
    if language == "zh":
        words = [w for w in _ASKING_ZH.split(question.text) if w and len(w) > 1][:_TOPIC_WORDS]
        topic = "、".join(f"「{w}」" for w in words)
    else:
        words = [re.sub(r"['’]s?$", "", w) for w in _content(question.text) if not re.search(r"\d", w)][:_TOPIC_WORDS]
        topic = ", ".join(words[:-1]) + (" and " if words[:-1] else "") + "".join(words[-1:])
    texts = [*([_VAGUE[language].format(topic)] if words else []), *_VAGUER[language]]
    return next((text for text in texts if not _tells(text, question.answer, question.category)), texts[-1])


def _tells(text, gold, category):
    """Whether a text may tell the gold: holds all content words of one of its parts, or scores."""
    said = set(scores.stems(text))
    for part in re.split(r"[,;:.(，、；：。（]|\band\b|\bor\b|和", gold):
        words = scores.stems(" ".join(_content(part)) or part)
        if words and (said.issuperset(words) or (not part.isascii() and part.strip() in text)):
            return True
    return scores.locomo_f1(text, gold, category) >= ALIKE


def _content(text):
    """The words of a text, each once, that are neither function words nor words for asking."""
    words = re.findall(r"\w(?:[\w'’-]*\w)?", text)
    return list(dict.fromkeys(w for w in words if w.lower().replace("’", "'") not in _function_words()))


@functools.lru_cache(maxsize=1)
def _function_words():
    from bm25s.stopwords import STOPWORDS_EN_PLUS

    return frozenset(STOPWORDS_EN_PLUS) | frozenset(_ASKING)


def _specific(question, questions):
    """Something concrete and false."""
    gold = question.answer.strip()
    if moved := _moved(gold):
        return moved
    if answer := YES_NO.match(gold):
        return "No" if answer["yes"] or answer["likely"] else "Yes"
    number, unit, spelt = _count(gold) or (None, "", False)
    if number is not None and len(unit.split()) < 2 and number + MORE < len(NUMBERS):
        plural = "s" if number == 1 and unit else ""
        return _said((NUMBERS[number + MORE] if spelt else str(number + MORE)) + unit + plural)
    return _said(_other_gold(question, questions))


def _moved(gold):
    """Another date, where the gold is one, alone or with a few words that need it; else None.

    >>> _moved("7 May 2023"), _moved("The week before May 7, 2023"), _moved("June, 2023"), _moved("Since 2016")
    ('16 June 2023', 'June 16, 2023', '11 July 2023', '2013')
    """
    for pattern in (DATE, MONTH, YEAR):
        found = pattern.search(gold)
        rest = gold[: found.start()] + gold[found.end() :] if found else ""
        if found and len(rest.split()) <= DATE_WORDS and not re.search(r"\d", rest):
            if pattern is YEAR:
                return str(int(found[0]) + MOVED_YEARS)
            day, form = _day(found) if pattern is DATE else (_first_of(found), "1")
            return _written(day + datetime.timedelta(MOVED_DAYS), form) if day else None
    return None


def _first_of(match):
    return datetime.date(int(match["year"]), cues.MONTHS.index(match["month"].lower()) + 1, 1)


def _other_gold(question, questions):
    """The gold of another question that is false for this one; see `derived`."""
    gold, mine, felt = question.answer.strip(), _traits(question), _FELT.search(question.text)

    def distance(other):
        script, category, talk, sort, opening = (a == b for a, b in zip(_traits(other), mine, strict=True))
        near = abs(len(other.answer) - len(gold))
        alike = bool(felt and _FELT.search(other.text))  # "proud" may be as true as "happy"
        return alike, not script, not category, talk, not sort, not opening, near

    closest = {}
    for other in sorted(questions, key=distance):
        text = other.answer.strip()
        forms = [f for f in (text, _counted(text)) if f]  # "2" is "two"
        shared = max(scores.locomo_f1(_spaced(f), _spaced(gold), question.category) for f in forms)
        if shared == 0:
            return text
        closest.setdefault(shared, text)
    if min(closest) >= ALIKE:
        raise BadInput(
            f"{question.question_id}: no other gold answer to make a false one of; calibrate on more questions "
            "(GOLDS), at least two with different answers, or on none (GOLDS=0)"
        )
    return closest[min(closest)]


@functools.lru_cache(maxsize=8192)
def _traits(question):
    """What a false answer is chosen by: script, category, conversation, sort of answer, and how the question begins."""
    gold = question.answer.strip()
    if any(pattern.search(gold) for pattern in (DATE, MONTH, YEAR)) or _WHEN.match(question.text):
        sort = "date"
    elif _counted(gold) or re.search(r"\d", gold):
        sort = "number"
    else:
        sort = "yes or no" if YES_NO.match(gold) else "words"
    opening = " ".join(question.text.lower().split()[:2])  # "which country", "how many"
    return prompts.language(gold), question.category, question.conversation_id, sort, opening


def _spaced(text):
    """Blanks around Chinese characters, which scores then take for words."""
    return re.sub(r"([\u3400-\u9fff])", r" \1 ", text)
