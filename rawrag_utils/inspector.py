"""Look at one question: `inspector.open("my.json")`. Widgets only choose; `views` makes what they show.

Without anybody to click, in a headless run, the same views come as they are.
"""

import dataclasses
import html
import os
import re

from rawrag_utils import desk as desks
from rawrag_utils import evaluation, views
from rawrag_utils.desk import Settings, prepare
from rawrag_utils.paths import BadInput
from rawrag_utils.views import chunk_map, window_and_turns  # noqa: F401 (under the names that are relied on)

METHOD = "rrf+maxsim"
ALL, ANY, NONE = "all categories", "at any stage or none", "none"
SECTIONS = {  # the views in their order: heading and what to look for
    "card": ("The question", ""),
    "strip": ("The conversation", "Turns below, windows above; the darker a window, the higher its score."),
    "close_up": ("One window", "Dashed: an edge that cuts a turn. Hatched: what the reader gets beyond it."),
    "window": ("The same in words", ""),
    "lines": ("How the ranking moves", "Thick and with ▲: windows that hold evidence. Blue: kept."),
    "moved": ("Two methods side by side", ""),
    "compared": ("", ""),
    "context": ("What the reader gets", ""),
}


def open(dataset, profile="local", path=None, **settings):
    """Look into a data set: `sample`, `locomo`, or the path of a file of any known form.

    Returns widgets, which Jupyter shows when the call ends a cell; in a headless run the first question's static views
    are displayed. `settings` are those of `Settings`, by name. Raises `BadInput` as `corpus.load` does.
    """
    if unknown := set(settings) - set(Settings._fields):
        raise BadInput(f"{min(unknown)}: no setting of the inspector; there are {', '.join(Settings._fields)}")
    desk = prepare(dataset, profile, Settings(**settings), path)
    if not headless():
        return panel(desk)
    for name, view in page(desk).items():
        show(view, SECTIONS[name][0])
    return None


def headless():
    """Whether the runner executes the notebook: nobody is there to click, and widgets would show as nothing."""
    return "RAWRAG_RUN_FOLDER" in os.environ


def show(view, heading=""):
    """Display a view: SVG as a picture, which code hosts show where they drop it from HTML, all else as HTML."""
    from IPython.display import HTML, display

    if heading:
        display(HTML(f"<h3>{heading}</h3>"))
    if not view.startswith("<svg"):
        display(HTML(view))
        return
    said = html.unescape(re.search('aria-label="([^"]*)"', view)[1])  # where no picture can be shown
    # A picture shrinks as a whole into the room there is; without a view box it would be cut off on the right.
    view = re.sub('width="([0-9]+)" height="([0-9]+)"', r'viewBox="0 0 \1 \2" width="100%"', view, count=1)
    display({"image/svg+xml": view, "text/plain": said}, raw=True)


def first_question(desk, conversation_id, question=""):
    """The question to begin with: the one of that id or, typed by hand, that text; else the conversation's first.

    Raises `BadInput` where the conversation has no question and none is given.
    """
    there = desks.questions(desk, conversation_id)
    if question:
        return next((q for q in there if q.question_id == question), desks.typed(conversation_id, question))
    if not there:
        raise BadInput(f"{conversation_id}: no question about it in the data set; type one (QUESTION)")
    return next((q for q in there if q.evidence), there[0])


def page(desk, conversation_id=None, question="", method=METHOD, other=NONE, dates=None, chosen=None):
    """Every static view of one question: {name of `SECTIONS`: HTML or SVG}, those left out that there is nothing for.

    `chosen` is the window that is looked at, the best one where it is None.
    """
    conversation_id = conversation_id or desk.corpus.conversations[0].conversation_id
    if not (question or desks.questions(desk, conversation_id)):
        return {"card": f"<p>{views.clean(conversation_id)} has no questions: give one as a text.</p>"}
    found = desks.find(desk, first_question(desk, conversation_id, question), method, dates)
    made = {"card": views.card(desk, found), "strip": views.strip(desk, found, _chosen(found, chosen))}
    if not found.steps:
        return made
    made |= _windows(desk, found, _chosen(found, chosen))
    made["lines"] = views.moving_lines(desk, found)
    if other != NONE:
        second = desks.find(desk, found.question, other, dates)
        made |= {"moved": views.moved(desk, found, second), "compared": views.side_by_side(desk, found, second)}
    return made | {"context": views.context(desk, found)}


def _chosen(found, chosen):
    return chosen if chosen is not None or not found.steps else next(iter(views.places(found.ranking)))


def _windows(desk, found, chosen, tokens=False):
    return {
        "close_up": views.close_up(desk, found, chosen),
        "window": views.window(desk, found, chosen, tokens),
    }


# ------------------------------------------------------------------------------------------------------------- widgets


@dataclasses.dataclass
class Panel:
    """The widgets, what they look at, and whether a change is under way (what follows from it is no change)."""

    desk: object
    choose: dict
    shown: dict
    days: object  # the range of sessions in words
    message: object
    found: object = None
    busy: bool = False


