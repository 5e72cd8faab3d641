"""Builds the stub libnvidia-ml.so.1 from C, once per source, into the cache."""

from __future__ import annotations

import hashlib
import os
from importlib.resources import files
from pathlib import Path

from kinemill.control.sandbox.host import cache_root, run
from kinemill.errors import ConfigError

__all__ = ["VARIANTS", "library"]

# Variant -> further compiler options; `empty` is a file of 0 bytes, as a broken driver package leaves.
VARIANTS: dict[str, tuple[str, ...]] = {"whole": (), "partial": ("-DPARTIAL",), "empty": ()}
_OPTIONS = ("-O2", "-std=gnu11", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-Wl,-soname,libnvidia-ml.so.1")


def library(variant: str = "whole", *, folder: Path | None = None) -> Path:
    """The built library.

    Args:
        variant: One of `VARIANTS`.
        folder: Where to keep it; the cache unless given.

    Returns:
        Its path.

    Raises:
        ConfigError: The variant is not known.
        MissingToolError: There is no C compiler.
        ExternalError: It does not compile.
    """
    if variant not in VARIANTS:
        raise ConfigError(f"no stub library {variant!r}; known: {', '.join(VARIANTS)}")
    source = files("kinemill.control.sandbox") / "data" / "nvml.c"
    digest = hashlib.sha256(source.read_bytes() + " ".join(_OPTIONS).encode()).hexdigest()[:12]
    target = (folder or cache_root() / "stubs") / f"libnvidia-ml-{variant}-{digest}.so.1"
    if target.is_file():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".{target.name}.{os.getpid()}")
    if variant == "empty":
        temporary.write_bytes(b"")
    else:
        run(["gcc", *_OPTIONS, *VARIANTS[variant], "-o", temporary, "-x", "c", str(source)], deadline_s=120)
    temporary.replace(target)
    return target
