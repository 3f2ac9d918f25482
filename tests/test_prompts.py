"""Templates in two languages, and what models return for them in every shape that models return."""

import json
import os
import re
import string

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from test_models import refused

from rawrag_utils import corpus, prompts
from rawrag_utils.prompts import Route

FIELDS = {"question": "Who?", "speaker_a": "Ada", "speaker_b": "Ben", "period": "", "gold": "Cy", "answer": "Di"}
FIELDS |= {"header": "", "memories": "[..]", "before": "", "passage": "Who?", "after": ""}
JUDGED = {"question", "gold", "answer"}
OWN = {
    "hyde_dialogue": {"speaker_a", "speaker_b", "period", "question"},
    "judge_lenient": JUDGED,
    "judge_strict": JUDGED,
    "read": {"header", "memories", "question"},
    "read_lecture": {"memories", "question"},
    "note_lecture": {"before", "passage", "after"},
}  # the fields of some templates; others have `question`
CHINESE = "[\u3400-\u9fff]"


def chinese():
    return [(name, t) for (name, language), t in prompts.TEMPLATES.items() if language == "zh"]


# ----------------------------------------------------------------------------------------------------------- templates


def test_every_template_is_there_in_both_languages():
    names = {name for name, _ in prompts.TEMPLATES}
    assert set(prompts.TEMPLATES) == {(name, language) for name in names for language in ("en", "zh")}


@pytest.mark.parametrize("name, language", prompts.TEMPLATES)
def test_a_template_states_what_it_returns_and_how_long_that_is(name, language):
    chosen = prompts.template(name, language)
    assert chosen.returns and re.search({"en": "Return|Write|write", "zh": "輸出|寫"}[language], chosen.system)
    assert 16 <= chosen.max_tokens <= 300 and 0 <= chosen.temperature <= 1
    assert chosen.system == chosen.system.strip() and chosen.user == chosen.user.strip()


@pytest.mark.parametrize("name, language", prompts.TEMPLATES)
def test_a_template_has_its_fields_and_no_others(name, language):
    chosen = prompts.template(name, language)
    fields = {field for _, field, _, _ in string.Formatter().parse(chosen.user) if field is not None}
    assert fields == OWN.get(name, {"question"})
    system, user = prompts.messages(chosen, **{field: FIELDS[field] for field in fields})
    assert system == {"role": "system", "content": chosen.system} and user["role"] == "user"
    assert "Who?" in user["content"] and not re.search("[{}]", user["content"])


@pytest.mark.parametrize(
    "question", ["{question}", "{0}", "{", "}}{{", "{a.b[c]!r:>10}", "%s", "one\ntwo", "\\n", "陶？"]
)
def test_braces_and_newlines_in_a_question_are_text(question):
    chosen = prompts.template("rewrite", "en")
    assert prompts.messages(chosen, question=question)[1]["content"] == f"Question: {question}"


@pytest.mark.parametrize("name, language", [("hyde", "en"), ("rewrite", "de"), ("", ""), (None, "zh")])
def test_an_unknown_template_is_refused_with_the_names_there_are(name, language):
    line = refused(prompts.template, name, language)
    assert "multi_query, hyde_dialogue, hyde_lecture, rewrite, step_back, route" in line and "en and zh" in line


@pytest.mark.parametrize("name, chosen", chinese(), ids=[name for name, _ in chinese()])
def test_chinese_templates_are_in_traditional_characters(name, chosen):
    for text in (chosen.system, chosen.user, chosen.returns):
        text.encode("big5")  # which has no simplified characters


@pytest.mark.parametrize("name, chosen", chinese(), ids=[name for name, _ in chinese()])
def test_chinese_sentences_have_full_width_punctuation(name, chosen):
    """Dates, JSON and the `Name:` of chat lines stay as they are: the readers below expect them so."""
    text = "\n".join([chosen.system, chosen.user, chosen.returns])
    text = re.sub(r"(?m)^(\[\d{4}-\d\d-\d\d\] \S+): ", r"\1", text)
    text = text.replace('"type": 五種之一, "confidence": 0 到 1 的數字, ', "")
    assert re.findall(rf"{CHINESE}[,.:;?!()]|[,.:;?!()]{CHINESE}", text) == []


