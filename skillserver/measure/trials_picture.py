"""Stand-alone: draws the trials of a matmul search into a PNG. Run as a program, so that matplotlib stays out of the server.

    python trials_picture.py DATA.json OUT.png

The data hold values and best (TFLOPS, in the order of trials) and title. Knows nothing of skillserver.
"""

import json
import os
import sys


def main() -> int:
    """Draw aside, then link: a half picture never bears the name, and a file that came meanwhile is not overwritten."""
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
    aside = f"{sys.argv[2]}.{os.getpid()}.part"
    try:
        figure.savefig(aside, format="png", dpi=120)
        os.link(aside, sys.argv[2])
    finally:
        if os.path.exists(aside):  # noqa: PTH110
            os.unlink(aside)  # noqa: PTH108
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
