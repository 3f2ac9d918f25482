"""What a language model makes of a question before the search, and the searches with it.

`requests` builds the prompts, `write` has them answered and reads the answers. An answer that cannot be read falls back
to the original question; `faults` counts such answers. Methods as in Gao et al. (arXiv 2312.10997); HyDE is
arXiv 2212.10496; CombSUM and RRF are in `retrieval`.

A method gives two rankings. Its `dense` arm cuts each text's dense ranking and fuses them. Its `rerank` arm fuses the
dense and BM25 rankings of all texts, keeps a pool and reranks it against the original question.
"""

import dataclasses
import datetime
import re
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from rawrag_utils import corpus as corpora
from rawrag_utils import cues, llm, metrics, models, prompts, retrieval
from rawrag_utils.paths import BadInput


class Written(NamedTuple):
    """What a model wrote for one question."""

    texts: tuple  # queries or answers; of `route` a `prompts.Route`; None stands for an answer that cannot be read
    wanted: int  # how many texts were asked for
    completions: tuple  # the `llm.Completion`s they were read from


def _read_variants(text, count):
    return tuple(prompts.variants(text, count)) or (None,)


# Purpose: how many texts one answer holds, and its reader.
PURPOSES = {
    "multi_query": (prompts.VARIANTS, lambda text: _read_variants(text, prompts.VARIANTS)),
    "hyde_dialogue": (1, lambda text: (prompts.chat_lines(text),)),
    "hyde_lecture": (1, lambda text: (prompts.passage(text),)),
    "multi_query_lecture": (prompts.VARIANTS, lambda text: _read_variants(text, prompts.VARIANTS)),
    "rewrite": (1, lambda text: _read_variants(text, 1)),
    "step_back": (1, lambda text: _read_variants(text, 1)),
    "route": (1, lambda text: (prompts.route(text),)),
    "route_lecture": (1, lambda text: (prompts.route(text),)),
}


def without_dates(text):
    """Chat lines without the dates in front.

    >>> without_dates("[2023-04-12] Maya: Done!\\n[2023-04-13] Leo: Wow!")
    'Maya: Done!\\nLeo: Wow!'
    """
    return re.sub(r"(?m)^\[?\d{4}-\d{2}-\d{2}\]?\s*", "", text)


def answerable(corpus, categories, count, seed):
    """The questions that these experiments ask: those of `corpus.select` with usable evidence. `BadInput` for none."""
    chosen = [q for q in corpora.select(corpus.questions, categories, count, seed) if q.evidence]
    if not chosen:
        raise BadInput(
            f"{corpus.path}: no question with evidence in categories {categories}; retrieval is scored against "
            "evidence, add questions to the file or see 01_chunking"
        )
    return chosen


def requests(corpus, questions, purpose, samples=1, seed=0):
    """The `llm.Request`s of a purpose, one a language: a dict of language to (places of its questions, request)."""
    about = {c.conversation_id: c for c in corpus.conversations}
    places, chats = {}, {}
    for place, question in enumerate(questions):
        language = prompts.language(question.text)
        fields = _fields(about[question.conversation_id], language)
        asked = prompts.messages(
            prompts.template(purpose, language), question=" ".join(question.text.split()), **fields
        )
        places.setdefault(language, []).append(place)
        chats.setdefault(language, []).append(asked)
    sampling = {language: prompts.template(purpose, language)[-2:] for language in places}
    return {name: (places[name], llm.Request(chats[name], *sampling[name], samples, seed)) for name in places}


def estimate(chat, corpus, questions, purposes):
    """`llm.estimate` for a dict of purpose to samples: a row a purpose."""
    asked = {
        f"{purpose} ({language})": request
        for purpose, samples in purposes.items()
        for language, (_, request) in requests(corpus, questions, purpose, samples).items()
    }
    return llm.estimate(chat, asked)


def _fields(conversation, language):
    """What a template may say of the conversation: who speaks, and when."""
    days = sorted(t.session_date for t in conversation.turns if t.session_date)
    months = [
        datetime.date.fromisoformat(d).strftime("%B %Y" if language == "en" else "%Y-%m") for d in days[:1] + days[-1:]
    ]
    period = {"en": " The chat runs from {} to {}.", "zh": "聊天期間：{} 到 {}。"}[language]
    return {
        "speaker_a": conversation.speaker_a,
        "speaker_b": conversation.speaker_b,
        "period": period.format(*months) if months else "",
    }


