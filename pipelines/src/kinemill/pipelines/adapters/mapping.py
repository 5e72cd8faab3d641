"""From the vendor's names, units and orders to kinemill's, once for all formats."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kinemill.errors import DataError, UnsupportedError
from kinemill.pipelines.adapters.base import StateTrack
from kinemill.pipelines.adapters.vendor import CameraMap, StateMap, VendorSpec

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Plan", "camera_topic", "map_state", "plan_topics", "quaternion_norm"]


def camera_topic(name: str) -> str:
    """`/cam/<name>` for a camera that no YAML names, from the telling part of the vendor's name."""
    short = re.sub(r"^(observation\.images?\.|observations/images/|/)", "", name)
    short = re.sub(r"(/image_raw)?(/compressed)?$", "", short)
    return "/cam/" + (re.sub(r"[^A-Za-z0-9_]+", "_", short).strip("_").lower() or "main")


def state_topic(name: str) -> str:
    """The kinemill topic of a numeric topic that no YAML names."""
    known = {
        "observation.state": "/joint_states",
        "state": "/joint_states",
        "observations/qpos": "/joint_states",
        "actions": "/action",
    }
    return known.get(name, "/" + re.sub(r"[^A-Za-z0-9_/]+", "_", name).strip("/_"))


def unique(pairs: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Vendor name -> topic, a second claim to one topic getting `_2` at its end."""
    out: dict[str, str] = {}
    for name, topic in pairs:
        taken = set(out.values())
        number = 1
        while (candidate := topic if number == 1 else f"{topic}_{number}") in taken:
            number += 1
        out[name] = candidate
    return out


@dataclass(frozen=True, slots=True)
class Plan:
    """Which of a recording's topics are read, and as what."""

    cameras: dict[str, CameraMap]
    states: dict[str, StateMap]
    missing: tuple[str, ...]
    """kinemill topics that the vendor promises and the recording lacks."""
    unmapped: tuple[str, ...]
    """Vendor topics that nobody asked for and nobody told to ignore."""


def plan_topics(vendor: VendorSpec, cameras: Iterable[str], states: Iterable[str], others: Iterable[str] = ()) -> Plan:
    """What to read.

    Args:
        vendor: The YAML.
        cameras: Vendor names of cameras that the recording has.
        states: Vendor names of numeric topics that it has.
        others: Vendor names of topics that cannot be read.
    """
    cameras, states = list(cameras), list(states)

    def ignored(name: str) -> bool:
        return any(fnmatch.fnmatchcase(name, pattern) for pattern in vendor.ignore)

    if vendor.cameras is None:
        names = unique((n, camera_topic(n)) for n in cameras if not ignored(n))
        chosen_cameras = {n: CameraMap(topic, required=False) for n, topic in names.items()}
    else:
        chosen_cameras = {n: m for n, m in vendor.cameras.items() if n in cameras}
    if vendor.states is None:
        names = unique((n, state_topic(n)) for n in states if not ignored(n))
        chosen_states = {n: StateMap(topic, required=False) for n, topic in names.items()}
    else:
        chosen_states = {n: m for n, m in vendor.states.items() if n in states}
    wanted: dict[str, CameraMap | StateMap] = {**(vendor.cameras or {}), **(vendor.states or {})}
    missing = tuple(m.topic for n, m in wanted.items() if n not in chosen_cameras and n not in chosen_states)
    left = [n for n in (*cameras, *states, *others) if n not in chosen_cameras and n not in chosen_states]
    return Plan(chosen_cameras, chosen_states, missing, tuple(n for n in left if not ignored(n)))


def map_state(
    source: str, spec: StateMap, names: Sequence[str], *, t_ns: NDArray[Any], values: NDArray[Any], where: str
) -> StateTrack:
    """One numeric topic in kinemill's columns, units and quaternion order.

    Args:
        source: The vendor's topic.
        spec: How the vendor describes it.
        names: The vendor's column names; empty strings where it has none.
        t_ns: (n,) int64.
        values: (n, d) numbers.
        where: What to name in an error.

    Raises:
        DataError: A column that the YAML names is not there.
        UnsupportedError: A width of zero.
    """
    import numpy as np

    values = np.asarray(values, dtype=np.float64)
    if values.ndim == 1:
        values = values[:, None]
    if values.ndim != 2 or values.shape[1] == 0:
        raise UnsupportedError(f"{where}: '{source}' has shape {values.shape}, not rows of at least one column")
    if not spec.columns:
        chosen = list(range(values.shape[1]))
        out_names = [n or f"{spec.topic.strip('/')}_{i}" for i, n in enumerate(names)] or [
            f"{spec.topic.strip('/')}_{i}" for i in chosen
        ]
        from kinemill.pipelines.adapters.vendor import JointMap

        plain = JointMap("x", 0, unit=spec.unit)
        out, units = values * plain.factor, [plain.unit_after] * len(chosen)
    else:
        chosen, out_names, units = [], [], []
        factors = []
        for column in spec.columns:
            if isinstance(column.source, int):
                index = column.source
            else:
                index = names.index(column.source) if column.source in names else -1
            if not 0 <= index < values.shape[1]:
                raise DataError(
                    f"{where}: '{source}' has no column {column.source!r}; "
                    f"it has {', '.join(n for n in names if n) or f'{values.shape[1]} columns without names'}"
                )
            chosen.append(index)
            out_names.append(column.name)
            units.append(column.unit_after)
            factors.append(column.factor)
        out = values[:, chosen] * np.array(factors)
    for quaternion in spec.quaternions:
        if quaternion.first not in out_names or out_names.index(quaternion.first) + 4 > len(out_names):
            raise DataError(f"{where}: no four columns from '{quaternion.first}' on in {spec.topic}")
        at = out_names.index(quaternion.first)
        if quaternion.order == "wxyz":
            out[:, at : at + 4] = out[:, [at + 1, at + 2, at + 3, at]]
    return StateTrack(
        topic=spec.topic,
        source=source,
        names=tuple(out_names),
        units=units[0] if len(set(units)) == 1 else ",".join(units),
        rate_hz=spec.rate_hz,
        t_ns=np.asarray(t_ns, dtype=np.int64),
        values=out,
    )


def quaternion_norm(track: StateTrack, spec: StateMap) -> float:
    """The largest distance of any mapped quaternion's norm from 1; 0 where there is none."""
    import numpy as np

    worst = 0.0
    for quaternion in spec.quaternions:
        at = track.names.index(quaternion.first)
        norms = np.linalg.norm(track.values[:, at : at + 4], axis=1)
        worst = max(worst, float(np.abs(norms - 1).max(initial=0)))
    return worst
