"""Pictures of result tables: differences with their intervals, differences by category, sweeps; lectures over time.

Most take tidy rows (see `results.COLUMNS`). Each returns a matplotlib figure that is not shown yet. Colours are Okabe
and Ito's, which colour-blind readers can tell apart.
"""

import numpy as np

SHADES = ("#000000", "#56B4E9", "#009E73", "#0072B2", "#E69F00", "#CC79A7", "#D55E00", "#777777", "#F0E442", "#BBBBBB")
BLUE, ORANGE, GREEN, GREY = "#0072B2", "#D55E00", "#009E73", "#777777"


def differences(table, metric):
    """Each arm's difference from its baseline with its 95 % interval, a panel a baseline; filled where p_holm < .05."""
    import matplotlib.pyplot as plt

    rows = table[(table["metric"] == metric) & (table["category"] == "all") & table["baseline"].notna()]
    panels = [group for _, group in rows.groupby("baseline", sort=False)]
    figure, axes = plt.subplots(
        len(panels),
        figsize=(7, 1 + 0.28 * len(rows) + 0.5 * len(panels)),
        height_ratios=[len(group) + 1 for group in panels],
        sharex=True,
        layout="constrained",
        squeeze=False,
    )
    for ax, group in zip(axes[:, 0], panels, strict=True):
        for place, row in enumerate(group.to_dict("records")):
            sure = row["p_holm"] < 0.05
            colour = GREY if not sure else GREEN if row["delta"] > 0 else ORANGE
            if np.isfinite(row["delta_ci_low"]):
                ax.plot([row["delta_ci_low"], row["delta_ci_high"]], [place, place], color=colour, lw=1.5)
            ax.plot(row["delta"], place, "o", color=colour, ms=6, mfc=colour if sure else "white")
        ax.axvline(0, color="black", lw=0.8)
        ax.set(yticks=range(len(group)), yticklabels=group["variant"], ylim=(len(group) - 0.4, -0.6))
        counts = sorted({int(n) for n in group["n"]})
        count = f"{counts[0]} to {counts[-1]}" if len(counts) > 1 else counts[0]
        ax.set_title(f"against {group['baseline'].iloc[0]} (n = {count})", loc="left", fontsize=10)
        ax.tick_params(axis="y", length=0)
        ax.spines[["top", "right"]].set_visible(False)
    note = "" if rows["delta_ci_low"].notna().any() else " (fewer than five conversations: no interval)"
    axes[-1, 0].xaxis.set_major_locator(plt.MaxNLocator(6))
    axes[-1, 0].set_xlabel(f"difference in {metric}{note}")
    return figure


def by_category(table, metric):
    """Differences from the baseline as a matrix: a row an arm, a column a category with its n, blue where it helps.

    Bold are those whose own interval excludes 0, not adjusted for their number.
    """
    import matplotlib.pyplot as plt

    rows = table[(table["metric"] == metric) & table["baseline"].notna() & ~table["category"].str.startswith("all")]
    counts = rows.groupby("category", sort=False)["n"].max()
    values = rows.pivot(index="variant", columns="category", values="delta")
    values = values.loc[rows["variant"].unique(), counts.index]
    rows = rows.assign(sure=rows["delta_ci_low"] * rows["delta_ci_high"] > 0)
    sure = rows.pivot(index="variant", columns="category", values="sure").loc[values.index, values.columns].to_numpy()
    figure, ax = plt.subplots(figsize=(3 + 1.1 * len(counts), 1.2 + 0.3 * len(values)), layout="constrained")
    limit = max(np.abs(values.to_numpy()).max(), 0.05)
    ax.imshow(values, cmap="RdBu", vmin=-limit, vmax=limit, aspect="auto")
    for (y, x), value in np.ndenumerate(values.to_numpy()):
        colour = "white" if abs(value) > 0.7 * limit else "black"
        weight = "bold" if sure[y, x] else "normal"
        ax.text(x, y, f"{value:+.3f}", ha="center", va="center", fontsize=8, color=colour, weight=weight)
    ax.set_yticks(range(len(values)), values.index, fontsize=9)
    ax.set_xticks(range(len(counts)), [f"{name}\nn = {n}" for name, n in counts.items()], fontsize=9)
    ax.tick_params(length=0)
    ax.set_title(f"difference in {metric} from the plain question", loc="left", fontsize=10)
    return figure


