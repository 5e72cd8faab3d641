"""Where the `kinemill-node` script starts; see `kinemill.entry`."""

from kinemill.entry import start

__all__ = ["main"]


def main() -> None:
    """Entry of the `kinemill-node` script."""
    start("kinemill.agents.cli")
