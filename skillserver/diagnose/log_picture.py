"""Stand-alone: draws a loss curve with events into a PNG. Run as a program, so that matplotlib stays out of the server.

    python log_picture.py DATA.json OUT.png

The data hold steps, lowest and highest loss, events as [step, last step or null, severity, code]. Knows nothing of skillserver.
"""

import json
import sys

COLOURS = {"critical": "tab:red", "warning": "tab:orange", "info": "tab:gray"}


def main() -> int:
    """Read the data, draw, write."""
    import matplotlib  # type: ignore[import-not-found, unused-ignore]

    matplotlib.use("Agg")
    from matplotlib import pyplot  # type: ignore[import-not-found, unused-ignore]

    with open(sys.argv[1], encoding="utf-8") as file:  # noqa: PTH123
        data = json.load(file)
    figure, axes = pyplot.subplots(figsize=(12, 6), layout="constrained")
    axes.fill_between(data["steps"], data["low"], data["high"], alpha=0.4, linewidth=0)
    axes.plot(data["steps"], data["high"], linewidth=0.8)
    if data["logarithmic"]:
        axes.set_yscale("log")
    for step, last, severity, code in data["events"]:
        colour = COLOURS.get(severity, "tab:gray")
        if last is not None and last > step:
            axes.axvspan(step, last, color=colour, alpha=0.15)
        axes.axvline(step, color=colour, linewidth=0.8)
        axes.annotate(f"{code} {step}", (step, 0.99), xycoords=("data", "axes fraction"), rotation=90, va="top", ha="right", fontsize=7, color=colour)
    axes.set(xlabel="step", ylabel="loss")
    figure.savefig(sys.argv[2], format="png", dpi=120)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