def panel(desk, conversation_id=None, question="", method=METHOD, other=NONE, dates=None):
    """Widgets over a `Desk`: a box to display. Arguments say what it begins with, as those of `page`."""
    import ipywidgets as widgets

    conversation_id = conversation_id or desk.corpus.conversations[0].conversation_id
    choose, shown = _controls(desk, conversation_id, method, other), {n: widgets.HTML() for n in SECTIONS}
    made = Panel(desk, choose, shown, widgets.HTML(), widgets.HTML())
    _fill_conversation(made, dates)
    there = [value for _, value in choose["question"].options]
    if question in there:
        choose["question"].value = question
    elif question:
        choose["typed"].value = question
    elif evidence := [q.question_id for q in desks.questions(desk, conversation_id) if q.evidence]:
        choose["question"].value = evidence[0]
    _look(made)
    for name, follow in _FOLLOW.items():
        choose[name].observe(lambda _, follow=follow: _on_change(made, follow), "value")
    return _arranged(made)


def _controls(desk, conversation_id, method, other):
    """Every widget that chooses, by name; what depends on the conversation is filled in later."""
    import ipywidgets as widgets

    options = {"style": {"description_width": "7.5em"}, "layout": widgets.Layout(width="auto")}
    enter = {"continuous_update": False, **options}
    talks = [
        (f"{c.conversation_id} ({c.source_id}), {len(c.turns)} turns", c.conversation_id)
        for c in desk.corpus.conversations
    ]
    categories = [ALL, *dict.fromkeys(q.category for q in desk.corpus.questions)]
    names, stages = list(desks.methods(desk)), [ANY, *evaluation.EVIDENCE_STAGES]
    return {
        "conversation": widgets.Dropdown(options=talks, value=conversation_id, description="Conversation", **options),
        "method": widgets.Dropdown(options=names, value=method, description="Method", **options),
        "other": widgets.Dropdown(options=[NONE, *names], value=other, description="Compare with", **options),
        "search": widgets.Text(description="Search", placeholder="words of the question, then Enter", **enter),
        "category": widgets.Dropdown(options=categories, description="Category", **options),
        "stage": widgets.Dropdown(options=stages, description="Evidence lost", **options),
        "question": widgets.Dropdown(description="Question", **options),
        "typed": widgets.Text(description="Or type one", placeholder="your own question, then Enter", **enter),
        "dates": widgets.SelectionRangeSlider(
            options=["no dates"],
            description="Sessions",
            tooltip="From the first to the last session that is searched",  # without one the label's title is "null"
            readout=False,
            **enter,
        ),
        "window": widgets.Dropdown(description="Window", **options),
        "tokens": widgets.Checkbox(description="Token boundaries", indent=True, **options),
    }


def _arranged(panel):
    """One box: what chooses above, in as many columns as there is room for, and the views below with their headings."""
    import ipywidgets as widgets

    grid = widgets.Layout(
        grid_template_columns="repeat(auto-fit, minmax(21em, 1fr))", grid_gap="2px 12px", width="100%"
    )
    wide = widgets.Layout(width="100%", display="flex", flex_flow="column", align_items="stretch")
    c, s = panel.choose, panel.shown
    top = [c[n] for n in ("conversation", "method", "other", "search", "category", "stage")]
    rows = [widgets.GridBox(top, layout=grid), c["question"], c["typed"]]
    rows += [widgets.GridBox([c["dates"], panel.days], layout=grid), panel.message]
    rows += [s["card"], s["strip"], widgets.GridBox([c["window"], c["tokens"]], layout=grid)]
    rows += [s[n] for n in ("close_up", "window", "lines", "moved", "compared", "context")]
    return widgets.VBox(rows, layout=wide)


def _on_change(panel, follow):
    """Do what follows from a change, once; what cannot be done is said in one line, and no view stays."""
    if panel.busy:
        return
    panel.busy = True
    try:
        _say(panel, "")
        follow(panel)
    except BadInput as error:
        _clear(panel)
        _say(panel, str(error))
    finally:
        panel.busy = False


def _say(panel, text):
    panel.message.value = f'<p role="status" class="rr-message">{views.clean(text)}</p>' if text else ""


def _clear(panel):
    for view in panel.shown.values():
        view.value = ""


def _fill_conversation(panel, dates=None):
    """What the widgets offer for the chosen conversation: its questions and its days."""
    days = desks.days(panel.desk, panel.choose["conversation"].value)
    slider = panel.choose["dates"]
    slider.options = days or ["no dates"]
    first, last = dates or (None, None)
    inside = [i for i, day in enumerate(days) if (first or day) <= day <= (last or day)]
    slider.index = (inside[0], inside[-1]) if inside else (0, max(0, len(days) - 1))
    slider.disabled = len(days) < 2
    _filter(panel)