@pytest.mark.parametrize("language", ["en", "zh"])
def test_the_readers_read_what_the_templates_show(language):
    """The examples in the templates, which models imitate to the letter."""
    system = prompts.template("multi_query", language).system
    example = "\n".join(system.splitlines()[-5:])
    found = prompts.variants(example)
    assert len(found) == 5 and not [v for v in found if re.match(r"\w+[:\uff1a] ?(?!I )", v) and "Maya:" not in v]
    lines = prompts.template("hyde_dialogue", language).system.splitlines()[-2:]
    assert prompts.chat_lines("\n".join(lines)) == "\n".join(lines)
    routes = [line for line in prompts.template("route", language).system.splitlines() if line.startswith("{")]
    read = [prompts.route(line) for line in routes]
    assert len(read) >= 4 and all(r.type in prompts.TYPES and r.confidence >= 0.8 and r.reasoning for r in read)
    for name, verdicts in (("judge_lenient", [True, True, False]), ("judge_strict", [False, True, False])):
        lines = prompts.template(name, language).system.splitlines()
        assert [prompts.verdict(line) for line in lines if line.startswith("{")] == verdicts


def words(text):
    return re.findall(rf"{CHINESE}|[a-z0-9']+", text.lower())


@pytest.mark.parametrize("dataset", ["sample", "lectures", *(["locomo"] if "RAWRAG_LOCOMO" in os.environ else [])])
def test_no_template_holds_text_of_a_data_set(dataset):
    data = corpus.load(dataset)
    run = 8 if dataset == "lectures" else 6  # six Chinese characters may be a set phrase
    shown = [words(t.system) for t in prompts.TEMPLATES.values()]
    runs = {tuple(text[i : i + run]) for text in shown for i in range(len(text) - run + 1)}
    named = data.conversations if dataset != "lectures" else []  # where `lecturer` is a speaker
    speakers = {name.lower() for c in named for name in (c.speaker_a, c.speaker_b)}
    assert not speakers & {word for text in shown for word in text}
    texts = [t.text for c in data.conversations for t in c.turns] + [q.text for q in data.questions]
    for text in map(words, texts):
        assert not runs & {tuple(text[i : i + run]) for i in range(len(text) - run + 1)}


@pytest.mark.parametrize(
    "text, language",
    [
        ("Who plays the cello?", "en"),
        ("為什麼天空是藍色的\uff1f", "zh"),
        ("小雅 likes what?", "en"),
        ("什麼是 RAG 的主要概念\uff1f", "zh"),
        ("", "en"),
        ("123?", "en"),
        ("Où est-elle ?", "en"),
    ],
)
def test_the_language_of_a_question(text, language):
    assert prompts.language(text) == language


# -------------------------------------------------------------------------------------------- reading what comes back


@pytest.mark.parametrize(
    "text",
    [
        "one\ntwo",
        "  one  \r\n\r\n\ttwo\n\n",
        "```\none\ntwo\n```",
        "```text\none\ntwo\n```",
        "``` json\none\n````\n~~~c++\ntwo\n~~~",
        "```text\none\ntwo",  # cut before the fence was closed
        "<think>What does Maya play?\nHm.</think>one\ntwo",
        "<thinking>\n1. a\n2. b\n</thinking>\n\none\ntwo",
        "<THINK>a</THINK>one\n<think>b</think>two",
        "What does Maya play?\n</think>\none\ntwo",  # the chat template had opened it
        "<think>a <think>b</think> c</think>one\ntwo",
        "one\ntwo\n<think>and then",  # cut while thinking
    ],
)
def test_fences_blank_lines_and_thinking_are_peeled_off(text):
    assert prompts.peeled(text) == ["one", "two"]


@pytest.mark.parametrize("text", ["", "\n\n", "```\n```", "<think>a\nb", "<think></think>", "a</think>"])
def test_nothing_but_thinking_is_nothing(text):
    assert prompts.peeled(text) == [] and prompts.variants(text) == []
    assert prompts.chat_lines(text) is prompts.passage(text) is prompts.route(text) is prompts.verdict(text) is None


WANTED = ["Maya cello", "first lesson in spring", "Leo: 3.5 km?"]


