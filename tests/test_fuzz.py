"""Input that was damaged on purpose: each is taken or refused by our own error in one line, soon, and nothing is kept.

Every kind of input begins valid, since noise never gets past the first check, and is then damaged: parts dropped,
retyped, nested, doubled, made huge or deep, bytes cut and flipped. Readers go on as far as a notebook would without a
model. RAWRAG_FUZZ is the number of inputs of each kind (200, the same ones each time; `make torture` takes more, and
other ones each time).
"""

import contextlib
import functools
import gc
import hashlib
import json
import os
import random
import tracemalloc
from collections.abc import Callable
from typing import NamedTuple

import httpx
import numpy as np
import openai
import pytest
import test_packed
import test_prompts
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rawrag_utils import (
    chunking,
    citations,
    cues,
    derived,
    endpoint,
    evaluation,
    findings,
    grid,
    index,
    ingest,
    judges,
    lectures,
    llm,
    models,
    packed,
    paths,
    prompts,
    queries,
    report,
    rerankers,
    results,
    run,
    scores,
    subtitles,
    timewords,
)
from rawrag_utils import corpus as corpora
from rawrag_utils.paths import BadInput

COUNT = int(os.environ.get("RAWRAG_FUZZ", "200"))
SECONDS = 10  # that a single input may take, on a busy machine; what grows with the square of a length takes minutes
LINE = 1000  # characters of a message: what was read is not poured out again
KEPT = COUNT // 20 if COUNT < 1000 else 100  # inputs of each kind that are read again, to see whether memory grows
TIMES = 3  # that each of them is read again
GROWTH = 250_000  # bytes that all this may leave behind: some caches (of words, of patterns) are not yet full
LONGEST = 131_072  # characters of a text, all that Linux lets an argument have; no model writes as many
PEAK = 250_000_000  # bytes that a single one may need on the way

# -------------------------------------------------------------------------------------------------------- valid inputs

WORDS = """Nora Tobias kiln clay bowl tram harbour yesterday last week two months ago May 2023 陶藝 課 潮汐 🎻 naïve
e\u0301 ok: - [a] {b} <b>c</b> $d$ \\e &amp; </memories> <|im_end|> 12:05 D1:1 ' " % ? ! 。 \u202e \x1b[31m #""".split()  # noqa: SIM905


def words(r, most=9):
    return " ".join(r.choices(WORDS, k=r.randint(1, most)))


def own(r):
    """The project's own form."""
    turns = [{"turn_id": f"t{i}", "speaker": r.choice(("Nora", "Tobias")), "text": words(r)} for i in range(6)]
    turns[2]["caption"] = words(r)
    asked = [
        {"question": words(r), "answer": words(r), "category": r.choice((1, "temporal")), "evidence": ["t1", "t3"]},
        {"question": words(r), "category": "adversarial", "adversarial_answer": words(r)},
    ]
    sessions = [
        {"session": n, "date": f"20{r.randint(10, 24)}-0{n}-02T18:30", "turns": turns[3 * n - 3 : 3 * n]}
        for n in (1, 2)
    ]
    sessions.sort(key=lambda session: session["date"])
    talk = {"conversation_id": "talk", "speaker_a": "Nora", "speaker_b": "Tobias", "sessions": sessions}
    return {"conversations": [talk | {"source_id": "a-1", "questions": asked}], "name": "talk", "license": "CC0"}


def locomo(r):
    """A file of LoCoMo's shape."""
    held = {"speaker_a": "Nora", "speaker_b": "Tobias"}
    for n in (1, 10, 2):
        held[f"session_{n}_date_time"] = f"{r.randint(1, 12)}:05 pm on {r.randint(1, 28)} May, 202{r.randint(0, 9)}"
        held[f"session_{n}"] = [
            {"speaker": r.choice(("Nora", "Tobias")), "dia_id": f"D{n}:{i}", "text": words(r)} for i in (1, 2, 3)
        ]
    held["session_2"][0] |= {"img_url": ["x"], "blip_caption": words(r), "query": "secret"}
    asked = [{"question": words(r), "answer": r.choice((words(r), 2022)), "category": n} for n in (1, 2, 3, 4)]
    asked[0]["evidence"], asked[1]["evidence"], asked[2]["evidence"] = ["D1:1; D10:2"], ["D:2:1", "D2:03"], ["D9:9"]
    trap = {"question": words(r), "category": 5, "evidence": ["D1:2"], "adversarial_answer": words(r)}
    return [{"sample_id": "conv-1", "conversation": held, "qa": [*asked, trap]}]


