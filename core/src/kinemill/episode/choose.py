"""Which chunks a window needs, and which of their messages answer it. No bytes are read here."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from kinemill.episode.gathered import Messages
from kinemill.episode.layout import GroupLayout
from kinemill.episode.window import Window
from kinemill.errors import UsageError

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Frames", "chunks_of", "frames_of", "select"]

_NONE: Final = np.empty(0, np.int64)


class Frames(NamedTuple):
    """Frames of a camera that are to be decoded."""

    wanted: list[int]
    """Index of each among the messages at hand, increasing."""
    starts: list[int | None]
    """Index of the IDR that each depends on; None where that is not at hand."""


# ---- chunks


def _filled(group: GroupLayout, position: int) -> NDArray[np.int64] | None:
    """Chunks that hold the topic; None where all do, or where nobody counted (then all may)."""
    if group.counted is None or group.full:
        return None
    return np.flatnonzero(group.counted.table[position])


def chunks_of(group: GroupLayout, position: int, window: Window) -> set[int]:
    """The chunks that a window needs, as far as the layout tells.

    Args:
        group: The topic's group.
        position: Of the topic in the group.
        window: What is asked for.
    """
    n = len(group)
    if n == 0:
        return set()
    if window.step_range is not None:
        return _chunks_of_steps(group, position, window.step_range)
    filled = _filled(group, position)
    if filled is not None and len(filled) == 0:
        return set()
    if window.span_ns is not None:
        start, end = window.span_ns
        inside = ((group.t_last_ns >= start) & (group.t_first_ns < end)).nonzero()[0]
        return set((inside if filled is None else np.intersect1d(inside, filled)).tolist())
    t_first = group.t_first_ns if filled is None else group.t_first_ns[filled]
    t_last = group.t_last_ns if filled is None else group.t_last_ns[filled]
    picked = _of_neighbours(group, t_first, window)
    if picked is None:
        query = np.array(window.times_ns, np.int64)
        picked = _ordered(group, t_first, query) if group.in_order else _unordered(t_first, t_last, query)
    if window.pick == "nearest":
        rate = group.topics[position].rate_hz
        period = int(1e9 / rate) if rate else None
        last = len(t_first) - 1
        for t in window.times_ns:
            at = max(int(np.searchsorted(t_first, t, "right")) - 1, 0) if group.in_order else max(picked)
            if at < last and (period is None or t > int(t_last[at]) - period):
                picked.add(at + 1)
    return picked if filled is None else set(filled[list(picked)].tolist())


def _of_neighbours(group: GroupLayout, t_first: NDArray[np.int64], window: Window) -> set[int] | None:
    """As `_ordered`, where all times lie in one chunk or two: the commonest question, a frame or a short window."""
    if group.skew_ns or not group.in_order:
        return None
    low = bisect_right(t_first, window.first_ns) - 1
    high = low if window.last_ns == window.first_ns else bisect_right(t_first, window.last_ns, max(low, 0)) - 1
    return {max(low, 0), max(high, 0)} if high - low <= 1 else None


def _ordered(group: GroupLayout, t_first: NDArray[np.int64], query: NDArray[np.int64]) -> set[int]:
    """Where the last message at or before each time may lie, in a group whose chunks follow each other."""
    at = t_first.searchsorted(query, "right") - 1
    found = set(at.tolist())
    if group.skew_ns:
        near = at[(at > 0) & (query - t_first[at] < group.skew_ns)]
        found.update((near - 1).tolist())
    if -1 in found:
        found.discard(-1)
        found.add(0)
    return found


def _unordered(t_first: NDArray[np.int64], t_last: NDArray[np.int64], query: NDArray[np.int64]) -> set[int]:
    """The same where chunks overlap in time, because of late messages or unaligned cameras."""
    found: set[int] = set()
    for t in query.tolist():
        whole = t_last[t_last <= t]
        latest = int(whole.max()) if len(whole) else int(t_first.min())
        found.update(np.flatnonzero((t_first <= t) & (t_last >= latest)).tolist() or [int(t_first.argmin())])
    return found


def _chunks_of_steps(group: GroupLayout, position: int, steps: tuple[int, int, int]) -> set[int]:
    if group.counted is None:
        raise UsageError(
            f"group {group.name}: steps need a layout with message counts; ask by time, or repack the file"
        )
    ends = group.counted.ends[position]
    first, count, stride = steps
    total = group.counted.total(position)
    if total == 0:
        return set()
    last = first + (count - 1) * stride
    if first >= 0 and last < total:
        low = bisect_right(ends, first)
        high = low if count == 1 else bisect_right(ends, last, low)
        if stride == 1 and group.full:
            return set(range(low, high + 1))
        if high == low:
            return {low}
    numbers = np.clip(first + stride * np.arange(count), 0, total - 1)
    return set(np.searchsorted(ends, numbers, "right").tolist())


# ---- messages


def select(
    group: GroupLayout, position: int, window: Window, messages: Messages, held: Sequence[int]
) -> tuple[NDArray[np.int64], NDArray[np.bool_], set[int]]:
    """(index into messages per answer, padding, chunks that are needed besides).

    Args:
        group: The topic's group.
        position: Of the topic in the group.
        window: What is asked for.
        messages: The topic's messages at hand.
        held: Numbers of the chunks at hand, increasing.
    """
    if window.step_range is not None:
        return _select_steps(group, position, window.step_range, messages)
    time = messages.time
    order: NDArray[np.int64] | None = None
    if not (messages.in_order and group.in_order):
        order = np.argsort(time, kind="stable")
        time = time[order]
    if window.span_ns is not None:
        low, high = time.searchsorted(window.span_ns).tolist()
        picked = np.arange(low, high)
        return (picked if order is None else order[picked]), np.zeros(high - low, np.bool_), set()
    sure = group.counted is not None and group.in_order  # then the last chunk that starts in time holds the answer
    if len(window.times_ns) == 1 and order is None and sure and window.pick == "before":
        at_once = _select_one(group, position, window, time)
        if at_once is not None:
            return at_once
    query = np.array(window.times_ns, np.int64)
    picked = time.searchsorted(query, "right") - 1
    if not len(time) or window.first_ns < int(time[0]):
        if sure or not len(time):
            need = _earlier(group, position, held) if sure else _closer(group, position, window, query, held=held)
            if need or not len(time):
                return _NONE, np.ones(len(query), np.bool_), need
        pad = picked < 0
        np.maximum(picked, 0, out=picked)
    else:
        pad = np.zeros(len(query), np.bool_)
    if window.pick == "nearest":
        after = np.minimum(picked + 1, len(time) - 1)
        picked = np.where(np.abs(time[after] - query) < np.abs(query - time[picked]), after, picked)
        pad = np.zeros(len(query), np.bool_)
    if window.pick == "nearest" or not sure:
        need = _closer(group, position, window, query, found=time[picked], held=held)
        if need:
            return _NONE, np.ones(len(query), np.bool_), need
    if window.tolerance_ns is not None:
        pad = pad | (np.abs(query - time[picked]) > window.tolerance_ns)
    else:
        end = group.end_ns
        if window.last_ns > end:
            rate = group.topics[position].rate_hz
            pad = pad | ((query > end) & (query - time[picked] > (int(1e9 / rate) if rate else 0)))
        if window.pick == "nearest":
            pad = pad | (query < int(group.t_first_ns.min()))
    return (picked if order is None else order[picked]), pad, set()


def _select_one(
    group: GroupLayout, position: int, window: Window, time: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.bool_], set[int]] | None:
    """The same for the commonest question, one frame of a camera; None where nothing at hand is old enough."""
    (t,) = window.times_ns
    at = bisect_right(time, t) - 1
    if at < 0:
        return None
    age = t - int(time[at])
    if window.tolerance_ns is not None:
        pad = age > window.tolerance_ns
    elif t > group.end_ns:
        rate = group.topics[position].rate_hz
        pad = age > (int(1e9 / rate) if rate else 0)
    else:
        pad = False
    return np.array((at,)), np.array((pad,)), set()


def _select_steps(
    group: GroupLayout, position: int, steps: tuple[int, int, int], messages: Messages
) -> tuple[NDArray[np.int64], NDArray[np.bool_], set[int]]:
    first, count, stride = steps
    numbers = np.arange(first, first + stride * count, stride)
    total = group.counted.total(position) if group.counted is not None else 0
    inside = first >= 0 and first + (count - 1) * stride < total
    pad = np.zeros(count, np.bool_) if inside else (numbers < 0) | (numbers >= total)
    if total == 0:
        return _NONE, pad, set()
    wanted = numbers + 1 if inside else numbers.clip(0, total - 1) + 1  # sequence numbers start at 1
    begin = messages.numbered_from()
    if begin is not None:
        picked = wanted - begin
        if begin <= wanted[0] and wanted[-1] < begin + len(messages.time):
            return picked, pad, set()
    sequence = messages.sequence
    if group.counted is not None and np.count_nonzero(sequence[1:] <= sequence[:-1]) == 0:
        return sequence.searchsorted(wanted), pad, set()
    order = sequence.argsort(kind="stable")
    return order[sequence[order].searchsorted(wanted)], pad, set()


def _earlier(group: GroupLayout, position: int, held: Sequence[int]) -> set[int]:
    """The chunk before those at hand that holds the topic, if there is one."""
    filled = _filled(group, position)
    numbers = np.arange(len(group)) if filled is None else filled
    before = numbers[numbers < held[0]] if held else numbers[:1]
    return {int(before[-1])} if len(before) else set()


def _closer(
    group: GroupLayout,
    position: int,
    window: Window,
    query: NDArray[np.int64],
    *,
    found: NDArray[np.int64] | None = None,
    held: Sequence[int],
) -> set[int]:
    """Chunks, not at hand, that may hold a better answer than the one found; the nearest ones, twice as many each time.

    Chunks of an uncounted or unordered group, and a rate that is only nominal, promise nothing: this proves the answer.
    """
    filled = _filled(group, position)
    numbers = np.arange(len(group)) if filled is None else filled
    numbers = np.setdiff1d(numbers, np.asarray(held, np.int64), assume_unique=True)
    if not len(numbers):
        return set()
    first, last = group.t_first_ns[numbers], group.t_last_ns[numbers]
    away: NDArray[np.int64] | None = None
    for i, t in enumerate(query.tolist()):
        best = None if found is None else int(found[i])
        distance = np.maximum(np.maximum(first - t, t - last), 0)
        if best is None:
            may = np.ones(len(numbers), np.bool_)
        elif window.pick == "nearest":
            # of two that are as near, the one before is the answer
            may = (distance < abs(best - t)) | ((distance == abs(best - t)) & (best > t) & (last < t))
        elif best <= t:
            may = (first <= t) & (last > best)
        else:  # nothing at or before it so far: padding, which is the first message there is
            may = first < best
        if may.any():
            ranked = np.where(may, distance, np.iinfo(np.int64).max)
            away = ranked if away is None else np.minimum(away, ranked)
    if away is None:
        return set()
    order = np.argsort(away, kind="stable")[: max(1, len(held))]
    return set(numbers[order[away[order] < np.iinfo(np.int64).max]].tolist())


def frames_of(
    group: GroupLayout,
    position: int,
    messages: Messages,
    picked: NDArray[np.int64],
    held: Sequence[int],
    *,
    one_gop: bool,
) -> tuple[Frames, set[int]]:
    """(what is to be decoded, the chunk before where a wanted frame's GOP starts earlier than what is at hand).

    Args:
        group: The camera's group.
        position: Of the camera in the group.
        messages: The camera's messages at hand.
        picked: Indices of the wanted ones.
        held: Numbers of the chunks at hand, increasing.
        one_gop: Chunks hold one GOP each.

    Raises:
        CorruptError: A message that is no H.264.
    """
    wanted = picked.tolist() if len(picked) == 1 else sorted(set(picked.tolist()))
    starts = messages.gop_starts(wanted, one_gop=one_gop)
    need: set[int] = set()
    if None in starts:
        chunk = messages.chunk_of(wanted[starts.index(None)])
        need = _earlier(group, position, [k for k in held if k >= chunk])
        while need and need <= set(held):
            need = _earlier(group, position, sorted(need))
    return Frames(wanted, starts), need
