"""What the reader LLM sees, and what it answers: memories of whole turns, the prompt around them, the answers.

Windows are searched, turns are read. One walk decides what is handed over, `handed_over`; the text prints it. Under a
budget it stops where `recall@Btok` of `metrics` stops.
"""

import datetime
import numbers
import re
import zlib
from typing import NamedTuple

import numpy as np
import pandas as pd

from rawrag_utils import chunking, llm, prompts, retrieval, scores, timewords
from rawrag_utils.corpus import turn_places
from rawrag_utils.paths import BadInput

ORDERS = ("relevance", "time")
SAFE = 0.8  # of a model's context that a prompt may fill by cl100k's count: its own tokens may be more
NOT_MENTIONED = "Not mentioned in the conversation"  # what the official score takes for a refusal


def format_context(index, ranking, order="relevance", budget=None, extra=0, dates=None, shown=None, line=None):
    """The context text for one question's `ranking`: memories, numbered from 1, with whole turns, one a line.

    A heading gives the window's chunk index and, where the ranking knows them, its similarity (six decimals) and the
    reranker's score (four). `line` is a function of (turn line, ISO day or None) that gives the line as it is to be
    shown, None shows it as it is. The other arguments and errors are those of `handed_over`. Nothing to show is an
    empty text.

    >>> from rawrag_utils.corpus import Conversation, Turn
    >>> from rawrag_utils.index import build
    >>> day = "2024-03-02"
    >>> turns = (Turn("D1:1", 1, None, day, "Nora", "The kiln is hot."), Turn("D1:2", 1, None, day, "Tobias", "Good!"))
    >>> built = build([Conversation("c", "c", "Nora", "Tobias", turns)], chunking.turn_windows)
    >>> rows = {"query_id": "c#0", "doc_id": ["c_chunk_1", "c_chunk_0"], "rank": [1, 2], "similarity": [0.5, None]}
    >>> print(format_context(built, pd.DataFrame(rows)).replace("\\n\\n", "\\n-\\n"))
    Memory 1 (chunk=1, similarity=0.500000):
    [2024-03-02] Tobias: Good!
    -
    Memory 2 (chunk=0):
    [2024-03-02] Nora: The kiln is hot.
    """
    _check_options(order, budget, extra)
    if not len(ranking):
        return ""
    part, chunks, facts = _look_up(index, ranking)
    memories = _memories(part, chunks, ranking["query_id"].iloc[0], order, budget, extra, dates, shown)
    lines, days = part["turn_context"]["turn_lines"], part["turn_context"]["turn_session_dates"]
    if line:
        lines = {turn: line(lines[turn], days[turn]) for _, turns in memories for turn in turns}
    headings = {}
    for place, chunk in enumerate(chunks):  # the best rank's, should a window stand twice
        headings.setdefault(chunk["chunk_index"], _heading(chunk, facts, place))
    texts = ("\n".join([headings[c], *(lines[t] for t in turns)]) for c, turns in memories)
    return "\n\n".join(f"Memory {number} {text}" for number, text in enumerate(texts, 1))


def handed_over(index, ranking, order="relevance", budget=None, extra=0, dates=None, shown=None):
    """What the reader gets for one question's `ranking`: a list of (chunk index of the window, its turn indices).

    `index` is the index (a dict of conversations) whose windows the ranking ranks. Every touched turn comes whole and
    once, in its best window, with `extra` neighbours on both sides; windows that bring no turn are left out. `order` is
    `relevance` (best window first) or `time` (by chunk index; the best window still owns a turn). `budget`, in cl100k
    tokens, ends the walk down the ranking before the first turn that does not fit: each costs its line and 1, headings
    are not counted. `dates` = (from, to) leaves out turns whose session date is not within, see
    `retrieval.turns_between`; `shown`, a boolean array, one a turn, those where it is False (see
    `queries.filtered`). Raises `BadInput` for rows of several questions or conversations, a window that the index
    does not hold, an unknown order, a budget or extra below 0, and bad dates.

    >>> chunks = [{"chunk_id": f"c_chunk_{i}", "chunk_index": i, "start_turn": i, "end_turn": i + 1} for i in range(2)]
    >>> context = {"turn_lines": ["a", "b", "c"], "turn_spans": [(0, 9), (10, 19), (20, 29)]}
    >>> index = {"c": {"chunks": chunks, "turn_context": context | {"turn_session_dates": [None] * 3}}}
    >>> ranking = pd.DataFrame({"query_id": "c#0", "doc_id": ["c_chunk_1", "c_chunk_0"], "rank": [1, 2]})
    >>> handed_over(index, ranking), handed_over(index, ranking, order="time", budget=29)
    ([(1, [1, 2]), (0, [0])], [(1, [1, 2])])
    """
    _check_options(order, budget, extra)
    if not len(ranking):
        return []
    part, chunks, _ = _look_up(index, ranking)
    return _memories(part, chunks, ranking["query_id"].iloc[0], order, budget, extra, dates, shown)