def longmemeval(r):
    """A file of LongMemEval's shape."""
    turn = {"role": "user", "content": "", "has_answer": True}
    sessions = [[turn | {"content": words(r)}, {"role": "assistant", "content": words(r)}] for _ in range(3)]
    item = {"question_id": "e47b", "question_type": "multi-session", "question": words(r), "answer": words(r)}
    item |= {"question_date": "2023/05/30 (Tue) 10:00", "haystack_sessions": sessions}
    item["haystack_dates"] = [f"2023/05/{day:02} (Sat) 09:15" for day in r.sample(range(1, 28), 3)]
    return [item | {"haystack_session_ids": ["a", "b", "c"], "answer_session_ids": ["a"]}]


def conversations(r):
    """JSON Lines of the own form, as a corpus of millions has it."""
    return [own(r)["conversations"][0] | {"conversation_id": f"c{i}"} for i in range(2)]


def asked(r):
    """Questions beside the subtitles of `LECTURE`."""
    row = {"lecture": "talk.srt", "type": "fact", "answer": words(r), "ranges": [[1000, 4000], [6000, 8000]]}
    return {"questions": [row | {"id": f"q{i}", "text": words(r)} for i in range(2)], "about": words(r)}


LECTURE = "1\n00:00:01,000 --> 00:00:04,000\nThe moon pulls.\n\n2\n00:00:06,000 --> 00:00:08,000\nTides.\n"


def built(r):
    """An index, as its file has it."""
    turns = tuple(corpora.Turn(f"D1:{i}", 1, None, "2023-05-08", "Nora", words(r)) for i in range(3))
    talk = corpora.Conversation("c", "c", "Nora", "Tobias", turns)
    part = index.build([talk], lambda doc: chunking.cut(doc, 20, 4))["c"]
    return {"c": part | {"embeddings": [[r.random(), -1, 0.5] for _ in part["chunks"]]}}


def record(r):
    """The provenance of a run."""
    kept = {"schema": results.SCHEMA, "notebook": "nb", "run_id": "0" * 16, "parameters": {"DATASET": "talk"}}
    kept |= {"data": None, "models": [{"role": "chat", "model": words(r)}], "llm": {"calls": 1}, "packages": {"a": "1"}}
    kept |= {"git_commit": None, "device": {"kind": "cpu"}, "seconds_per_question": {}, "wall_seconds": 1.5}
    return kept | {"files": {"nb.csv": hashlib.sha256(TABLE).hexdigest()}}


TABLE = (",".join(results.COLUMNS) + "\ndense,recall@15,all,1,.5,,,,,,,,\n").encode()


def plan(r):
    pools = {"POOL": r.randint(1, 99), "CATEGORIES": [1, "temporal"]}
    steps = [{"notebook": "03_reranking", "parameters": pools}, {"notebook": "01_chunking"}]
    return {"sample": steps, "talk": [{"notebook": "03_reranking", "parameters": {"PROFILE": "local"}}]}


def axes(r):
    """A grid."""
    values = {"CHUNK_SIZE": [128, 256], "CHUNK_OVERLAP": r.randint(0, 40), "CATEGORIES": [[1], [2, 3]], "SEED": [0, 1]}
    return [{"notebook": "02_embedding", "parameters": values}, {"notebook": "01_chunking"}]


def profile(r):
    """A profile, of one of those that come along."""
    name = r.choice(("local", "qwen3", "textemb3", "multilingual", "small", "e5"))
    return yaml.safe_load((paths.ROOT / f"notebooks/params/{name}.yaml").read_text(encoding="utf-8"))


def expected(r):
    """Numbers to be met."""
    row = {"variant": "dense", "metric": "recall@15", "category": "all", "value": r.random(), "tolerance": 0.01}
    return {"sample": {"local": {"02_embedding": [row | {"source": words(r)}, row]}}}