def write(chat, corpus, questions, purpose, samples=1, seed=0, cached=False):
    """A `Written` for each question: `samples` answers read as the purpose says.

    `cached` asks nothing: None for a question whose answers are not in the cache (see `llm.known`).
    """
    texts, reader = PURPOSES[purpose]
    written = [None] * len(questions)
    answer = llm.known if cached else llm.complete
    for places, request in requests(corpus, questions, purpose, samples, seed).values():
        for place, row in zip(places, answer(chat, request), strict=True):
            if row is None:
                continue
            example = request.prompts[0][0]["content"]  # a small model may repeat it: not about this question
            read = (text for completion in row for text in reader(completion.text))
            read = tuple(None if isinstance(text, str) and text in example else text for text in read)
            written[place] = Written(read, texts * samples, tuple(row))
    return written


def faults(written):
    """What went wrong, as counts: a DataFrame, a row a purpose of the dict `written`.

    `fallback`: nothing usable, the original question stands alone; `too few`: fewer texts than asked for; `cut`: an
    answer that the limit on tokens ended; `withheld`: one that a content filter held back.
    """
    import pandas as pd

    rows = {}
    for purpose, some in written.items():
        usable = [sum(t is not None for t in w.texts) for w in some]
        ends = [c.finish for w in some for c in w.completions]
        rows[purpose] = {
            "questions": len(some),
            "fallback": sum(n == 0 for n in usable),
            "too few": sum(0 < n < w.wanted for n, w in zip(usable, some, strict=True)),
            "cut": ends.count("length"),
            "withheld": ends.count("content_filter"),
        }
    return pd.DataFrame.from_dict(rows, orient="index")


# ------------------------------------------------------------------------------------------------------------ methods


class Bench(NamedTuple):
    """What every method is tried on: the same questions, windows, models and cuts."""

    corpus: object
    questions: list
    index: dict
    embedder: object
    reranker: object
    top: int  # windows of a dense ranking that are fused
    pool: int  # windows reranked
    dates: dict | None = None  # see `retrieval`
    shown: dict | None = None  # see `metrics.evidence_hits`


class Search(NamedTuple):
    """Complete rankings of the windows by one text a question."""

    dense: object
    bm25: object


class Method(NamedTuple):
    """A method's two rankings, before reranking, and its bill: tokens and seconds, a row a question."""

    dense: object  # of the `dense` arm
    pool: object  # of the `rerank` arm: dense and BM25 rankings fused, complete
    bill: object


class Recipe(NamedTuple):
    """A method with its default settings."""

    needs: dict  # what a model must have written: purpose to samples
    make: Callable  # takes the bench and, in the order of `needs`, a list of `Written`s each; gives the `Method`


BUDGETS = (400, 1000, 2000)  # tokens handed over
BILL = ("prompt_tokens", "completion_tokens", "llm_seconds")


def search(bench, texts, kind="query"):
    """A `Search` of one text for each question; a question whose text is None has no rows.

    `kind` is the side of an asymmetric embedder: `query`, or `document` for what is written like the documents.
    """
    asked = _asked(bench, texts)
    vectors = models.embed(bench.embedder, [q.text for q in asked], kind)
    return Search(retrieval.dense(bench.index, asked, vectors, dates=bench.dates), _by_words(bench, texts))


def _asked(bench, texts):
    return [dataclasses.replace(q, text=t) for q, t in zip(bench.questions, texts, strict=True) if t]


def _by_words(bench, texts):
    return retrieval.bm25(bench.index, _asked(bench, texts), dates=bench.dates)


def bill(bench, *parts):
    """The bill of `parts`: `Written`s and how many of each one's completions count (None: all). Indexed by query_id."""
    import pandas as pd

    rows = np.zeros((len(bench.questions), len(BILL)))
    for written, counted in parts:
        for row, w in zip(rows, written, strict=True):
            for c in w.completions[:counted]:
                row += c.prompt_tokens, c.completion_tokens, c.seconds
    names = pd.Index([q.question_id for q in bench.questions], name="query_id")
    return pd.DataFrame(rows, names, BILL)


def direct(bench):
    """The question as it is."""
    plain = search(bench, _texts(bench))
    return Method(plain.dense, retrieval.rrf(plain), bill(bench))


def multi_query(bench, written, count, exchanged=False):
    """The question and `count` variants: dense rankings fused by CombSUM of raw cosines, the pool by RRF.

    `exchanged` takes RRF for the dense rankings, and for the pool CombSUM of rankings scaled to [0, 1], since cosines
    and BM25 scores do not add up.
    """
    searches = [search(bench, _texts(bench)), *(search(bench, _column(written, i)) for i in range(count))]
    fusion = retrieval.rrf if exchanged else retrieval.combsum
    return _fused(bench, searches, fusion, bill(bench, (written, None)), scaled=exchanged)