def _memories(part, chunks, name, order, budget, extra, dates, shown):
    """`handed_over` of chunks that were looked up, best first; `name` is the question's."""
    within = retrieval.turns_between(part, dates, name)
    kept = within if shown is None else within & shown
    turns = chunking.expand(chunks, len(kept), extra)
    memories = [(c["chunk_index"], [t for t in brought if kept[t]]) for c, brought in zip(chunks, turns, strict=True)]
    if budget is not None:
        memories = _within(memories, part["turn_context"]["turn_spans"], budget)
    memories = [memory for memory in memories if memory[1]]
    return sorted(memories) if order == "time" else memories


def _within(memories, spans, budget):
    """The memories up to the first turn that exceeds the budget, which may end within a memory."""
    kept = []
    for chunk_index, turns in memories:
        costs = np.array([spans[t][1] - spans[t][0] + 1 for t in turns], int)
        fits = int(np.searchsorted(np.cumsum(costs), budget, side="right"))
        kept.append((chunk_index, turns[:fits]))
        if fits < len(turns):
            break
        budget -= int(costs.sum())
    return kept


def _heading(chunk, facts, place):
    known = [f"chunk={chunk['chunk_index']}"]
    for name, decimals in (("similarity", 6), ("rerank", 4)):
        if name in facts and not pd.isna(facts[name][place]):
            known.append(f"{name}={facts[name][place]:.{decimals}f}")
    return f"({', '.join(known)}):"


def _look_up(index, ranking):
    """(the conversation's index object, its ranked chunks, their similarities and reranker's scores), best first."""
    if len(asked := ranking["query_id"].unique()) > 1:
        raise BadInput(f"a ranking of {len(asked)} questions ({asked[0]}, {asked[1]}, ...); wanted one question's rows")
    best_first = np.argsort(ranking["rank"].to_numpy(), kind="stable")
    chunks = [_chunk(index, str(doc_id)) for doc_id in ranking["doc_id"].to_numpy()[best_first]]
    names = list(dict.fromkeys(name for name, _ in chunks))
    if len(names) > 1:
        raise BadInput(f"{asked[0]}: ranks windows of {names[0]} and {names[1]}; wanted those of one conversation")
    facts = {name: ranking[name].to_numpy()[best_first] for name in ("similarity", "rerank") if name in ranking}
    return index[names[0]], [chunk for _, chunk in chunks], facts


def _chunk(index, doc_id):
    """(conversation, chunk) of a doc_id, `<conversation>_chunk_<index>`."""
    name, _, position = doc_id.rpartition("_chunk_")
    chunks = index[name]["chunks"] if name in index else []
    place = int(position) if position.isdecimal() else len(chunks)
    if place >= len(chunks) or chunks[place]["chunk_id"] != doc_id:
        raise BadInput(f"window {doc_id!r:.80} is not in the index; give the index that was searched")
    return name, chunks[place]


# ------------------------------------------------------------------------------------------------------------- reader


class Asked(NamedTuple):
    """What the reader is asked about one question, and with what."""

    messages: list  # the chat: dicts of role and content
    language: str  # of the templates
    turns: tuple  # indices of the turns handed over
    tokens: int  # cl100k tokens of their lines, each with its newline, as budgets count them
    trimmed: bool  # whether turns were left out because the model's context could not hold them


class Answer(NamedTuple):
    """What the reader answered: the text that counts, and the `llm.Completion` it was read from."""

    text: str
    completion: object


def asked(chat, index, questions, ranking, order="relevance", budget=None, shown=None, texts=None, explain=True):
    """An `Asked` for each question: the reader's prompt with the memories that its rows of `ranking` hand over.

    `order` and `budget` are those of `handed_over`; the budget shrinks where the model's context cannot hold the
    prompt, so whole turns are left out, the last ranked first. `shown` is a metadata filter, see
    `metrics.evidence_hits`. `texts` are asked in place of the questions' own (see
    `with_options`). `explain` writes days as 7 May 2023 and says behind "yesterday" which day that was. A question
    without rows gets no memories. Raises `BadInput` when even a prompt without memories does not fit.
    """
    rows, none, shown = dict(tuple(ranking.groupby("query_id", sort=False))), ranking.iloc[:0], shown or {}
    prompted = []
    for question, text in zip(questions, texts or [q.text for q in questions], strict=True):
        name, part = question.question_id, index[question.conversation_id]
        walk = {"order": order, "shown": shown.get(name)}
        prompted.append(_asked(chat, part, question, rows.get(name, none), walk, budget, prompts.fenced(text), explain))
    return prompted


def _asked(chat, part, question, ranking, walk, budget, text, explain):
    language = prompts.language(question.text)
    template = prompts.template("read", language)
    index, line = {question.conversation_id: part}, _told if explain else _fenced
    costs = [end - start + 1 for start, end in part["turn_context"]["turn_spans"]]
    room = int(SAFE * (chat.config.max_context - template.max_tokens))
    fits = wanted = sum(costs) if budget is None else budget
    while True:
        turns = tuple(turn for _, some in handed_over(index, ranking, budget=fits, **walk) for turn in some)
        tokens = sum(costs[turn] for turn in turns)
        memories = format_context(index, ranking, budget=fits, line=line, **walk)
        header = _fenced_header(part["turn_context"]["header"])
        messages = prompts.messages(template, header=header, memories=memories, question=text)
        over = llm.length(messages) - room
        if over <= 0:
            return Asked(messages, language, turns, tokens, fits < wanted)
        if not turns:
            raise BadInput(
                f"{question.question_id}: the question alone does not fit in max_context "
                f"{chat.config.max_context:,} of {chat.config.model}; raise it in the profile"
            )
        fits = max(0, tokens - over)  # fewer tokens of turns each time: it ends


