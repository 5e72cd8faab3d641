"""Planes to RGB on whatever device the tensor lies: half the bytes to move, no conversion on the CPU.

BT.601 at limited range, which is what H.264 without colour information means and what FFmpeg's own
conversion assumes (ITU-R BT.601-7, section 2.5; studio range 16..235 and 16..240).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["yuv420_to_rgb"]


def yuv420_to_rgb(planes: Tensor) -> Tensor:
    """I420 planes to RGB.

    Args:
        planes: uint8 (..., H * 3 / 2, W): Y, then U and V at half size, as `pixels="yuv420"` gives them.

    Returns:
        uint8 (..., H, W, 3) on the same device.
    """
    import torch
    from torch.nn.functional import interpolate

    *lead, tall, width = planes.shape
    height = tall * 2 // 3
    flat = planes.reshape(-1, tall, width)
    luma = flat[:, :height].float()
    chroma = flat[:, height:].reshape(-1, 2, height // 2, width // 2).float() - 128.0
    u, v = interpolate(chroma, size=(height, width), mode="nearest").unbind(1)
    y = (luma - 16.0) * (255.0 / 219.0)
    rgb = torch.stack(
        (
            y + v * (1.402 * 255.0 / 224.0),
            y - u * (0.344136 * 255.0 / 224.0) - v * (0.714136 * 255.0 / 224.0),
            y + u * (1.772 * 255.0 / 224.0),
        ),
        dim=-1,
    )
    return rgb.round_().clamp_(0, 255).to(torch.uint8).reshape(*lead, height, width, 3)