def hyde(bench, written, count, first=0, question=True):
    """Dense search by the mean vector of the question and `count` hypothetical answers (HyDE, arXiv 2212.10496).

    Answers are taken from the one at `first` on; without `question` the mean is theirs alone, where there are any. A
    mean vector exists for dense search only: BM25 takes the question and each answer as a query of its own.
    """
    columns = [_column(written, i) for i in range(first, first + count)]
    total = models.embed(bench.embedder, _texts(bench), "query").astype(np.float64)
    if not question:
        total *= [[not any(texts)] for texts in zip(*columns, strict=True)]
    for texts in columns:
        rows = [row for row, text in enumerate(texts) if text]  # an answer that cannot be read leaves the mean
        if rows:
            total[rows] += models.embed(bench.embedder, [texts[row] for row in rows], "document")
    norms = np.linalg.norm(total, axis=1, keepdims=True)
    mean = retrieval.dense(bench.index, bench.questions, total / np.where(norms > 0, norms, 1), dates=bench.dates)
    bare = [q if question or not any(texts) else None for q, *texts in zip(_texts(bench), *columns, strict=True)]
    pool = retrieval.rrf([mean, *(_by_words(bench, texts) for texts in (bare, *columns) if any(texts))])
    return Method(mean, pool, bill(bench, ([_from(w, first) for w in written], count)))


def one_answer(bench, written):
    """HyDE's cheap form: the first answer is searched beside the question, both lists are fused by CombSUM."""
    searches = [search(bench, _texts(bench)), search(bench, _column(written, 0), "document")]
    return _fused(bench, searches, retrieval.combsum, bill(bench, (written, 1)))


def rewrite(bench, written):
    """The rewritten question in place of the original."""
    texts = [new or old for new, old in zip(_column(written, 0), _texts(bench), strict=True)]
    found = search(bench, texts)
    return Method(found.dense, retrieval.rrf(found), bill(bench, (written, None)))


def step_back(bench, written, exchanged=False):
    """The question and a more general one, fused by RRF; `exchanged` takes CombSUM, scaled for the pool."""
    searches = [search(bench, _texts(bench)), search(bench, _column(written, 0))]
    fusion = retrieval.combsum if exchanged else retrieval.rrf
    return _fused(bench, searches, fusion, bill(bench, (written, None)), scaled=exchanged)


def combination(bench, variants, answers, count=2):
    """The question, `count` variants and one hypothetical answer, fused by CombSUM (the pool by RRF)."""
    searches = [search(bench, _texts(bench)), *(search(bench, _column(variants, i)) for i in range(count))]
    searches.append(search(bench, _column(answers, 0), "document"))
    return _fused(bench, searches, retrieval.combsum, bill(bench, (variants, None), (answers, 1)))


# All that chooses a method by its name reads this: 06, 07, the inspector. `dense` is the question as it is.
METHODS = {
    "dense": Recipe({}, direct),
    "hyde": Recipe({"hyde_dialogue": 3}, lambda bench, answers: hyde(bench, answers, 3)),
    "multi_query": Recipe({"multi_query": 1}, lambda bench, variants: multi_query(bench, variants, 3)),
    "rewrite": Recipe({"rewrite": 1}, rewrite),
    "step_back": Recipe({"step_back": 1}, step_back),
    "combination": Recipe({"multi_query": 1, "hyde_dialogue": 1}, combination),
}


def needs(names=None):
    """What a model must have written for the methods `names` (None: all of `METHODS`): purpose to samples.

    >>> needs(["combination", "hyde"])
    {'multi_query': 1, 'hyde_dialogue': 3}
    """
    most = {}
    for name in METHODS if names is None else names:
        for purpose, samples in METHODS[name].needs.items():
            most[purpose] = max(samples, most.get(purpose, 0))
    return most


def method(bench, name, written):
    """The `Method` of that name, one of `METHODS`, with its default settings.

    `written` maps each purpose that it needs to what a model wrote, see `write`.
    """
    recipe = METHODS[name]
    return recipe.make(bench, *(written[purpose] for purpose in recipe.needs))


def defaults(bench, written):
    """All methods with their default settings, {name: `Method`}; `written` as `method` takes it."""
    return {name: method(bench, name, written) for name in METHODS}


def filtered(bench):
    """`bench` with a metadata filter from what each question names: a month and year, one of the speakers.

    Windows are candidates that touch a turn of that month; turns of other months or speakers are not handed over. A
    filter that leaves no window is dropped.
    """
    about = {c.conversation_id: c for c in bench.corpus.conversations}
    dates = {q.question_id: between for q in bench.questions if (between := cues.month_range(q.text))}
    dates = retrieval.without_empty_pools(bench.index, bench.questions, dates)
    shown = {}
    for question in bench.questions:
        name = question.question_id
        speakers = np.array([t.speaker for t in about[question.conversation_id].turns], object)
        turns = retrieval.turns_between(bench.index[question.conversation_id], dates.get(name), name)
        speaker = cues.named_speaker(question.text, list(dict.fromkeys(s for s in speakers if s)))
        if speaker and (turns & (speakers == speaker)).any():
            turns = turns & (speakers == speaker)
        if not turns.all():
            shown[name] = turns
    return bench._replace(dates=dates, shown=shown)