def _filter(panel):
    """Offer the questions that search, category and stage leave, keeping the present one where it is among them."""
    c, talk = panel.choose, panel.choose["conversation"].value
    every = desks.questions(panel.desk, talk)
    words = c["search"].value.casefold().split()
    left = [q for q in every if c["category"].value in (ALL, q.category) and all(w in q.text.casefold() for w in words)]
    if c["stage"].value != ANY:
        stages = desks.stages(panel.desk, talk, c["method"].value)
        left = [q for q in left if stages.get(q.question_id) == c["stage"].value]
    before = c["question"].value
    c["question"].options = [(f"{_line(q.text)} ({q.question_id})", q.question_id) for q in left]
    names = [q.question_id for q in left]
    c["question"].value = before if before in names else next(iter(names), None)
    _say(panel, f"{len(left)} of {len(every)} questions" if len(left) < len(every) else "")


def _line(text, length=150):
    """A text as one line of a list, without marks that turn its reading direction."""
    text = " ".join(
        "".join(c for c in text if c not in "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069").split()
    )
    return text if len(text) <= length else text[: length - 1] + "…"


def _look(panel):
    """Show everything about what is chosen now."""
    c, desk = panel.choose, panel.desk
    asked = _asked(panel)
    chosen = [str(day) for day in c["dates"].value]
    panel.days.value = f'<span class="rr-days" role="status">{" to ".join(dict.fromkeys(chosen))}</span>'
    if asked is None:
        _clear(panel)
        return
    panel.found = desks.find(desk, asked, c["method"].value, _dates(panel))
    _offer_windows(panel)
    _put(panel, "card", views.card(desk, panel.found))
    _put(panel, "lines", views.moving_lines(desk, panel.found))
    _put(panel, "context", views.context(desk, panel.found, copyable=True))
    _look_at_window(panel)
    _compare(panel)


def _asked(panel):
    """The question that is asked: the typed one where there is one; None where there is none at all."""
    c, talk = panel.choose, panel.choose["conversation"].value
    if c["typed"].value.strip():
        return desks.typed(talk, c["typed"].value)
    return next((q for q in desks.questions(panel.desk, talk) if q.question_id == c["question"].value), None)


def _dates(panel):
    """The chosen range of sessions; None for all, so that undated turns stay."""
    slider = panel.choose["dates"]
    whole = slider.disabled or slider.index == (0, len(slider.options) - 1)
    return None if whole else tuple(slider.value)


def _offer_windows(panel):
    found, desk, pick = panel.found, panel.desk, panel.choose["window"]
    ranked = views.places(found.ranking) if found.steps else {}
    part = desks.built(desk, found.question.conversation_id)[found.question.conversation_id]
    rest = [c["chunk_index"] for c in part["chunks"] if c["chunk_index"] not in ranked]
    names = [(f"rank {rank}: window {w}, {views.turns_of(part, w)}", w) for w, (rank, _) in ranked.items()]
    pick.options = names + [(f"no rank: window {w}, {views.turns_of(part, w)}", w) for w in rest]
    pick.index = 0


def _look_at_window(panel):
    found, c = panel.found, panel.choose
    if found is None:
        return
    _put(panel, "strip", views.strip(panel.desk, found, c["window"].value))
    for name, view in _windows(panel.desk, found, c["window"].value, c["tokens"].value).items():
        _put(panel, name, view)


def _compare(panel):
    found, other = panel.found, panel.choose["other"].value
    panel.shown["moved"].value = panel.shown["compared"].value = ""
    if found is not None and other != NONE:
        second = desks.find(panel.desk, found.question, other, found.dates)
        _put(panel, "moved", views.moved(panel.desk, found, second))
        _put(panel, "compared", views.side_by_side(panel.desk, found, second))


def _put(panel, name, view):
    heading, hint = SECTIONS[name]
    head = (f"<h3>{heading}</h3>" if heading else "") + (f'<p class="rr-soft">{hint}</p>' if hint else "")
    panel.shown[name].value = f'<div class="rr-view {views.PLAIN}">{head}{view}</div>'


def _choose_question(panel):
    panel.choose["typed"].value = ""  # who picks from the list means the list
    _look(panel)


def _type(panel):
    _say(panel, "Searching; the first typed question takes some seconds, in which the encoder is loaded.")
    _look(panel)
    _say(panel, "")


def _choose_conversation(panel):
    panel.choose["search"].value, panel.choose["typed"].value = "", ""
    _fill_conversation(panel)
    _look(panel)


def _choose_method(panel):
    if panel.choose["stage"].value != ANY:  # the stage is lost under this method
        _filter(panel)
    _look(panel)


def _choose_filter(panel):
    before = panel.choose["question"].value
    _filter(panel)
    if panel.choose["question"].value != before:
        _look(panel)


_FOLLOW = {
    "conversation": _choose_conversation,
    "method": _choose_method,
    "other": _compare,
    "search": _choose_filter,
    "category": _choose_filter,
    "stage": _choose_filter,
    "question": _choose_question,
    "typed": _type,
    "dates": _look,
    "window": _look_at_window,
    "tokens": _look_at_window,
}
