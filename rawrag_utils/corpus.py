"""Conversations and questions: the bundled sample and lectures, LoCoMo, LongMemEval, own files; a report of repairs.

Files of LoCoMo's and LongMemEval's shape are repaired, and every repair is a row of the load report; a file in the
project's own form is the user's to mend, so the first fault is refused with its place.
"""

import dataclasses
import datetime
import hashlib
import json
import os
import random
import re
import shutil
import sys
from collections import defaultdict

from rawrag_utils import lectures, paths
from rawrag_utils.dialogue import Conversation, Question, Turn, label
from rawrag_utils.paths import BadInput

LOCOMO_URL = "https://raw.githubusercontent.com/snap-research/locomo/main/data/locomo10.json"
LOCOMO_SHA256 = "79fa87e90f04081343b8c8debecb80a9a6842b76a7aa537dc9fdf651ea698ff4"
LOCOMO_FILE = "data/locomo10.json"
BUNDLED = {"sample": "data/sample/dialogues.json", "lectures": "data/sample/lectures"}

CATEGORIES = {1: "multi-hop", 2: "temporal", 3: "open-domain", 4: "single-hop", 5: "adversarial"}
NAMED = {str(number): name for number, name in CATEGORIES.items()} | {name: name for name in CATEGORIES.values()}
UNANSWERABLE = ("adversarial", "abstention")  # LoCoMo's and LongMemEval's names for questions without an answer
LOCOMO_DATE, LONGMEMEVAL_DATE = "%I:%M %p on %d %B, %Y", "%Y/%m/%d (%a) %H:%M"
SESSION = re.compile(r"session_([0-9]{1,9})")
NO_SPEAKER = "Unknown speaker"
REFUSAL = re.compile(r"not mentioned|no information|not (?:specified|provided|stated)", re.IGNORECASE)


@dataclasses.dataclass(frozen=True)
class Corpus:
    """What `load` returns. `report` rows are dicts `place, fault, handling`, free of the data set's text."""

    name: str
    path: str
    sha256: str
    conversations: list[Conversation]
    questions: list[Question]
    report: list[dict]


# ------------------------------------------------------------------------------------------------ finding and loading


def load(dataset, path=None, merging=None):
    """Load a data set: `sample`, `lectures`, `locomo`, or the path of a file (the own form, or the shape of
    LoCoMo or LongMemEval).

    A subtitle file, or a folder of them, is loaded too, see `lectures.load`; `merging` holds the limits by which its
    cues are merged. `path` overrides where the data set of that name lies. Raises `BadInput`, one line, for a file that
    is missing, is not JSON, has no known shape or, in the own form, breaks a rule.

    >>> corpus = load("sample")
    >>> corpus.conversations[0].turns[0].turn_id, corpus.questions[0].question_id.endswith("#0")
    ('D1:1', True)
    """
    path = paths.resolve(path) if path else locate(dataset)
    name = paths.relative(path)
    if lectures.holds(path):
        return Corpus(label(dataset), name, digest(path), *lectures.load(path, merging))
    report = []
    try:
        items = _read_json(path)
        conversations, questions = _loader(items, name)(items, name, report)
    except RecursionError as error:
        raise BadInput(f"{name}: nested too deeply for a conversation; see data/README.md for the form") from error
    return Corpus(label(dataset), name, digest(path), conversations, questions, report)


def locate(dataset):
    """Path of the data set's file, fetched first where it is LoCoMo and not here; its hash is checked before use."""
    if dataset in BUNDLED:
        return paths.resolve(BUNDLED[dataset])
    if dataset == "locomo":
        return _locate_locomo()
    path = paths.resolve(dataset)
    if not str(dataset).strip() or not os.path.exists(path):
        raise BadInput(
            f"{str(dataset)!r}: no such data set or file; DATASET is sample, lectures, locomo or the path of a JSON or "
            "subtitle file (a relative path starts at the repository root)"
        )
    return path


def digest(path):
    """SHA-256 of the file, or of the hashes of the JSON and subtitle files of a folder."""
    if not path.is_dir():
        return paths.sha256(path)
    files = sorted([*path.glob("*.json"), *lectures.files(path)])
    return hashlib.sha256("".join(map(paths.sha256, files)).encode()).hexdigest()


