"""Lectures: subtitle files as conversations, and questions about them with the times where their answers are said."""

from rawrag_utils import paths, subtitles
from rawrag_utils.dialogue import Question
from rawrag_utils.paths import BadInput

ENDINGS = (".srt", ".vtt")
QUESTIONS_FILE = "questions.json"


def holds(path):
    """Whether `path` is a subtitle file by its ending, or a folder with one.

    >>> holds(paths.resolve("talk.SRT")), holds(paths.resolve("talk.json"))
    (True, False)
    """
    return bool(files(path))


def files(path):
    """The subtitle files in the folder `path`, by name, or the one that it is."""
    return sorted(p for p in (path.iterdir() if path.is_dir() else [path]) if p.suffix.lower() in ENDINGS)


def found(path):
    """`files`. Raises `BadInput` where there is none."""
    if not (some := files(path)):
        raise BadInput(
            f"{paths.relative(path)}: no subtitles; name a file that ends in .srt or .vtt, or a folder of them"
        )
    return some


def load(path, merging=None):
    """(conversations, questions, report) of a subtitle file, or of a folder of them and their `questions.json`.

    A turn is a merged segment (see `subtitles.merge`, which `merging`, a dict, gives its limits). A question's evidence
    are the segments of which at least half lies in one of its ranges; where there is none, the one that lies in them
    longest. Raises `BadInput`, one line, for a file that is no subtitle, for two files of one name, and for questions
    that break the form of data/README.md or name a lecture or times that are not there.
    """
    report, conversations = [], {}
    for file in files(path):
        found = subtitles.read(file)
        report += found.report
        talk = subtitles.document(subtitles.merge(found.cues, **merging or {}, source=found.path_name))
        if twin := next((f for f, c in conversations.items() if c.conversation_id == talk.conversation_id), None):
            raise BadInput(
                f"{paths.relative(path)}: {twin} and {file.name} are one lecture by name; rename one of them"
            )
        conversations[file.name] = talk
    asked = path / QUESTIONS_FILE
    questions = _questions(asked, conversations) if path.is_dir() and asked.exists() else []
    return list(conversations.values()), questions, report


def _questions(file, conversations):
    from pydantic import ValidationError

    from rawrag_utils import own_form

    name = paths.relative(file)
    try:
        rows = own_form.LectureQuestions.model_validate_json(file.read_bytes()).questions
    except OSError as error:
        raise BadInput(f"{name}: cannot be read ({error.strerror}); check who may read it") from error
    except ValidationError as error:
        raise BadInput(f"{name}: {own_form.explain(error)}; see data/README.md for the form") from error
    questions, seen = [], set()
    for row in rows:
        if row.lecture not in conversations:
            raise BadInput(f"{name}: {row.id}: there is no {row.lecture!r:.60} beside it; correct `lecture`")
        if row.id in seen:
            raise BadInput(f"{name}: {row.id!r:.60} stands twice; give every question an id of its own")
        seen.add(row.id)
        talk = conversations[row.lecture]
        ranges = tuple(map(tuple, row.ranges))
        if not (evidence := _evidence(talk.turns, ranges)):
            raise BadInput(f"{name}: {row.id}: nobody speaks at {subtitles.span(*ranges[0])}; correct `ranges`")
        fields = (row.id, talk.conversation_id, row.text, row.answer, row.type, evidence, evidence)
        questions.append(Question(*fields, ranges=ranges))
    return questions


def _evidence(turns, ranges):
    """Ids of the turns of which at least half lies in `ranges`, else of the one that lies in them longest."""
    inside = {t.turn_id: overlap([t.times], ranges) for t in turns}
    held = tuple(t.turn_id for t in turns if inside[t.turn_id] and 2 * inside[t.turn_id] >= t.times[1] - t.times[0])
    longest = max(inside, key=inside.get)
    return held or ((longest,) if inside[longest] else ())


def joined(ranges):
    """Time ranges as disjoint ones, in order.

    >>> joined([(5, 9), (0, 3), (2, 4)])
    [(0, 4), (5, 9)]
    """
    found = []
    for start, end in sorted(ranges):
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        else:
            found.append((start, end))
    return found


def overlap(some, others):
    """Milliseconds that lie in a range of `some` and in one of `others`.

    >>> overlap([(0, 10), (5, 12)], [(8, 20)])
    4
    """
    others = joined(others)
    return sum(max(0, min(b, d) - max(a, c)) for a, b in joined(some) for c, d in others)


def length(ranges):
    """Milliseconds that a list of ranges covers.

    >>> length([(0, 10), (5, 12)])
    12
    """
    return sum(end - start for start, end in joined(ranges))
