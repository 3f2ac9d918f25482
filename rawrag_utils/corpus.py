"""Conversations and questions: the bundled sample, LoCoMo, LongMemEval and your own JSON, with a report of repairs.

Files of LoCoMo's and LongMemEval's shape are repaired, and every repair is a row of the load report; a file in the
project's own form is the user's to mend, so the first fault is refused with its place.
"""

import dataclasses
import datetime
import json
import os
import random
import re
import shutil
import sys
from collections import Counter, defaultdict

from rawrag_utils import paths
from rawrag_utils.paths import BadInput

LOCOMO_URL = "https://raw.githubusercontent.com/snap-research/locomo/main/data/locomo10.json"
LOCOMO_SHA256 = "79fa87e90f04081343b8c8debecb80a9a6842b76a7aa537dc9fdf651ea698ff4"
LOCOMO_FILE = "data/locomo10.json"
SAMPLE_FILE = "data/sample/dialogues.json"

CATEGORIES = {1: "multi-hop", 2: "temporal", 3: "open-domain", 4: "single-hop", 5: "adversarial"}
UNANSWERABLE = ("adversarial", "abstention")  # LoCoMo's and LongMemEval's names for questions without an answer
NO_SPEAKER = "Unknown speaker"
REFUSAL = re.compile(r"not mentioned|no information|not (?:specified|provided|stated)", re.IGNORECASE)


@dataclasses.dataclass(frozen=True, slots=True)
class Turn:
    """One message. `timestamp` and `session_date` are ISO, None where the source has no readable date."""

    turn_id: str
    session: int
    timestamp: str | None
    session_date: str | None
    speaker: str
    text: str
    caption: str | None = None


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
    """A question about one conversation; `evidence` holds turn ids that exist, `raw_evidence` what the file says."""

    question_id: str
    conversation_id: str
    text: str
    answer: str | None
    category: str
    evidence: tuple[str, ...]
    raw_evidence: tuple[str, ...]
    adversarial_answer: str | None = None
    date: str | None = None


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


def load(dataset, path=None):
    """Load a data set: `sample`, `locomo`, or the path of a file (own form, LoCoMo's or LongMemEval's shape).

    `path` overrides where the data set of that name lies. Raises `BadInput`, one line, for a file that is missing,
    is not JSON, has no known shape or, in the own form, breaks a rule.

    >>> corpus = load("sample")
    >>> corpus.conversations[0].turns[0].turn_id, corpus.questions[0].question_id.endswith("#0")
    ('D1:1', True)
    """
    path = paths.resolve(path) if path else locate(dataset)
    name = paths.relative(path)
    items = _read_json(path)
    report = []
    conversations, questions = _loader(items, name)(items, name, report)
    seen = Counter(c.conversation_id for c in conversations)
    if repeated := next((i for i, n in seen.items() if n > 1), None):
        raise BadInput(f"{name}: conversation_id {repeated!r} stands there twice; give each conversation its own")
    return Corpus(label(dataset), name, digest(path), conversations, questions, report)


def label(dataset):
    """Short name of a data set for folders and tables: its name, or the stem of its file.

    >>> label("locomo"), label("path/to/my talk.json")
    ('locomo', 'my_talk')
    """
    stem = str(dataset).replace("\\", "/").rstrip("/").rsplit("/", 1)[-1].removesuffix(".json")
    return re.sub(r"[^\w.-]+", "_", stem).lstrip(".") or "corpus"  # never a folder outside: `..` is no label


def locate(dataset):
    """Path of the data set's file, fetched first where it is LoCoMo and not here; its hash is checked before use."""
    if dataset == "sample":
        return paths.resolve(SAMPLE_FILE)
    if dataset == "locomo":
        return _locate_locomo()
    path = paths.resolve(dataset)
    if not path.exists():
        raise BadInput(
            f"{dataset}: no such data set or file; DATASET is sample, locomo or the path of a JSON file "
            "(a relative path starts at the repository root)"
        )
    return path


def digest(path):
    """SHA-256 of the file, or of the hashes of the JSON files of a folder."""
    if not path.is_dir():
        return paths.sha256(path)
    import hashlib

    return hashlib.sha256("".join(paths.sha256(p) for p in sorted(path.glob("*.json"))).encode()).hexdigest()


def _locate_locomo():
    given = os.environ.get("RAWRAG_LOCOMO")
    path = paths.resolve(given or LOCOMO_FILE)
    if given and not path.exists():
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
        raise BadInput(
            f"{paths.relative(path)}: sha256 {found[:12]}… is not LoCoMo's {LOCOMO_SHA256[:12]}…; delete "
            "the file to fetch it anew, or load a changed copy by path: DATASET=path/to/file.json"
        )
    return path