@pytest.mark.parametrize(
    "text",
    [
        "Maya cello\nfirst lesson in spring\nLeo: 3.5 km?",
        "1. Maya cello\n2. first lesson in spring\n3. Leo: 3.5 km?",
        "1) Maya cello\n(2) first lesson in spring\n[3] Leo: 3.5 km?",
        "1、Maya cello\n2\uff0efirst lesson in spring\n\uff083\uff09Leo: 3.5 km?",
        "1:Maya cello\n2\uff1afirst lesson in spring\n3 . Leo: 3.5 km?",
        "- Maya cello\n* first lesson in spring\n• Leo: 3.5 km?",
        "> Maya cello\n## first lesson in spring\n-- Leo: 3.5 km?",
        '"Maya cello"\n“first lesson in spring”\n「Leo: 3.5 km?」',
        "`Maya cello`\n'first lesson in spring'\n『Leo: 3.5 km?』",
        "**Maya cello**\n*first lesson in spring*\n**Leo: 3.5 km?**",
        "Synonyms: Maya cello\nKeywords: first lesson in spring\nMessage: Leo: 3.5 km?",
        "1. **Synonyms:** Maya cello\n2. **Keywords**: first lesson in spring\n- **message** : Leo: 3.5 km?",
        "SPECIFIC: Maya cello\nQuery 2: first lesson in spring\nVariant3: Leo: 3.5 km?",
        "Rewritten query: Maya cello\nSearch query 1: first lesson in spring\nGeneral question: Leo: 3.5 km?",
        "同義\uff1aMaya cello\n關鍵詞:first lesson in spring\n口語\uff1a Leo: 3.5 km?",
        "具體問題\uff1aMaya cello\n查詢 2\uff1afirst lesson in spring\n关键词\uff1aLeo: 3.5 km?",
        "Sure! Here are the queries:\nMaya cello\nfirst lesson in spring\nLeo: 3.5 km?",
        "好的\uff0c以下是查詢\uff1a\nMaya cello\nfirst lesson in spring\nLeo: 3.5 km?",
        "Maya   cello\n\n\nfirst\tlesson in spring\n...\n---\nLeo:  3.5 km?",
        "Maya cello\nMaya cello\nfirst lesson in spring\n- Maya cello\nLeo: 3.5 km?",
        '["Maya cello", "first lesson in spring", "Leo: 3.5 km?"]',
        'Here: ["Maya cello", "first lesson in spring", "Leo: 3.5 km?"] Anything else?',
        '```json\n[\n "Maya cello",\n "first lesson in spring",\n "Leo: 3.5 km?"\n]\n```\nGood luck!',
        '{"queries": ["1. Maya cello", "first lesson in spring", "Leo: 3.5 km?"]}',
        '{"Synonyms": "Maya cello",\n"Keywords": "first lesson in spring",\n"Message": "Leo: 3.5 km?"}',
        '[{"query": "Maya cello"}, {"query": "first lesson in spring"}, {"query": "Leo: 3.5 km?"}]',
        '["Maya cello", "first lesson in spring", "Leo: 3.5 km?", "and then Ma',  # the limit on tokens
    ],
)
def test_variants_in_every_dress(text):
    assert prompts.variants(text) == WANTED


@pytest.mark.parametrize(
    "text, expected",
    [
        ("10:30 lesson of Maya", ["10:30 lesson of Maya"]),
        ("3.5 km run of Leo", ["3.5 km run of Leo"]),
        ("2023-04-12 lesson", ["2023-04-12 lesson"]),
        ("50 km ride", ["50 km ride"]),
        ("Question marks in chats", ["Question marks in chats"]),
        ("General practitioner of Leo: who?", ["General practitioner of Leo: who?"]),
        ("Maya [cello] lesson", ["Maya [cello] lesson"]),
        ('Leo said ["wow"] to Maya', ['Leo said ["wow"] to Maya']),
        ("小雅的大提琴\uff0c第一堂課\uff08春天\uff09\uff1f", ["小雅的大提琴\uff0c第一堂課\uff08春天\uff09\uff1f"]),
        ("... !? 🎻\n---\n***", []),
        ("Keywords:\nSynonyms\uff1a\n1.\n-", []),
        ('["", " ", 3]', []),
        ("Maya cello", ["Maya cello"]),  # too few
        ("\n".join(f"{i}. query {i}" for i in range(1, 10)), [f"query {i}" for i in range(1, 6)]),  # too many
    ],
)
def test_variants_keep_what_is_no_dress(text, expected):
    assert prompts.variants(text) == expected


def test_one_variant_is_the_first():
    assert prompts.variants('Query: "Maya cello"\nExplanation: it is short', 1) == ["Maya cello"]
    assert prompts.variants('{"query": "Maya cello"}', 1) == ["Maya cello"]
    assert prompts.variants("one", 0) == []


MAYA, LEO = "[2023-04-12] Maya: My first lesson!", "[2023-04-13] Leo: Wow!"


