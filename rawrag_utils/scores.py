"""Scores of a reader's answer against the gold answer, each as its source defines it; all lie between 0 and 1.

Official F1: LoCoMo's `task_eval/evaluation.py` (snap-research/locomo). mem0 F1 and BLEU-1: mem0's evaluation. ROUGE-L:
Lin 2004, F1 of the longest common subsequence of words. `category` is LoCoMo's number or name.
"""

import collections
import functools
import re
import string

from rawrag_utils.dialogue import CATEGORIES

REFUSALS = ("no information available", "not mentioned")  # by which category 5 is right, in the official score


def locomo_f1(prediction, gold, category):
    """Official F1 of one answer.

    Multi-hop answers are lists: the mean over the gold's parts, split at commas, of the best F1 of a predicted part.
    Of an open-domain gold only what stands before `;` counts. An adversarial question is right where the prediction
    refuses. A gold that is a number counts as its text, one that is None as empty.

    >>> locomo_f1("painting, the pottery", "pottery and running", "single-hop")
    0.5
    >>> locomo_f1("Not mentioned.", None, 5), locomo_f1("blue", None, "adversarial")
    (1.0, 0.0)
    """
    name, prediction, gold = CATEGORIES.get(category, category), _text(prediction), _text(gold)
    if name == "adversarial":
        return float(refuses(prediction))
    if name == "multi-hop":
        predicted = [stems(part) for part in prediction.split(",")]
        parts = [max(_f1(p, stems(part)) for p in predicted) for part in gold.split(",")]
        return sum(parts) / len(parts)
    return _f1(stems(prediction), stems(gold.partition(";")[0] if name == "open-domain" else gold))


def refuses(prediction):
    """Whether an answer abstains, by the official rule for adversarial questions: it holds one of `REFUSALS`.

    >>> refuses("No information available."), refuses("I do not know")
    (True, False)
    """
    return any(refusal in _text(prediction).lower() for refusal in REFUSALS)


def mem0_f1(prediction, gold):
    """F1 of the sets of lower-cased words, `. , ! ?` taken for blanks.

    >>> mem0_f1("A red, red bowl!", "red bowl")
    0.8
    """
    return _f1(set(_words(prediction)), set(_words(gold)))


def bleu1(prediction, gold):
    """BLEU-1 with NLTK's smoothing method 1 over lower-cased word tokens; 0 where either is empty.

    >>> bleu1("a red bowl", "red bowl")
    0.6666666666666666
    """
    from nltk.translate.bleu_score import SmoothingFunction, sentence_bleu

    predicted, wanted = _tokens(prediction), _tokens(gold)
    if not predicted or not wanted:
        return 0.0
    smoothing = SmoothingFunction().method1
    return float(sentence_bleu([wanted], predicted, weights=(1, 0, 0, 0), smoothing_function=smoothing))


def exact_match(prediction, gold):
    """1 where both are the same after the official normalisation (no case, punctuation, articles), else 0.

    >>> exact_match("The red bowl.", "red bowl"), exact_match("red", "red bowl")
    (1.0, 0.0)
    """
    return float(_normalised(prediction) == _normalised(gold))


def rouge_l(prediction, gold):
    """ROUGE-L: F1 of the longest common subsequence of normalised words.

    >>> rouge_l("sold a bowl and then a mug", "sold a mug")
    0.6666666666666666
    """
    predicted, wanted = _normalised(prediction).split(), _normalised(gold).split()
    row = [0] * (len(wanted) + 1)
    for word in predicted:
        before = row
        row = [0]
        for place, other in enumerate(wanted, 1):
            row.append(before[place - 1] + 1 if word == other else max(before[place], row[-1]))
    return 2 * row[-1] / (len(predicted) + len(wanted)) if row[-1] else 0.0


def _text(value):
    return "" if value is None else str(value)


def _normalised(value):
    text = _text(value).replace(",", "").lower()
    text = "".join(c for c in text if c not in string.punctuation)
    return " ".join(re.sub(r"\b(a|an|the|and)\b", " ", text).split())


@functools.lru_cache(maxsize=1)
def _stemmer():
    from nltk.stem import PorterStemmer

    return PorterStemmer()


def stems(value):
    """The words of the official score: normalised and stemmed.

    >>> stems("The glazed bowls, and a mug.")
    ['glaze', 'bowl', 'mug']
    """
    return [_stemmer().stem(word) for word in _normalised(value).split()]


def _words(value):
    return re.sub(r"[.,!?]", " ", _text(value).lower()).split()


def _tokens(value):
    from nltk.tokenize import word_tokenize

    return word_tokenize(_text(value).lower(), preserve_line=True)  # whole lines: needs no download


def _f1(predicted, wanted):
    """F1 of two bags (lists) or two sets of words."""
    shared = sum((collections.Counter(predicted) & collections.Counter(wanted)).values())
    return 2 * shared / (len(predicted) + len(wanted)) if shared else 0.0
