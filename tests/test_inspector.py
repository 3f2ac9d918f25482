"""The inspector: widgets choose and views follow, nothing is computed that was known, no text becomes markup."""

import dataclasses
import json
import os
import re

import pytest
from conftest import HOSTILE, talk
from test_views import SAFE, Page

from rawrag_utils import desk as desks
from rawrag_utils import inspector, paths, retrieval, views
from rawrag_utils.paths import BadInput


@pytest.fixture
def made(desk, monkeypatch):
    """The panel over the desk, with the box that Jupyter would show as `box`."""
    kept = []
    build = inspector.Panel
    monkeypatch.setattr(inspector, "Panel", lambda *parts: kept.append(build(*parts)) or kept[-1])
    box = inspector.panel(desk)
    kept[-1].box = box
    return kept[-1]


def shown(made):
    """Text of all views, by name; those that are empty are left out."""
    return {name: Page(view.value).text for name, view in made.shown.items() if view.value}


def offered(made, name):
    return [value for _, value in made.choose[name].options]


def widgets(box):
    yield box
    for child in getattr(box, "children", ()):
        yield from widgets(child)


def test_it_begins_with_the_first_question_that_has_evidence(made):
    assert made.choose["question"].value == "one#0" and made.choose["method"].value == "rrf+maxsim"
    assert set(shown(made)) == set(inspector.SECTIONS) - {"moved", "compared"}
    assert "What about the kiln 1?" in shown(made)["card"]
    assert "2024-03-02 to 2024-07-01" in made.days.value and made.message.value == ""


def test_the_slider_says_what_its_range_is(made):
    assert made.choose["dates"].tooltip == "From the first to the last session that is searched"


def test_every_view_is_what_its_function_returns(made, desk):
    made.choose["other"].value = "dense"
    found = desks.find(desk, desks.questions(desk, "one")[0], "rrf+maxsim")
    second, best = desks.find(desk, found.question, "dense"), next(iter(views.places(found.ranking)))
    wanted = {
        "card": views.card(desk, found),
        "strip": views.strip(desk, found, best),
        "close_up": views.close_up(desk, found, best),
        "window": views.window(desk, found, best),
        "lines": views.moving_lines(desk, found),
        "moved": views.moved(desk, found, second),
        "compared": views.side_by_side(desk, found, second),
        "context": views.context(desk, found, copyable=True),
    }
    assert all(view in made.shown[name].value for name, view in wanted.items())
    static = inspector.page(desk, "one", other="dense")
    assert static == wanted | {"context": views.context(desk, found)}


def test_a_question_is_chosen_typed_and_chosen_again(made):
    made.choose["question"].value = "one#1"
    assert "Where is the tram?" in shown(made)["card"]
    made.choose["typed"].value = "Who plays the violin?"
    assert "Who plays the violin?" in shown(made)["card"] and "typed by hand" in shown(made)["card"]
    made.choose["question"].value = "one#3"
    assert made.choose["typed"].value == "" and "Is there a violin?" in shown(made)["card"]
    made.choose["typed"].value = "rain"
    made.choose["typed"].value = "  "
    assert "Is there a violin?" in shown(made)["card"]


def test_questions_are_searched_and_filtered(made, desk):
    made.choose["category"].value = "temporal"
    assert offered(made, "question") == ["one#1", "one#3"] and "Where is the tram?" in shown(made)["card"]
    assert "2 of 5 questions" in made.message.value
    made.choose["search"].value = "VIOLIN is"
    assert offered(made, "question") == ["one#3"] and "Is there a violin?" in shown(made)["card"]
    made.choose["category"].value = inspector.ALL
    made.choose["search"].value = ""
    assert len(offered(made, "question")) == 5 and made.choose["question"].value == "one#3"
    for method in ("rrf+maxsim", "bm25"):
        made.choose["method"].value = method
        stages = desks.stages(desk, "one", method)
        for stage in desks.EVIDENCE_STAGES:
            made.choose["stage"].value = stage
            assert offered(made, "question") == [name for name in stages.index if stages[name] == stage]


def test_no_question_left_says_so_and_shows_nothing(made):
    made.choose["search"].value = "xylophone"
    assert offered(made, "question") == [] and "0 of 5 questions" in made.message.value and not shown(made)
    made.choose["typed"].value = "Is there a xylophone?"
    assert "typed by hand" in shown(made)["card"]


def test_the_slider_narrows_the_sessions(made):
    made.choose["question"].value = "one#1"
    made.choose["dates"].index = (1, 1)
    assert "sessions from 2024-05-09 to 2024-05-09" in shown(made)["card"]
    assert "✗ outside the dates" in shown(made)["card"] and "2024-05-09" in made.days.value
    assert "2024-03-02" not in shown(made)["context"]
    made.choose["dates"].index = (0, 2)
    assert "sessions from" not in shown(made)["card"]  # the whole range is no filter: undated turns stay


