"""The tables and pictures of benchmarks/README.md, from the files under results/benchmarks/; no number is typed."""

import re

import numpy as np
import pandas as pd

from benchmarks import growth
from benchmarks.ratios import POOL
from rawrag_utils import figures, paths, report, results
from rawrag_utils.paths import BadInput

FOLDER = paths.ROOT / "results" / "benchmarks"
PAGE = paths.ROOT / "benchmarks" / "README.md"
TURNS = 10**9  # of the corpus that is worked out on paper
ACCELERATOR = 1e14  # floating-point operations a second that one of them sustains, an assumption


def read(part):
    """The rows that `make bench` left for a part. Raises `BadInput` where there are none."""
    file = FOLDER / f"{part}.csv"
    if not file.is_file():
        raise BadInput(f"{paths.relative(file)}: not there; make it with make bench ARGS='--only {part}'")
    return pd.read_csv(file, float_precision="round_trip")


def short(value, digits=3):
    """A number to so many significant digits, with separators: 1,234 or 0.0123.

    >>> short(1234.5), short(0.01234), short(3.0)
    ('1,230', '0.0123', '3')
    """
    rounded = float(f"{value:.{digits}g}")
    return f"{rounded:,.0f}" if abs(rounded) >= 10 ** (digits - 1) or rounded == int(rounded) else f"{rounded:g}"


def large(value):
    """A large number in words that can be read.

    >>> large(193_301_000), large(4.8e10), large(1.18e18)
    ('193 million', '48 billion', '1.18 · 10^18')
    """
    if value >= 1e12:
        power = int(np.floor(np.log10(value)))
        return f"{short(value / 10**power)} · 10^{power}"
    return f"{short(value / 1e9)} billion" if value >= 1e9 else f"{short(value / 1e6)} million"


def seconds(value):
    """A time in the unit that fits.

    >>> seconds(0.0123), seconds(12.3), seconds(7200), seconds(1e6)
    ('12.3 ms', '12.3 s', '2 h', '11.6 days')
    """
    for size, unit in ((86400 * 3, "days"), (3600, "h"), (600, "min")):
        if value >= size:
            return f"{short(value / (86400 if unit == 'days' else 3600 if unit == 'h' else 60))} {unit}"
    return f"{short(value)} s" if value >= 1 else f"{short(value * 1e3)} ms"


# -------------------------------------------------------------------------------------------------------------- tables


def machine():
    record = results.read_run(FOLDER / "ratios.run.json")
    words, device, packages = record["parameters"]["machine"], record["device"], record["packages"]
    limits = read("limits").set_index("name")["value"]
    found = {
        "processor": f"{words['processor']}, {words['cores']} cores, {device['cpu_capability']}",
        "memory": f"{words['memory_gb']} GB, read at {short(limits['memory_bytes_per_s'] / 1e9)} GB a second",
        "disk": f"written at {short(limits['disk_bytes_per_s'] / 1e9)} GB a second",
        "system": words["system"],
        "PyTorch": f"{packages['torch']}, {device['threads']} threads",
    }
    for name in ("float32", "bfloat16"):
        found[f"products of matrices, {name}"] = f"{large(limits[f'flops_{name}'])} operations a second"
    return pd.Series(found, name="here").to_frame()


def ratios(part="ratios"):
    rows = read(part)
    spread = [f"{short(a)} to {short(b)}" for a, b in zip(rows["ratio_low"], rows["ratio_high"], strict=True)]
    return pd.DataFrame(
        {
            "ours": rows["seconds"].map(seconds),
            "baseline": rows["baseline"],
            "theirs": rows["baseline_seconds"].map(seconds),
            "ratio": rows["ratio"].map(short),
            "in each turn": spread,
            "wanted": rows["bound"].fillna(""),
        }
    ).set_index(rows["piece"].rename("piece"))


def runs():
    return ratios("runs").drop(columns=["in each turn", "wanted"])


def grown():
    """A row a stage: seconds at each size, the exponent e of time ~ size^e, memory that the stage added at 1 and 8."""
    found = {}
    for stage, rows in read("growth").groupby("stage", sort=False):
        taken = rows["seconds"].to_numpy()
        added = (rows["bytes_peak"] - rows["bytes_before"]).to_numpy() / 1e6
        found[stage] = {f"×{size}": seconds(t) for size, t in zip(rows["size"], taken, strict=True)} | {
            "counted": f"{rows['count'].iloc[0]:,} {rows['unit'].iloc[0]}",
            "exponent": f"{exponent(rows['size'], taken):.2f}",
            "memory added, MB": f"{short(added[0])} to {short(added[-1])}",
        }
    return pd.DataFrame(found).T.rename_axis("stage")


def exponent(sizes, taken):
    """e of time ~ size^e, the slope of logarithms by least squares.

    >>> round(float(exponent([1, 2, 4], [3.0, 6.0, 12.0])), 3)
    1.0
    """
    return np.polyfit(np.log(sizes), np.log(taken), 1)[0]


