"""Answers about a lecture that say when it was said: the prompt, the check of every citation, the scores.

A model is asked to copy the times of the lines it used. Copying is easy to check: a citation that does not lie in what
was handed over is flagged and counted, and never shown as good.
"""

import re
from typing import NamedTuple

import pandas as pd

from rawrag_utils import chunking, lectures, llm, prompts, subtitles, timed

LIMIT = 300  # characters of an answer, times included
SCORES = ("range_precision", "range_recall", "range_iou")
COUNTS = ("answered", "cited", "stray", "cut", "answer_chars", "covered")
_STAMP = r"\d{1,3}(?::[0-5]\d){1,2}"
_CITED = re.compile(rf"[\[(【\uff08]?\s*(?<![\d:])({_STAMP})\s*[~\uff5e〜–—-]\s*({_STAMP})(?![\d:])\s*[\])】\uff09]?")
_SENTENCE_END = re.compile(r"[.!?\]。！？](?!\d)")


class Asked(NamedTuple):
    """What the reader is asked about one question, and with what."""

    messages: list  # the chat: dicts of role and content
    language: str  # of the template
    turns: tuple  # indices of the turns handed over, in order of time


class Cited(NamedTuple):
    """A checked answer."""

    text: str  # at most `LIMIT` characters; a citation that is not good is marked
    ranges: tuple  # (start_ms, end_ms) of the good citations
    stray: tuple  # citations, as text, that do not lie in what was handed over
    cut: bool  # whether the model wrote more than `LIMIT`
    completion: object


def asked(corpus, index, questions, ranking, seconds):
    """An `Asked` for each question: its lines within `seconds` of lecture (see `timed.handed_over`), oldest first."""
    talks = {c.conversation_id: c.turns for c in corpus.conversations}
    windows = {c["chunk_id"]: c for part in index.values() for c in part["chunks"]}
    found = dict(tuple(ranking.sort_values("rank", kind="stable").groupby("query_id", sort=False)["doc_id"]))
    rows = []
    for question in questions:
        turns = talks[question.conversation_id]
        best = [windows[d] for d in found.get(question.question_id, ())]
        given = sorted(timed.handed_over([t.times for t in turns], best, seconds))
        language = prompts.language(question.text)
        memories = "\n".join(prompts.fenced(chunking.turn_line(turns[turn])) for turn in given)
        fields = {"memories": memories, "question": prompts.fenced(question.text)}
        rows.append(Asked(prompts.messages(prompts.template("read_lecture", language), **fields), language, given))
    return rows


def requests(prompted):
    """The `llm.Request`s of a list of `Asked`: a dict of language to (places, request)."""
    places = {}
    for place, one in enumerate(prompted):
        places.setdefault(one.language, []).append(place)
    return {
        language: (some, llm.Request([prompted[i].messages for i in some], *_sampling(language)))
        for language, some in places.items()
    }


def _sampling(language):
    return prompts.template("read_lecture", language)[-2:]


def answers(chat, corpus, questions, prompted):
    """A `Cited` for each `Asked`."""
    times = {c.conversation_id: [t.times for t in c.turns] for c in corpus.conversations}
    found = [None] * len(prompted)
    for places, request in requests(prompted).values():
        for place, (completion,) in zip(places, llm.complete(chat, request), strict=True):
            known = times[questions[place].conversation_id]
            found[place] = checked(completion, known, prompted[place].turns)
    return found


def checked(completion, times, turns):
    """The `Cited` of a completion: `times` holds (start_ms, end_ms) of all turns, `turns` those handed over.

    Citations are those of the line of times and those within the answer. The text is the answer and behind it, in
    brackets, its good citations; what is not good is marked where it stands.
    """
    answer, stated = prompts.cited_answer(completion.text)
    good, stray = [], []

    def mark(match):
        cited = _lies_in(match, times, turns)
        (good if cited else stray).append(cited or f"{match[1]}~{match[2]}")
        return f"[{match[1]}~{match[2]}]" if cited else f"[not handed over: {match[1]}~{match[2]}]"

    said = "" if answer == stated else _CITED.sub(mark, stated)
    text = _CITED.sub(mark, answer)
    marks = [f" {m}" for m in dict.fromkeys(re.findall(r"\[[^\]]*\]", said)) if m not in text]
    tail, whole = "", text + "".join(marks)
    for one in marks:  # however many a model names, half of the room is the answer's
        tail += one if len(tail + one) <= LIMIT // 2 else ""
    shown = _within_limit(text, LIMIT - len(tail)) + tail
    return Cited(shown, tuple(dict.fromkeys(good)), tuple(dict.fromkeys(stray)), len(whole) > LIMIT, completion)


