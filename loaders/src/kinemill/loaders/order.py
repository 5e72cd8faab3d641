"""Which sample comes when: a pure function of (seed, epoch, position), whatever the ranks and workers.

A permutation of N is computed at a point, never stored: a Feistel network over the next even power
of two, walked until it lands below N (M. Luby and C. Rackoff, "How to construct pseudorandom
permutations", 1988; cycle walking: J. Black and P. Rogaway, "Ciphers with arbitrary finite
domains", 2002). So a global shuffle of 10^10 samples costs no memory and no reading, and a
resume at another world size is one number: how many positions are behind us.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kinemill.errors import UsageError

__all__ = ["Order", "Permutation"]

Ints = npt.NDArray[np.int64]
_ROUNDS = 6
_MIX = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))  # splitmix64's multipliers


def _mix(x: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    x = (x ^ (x >> np.uint64(30))) * _MIX[0]
    x = (x ^ (x >> np.uint64(27))) * _MIX[1]
    return x ^ (x >> np.uint64(31))


class Permutation:
    """A bijection of [0, size), keyed; evaluated at any positions without a table."""

    __slots__ = ("_half", "_keys", "_mask", "size")

    def __init__(self, size: int, *key: int) -> None:
        """Key the network.

        Args:
            size: Of the domain, up to 2^62.
            key: Any integers: seed, epoch, source, pass.
        """
        self.size = size
        bits = max(2, (max(1, size - 1)).bit_length())
        self._half = np.uint64((bits + 1) // 2)
        self._mask = np.uint64((1 << int(self._half)) - 1)
        text = ",".join(str(int(k)) for k in key).encode()
        digest = hashlib.blake2b(text, digest_size=8 * _ROUNDS, person=b"kinemill-order").digest()
        self._keys = np.frombuffer(digest, "<u8")

    def _once(self, x: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
        left, right = x >> self._half, x & self._mask
        for key in self._keys:
            left, right = right, left ^ (_mix(right + key) & self._mask)
        return (left << self._half) | right

    def __call__(self, positions: Ints) -> Ints:
        """Where each position goes.

        Args:
            positions: (n,) int64 in [0, size).

        Returns:
            (n,) int64, distinct where the positions are.
        """
        if self.size <= 1:
            return np.zeros_like(positions)
        out = self._once(positions.astype(np.uint64))
        limit = np.uint64(self.size)
        while (outside := out >= limit).any():
            out[outside] = self._once(out[outside])
        return out.astype(np.int64)


@dataclass(frozen=True, slots=True)
class Order:
    """One epoch's sequence of samples over one source or a mixture of several.

    The epoch has `sum(quotas)` units in a row, globally shuffled; a source that owes more units
    than it has goes round again in a new order, one that owes fewer gives a new random part of
    itself each epoch. A unit is `unit` samples that share a fetch.

    Attributes:
        lengths: Units that each source has.
        quotas: Units that each source gives per epoch.
        seed: Of the run.
        unit: Samples per unit.
        shuffle: False gives the natural order, source after source.
    """

    lengths: tuple[int, ...]
    quotas: tuple[int, ...]
    seed: int = 0
    unit: int = 1
    shuffle: bool = True

    def __post_init__(self) -> None:
        """Refuse a source that owes samples and has none."""
        for source, (length, quota) in enumerate(zip(self.lengths, self.quotas, strict=True)):
            if quota > 0 and length <= 0:
                raise UsageError(f"source {source} of the mixture is to give {quota} samples and has none")

    @classmethod
    def mix(
        cls,
        lengths: Sequence[int],
        weights: Sequence[float] | None = None,
        *,
        units: int | None = None,
        seed: int = 0,
        unit: int = 1,
        shuffle: bool = True,
    ) -> Order:
        """Quotas from weights by largest remainder, so that shares are exact to one unit.

        Args:
            lengths: Units of each source.
            weights: Share of each source in an epoch; None: everything once.
            units: Units per epoch; default: the sum of the lengths.
            seed: Of the run.
            unit: Samples per unit.
            shuffle: See the class.

        Raises:
            UsageError: Weights that are negative, all zero, or not one per source.
        """
        total = sum(lengths) if units is None else units
        if weights is None and units is None:
            return cls(tuple(lengths), tuple(lengths), seed, unit, shuffle)
        weighed = [float(n) for n in lengths] if weights is None else [float(w) for w in weights]
        whole = sum(weighed)
        if len(weighed) != len(lengths) or min(weighed, default=0.0) < 0 or not whole > 0:
            raise UsageError(f"mixture weights {weighed}: one per source ({len(lengths)}), none negative, not all zero")
        exact = [w / whole * total for w in weighed]
        quotas = [int(x) for x in exact]
        left = sorted(range(len(exact)), key=lambda j: (quotas[j] - exact[j], j))
        for j in left[: total - sum(quotas)]:
            quotas[j] += 1
        return cls(tuple(lengths), tuple(quotas), seed, unit, shuffle)

    @property
    def length(self) -> int:
        """Samples per epoch."""
        return sum(self.quotas) * self.unit

    def samples(self, epoch: int, positions: Ints) -> Ints:
        """The samples at these positions of an epoch.

        Args:
            epoch: From 0.
            positions: (n,) int64 in [0, length).

        Returns:
            (n,) int64: sample numbers over all sources laid end to end, `lengths[j] * unit` of each.
        """
        units, member = np.divmod(np.asarray(positions, np.int64), self.unit)
        total = sum(self.quotas)
        if self.shuffle:
            units = Permutation(total, self.seed, epoch)(units)
        ends = np.cumsum(self.quotas)
        source = np.searchsorted(ends, units, side="right")
        starts = ends - np.asarray(self.quotas, np.int64)
        bases = np.concatenate([[0], np.cumsum(self.lengths)[:-1]]).astype(np.int64)
        out = np.empty_like(units)
        for j in np.unique(source):
            mine = source == j
            local = units[mine] - starts[j]
            turn, inside = np.divmod(local, self.lengths[j])
            if self.shuffle and self.quotas[j] != self.lengths[j]:
                for t in np.unique(turn):
                    of_turn = turn == t
                    inside[of_turn] = Permutation(self.lengths[j], self.seed, epoch, j, int(t), 1)(inside[of_turn])
            out[mine] = bases[j] + inside
        return out * self.unit + member