def srt(r):
    stamps = [f"00:0{i}:{r.randint(0, 59):02},{r.randint(0, 999):03}" for i in range(8)]
    cues_of = [f"{i + 1}\n{stamps[i]} --> {stamps[i + 1]}\n{words(r)}\n" for i in range(7)]
    return "\n".join(cues_of)


def vtt(r):
    head = f"WEBVTT {words(r, 2)}\n\nNOTE {words(r)}\n\nSTYLE\n::cue {{}}\n\n"
    voice = f"intro\n00:01.000 --> 00:04.000 align:start\n<v Nora>{words(r)}</v> &lt;\n\n"
    return head + voice + srt(r).replace(",", ".")


ANSWERS = (
    '1. "Maya cello"\n2) Maya lesson\n- Keywords: first lesson',
    '["Maya cello", "first lesson"]',
    '{"queries": ["one", {"query": "two"}]}',
    "Sure!\n[2023-04-12] Maya: My first lesson!\n[2023-04-13] Leo: Wow!",
    "<think>Hm.</think>\n```text\nLeaves are green\n```",
    "Answer: 7 May 2023\nQuestion: When?",
    "[00:01~00:04]\nAnswer: The moon pulls [00:06~00:08].\nQuestion: How hot?",
    "時間：00:01~00:04\n答案：月亮",
    "(b)",
    "Summary: Dough rests.\nQuestion: How long?\n2. Question: Why?",
    'Sure: {"type": "factual", "confidence": "90%", "reasoning": "A name."} Anything else?',
    '{"reasoning": "It names the cello.", "label": "CORRECT"}',
    "CORRECT",
    "No information available",
    "Most likely on 31 December 2099, since 1900-02-30",
    "The week before May 7, 2023",
    "Two weeks",
    "2016年12月31日",
)


def answer(r):
    """What a language model writes."""
    return "\n".join(r.choices((*ANSWERS, words(r)), k=r.randint(1, 3)))


def chat_reply(r):
    message = {"role": "assistant", "content": answer(r)}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    usage = {"prompt_tokens": 3, "completion_tokens": 3, "total_tokens": 6}
    return {"id": "x", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice], "usage": usage}


def vectors_reply(r):
    rows = [{"object": "embedding", "index": i, "embedding": [r.random(), 0.5]} for i in range(2)]
    return {"object": "list", "data": rows, "model": "m", "usage": {"prompt_tokens": 2, "total_tokens": 2}}


def scores_reply(r):
    rows = [{"index": i, "relevance_score": r.random()} for i in range(2)]
    return {"id": "x", "results": rows, "meta": {"billed_units": {"search_units": 1}}}


def assignments(r):
    """What stands behind `--set`."""
    given = r.sample(TYPED, r.randint(1, 3))
    return " ".join(f"{name}={value}" for name, value in given)


TYPED = (
    ("DATASET", "'my talk.json'"),
    ("QUESTIONS", "30"),
    ("CATEGORIES", "'[1, temporal]'"),
    ("CHUNK_SIZE", "128"),
    ("CHUNK_OVERLAP", "0x10"),
    ("CONFIDENCE", "1e-1"),
    ("EXPAND_TURNS", "1"),
    ("DRY_RUN", "true"),
    ("PROFILE", "local"),
    ("QUESTION", '"what is x=1 for $5?"'),
    ("SIZES", "'[1, 3, 7]'"),
    ("METHOD", "named"),
)


def encoder(r):
    """A packed encoder."""
    return test_packed.pack()


# --------------------------------------------------------------------------------------------------------------- damage