def _texts(bench):
    return [q.text for q in bench.questions]


def _column(written, place):
    """The text at `place` of each `Written`, None where there is none."""
    return [w.texts[place] if place < len(w.texts) else None for w in written]


def _fused(bench, searches, fusion, spent, scaled=False):
    """The `Method` of several searches: dense rankings cut and fused, the pool by RRF or CombSUM of scaled rankings."""
    # CombSUM over complete lists of cosines would be the search with the summed vector.
    dense = fusion([s.dense[s.dense["rank"] <= bench.top] for s in searches])
    lists = [ranking for found in searches for ranking in found]
    return Method(dense, retrieval.combsum(lists, scale=True) if scaled else retrieval.rrf(lists), spent)


def _from(written, first):
    """`written` from the answer at `first` on; the prompt is read for whichever answer comes first."""
    rest = written.completions[first:]
    if first and rest:
        rest = (rest[0]._replace(prompt_tokens=written.completions[0].prompt_tokens), *rest[1:])
    return written._replace(completions=rest)


# ----------------------------------------------------------------------------------------------------------- measures


def arms(bench, method, name, reranked_name=None):
    """Per-question tables of a method's two arms, {name: …, reranked_name (else `name|rerank`): …}.

    Columns: recalls, of the second arm also `pool_recall` (what reranking could reach), and the bill. Cutoffs end at
    `bench.top` and budgets at 2,000 tokens: a fused list of cut lists holds no more, a plain one would.
    """
    cutoffs, budgets = sorted({1, 5, 10, bench.top}), BUDGETS
    reranked = retrieval.rerank(bench.index, bench.questions, method.pool, bench.reranker, bench.pool)
    ceiling = metrics.evidence_recall(_hits(bench, method.pool), [bench.pool], ())[f"recall@{bench.pool}"]
    tables = [metrics.evidence_recall(_hits(bench, r), cutoffs, budgets) for r in (method.dense, reranked)]
    tables[1].insert(0, "pool_recall", ceiling)
    return {
        arm: table.join(method.bill)
        for arm, table in zip((name, reranked_name or f"{name}|rerank"), tables, strict=True)
    }


def _hits(bench, ranking):
    return metrics.evidence_hits(bench.corpus, bench.index, ranking, questions=bench.questions, shown=bench.shown)


def route_table(methods):
    """{type: method} of a list of methods, one for each of `prompts.TYPES` in their order. Raises `BadInput`.

    >>> route_table(["dense", "hyde", "multi_query", "combination", "combination"])["conceptual"]
    'hyde'
    """
    if len(methods) != len(prompts.TYPES) or set(methods) - set(METHODS):
        raise BadInput(
            f"ROUTES={methods}: wanted a method each for {', '.join(prompts.TYPES)}, one of {', '.join(METHODS)}"
        )
    return dict(zip(prompts.TYPES, methods, strict=True))


def routed(bench, written, table, threshold):
    """The method of each question (a Series by query_id): its type's, `dense` below the threshold and for no type."""
    import pandas as pd

    routes = [w.texts[0] for w in written]
    names = [table[r.type] if r and r.confidence >= threshold else "dense" for r in routes]
    return pd.Series(names, [q.question_id for q in bench.questions], dtype=object)


def priced(table, price):
    """A per-question table with another bill on top."""
    return table.assign(**{name: table[name] + price[name] for name in BILL})


def picked(tables, choice):
    """The per-question table that has each question's row from the table that `choice` (by query_id) names."""
    import pandas as pd

    rows = [tables[name].loc[members.index] for name, members in choice.groupby(choice, sort=False)]
    return pd.concat(rows).loc[choice.index]


def extremes(bench, before, after, written, metric, count=3):
    """The `count` questions that gained most and lost most, with what was written for them: a DataFrame."""
    import pandas as pd

    change = (after[metric] - before[metric]).sort_values(kind="stable")
    chosen = [*change[change > 0].index[::-1][:count], *change[change < 0].index[:count]]
    rows = {q.question_id: (q.category, q.text, w) for q, w in zip(bench.questions, written, strict=True)}
    columns = ["change", "category", "question", "written"]
    texts = {name: next((str(t) for t in rows[name][2].texts if t), "nothing usable") for name in chosen}
    return pd.DataFrame([[change[n], *rows[n][:2], texts[n]] for n in chosen], chosen, columns)


def oracle(tables, metric):
    """The name of the best table for each question by `metric`, the first of several: by this metric no router can
    do better."""
    import pandas as pd

    values = np.stack([table[metric].to_numpy() for table in tables.values()])
    return pd.Series(np.array(list(tables), object)[values.argmax(axis=0)], next(iter(tables.values())).index)