def levels(table, variants, metric):
    """Values by category, a point an arm with its 95 % interval, `all` last; n under each category's name."""
    import matplotlib.pyplot as plt

    rows = table[(table["metric"] == metric) & table["variant"].isin(variants)]
    rows = rows[rows["category"] != "all+adversarial"]
    counts = rows.groupby("category", sort=False)["n"].max()
    names = [*(c for c in counts.index if c != "all"), "all"]
    figure, ax = plt.subplots(figsize=(2 + 1.3 * len(names), 3.4), layout="constrained")
    for place, (variant, marker) in enumerate(zip(variants, "os^DvP*", strict=False)):
        some = rows[rows["variant"] == variant].set_index("category").reindex(names)
        x = np.arange(len(names)) + 0.13 * (place - (len(variants) - 1) / 2)
        spread = np.abs(some[["ci_low", "ci_high"]].to_numpy(float).T - some["value"].to_numpy(float))
        bars = spread if np.isfinite(spread).any() else None
        ax.errorbar(x, some["value"], yerr=bars, fmt=marker, color=SHADES[1 + place], ms=6, lw=1.2, label=variant)
    ax.set_xticks(range(len(names)), [f"{name}\nn = {counts[name]}" for name in names], fontsize=9)
    ax.set(ylabel=metric, ylim=(0, None))
    ax.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside upper center", ncols=min(len(variants), 3), frameon=False, fontsize=9)
    return figure


def sweep(table, series, metric, label):
    """Values over a number: `series` maps a legend to {number: variant}; intervals as bars where there are any."""
    import matplotlib.pyplot as plt

    rows = table[(table["metric"] == metric) & (table["category"] == "all")].set_index("variant")
    figure, ax = plt.subplots(figsize=(6, 3.2), layout="constrained")
    for shift, (legend, points), colour in zip(range(len(series)), series.items(), (BLUE, ORANGE, GREEN), strict=False):
        some = rows.loc[list(points.values())]
        x = np.array(list(points)) + 0.06 * (shift - (len(series) - 1) / 2)
        spread = np.abs(some[["ci_low", "ci_high"]].to_numpy().T - some["value"].to_numpy())
        bars = spread if np.isfinite(spread).all() else None
        ax.errorbar(x, some["value"], yerr=bars, fmt="o-", color=colour, label=legend, capsize=3, lw=1.5)
    ax.set(xlabel=label, ylabel=metric, xticks=sorted({n for points in series.values() for n in points}))
    ax.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside upper center", ncols=len(series), frameon=False)
    return figure


def stacked(counts, label):
    """A bar for each row of `counts`, split by its columns, with the numbers written in."""
    import matplotlib.pyplot as plt

    figure, ax = plt.subplots(figsize=(7, 1.1 + 0.4 * len(counts)), layout="constrained")
    left = np.zeros(len(counts))
    for name, colour in zip(counts, SHADES[1:], strict=False):
        bars = ax.barh(counts.index, counts[name], left=left, color=colour, label=name)
        ax.bar_label(
            bars, [v if v > 0.03 * counts.sum(axis=1).max() else "" for v in counts[name]], label_type="center"
        )
        left += counts[name].to_numpy()
    ax.invert_yaxis()
    ax.set_xlabel(label)
    ax.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside upper center", ncols=len(counts.columns), frameon=False, fontsize=9)
    return figure


