"""The robot that the generated drops show: a planar arm, the disc it is sent to, and its picture.

A goal disc jumps about and drifts. The command is always the joint position that reaches the disc
(two-link inverse kinematics); the arm sets out late, moves at one speed and seldom arrives. So the command can be
read off the picture, and only poorly off the joints: a policy that ignores the cameras cannot be good.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["JOINTS", "Motion", "Painter", "forward", "inverse", "simulate"]

JOINTS = ("shoulder", "elbow", "wrist", "gripper")
"""Three angles in rad and the opening of the gripper in m."""

UPPER_M, FORE_M, HAND_M = 0.55, 0.45, 0.14
GRIPPER_OPEN_M = 0.08
STEP_S = 0.01
DEAD_TIME_S = 0.3
SPEED_RAD_S = 1.2
"""The arm sets out 0.3 s after its command and moves at one speed, so its own motion tells little of the goal."""

F64 = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Motion:
    """One simulated episode on a clock of 10 ms steps from 0."""

    t_s: F64
    """(n,)"""
    q: F64
    """(n, 4) measured joints: rad, rad, rad, m."""
    command: F64
    """(n, 4) where the controller wants them."""
    goal: F64
    """(n, 2) the disc, m."""
    hue: NDArray[np.int64]
    """(n,) colour of the disc; 1 asks for an open gripper."""

    def at(self, t_s: float) -> int:
        """Index of the step at or just before `t_s`."""
        return min(len(self.t_s) - 1, round(t_s / STEP_S))


def forward(q: F64) -> F64:
    """(4, 2) points of the arm in m: base, elbow, wrist, finger tips."""
    a, b, c = q[0], q[0] + q[1], q[0] + q[1] + q[2]
    base = np.zeros(2)
    elbow = base + UPPER_M * np.array([np.cos(a), np.sin(a)])
    wrist = elbow + FORE_M * np.array([np.cos(b), np.sin(b)])
    tip = wrist + HAND_M * np.array([np.cos(c), np.sin(c)])
    return np.stack([base, elbow, wrist, tip])


def inverse(goal: F64, opened: NDArray[np.int64]) -> F64:
    """(n, 4) joints that put the wrist on `goal` (n, 2), the hand pointing straight up."""
    x, y = goal[:, 0], goal[:, 1]
    cos_elbow = (x * x + y * y - UPPER_M**2 - FORE_M**2) / (2 * UPPER_M * FORE_M)
    elbow = np.arccos(np.clip(cos_elbow, -1.0, 1.0))
    shoulder = np.arctan2(y, x) - np.arctan2(FORE_M * np.sin(elbow), UPPER_M + FORE_M * np.cos(elbow))
    wrist = np.pi / 2 - shoulder - elbow
    return np.stack([shoulder, elbow, wrist, opened * GRIPPER_OPEN_M], axis=1)


def _random_goal(rng: np.random.Generator) -> F64:
    radius, angle = rng.uniform(0.42, 0.92), rng.uniform(np.pi * 0.16, np.pi * 0.84)
    return np.array([radius * np.cos(angle), radius * np.sin(angle)])


def simulate(rng: np.random.Generator, seconds: float) -> Motion:
    """One episode of `seconds`; the same generator state gives the same motion."""
    n = round(seconds / STEP_S) + 1
    t_s: F64 = np.arange(n, dtype=np.float64) * STEP_S
    goal = np.empty((n, 2))
    hue = np.empty(n, dtype=np.int64)
    here = 0
    while here < n:
        until = min(n, here + int(rng.uniform(0.6, 1.1) / STEP_S))
        start = _random_goal(rng)
        drift = rng.uniform(-0.12, 0.12, size=2)
        goal[here:until] = start + drift * (t_s[here:until, None] - t_s[here])
        hue[here:until] = rng.integers(0, 2)
        here = until
    command = inverse(goal, hue)
    q: F64 = np.empty((n, 4))
    q[0] = inverse(_random_goal(rng)[None], np.array([0]))[0]
    dead = round(DEAD_TIME_S / STEP_S)
    scale = np.array([1.0, 1.0, 1.0, GRIPPER_OPEN_M])  # the gripper closes within about a second, too
    for i in range(1, n):
        gap = (command[max(0, i - dead)] - q[i - 1]) / scale
        length = float(np.linalg.norm(gap))
        q[i] = q[i - 1] + gap * scale * min(1.0, SPEED_RAD_S * STEP_S / max(length, 1e-9))
    q = np.asarray(q + rng.normal(0.0, [0.002, 0.002, 0.002, 0.0002], size=q.shape), dtype=np.float64)
    return Motion(t_s, q, command, goal, hue)


class Painter:
    """Draws the arm and the disc as a camera would see them: texture behind, sensor noise on top."""

    def __init__(self, rng: np.random.Generator, width: int, height: int) -> None:
        self.width, self.height = width, height
        self._rng = rng
        coarse = rng.uniform(60, 150, size=(2 * height // 12 + 2, 2 * width // 12 + 2, 1))
        tint = rng.uniform(0.85, 1.15, size=3)
        texture = np.kron(coarse, np.ones((12, 12, 1)))[: 2 * height, : 2 * width]
        texture = (texture + np.roll(texture, 5, 0) + np.roll(texture, 7, 1) + np.roll(texture, (3, 3), (0, 1))) / 4
        self._texture = (texture * tint).astype(np.float32)
        self._noise = rng.normal(0.0, 3.0, size=(8, height, width, 3)).astype(np.float32)

    def scene(self, q: F64, goal: F64, hue: int) -> NDArray[np.uint8]:
        """(height, width, 3) RGB of the fixed camera that sees the whole workspace."""
        return self._paint(q, goal, hue, centre=np.array([0.0, 0.62]), span_m=2.3, shift=(0, 0))

    def wrist(self, q: F64, goal: F64, hue: int) -> NDArray[np.uint8]:
        """(height, width, 3) RGB of the camera that rides above the wrist."""
        at = forward(q)[2]
        shift = (int(-at[1] * self.height / 3) % self.height, int((at[0] + 1) * self.width / 3) % self.width)
        return self._paint(q, goal, hue, centre=at, span_m=1.2, shift=shift)

    def _paint(
        self, q: F64, goal: F64, hue: int, *, centre: F64, span_m: float, shift: tuple[int, int]
    ) -> NDArray[np.uint8]:
        scale = self.width / span_m
        image = self._texture[shift[0] : shift[0] + self.height, shift[1] : shift[1] + self.width].copy()

        def pixel(point: F64) -> F64:
            return np.array(
                [(point[0] - centre[0]) * scale + self.width / 2, (centre[1] - point[1]) * scale + self.height / 2]
            )

        points = [pixel(p) for p in forward(q)]
        self._capsule(image, points[0], points[1], 0.055 * scale, (205, 205, 200))
        self._capsule(image, points[1], points[2], 0.045 * scale, (170, 175, 185))
        along = points[3] - points[2]
        across = np.array([-along[1], along[0]]) / max(1e-6, float(np.hypot(*along)))
        opening = (0.02 + max(0.0, float(q[3]))) * scale
        for side in (-1, 1):
            finger = across * side * opening / 2
            self._capsule(image, points[2] + finger, points[3] + finger, 0.016 * scale, (40, 45, 55))
        disc = pixel(goal)
        self._capsule(image, disc, disc, 0.085 * scale, (235, 40, 200) if hue else (30, 210, 235))
        noise = self._noise[self._rng.integers(0, 8)]
        image += np.roll(noise, int(self._rng.integers(0, self.width)), axis=1)
        return np.clip(image, 0, 255).astype(np.uint8)

    def _capsule(self, image: NDArray[np.float32], a: F64, b: F64, radius: float, colour: tuple[int, int, int]) -> None:
        """A line from `a` to `b` with round ends, its border one pixel soft."""
        x0 = max(0, int(min(a[0], b[0]) - radius - 2))
        x1 = min(self.width, int(max(a[0], b[0]) + radius + 3))
        y0 = max(0, int(min(a[1], b[1]) - radius - 2))
        y1 = min(self.height, int(max(a[1], b[1]) + radius + 3))
        if x0 >= x1 or y0 >= y1:
            return
        px = np.arange(x0, x1, dtype=np.float32)[None, :] - np.float32(a[0])
        py = np.arange(y0, y1, dtype=np.float32)[:, None] - np.float32(a[1])
        dx, dy = float(b[0] - a[0]), float(b[1] - a[1])
        along = np.clip((px * dx + py * dy) / max(1e-6, dx * dx + dy * dy), 0.0, 1.0)
        distance = np.hypot(px - along * dx, py - along * dy)
        alpha = np.clip(radius - distance + 0.5, 0.0, 1.0)[..., None]
        patch = image[y0:y1, x0:x1]
        patch += alpha * (np.array(colour, dtype=np.float32) - patch)
