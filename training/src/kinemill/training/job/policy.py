"""A small behaviour-cloning policy: camera frames and joint state in, a chunk of actions out.

Each camera has a convolutional encoder whose feature maps are read as image points (spatial soft-argmax: Levine et al.,
"End-to-End Training of Deep Visuomotor Policies", JMLR 2016, section 5.2), which is what reaching needs and learns from
minutes of data. The points and an encoding of the state go through a residual MLP to all actions of the chunk at once
(action chunking: Zhao et al., "Learning Fine-Grained Bimanual Manipulation", RSS 2023).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

__all__ = ["Encoder", "Policy"]


class Encoder(nn.Module):
    """One camera: RGB frame to image points and how strongly each was seen.

    Args:
        channels: Of the first layer; the second has twice as many.
        keypoints: Feature maps that are read as points.
    """

    def __init__(self, channels: int, keypoints: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, channels, 5, stride=2, padding=2),
            nn.ReLU(),
            nn.Conv2d(channels, 2 * channels, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(2 * channels, keypoints, 1),
        )
        self.temperature = nn.Parameter(torch.ones(()))

    def forward(self, frames: Tensor) -> Tensor:
        """(B, 3, H, W) in -1..1 to (B, 3 * keypoints): x, y in -1..1 and the map's peak."""
        maps = self.layers(frames)
        batch, points, height, width = maps.shape
        weight = torch.softmax(maps.flatten(2) * self.temperature, dim=-1).view_as(maps)
        xs = torch.linspace(-1.0, 1.0, width, device=maps.device)
        ys = torch.linspace(-1.0, 1.0, height, device=maps.device)
        x = (weight.sum(2) * xs).sum(-1)
        y = (weight.sum(3) * ys).sum(-1)
        peak = torch.tanh(maps.amax((2, 3)))
        return torch.stack([x, y, peak], dim=-1).view(batch, 3 * points)


class Policy(nn.Module):
    """Frames and state to a chunk of actions, all normalised.

    Args:
        cameras: Number of cameras.
        state_dim: Columns of the state.
        action_dim: Columns of the action.
        chunk_steps: Actions to predict at once.
        channels: See `Encoder`.
        keypoints: See `Encoder`.
        hidden: Width of the MLPs.
    """

    def __init__(
        self,
        *,
        cameras: int,
        state_dim: int,
        action_dim: int,
        chunk_steps: int,
        channels: int = 16,
        keypoints: int = 16,
        hidden: int = 128,
    ) -> None:
        super().__init__()
        self.chunk_steps, self.action_dim = chunk_steps, action_dim
        self.encoders = nn.ModuleList(Encoder(channels, keypoints) for _ in range(cameras))
        self.state = nn.Sequential(nn.Linear(state_dim + 1, hidden), nn.ReLU())
        self.join = nn.Linear(cameras * 3 * keypoints + hidden, hidden)
        self.mix = nn.Sequential(nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, hidden))
        self.norm = nn.LayerNorm(hidden)
        self.head = nn.Linear(hidden, chunk_steps * action_dim)

    def forward(self, frames: Tensor, state: Tensor, state_known: Tensor) -> Tensor:
        """Predict.

        Args:
            frames: (B, cameras, H, W, 3) uint8.
            state: (B, state_dim), normalised.
            state_known: (B, 1), 0 where the state is to be disregarded.

        Returns:
            (B, chunk_steps, action_dim), normalised.
        """
        pixels = frames.to(torch.float32).div(127.5).sub(1.0).permute(1, 0, 4, 2, 3)
        seen = [encoder(view) for encoder, view in zip(self.encoders, pixels, strict=True)]
        felt = self.state(torch.cat([state * state_known, state_known], dim=1))
        joined = torch.relu(self.join(torch.cat([*seen, felt], dim=1)))
        mixed = self.norm(joined + self.mix(joined))
        actions: Tensor = self.head(mixed).view(-1, self.chunk_steps, self.action_dim)
        return actions