def _within_limit(text, limit):
    """`text` up to the last sentence that ends within the limit.

    >>> len(_within_limit("word " * 100, 300)), _within_limit("A tide. " + "b" * 300, 300)
    (300, 'A tide.')
    """
    if len(text) <= limit:
        return text
    ends = [m.end() for m in _SENTENCE_END.finditer(text) if m.end() <= limit]
    return text[: ends[-1]].rstrip() if ends else text[: max(0, limit - 1)] + "…"


def _lies_in(match, times, turns):
    """The cited (start_ms, end_ms) where both ends lie in turns handed over and no turn between is missing, else None.

    Times are shown in whole seconds begun, so a line that is copied gets its own milliseconds back.
    """
    start, end = (_seconds(stamp) for stamp in match.groups())
    for low, high in subtitles.ranges(times, turns):
        if low // 1000 <= start <= end <= high // 1000:
            held = [times[t] for t in turns if low <= times[t][0] <= high]
            first = _within(start, held, 0)
            last = _within(end, held, 1)
            if first is not None and last is not None:
                return first, max(first, last)
    return None


def _within(second, held, side):
    """The second in milliseconds where it lies in one of the ranges `held`, that range's own end where it is it."""
    inside = [r for r in held if r[0] // 1000 <= second <= r[1] // 1000]
    exact = [r[side] for r in inside if r[side] // 1000 == second]
    return exact[0] if exact else 1000 * second if inside else None


def _seconds(stamp):
    """
    >>> _seconds("12:05"), _seconds("1:00:00")
    (725, 3600)
    """
    seconds = 0
    for part in stamp.split(":"):
        seconds = 60 * seconds + int(part)
    return seconds


def scored(corpus, questions, prompted, found):
    """The per-question table of one arm, indexed by `query_id`.

    `range_precision` is the share of the cited time that lies in a gold range, `range_recall` the share of gold time
    that is cited, `range_iou` their intersection over their union; an answer without a good citation has 0 in all
    three. `cited` and `stray` count citations, `answered` is 1 where the model did not say that the lecture does not
    tell, `covered` the share of gold time that was handed over.
    """
    times = {c.conversation_id: [t.times for t in c.turns] for c in corpus.conversations}
    rows = []
    for question, one, answer in zip(questions, prompted, found, strict=True):
        known = times[question.conversation_id]
        given = [known[turn] for turn in one.turns]
        rows.append(
            against_ranges(answer.ranges, question.ranges)
            | {
                "answered": float(not prompts.declines(answer.text)),
                "cited": len(answer.ranges),
                "stray": len(answer.stray),
                "cut": float(answer.cut),
                "answer_chars": len(answer.text),
                "covered": lectures.overlap(given, question.ranges) / lectures.length(question.ranges),
                "prompt_tokens": answer.completion.prompt_tokens,
                "completion_tokens": answer.completion.completion_tokens,
                "llm_seconds": answer.completion.seconds,
            }
        )
    return pd.DataFrame(rows, pd.Index([q.question_id for q in questions], name="query_id")).astype(float)


def against_ranges(cited, gold):
    """`SCORES` of cited ranges against gold ranges, in milliseconds.

    >>> against_ranges([(0, 10_000)], [(5_000, 20_000)])
    {'range_precision': 0.5, 'range_recall': 0.3333333333333333, 'range_iou': 0.25}
    """
    both, mine, theirs = lectures.overlap(cited, gold), lectures.length(cited), lectures.length(gold)
    return {
        "range_precision": both / mine if mine else 0.0,
        "range_recall": both / theirs,
        "range_iou": both / (mine + theirs - both),
    }
