"""Stand-alone: draws busbw or time over message size into a PNG. Run as a program, so that matplotlib stays out of the server.

    python curve_picture.py DATA.json OUT.png

The data hold bytes, values, low and high (5th and 95th percentile), unit, title. Knows nothing of skillserver.
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
    axes.fill_between(data["bytes"], data["low"], data["high"], alpha=0.3, linewidth=0, label="5th to 95th percentile")
    axes.plot(data["bytes"], data["values"], marker="o", linewidth=1)
    axes.set_xscale("log", base=2)
    axes.set(xlabel="bytes", ylabel=data["unit"], title=data["title"])
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(sys.argv[2], format="png", dpi=120)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
