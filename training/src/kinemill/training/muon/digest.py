"""A 64-bit digest of tensors' bits: equal on equal replicas, different after any single flipped bit.

``sum over elements of bits * (2 position + 1) * salt(name)`` modulo 2^64. A flip of bit b changes the sum
by an odd multiple of 2^b, never by 0. Sums over parts add up to the sum over the whole, so a sharded tensor
and a full one have the same digest. It guards against corruption, not against an adversary.
"""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor

__all__ = ["MASK", "signed", "tensor_digest"]

MASK = (1 << 64) - 1
_CHUNK = 1 << 18  # elements at a time: 2 MiB of int64 stays in a core's cache, and bounds the memory on a GPU
_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def _salt(name: str) -> int:
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little") | 1


def signed(value: int) -> int:
    """The same 64 bits as a signed number, which is what a tensor holds."""
    value &= MASK
    return value - (1 << 64) if value >> 63 else value


@torch.no_grad()
def tensor_digest(tensor: Tensor, name: str, start: int = 0) -> Tensor:
    """Digest of one tensor, or of the part of it that begins at flat position `start`.

    Returns:
        0-dimensional int64 on the tensor's device: no synchronisation with the host.
    """
    total = torch.zeros((), dtype=torch.int64, device=tensor.device)
    bits = tensor.detach().contiguous().view(-1).view(_BITS[tensor.element_size()])
    weights = torch.arange(1, 2 * min(_CHUNK, bits.numel()) + 1, 2, dtype=torch.int64, device=tensor.device)
    for at in range(0, bits.numel(), _CHUNK):
        part = bits[at : at + _CHUNK].to(torch.int64)
        total += (part * weights[: part.numel()]).sum() + part.sum() * (2 * (start + at))
    return total * signed(_salt(name))
