"""The inspector's desk: one question at a time, what each method ranks for it, hands over, and where evidence is lost.

Nothing here draws. What was computed stays on the desk, and scores of late interaction in the cache too, so that a
change computes only what nobody has looked at yet. What a chat model wrote is read from the cache; none is ever asked.
"""

import dataclasses
import functools
import hashlib
import json
import zlib
from typing import NamedTuple

import numpy as np
import pandas as pd

from rawrag_utils import (
    answering,
    chunking,
    evaluation,
    index,
    llm,
    metrics,
    models,
    paths,
    queries,
    rerankers,
    retrieval,
    store,
)
from rawrag_utils import corpus as corpora
from rawrag_utils.corpus import Question
from rawrag_utils.evaluation import EVIDENCE_STAGES  # noqa: F401 (what `stages` gives)
from rawrag_utils.paths import BadInput

PLAIN = ("dense", "bm25", "rrf", "dense+maxsim", "rrf+maxsim", "zsum")  # no chat model, nothing paid
WRITTEN = tuple(name for name, recipe in queries.METHODS.items() if recipe.needs)  # need what a chat model wrote
TYPED = "typed"  # the id of a question typed by hand
SCHEMA = "CREATE TABLE IF NOT EXISTS late (key BLOB PRIMARY KEY, scores BLOB, crc INT)"


class Settings(NamedTuple):
    """What all methods share; `asked` are the selections of questions whose written answers are looked for."""

    size: int = 256  # tokens a window
    overlap: int = 32
    pool: int = 50  # windows reranked
    top: int = 15  # windows kept, and those of each dense list that are fused
    budget: int = 1000  # cl100k tokens handed over
    asked: tuple = (30, 300)  # as QUESTIONS of 04 to 06
    categories: tuple = (1, 2, 3, 4)
    seed: int = 0


@dataclasses.dataclass
class Desk:
    """A data set, a profile's models and what was computed so far."""

    corpus: object
    profile: str
    embedder: object
    late: object  # the embedder that has token vectors, see `rerankers.load_encoder`
    reranker: object  # the profile's own, None where it is late interaction
    settings: Settings
    known: dict = dataclasses.field(default_factory=dict)


class Found(NamedTuple):
    """What a method ranks for one question. `steps` are (name, ranking), the first before and the last after it.

    Rankings are complete, or as long as the pool; there are none where the dates leave no window.
    """

    question: Question
    method: str
    dates: tuple | None
    steps: tuple

    @property
    def ranking(self):
        return self.steps[-1][1]


def prepare(dataset, profile="local", settings=None, path=None):
    """A `Desk` of the data set (its name, or a file's path); nothing is embedded before it is looked at.

    Raises `BadInput` as `corpus.load` and `models.profile` do.
    """
    settings = settings or Settings()
    chunking.check_size(settings.size, settings.overlap)
    embedder, reranker = models.load_embedder(profile), None
    late = embedder
    if getattr(models.profile(profile), "reranker", None):
        reranker, late = rerankers.load_reranker(profile), rerankers.load_encoder(profile)
    own = reranker if reranker and reranker.config.kind != "maxsim" else None
    return Desk(corpora.load(dataset, path), profile, embedder, late, own, settings)


def methods(desk):
    """Names of the methods there are; the profile's own reranker, where it has one, is the last of the plain ones."""
    own = (f"rrf+{desk.reranker.config.kind}",) if desk.reranker else ()
    return PLAIN + own + tuple(name + ending for name in WRITTEN for ending in ("", "|rerank"))


def conversation(desk, conversation_id):
    """The `Conversation` of that id. Raises `BadInput` with the ids there are."""
    for one in desk.corpus.conversations:
        if one.conversation_id == conversation_id:
            return one
    there = ", ".join(c.conversation_id for c in desk.corpus.conversations[:12])
    raise BadInput(f"{desk.corpus.path}: no conversation {conversation_id!r:.80}; there are {there}")


def questions(desk, conversation_id):
    """The questions about a conversation, in the order of the file."""
    return once(
        desk,
        ("questions", conversation_id),
        lambda: [q for q in desk.corpus.questions if q.conversation_id == conversation_id],
    )


