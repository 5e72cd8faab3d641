"""A vendor's YAML: which topic is which, in what units, order, colours and time base.

It is read with `yaml.safe_load` without anchors, aliases and doubled keys, at most 256 KiB, and every key
must be a known one: a misspelt key would otherwise silently be a default.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any, Literal

from kinemill.errors import ConfigError, ContractError, LimitError, NotFoundError
from kinemill.records import decode, nearest

__all__ = [
    "CameraMap",
    "GateLimits",
    "JointMap",
    "QuaternionMap",
    "StateMap",
    "VendorSpec",
    "builtin_vendors",
    "load_vendor",
    "load_yaml",
]

MAX_YAML_BYTES = 256 << 10

Unit = Literal["rad", "deg", "m", "mm", "cm", "percent", "one"]

_TO_SI: dict[str, tuple[float, str]] = {
    "rad": (1.0, "rad"),
    "deg": (math.pi / 180.0, "rad"),
    "m": (1.0, "m"),
    "mm": (1e-3, "m"),
    "cm": (1e-2, "m"),
    "percent": (1e-2, "one"),
    "one": (1.0, "one"),
}


@dataclass(frozen=True, slots=True)
class CameraMap:
    """One camera of the vendor."""

    topic: str
    """Its kinemill topic, such as `/cam/scene`."""
    rate_hz: float | None = None
    color_order: Literal["rgb", "bgr"] | None = None
    """Where it differs from the vendor's."""
    required: bool = True
    """An episode without it is put aside."""


@dataclass(frozen=True, slots=True)
class JointMap:
    """One column of a state topic."""

    name: str
    """What it is called from here on."""
    source: str | int
    """The vendor's name of it, or its column number where columns have none."""
    unit: Unit = "rad"
    scale: float = 1.0
    """Applied after the unit, such as 0.08 for a gripper given in percent of 8 cm."""
    result: Literal["rad", "m", "one"] | None = None
    """The unit after `scale`, where that changes it."""

    @property
    def factor(self) -> float:
        """What the vendor's number is multiplied with."""
        return _TO_SI[self.unit][0] * self.scale

    @property
    def unit_after(self) -> str:
        """Unit in the episode."""
        return self.result or _TO_SI[self.unit][1]


@dataclass(frozen=True, slots=True)
class QuaternionMap:
    """Four neighbouring columns that are one rotation; stored as x, y, z, w."""

    first: str
    """Name (after mapping) of the first of the four columns."""
    order: Literal["xyzw", "wxyz"]


@dataclass(frozen=True, slots=True)
class StateMap:
    """One numeric topic of the vendor."""

    topic: str
    """Its kinemill topic, such as `/joint_states` or `/action`."""
    columns: tuple[JointMap, ...] = ()
    """Empty takes all columns as they are."""
    unit: Unit = "one"
    """Of all columns, where `columns` is empty."""
    quaternions: tuple[QuaternionMap, ...] = ()
    rate_hz: float | None = None
    required: bool = True


@dataclass(frozen=True, slots=True)
class GateLimits:
    """What the gates hold an episode against. Defaults are guesses, loose on purpose; a vendor tightens them."""

    min_duration_s: float = 0.5
    max_duration_s: float = 6 * 3600.0
    max_gap_s: float = 2.0
    """Between neighbouring messages of one topic."""
    max_repeated_ratio: float = 0.2
    """Share of messages with the stamp of the one before."""
    max_frozen_ratio: float = 0.9
    """Share of pictures that equal the one before."""
    max_missing_frames_ratio: float = 0.0
    """Pictures that the metadata promise and the file lacks."""
    max_abs_value: float = 1e4
    """Of any state column; radians and metres never come near."""
    max_joint_rad: float = 7.0
    """Of any column in rad: more means degrees were given (one turn is 6.28)."""
    quaternion_norm_tolerance: float = 0.02
    require_action: bool = False
    """An episode without a topic whose name ends in `action` is put aside."""
    require_cameras: bool = False