def _locate_locomo():
    given = os.environ.get("RAWRAG_LOCOMO")
    path = paths.resolve(given or LOCOMO_FILE)
    if given and not path.is_file():
        raise BadInput(f"RAWRAG_LOCOMO={given}: no such file; correct the path or unset it to fetch LoCoMo")
    if not path.exists():
        print(
            "Fetching LoCoMo (2.8 MB, licence CC BY-NC 4.0: no commercial use) from its authors' repository",
            file=sys.stderr,
        )
        try:
            return paths.fetch(LOCOMO_URL, path, LOCOMO_SHA256)
        except BadInput as error:
            raise BadInput(f"{error}. Offline? Bring locomo10.json by other means: make data LOCOMO=path") from error
    if (found := paths.sha256(path)) != LOCOMO_SHA256:
        place, remedy = paths.relative(path), "delete the file to fetch it anew"
        if given:
            place, remedy = f"RAWRAG_LOCOMO={given}", "name the right file or unset it"
        raise BadInput(
            f"{place}: sha256 {found[:12]}… is not LoCoMo's {LOCOMO_SHA256[:12]}…; {remedy}, or load a changed copy "
            "by path: DATASET=path/to/file.json"
        )
    return path


def _read_json(path):
    """The file's object in the own form; of other shapes, and of a folder of JSON files, a list of items."""
    files = sorted(path.glob("*.json")) if path.is_dir() else [path]
    if not files:
        raise BadInput(f"{paths.relative(path)}: the folder holds no .json file; name a file or another folder")
    contents = [parse(file) for file in files]
    own = [file for file, content in zip(files, contents, strict=True) if is_own(content)]
    if own and len(files) > 1:
        raise BadInput(f"{paths.relative(own[0])}: a folder may hold LoCoMo's older layout only; name this one file")
    if own:
        return contents[0]
    return [item for content in contents for item in (content if isinstance(content, list) else [content])]


def is_own(content):
    """Whether a parsed file has the shape of the project's own form."""
    return isinstance(content, dict) and "conversations" in content


def parse(file):
    """What a JSON file holds. Raises `BadInput` naming line and column of the first fault."""
    name = paths.relative(file)
    try:
        # NaN and Infinity are not JSON, but how some tools write what is missing.
        return json.loads(file.read_text(encoding="utf-8-sig"), parse_constant=lambda _: None)
    except FileNotFoundError as error:
        raise BadInput(f"{name}: no such file; correct the path") from error
    except OSError as error:
        raise BadInput(f"{name}: cannot be read ({error.strerror}); check the path and who may read it") from error
    except UnicodeDecodeError as error:
        raise BadInput(f"{name}: byte {error.start} is not UTF-8; save the file as UTF-8") from error
    except json.JSONDecodeError as error:
        raise BadInput(
            f"{name}: line {error.lineno}, column {error.colno} is not JSON ({error.msg}); mend it there or, if the "
            "file is cut off, get it again"
        ) from error
    except ValueError as error:  # Python reads no integer of more than 4,300 digits
        raise BadInput(f"{name}: holds a number too long to read; write it as text in double quotes") from error


def _loader(items, name):
    if isinstance(items, dict):
        return _load_own
    first = next((item for item in items if isinstance(item, dict)), {})
    if "haystack_sessions" in first:
        return _load_longmemeval
    if "conversation" in first or any(SESSION.fullmatch(key) for key in first):
        return _load_locomo
    hint = 'write {"conversations": [ ]} around its conversations' if "sessions" in first else "see data/README.md"
    raise BadInput(
        f'{name}: no known shape (own form: an object with "conversations"; LoCoMo: a list with "conversation" and '
        f'"session_1"; LongMemEval: a list with "haystack_sessions"); {hint}'
    )


# ------------------------------------------------------------------------------------------------------------- own form


def _load_own(content, name, _report):  # nothing is repaired: it is the user's to mend
    from pydantic import ValidationError

    from rawrag_utils import own_form

    try:
        checked = own_form.File.model_validate(content)
    except ValidationError as error:
        raise BadInput(f"{name}: {own_form.explain(error)}; see data/README.md for the form") from error
    conversations, questions = [], []
    for c in checked.conversations:
        conversations.append(from_own(c))
        source = conversations[-1].source_id
        questions += [
            Question(
                f"{source}#{i}",
                c.conversation_id,
                q.question,
                q.answer,
                q.category,
                tuple(dict.fromkeys(q.evidence)),
                tuple(q.evidence),
                q.adversarial_answer,
            )
            for i, q in enumerate(c.questions)
        ]
    return conversations, questions


def from_own(checked):
    """The `Conversation` of an `own_form.Conversation`."""
    turns = tuple(
        Turn(t.turn_id, s.session, *_iso(s.date), t.speaker, t.text, t.caption)
        for s in checked.sessions
        for t in s.turns
    )
    name = checked.conversation_id
    return Conversation(name, checked.source_id or name, checked.speaker_a, checked.speaker_b, turns)


