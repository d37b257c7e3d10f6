"""When is a faster accelerator worth it: how much of a step each resource takes decides, not the headline.

A step is the sum of shares bound by compute, by memory, by the network and by what no accelerator changes (Amdahl's
law over four resources). Knows ratios only; which part has which rate comes in as numbers.

>>> speed_up({"compute": 0.6, "memory": 0.2, "network": 0.2}, {"compute": 2.27, "memory": 2.39, "network": 2.0})
2.247...
"""

from __future__ import annotations

from collections.abc import Mapping

from skillserver.errors import BadRequest

RESOURCES = ("compute", "memory", "network", "other")
SLACK = 0.005  # shares are read off a profile and rounded


def shares(given: Mapping[str, float]) -> dict[str, float]:
    """Shares of a step by resource, completed to 1 by `other`. Raises BadRequest naming the field."""
    for name, value in given.items():
        if name not in RESOURCES:
            raise BadRequest("unknown_share", f"step_shares: {name!r} is no resource", valid=RESOURCES)
        if not 0 <= value <= 1:
            raise BadRequest("bad_share", f"step_shares.{name} {value:g} is not between 0 and 1", next="pass shares such as 0.6")
    total = sum(given.values())
    if total > 1 + SLACK:
        raise BadRequest("bad_share", f"step_shares add up to {total:g}", next="pass shares of one step that add up to at most 1")
    return {**given, "other": given.get("other", 0.0) + max(0.0, 1 - total)}


def speed_up(of_a_step: Mapping[str, float], rates: Mapping[str, float]) -> float:
    """How many times faster a step becomes when each resource becomes `rates[name]` times faster; unnamed ones stay."""
    return 1 / sum(share / rates.get(name, 1.0) for name, share in shares(of_a_step).items())


def break_even_price(current_price: float, gained: float) -> float:
    """Price per hour at which the faster part costs the same for the same work."""
    return current_price * gained
