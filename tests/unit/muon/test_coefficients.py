"""Coefficients: the optimal ones are computed, and are those that the paper prints."""

from __future__ import annotations

import math

import pytest

from kinemill.training.muon.coefficients import QUINTIC, apply, polar_express, resolve

PAPER = [  # arXiv:2505.16932, section 4, printed with cushion 0.02407 and no safety factor
    (8.28721201814563, -23.595886519098837, 17.300387312530933),
    (4.107059111542203, -2.9478499167379106, 0.5448431082926601),
    (3.9486908534822946, -2.908902115962949, 0.5518191394370137),
    (3.3184196573706015, -2.488488024314874, 0.51004894012372),
    (2.300652019954817, -1.6689039845747493, 0.4188073119525673),
    (1.891301407787398, -1.2679958271945868, 0.37680408948524835),
    (1.8750014808534479, -1.2500016453999487, 0.3750001645474248),
    (1.875, -1.25, 0.375),
]


def test_polar_express_is_what_the_paper_prints() -> None:
    for ours, theirs in zip(polar_express(8, safety=1.0), PAPER, strict=True):
        assert ours == pytest.approx(theirs, rel=4e-4)


def test_polar_express_brings_every_singular_value_nearer_to_one_than_the_quintic() -> None:
    values = [10 ** (-3 + 3 * i / 400) for i in range(401)]

    ours = max(abs(1 - apply(polar_express(8), x)) for x in values)
    quintic = max(abs(1 - apply([QUINTIC] * 8, x)) for x in values)

    assert ours < 0.05
    assert quintic > 0.25


@pytest.mark.parametrize(
    ("given", "steps", "expected"),
    [
        ((1, 2, 3), 2, ((1.0, 2.0, 3.0),) * 2),
        ([(1, 2, 3), (4, 5, 6)], 3, ((1.0, 2.0, 3.0), (4.0, 5.0, 6.0), (4.0, 5.0, 6.0))),
        ("quintic", 1, (QUINTIC,)),
    ],
)
def test_every_way_to_give_coefficients(given: object, steps: int, expected: object) -> None:
    assert resolve(given, steps) == expected


@pytest.mark.parametrize(
    ("given", "steps"),
    [
        ("cubic", 5),
        ((), 5),
        ((1.0, 2.0), 5),
        ([(1, 2, 3)] * 6, 5),
        ((1.0, math.nan, 2.0), 5),
        ((1, 2, 3), 0),
        ((1, 2, 3), 100),
        (None, 5),
    ],
)
def test_nonsense_is_refused(given: object, steps: int) -> None:
    with pytest.raises(ValueError, match="ns_"):
        resolve(given, steps)
