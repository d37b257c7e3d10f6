"""What a handful of timings says: median, percentiles, an interval for the median, and which value stands out.

Pure arithmetic on lists of floats; no units of its own. Timings are skewed (interference only ever adds time), so the
median and order statistics are used and never a mean with a normal interval. Does not know that timings taken one
after the other hang together: give it one value per round where rounds drift.

>>> median_interval([9.0, 10.0, 10.1, 10.2, 10.3, 10.4, 30.0])
(9.0, 30.0, 0.984375)
"""

import math

MAD_TO_SIGMA = 1.4826  # the median absolute deviation of a normal distribution is sigma / 1.4826
OUTLIER_SIGMAS = 3.5  # Iglewicz and Hoaglin (1993), modified z-score
OUTLIER_SHARE = 0.05  # and at least this far from the median: a tight sample makes sigmas of nothing


def median(values):
    """The middle value; the mean of the two middle ones for an even count. ValueError when empty."""
    return percentile(values, 50.0)


def percentile(values, percent):
    """Linear interpolation between the two nearest ranks (the usual definition 7). ValueError when empty."""
    if not values:
        raise ValueError("a percentile of no values")
    ordered = sorted(values)
    place = (len(ordered) - 1) * percent / 100.0
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def median_interval(values, confidence=0.95):
    """(low, high, coverage) of the population median by order statistics; no shape of the distribution is assumed.

    Takes the narrowest symmetric pair of ranks whose coverage reaches `confidence`; below 6 values 95 % cannot be
    reached, and the smallest and largest are returned with the coverage they have: 1 - 2 * sum C(n, i) / 2^n, i < rank.
    """
    ordered, count = sorted(values), len(values)
    best = (ordered[0], ordered[-1], 1.0 - 2.0 / 2.0**count if count > 1 else 0.0)
    tail = 1.0 / 2.0**count
    for rank in range(1, count // 2):
        tail += math.comb(count, rank) / 2.0**count
        if 1.0 - 2.0 * tail < confidence:
            break
        best = (ordered[rank], ordered[count - 1 - rank], 1.0 - 2.0 * tail)
    return best


def deviation(values):
    """1.4826 times the median absolute deviation: a spread that one wild value does not move."""
    middle = median(values)
    return MAD_TO_SIGMA * median([abs(value - middle) for value in values])


def outliers(values, sigmas=OUTLIER_SIGMAS, share=OUTLIER_SHARE):
    """Places of the values farther from the median than `sigmas` deviations and than `share` of the median.

    Fewer than four values have no outlier: with three, the odd one is as likely to be the only right one.
    """
    if len(values) < 4:
        return []
    middle, spread = median(values), deviation(values)
    bound = max(sigmas * spread, share * abs(middle))
    return [place for place, value in enumerate(values) if abs(value - middle) > bound]


def slowest(times):
    """The place of the largest value when it is an outlier, else None."""
    worst = max(range(len(times)), key=lambda place: times[place]) if times else None
    return worst if worst in outliers(times) and times[worst] > median(times) else None


def summary(values):
    """n, min, p5, p50, p95, max, in the unit given."""
    named = {"p5": 5.0, "p50": 50.0, "p95": 95.0}
    found = {name: percentile(values, percent) for name, percent in named.items()}
    return {"n": len(values), "min": min(values), "max": max(values), **found}


def drift(values):
    """How much the last third's median differs from the first third's, as a share of it; None below 9 values.

    0.0 unless the intervals of the two medians are apart: what scatter alone explains is no drift.
    """
    third = len(values) // 3
    if third < 3:
        return None
    first, last = values[:third], values[-third:]
    (low, high, _), (low_after, high_after, _) = median_interval(first), median_interval(last)
    if low <= high_after and low_after <= high:
        return 0.0
    return median(last) / median(first) - 1.0 if median(first) else None


def dips(values, share=0.5):
    """Places of times that stand out of their neighbours' by `share` of the median and more: stalls, not scatter."""
    middle = median(values) if values else 0.0
    return [place for place in outliers(values, share=share) if values[place] > middle]
