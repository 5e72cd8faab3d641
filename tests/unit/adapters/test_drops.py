"""The generated robot is worth learning from, and the same for the same seed."""

from __future__ import annotations

import numpy as np
import pytest

from kinemill.pipelines.drops.arm import GRIPPER_OPEN_M, Painter, forward, inverse, simulate
from support.ingest import disc_at


def test_inverse_kinematics_puts_the_wrist_on_the_disc() -> None:
    rng = np.random.default_rng(0)
    goals = np.stack([r * np.array([np.cos(a), np.sin(a)]) for r, a in rng.uniform([0.42, 0.5], [0.92, 2.6], (50, 2))])

    joints = inverse(goals, np.ones(50, dtype=np.int64))

    for q, goal in zip(joints, goals, strict=True):
        assert forward(q)[2] == pytest.approx(goal, abs=1e-9)
        assert q[3] == GRIPPER_OPEN_M


def test_the_same_seed_moves_in_the_same_way_and_another_does_not() -> None:
    first, second, other = (simulate(np.random.default_rng(s), 2.0) for s in (1, 1, 2))

    assert (first.q == second.q).all()
    assert not (first.q == other.q).all()


def test_the_picture_shows_where_the_disc_is() -> None:
    rng = np.random.default_rng(3)
    motion, painter = simulate(rng, 4.0), Painter(rng, 160, 120)

    for step in range(0, 400, 40):
        seen = disc_at(painter.scene(motion.q[step], motion.goal[step], int(motion.hue[step])))
        assert seen is not None
        x, y, colour = seen
        assert x == pytest.approx(80 + motion.goal[step][0] * 160 / 2.3, abs=2.5)
        assert y == pytest.approx(60 - (motion.goal[step][1] - 0.62) * 160 / 2.3, abs=2.5)
        assert colour == ("magenta" if motion.hue[step] else "cyan")


def test_the_joints_alone_hardly_tell_the_command() -> None:
    motions = [simulate(np.random.default_rng(s), 12.0) for s in range(10)]
    joints = np.concatenate([m.q for m in motions])
    command = np.concatenate([m.command for m in motions])
    inputs = np.c_[joints, joints**2, np.ones(len(joints))]

    fitted = inputs @ np.linalg.lstsq(inputs, command, rcond=None)[0]

    left = ((fitted - command) ** 2).mean(axis=0) / command.var(axis=0)
    assert (left > 0.85).all(), "a policy that ignores the cameras must not be able to do well"
