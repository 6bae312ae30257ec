"""Packets of `bk chaos --namespaces`: each is treated as ordered."""

from __future__ import annotations

import random

import pytest

from bookies.lab.chaos.chaos_switch import REORDERED_S, Fabric, Impairment

A, B = frozenset({"a"}), frozenset({"b"})


def fabric(**quality: float) -> Fabric:
    result = Fabric(random.Random(1))
    result.begin(1, Impairment(A, B, **quality))  # type: ignore[arg-type]
    return result


@pytest.mark.parametrize(
    ("quality", "delays"),
    [
        ({"is_cut": True}, []),
        ({"loss": 1.0}, []),
        ({"delay_s": 0.25}, [0.25]),
        ({"duplicated": 1.0}, [0.0, 0.0]),
        ({"reordered": 1.0}, [REORDERED_S]),
        ({"reordered": 1.0, "delay_s": 0.25}, [0.0]),
    ],
)
def test_an_impairment_has_one_direction_and_an_end(quality: dict[str, float], delays: list[float]) -> None:
    packets = fabric(**quality)
    assert packets.delays("a", "b") == delays
    assert packets.delays("b", "a") == packets.delays("a", "c") == [0.0]
    packets.end(1)
    assert packets.delays("a", "b") == [0.0]


def test_impairments_of_one_pair_add_up_until_all_are_healed() -> None:
    packets = fabric(delay_s=0.5)
    packets.begin(2, Impairment(A | B, A | B, delay_s=0.25))
    assert packets.delays("a", "b") == [0.75]
    packets.begin(3, Impairment(A, B, is_cut=True))
    assert packets.delays("a", "b") == []
    packets.heal()
    assert packets.delays("a", "b") == [0.0]
    assert packets.statistics["packets cut off"] == 1


def test_loss_is_a_share_of_the_packets() -> None:
    packets = fabric(loss=0.3)
    arrived = sum(len(packets.delays("a", "b")) for _ in range(10_000))
    assert 6_700 < arrived < 7_300
    assert packets.statistics == {"packets": 10_000, "packets lost": 10_000 - arrived, "packets delayed": 0,
                                  "packets duplicated": 0}  # fmt: skip
