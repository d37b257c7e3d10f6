"""Who meets whom: rounds in which everybody has one partner, until every pair has met once. Standard library only.

The circle method: one stays, the others turn by one place a round. All pairs of a round run at the same time, so n
players need n - 1 rounds (n when n is odd, each then sits out once) instead of n (n - 1) / 2.

>>> rounds(4)
[[(0, 3), (1, 2)], [(0, 2), (1, 3)], [(0, 1), (2, 3)]]
"""


def rounds(players):
    """[[(a, b), ...], ...] with a < b, for `players` numbered from 0; [] below two."""
    seats = list(range(players)) + ([None] if players % 2 else [])
    told = []
    for _ in range(len(seats) - 1):
        half = len(seats) // 2
        facing = zip(seats[:half], reversed(seats[half:]))  # noqa: B905 (Python 3.9 has no strict=)
        told.append(sorted((min(pair), max(pair)) for pair in facing if None not in pair))
        seats = [seats[0], seats[-1], *seats[1:-1]]
    return told if players > 1 else []


def partner(pairs, player):
    """Whom a player meets in this round, None when it sits out."""
    return next((b if a == player else a for a, b in pairs if player in (a, b)), None)


def teams(hosts):
    """[(name, ranks)]: the hosts when there are several with equally many ranks each, else the ranks one by one.

    `hosts` names the host of every rank, in their order. A team meets a team with all its ranks, the i-th with the i-th.
    """
    by_host = {}
    for rank, host in enumerate(hosts):
        by_host.setdefault(host, []).append(rank)
    if len(by_host) > 1 and len({len(ranks) for ranks in by_host.values()}) == 1:
        return list(by_host.items())
    return [(str(rank), [rank]) for rank in range(len(hosts))]