DEEP, LONG, DIGITS, TWICE = "@deep@", "@long@", "@digits@", "@twice@"  # written out once the rest is text
_NUMBERS = [0, -1, 1, 3, 2**31, -(2**63), 2**64, 10**30, 1e308, -1e-320, 0.1, float("nan"), float("inf")]
_TEXTS = ["", " ", "\n", "0", "NaN", "\0", "\ud800", "\udc00\ud800", "\x1b]0;x\x07", "<script>", "a/../../b", "C:\\x"]
_DATES = ["9999-12-31", "0001-01-01", "2024-02-30", "31 December 9999", "0:00 am on 1 May, 0001"]
_DATES += ["0000/01/01 (Mon) 0:0"]
_IDS = ["D1:1", "D0:0", "D999999999:1", "session_1", "session_0", "local", "CON"]
_IDS += ["!!python/object/apply:os.system ['x']"]
_NESTED = [[], {}, [[]], [None], {"": None}, [1, 2], [2, 1], ["a", 1], {"a": {"b": []}}]
_LARGE = [DEEP, LONG, DIGITS, "e\u0301" * 300]
JUNK = st.sampled_from([None, True, False, *_NUMBERS, *_TEXTS, *_DATES, *_IDS, *_NESTED, *_LARGE])
KINDS = st.sampled_from(["drop", "junk", "junk", "junk", "list", "dict", "text", "double", "rename", "twice", "swap"])
CHANGES = st.lists(st.tuples(st.integers(0, 9999), KINDS, JUNK), max_size=4)


def places(content):
    """(holder, key) of everything below `content`, deeper ones after what holds them."""
    inner = enumerate(content) if isinstance(content, list) else content.items() if isinstance(content, dict) else ()
    for key, value in inner:
        yield content, key
        yield from places(value)


def change(content, number, kind, junk):
    """Damage one place of parsed JSON or YAML, in place; the whole where it has no part."""
    found = list(places(content))
    if not found or number == 9999:
        return junk
    holder, key = found[number % len(found)]
    value = holder[key]
    if kind == "drop":
        del holder[key]
    elif kind == "double" and isinstance(holder, list):
        holder.insert(key, value)
    elif kind in ("rename", "twice") and isinstance(holder, dict):
        new = f"{TWICE}{key}" if kind == "twice" else key[:-1] if isinstance(key, str) else 0
        holder[new] = junk if kind == "twice" else holder.pop(key)
    elif kind == "swap":
        other, place = found[(number * 7) % len(found)]
        holder[key] = json.loads(json.dumps(other[place], default=str))
    else:
        made = {"list": [value], "dict": {"a": value}, "text": str(value)}
        holder[key] = made.get(kind, junk)
    return content


_BREAKS = ["", " ", "\n", "\r", "\n\n", "\t", "\0", "\ufeff", "\u2028", "\x0c", "\x85", "\x1b[2J", "\ud800", "\ufffd"]
_BREAKS += ["\u202e"]
_MARKS = list("\"'`\\{}[]<>:,-~&*!#%$=@|") + ["e\u0301", "\\ud800", "\\N", "..."]
_CUES = ["-->", "00:00:01,000", "99:99:99.999 --> 00:00:00.000", "WEBVTT", "NOTE", "\n\n1\n", "&#0;", "&#1114112;"]
_CUES += ["<v "]
_CUES += ["{\\an8}", "🎵", "&nbsp;"]
_SAID = ["<think>", "</think>", "```", "1. ", "Answer:", '{"label": ', '"CORRECT"}', "[12:05~12:21]", "999:59:59"]
_SAID += ["不正確"]
_SAID += ["31 December 9999 ", "May 0000 ", "null", "true", "NaN", "Infinity", "1e400"]
_YAML = ["&a ", "*a", "!!binary ", "!!timestamp ", "!!bool x", "!!int ", "!!set ", "? ", "<<: ", "%YAML 9.9\n---\n"]
_YAML += ["--- "]
_YAML += ["1_0", "0b", "0x", "1:60", "2024-13-45", ".nan", "-.inf", "@laughs@"]
_TYPED = ["'; import os; '", "PROFILE=", "CHUNK_SIZE=-1 ", "SEED=1e9 "]
PIECES = st.sampled_from([*_BREAKS, *_MARKS, *_CUES, *_SAID, *_YAML, *_TYPED, DEEP, LONG, DIGITS])
EDITS = st.lists(
    st.tuples(st.integers(0, 10**6), st.sampled_from(["put", "put", "over", "cut", "repeat", "end"]), PIECES),
    max_size=5,
)