def test_a_window_and_its_tokens(made, desk):
    part = desks.built(desk, "one")["one"]
    assert sorted(offered(made, "window")) == list(range(len(part["chunks"])))
    before = made.shown["lines"].value
    made.choose["window"].value = 5
    assert "one_chunk_5" in shown(made)["window"] and "window 5 of" in made.shown["close_up"].value
    made.choose["tokens"].value = True
    assert 'class="rr-token"' in made.shown["window"].value and made.shown["lines"].value == before


def test_another_conversation_has_its_own_questions_and_days(made):
    made.choose["search"].value = "tram"
    made.choose["conversation"].value = "two"
    assert made.choose["search"].value == "" and offered(made, "question") == [] and not shown(made)
    assert made.choose["dates"].disabled
    made.choose["typed"].value = "Who asks?"
    assert "Who asks?" in shown(made)["card"]
    made.choose["conversation"].value = "one"
    assert len(offered(made, "question")) == 5 and made.message.value == ""
    assert "What about the kiln 1?" in shown(made)["card"]
    assert not made.choose["dates"].disabled and made.choose["dates"].index == (0, 2)


def test_what_cannot_be_shown_is_one_line_and_passes(made):
    made.choose["method"].value = "hyde|rerank"
    assert "hyde: the cache has nothing" in Page(made.message.value).text and not shown(made)
    assert 'role="status"' in made.message.value
    made.choose["method"].value = "dense"
    assert made.message.value == "" and "dense" in shown(made)["card"]
    made.choose["other"].value = "rewrite"
    assert "rewrite: the cache has nothing" in made.message.value
    made.choose["other"].value = inspector.NONE
    made.choose["question"].value = "one#1"
    assert "Where is the tram?" in shown(made)["card"]


def test_a_change_computes_nothing_that_was_known(made, computed, monkeypatch):
    for name in desks.PLAIN:
        made.choose["method"].value = name
    for question in offered(made, "question"):
        made.choose["question"].value = question
        made.choose["method"].value = "zsum"  # scores of late interaction are made once a question
        made.choose["method"].value = "rrf+maxsim"
    computed.clear()
    monkeypatch.setattr(retrieval, "dense", None)
    monkeypatch.setattr(retrieval, "bm25", None)
    for question in offered(made, "question"):
        made.choose["question"].value = question
        for name in desks.PLAIN:
            made.choose["method"].value = name
        made.choose["dates"].index = (0, 1)
        made.choose["dates"].index = (0, 2)
        made.choose["stage"].value = "handed over"
        made.choose["stage"].value = inspector.ANY
    assert computed == [] and made.message.value == ""


def test_each_change_is_followed_once(made, monkeypatch):
    drawn = []
    strip = views.strip
    monkeypatch.setattr(views, "strip", lambda *a: drawn.append(1) or strip(*a))
    for change in (("question", "one#3"), ("method", "bm25"), ("typed", "rain"), ("conversation", "two")):
        drawn.clear()
        made.choose[change[0]].value = change[1]
        assert len(drawn) == (change[0] != "conversation")  # that one has no question to show


@pytest.mark.parametrize("text", HOSTILE)
def test_no_typed_text_becomes_markup(made, text):
    made.choose["other"].value = "dense"
    made.choose["typed"].value = text
    for view in made.shown.values():
        read = Page(view.value)
        assert {tag for tag, _ in read.elements} <= SAFE | {"div", "h3"}
        assert not any(name.startswith("on") or name in ("href", "src") for _, a in read.elements for name in a)
    assert text.replace("\x07", "\ufffd")[-8:] in shown(made)["card"]


def test_lists_keep_their_reading_direction(made):
    labels = [label for label, _ in made.choose["question"].options]
    assert inspector._line("\u202eabc\u2066 def\n ghi") == "abc def ghi"
    assert any("<script>" in label for label in labels)  # an option is text


def test_every_widget_that_chooses_says_what_it_is(made):
    names = [w for w in widgets(made.box) if hasattr(w, "description") and type(w).__name__ != "HTML"]
    assert len(names) == len(made.choose) and all(w.description for w in names)
    assert [w.description for w in names][:3] == ["Conversation", "Method", "Compare with"]  # the order of the Tab key


