"""Where evidence stands, from what a question names and what a turn is like: a sum of scores with learnt weights.

Late interaction over several window sizes is joined by five cues that need no model: the speaker and the month that the
question names, a time word where it asks when, the turn's length, and whether the turn is itself a question. Weights
maximise the softmax likelihood of the evidence turns among all turns of the conversation (listwise, as ListNet, Cao et
al. 2007), learnt on the other conversations, never on the one they rank. The cues know English only.
"""

import calendar
import re

import numpy as np

from rawrag_utils import paths, retrieval
from rawrag_utils.corpus import UNANSWERABLE, turn_places
from rawrag_utils.paths import BadInput

CUES = ("speaker", "date", "when", "length", "question")
RIDGE = 1e-3  # pulls weights towards 0; from 0 to ten times this, recall on LoCoMo moves by less than .01
MONTHS = ("january february march april may june july august september october november december").split()  # noqa: SIM905
TIME_WORDS = re.compile(
    r"\b(yesterday|today|tonight|tomorrow|ago|last|next|week|weekend|month|year|morning|recently|since|soon|just|\d{4}"
    r"|(?:mon|tues|wednes|thurs|fri|satur|sun)day|" + "|".join(MONTHS) + r")\b",
    re.IGNORECASE,
)
ASKS_WHEN = re.compile(r"\s*(when|how long)\b", re.IGNORECASE)


def named_months(text):
    """The months and years that `text` names, as two sets of numbers.

    "may" and "march" are months only beside a number or after "in".

    >>> named_months("What did she buy in May 2023?"), named_months("She may march on.")
    (({5}, {2023}), (set(), set()))
    """
    text, months = text.lower(), set()
    for number, month in enumerate(MONTHS, 1):
        pattern = rf"\b{month},? \d|\d+ {month}\b|\bin {month}\b" if month in ("may", "march") else rf"\b{month}\b"
        if re.search(pattern, text):
            months.add(number)
    return months, {int(year) for year in re.findall(r"\b(?:19|20)\d\d\b", text)} if months else set()


def month_range(text):
    """(first, last) ISO day of the one month and year that `text` names, else None.

    >>> month_range("What did she buy in May 2023?"), month_range("What did she buy in May?")
    (('2023-05-01', '2023-05-31'), None)
    """
    months, years = named_months(text)
    if len(months) != 1 or len(years) != 1:
        return None
    (month,), (year,) = months, years
    return f"{year}-{month:02}-01", f"{year}-{month:02}-{calendar.monthrange(year, month)[1]}"


def named_speaker(text, names):
    """The one of `names` that `text` holds as a word, None where it holds none or several.

    >>> names = ["Nora", "Tobias"]
    >>> named_speaker("What did Nora tell Tobias?", names), named_speaker("Is Nora in?", names)
    (None, 'Nora')
    """
    named = [name for name in names if _names(text, name)]
    return named[0] if len(named) == 1 else None


def cues(conversation, lengths, questions):
    """The cues of every question and turn: float32 (questions, turns, cues), in the order of `CUES`.

    `lengths` are the turn lines' tokens. Cues that a question gives no occasion for are 0 for all turns.
    """
    turns = conversation.turns
    speakers = np.array([t.speaker for t in turns], object)
    names = [name for name in dict.fromkeys(speakers) if name]
    months = np.array([int(t.session_date[5:7]) if t.session_date else 0 for t in turns])
    years = np.array([int(t.session_date[:4]) if t.session_date else 0 for t in turns])
    timed = np.array([bool(TIME_WORDS.search(t.text)) for t in turns])
    asking = np.array([t.text.rstrip().endswith(("?", "？")) for t in turns])
    logs = np.log(np.maximum(lengths, 1))
    found = np.zeros((len(questions), len(turns), len(CUES)), np.float32)
    found[:, :, 3] = (logs - logs.mean()) / (logs.std() or 1)
    found[:, :, 4] = asking
    for row, question in enumerate(questions):
        if name := named_speaker(question.text, names):
            found[row, :, 0] = np.where(speakers == name, 0.5, -0.5)
        month, year = named_months(question.text)
        if month:
            fits = np.isin(months, list(month)) & (np.isin(years, list(year)) if year else True)
            found[row, :, 1] = np.where(fits, 0.5, -0.5)
        if ASKS_WHEN.match(question.text):
            found[row, :, 2] = np.where(timed, 0.5, -0.5)
    return found


def _names(text, name):
    """Whether `text` holds the name as a word; scripts without blanks between words hold it anywhere."""
    return bool(re.search(rf"\b{re.escape(name)}\b", text)) if name.isascii() else name in text


