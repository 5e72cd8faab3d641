"""The numbers of a packed layout: base 128, least significant group first, packed and unpacked all at once."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Final

import numpy as np

from kinemill.errors import CorruptError

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Take", "pack_varints", "unpack_varints", "zigzag"]


def zigzag(values: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Signed numbers as unsigned ones, small where those are near zero."""
    return ((values << 1) ^ (values >> 63)).view(np.uint64)


def _unzigzag(values: NDArray[np.uint64]) -> NDArray[np.int64]:
    one = np.uint64(1)
    return ((values >> one) ^ (np.uint64(0) - (values & one))).view(np.int64)


def pack_varints(values: NDArray[np.uint64]) -> bytes:
    """Seven bits a byte; the eighth says that more follow."""
    out = bytearray()
    for value in values.tolist():
        left = value
        while left > 127:
            out.append(left & 127 | 128)
            left >>= 7
        out.append(left)
    return bytes(out)


_LOW_7: Final = np.uint8(127)


def unpack_varints(data: bytes) -> NDArray[np.uint64]:
    """What `pack_varints` was given.

    Raises:
        CorruptError: It ends inside a number, or a number is over 10 bytes long.
    """
    raw = np.frombuffer(data, np.uint8)
    ends = (raw < 128).nonzero()[0]
    if not len(ends) or ends[-1] != len(raw) - 1:
        raise CorruptError("packed layout: it ends inside a number")
    starts = np.empty_like(ends)
    starts[0] = 0
    starts[1:] = ends[:-1] + 1
    sizes = ends - starts + 1
    if int(np.maximum.reduce(sizes)) > 10:
        raise CorruptError("packed layout: a number of more than 10 bytes")
    shift = (np.arange(len(raw)) - starts.repeat(sizes)) * 7
    parts = (raw & _LOW_7).astype(np.uint64) << shift.view(np.uint64)
    found: NDArray[np.uint64] = np.add.reduceat(parts, starts)
    return found


class Take:
    """Hands out the numbers of a packed layout, never more than there are.

    Every method raises CorruptError where fewer are left than it wants.
    """

    __slots__ = ("_at", "_left", "_signed", "_values")

    def __init__(self, values: NDArray[np.uint64]) -> None:
        self._values = values
        self._signed = _unzigzag(values)  # of all at once, which costs as much as of one group's
        self._at = 0
        self._left = len(values)

    def _from(self, n: int) -> int:
        """Where the next `n` numbers start."""
        if n > self._left:
            raise CorruptError(f"packed layout: {n} numbers wanted, {self._left} are left")
        at = self._at
        self._at += n
        self._left -= n
        return at

    def many(self, n: int) -> NDArray[np.uint64]:
        """The next `n`, as they are."""
        at = self._from(n)
        return self._values[at : at + n]

    def several(self, limits: tuple[int, ...]) -> list[int]:
        """As many as there are limits, none over its own."""
        values = self.counts(len(limits))
        if any(map(operator.gt, values, limits)):
            value, limit = next((v, most) for v, most in zip(values, limits, strict=True) if v > most)
            raise CorruptError(f"packed layout: {value} where at most {limit} makes sense")
        return values

    def one(self, limit: int) -> int:
        """The next, at most `limit`."""
        return self.several((limit,))[0]

    def counts(self, n: int) -> list[int]:
        """Few numbers, as Python takes them faster."""
        return self.many(n).tolist()  # type: ignore[no-any-return]  # NumPy's stub says Any

    def signed(self, n: int) -> NDArray[np.int64]:
        """The next `n`, as `zigzag` was given them."""
        at = self._from(n)
        return self._signed[at : at + n]

    def end(self) -> None:
        """Nothing may be left."""
        if self._left:
            raise CorruptError(f"packed layout: {self._left} numbers too many")