def typed(conversation_id, text):
    """A question typed by hand: no category, no answer, no evidence is known. Raises `BadInput` for an empty one.

    >>> typed("c", " Who sold  it? ").text
    'Who sold it?'
    """
    if not (text := " ".join(text.split())):
        raise BadInput("the question is empty; type some words")
    return Question(TYPED, conversation_id, text, None, TYPED, (), ())


def built(desk, conversation_id):
    """The index of one conversation, {conversation_id: its object}, with vectors."""

    def make():
        s, one = desk.settings, conversation(desk, conversation_id)
        made = index.build([one], lambda document: chunking.cut(document, s.size, s.overlap))
        return index.with_vectors(made, models.embed(desk.embedder, index.contents(made)))

    return once(desk, ("index", conversation_id), make)


def days(desk, conversation_id):
    """ISO dates of the conversation's sessions, sorted, each once; empty where it has none."""
    return sorted({t.session_date for t in conversation(desk, conversation_id).turns if t.session_date})


def find(desk, question, method, dates=None):
    """`Found` for a question and one of `methods`; `dates` is (from, to), ISO, or None.

    Raises `BadInput` for an unknown method, for bad dates, and for a method that needs what a chat model wrote where
    the cache has nothing for this question.
    """
    if method not in methods(desk):
        raise BadInput(f"METHOD={method!r:.60}: unknown; there are {', '.join(methods(desk))}")
    dates = None if dates in (None, (None, None)) else tuple(dates)

    def make():
        part = built(desk, question.conversation_id)[question.conversation_id]
        left = retrieval.candidates(part, question, {question.question_id: dates} if dates else None)
        steps = _steps(desk, [question], method, dates) if left.any() else ()
        return Found(question, method, dates, tuple(steps))

    return once(desk, ("found", question, method, dates), make)


def rankings(desk, asked, method):
    """The ranking of `method` for several questions about one conversation, as one table."""
    return _steps(desk, asked, method, None)[-1][1]


def kept(desk, found):
    """The rows of the ranking that are kept: its first `top` windows."""
    return found.ranking[found.ranking["rank"] <= desk.settings.top]


def context(desk, found):
    """The exact context text for the reader, within the budget; empty where nothing was found."""
    if not found.steps:
        return ""
    where = built(desk, found.question.conversation_id)
    return answering.format_context(where, kept(desk, found), budget=desk.settings.budget, dates=found.dates)


def handed(desk, found):
    """Indices of the turns that are handed over, a set."""
    if not found.steps:
        return set()

    def make():
        where = built(desk, found.question.conversation_id)
        memories = answering.handed_over(where, kept(desk, found), budget=desk.settings.budget, dates=found.dates)
        return {turn for _, turns in memories for turn in turns}

    return once(desk, ("handed", *found[:3]), make)


def evidence(desk, found):
    """Where the question's evidence went: the table of `evaluation.evidence_stages`, a row a turn, none without any."""
    if not found.question.evidence:
        return pd.DataFrame(columns=["query_id", "turn", "rank", "session_rank", "tokens", "pool_rank", "stage"])
    shown = {found.question.question_id: within(desk, found)} if found.dates else None
    make = functools.partial(_evidence, desk, [found.question], found.steps, found.method, shown)
    return once(desk, ("evidence", *found[:3]), make)


def within(desk, found):
    """Boolean array, one a turn: do the dates leave it?"""
    part = built(desk, found.question.conversation_id)[found.question.conversation_id]
    return retrieval.turns_between(part, found.dates, found.question.question_id)


def stages(desk, conversation_id, method):
    """The earliest stage at which evidence was lost, a Series by query_id (`evaluation.first_loss`).

    Of the questions with evidence, for a method that needs written text only those it is known for. Raises `BadInput`
    for the profile's own reranker: to score every pool may cost, so it is asked question by question.
    """
    if desk.reranker and method == f"rrf+{desk.reranker.config.kind}":
        raise BadInput(f"{method}: scores every pool anew, which may cost; choose rrf+maxsim to filter by stage")

    def make():
        chosen = [q for q in questions(desk, conversation_id) if q.evidence]
        if (name := method.removesuffix("|rerank")) in WRITTEN:
            there = written(desk, name)
            chosen = [q for q in chosen if q.question_id in there]
        if not chosen:
            return pd.Series({}, dtype=object)
        return evaluation.first_loss(_evidence(desk, chosen, _steps(desk, chosen, method, None), method))

    return once(desk, ("stages", conversation_id, method), make)