def test_it_begins_as_it_is_told(desk):
    def values(**options):
        box = inspector.panel(desk, **options)
        return {w.description: w for w in widgets(box) if getattr(w, "description", "")}

    told = values(conversation_id="one", question="one#3", method="bm25", other="dense", dates=("2024-05-01", None))
    assert told["Question"].value == "one#3" and told["Method"].value == "bm25" and told["Sessions"].index == (1, 2)
    assert values(question="Who sings?")["Or type one"].value == "Who sings?"
    assert values(conversation_id="two")["Question"].value is None


# ---------------------------------------------------------------------------------------------------------------- open


def test_two_lines_open_a_file(tmp_path, computed, monkeypatch):
    monkeypatch.delenv("RAWRAG_RUN_FOLDER", raising=False)
    path = tmp_path / "my.json"
    path.write_text(json.dumps(talk()), encoding="utf-8")
    box = inspector.open(str(path), size=60, overlap=10)
    assert any("What about the kiln 1?" in getattr(w, "value", "") for w in widgets(box) if type(w).__name__ == "HTML")
    with pytest.raises(BadInput, match="^colour: no setting of the inspector; there are size, overlap"):
        inspector.open(str(path), colour="red")
    with pytest.raises(BadInput, match="no such data set or file"):
        inspector.open(str(tmp_path / "none.json"))


def test_two_lines_open_subtitles(computed, monkeypatch):
    monkeypatch.delenv("RAWRAG_RUN_FOLDER", raising=False)
    box = inspector.open(str(paths.ROOT / "data/sample/lectures/tides_en.srt"))
    chooses = {w.description: w for w in widgets(box) if getattr(w, "description", "")}
    assert chooses["Sessions"].disabled and chooses["Question"].options == ()
    chooses["Or type one"].value = "Why is high water late?"
    views_ = "".join(w.value for w in widgets(box) if type(w).__name__ == "HTML")
    read = Page(views_).text
    assert "typed by hand" in read and "Memory 1 (chunk=" in read and "None" not in read
    assert re.search(r"\[\d\d:\d\d~\d\d:\d\d\] ", read)  # times where other turns have a date
    assert len(chooses["Window"].options) > 3 and "rank 1: window" in chooses["Window"].options[0][0]
    assert "(S1), 00:0" in read and "(S1), :" not in read and "session 1" not in read  # tooltips and the axis too


def test_a_headless_run_shows_the_static_views(tmp_path, computed, monkeypatch):
    path = tmp_path / "my.json"
    path.write_text(json.dumps(talk()), encoding="utf-8")
    monkeypatch.setenv("RAWRAG_RUN_FOLDER", str(tmp_path))
    bundles = []
    monkeypatch.setattr("IPython.display.display", lambda what, **options: bundles.append((what, options)))
    assert inspector.open(str(path)) is None
    pictures = [what for what, options in bundles if options == {"raw": True}]
    assert len(pictures) == 3 and all(p["image/svg+xml"].startswith("<svg") for p in pictures)
    assert all('viewBox="0 0 1000 ' in p["image/svg+xml"].partition(">")[0] for p in pictures)  # shrinks, is not cut
    texts = "".join(what.data for what, options in bundles if not options)
    assert "What about the kiln 1?" in texts and "<h3>The conversation</h3>" in texts


def test_a_page_of_a_conversation_without_questions(desk):
    with pytest.raises(BadInput, match="two: no question about it in the data set; type one"):
        inspector.first_question(desk, "two")
    assert inspector.page(desk, "two") == {"card": "<p>two has no questions: give one as a text.</p>"}
    assert "typed by hand" in inspector.page(desk, "two", "Who asks?")["card"]
    none = inspector.page(desk, "one", dates=("2030-01-01", None))
    assert set(none) == {"card", "strip"} and "No window touches" in none["card"]


def test_undated_turns_have_no_slider(desk):
    talks = [
        dataclasses.replace(c, turns=tuple(dataclasses.replace(t, session_date=None, timestamp=None) for t in c.turns))
        for c in desk.corpus.conversations
    ]
    undated = dataclasses.replace(desk, corpus=dataclasses.replace(desk.corpus, conversations=talks), known={})
    box = inspector.panel(undated)
    (slider,) = [w for w in widgets(box) if getattr(w, "description", "") == "Sessions"]
    assert slider.disabled and desks.days(undated, "one") == []


@pytest.mark.skipif("RAWRAG_LOCOMO" not in os.environ, reason="set RAWRAG_LOCOMO to look at its longest conversation")
def test_the_page_of_locomos_longest_conversation_is_small(computed):
    desk = desks.prepare("locomo")
    longest = max(desk.corpus.conversations, key=lambda c: len(c.turns))
    static = inspector.page(desk, longest.conversation_id, other="dense")
    assert sum(len(view.encode()) for view in static.values()) < 500_000
