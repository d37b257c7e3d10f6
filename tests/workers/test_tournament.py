"""Rounds of pairs: everybody meets everybody once, at most one partner a round."""

import itertools

import pytest
import tournament


@pytest.mark.parametrize("count", [2, 3, 4, 5, 8, 16, 33])
def test_everybody_meets_everybody_once(count: int) -> None:
    rounds = tournament.rounds(count)
    assert sorted(pair for pairs in rounds for pair in pairs) == sorted(itertools.combinations(range(count), 2))
    assert len(rounds) == count - 1 + count % 2
    for pairs in rounds:
        seated = [player for pair in pairs for player in pair]
        assert len(seated) == len(set(seated)) == count - count % 2


def test_one_alone_plays_nothing() -> None:
    assert (tournament.rounds(1), tournament.rounds(0)) == ([], [])


def test_a_partner_is_found_from_both_sides() -> None:
    pairs = [(0, 3), (1, 2)]
    assert [tournament.partner(pairs, player) for player in range(5)] == [3, 2, 1, 0, None]


@pytest.mark.parametrize(
    ("hosts", "teams"),
    [
        (["a", "a", "b", "b"], [("a", [0, 1]), ("b", [2, 3])]),
        (["a", "b", "a", "b"], [("a", [0, 2]), ("b", [1, 3])]),
        (["a", "a"], [("0", [0]), ("1", [1])]),
        (["a", "a", "b"], [("0", [0]), ("1", [1]), ("2", [2])]),
    ],
)
def test_hosts_play_when_there_are_several_of_equal_size(hosts: list[str], teams: list[tuple[str, list[int]]]) -> None:
    assert tournament.teams(hosts) == teams