def features(corpus, index, questions, rankings):
    """What the sum adds up: {conversation_id: (question rows, float32 (questions, turns, rankings + cues))}.

    `rankings` are complete rankings of turns, `index` is one of `chunking.turn_windows`. Scores become z-scores.
    """
    scores = {name: _matrix(index, questions, ranking) for name, ranking in enumerate(rankings)}
    found = {}
    for conversation in corpus.conversations:
        name = conversation.conversation_id
        rows = [row for row, q in enumerate(questions) if q.conversation_id == name]
        if rows:
            lengths = [end - start for start, end in index[name]["turn_context"]["turn_spans"]]
            parts = [_standard(np.stack([scores[r][row] for row in rows]))[:, :, None] for r in scores]
            found[name] = rows, np.concatenate([*parts, cues(conversation, lengths, [questions[r] for r in rows])], 2)
    return found


def _matrix(index, questions, ranking):
    """Scores by turn, an array a question."""
    places = {q.question_id: row for row, q in enumerate(questions)}
    arrays = [np.full(len(index[q.conversation_id]["chunks"]), np.nan, np.float32) for q in questions]
    rows = ranking["query_id"].map(places).to_numpy()
    order = np.argsort(rows, kind="stable")
    positions, values = retrieval.positions(ranking["doc_id"])[order], ranking["score"].to_numpy()[order]
    for row, (start, end) in enumerate(_bounds(rows[order], len(questions))):
        arrays[row][positions[start:end]] = values[start:end]
    if missing := next((q for q, a in zip(questions, arrays, strict=True) if np.isnan(a).any()), None):
        raise BadInput(f"{missing.question_id}: its ranking lacks turns; a sum over turns needs complete rankings")
    return arrays


def _bounds(sorted_rows, count):
    edges = np.searchsorted(sorted_rows, np.arange(count + 1))
    return zip(edges[:-1], edges[1:], strict=True)


def _standard(scores):
    spread = scores.std(axis=1, keepdims=True)
    return ((scores - scores.mean(axis=1, keepdims=True)) / np.where(spread > 0, spread, 1)).astype(np.float32)


def learn(corpus, questions, found, conversations):
    """Weights (rankings + cues,) from the answerable questions of `conversations` that have evidence."""
    from scipy import optimize

    turns = turn_places(corpus)
    batches, total = [], 0
    for name in conversations:
        rows, scores = found[name]
        usable = [i for i, r in enumerate(rows) if questions[r].evidence and questions[r].category not in UNANSWERABLE]
        wanted = np.zeros(scores[usable].shape[:2], np.float32)
        for i, place in enumerate(usable):
            evidence = questions[rows[place]].evidence
            wanted[i, [turns[name][e] for e in evidence]] = 1 / len(evidence)
        batches.append((scores[usable], wanted))
        total += len(usable)
    if not total:
        raise BadInput("no answerable question with evidence to learn weights from; give weights instead")

    def loss(weights):
        value, slope = RIDGE * total * (weights**2).sum(), 2 * RIDGE * total * weights
        for scores, wanted in batches:
            logits = scores @ weights.astype(np.float32)
            logits -= logits.max(axis=1, keepdims=True)
            shares = np.exp(logits)
            sums = shares.sum(axis=1, keepdims=True)
            value -= float((wanted * (logits - np.log(sums))).sum())
            slope = slope + np.tensordot(shares / sums - wanted, scores, axes=2)
        return value / total, np.asarray(slope, np.float64) / total

    size = batches[0][0].shape[2]
    return optimize.minimize(loss, np.zeros(size), jac=True, method="L-BFGS-B", options={"maxiter": 100}).x


def read_weights(path, names):
    """Weights learnt before on all conversations of another data set: the row `all` of a table with columns `names`."""
    import pandas as pd

    try:
        return pd.read_csv(paths.resolve(path), index_col=0).loc["all", names].to_numpy(float)
    except (OSError, ValueError, KeyError) as error:
        raise BadInput(
            f"WEIGHTS={path}: holds no row `all` with {', '.join(names)}; name a table that 03_reranking wrote for "
            "the same TURN_SIZES and CHUNK_SIZE, or give five conversations or more to learn on"
        ) from error


def weighted_sum(index, questions, found, weights):
    """A ranking of turns by the sum of `found`; `weights` holds an array for each conversation_id."""

    def score(part, rows):
        name = questions[rows[0]].conversation_id
        return found[name][1] @ np.asarray(weights[name], np.float32)

    return retrieval.rank_by(index, questions, score)


def leave_one_out(corpus, questions, found):
    """Weights for each conversation, learnt on all the others."""
    names = list(found)
    return {name: learn(corpus, questions, found, [other for other in names if other != name]) for name in names}
