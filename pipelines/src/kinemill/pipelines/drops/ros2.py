"""A ROS 2 vendor: one MCAP bag folder per episode, joints as CDR, pictures as JPEG, written by `rosbags`."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kinemill.pipelines.drops.arm import Motion, Painter, simulate
from kinemill.pipelines.drops.drop import BrokenEpisode, Drop, rng_for

__all__ = ["VENDOR", "jpeg", "write_bag", "write_drop"]

VENDOR = "gantry_ros2"

JOINT_ORDER = (("gripper_joint", 3), ("shoulder_joint", 0), ("elbow_joint", 1), ("wrist_joint", 2))
"""The vendor's names, in the vendor's order, and which of our joints each is."""

CLOCK_START_NS = 47_580_000_000
"""A simulator's clock: it does not start at the epoch, nor at 0."""

SCENE_HZ, WRIST_HZ, STATE_HZ, COMMAND_HZ = 20, 10, 100, 20


def jpeg(image: NDArray[np.uint8], quality: int = 92) -> bytes:
    """`image` (h, w, 3) as a JPEG file."""
    from PIL import Image

    out = io.BytesIO()
    Image.fromarray(image).save(out, "JPEG", quality=quality, subsampling=0)
    return out.getvalue()


def write_bag(path: Path, motion: Motion, painter: Painter, rng: np.random.Generator) -> None:
    """One bag folder at `path`.

    The recorder's log time is a few ms after the header stamp, in which the truth lies; a few joint
    messages carry the stamp of the one before; one topic is of a type that no adapter knows.
    """
    from rosbags.rosbag2 import StoragePlugin, Writer
    from rosbags.typesys import Stores, get_types_from_msg, get_typestore

    store = get_typestore(Stores.ROS2_HUMBLE)
    store.register(get_types_from_msg("uint8 level\nfloat32[] temperatures\n", "gantry_msgs/msg/DriveHealth"))
    types: dict[str, Any] = store.types
    stamp_type, header_type = types["builtin_interfaces/msg/Time"], types["std_msgs/msg/Header"]
    joint_type, image_type = types["sensor_msgs/msg/JointState"], types["sensor_msgs/msg/CompressedImage"]
    health_type = types["gantry_msgs/msg/DriveHealth"]

    def header(t_ns: int, frame: str) -> Any:
        return header_type(stamp=stamp_type(sec=t_ns // 10**9, nanosec=t_ns % 10**9), frame_id=frame)

    def joints(t_ns: int, values: NDArray[np.float64]) -> Any:
        ordered = np.array([values[index] for _, index in JOINT_ORDER])
        none = np.zeros(0)
        names = [name for name, _ in JOINT_ORDER]
        return joint_type(header=header(t_ns, "base"), name=names, position=ordered, velocity=none, effort=none)

    events: list[tuple[int, int, str, Any]] = []
    duration_s = float(motion.t_s[-1])

    def add(t_s: float, topic: str, make: Any) -> None:
        t_ns = CLOCK_START_NS + round(t_s * 1e9)
        delay = int(rng.integers(1_000_000, 6_000_000))
        events.append((t_ns + delay, len(events), topic, make(t_ns)))

    n_state = int(duration_s * STATE_HZ)
    repeats = set(rng.choice(np.arange(10, n_state), size=3, replace=False).tolist())
    for i in range(n_state):
        stamp_s = (i - 1 if i in repeats else i) / STATE_HZ
        values = motion.q[motion.at(i / STATE_HZ)]
        add(stamp_s, "/joint_states", lambda t, v=values: joints(t, v))
    for i in range(int(duration_s * COMMAND_HZ)):
        values = motion.command[motion.at(i / COMMAND_HZ)]
        add(i / COMMAND_HZ, "/arm/command", lambda t, v=values: joints(t, v))
    for name, rate, view in (("front", SCENE_HZ, painter.scene), ("hand", WRIST_HZ, painter.wrist)):
        for i in range(int(duration_s * rate)):
            step = motion.at(i / rate)
            data = np.frombuffer(jpeg(view(motion.q[step], motion.goal[step], int(motion.hue[step]))), dtype=np.uint8)
            add(
                i / rate,
                f"/camera/{name}/image_raw/compressed",
                lambda t, d=data, f=name: image_type(header=header(t, f), format="rgb8; jpeg compressed rgb8", data=d),
            )
    for i in range(int(duration_s)):
        health = health_type(level=0, temperatures=np.array([41.0, 40.5], dtype=np.float32))
        add(float(i), "/drive_health", lambda t, h=health: h)

    msgtypes = {
        "/joint_states": joint_type,
        "/arm/command": joint_type,
        "/drive_health": health_type,
        "/camera/front/image_raw/compressed": image_type,
        "/camera/hand/image_raw/compressed": image_type,
    }
    with Writer(path, version=9, storage_plugin=StoragePlugin.MCAP) as writer:
        connections = {
            topic: writer.add_connection(topic, kind.__msgtype__, typestore=store) for topic, kind in msgtypes.items()
        }
        for log_ns, _, topic, message in sorted(events, key=lambda e: e[:2]):
            writer.write(connections[topic], log_ns, store.serialize_cdr(message, msgtypes[topic].__msgtype__))


def write_drop(root: Path, seed: int, *, episodes: int, seconds: float, width: int, height: int) -> Drop:
    """`episodes` good bags and one whose MCAP was cut off on its way."""
    root.mkdir(parents=True)
    for index in range(episodes + 1):
        rng = rng_for(seed, VENDOR, index)
        motion = simulate(rng, seconds)
        write_bag(root / f"run_{index:03d}", motion, Painter(rng, width, height), rng)
    victim = next((root / f"run_{episodes:03d}").glob("*.mcap"))
    data = victim.read_bytes()
    victim.write_bytes(data[: len(data) * 6 // 10])
    return Drop(
        vendor=VENDOR,
        path=root,
        episodes=episodes,
        broken=(BrokenEpisode(f"run_{episodes:03d}", "truncated", "the MCAP ends after 60 % of its bytes"),),
        quirks=(
            "simulator clock that starts at 47.58 s",
            "log time up to 6 ms after the stamp",
            "cameras at 20 and 10 Hz, joints at 100 Hz, commands at 20 Hz",
            "joints in another order and under other names",
            "three joint messages repeat the stamp before",
            "a topic of an unknown message type",
        ),
    )
