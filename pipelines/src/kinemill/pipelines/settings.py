"""Settings of the ingestion plane: `/etc/kinemill/pipelines.toml`. Secrets stand in the environment only."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from kinemill.settings import cache_dir

__all__ = ["PipelineSettings"]


def _work_dir() -> Path:
    return cache_dir() / "ingest"


@dataclass(frozen=True, slots=True)
class PipelineSettings:
    """Where things are, and what one parser may use."""

    catalog_url: str = field(default="", metadata={"env": "KINEMILL_CATALOG_URL"})
    """`postgresql://user@host/database`; a password belongs into PGPASSFILE or PGPASSWORD."""
    store_url: str = field(default="", metadata={"env": "KINEMILL_STORE_URL"})
    """The corpus: `s3://bucket/prefix?endpoint=...` or `file:///folder`."""
    warehouse_url: str = field(default="", metadata={"env": "KINEMILL_WAREHOUSE_URL"})
    """Where the Iceberg tables' files lie; forms as `store_url`."""
    work_dir: Path = field(default_factory=_work_dir, metadata={"env": "KINEMILL_INGEST_DIR"})
    """Scratch of ingestion; a local disk."""
    workers: int = 0
    """Recordings side by side; 0 is one per core."""
    parser_memory_mib: int = 4096
    """Address space of one parser."""
    parser_cpu_s: int = 3600
    """CPU time of one parser, over all of a recording."""

    def __post_init__(self) -> None:
        if self.workers < 0 or self.parser_memory_mib < 256 or self.parser_cpu_s < 1:
            raise ValueError("workers >= 0, parser_memory_mib >= 256, parser_cpu_s >= 1")