def edit(text, number, kind, piece):
    """Damage a text at one place."""
    at = number % (len(text) + 1)
    if kind == "end":
        return text[:at]
    if kind == "repeat":
        return text[:at] + text[max(0, at - 20) : at] * 50 + text[at:]
    gone = {"put": 0, "over": len(piece), "cut": 1 + number % 9}[kind]
    return text[:at] + (piece if kind != "cut" else "") + text[at + gone :]


LAUGHS = "[&a0 [x,x,x,x,x,x,x,x,x,x]" + "".join(f",&a{i + 1} [{','.join([f'*a{i}'] * 10)}]" for i in range(9)) + "]"
WRITTEN_OUT = {
    DEEP: "[" * 50_000 + "]" * 50_000,
    LONG: "x" * 100_000,
    DIGITS: "9" * 5_000,
    TWICE: "",
    "@laughs@": LAUGHS,
}


def written_out(text):
    for mark, meant in WRITTEN_OUT.items():
        for quote in '"', "'", "":  # a number or brackets, and no text that spells them
            text = text.replace(f"{quote}{mark}{quote}", meant) if mark in (DEEP, DIGITS) or not quote else text
    return text


CODINGS = st.sampled_from(["utf-8"] * 8 + ["utf-8-sig", "utf-16", "latin-1", "big5", "utf-32"])
FLIPS = st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), max_size=3)


def damaged_bytes(raw, flips, end):
    raw = bytearray(raw)
    for place, value in flips:
        if raw:
            raw[place % len(raw)] = value
    return bytes(raw[: -(end % (len(raw) + 1)) or None] if end else raw)


def encoded(text, coding, flips, end):
    kept = "surrogatepass" if coding.startswith("utf") else "replace"
    return damaged_bytes(text.encode(coding, kept), flips, end)


class Shown(NamedTuple):
    """A damaged input, of which a failing test shows the beginning: hypothesis's own line has the whole."""

    raw: object

    def __repr__(self):
        return f"{self.raw!r:.3000}"


SEEDS = st.integers(0, 2**32 - 1)
ENDS = st.sampled_from([0] * 9 + [1, 2, 30, 500, 4321])


@st.composite
def files(draw, valid, write):
    """The bytes of a file of JSON or YAML: valid, its parts damaged, written, its text damaged, then its bytes."""
    content = valid(random.Random(draw(SEEDS)))
    for number, kind, junk in draw(CHANGES):
        content = change(content, number, kind, json.loads(json.dumps(junk)))
    text = write(content, draw(st.booleans()))
    for number, kind, piece in draw(st.one_of(st.just([]), EDITS)):
        text = edit(text, number, kind, piece)
    flips, end = draw(st.one_of(st.just(([], 0)), st.tuples(FLIPS, ENDS)))
    return Shown(encoded(written_out(text), draw(CODINGS), flips, end))


@st.composite
def texts(draw, valid):
    """A text: valid, then damaged."""
    text = valid(random.Random(draw(SEEDS)))
    for number, kind, piece in draw(EDITS):
        text = edit(text, number, kind, piece)
    return Shown(written_out(text)[:LONGEST])


@st.composite
def encodings(draw, valid):
    """The bytes of such a text."""
    return Shown(encoded(draw(texts(valid)).raw, draw(CODINGS), draw(FLIPS), draw(ENDS)))


@st.composite
def binaries(draw, valid):
    """Bytes with some of them changed or cut."""
    raw = valid(random.Random(0))
    low = [(place % 400, value) for place, value in draw(FLIPS)]  # where sizes and counts stand
    return Shown(damaged_bytes(raw, [*draw(FLIPS), *low], draw(ENDS)))


def as_json(content, ascii_only):
    return json.dumps(content, ensure_ascii=ascii_only)


def as_lines(content, ascii_only):
    rows = content if isinstance(content, list) else [content]
    return "\n".join(json.dumps(row, ensure_ascii=ascii_only) for row in rows)


