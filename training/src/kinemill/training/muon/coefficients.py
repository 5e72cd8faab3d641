"""Coefficients of the Newton-Schulz iteration: one triple for all iterations, or one triple each.

An iteration maps every singular value x to ``a x + b x^3 + c x^5``. "Polar Express" (Amsel, Persson,
Musco, Gower, arXiv:2505.16932) picks for each iteration the odd quintic that is nearest to 1 on the
interval which the iterations before it can have reached. It is computed here, not tabulated.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any, TypeAlias

__all__ = ["QUINTIC", "Triple", "apply", "polar_express", "resolve"]

Triple: TypeAlias = tuple[float, float, float]

QUINTIC: Triple = (3.4445, -4.7750, 2.0315)
"""Keller Jordan's constants (https://kellerjordan.github.io/posts/muon/): steep at 0, ends in about 0.7..1.2."""

_LOWER = 1e-3  # singular values below this (of a matrix scaled to norm 1) may stay short of 1
_CUSHION = 0.024  # never fit an interval wider than 1:42, so that one iteration's peak stays finite in bf16
_SAFETY = 1.01  # bf16 rounding may push a singular value above the interval's end; shrink the argument


def apply(coefficients: Sequence[Triple], x: float) -> float:
    """Where singular value `x` ends after all iterations."""
    for a, b, c in coefficients:
        x = x * (a + x * x * (b + x * x * c))
    return x


def resolve(given: object, steps: int) -> tuple[Triple, ...]:
    """One triple for each of `steps` iterations.

    Args:
        given: Three floats; a sequence of triples, whose last is repeated; or "quintic", "polar_express".
        steps: Iterations, 1 to 99.

    Raises:
        ValueError: Anything else.
    """
    if not 0 < steps < 100:
        raise ValueError(f"ns_steps must be 1 to 99, not {steps}")
    if given == "quintic":
        return (QUINTIC,) * steps
    if given == "polar_express":
        return polar_express(steps)
    if isinstance(given, str) or not isinstance(given, Sequence) or not given:
        raise ValueError(
            f"ns_coefficients {given!r}: three floats, a sequence of triples, 'quintic' or 'polar_express'"
        )
    rows: list[Any] = [given] if isinstance(given[0], int | float) else list(given)
    triples: list[Triple] = []
    for row in rows:
        if isinstance(row, str) or len(row) != 3 or not all(math.isfinite(float(v)) for v in row):
            raise ValueError(f"ns_coefficients: {row!r} is not a triple of finite numbers")
        triples.append((float(row[0]), float(row[1]), float(row[2])))
    if len(triples) > steps:
        raise ValueError(f"ns_coefficients has {len(triples)} triples for {steps} ns_steps")
    return (*triples, *[triples[-1]] * (steps - len(triples)))


@functools.cache
def polar_express(steps: int, lower: float = _LOWER, safety: float = _SAFETY) -> tuple[Triple, ...]:
    """The optimal triples for singular values in [lower, 1], composed greedily (Theorem 3.1 of the paper).

    Args:
        steps: Iterations.
        lower: Smallest singular value, relative to the norm, that should reach 1.
        safety: Each triple but the last is taken at ``x / safety``.
    """
    low, high = lower, 1.0
    found: list[Triple] = []
    for step in range(steps):
        a, b, c = _nearest_to_one(max(low, _CUSHION * high), high)
        # The cushion may have fitted a narrower interval: centre the result on 1 over the real one.
        scale = 2.0 / (apply([(a, b, c)], low) + apply([(a, b, c)], high))
        triple = (a * scale, b * scale, c * scale)
        low = apply([triple], low)
        high = 2.0 - low
        if step < steps - 1:
            triple = (triple[0] / safety, triple[1] / safety**3, triple[2] / safety**5)
        found.append(triple)
    return tuple(found)


def _nearest_to_one(low: float, high: float) -> Triple:
    """The odd quintic p that minimises max |1 - p| on [low, high], by Remez's exchange on four points.

    The error alternates 1-e, 1+e, 1-e, 1+e at low, two inner extrema and high.
    """
    if high - low < 1e-5:
        # The limit: p(1)=1, p'(1)=p''(1)=0, scaled to the interval's middle.
        mid = (low + high) / 2
        return 1.875 / mid, -1.25 / mid**3, 0.375 / mid**5
    inner = [low + (high - low) * 0.25, low + (high - low) * 0.75]
    a = b = c = 0.0
    for _ in range(100):
        points = [low, *inner, high]
        rows = [[x, x**3, x**5, 1.0 if i % 2 == 0 else -1.0, 1.0] for i, x in enumerate(points)]
        a, b, c, _error = _solve(rows)
        # p' = a + 3 b y + 5 c y^2 with y = x^2
        root = math.sqrt(max(9 * b * b - 20 * a * c, 0.0))
        fresh = sorted(math.sqrt(max(y, 0.0)) for y in ((-3 * b - root) / (10 * c), (-3 * b + root) / (10 * c)))
        moved = max(abs(x - y) for x, y in zip(fresh, inner, strict=True))
        inner = fresh
        if moved < 1e-13:
            break
    return a, b, c


def _solve(rows: list[list[float]]) -> list[float]:
    """Gauss with pivoting on an augmented matrix; four unknowns, so numpy is not worth its import."""
    n = len(rows)
    for i in range(n):
        best = max(range(i, n), key=lambda r: abs(rows[r][i]))
        rows[i], rows[best] = rows[best], rows[i]
        for r in range(i + 1, n):
            factor = rows[r][i] / rows[i][i]
            rows[r] = [x - factor * y for x, y in zip(rows[r], rows[i], strict=True)]
    answer = [0.0] * n
    for i in reversed(range(n)):
        rest = sum(rows[i][j] * answer[j] for j in range(i + 1, n))
        answer[i] = (rows[i][n] - rest) / rows[i][i]
    return answer
