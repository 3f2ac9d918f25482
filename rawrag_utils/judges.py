"""LLM judges of answers, lenient and strict, and their calibration: what a judge accepts before it is believed.

The lenient judge follows mem0's evaluation (a longer answer that makes the gold's point passes), the strict one wants
every fact of the gold. Calibration hands a judge answers whose verdict is known, derived from the gold answers by fixed
rules: right ones, vague ones, concrete false ones and empty ones.
"""

from rawrag_utils import derived, llm, metrics, prompts
from rawrag_utils.paths import BadInput

KINDS = ("lenient", "strict")
ANSWER_LENGTH = 2000  # characters of an answer that a judge reads
COLUMNS = ("judge", "answers", "n", "accepted", "ci_low", "ci_high", "unparsable")  # of a calibration
MOST_WRONG, LEAST_RIGHT = 0.25, 0.75  # shares of answers that a reliable judge accepts at most and at least


# ------------------------------------------------------------------------------------------------------------ judging


def judge(chat, questions, answers, kind):
    """The verdicts of the `kind` of judge: a list of True, False or None (unreadable), one for each question.

    `answers` holds a text for each of `questions`. An empty answer is wrong without asking; of a long one the first
    `ANSWER_LENGTH` characters are judged. Raises `BadInput` as `requests` does.
    """
    verdicts = [False] * len(questions)
    for places, request in requests(questions, answers, kind).values():
        examples = request.prompts[0][0]["content"].splitlines()  # a copied one is no verdict on this answer
        for some, (completion,) in zip(places, llm.complete(chat, request), strict=True):
            copied = completion.text.strip() in examples
            for place in some:
                verdicts[place] = None if copied else prompts.verdict(completion.text)
    return verdicts


def requests(questions, answers, kind):
    """The `llm.Request`s of a judge, one a language of the questions: a dict of language to (places, request).

    `places` holds for each prompt the places of the questions it answers: equal ones are asked once. Empty answers have
    none. Raises `BadInput` for an unknown kind, another number of answers, and a question without a gold answer.
    """
    _check(questions, answers, kind)
    places = {}
    for place, (question, answer) in enumerate(zip(questions, answers, strict=True)):
        fields = map(prompts.fenced, (question.text, question.answer, answer[:ANSWER_LENGTH]))
        asked = prompts.language(question.text), *fields
        if asked[-1]:
            places.setdefault(asked, []).append(place)
    found = {}
    for language in dict.fromkeys(asked[0] for asked in places):
        template = prompts.template(f"judge_{kind}", language)
        mine = [asked for asked in places if asked[0] == language]
        chats = [prompts.messages(template, question=q, gold=g, answer=a) for _, q, g, a in mine]
        request = llm.Request(chats, template.max_tokens, template.temperature)
        found[language] = [places[asked] for asked in mine], request
    return found


def calibration_requests(questions, kinds=KINDS):
    """The `requests` of a calibration, a dict of `judge <kind>` to them: what it would take is known before it runs."""
    stacked = _stacked(questions, derived.answers(questions))
    return {f"judge {kind}": requests(*stacked, kind) for kind in kinds}


def _check(questions, answers, kind):
    if kind not in KINDS:
        raise BadInput(f"judge {kind!r:.60}; there are {', '.join(KINDS)}")
    if len(answers) != len(questions):
        raise BadInput(f"{len(answers)} answers to {len(questions)} questions; a judge needs one for each")
    derived.check_golds(questions)
    for question, answer in zip(questions, answers, strict=True):
        if not isinstance(answer, str):
            raise BadInput(
                f"{question.question_id}: its answer is {answer!r:.60}, no text; give an empty text for none"
            )


# -------------------------------------------------------------------------------------------------------- calibration


def calibrate(chat, questions, kinds=KINDS):
    """What each judge accepts of the derived answers to `questions`: a DataFrame, a row a judge and kind of answer.

    Columns: judge, answers, n, accepted (share, an unreadable verdict counts as not accepted), ci_low, ci_high (over
    conversations, see `metrics.interval`), unparsable (unreadable verdicts, a number). Raises `BadInput` as
    `derived.answers`.
    """
    import pandas as pd

    made, rows = derived.answers(questions), []
    clusters = [q.conversation_id for q in questions]
    for kind in kinds:
        verdicts = judge(chat, *_stacked(questions, made), kind)  # all at once: a local model fills its batches
        for row, answers in enumerate(made):
            given = verdicts[row * len(questions) : (row + 1) * len(questions)]
            accepted = metrics.interval([v is True for v in given], clusters)
            rows.append((kind, answers, len(given), *accepted, given.count(None)))
    return pd.DataFrame(rows, columns=COLUMNS)


def _stacked(questions, made):
    return list(questions) * len(made), [answer for answers in made.values() for answer in answers]


def reliable(table):
    """Which judges of a `calibrate` table are believed: a dict of judge to bool.

    Such a judge accepts at most a quarter of each kind of wrong answers and at least three quarters of the right ones.

    >>> import pandas as pd
    >>> shares = {"right": 0.9, "vague": 0.63, "specific": 0.1, "empty": 0.0}
    >>> reliable(pd.DataFrame({"judge": "lenient", "answers": list(shares), "accepted": list(shares.values())}))
    {'lenient': False}
    """
    believed = {}
    for kind, rows in table.groupby("judge", sort=False):
        accepted = rows.set_index("answers")["accepted"]
        believed[kind] = bool(
            (accepted[list(derived.WRONG)] <= MOST_WRONG).all() and accepted[derived.RIGHT] >= LEAST_RIGHT
        )
    return believed


def label(kind, believed):
    """What tables call a judge: `believed` is its entry in `reliable`, None for one that was not calibrated.

    >>> label("strict", True), label("lenient", False), label("lenient", None)
    ('strict', 'lenient (unreliable)', 'lenient (not calibrated)')
    """
    return kind + {True: "", False: " (unreliable)", None: " (not calibrated)"}[believed]
