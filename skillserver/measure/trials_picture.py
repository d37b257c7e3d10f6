"""Stand-alone: draws the trials of a matmul search into a PNG. Run as a program, so that matplotlib stays out of the server.

    python trials_picture.py DATA.json OUT.png

The data hold values and best (TFLOPS, in the order of trials) and title. Knows nothing of skillserver.
"""

import json
import sys


def main() -> int:
    """Read the data, draw, write."""
    import matplotlib  # type: ignore[import-not-found, unused-ignore]

    matplotlib.use("Agg")
    from matplotlib import pyplot  # type: ignore[import-not-found, unused-ignore]

    with open(sys.argv[1], encoding="utf-8") as file:  # noqa: PTH123
        data = json.load(file)
    figure, axes = pyplot.subplots(figsize=(10, 6), layout="constrained")
    trials = range(1, len(data["values"]) + 1)
    axes.plot(trials, data["values"], ".", label="trial")
    axes.step(trials, data["best"], where="post", linewidth=1, label="best so far")
    axes.set(xlabel="trial", ylabel="TFLOPS", title=data["title"])
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(sys.argv[2], format="png", dpi=120)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
