"""Cues and the learnt sum: what each cue sees, weights that never meet the conversation they rank."""

import numpy as np
import pandas as pd
import pytest

from rawrag_utils import chunking, cues, index, metrics
from rawrag_utils.corpus import Conversation, Corpus, Question, Turn
from rawrag_utils.paths import BadInput


def talk(name="c", texts=("Hello!", "I bought a lamp yesterday.", "Which one?", "The green one."), dates=None):
    dates = dates or ["2023-05-08"] * len(texts)
    turns = [
        Turn(f"T{i}", 1, None, d, ("Nora", "阿哲")[i % 2], t) for i, (t, d) in enumerate(zip(texts, dates, strict=True))
    ]
    return Conversation(name, name, "Nora", "阿哲", tuple(turns))


def ask(text="?", number=0, evidence=("T1",), name="c", category="single-hop"):
    return Question(f"{name}#{number}", name, text, None, category, tuple(evidence), ())


def cue(name, question, conversation=None):
    found = cues.cues(conversation or talk(), [5, 9, 4, 6], [ask(question)])
    return found[0, :, cues.CUES.index(name)].tolist()


@pytest.mark.parametrize(
    "question, expected",
    [
        ("What did Nora buy?", [0.5, -0.5, 0.5, -0.5]),
        ("阿哲買了什麼？", [-0.5, 0.5, -0.5, 0.5]),
        ("What did Nora give 阿哲?", [0, 0, 0, 0]),
        ("What did Norah buy?", [0, 0, 0, 0]),
        ("What was bought?", [0, 0, 0, 0]),
    ],
)
def test_speaker_cue_needs_exactly_one_name(question, expected):
    assert cue("speaker", question) == expected


@pytest.mark.parametrize(
    "question, expected",
    [
        ("What happened in May 2023?", [0.5, -0.5, -0.5, -0.5]),
        ("What happened in May?", [0.5, 0.5, -0.5, -0.5]),
        ("What may happen?", [0, 0, 0, 0]),
        ("What happened on 3 June, 2023?", [-0.5, -0.5, 0.5, -0.5]),
        ("What happened in 2023?", [0, 0, 0, 0]),
    ],
)
def test_date_cue_follows_the_named_month(question, expected):
    assert cue("date", question, talk(dates=["2023-05-08", "2022-05-09", "2023-06-01", None])) == expected


def test_when_cue_wants_time_words_and_only_where_it_is_asked():
    assert cue("when", "When was the lamp bought?") == [-0.5, 0.5, -0.5, -0.5]
    assert cue("when", "What was bought?") == [0, 0, 0, 0]


def test_length_is_standardised_and_questions_are_marked():
    lengths = cue("length", "?")
    assert abs(sum(lengths)) < 1e-5 and np.argmax(lengths) == 1
    assert cue("question", "?") == [0, 0, 1, 0]


@pytest.mark.parametrize(
    "text, expected",
    [
        ("in February 2024", ("2024-02-01", "2024-02-29")),
        ("in May or June 2023", None),
        ("in 2023", None),
        ("in June", None),
    ],
)
def test_month_range_wants_one_month_and_one_year(text, expected):
    assert cues.month_range(text) == expected


# Six conversations in which the evidence always stands with the named speaker, in a long turn or a short one.
NAMES = [f"c{i}" for i in range(6)]


def made():
    talks = [talk(name) for name in NAMES]
    questions = [ask("What did 阿哲 buy?", 0, ("T1" if i % 2 else "T3",), name) for i, name in enumerate(NAMES)]
    return Corpus("made", "made.json", "", talks, questions, [])


def flat_ranking(questions, built):
    rows = [
        {"query_id": q.question_id, "doc_id": c["chunk_id"], "rank": k + 1, "score": 0.0}
        for q in questions
        for k, c in enumerate(built[q.conversation_id]["chunks"])
    ]
    return pd.DataFrame(rows)


def prepared():
    corpus = made()
    built = index.build(corpus.conversations, chunking.turn_windows)
    return corpus, built, cues.features(corpus, built, corpus.questions, [flat_ranking(corpus.questions, built)])


def test_weights_learn_what_evidence_has_in_common_and_rank_it_first():
    corpus, built, found = prepared()
    weights = cues.leave_one_out(corpus, corpus.questions, found)
    speaker = 1 + cues.CUES.index("speaker")
    assert set(weights) == set(NAMES) and all(w[speaker] > 0.5 and abs(w[0]) < 1e-6 for w in weights.values())
    ranking = cues.weighted_sum(built, corpus.questions, found, weights)
    hits = metrics.evidence_hits(corpus, built, ranking)
    assert (hits["rank"] <= 2).all() and len(ranking) == len(NAMES) * 4


def test_weights_do_not_see_the_conversation_they_rank():
    corpus, _, found = prepared()
    before = cues.leave_one_out(corpus, corpus.questions, found)["c0"]
    changed = [ask("What did 阿哲 buy?", 0, ("T0",), name="c0"), *corpus.questions[1:]]
    corpus = Corpus("made", "made.json", "", corpus.conversations, changed, [])
    after = cues.leave_one_out(corpus, changed, found)
    assert np.array_equal(after["c0"], before)
    assert not np.array_equal(after["c1"], cues.leave_one_out(made(), made().questions, found)["c1"])


def test_the_gradient_is_that_of_the_loss():
    corpus, _, found = prepared()
    rng = np.random.default_rng(0)
    found = {name: (rows, rng.normal(size=scores.shape).astype(np.float32)) for name, (rows, scores) in found.items()}
    best = cues.learn(corpus, corpus.questions, found, NAMES)

    def loss(weights):
        total = 0.0
        for i, name in enumerate(NAMES):
            logits = found[name][1][0] @ weights
            total -= logits[1 if i % 2 else 3] - np.log(np.exp(logits).sum())
        return total / len(NAMES) + cues.RIDGE * (weights**2).sum()

    for step in 1e-2 * np.eye(len(best)):
        assert loss(best) <= min(loss(best + step), loss(best - step))


def test_incomplete_rankings_and_nothing_to_learn_from_are_refused():
    corpus, built, found = prepared()
    with pytest.raises(BadInput, match="c0#0: its ranking lacks turns"):
        cues.features(corpus, built, corpus.questions, [flat_ranking(corpus.questions, built)[1:]])
    silent = [ask("?", 0, (), name=name) for name in NAMES]
    with pytest.raises(BadInput, match="no answerable question"):
        cues.learn(corpus, silent, found, NAMES)


def test_saved_weights_are_read_by_name_or_refused(tmp_path):
    table = pd.DataFrame({"b": [2.0, 4.0], "a": [1.0, 3.0]}, index=["c0", "all"])
    table.to_csv(tmp_path / "w.csv")
    assert cues.read_weights(tmp_path / "w.csv", ["a", "b"]).tolist() == [3, 4]
    for path, names in ((tmp_path / "w.csv", ["a", "c"]), (tmp_path / "missing.csv", ["a"])):
        with pytest.raises(BadInput, match="holds no row"):
            cues.read_weights(path, names)


def test_settings_are_chosen_on_the_other_conversations():
    corpus = made()
    ids = [q.question_id for q in corpus.questions]
    good = pd.DataFrame({"m": [0.0, 1, 1, 1, 1, 1]}, index=ids)  # best everywhere but on c0
    bad = pd.DataFrame({"m": [1.0, 0, 0, 0, 0, 0]}, index=ids)
    table, chosen = metrics.leave_one_out({"good": good, "bad": bad}, corpus, "m")
    assert set(chosen.values()) == {"good"} and table["m"].tolist() == [0, 1, 1, 1, 1, 1]
