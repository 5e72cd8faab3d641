"""Let torchvision's Python half import beside a CPU torch: empty the module that registers its C++ operators."""

from __future__ import annotations

import sys
from pathlib import Path


def main(env: Path) -> None:
    """Patch the virtual environment at `env`; nothing on any data path is touched."""
    (found,) = env.glob("lib/python3*/site-packages/torchvision/_meta_registrations.py")
    found.write_text("# emptied: the C++ operators are not loaded here\n", encoding="utf-8")
    sys.stderr.write(f"patched: {found.name} (C++ operators not registered)\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