def _evidence(desk, asked, steps, method, shown=None):
    s, where = desk.settings, built(desk, asked[0].conversation_id)
    if not steps:
        none = pd.DataFrame({"query_id": [], "doc_id": [], "rank": []})
        steps = [(method, none)]
    before, after = (
        metrics.evidence_hits(desk.corpus, where, ranking, questions=asked, shown=shown)
        for ranking in (steps[0][1], steps[-1][1])
    )
    pool = s.pool if method.endswith("|rerank") or "+" in method else np.inf  # who reranks nothing has no pool
    return evaluation.evidence_stages(before, after, pool, s.top, s.budget)


def once(desk, key, make):
    """What is kept on the desk under `key`, made by `make()` the first time."""
    if key not in desk.known:
        desk.known[key] = make()
    return desk.known[key]


# ----------------------------------------------------------------------------------------------------------- rankings


def _steps(desk, asked, method, dates):
    """(name, ranking) of the steps of a method for several questions about one conversation."""
    pool = desk.settings.pool
    if (name := method.removesuffix("|rerank")) in WRITTEN:
        found = queries.method(_bench(desk, asked, dates), name, _written_for(desk, asked, name))
        if name == method:
            return [("dense", _first(desk, asked, dates)[0]), (name, found.dense)]
        late = _late(desk, asked)
        return [(f"{name}: pool", found.pool), (method, retrieval.rescored(found.pool, late, pool))]
    dense, bm25 = _first(desk, asked, dates)
    if method in ("dense", "bm25"):
        return [(method, {"dense": dense, "bm25": bm25}[method])]
    rrf = retrieval.rrf([dense, bm25])
    if method == "rrf":
        return [("dense", dense), ("rrf", rrf)]
    if method == "zsum":
        late = _late(desk, asked).merge(rrf[["query_id", "doc_id"]])  # in its own order, in which it is summed
        return [("dense", dense), ("zsum", retrieval.zsum([dense, bm25, late]))]
    name = method.partition("+")[0]
    first = dense if name == "dense" else rrf
    if method.endswith("+maxsim"):
        return [(name, first), (method, retrieval.rescored(first, _late(desk, asked), pool))]
    where = built(desk, asked[0].conversation_id)
    return [(name, first), (method, retrieval.rerank(where, asked, first, desk.reranker, pool))]


def _first(desk, asked, dates=None):
    """Dense and BM25 rankings; those of the data set's own questions are made for a whole conversation at once."""
    name = asked[0].conversation_id
    if asked[0].question_id == TYPED:
        tables = once(desk, ("first", asked[0]), lambda: _searched(desk, asked))
    else:
        tables = once(desk, ("first", name), lambda: _searched(desk, questions(desk, name)))
        if len(asked) == 1:
            groups = once(desk, ("groups", name), lambda: [dict(list(t.groupby("query_id"))) for t in tables])
            tables = [some[asked[0].question_id] for some in groups]
        else:
            chosen = {q.question_id for q in asked}
            tables = [table[table["query_id"].isin(chosen)] for table in tables]
    if not dates:
        return tables
    # Scores are those of the whole conversation whatever the dates: leaving windows out afterwards gives the same.
    part = built(desk, name)[name]
    left = retrieval.candidates(part, asked[0], {asked[0].question_id: dates})
    tables = [table[left[retrieval.positions(table["doc_id"])]] for table in tables]
    return [table.assign(rank=np.arange(1, len(table) + 1)) for table in tables]


def _searched(desk, asked):
    where = built(desk, asked[0].conversation_id)
    vectors = models.embed(desk.embedder, [q.text for q in asked], "query")
    return [retrieval.dense(where, asked, vectors), retrieval.bm25(where, asked)]