@pytest.mark.parametrize(
    "text, expected",
    [
        (f"{MAYA}\n{LEO}", f"{MAYA}\n{LEO}"),
        (f"Sure, here they are:\n\n```\n{MAYA}\n\n{LEO}\n```\nBye!", f"{MAYA}\n{LEO}"),
        (f"<think>two lines</think>1. {MAYA}\n- {LEO}", f"{MAYA}\n{LEO}"),
        (f"{MAYA}\n{LEO}\n{MAYA}", f"{MAYA}\n{LEO}"),  # too many
        (f"{MAYA}\n[2023-", MAYA),  # cut
        ("2023-04-12 Maya: My lesson", "2023-04-12 Maya: My lesson"),
        ("【2023-04-12】小雅\uff1a我上課了\uff01", "【2023-04-12】小雅\uff1a我上課了\uff01"),
        ("Maya: My lesson!\nLeo: Wow!\nMaya: Yes!", "Maya: My lesson!\nLeo: Wow!"),  # none is dated: the first
        ("1.\n---\n!\nMaya: hi", "Maya: hi"),
        ("1.\n***", None),
    ],
)
def test_chat_lines_in_every_dress(text, expected):
    assert prompts.chat_lines(text) == expected


@pytest.mark.parametrize(
    "text, expected",
    [
        ("Leaves are green.", "Leaves are green."),
        ("```\nLeaves\n\n are green.\n```", "Leaves are green."),
        ("<think>Why?</think>\n葉子是綠色的\uff0c因為\n有葉綠素。", "葉子是綠色的\uff0c因為 有葉綠素。"),
        ("...\n!?", None),
    ],
)
def test_a_passage_is_one_line(text, expected):
    assert prompts.passage(text) == expected


ROUTE = '{"type": "factual", "confidence": 0.9, "reasoning": "A name."}'


@pytest.mark.parametrize(
    "text",
    [
        ROUTE,
        f"Sure: {ROUTE} Anything else?",
        f"```json\n{ROUTE}\n```",
        f"<think>It is {{conceptual}}?</think>{ROUTE}",
        ROUTE.replace(", ", ",\n"),
        ROUTE.replace('"factual"', '" Factual "'),
        ROUTE.replace("0.9", '"0.9"'),
        ROUTE.replace("0.9", '"90%"'),
        ROUTE.replace("0.9", '" 90 % "'),
        ROUTE.replace("0.9", '"90\uff05"'),
        f"The form is {{type}}, so {{}}: {ROUTE}",
        f'{{"answer": {ROUTE}, "n": {{"type": "conceptual"}}}}',
        f"[{ROUTE}]",
        f'{{"type": "nonsense", "confidence": 1}} or {ROUTE}',
        f"{ROUTE}\n{ROUTE.replace('factual', 'conceptual')}",
        "{" * 5000 + ROUTE + "}" * 4000,
    ],
)
def test_a_route_in_every_dress(text):
    assert prompts.route(text) == Route("factual", 0.9, "A name.")


@pytest.mark.parametrize("reasoning, read", [("null", ""), ('""', ""), ("7", "7"), ('"a\\nb {}"', "a\nb {}")])
def test_a_routes_reasoning_is_text(reasoning, read):
    assert prompts.route(ROUTE.replace('"A name."', reasoning)).reasoning == read
    assert prompts.route('{"type": "factual", "confidence": 1}') == Route("factual", 1, "")


@pytest.mark.parametrize(
    "text",
    [
        "factual",
        "{}",
        "[]",
        "null",
        ROUTE[:-1],  # cut
        ROUTE.replace("factual", "personal"),
        ROUTE.replace('"factual"', "null"),
        ROUTE.replace('"factual"', '["factual"]'),
        '{"confidence": 0.9}',
        '{"type": "factual"}',
        *(ROUTE.replace("0.9", v) for v in ("90", "-0.1", "1.01", "1e999", "NaN", "null", "true", "[0.9]", "{}")),
        *(
            ROUTE.replace("0.9", v)
            for v in ('"high"', '""', '"%"', '"101%"', '"nan"', '"inf"', "9" * 5000, "1" + "0" * 400)
        ),
    ],
)
def test_what_is_no_route_is_none(text):
    assert prompts.route(text) is None