def as_yaml(content, flow):
    told = {"default_flow_style": flow, "allow_unicode": True, "sort_keys": False}
    try:
        return yaml.dump(content, Dumper=getattr(yaml, "CSafeDumper", yaml.SafeDumper), **told)
    except UnicodeEncodeError:  # of half characters the quick one makes no text
        return yaml.dump(content, Dumper=yaml.SafeDumper, **told)


# -------------------------------------------------------------------------------------------------------------- readers


def one_line(message):
    """Nothing that was read breaks the line, reaches the terminal as a command, or fills the screen."""
    assert message.isprintable() and len(message) <= LINE, ascii(message[:2000])


@contextlib.contextmanager
def refusable():
    try:
        yield
    except BadInput as error:
        one_line(str(error))


def read_corpus(folder, raw):
    """As far as a notebook goes without a model."""
    (folder / "data.json").write_bytes(raw)
    use(corpora.load(folder / "data.json"))


def use(corpus):
    for talk in corpus.conversations[:2]:
        index.validate(index.build([talk], functools.partial(chunking.cut, size=64, overlap=8)))
        for turn in talk.turns[:20]:
            timewords.explained(turn.text, turn.session_date)
    lengths = [1] * len(corpus.conversations[0].turns)
    cues.cues(corpus.conversations[0], lengths, corpus.questions[:9])
    some = [q for q in corpus.questions if len(q.text) < 2000][:9]
    for purpose in ("hyde_dialogue", "route", "multi_query_lecture"):
        queries.requests(corpus, some, purpose)
    for question in some:
        cues.month_range(question.text)
        prompts.fenced(question.text)
        evaluation.against_gold("No information available", question)
    golds = [q for q in some if (q.answer or "").strip() and q.category not in corpora.UNANSWERABLE]
    for kind in judges.KINDS:
        judges.requests(golds, [q.text for q in golds], kind)
    if golds:
        derived.answers([*golds, *QUESTIONS])
    corpora.select(corpus.questions, count=3)
    json.dumps(corpora.summary(corpus.report), ensure_ascii=False).encode()
    "".join(f"{t.speaker}{t.text}{t.caption}" for c in corpus.conversations for t in c.turns).encode()


def read_lines(folder, raw):
    """A conversation that cannot be read is set aside with its reason."""
    (folder / "data.jsonl").write_bytes(raw)
    for row in ingest.read(folder / "data.jsonl", "data.jsonl"):
        assert bool(row["conversation"]) != bool(row["reason"])
        one_line(row["reason"])


def read_ingested(folder, raw):
    (folder / "data.json").write_bytes(raw)
    for row in ingest.read(folder / "data.json", "data.json"):
        one_line(row["reason"])


def read_subtitles(folder, raw, name="talk.srt"):
    (folder / name).write_bytes(raw)
    found = subtitles.read(folder / name)
    talk = subtitles.document(subtitles.merge(found.cues, source=found.path_name))
    assert all(0 <= t.times[0] <= t.times[1] for t in talk.turns)
    index.build([talk], functools.partial(chunking.cut, size=64, overlap=8))
    json.dumps(found.report, ensure_ascii=False).encode()


def read_vtt(folder, raw):
    read_subtitles(folder, raw, "talk.vtt")


def read_asked(folder, raw):
    (folder / "talk.srt").write_text(LECTURE, encoding="utf-8")
    (folder / "questions.json").write_bytes(raw)
    lectures.load(folder)


def read_index(folder, raw):
    (folder / "rag_index.json").write_bytes(raw)
    index.save(index.load(folder / "rag_index.json"), folder / "again.json")


def read_record(folder, raw):
    folder = folder / "results" / "talk" / "local"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "nb.run.json").write_bytes(raw)
    (folder / "nb.csv").write_bytes(TABLE)
    if run.finished(folder, "nb", "0" * 16):
        run.publish(folder, "nb", folder / "copy")
    runs = findings.collect(folder.parents[1])
    assert findings.overview(runs).shape[0] == len(runs) == sum(bool(list(report.facts(r.record))) for r in runs)


READERS = (*test_prompts.READERS, queries.without_dates)
QUESTIONS = [
    corpora.Question(f"c#{i}", "c", text, gold, "temporal", (), ())
    for i, (text, gold) in enumerate((("When did the kiln fire?", "7 May 2023"), ("Who sings?", "Nora, Tobias")))
]