def _read_json(path):
    files = sorted(path.glob("*.json")) if path.is_dir() else [path]
    if not files:
        raise BadInput(f"{paths.relative(path)}: the folder holds no .json file")
    items = []
    for file in files:
        try:
            content = json.loads(file.read_text(encoding="utf-8-sig"))
        except FileNotFoundError as error:
            raise BadInput(f"{paths.relative(file)}: no such file") from error
        except UnicodeDecodeError as error:
            raise BadInput(
                f"{paths.relative(file)}: byte {error.start} is not UTF-8; save the file as UTF-8"
            ) from error
        except (json.JSONDecodeError, RecursionError, OSError) as error:
            where = f"line {error.lineno}" if isinstance(error, json.JSONDecodeError) else "the file"
            raise BadInput(
                f"{paths.relative(file)}: {where} is not JSON ({getattr(error, 'msg', error)}); the file "
                "may be cut off, get it again"
            ) from error
        if isinstance(content, dict) and "conversations" in content:
            if len(files) > 1:
                raise BadInput(f"{paths.relative(file)}: a folder may hold LoCoMo's older layout only; name one file")
            return content
        items += content if isinstance(content, list) else [content]
    return items


def _loader(items, name):
    if isinstance(items, dict):
        return _load_own
    first = items[0] if items and isinstance(items[0], dict) else {}
    if "haystack_sessions" in first:
        return _load_longmemeval
    if "conversation" in first or any(re.fullmatch(r"session_\d+", key) for key in first):
        return _load_locomo
    raise BadInput(
        f'{name}: no known shape (own form: an object with "conversations"; LoCoMo: "conversation" with '
        '"session_1"; LongMemEval: "haystack_sessions"); see data/README.md'
    )


# ----------------------------------------------------------------------------------------------------------- own form


def _load_own(content, name, report):
    from pydantic import ValidationError

    from rawrag_utils import own_form

    try:
        checked = own_form.File.model_validate(content)
    except ValidationError as error:
        first = error.errors()[0]
        place = "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in first["loc"]).lstrip(".")
        raise BadInput(f"{name}: {place or 'top level'}: {first['msg']}; see data/README.md for the form") from error
    conversations, questions = [], []
    for c in checked.conversations:
        turns = tuple(
            Turn(t.turn_id, s.session, s.date.isoformat(), s.date.date().isoformat(), t.speaker, t.text, t.caption)
            for s in c.sessions
            for t in s.turns
        )
        source = c.source_id or c.conversation_id
        conversations.append(Conversation(c.conversation_id, source, c.speaker_a, c.speaker_b, turns))
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


# ------------------------------------------------------------------------------------------------------------- LoCoMo


def _load_locomo(items, name, report):
    conversations, questions = [], []
    for position, item in enumerate(items):
        source = str(item.get("sample_id") or f"conv-{position}") if isinstance(item, dict) else f"conv-{position}"
        note = _Notes(report, source)
        held = item.get("conversation", item) if isinstance(item, dict) else None
        if not isinstance(held, dict):
            raise BadInput(f"{name}: item {position} ({source}) holds no conversation; remove it or get the file again")
        turns = _locomo_turns(held, note)
        if not turns:
            raise BadInput(f"{name}: {source} has no turns; remove the empty conversation")
        names = [t.speaker for t in turns]
        speakers = [_text(held.get(k), note, k, names[0]) for k in ("speaker_a", "speaker_b")]
        conversation = Conversation(f"locomo_{position}", source, *speakers, tuple(turns))
        conversations.append(conversation)
        questions += _locomo_questions(item.get("qa") or [], conversation, report)
    return conversations, questions


def _locomo_turns(held, note):
    numbers = sorted(int(k[8:]) for k in held if re.fullmatch(r"session_\d+", k) and held[k])
    keys = [int(k[8:]) for k in held if re.fullmatch(r"session_\d+", k)]
    if keys != sorted(keys):
        note("sessions", "keys out of order", "numeric order")
    if empty := sorted({int(m[1]) for k in held if (m := re.fullmatch(r"session_(\d+)_date_time", k))} - set(numbers)):
        note(f"sessions {empty[0]} to {empty[-1]}", "dates without dialogue", "left out")
    turns, taken = [], set()
    for number in numbers:
        stamp = _date(held.get(f"session_{number}_date_time"), "%I:%M %p on %d %B, %Y", note, f"session {number}")
        for index, raw in enumerate(
            held[f"session_{number}"] if isinstance(held[f"session_{number}"], list) else [], 1
        ):
            raw = raw if isinstance(raw, dict) else {}
            turn_id = _text(raw.get("dia_id"), note, f"D{number}:{index}", f"D{number}:{index}")
            if turn_id in taken:
                note(turn_id, "turn id twice", "second one renamed")
                turn_id = f"{turn_id}~{len(turns)}"
            taken.add(turn_id)
            caption = raw.get("blip_caption")
            if caption and not raw.get("img_url"):
                note(turn_id, "caption without img_url", "caption kept")
            turns.append(
                Turn(
                    turn_id,
                    number,
                    *_iso(stamp),
                    _text(raw.get("speaker"), note, turn_id, NO_SPEAKER),
                    _text(raw.get("text"), note, turn_id, ""),
                    _text(caption, note, turn_id, "") if caption else None,
                )
            )
    return turns