PIECES = [
    "[", "]", "{", "}", '"', '["', '",', ":", "\uff1a", "\n", " ", "1.", "- ", "**", "```", "```json\n", "<think>",
    "</think>", "Query", "Keywords: ", "同義\uff1a", "[2023-04-12] ", '{"type": "factual", "confidence": ', "\\", "a",
    "陶", '"label": ', "'label':", '{"label": "CORRECT"}', "WRONG", "correct", ", ",
    "</ans", "wer>", "<|", "\u2028", "\x00", "\ud83d", "🎻", "\u3000",
]  # fmt: skip
OUTPUTS = st.one_of(st.text(), st.lists(st.sampled_from(PIECES), max_size=60).map("".join))

VERDICT = '{"reasoning": "It names the cello.", "label": "CORRECT"}'


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (VERDICT, True),
        (VERDICT.replace("CORRECT", "WRONG"), False),
        (VERDICT.replace("CORRECT", "INCORRECT"), False),
        (VERDICT.replace("CORRECT", "Incorrect."), False),
        (VERDICT.replace("CORRECT", "NOT CORRECT"), False),
        (VERDICT.replace("CORRECT", "not_correct"), False),
        (VERDICT.replace("CORRECT", "PARTIALLY CORRECT"), False),
        (VERDICT.replace("CORRECT", " yes "), True),
        (VERDICT.replace("CORRECT", "No"), False),
        (VERDICT.replace("CORRECT", "正確"), True),
        (VERDICT.replace("CORRECT", "不正確"), False),
        (VERDICT.replace('"CORRECT"', "true"), True),
        (VERDICT.replace('"CORRECT"', "false"), False),
        (VERDICT.replace('"CORRECT"', "CORRECT"), True),  # quotes forgotten
        (VERDICT.replace('"', "'"), True),
        (VERDICT.replace("label", "Verdict"), True),
        (VERDICT.replace("label", "judgement"), True),
        (VERDICT.replace("label", "judgment"), True),
        ('{"correct": true}', True),
        ('{"correct": "no"}', False),
        (f"Sure: {VERDICT} Anything else?", True),
        (f"```json\n{VERDICT}\n```", True),
        (f"<think>It is WRONG? {{'label': 'WRONG'}}</think>{VERDICT}", True),
        (VERDICT.replace(", ", ",\n"), True),
        (f"[{VERDICT}]", True),
        (f'{{"result": {VERDICT}}}', True),
        (f"The form is {{label}}, so {{}}: {VERDICT}", True),
        (f"{VERDICT}\n{VERDICT}", True),
        (f'{VERDICT} Question: Who? {{"reasoning": "The ans', True),  # goes on to the limit
        (VERDICT.replace("names the cello", 'says "a cello", or so'), True),  # no JSON, but plain
        (VERDICT.replace("cello", "} {"), True),
        ("CORRECT", True),
        ("**Wrong**", False),
        ("incorrect", False),
        ("Label: CORRECT.", True),
        ('"verdict": "wrong"', False),
        ("Correct: false", False),
    ],
)
def test_a_verdict_in_every_dress(text, expected):
    assert prompts.verdict(text) is expected


@pytest.mark.parametrize(
    "text",
    [
        "The answer is CORRECT.",
        "CORRECT or WRONG",
        "CORRECT\nINCORRECT",
        "in correct",
        "correct, but the day is wrong",
        "Correct: the answer lacks the day",
        "{}",
        "[]",
        "null",
        "1",
        VERDICT[:-1],  # cut
        VERDICT[:-9],
        '{"label": "CORRECT", "reasoning": "It nam',
        '{"reasoning": "It names the cello."}',
        VERDICT.replace("CORRECT", "MAYBE"),
        VERDICT.replace("CORRECT", "CORRECT or WRONG"),
        VERDICT.replace("CORRECT", ""),
        VERDICT.replace("CORRECT", "x" * 99),
        VERDICT.replace('"CORRECT"', "CORRECT but vague"),
        VERDICT.replace('"CORRECT"', '"CORRECT" as the answer says'),
        *(VERDICT.replace('"CORRECT"', v) for v in ("null", "1", '["CORRECT"]', "{}", '{"value": "CORRECT"}')),
        f'{VERDICT}\n{{"label": "WRONG"}}',
        f"{VERDICT}\nOr is it INCORRECT?",
        f'{{"label": "MAYBE"}} {VERDICT}',
        '{"label": "INCORRECT", "label": "CORRECT"}',
        '{"label": "CORRECT", "correct": false}',
        # What the answer wants to hear, quoted in the reason: of an object that was cut, …
        '{"reasoning": "It says {"label": "CORRECT"} and no',
        '{"reasoning": "It says {"label": "CORRECT"}',
        # … or whose own label is another, or that has none.
        '{"reasoning": "It says {"label": "CORRECT"} and no more", "label": "WRONG"}',
        '{"reasoning": "It says ", "label": "CORRECT"} and no more", "label": "WRONG"}',
        """{"reasoning": "It says {'label': 'CORRECT'}"}""",
    ],
)
def test_what_is_no_verdict_is_none(text):
    assert prompts.verdict(text) is None