def rates():
    """Windows a second by workers: plain processes, and the corpus path beyond what starting costs."""
    rows, found = read("workers"), {}
    for path, some in rows[rows["profile"] == "local"].groupby("path", sort=False):
        rate = {workers: _slope(r) for workers, r in some.groupby("workers")}
        name = {"bare": "plain processes that share nothing", "corpus": "corpus path on Ray"}[path]
        found[name] = {f"{n} worker{'s' * (n > 1)}": f"{r:.1f} windows/s" for n, r in rate.items()}
        found[name]["ratio"] = f"{rate[2] / rate[1]:.2f}"
    return pd.DataFrame(found).T.rename_axis("embedding, one thread a worker")


def _slope(rows):
    if len(rows) == 1:
        return (rows["windows"] / rows["seconds"]).iloc[0]
    first, last = rows.iloc[0], rows.iloc[-1]
    return (last["windows"] - first["windows"]) / (last["seconds"] - first["seconds"])


def streamed():
    """What the corpus path held in memory at each size."""
    rows = read("workers")
    rows = rows[rows["profile"] == "multilingual"]
    columns = {"bytes_writer": "writer, MB", "bytes_worker": "largest worker, MB", "bytes_all": "all with Ray, MB"}
    frame = pd.DataFrame({said: (rows[name] / 1e6).map(short) for name, said in columns.items()})
    frame.insert(0, "time", rows["seconds"].map(seconds))
    return frame.set_index(rows["windows"].astype(int).map("{:,}".format).rename("windows"))


def written():
    """What the writer alone held in memory as its table grew."""
    rows = read("writer")
    frame = pd.DataFrame({"time": rows["seconds"].map(seconds), "at most, MB": (rows["bytes_peak"] / 1e6).map(short)})
    return frame.set_index(rows["windows"].map("{:,}".format).rename("windows in the table"))


def searches():
    rows = read("search")
    frame = pd.DataFrame(
        {
            "search": rows["search"],
            "median": rows["ms_median"].map("{:.1f} ms".format),
            "95 % below": rows["ms_95"].map("{:.1f} ms".format),
            "recall@15": rows["recall"].map("{:.4f}".format),
            "index built in": ["" if s == 0 else seconds(s) for s in rows["built_seconds"]],
        }
    )
    return frame.set_index(rows["windows"].map("{:,}".format).rename("windows"))


def bounds():
    """How far stages are from what the machine, or the library beneath, could do; in words what holds them back."""
    limits, ratio = read("limits").set_index("name")["value"], read("ratios").set_index("piece")["ratio"]
    grown, search = read("growth").groupby("stage").last(), read("search")
    per = grown["seconds"] / grown["count"]
    pieces = {key: next(r for name, r in ratio.items() if name.startswith(key)) for key in _PIECES}
    exact = search[(search["search"] == "exact") & (search["windows"] == search["windows"].max())].iloc[0]
    windows = limits["windows"] / limits["conversations"]
    found = [
        ("chunk", per["chunk"], per["chunk"] / pieces["tokenise"], "tiktoken's encoding"),
        ("embed", per["embed"], limits["encoder_flops_a_window"] / limits["flops_bfloat16"], "arithmetic in bfloat16"),
        ("dense", per["dense"], 4 * limits["dimensions"] * windows / limits["memory_bytes_per_s"], "reading memory"),
        ("bm25", per["bm25"], per["bm25"] / pieces["BM25"], "bm25s"),
        (
            "rerank",
            per["rerank"],
            POOL * limits["maxsim_flops_a_pair"] / limits["flops_float32"],
            "arithmetic in float32",
        ),
        ("context", per["context"], per["context"] / pieces["context"], "joining the lines"),
        ("write", per["write"], per["write"] / pieces["write"], "orjson"),
        ("read", per["read"], per["read"] / pieces["read"], "orjson"),
        (
            f"search {int(exact['windows']):,} windows",
            exact["ms_median"] / 1e3,
            4 * limits["dimensions"] * exact["windows"] / limits["memory_bytes_per_s"],
            "reading memory",
        ),
    ]
    frame = pd.DataFrame(found, columns=["stage", "took", "least", "limit"]).set_index("stage")
    units = {**grown["unit"].str.removesuffix("s")}
    return pd.DataFrame(
        {
            "for": [f"a {units[s]}" if s in units else "a question" for s in frame.index],
            "takes": frame["took"].map(seconds),
            "limit": frame["limit"],
            "would take": frame["least"].map(seconds),
            "share of the limit": (frame["least"] / frame["took"]).map("{:.0%}".format),
        }
    )


_PIECES = ("tokenise", "BM25", "context", "write", "read")


