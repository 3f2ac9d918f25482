"""Answer scores: hand-worked rows in our own words for each rule, and the upstream code's numbers where they lie."""

import itertools
import json
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rawrag_utils import paths, scores

# Each row: prediction, gold, category, official F1, and why.
OFFICIAL = [
    ("a clay bowl", "the clay bowl", "single-hop", 1, "articles do not count"),
    ("Clay bowl!", "clay bowl", 4, 1, "nor do case and punctuation"),
    ("bowls", "bowl", 4, 1, "words are stemmed"),
    ("bowl and mug", "bowl mug", 4, 1, "nor does the word and"),
    ("red red bowl", "red bowl", 4, 0.8, "bags: 2 shared of 3 and 2"),
    ("1,200 bowls", "1200 bowls", 4, 1, "commas go first"),
    ("blue", "red", 4, 0, "nothing shared"),
    ("", "red", 4, 0, "an empty prediction"),
    ("the", "a", 4, 0, "nothing left on either side"),
    ("mug, bowl", "bowl, mug", "multi-hop", 1, "parts in any order"),
    ("mug", "bowl, mug", 1, 0.5, "half of the parts"),
    ("bowl, mug, jug", "mug", 1, 1, "more parts cost nothing"),
    ("clay bowl", "bowl, glass mug", 1, (2 / 3 + 0) / 2, "the best part for each"),
    ("no", "Likely no; she dislikes mud", "open-domain", 2 / 3, "what stands behind ; is not asked"),
    ("Likely no", "Likely no; she dislikes mud", 3, 1, "and in front of it all is"),
    ("Likely no", "Likely no; she dislikes mud; and rain", 3, 1, "at the first one"),
    ("Likely no", "Likely no; she dislikes mud", 4, 4 / 7, "only open-domain golds are cut"),
    ("7 May 2023", "7 May, 2023", "temporal", 1, "a date is words too"),
    (2022, "2022", 2, 1, "a number is its text"),
    ("three", 3, 2, 0, "a number of a gold too, not its word"),
    ("There is no information available.", None, "adversarial", 1, "a refusal"),
    ("It was NOT MENTIONED", "the mug", 5, 1, "in any case"),
    ("the mug", None, 5, 0, "no refusal"),
    ("陶碗", "陶碗", 4, 1, "other scripts"),
    ("STRASSE", "straße", 4, 0, "lower-cased, no more"),
    ("x " * 5000, "x", 4, 2 / 5001, "a very long prediction"),
    ("red, blue", ["red", "blue"], 1, 1, "a gold that is a list is its text"),
]


@pytest.mark.parametrize("prediction, gold, category, expected, why", OFFICIAL, ids=[row[-1] for row in OFFICIAL])
def test_official_f1(prediction, gold, category, expected, why):
    assert scores.locomo_f1(prediction, gold, category) == pytest.approx(expected)


@pytest.mark.parametrize(
    "prediction, gold, expected",
    [
        ("red red bowl", "red bowl", 1),
        ("Red. bowl?", "red, bowl!", 1),
        ("red.bowl!", "RED bowl", 1),
        ("STRASSE", "straße", 0),
        ("bowls", "bowl", 0),
        ("", "bowl", 0),
        ("a", None, 0),
    ],
)
def test_mem0_f1_is_of_sets_and_does_not_stem(prediction, gold, expected):
    assert scores.mem0_f1(prediction, gold) == pytest.approx(expected)


@pytest.mark.parametrize(
    "prediction, gold, expected",
    [
        ("red bowl", "Red bowl", 1),
        ("red red", "red bowl", 0.5),
        ("red", "red bowl", 0.36787944117),
        ("", "red", 0),
        ("red", None, 0),
        ("STRASSE", "straße", 0),
        ("red, bowl.", "red bowl", 0.5),  # marks are words
    ],
)
def test_bleu1_clips_and_punishes_what_is_too_short(prediction, gold, expected):
    assert scores.bleu1(prediction, gold) == pytest.approx(expected)


def test_rouge_l_minds_the_order_and_exact_match_does_not_mind_articles():
    assert scores.rouge_l("mug bowl", "bowl mug") == 0.5
    assert scores.rouge_l("", "mug") == scores.rouge_l("mug", "") == 0
    assert scores.exact_match("A mug.", "mug") == scores.exact_match("the", None) == 1
    assert scores.exact_match("mug", "mugs") == scores.exact_match("STRASSE", "straße") == 0


WORDS = st.lists(st.sampled_from("bcd"), max_size=6)  # no articles


@given(WORDS, WORDS)
def test_rouge_l_is_of_the_longest_words_that_both_have_in_this_order(predicted, gold):
    def parts(words):
        return {some for size in range(len(words) + 1) for some in itertools.combinations(words, size)}

    longest = max(map(len, parts(predicted) & parts(gold)))
    expected = 2 * longest / (len(predicted) + len(gold)) if longest else 0
    assert scores.rouge_l(" ".join(predicted), " ".join(gold)) == pytest.approx(expected)


@given(st.text(max_size=60), st.text(max_size=60))
def test_every_score_is_a_share_and_a_copy_is_never_worse(prediction, gold):
    for score in (scores.mem0_f1, scores.bleu1, scores.rouge_l, scores.exact_match):
        assert 0 <= score(prediction, gold) <= 1
        assert score(gold, gold) >= score(prediction, gold) - 1e-9
    for category in range(1, 6):
        assert 0 <= scores.locomo_f1(prediction, gold, category) <= 1


@pytest.mark.skipif("RAWRAG_LOCOMO" not in os.environ, reason="the upstream scores lie beside the copy of LoCoMo")
def test_all_scores_equal_the_upstream_code():
    golden = paths.resolve(os.environ["RAWRAG_LOCOMO"]).parents[1] / "golden" / "locomo_scores.json"
    rows = json.loads(golden.read_text(encoding="utf-8"))
    assert len(rows) == 120
    for row in rows:
        answer = row["prediction"], row["gold"]
        assert scores.locomo_f1(*answer, row["category"]) == pytest.approx(row["official_f1"], abs=1e-6)
        if row["category"] != 5:
            assert scores.mem0_f1(*answer) == pytest.approx(row["mem0_set_f1"], abs=1e-6)
            assert scores.bleu1(*answer) == pytest.approx(row["bleu1_method1"], abs=1e-6)
