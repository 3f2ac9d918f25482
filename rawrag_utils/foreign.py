"""Files of other people's shape, LoCoMo's and LongMemEval's, as conversations and questions.

What is wrong in them is repaired, and every repair is a row of the load report: dicts `place, fault, handling`, free of
the file's text. Nothing is dropped in silence.
"""

import datetime
import re

from rawrag_utils.dialogue import NAMED, Conversation, Question, Turn, iso
from rawrag_utils.paths import BadInput

LOCOMO_DATE, LONGMEMEVAL_DATE = "%I:%M %p on %d %B, %Y", "%Y/%m/%d (%a) %H:%M"
SESSION = re.compile(r"session_([0-9]{1,9})")
NO_SPEAKER = "Unknown speaker"
REFUSAL = re.compile(r"not mentioned|no information|not (?:specified|provided|stated)", re.IGNORECASE)


# --------------------------------------------------------------------------------------------------------------- LoCoMo


def locomo(items, name, report):
    """(conversations, questions) of `items`, LoCoMo's list or its older layout with the sessions at top level.

    Repairs are added to `report`. Raises `BadInput` for an item without turns; `name` is the file's, for the message.

    >>> report = []
    >>> talk = {"sample_id": "tea", "session_1": [{"dia_id": "D1:1", "speaker": "Ada", "text": "It broke."}]}
    >>> conversations, questions = locomo([talk], "tea.json", report)
    >>> conversations[0].turns[0].turn_id, report[0]["place"], report[0]["fault"]
    ('D1:1', 'tea session_1_date_time', 'unreadable date')
    """
    conversations, questions, taken = [], [], set()
    for position, item in enumerate(items):
        item = item if isinstance(item, dict) else {}
        source = _source(item.get("sample_id"), f"conv-{position}", taken, report)
        note = _Notes(report, source)
        held = item.get("conversation", item)  # the older layout has the sessions at top level
        turns = _locomo_turns(held, note) if isinstance(held, dict) else []
        if not turns:
            raise BadInput(f"{name}: item {position} ({source}) has no turns; remove it or get the file again")
        names = [*dict.fromkeys(t.speaker for t in turns), NO_SPEAKER]
        a = _text(held.get("speaker_a"), note, "speaker_a", names[0])
        b = _text(held.get("speaker_b"), note, "speaker_b", next((n for n in names if n != a), NO_SPEAKER))
        conversation = Conversation(f"locomo_{position}", source, a, b, tuple(turns))
        conversations.append(conversation)
        questions += _locomo_questions(_list(item.get("qa"), note, "qa"), conversation, report)
    return conversations, questions


def _locomo_turns(held, note):
    keys = [key for key in held if SESSION.fullmatch(key)]
    ordered = sorted(keys, key=_number)
    if keys != ordered:
        note("sessions", "keys out of order", "numeric order")
    dated = {_number(key.removesuffix("_date_time")) for key in held if key.endswith("_date_time")} - {None}
    if empty := sorted(dated - {_number(key) for key in keys if held[key]}):
        note(f"sessions {empty[0]} to {empty[-1]}", "dates without dialogue", "left out")
    turns, taken = [], set()
    for key in ordered:
        number, session = _number(key), _list(held[key], note, key)
        stamp = _date(held.get(f"{key}_date_time"), LOCOMO_DATE, note, f"{key}_date_time") if session else None
        for index, raw in enumerate(session, 1):
            place = f"D{number}:{index}"
            raw = raw if isinstance(raw, dict) else {"text": raw}
            turn_id = _text(raw.get("dia_id"), note, f"{place} dia_id", place)
            if turn_id in taken:
                note(f"{place} dia_id", "id twice", "second one renamed")
                turn_id = _other(turn_id, taken, len(turns))
            taken.add(turn_id)
            speaker = _text(raw.get("speaker"), note, f"{place} speaker", NO_SPEAKER)
            text = _text(raw.get("text"), note, f"{place} text")
            caption = _optional(raw.get("blip_caption"), note, f"{place} blip_caption")
            if caption and not raw.get("img_url"):
                note(place, "caption without img_url", "caption kept")
            turns.append(Turn(turn_id, number, *iso(stamp), speaker, text, caption))
    return turns


