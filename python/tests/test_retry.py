"""Tests the pauses between rounds."""

from __future__ import annotations

import pytest
from sqlenv import RetryPolicy

POLICY = RetryPolicy(first_pause_seconds=0.1, longest_pause_seconds=2.0)


@pytest.mark.parametrize(
    ("rounds", "asked", "draw", "pause"),
    [
        (1, 0.0, 1.0, 0.1),
        (2, 0.0, 1.0, 0.2),
        (5, 0.0, 1.0, 1.6),
        (6, 0.0, 1.0, 2.0),
        (10_000, 0.0, 1.0, 2.0),
        (3, 0.0, 0.0, 0.0),
        (3, 0.0, 0.5, 0.2),
        (1, 5.0, 0.5, 5.05),
    ],
)
def test_pauses_grow_and_honour_the_node(
    rounds: int, asked: float, draw: float, pause: float
) -> None:
    assert POLICY.pause_seconds(rounds, asked, draw) == pytest.approx(pause)