def price(table, panels, metric):
    """Values with intervals against tokens a question, read and written; `panels` maps a title to {label: variant}."""
    import matplotlib.pyplot as plt

    rows = table[table["category"] == "all"].pivot(index="variant", columns="metric", values="value")
    spread = table[(table["category"] == "all") & (table["metric"] == metric)].set_index("variant")
    figure, axes = plt.subplots(1, len(panels), figsize=(4.6 * len(panels), 3.4), layout="constrained")
    for ax, (title, variants) in zip(np.atleast_1d(axes), panels.items(), strict=True):
        for (label, name), marker, shade in zip(variants.items(), "osv^DPX*<>", SHADES, strict=False):
            x, y = rows.loc[name, "prompt_tokens"] + rows.loc[name, "completion_tokens"], rows.loc[name, metric]
            low, high = spread.loc[name, ["ci_low", "ci_high"]]
            bars = [[y - low], [high - y]] if np.isfinite(low) else None
            ax.errorbar(x, y, yerr=bars, fmt=marker, color=shade, ms=8, lw=1, capsize=2, label=label)
        ax.set(title=title, xlabel="language model tokens a question", ylabel=metric)
        ax.margins(x=0.12, y=0.15)
        ax.spines[["top", "right"]].set_visible(False)
    handles, labels = np.atleast_1d(axes)[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right upper", frameon=False)
    return figure


def merging(lectures, start_ms, end_ms):
    """Cues and the segments made of them on a time axis, a panel a lecture: {title: (cues, segments, gold ranges)}.

    Shown is what lies between `start_ms` and `end_ms`. Both rows alternate in shade, so that a border shows where no
    time lies between neighbours; a segment has its number. Gold ranges, where there are any, are the row below.
    """
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(
        len(lectures), figsize=(10, 0.5 + 1.6 * len(lectures)), sharex=True, layout="constrained", squeeze=False
    )
    for ax, (title, (cues, segments, gold)) in zip(axes[:, 0], lectures.items(), strict=True):
        for level, spans, shades in ((2, cues, ("#BBBBBB", "#DDDDDD")), (1, segments, (BLUE, "#56B4E9"))):
            for place, some in enumerate(spans):
                if some.start_ms < end_ms and some.end_ms > start_ms:
                    a, b = some.start_ms / 1000, some.end_ms / 1000
                    ax.barh(level, b - a, left=a, height=0.7, color=shades[place % 2], edgecolor="white", lw=0.6)
                    if level == 1 and start_ms <= some.start_ms and some.end_ms <= end_ms:
                        shade = "white" if place % 2 == 0 else "black"
                        ax.text((a + b) / 2, level, place + 1, ha="center", va="center", fontsize=7, color=shade)
        for a, b in gold:
            if a < end_ms and b > start_ms:
                ax.barh(0, (b - a) / 1000, left=a / 1000, height=0.35, color=ORANGE, edgecolor="white", lw=0.6)
        rows = ["gold ranges", "segments", "cues"] if gold else ["segments", "cues"]
        ax.set_yticks(range(3 - len(rows), 3), rows, fontsize=9)
        ax.set(xlim=(start_ms / 1000, end_ms / 1000), ylim=(2.5 - len(rows), 2.6))
        ax.set_title(title, loc="left", fontsize=10)
        ax.tick_params(axis="y", length=0)
        ax.spines[["top", "right", "left"]].set_visible(False)
    axes[-1, 0].set_xlabel("second of the lecture")
    return figure


def over_seconds(curves, seconds, marks=()):
    """Recall over the seconds handed over, a panel a lecture: {title: {arm: values}}; vertical lines at `marks`."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(
        1, len(curves), figsize=(1.5 + 4.2 * len(curves), 3.6), sharey=True, layout="constrained", squeeze=False
    )
    for ax, (title, arms) in zip(axes[0], curves.items(), strict=True):
        for (name, values), shade, marker in zip(arms.items(), SHADES, "osv^DPX*<>", strict=False):
            ax.plot(seconds, values, marker=marker, ms=4, lw=1.3, color=shade, label=name)
        for mark in marks:
            ax.axvline(mark, color=GREY, lw=0.8, ls=":")
        ax.set(xlabel="seconds of lecture handed over", ylim=(0, 1), xlim=(0, None))
        ax.set_title(title, loc="left", fontsize=10)
        ax.spines[["top", "right"]].set_visible(False)
    axes[0, 0].set_ylabel("share of gold ranges found")
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right upper", frameon=False, fontsize=9)
    return figure


def confusion(counts, label):
    """Counts as a matrix with numbers, darker where there are more; rows are what is, columns what was said."""
    import matplotlib.pyplot as plt

    figure, ax = plt.subplots(figsize=(2.2 + 0.9 * counts.shape[1], 1.2 + 0.45 * counts.shape[0]), layout="constrained")
    ax.imshow(counts, cmap="Blues", aspect="auto", vmin=0)
    for (y, x), value in np.ndenumerate(counts.to_numpy()):
        colour = "white" if value > 0.6 * counts.to_numpy().max() else "black"
        ax.text(x, y, value, ha="center", va="center", fontsize=9, color=colour)
    ax.set_yticks(range(counts.shape[0]), counts.index, fontsize=9)
    ax.set_xticks(range(counts.shape[1]), counts.columns, fontsize=9)
    ax.set(xlabel=label, ylabel=counts.index.name)
    ax.tick_params(length=0)
    return figure
