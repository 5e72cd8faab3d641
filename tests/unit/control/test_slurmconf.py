"""slurm.conf is read strictly."""

from __future__ import annotations

import pytest

from kinemill.control.slurmconf import parse, parse_cgroup, parse_gres
from kinemill.errors import ConfigError


def test_a_sound_file() -> None:
    found = parse(
        "# a comment\nClusterName=x  # and another\nSlurmctldHost=a\nSlurmctldHost=b\n"
        "NodeName=n[1-2] CPUs=2 State=UNKNOWN\nPartitionName=main Nodes=ALL\n"
    )
    assert found.controllers == ("a", "b")
    assert found.settings == {"ClusterName": "x"}
    assert found.nodes[0]["CPUs"] == "2"
    assert found.partitions[0]["Nodes"] == "ALL"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("SlurmUser=slurm", "ClusterName is missing"),
        ("ClusterName=", "ClusterName has no value"),
        ("ClusterName=a\nSlurmUser=a\nSlurmUser=b", "SlurmUser stands twice"),
        ("ClusterName=a\nnonsense", "line 2: not name=value"),
        ("ClusterName=a SlurmUser=b", "one setting a line"),
        ("ClusterName=a\nNodeName=n1 CPUs=1 CPUs=2", "a name stands twice"),
        ("ClusterName=a\nNodeName=n1 CPUs = 1", "line 2: not name=value"),
    ],
)
def test_faults(text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        parse(text)


def test_neighbours() -> None:
    assert parse_gres("NodeName=n1 Name=gpu File=/dev/nvidia0\n")[0]["Name"] == "gpu"
    assert parse_gres("") == []
    with pytest.raises(ConfigError, match="names no resource"):
        parse_gres("NodeName=n1 File=/dev/nvidia0")
    assert parse_cgroup("CgroupPlugin=disabled") == {"CgroupPlugin": "disabled"}
    for text in ("", "# only words", "CgroupPlugins=disabled"):
        with pytest.raises(ConfigError, match=r"cgroup\.conf"):
            parse_cgroup(text)