# --------------------------------------------------------------------------------------------------------------- LoCoMo


def _load_locomo(items, name, report):
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
            turns.append(Turn(turn_id, number, *_iso(stamp), speaker, text, caption))
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


def _load_longmemeval(items, name, report):
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
        asked, _ = _iso(_date(item.get("question_date"), LONGMEMEVAL_DATE, note, "question_date"))
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
            turns.append(Turn(turn_id, number, *_iso(stamps[i]), speaker, text))
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


def _iso(stamp):
    return (stamp.isoformat(), stamp.date().isoformat()) if stamp else (None, None)


# ---------------------------------------------------------------------------------------------------------- selection


def turn_places(corpus):
    """Where each turn stands in its conversation: {conversation_id: {turn_id: index}}."""
    return {c.conversation_id: {t.turn_id: i for i, t in enumerate(c.turns)} for c in corpus.conversations}


def select(questions, categories=(1, 2, 3, 4), count=0, seed=0):
    """The questions a notebook asks: of these categories, the first `count` of one fixed order (0: all, file order).

    `categories` holds LoCoMo's numbers or names; for a data set with names of its own, 1–4 stand for all that can be
    answered. The order: questions with usable evidence, shuffled by `seed` within category × conversation, then sorted
    by (rank + ½) / stratum size, which keeps the proportions and makes 30 a subset of 150 and 150 of 300.

    >>> q = [Question(f"c#{i}", "c", "?", "", "temporal" if i % 3 else "multi-hop", ("D1:1",), ()) for i in range(9)]
    >>> [x.category for x in select(q, count=3)]
    ['temporal', 'multi-hop', 'temporal']
    """
    if isinstance(count, bool) or not isinstance(count, int) or count < 0:
        raise BadInput(f"QUESTIONS: {count!r} is no number of questions; give 0 for all or the first how many")
    names = {NAMED.get(str(c), str(c)) for c in categories}
    own = {q.category for q in questions} - set(CATEGORIES.values())
    if unknown := names - set(CATEGORIES.values()) - own:
        known = list(CATEGORIES.values()) + sorted(own)
        raise BadInput(f"CATEGORIES: {min(unknown)!r} is not one of {', '.join(known)} (or 1 to 5)")
    if set(list(CATEGORIES.values())[:4]) <= names:
        names |= own - set(UNANSWERABLE)
    if CATEGORIES[5] in names:
        names |= own & set(UNANSWERABLE)
    chosen = [q for q in questions if q.category in names]
    if not count:
        return chosen
    strata = defaultdict(list)
    for question in chosen:
        if question.evidence:
            strata[question.category, question.conversation_id].append(question)
    keyed = []
    for stratum, members in strata.items():
        random.Random(f"{seed}|{stratum[0]}|{stratum[1]}").shuffle(members)
        keyed += [((rank + 0.5) / len(members), stratum, q) for rank, q in enumerate(members)]
    return [q for _, _, q in sorted(keyed, key=lambda k: k[:2])[:count]]


def summary(report):
    """The load report as counts: a list of (fault, handling, times, first place), most frequent first."""
    groups = defaultdict(list)
    for row in report:
        groups[row["fault"], row["handling"]].append(row["place"])
    return sorted(((*key, len(places), places[0]) for key, places in groups.items()), key=lambda g: -g[2])


def main(arguments):
    """`python -m rawrag_utils.corpus [path]`: put LoCoMo where the project looks for it and print the load report."""
    target = paths.resolve(LOCOMO_FILE)
    if arguments:
        source = paths.resolve(arguments[0])
        if not source.is_file():
            raise BadInput(f"{arguments[0]}: no such file; correct the path (a relative one starts at the root)")
        if paths.sha256(source) != LOCOMO_SHA256:
            raise BadInput(
                f"{arguments[0]}: not LoCoMo's locomo10.json (sha256 {LOCOMO_SHA256[:12]}… expected); "
                "nothing was copied. Load other files by path: DATASET=path/to/file.json"
            )
        with paths.atomic(target, "wb") as out, open(source, "rb") as file:
            shutil.copyfileobj(file, out)
    corpus = load("locomo", target if arguments else None)
    turns = sum(len(c.turns) for c in corpus.conversations)
    print(
        f"{corpus.path}: {len(corpus.conversations)} conversations, {turns:,} turns, "
        f"{len(corpus.questions):,} questions"
    )
    for fault, handling, times, place in summary(corpus.report):
        print(f"{times:>5} × {fault}: {handling} (first: {place})")


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except BadInput as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        sys.exit("stopped; run again to go on where it stopped")
