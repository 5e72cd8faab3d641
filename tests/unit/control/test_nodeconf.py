"""Small configuration files are read strictly."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kinemill.control import nodeconf, slurmconf
from kinemill.errors import ConfigError

DBD = "AuthType=auth/munge\nDbdHost=ctl\nStorageType=accounting_storage/mysql\nStorageLoc=db\n"


def test_sound_files_are_read() -> None:
    assert nodeconf.parse_limits("* soft memlock unlimited\n")[0][2] == "memlock"
    assert nodeconf.parse_unit("[Unit]\nRequiresMountsFor=/shared/a\n")["RequiresMountsFor"] == "/shared/a"
    assert nodeconf.parse_sysctl("# a\nvm.swappiness = 1\n") == {"vm.swappiness": "1"}
    assert nodeconf.parse_sshd("PasswordAuthentication no\n") == {"PasswordAuthentication": "no"}
    assert nodeconf.parse_mariadb("[mariadbd]\nskip-networking\nx = 1\n")["x"] == "1"
    assert nodeconf.parse_mount("[Mount]\nWhat=a:/b\nWhere=/c\nType=nfs\n")["What"] == "a:/b"
    assert slurmconf.parse_slurmdbd(DBD)["DbdHost"] == "ctl"


@pytest.mark.parametrize(
    ("read", "text", "words"),
    [
        (nodeconf.parse_limits, "* soft memory 1\n", "line 1"),
        (nodeconf.parse_limits, "* soft memlock much\n", "no number"),
        (nodeconf.parse_sysctl, "a = 1\na = 2\n", "stands twice"),
        (nodeconf.parse_sysctl, "a\n", "not 'name = value'"),
        (nodeconf.parse_sshd, "Match User x\n", "not 'Keyword value'"),
        (nodeconf.parse_mariadb, "[mariadbd]\nx = 1\n", "listen on the network"),
        (nodeconf.parse_mariadb, "[mysqld]\nskip-networking\n", "mariadbd"),
        (nodeconf.parse_unit, "[Unit]\nRequiresMountsFor=shared\n", "no absolute path"),
        (nodeconf.parse_mount, "[Mount]\nWhat=a:/b\n", "lacks Where, Type"),
        (slurmconf.parse_slurmdbd, DBD + "DbdHost=other\n", "once"),
        (slurmconf.parse_slurmdbd, "AuthType=auth/munge\n", "lacks"),
    ],
)
def test_what_is_not_sound_is_refused(read: Callable[[str], Any], text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        read(text)
