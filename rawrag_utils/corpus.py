"""Conversations and questions: the bundled sample and lectures, LoCoMo, LongMemEval, own files; a report of repairs.

Here a data set is found, read by the loader that its shape asks for, and questions are chosen from it. Files of foreign
shape are repaired (`foreign`); a file in the project's own form is the user's to mend, so the first fault is refused
with its place.
"""

import dataclasses
import hashlib
import json
import os
import random
import shutil
import sys
from collections import defaultdict

from rawrag_utils import foreign, lectures, paths
from rawrag_utils.dialogue import CATEGORIES, NAMED, Conversation, Question, Turn, iso, label
from rawrag_utils.paths import BadInput

LOCOMO_URL = "https://raw.githubusercontent.com/snap-research/locomo/main/data/locomo10.json"
LOCOMO_SHA256 = "79fa87e90f04081343b8c8debecb80a9a6842b76a7aa537dc9fdf651ea698ff4"
LOCOMO_FILE = "data/locomo10.json"
BUNDLED = {"sample": "data/sample/dialogues.json", "lectures": "data/sample/lectures"}
UNANSWERABLE = ("adversarial", "abstention")  # LoCoMo's and LongMemEval's names for questions without an answer


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
        return foreign.longmemeval
    if "conversation" in first or any(foreign.SESSION.fullmatch(key) for key in first):
        return foreign.locomo
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
        Turn(t.turn_id, s.session, *iso(s.date), t.speaker, t.text, t.caption)
        for s in checked.sessions
        for t in s.turns
    )
    name = checked.conversation_id
    return Conversation(name, checked.source_id or name, checked.speaker_a, checked.speaker_b, turns)


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