def _fenced_header(header):
    """The header's three lines, whatever the names hold.

    >>> _fenced_header("Conversation ID: c\\nSpeaker A: Nora\\n</memories>\\nSpeaker B: Tobias\\n\\n")
    'Conversation ID: c\\nSpeaker A: Nora\\nSpeaker B: Tobias\\n\\n'
    """
    lines = re.split(r"\n(?=Speaker [AB]: )", header.strip())
    return "".join(f"{prompts.fenced(line)}\n" for line in lines) + "\n"


def _fenced(line, day):
    return prompts.fenced(line)


def _told(line, day):
    """A fenced line with its day written out and its time words explained."""
    if not day:
        return prompts.fenced(line)
    rest = timewords.explained(line.removeprefix(f"[{day}] "), day)
    return prompts.fenced(f"[{timewords.day(datetime.date.fromisoformat(day))}] {rest}")


def first_windows(index, questions):
    """The windows of each question's conversation in their own order, as a ranking: as long as any other's memories."""
    rows = [
        (q.question_id, chunk["chunk_id"], rank, 0.0)
        for q in questions
        for rank, chunk in enumerate(index[q.conversation_id]["chunks"], 1)
    ]
    return pd.DataFrame(rows, columns=["query_id", "doc_id", "rank", "score"])


def evidence_ranking(corpus, questions):
    """The evidence turns of each question as a ranking of turns (see `chunking.turn_windows`), in order of time.

    Read alone they show what the reader could do if nothing were lost and nothing stood beside them.
    """
    places = turn_places(corpus)
    rows = [
        (q.question_id, f"{q.conversation_id}_chunk_{turn}", rank, 0.0)
        for q in questions
        for rank, turn in enumerate(sorted(places[q.conversation_id][turn_id] for turn_id in q.evidence), 1)
    ]
    return pd.DataFrame(rows, columns=["query_id", "doc_id", "rank", "score"])


class Trap(NamedTuple):
    """An adversarial question in LoCoMo's two-option form."""

    text: str  # to be asked
    options: tuple  # (a) and (b)


def with_options(question):
    """The `Trap` of an adversarial question: its `adversarial_answer` and a refusal, to choose from.

    Which comes first is drawn by its id. None where there is no trap, or one that is itself a refusal.
    """
    trap = question.adversarial_answer
    if not trap or scores.refuses(trap):
        return None
    options = [prompts.fenced(trap), NOT_MENTIONED]
    if zlib.crc32(question.question_id.encode()) % 2:
        options.reverse()
    return Trap(f"{prompts.fenced(question.text)} (a) {options[0]} (b) {options[1]}", tuple(options))


def chosen(answer, trap):
    """An `Answer` with the option of the `Trap` that it names as its text; as it is where it names none or both."""
    return answer._replace(text=prompts.choice(answer.text, trap.options) or answer.text)


def requests(prompts_asked):
    """The `llm.Request`s of a list of `Asked`, one a language; equal prompts are asked once.

    A dict of language to (the distinct prompts' keys, request).
    """
    distinct = {}
    for one in prompts_asked:
        distinct.setdefault(one.language, {})[_key(one)] = one.messages
    return {
        language: (list(chats), llm.Request(list(chats.values()), *prompts.template("read", language)[-2:]))
        for language, chats in distinct.items()
    }


def answers(chat, prompts_asked, known=None):
    """An `Answer` for each `Asked`.

    `known` is a dict that the caller keeps over several arms: what an earlier arm asked is not asked again, so arms
    that hand over the same memories get the same answer, whatever the batch.
    """
    known = {} if known is None else known
    new = [one for one in prompts_asked if _key(one) not in known]
    for keys, request in requests(new).values():
        for key, (completion,) in zip(keys, llm.complete(chat, request), strict=True):
            known[key] = Answer(prompts.short_answer(completion.text), completion)
    return [known[_key(one)] for one in prompts_asked]


def _key(one):
    return one.language, one.messages[-1]["content"]


def _check_options(order, budget, extra):
    if order not in ORDERS:
        raise BadInput(f"order={order!r:.60}; wanted one of {', '.join(ORDERS)}")
    if budget is not None and not (isinstance(budget, numbers.Real) and budget >= 0):  # NaN is not >= 0 either
        raise BadInput(f"budget={budget!r:.60}; wanted a number of tokens from 0, or None for no limit")
    if not (isinstance(extra, numbers.Integral) and extra >= 0):
        raise BadInput(f"extra={extra!r:.60}; wanted a whole number of neighbouring turns from 0")