def _locomo_questions(rows, conversation, report):
    turn_ids = {_canonical(t.turn_id): t.turn_id for t in conversation.turns}
    seen, questions = set(), []
    for index, row in enumerate(rows if isinstance(rows, list) else []):
        row = row if isinstance(row, dict) else {}
        question_id = f"{conversation.source_id}#{index}"
        note = _Notes(report, question_id)
        text = _text(row.get("question"), note, "question", "")
        if text in seen:
            note("question", "duplicate question", "kept, keyed on index")
        seen.add(text)
        category = CATEGORIES.get(row.get("category")) if isinstance(row.get("category"), int) else None
        if category is None:
            category = re.sub(r"[^\w-]+", "-", f"category-{row.get('category')}")
            note("category", "unknown category", f"kept as {category}")
        answer, trap = row.get("answer"), row.get("adversarial_answer")
        if answer is None:
            note(
                "answer",
                "no answer" if category != "adversarial" else "category 5 without answer",
                "no gold" if category != "adversarial" else "gold is a refusal",
            )
        elif not isinstance(answer, str):
            note("answer", "answer is not text", "text")
        if trap is not None and REFUSAL.search(str(trap)):
            note("adversarial_answer", "trap is itself a refusal", "special case in scores")
        raw = row.get("evidence") or []
        raw = tuple(str(e) for e in (raw if isinstance(raw, list) else [raw]))
        questions.append(
            Question(
                question_id,
                conversation.conversation_id,
                text,
                None if answer is None else _clean(str(answer)),
                category,
                _evidence(raw, turn_ids, note),
                raw,
                None if trap is None else _clean(str(trap)),
            )
        )
    return questions


def _canonical(turn_id):
    match = re.fullmatch(r"D(\d+):(\d+)", turn_id)
    return f"D{int(match[1])}:{int(match[2])}" if match else turn_id


def _evidence(raw, turn_ids, note):
    """Turn ids that exist, in the order of the file, each once; what was wrong with the strings is noted."""
    found = []
    if not raw:
        note("evidence", "no evidence", "out of recall, in for answers")
    for text in raw:
        ids = [(m[0], f"D{int(m[1])}:{int(m[2])}") for m in re.finditer(r"D:?(\d{1,9}):(\d{1,9})", text)]
        if not ids:
            note("evidence", "id that names no turn", "dropped")
        elif len(ids) > 1:
            note("evidence", "several ids in one string", f"split into {len(ids)}")
        for written, turn_id in ids:
            if written != turn_id:
                note(
                    "evidence", "stray colon" if written.startswith("D:") else "zero padding", f"repaired to {turn_id}"
                )
            if turn_id not in turn_ids:
                note("evidence", "turn that does not exist", f"{turn_id} dropped")
            elif turn_ids[turn_id] in found:
                note("evidence", "the same id twice", "counted once")
            else:
                found.append(turn_ids[turn_id])
    return tuple(found)


# -------------------------------------------------------------------------------------------------------- LongMemEval


def _load_longmemeval(items, name, report):
    conversations, questions = [], []
    for position, item in enumerate(items):
        source = str(item.get("question_id") or position) if isinstance(item, dict) else str(position)
        note = _Notes(report, source)
        sessions = item.get("haystack_sessions") if isinstance(item, dict) else None
        if not isinstance(sessions, list):
            raise BadInput(f"{name}: item {position} ({source}) has no haystack_sessions; remove it")
        turns, evidence = _longmemeval_turns(item, sessions, note)
        if not turns:
            raise BadInput(f"{name}: item {position} ({source}) has no turns; remove it")
        conversation_id = f"longmemeval_{position}"
        conversations.append(Conversation(conversation_id, source, "user", "assistant", tuple(turns)))
        abstain = source.endswith("_abs")
        category = "abstention" if abstain else _text(item.get("question_type"), note, "question_type", "unknown")
        answer = item.get("answer")
        if answer is None and not abstain:
            note("answer", "no answer", "no gold")
        if not evidence:
            note("evidence", "no evidence", "out of recall, in for answers")
        asked = _date(item.get("question_date"), "%Y/%m/%d (%a) %H:%M", note, "question_date")
        questions.append(
            Question(
                f"{source}#0",
                conversation_id,
                _text(item.get("question"), note, "question", ""),
                None if answer is None or abstain else _clean(str(answer)),
                category,
                evidence,
                tuple(str(s) for s in item.get("answer_session_ids") or []),
                date=_iso(asked)[0],
            )
        )
    return conversations, questions