def _number(key):
    match = SESSION.fullmatch(key)
    return int(match[1]) if match else None


def _locomo_questions(rows, conversation, report):
    turn_ids = {_canonical(t.turn_id): t.turn_id for t in conversation.turns}
    seen, questions = set(), []
    for index, row in enumerate(rows):
        question_id = f"{conversation.source_id}#{index}"
        note = _Notes(report, question_id)
        row = row if isinstance(row, dict) else {"question": row}
        text = _text(row.get("question"), note, "question")
        if text in seen:
            note("question", "duplicate question", "kept, keyed on index")
        seen.add(text)
        category = _category(row.get("category"), note)
        answer = _optional(row.get("answer"), note, "answer")
        if answer is None and category == "adversarial":
            note("answer", "category 5 without answer", "gold is a refusal")
        elif answer is None:
            note("answer", "no answer", "no gold")
        trap = _optional(row.get("adversarial_answer"), note, "adversarial_answer")
        if trap and REFUSAL.search(trap):
            note("adversarial_answer", "trap is itself a refusal", "special case in scores")
        raw = _strings(row.get("evidence"))
        evidence = _evidence(raw, turn_ids, note)
        where = (question_id, conversation.conversation_id)
        questions.append(Question(*where, text, answer, category, evidence, raw, trap))
    return questions


def _category(value, note):
    """The category's name for its number or name; anything else keeps a label of its own."""
    if isinstance(value, str | int) and str(value) in NAMED:
        return NAMED[str(value)]
    note("category", "unknown category", "kept under its own label")
    return re.sub(r"[^\w-]+", "-", f"category-{value}")[:40]


def _canonical(turn_id):
    match = re.fullmatch(r"D(\d{1,9}):(\d{1,9})", turn_id)
    return f"D{int(match[1])}:{int(match[2])}" if match else turn_id


def _evidence(raw, turn_ids, note):
    """Turn ids that exist, in the order of the file, each once; what was wrong with the strings is noted."""
    found = []
    if not raw:
        note("evidence", "no evidence", "out of recall, in for answers")
    for text in raw:
        ids = [(m[0], f"D{int(m[1])}:{int(m[2])}") for m in re.finditer(r"D:?(\d{1,9}):(\d{1,9})", text)]
        if text in turn_ids:  # ids need not have LoCoMo's form
            ids = [(text, text)]
        if not ids:
            note("evidence", "id that names no turn", "dropped")
        elif len(ids) > 1:
            note("evidence", "several ids in one string", f"split into {len(ids)}")
        for written, turn_id in ids:
            if written != turn_id:
                fault = "stray colon" if written.startswith("D:") else "zero padding"
                note("evidence", fault, f"repaired to {turn_id}")
            if turn_id not in turn_ids:
                note("evidence", "turn that does not exist", f"{turn_id} dropped")
            elif turn_ids[turn_id] in found:
                note("evidence", "the same id twice", "counted once")
            else:
                found.append(turn_ids[turn_id])
    return tuple(found)


# ---------------------------------------------------------------------------------------------------------- LongMemEval


def longmemeval(items, name, report):
    """(conversations, questions) of `items`, LongMemEval's list: each holds one question and its own conversation.

    Sessions are put in order of time, and a turn's id is made of the place it gets. `report`, `name` and faults as for
    `locomo`.
    """
    conversations, questions, taken = [], [], set()
    for position, item in enumerate(items):
        item = item if isinstance(item, dict) else {}
        source = _source(item.get("question_id"), str(position), taken, report)
        note = _Notes(report, source)
        turns, evidence = _longmemeval_turns(item, note)
        if not turns:
            raise BadInput(f"{name}: item {position} ({source}) has no turns in haystack_sessions; remove it")
        conversation_id = f"longmemeval_{position}"
        conversations.append(Conversation(conversation_id, source, "user", "assistant", tuple(turns)))
        text = _text(item.get("question"), note, "question")
        category = _text(item.get("question_type"), note, "question_type", "unknown")
        answer = _optional(item.get("answer"), note, "answer")
        if str(item.get("question_id")).endswith("_abs"):
            category, answer = "abstention", None  # what stands there as answer explains why there is none
        elif answer is None:
            note("answer", "no answer", "no gold")
        if not evidence:
            note("evidence", "no evidence", "out of recall, in for answers")
        raw = _strings(item.get("answer_session_ids"))
        asked, _ = iso(_date(item.get("question_date"), LONGMEMEVAL_DATE, note, "question_date"))
        where = (f"{source}#0", conversation_id)
        questions.append(Question(*where, text, answer, category, evidence, raw, date=asked))
    return conversations, questions


