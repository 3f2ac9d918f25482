"""Pictures of result tables: what is drawn, with and without intervals."""

import types

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest

from rawrag_utils import figures

METRIC = "recall@1000tok"


@pytest.fixture(params=[True, False], ids=["intervals", "none"])
def table(request):
    """A plain arm and two others in each of two pipelines; three categories and all."""
    half, rows = 0.05 if request.param else np.nan, []
    for ending, base in (("", "dense"), ("|rerank", "rrf")):
        for place, name in enumerate(("plain", "hyde", "router")):
            for category in ("temporal", "multi-hop", "all"):
                variant = base if name == "plain" else name + ending
                value = 0.5 + 0.1 * place
                row = {"variant": variant, "metric": METRIC, "category": category, "n": 30, "value": value}
                row |= {"ci_low": value - half, "ci_high": value + half, "baseline": None if name == "plain" else base}
                row |= {"delta": 0.1 * place, "delta_ci_low": 0.1 * place - half, "delta_ci_high": 0.1 * place + half}
                rows.append(row | {"p_holm": 0.01 if name == "hyde" else 0.5})
                for bill, amount in (("prompt_tokens", 100 * place), ("completion_tokens", 10 * place)):
                    rows.append({**row, "metric": bill, "value": amount})
    return pd.DataFrame(rows)


@pytest.fixture(autouse=True)
def closed():
    yield
    plt.close("all")


def test_differences_have_a_panel_a_baseline_and_fill_what_is_sure(table):
    figure = figures.differences(table, METRIC)
    assert [ax.get_title("left") for ax in figure.axes] == ["against dense (n = 30)", "against rrf (n = 30)"]
    for ax in figure.axes:
        assert [label.get_text().partition("|")[0] for label in ax.get_yticklabels()] == ["hyde", "router"]
        filled = [line.get_markerfacecolor() != "white" for line in ax.lines if line.get_marker() == "o"]
        assert filled == [True, False]
    assert ("no interval" in figure.axes[-1].get_xlabel()) == table["ci_low"].isna().all()


def test_categories_make_a_matrix_with_their_n(table):
    (ax,) = figures.by_category(table, METRIC).axes
    assert [label.get_text() for label in ax.get_xticklabels()] == ["temporal\nn = 30", "multi-hop\nn = 30"]
    assert [text.get_text() for text in ax.texts] == ["+0.100", "+0.100", "+0.200", "+0.200"] * 2


def test_a_sweep_has_a_line_a_series(table):
    series = {"dense": {0: "dense", 1: "hyde"}, "rerank": {0: "rrf", 1: "hyde|rerank"}}
    figure = figures.sweep(table, series, METRIC, "answers")
    (ax,) = figure.axes
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["dense", "rerank"]
    assert ax.get_xlabel() == "answers" and len(ax.containers) == 2


def test_prices_are_tokens_read_and_written(table):
    panels = {"dense": {"plain": "dense", "hyde": "hyde"}, "rerank": {"plain": "rrf", "hyde": "hyde|rerank"}}
    figure = figures.price(table, panels, METRIC)
    points = [line.get_xdata()[0] for line in figure.axes[0].lines if line.get_marker() in "os"]
    assert points == [0, 110] and [t.get_text() for t in figure.legends[0].get_texts()] == ["plain", "hyde"]


def test_stacked_bars_write_their_numbers():
    counts = pd.DataFrame({"factual": [3, 0], "conceptual": [1, 4]}, ["temporal", "multi-hop"])
    (ax,) = figures.stacked(counts, "questions").axes
    assert sorted(text.get_text() for text in ax.texts if text.get_text()) == ["1", "3", "4"]


def test_levels_are_points_by_category_with_all_last(table):
    figure = figures.levels(table, ["dense", "hyde", "router"], METRIC)
    (ax,) = figure.axes
    ticks = [label.get_text() for label in ax.get_xticklabels()]
    assert ticks == ["temporal\nn = 30", "multi-hop\nn = 30", "all\nn = 30"]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["dense", "hyde", "router"]
    values = [container.lines[0].get_ydata().tolist() for container in ax.containers]
    assert values == [[0.5] * 3, [0.6] * 3, [0.7] * 3]
    assert all(c.has_yerr == table["ci_low"].notna().all() for c in ax.containers)


def test_levels_take_arms_that_lack_a_category(table):
    fewer = table[~((table["variant"] == "hyde") & (table["category"] == "temporal"))]
    (ax,) = figures.levels(fewer, ["dense", "hyde"], METRIC).axes
    assert np.isnan(ax.containers[1].lines[0].get_ydata()[0]) and ax.get_ylim()[0] == 0


def spans(*ends):
    return [types.SimpleNamespace(start_ms=a, end_ms=b) for a, b in ends]


def test_merging_shows_cues_segments_and_gold_ranges_of_the_span():
    talk = (
        spans((0, 900), (1000, 4000), (9000, 12_000)),
        spans((0, 4000), (9000, 12_000)),
        [(1000, 4000), (60_000, 70_000)],
    )
    figure = figures.merging({"a": talk, "b": (*talk[:2], [])}, 0, 10_000)
    first, second = figure.axes
    assert [t.get_text() for t in first.get_yticklabels()] == ["gold ranges", "segments", "cues"]
    assert [t.get_text() for t in second.get_yticklabels()] == ["segments", "cues"]
    assert len(first.patches) == 3 + 2 + 1 and [t.get_text() for t in first.texts] == ["1"]  # 2 runs past the span
    assert first.get_xlim() == (0, 10) and first.get_title("left") == "a"


def test_a_curve_for_each_arm_and_a_panel_for_each_lecture():
    curves = {"zh": {"dense": [0.1, 0.5], "late": [0.4, 0.9]}, "en": {"dense": [0.2, 0.6], "late": [0.3, 0.8]}}
    figure = figures.over_seconds(curves, [60, 180], marks=[60])
    assert [ax.get_title("left") for ax in figure.axes] == ["zh", "en"]
    assert [line.get_ydata().tolist() for line in figure.axes[0].lines[:2]] == [[0.1, 0.5], [0.4, 0.9]]
    assert len(figure.axes[0].lines) == 3 and figure.axes[0].get_ylim() == (0, 1)


def test_a_confusion_matrix_has_its_numbers_in_it():
    counts = pd.DataFrame([[3, 0], [1, 2]], pd.Index(["factual", "open"], name="type"), ["factual", "open"])
    (ax,) = figures.confusion(counts, "said").axes
    assert [t.get_text() for t in ax.texts] == ["3", "0", "1", "2"] and ax.get_ylabel() == "type"
    assert [t.get_text() for t in ax.get_xticklabels()] == ["factual", "open"]