def _late(desk, asked):
    """Late interaction's scores as a ranking table (all windows), from the cache where they are known."""
    where = built(desk, asked[0].conversation_id)
    part = where[asked[0].conversation_id]
    texts = [chunk["content"] for chunk in part["chunks"]]
    prompts = [desk.late.config.query_prompt, desk.late.config.document_prompt]
    mark = hashlib.sha256(json.dumps([desk.late.key, prompts, texts]).encode()).digest()
    keys = [hashlib.sha256(mark + q.text.encode()).digest() for q in asked]
    known = {key: desk.known["late", key] for key in keys if ("late", key) in desk.known}
    if missing := set(keys) - set(known):
        known |= _read_late(missing)
    missing = {key: q.text for key, q in zip(keys, asked, strict=True) if key not in known}
    if missing:
        tokens = rerankers.token_vectors(desk.late, list(missing.values()), "query")
        windows = once(desk, ("tokens", asked[0].conversation_id), lambda: rerankers.token_vectors(desk.late, texts))
        scores = rerankers.maxsim(tokens, windows)
        made = dict(zip(missing, scores, strict=True))
        _write_late(made)
        known |= made
    desk.known |= {("late", key): known[key] for key in keys}
    rows = {q.question_id: known[key] for key, q in zip(keys, asked, strict=True)}
    return retrieval.rank_by(where, asked, lambda _, places: [rows[asked[p].question_id] for p in places])


def _read_late(keys):
    query = "SELECT key, scores, crc FROM late WHERE key IN ({}) AND typeof(scores) = 'blob'"
    found = _in_cache(lambda connection: list(store.rows(connection, query, keys)))
    # A flipped bit must not become a result: such scores are made again.
    return {key: np.frombuffer(blob, np.float64) for key, blob, crc in found if zlib.crc32(key + blob) == crc}


def _write_late(made):
    rows = [(key, scores.tobytes(), zlib.crc32(key + scores.tobytes())) for key, scores in made.items()]
    _in_cache(lambda connection: connection.executemany("INSERT OR REPLACE INTO late VALUES (?, ?, ?)", rows))


def _in_cache(work):
    return store.in_database(paths.cache_root() / "scores" / "late.sqlite", SCHEMA, work)


# ----------------------------------------------------------------------------------------------------- written answers


def written(desk, name):
    """{question_id: {purpose: `queries.Written`}} of the questions for which the cache has all that a method needs.

    A local model's answers are kept by batch, so they are found only for the selections of questions that 04 to 06
    ask (`Settings.asked`). Raises `BadInput` where the profile has no chat model.
    """

    def make():
        chat, found = llm.load_chat(desk.profile), {}
        needs, most = queries.needs([name]), queries.needs()
        for purpose in needs:
            texts = once(desk, ("written", purpose), lambda p=purpose: _cached(desk, chat, p, most[p]))
            for question_id, some in texts.items():
                found.setdefault(question_id, {})[purpose] = some
        return {question_id: some for question_id, some in found.items() if len(some) == len(needs)}

    return once(desk, ("method", name), make)


def _cached(desk, chat, purpose, samples):
    s, found = desk.settings, {}
    for count in s.asked:
        chosen = [q for q in corpora.select(desk.corpus.questions, s.categories, count, s.seed) if q.evidence]
        some = queries.write(chat, desk.corpus, chosen, purpose, samples, cached=True)
        found |= {q.question_id: w for q, w in zip(chosen, some, strict=True) if w is not None}
    return found


def _written_for(desk, asked, name):
    if asked[0].question_id == TYPED:
        raise BadInput(f"{name}: the chat model wrote nothing for a typed question; choose one of {', '.join(PLAIN)}")
    there = written(desk, name)
    if lacking := [q.question_id for q in asked if q.question_id not in there]:
        raise BadInput(
            f"{name}: the cache has nothing that the chat model wrote for {lacking[0]}; run 06_router on this data "
            f"set and profile, or choose one of {', '.join(PLAIN)}"
        )
    return {purpose: [there[q.question_id][purpose] for q in asked] for purpose in queries.needs([name])}


def _bench(desk, asked, dates):
    where = built(desk, asked[0].conversation_id)
    between = {q.question_id: dates for q in asked} if dates else None
    return queries.Bench(desk.corpus, asked, where, desk.embedder, None, desk.settings.top, desk.settings.pool, between)