def capacity():
    """A corpus of 10^9 turns from these figures: a row a quantity."""
    limits, grown, search = read("limits").set_index("name")["value"], read("growth"), read("search")
    windows = TURNS * limits["windows"] / limits["turns"]
    workers = read("workers")
    one = workers[(workers["path"] == "bare") & (workers["workers"] == 1)]
    rate = _slope(one)
    chunk = grown[grown["stage"] == "chunk"].iloc[-1]
    largest = search[search["windows"] == search["windows"].max()].set_index("search")
    more = windows / search["windows"].max()
    vectors, codes = 4 * limits["dimensions"] * windows, limits["dimensions"] * windows
    exact, index = (largest.loc[name, "ms_median"] / 1e3 * more for name in ("exact", "IVF_SQ"))
    operations = limits["encoder_flops_a_window"] * windows
    found = {
        "windows": large(windows),
        "tokens (cl100k)": large(windows * limits["tokens_a_window"]),
        "cutting and mapping, one core": seconds(chunk["seconds"] / chunk["count"] * windows),
        "embedding, one core of this machine": seconds(windows / rate),
        "embedding, 1,000 such cores": seconds(windows / rate / 1000),
        "the encoder's arithmetic": f"{large(operations)} operations",
        "embedding, one accelerator that sustains 10^14 of these a second": seconds(operations / ACCELERATOR),
        "vectors, float32": f"{short(vectors / 1e9)} GB",
        "codes of the index, one byte a dimension": f"{short(codes / 1e9)} GB",
        "texts": f"{short(limits['bytes_a_window'] * windows / 1e9)} GB",
        "exact search of everything, one such machine": seconds(exact),
        "search by IVF_SQ, one such machine with the index in memory": seconds(index),
        "machines for a search of everything in 50 ms": short(np.ceil(index / 0.05)),
    }
    return pd.Series(found, name=f"{TURNS:,} turns").to_frame()


TABLES = {f.__name__: f for f in (machine, ratios, runs, grown, rates, streamed, written, searches, bounds, capacity)}


def filled(text):
    """`text` with every marked table made anew, as `<!-- table search -->` … `<!-- end -->`."""

    def fill(mark):
        name = mark[1].strip()
        if name not in TABLES:
            raise BadInput(f"{paths.relative(PAGE)}: no table {name!r}; there are {', '.join(TABLES)}")
        return f"<!-- table {name} -->\n{report.markdown(TABLES[name]())}\n<!-- end -->"

    return re.sub(r"<!-- table (.*?)-->.*?<!-- end -->", fill, text, flags=re.DOTALL)


# ------------------------------------------------------------------------------------------------------------ pictures


def growth_figure():
    """Seconds by size, a line a stage, beside the grey of what grows as fast as the data; and memory."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
    stages = read("growth").groupby("stage", sort=False)
    for (stage, rows), shade, marker in zip(stages, figures.SHADES, "os^Dvp*Xh", strict=False):
        style = {"color": shade, "marker": marker, "label": stage}
        axes[0].plot(rows["size"], rows["seconds"] / rows["seconds"].iloc[0], **style)
        axes[1].plot(rows["size"], (rows["bytes_peak"] - rows["bytes_before"]) / 1e6, **style)
    axes[0].plot(growth.SIZES, growth.SIZES, color="#BBBBBB", lw=6, zorder=0, label="as the data")
    axes[0].set(xscale="log", yscale="log", xlabel="times the data", ylabel="times the time")
    axes[1].set(xscale="log", xlabel="times the data", ylabel="memory that the stage added, MB")
    for ax in axes:
        ax.set_xticks(growth.SIZES, growth.SIZES)
        ax.minorticks_off()
        ax.spines[["top", "right"]].set_visible(False)
    axes[0].set_yticks(growth.SIZES, growth.SIZES)
    axes[0].legend(frameon=False, fontsize=8)
    return figure


def search_figure():
    """Milliseconds a question by windows in the table, a line a way to search; dotted the bound of 50 ms."""
    import matplotlib.pyplot as plt

    figure, ax = plt.subplots(figsize=(7, 4), layout="constrained")
    ways = read("search").groupby("search", sort=False)
    for (way, rows), shade, marker in zip(ways, figures.SHADES, "os^Dvp*Xh", strict=False):
        ax.plot(rows["windows"], rows["ms_median"], color=shade, marker=marker, label=way)
        last = rows.iloc[-1]
        if last["recall"] < 1:
            ax.annotate(f" {last['recall']:.3f}", (last["windows"], last["ms_median"]), fontsize=8, va="center")
    ax.axhline(50, color="#777777", lw=0.8, ls=":")
    ax.set(xscale="log", yscale="log", xlabel="windows in the table", ylabel="ms a question (median)")
    ax.set_title("beside the last point: recall@15 against exact search, where it is below 1", loc="left", fontsize=9)
    ax.spines[["top", "right"]].set_visible(False)
    ax.legend(frameon=False, fontsize=8)
    return figure


FIGURES = {"growth": growth_figure, "search": search_figure}
