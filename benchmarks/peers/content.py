"""The recording that every peer is given: four cameras, state and action, the same numbers in every environment.

Two static and two moving cameras over a 1/f texture with a moving patch and sensor noise of sigma 2, which is harder to
compress than most real footage. NumPy only.
"""

from __future__ import annotations

import functools

import numpy as np

CAMERAS, FPS, HEIGHT, WIDTH = 4, 30, 480, 640
JOINTS, STATE, HZ, CHUNK = 14, 42, 200, 50
NOISES = 16


@functools.cache
def _texture(seed: int) -> np.ndarray:
    """(HEIGHT + 128, WIDTH + 128, 3) float32 of power 1/f, around 110."""
    rng = np.random.default_rng(seed)
    high, wide = HEIGHT + 128, WIDTH + 128
    f = np.hypot(np.fft.fftfreq(high)[:, None], np.fft.rfftfreq(wide)[None])
    f[0, 0] = 1.0
    planes = []
    for _ in range(3):
        spectrum = np.fft.rfft2(rng.standard_normal((high, wide))) / f
        plane = np.fft.irfft2(spectrum, s=(high, wide))
        planes.append(plane / plane.std() * 35 + 110)
    return np.stack(planes, axis=-1).astype(np.float32)


@functools.cache
def _noises() -> np.ndarray:
    rng = np.random.default_rng(99)
    return (rng.standard_normal((NOISES, HEIGHT, WIDTH, 1)) * 2).astype(np.float32)


def frame(episode: int, camera: int, step: int) -> np.ndarray:
    """uint8 (HEIGHT, WIDTH, 3)."""
    texture = _texture(10 * episode + camera)
    dx = dy = 0
    if camera >= 2:
        dx, dy = int(32 + 30 * np.sin(step / 23)), int(32 + 30 * np.cos(step / 31))
    image = texture[dy : dy + HEIGHT, dx : dx + WIDTH] + _noises()[(step * 7 + camera * 3) % NOISES]
    x = int((step * 3 + camera * 50) % (WIDTH - 96))
    image[200:264, x : x + 64] = image[200:264, x : x + 64] * 0.4 + 120
    return np.clip(image, 0, 255).astype(np.uint8)


def state(t_s: np.ndarray) -> np.ndarray:
    """(n, STATE) float32."""
    phase = np.arange(STATE) / STATE * 6
    return np.sin(t_s[:, None] * 2 + phase).astype(np.float32)


def action(t_s: np.ndarray) -> np.ndarray:
    """(n, JOINTS) float32."""
    phase = np.arange(JOINTS) / JOINTS * 6
    return np.cos(t_s[:, None] * 2 + phase).astype(np.float32)


def psnr(a: np.ndarray, b: np.ndarray) -> float:
    """dB, of luma (BT.601 weights)."""
    weights = np.array([0.299, 0.587, 0.114], np.float32)
    error = ((a.astype(np.float32) @ weights - b.astype(np.float32) @ weights) ** 2).mean()
    return float(10 * np.log10(255**2 / max(error, 1e-9)))