def _longmemeval_turns(item, sessions, note):
    given = item.get("haystack_dates")
    dates = list(given) if isinstance(given, list) else []
    dates += [None] * (len(sessions) - len(dates))
    stamps = [_date(d, "%Y/%m/%d (%a) %H:%M", note, f"session {i}") for i, d in enumerate(dates, 1)]
    # The oracle file is not sorted by date. Undated sessions keep their place at the end.
    order = sorted(range(len(sessions)), key=lambda i: (stamps[i] is None, stamps[i] or datetime.datetime.max, i))
    if order != list(range(len(sessions))):
        note("sessions", "not sorted by date", "sorted")
    turns, evidence = [], []
    for number, i in enumerate(order, 1):
        for index, raw in enumerate(sessions[i] if isinstance(sessions[i], list) else [], 1):
            raw, turn_id = raw if isinstance(raw, dict) else {}, f"D{number}:{index}"
            turns.append(
                Turn(
                    turn_id,
                    number,
                    *_iso(stamps[i]),
                    _text(raw.get("role"), note, turn_id, NO_SPEAKER),
                    _text(raw.get("content"), note, turn_id, ""),
                )
            )
            if raw.get("has_answer") is True:
                evidence.append(turn_id)
    return turns, tuple(evidence)


# ------------------------------------------------------------------------------------------------------ small repairs


class _Notes:
    """Appends a row to the load report: `note(where, fault, handling)`."""

    def __init__(self, report, source):
        self.report, self.source = report, source

    def __call__(self, where, fault, handling):
        self.report.append({"place": f"{self.source} {where}", "fault": fault, "handling": handling})


def _clean(text):
    """Lone surrogates (legal in JSON, not in UTF-8) become U+FFFD; pairs written as two escapes one character."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def _text(value, note, place, default):
    if not isinstance(value, str) or not (value or default == ""):
        note(place, "missing or not text", "placeholder" if value is None or value == "" else "text")
        return default if value is None or value == "" else _clean(str(value))
    clean = _clean(value)
    if clean != value:
        note(place, "lone surrogate", "U+FFFD")
    return clean


def _date(value, form, note, place):
    try:
        return datetime.datetime.strptime(value, form)
    except (TypeError, ValueError):
        note(place, "unreadable date", "None")
        return None


def _iso(stamp):
    return (stamp.isoformat(), stamp.date().isoformat()) if stamp else (None, None)


# ---------------------------------------------------------------------------------------------------------- selection


def select(questions, categories=(1, 2, 3, 4), count=0, seed=0):
    """The questions a notebook asks: of these categories, the first `count` of one fixed order (0: all, file order).

    `categories` holds LoCoMo's numbers or names; for a data set with names of its own, 1–4 stand for all that can be
    answered. The order: questions with usable evidence, shuffled by `seed` within category × conversation, then sorted
    by (rank + ½) / stratum size, which keeps the proportions and makes 30 a subset of 150 and 150 of 300.

    >>> q = [Question(f"c#{i}", "c", "?", "", "temporal" if i % 3 else "multi-hop", ("D1:1",), ()) for i in range(9)]
    >>> [x.category for x in select(q, count=3)]
    ['temporal', 'multi-hop', 'temporal']
    """
    names = {CATEGORIES.get(c, c) for c in categories}
    own = {q.category for q in questions} - set(CATEGORIES.values())
    if unknown := names - set(CATEGORIES.values()) - own:
        known = list(CATEGORIES.values()) + sorted(own)
        raise BadInput(f"CATEGORIES: {sorted(map(str, unknown))[0]!r} is not one of {', '.join(known)} (or 1 to 5)")
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
            raise BadInput(f"{arguments[0]}: no such file")
        if paths.sha256(source) != LOCOMO_SHA256:
            raise BadInput(
                f"{arguments[0]}: not LoCoMo's locomo10.json (sha256 {LOCOMO_SHA256[:12]}… expected); "
                "nothing was copied. Load other files by path: DATASET=path/to/file.json"
            )
        with paths.atomic(target, "wb") as out, open(source, "rb") as file:
            shutil.copyfileobj(file, out)
    corpus = load("locomo")
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