def read_answer(folder, text):
    """Every reader of what a model writes: none of them refuses, an answer that cannot be read is counted."""
    for read in (*READERS, *(reader for _, reader in queries.PURPOSES.values())):
        read(text)
    prompts.choice(text, ("a bowl", text[:50] or "x"))
    times = [(1000, 4000), (6000, 8000), (3_600_000, 3_660_000)]
    cited = citations.checked(llm.Completion(text, 1, 1, 0.1, "stop"), times, (0, 2))
    assert len(cited.text) <= citations.LIMIT and all(0 <= a <= b for a, b in cited.ranges)
    for question in QUESTIONS:
        assert all(0 <= v <= 1 for v in evaluation.against_gold(text[:2000], question).values())
    scores.refuses(text)
    for date in ("0001-01-01", "2023-05-08", "9999-12-31"):
        timewords.explained(text, date)
    if text.strip():
        derived.answers([corpora.Question("c#2", "c", text[:300], text[:300], "single-hop", (), ()), *QUESTIONS])


def served(raw):
    """An HTTP client to which a server gives these bytes as its answer, whatever is asked."""
    reply = httpx.Response(200, content=raw, headers={"content-type": "application/json"})
    return httpx.Client(transport=httpx.MockTransport(lambda asked: reply), verify=False)


def read_chat_reply(folder, raw):
    config = llm.ChatConfig(kind="endpoint", model="m", max_context=1000)
    with openai.OpenAI(api_key="none", base_url="http://x/v1", max_retries=0, http_client=served(raw)) as client:
        message = [{"role": "user", "content": "Who?"}]
        (text, read, wrote, _), _ = endpoint.ask(config, client, message, llm.Request([message], 9))
    text.encode()
    json.dumps([read, wrote])


def read_vectors_reply(folder, raw):
    embedder = models.Embedder(models.EmbedderConfig(kind="endpoint", model="m", max_length=100), "endpoint", "float32")
    with openai.OpenAI(api_key="none", base_url="http://x/v1", max_retries=0, http_client=served(raw)) as client:
        found = models._request(embedder, client, [("one", 1), ("two", 1)])
    models._normalised(embedder, [found[0], 3 * found[1]])


def read_scores_reply(folder, raw):
    config = rerankers.RerankerConfig(kind="endpoint", model="m", url="http://x/")
    with served(raw) as client:
        reply = rerankers._post(config, client, {})
        assert rerankers._billed(reply, 2) >= 0
        assert np.isfinite(rerankers._relevance(config, reply, 2)).all()


def read_plan(folder, raw):
    (folder / "plan.yaml").write_bytes(raw)
    run.plan("sample", "local")


def read_grid(folder, raw):
    (folder / "grid.yaml").write_bytes(raw)
    grid.read(folder / "grid.yaml")


def read_profile(folder, raw):
    (folder / "mine.yaml").write_bytes(raw)
    assert "local" in models.profiles()
    for load in (rerankers.load_reranker, llm.load_chat):  # each block is somebody's first
        with refusable():
            load("mine")
    models.deciding("mine")


def read_expected(folder, raw):
    (folder / "expected.yaml").write_bytes(raw)
    run.compare(run.expected_rows("sample", "local"), {})


def read_typed(folder, text):
    """What is typed behind `-p` and `--set`, for every notebook that there is."""
    given = run.split_assignments(text)
    for defaults in DECLARED:
        with refusable():  # most notebooks do not have them all
            run.checked({k: run.parse_value(k, v, defaults.get(k, "")) for k, v in given}, defaults)
    for value, default in ((v, d) for _, v in given for d in (0, 0.5, False, "", [1])):
        with refusable():
            results.check_parameters({"X": run.parse_value("X", value, default)}, {"X": default})


DECLARED = [results.declared(path) for path in sorted((paths.ROOT / "notebooks").glob("*.ipynb"))]


def read_packed(folder, raw):
    (folder / "tiny-q4.bin").write_bytes(raw)
    packed.read(folder / "tiny-q4.bin")


