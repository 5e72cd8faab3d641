"""What the inventory tells the optimizer about this cluster: `/etc/kinemill/muon.toml`."""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["MuonSettings", "parse"]


@dataclass(frozen=True, slots=True)
class MuonSettings:
    """Facts of the cluster; all optional, 0 or below is refused."""

    node_threshold: int | None = field(default=None, metadata={"env": "KINEMILL_MUON_NODE_THRESHOLD"})
    """Shard over the world up to this many nodes, over the node beyond; `train strategy --measure` prints it."""
    fabric_gbps: float | None = field(default=None, metadata={"env": "KINEMILL_FABRIC_GBPS"})
    """Bandwidth of one node to the fabric, one way, all its ports, Gbit/s: the vendor's figure."""
    link_gbytes_per_s: float = 450.0
    """GPU to GPU inside the node, one way, GB/s. 450 is the vendor sheet's NVLink 4 figure (H100, H200)."""
    rank_tflops: float = 500.0
    """What a rank reaches in Newton-Schulz, bf16 TFLOP/s. 500 is a guess for H100-class parts; --measure finds it."""
    fabric_latency_us: float = 12.0
    """A collective's cost per hop, microseconds: a guess; --measure finds it."""
    efficiency: float = 0.8
    """Share of the nominal bandwidth that collectives reach: a guess."""

    def __post_init__(self) -> None:
        if self.node_threshold is not None and self.node_threshold < 0:
            raise ValueError(f"node_threshold {self.node_threshold}: 0 (never over the world) or more")
        for name in ("fabric_gbps", "link_gbytes_per_s", "rank_tflops", "efficiency"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ValueError(f"{name} {value}: must be above 0")
        if not self.fabric_latency_us >= 0:
            raise ValueError(f"fabric_latency_us {self.fabric_latency_us}: must not be negative")


def parse(text: str) -> MuonSettings:
    """Settings from the text of a muon.toml.

    Raises:
        ConfigError: Not TOML, a key that nobody declared, a wrong type, or a figure that cannot be.
    """
    import tomllib

    from kinemill.errors import ConfigError
    from kinemill.records import decode

    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as exc:
        raise ConfigError(f"muon.toml: not valid TOML ({exc})") from exc
    return decode(MuonSettings, data, where="muon.toml")