def _longmemeval_turns(item, note):
    sessions = _list(item.get("haystack_sessions"), note, "haystack_sessions")
    dates = _list(item.get("haystack_dates"), note, "haystack_dates")
    if len(dates) != len(sessions):
        note("haystack_dates", "not as many dates as sessions", "paired from the first on")
        dates = (dates + [None] * len(sessions))[: len(sessions)]
    stamps = [_date(d, LONGMEMEVAL_DATE, note, f"haystack_dates[{i}]") for i, d in enumerate(dates)]
    # The oracle file is not sorted by date. Undated sessions come last, in the order of the file.
    order = sorted(range(len(sessions)), key=lambda i: (stamps[i] is None, stamps[i] or datetime.datetime.max))
    if order != list(range(len(sessions))):
        note("haystack_sessions", "not sorted by date", "sorted")
    turns, evidence = [], []
    for number, i in enumerate(order, 1):
        for index, raw in enumerate(_list(sessions[i], note, f"haystack_sessions[{i}]"), 1):
            turn_id, place = f"D{number}:{index}", f"haystack_sessions[{i}][{index - 1}]"
            raw = raw if isinstance(raw, dict) else {"content": raw}
            speaker = _text(raw.get("role"), note, f"{place}.role", NO_SPEAKER)
            text = _text(raw.get("content"), note, f"{place}.content")
            turns.append(Turn(turn_id, number, *iso(stamps[i]), speaker, text))
            if raw.get("has_answer") is True:
                evidence.append(turn_id)
    return turns, tuple(evidence)


# -------------------------------------------------------------------------------------------------------- small repairs


class _Notes:
    """Appends a row to the load report: `note(where, fault, handling)`."""

    def __init__(self, report, source):
        self.report, self.source = report, source

    def __call__(self, where, fault, handling):
        self.report.append({"place": f"{self.source} {where}", "fault": fault, "handling": handling})


def _clean(text):
    """Lone surrogates (legal in JSON, not in UTF-8) become U+FFFD; pairs written as two escapes one character."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def _text(value, note, place, default=""):
    """`value` as clean text. What is missing becomes `default`; where that is not empty, a blank is missing too."""
    if value is None or (default and isinstance(value, str) and not value.strip()):
        note(place, "missing", "placeholder" if default else "left empty")
        return default
    if not isinstance(value, str):
        note(place, "not text", "made text")
    text = str(value)
    if (clean := _clean(text)) != text:
        note(place, "lone surrogate", "U+FFFD")
    return clean


def _optional(value, note, place):
    """`value` as clean text, None where it is null or blank."""
    return None if value is None or not str(value).strip() else _text(value, note, place)


def _list(value, note, place):
    """`value`, or an empty list where it is none."""
    if value is not None and not isinstance(value, list):
        note(place, "not a list", "left out")
    return value if isinstance(value, list) else []


def _strings(value):
    """What a list of ids holds, each as clean text; a single id is a list of one."""
    values = value if isinstance(value, list) else [value]
    return tuple(_clean(str(v)) for v in values if v is not None)


def _source(value, fallback, taken, report):
    """The name of an item of the file, made one of a kind: question ids begin with it."""
    note = _Notes(report, fallback)
    source = _text(value, note, "id", fallback)
    if source in taken:
        note("id", "id twice", "second one renamed")
        source = _other(source, taken, fallback)
    taken.add(source)
    return source


def _other(name, taken, suffix):
    while name in taken:
        name = f"{name}~{suffix}"
    return name


def _date(value, form, note, place):
    try:
        return datetime.datetime.strptime(value, form)
    except (TypeError, ValueError):
        note(place, "unreadable date", "None")
        return None