@dataclass(frozen=True, slots=True)
class VendorSpec:
    """Everything that has to be known to read one vendor's recordings.

    Raises:
        ContractError: Two sources map to one topic, or a topic's name does not start with `/`.
    """

    vendor: str
    adapter: str
    """Name of the adapter; `auto` asks each."""
    robot: str = "unknown"
    task: str = ""
    instruction: str = ""
    """Where the recording itself has none."""
    time_base: Literal["header", "log", "publish", "column", "rows"] = "log"
    """Which clock is true: the message's own stamp, the recorder's, the sender's, a column, or row number / fps."""
    fps: float | None = None
    """Rate of rows where a recording has no clock."""
    color_order: Literal["rgb", "bgr"] = "rgb"
    cameras: dict[str, CameraMap] | None = None
    """By the vendor's name; null takes every camera under `/cam/<name>`."""
    states: dict[str, StateMap] | None = None
    """By the vendor's name; null takes every numeric topic."""
    ignore: tuple[str, ...] = ()
    """Vendor topics, with `*`, that are left out without a word."""
    gates: GateLimits = field(default_factory=GateLimits)
    skip_steps: tuple[str, ...] = ()
    """Non-critical steps that this vendor does without."""
    version: int = 1

    def __post_init__(self) -> None:
        topics = [c.topic for c in (self.cameras or {}).values()] + [s.topic for s in (self.states or {}).values()]
        for topic in topics:
            if not topic.startswith("/") or topic != topic.strip() or len(topic) > 128:
                raise ContractError(f"vendor '{self.vendor}': topic {topic!r}: it starts with '/', at most 128 long")
        twice = {t for t in topics if topics.count(t) > 1}
        if twice:
            raise ContractError(f"vendor '{self.vendor}': several sources map to {', '.join(sorted(twice))}")
        if self.fps is not None and not 0 < self.fps <= 100_000:
            raise ContractError(f"vendor '{self.vendor}': fps must be in (0, 100000], not {self.fps}")
        if self.time_base == "rows" and self.fps is None:
            raise ContractError(f"vendor '{self.vendor}': time_base 'rows' needs fps")


def load_yaml(text: str, where: str) -> Any:
    """YAML that somebody typed, refusing what makes YAML dangerous or ambiguous.

    Raises:
        ConfigError: Not YAML, an anchor or alias, or a key given twice.
    """
    import yaml

    class Strict(yaml.SafeLoader):
        def compose_node(self, parent: Any, index: Any) -> Any:
            if self.check_event(yaml.AliasEvent):
                raise ConfigError(f"{where}: anchors and aliases (& and *) are not allowed; write the value out")
            return super().compose_node(parent, index)

        def construct_mapping(self, node: Any, deep: bool = False) -> Any:
            seen: set[Any] = set()
            for key_node, _ in node.value:
                key = key_node.value
                if not isinstance(key, str):
                    raise ConfigError(f"{where}: a list or mapping as a key (line {key_node.start_mark.line + 1})")
                if key in seen:
                    raise ConfigError(f"{where}: key '{key}' is given twice (line {key_node.start_mark.line + 1})")
                seen.add(key)
            return super().construct_mapping(node, deep)

    try:
        return yaml.load(text, Loader=Strict)  # noqa: S506 - a stricter SafeLoader
    except (yaml.YAMLError, RecursionError, ValueError, TypeError, LookupError, AttributeError) as exc:
        # The last three are the library's own way to trip over a tag that its value does not fit, such as `!!int ''`.
        raise ConfigError(f"{where}: not valid YAML ({(str(exc).splitlines() or ['?'])[0]})") from exc


def builtin_vendors() -> list[str]:
    """Names of the vendor files that come with kinemill."""
    folder = resources.files("kinemill.pipelines") / "vendors"
    return sorted(p.name.removesuffix(".yaml") for p in folder.iterdir() if p.name.endswith(".yaml"))


def load_vendor(name: str | Path) -> VendorSpec:
    """A vendor by name (one that comes with kinemill) or by the path of its YAML file.

    Raises:
        NotFoundError: Neither a file nor a known name.
        LimitError: The file is larger than 256 KiB.
        UnknownKeyError: A key that is none; the nearest one is suggested.
        ConfigError: Anything else that is wrong with it.
    """
    path = Path(name)
    if path.suffix in (".yaml", ".yml"):
        if not path.is_file():
            raise NotFoundError(f"no vendor file {path}")
        if path.stat().st_size > MAX_YAML_BYTES:
            raise LimitError(f"vendor file {path} is larger than {MAX_YAML_BYTES >> 10} KiB")
        text, where = path.read_text(encoding="utf-8"), str(path)
    else:
        known = builtin_vendors()
        if str(name) not in known:
            close = nearest(str(name), known)
            hint = f"did you mean '{close}'?" if close else f"known: {', '.join(known)}, or the path of a YAML file"
            raise NotFoundError(f"no vendor '{name}'; {hint}")
        text = (resources.files("kinemill.pipelines") / "vendors" / f"{name}.yaml").read_text(encoding="utf-8")
        where = f"vendor {name}"
    return decode(VendorSpec, load_yaml(text, where), where=where)