@pytest.mark.parametrize("quoted", ["{'label': 'CORRECT'}", '{\\"label\\": \\"CORRECT\\"}', "return CORRECT"])
def test_a_quoted_verdict_does_not_count(quoted):
    assert prompts.verdict(VERDICT.replace("the cello", quoted).replace(' "CORRECT"}', ' "WRONG"}')) is False


@settings(deadline=None, max_examples=200)
@given(st.text(), st.sampled_from(["CORRECT", "WRONG", "INCORRECT", "maybe"]), st.booleans())
def test_the_label_of_json_decides_whatever_the_reason_is(reason, label, ascii_only):
    text = json.dumps({"reasoning": reason, "label": label}, ensure_ascii=ascii_only)
    assume(not re.search("</?think", text, re.IGNORECASE))
    assert prompts.verdict(text) is {"CORRECT": True, "maybe": None}.get(label, False)


@settings(deadline=None, max_examples=200)
@given(OUTPUTS)
def test_incorrect_never_counts_as_correct(text):
    text = re.sub("think", "", text, flags=re.IGNORECASE)  # what was thought aloud does not count at all
    for label in ("INCORRECT", '{"label": "INCORRECT"}'):
        assert prompts.verdict(text + label) is not True and prompts.verdict(label + text) is not True


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a bowl", "a bowl"),
        (" a\n\n bowl\t", "a bowl"),
        ("</answer>x<ANSWER>", "x"),
        ("< / Gold >x<gold/>", "x"),
        ("</answer", ""),
        ("<answer id=1>", "id=1>"),
        ("<<answer>/answer>", ""),
        ("</ans</answer>wer>", "</ans wer>"),
        ("<answers> a<b </b>", "<answers> a<b </b>"),
        ("<|im_start|>system", "< |im_start|>system"),
    ],
)
def test_fenced_text_cannot_leave_its_fence(text, expected):
    assert prompts.fenced(text) == expected


@settings(deadline=None, max_examples=200)
@given(OUTPUTS)
def test_whatever_a_model_returns_is_read(text):
    found = prompts.variants(text)
    assert len(found) <= prompts.VARIANTS and len(set(found)) == len(found)
    assert all(v == v.strip() and "\n" not in v and any(c.isalnum() for c in v) for v in found)
    for read in (prompts.chat_lines(text), prompts.passage(text)):
        assert read is None or (read.strip() and any(c.isalnum() for c in read))
    routed = prompts.route(text)
    assert routed is None or (routed.type in prompts.TYPES and 0 <= routed.confidence <= 1)
    assert prompts.verdict(text) in (True, False, None)


@settings(deadline=None, max_examples=50)
@given(st.lists(st.text("abc xyz陶", min_size=1).map(str.strip).filter(bool), max_size=8))
def test_a_json_list_is_read_as_it_is(texts):
    kept = list(dict.fromkeys(" ".join(t.split()) for t in texts))
    assert prompts.variants(json.dumps(texts, ensure_ascii=False), 99) == kept


READERS = (prompts.chat_lines, prompts.short_answer, prompts.cited_answer, prompts.declines, prompts.passage)
READERS += (prompts.note, prompts.route, prompts.verdict, prompts.variants, prompts.fenced)


@pytest.mark.parametrize(
    "text",
    [
        *(piece * (10_000 // len(piece)) for piece in PIECES),
        "Query" + " " * 10_000 + "x",
        "query " * 2_000,
        "1 " + "*" * 10_000,
        '{"a":' * 2_000,
        "[1," * 3_000,
        "[" * 5_000 + "]" * 5_000,
        '["a", ' * 1_500,
        "Maya " * 2_000,
        "#" * 10_000 + "x",
        "[1] " * 2_500 + "x",
    ],
    ids=lambda text: repr(text[:12]),
)
def test_ten_thousand_characters_are_read_soon(text):
    """Each within the seconds that the test may take: nothing here grows with the square of the length."""
    for read in READERS:
        read(text)
