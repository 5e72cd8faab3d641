"""ROS 1 bags. One file is one episode; what is said of ROS 2 bags holds for them too."""

from __future__ import annotations

from pathlib import Path

from kinemill.pipelines.adapters.base import Adapter, Source
from kinemill.pipelines.adapters.ros2 import Ros2Adapter

__all__ = ["ADAPTER"]


class Ros1Adapter(Ros2Adapter):
    """See the module."""

    name = "ros1"
    version = 1
    generation = 1

    def find(self, root: Path, files: list[Path]) -> list[Source]:
        """Each `.bag` file."""
        return [
            Source(self.name, path.relative_to(root).as_posix() if path != root else path.name, path, (path,))
            for path in files
            if path.suffix == ".bag"
        ]


ADAPTER: Adapter = Ros1Adapter()