class Kind(NamedTuple):
    """A kind of input: a sound one of a random generator, damaged ones, and what reads them from a folder."""

    sound: Callable
    damaged: object
    read: Callable


def structured(valid, write, read):
    return Kind(lambda r: write(valid(r), True).encode(), files(valid, write), read)


def written(valid, read):
    return Kind(lambda r: valid(r).encode(), encodings(valid), read)


INPUTS = {
    "own": structured(own, as_json, read_corpus),
    "locomo": structured(locomo, as_json, read_corpus),
    "longmemeval": structured(longmemeval, as_json, read_corpus),
    "ingested json": structured(locomo, as_json, read_ingested),
    "ingested lines": structured(conversations, as_lines, read_lines),
    "srt": written(srt, read_subtitles),
    "vtt": written(vtt, read_vtt),
    "lecture questions": structured(asked, as_json, read_asked),
    "index": structured(built, as_json, read_index),
    "run.json": structured(record, as_json, read_record),
    "answer": Kind(answer, texts(answer), read_answer),
    "chat reply": structured(chat_reply, as_json, read_chat_reply),
    "vectors reply": structured(vectors_reply, as_json, read_vectors_reply),
    "scores reply": structured(scores_reply, as_json, read_scores_reply),
    "parameters": Kind(assignments, texts(assignments), read_typed),
    "plan": structured(plan, as_yaml, read_plan),
    "grid": structured(axes, as_yaml, read_grid),
    "profile": structured(profile, as_yaml, read_profile),
    "expected": structured(expected, as_yaml, read_expected),
    "packed": Kind(encoder, binaries(encoder), read_packed),
}

# ---------------------------------------------------------------------------------------------------------------- tests


def outcome(read, folder, raw):
    """Whether an input is taken."""
    with refusable():
        read(folder, raw)
        return True
    return False


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder of its own, which is that of profiles, plan, results and cache too."""
    for name in ("local", "base"):
        (tmp_path / f"{name}.yaml").write_bytes((paths.ROOT / "notebooks/params/local.yaml").read_bytes())
    monkeypatch.setattr(paths, "params", lambda: tmp_path)
    for name in ("RAWRAG_RESULTS", "RAWRAG_RUNS", "RAWRAG_CACHE"):
        monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.setattr(models, "RETRIES", 0)
    monkeypatch.setattr(models, "device_kind", lambda: "cpu")  # asks torch, which takes seconds to import
    monkeypatch.setattr(models, "fast_dtype", lambda device: "float32")
    return tmp_path


@pytest.mark.parametrize("name", INPUTS)
def test_damaged_input_is_taken_or_refused_in_one_line(name, place):
    sound, damaged, read = INPUTS[name]
    for seed in range(5):
        read(place, sound(random.Random(seed)))  # taken; what is imported or compiled once takes its time here
    kept, taken = [], []

    @settings(
        max_examples=COUNT,
        derandomize="RAWRAG_FUZZ" not in os.environ,
        deadline=SECONDS * 1000,
        suppress_health_check=list(HealthCheck),
        database=None,
    )
    @given(damaged)
    def check(shown):
        taken.append(outcome(read, place, shown.raw))
        if len(kept) < KEPT:
            kept.append(shown.raw)

    check()
    assert np.mean(taken) > 0.02, "almost nothing is taken: the damage hides what lies behind the first check"
    grown, peak = growth(read, place, kept)
    assert grown < GROWTH and peak < PEAK, f"{grown:,} bytes kept, {peak:,} at most"


def growth(read, folder, kept):
    """(bytes left behind, bytes at most) of reading the inputs `kept` again and again, once the caches are filled."""
    peak = 0
    for raw in kept:
        outcome(read, folder, raw)
    tracemalloc.start()
    try:
        gc.collect()
        before, _ = tracemalloc.get_traced_memory()
        for _ in range(TIMES):
            for raw in kept:
                tracemalloc.reset_peak()
                outcome(read, folder, raw)
                peak = max(peak, tracemalloc.get_traced_memory()[1])
            gc.collect()
        after, _ = tracemalloc.get_traced_memory()
        return after - before, peak - before
    finally:
        tracemalloc.stop()
