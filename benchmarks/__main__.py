"""Measure, and write what was measured: `make bench`, or with ARGS="--only search" one part.

Machines differ and are noisy, so nothing here is a timed test: what is compared was measured in one run, in turns. A
part is written when it is done, so a run that was stopped goes on with --only.
"""

import argparse
import sys
import time

import pandas as pd

from benchmarks import growth, limits, measure, page, ratios, search, workers, writer
from rawrag_utils import corpus, models, paths, results

PARTS = {  # in the order in which they run: rows from a corpus
    "limits": limits.measured,
    "ratios": ratios.measured,
    "growth": lambda loaded: growth.measured(loaded.name),
    "workers": workers.measured,
    "writer": lambda loaded: writer.measured(loaded.name),
    "search": lambda loaded: search.measured(loaded.name),
    "runs": lambda loaded: ratios.results(),
}


def save(part, rows, loaded, started):
    """Write the rows of a part, its picture and its record under results/benchmarks/."""
    run = results.Run(part, {"DATASET": loaded.name, "machine": measure.machine()}, "", page.FOLDER, started)
    with paths.atomic(results.kept(run, f"{part}.csv")) as file:
        pd.DataFrame(rows).to_csv(file, index=False, float_format="%.6g", lineterminator="\n")
    if part in page.FIGURES:
        import matplotlib.pyplot as plt

        figure = page.FIGURES[part]()
        results.save_figure(run, figure, "time")
        plt.close(figure)
    results.finish(run, loaded, models=[models.describe(models.load_embedder("local"))])


def told(rows):
    """The rows, each said when it is there."""
    for row in rows:
        print(*(f"{v:,.4g}" if isinstance(v, float) else v for v in row.values() if v != ""), sep="  ", flush=True)
        yield row


def main():
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__.partition("\n")[0])
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS), metavar="PART", help=", ".join(PARTS))
    given = parser.parse_args()
    loaded = corpus.load("locomo")
    for part in given.only:
        print(f"-- {part}", flush=True)
        started = time.monotonic()
        save(part, list(told(PARTS[part](loaded))), loaded, started)
    if not [name for name in PARTS if not (page.FOLDER / f"{name}.csv").is_file()]:
        text = page.filled(page.PAGE.read_text(encoding="utf-8"))
        with paths.atomic(page.PAGE) as file:
            file.write(text)
        print("page:", paths.relative(page.PAGE))


if __name__ == "__main__":
    import matplotlib

    matplotlib.use("Agg")
    try:
        main()
    except corpus.BadInput as error:
        sys.exit(f"error: {error}")
