"""From what Ansible, ssh or a package manager says to what a person can do about it."""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = ["Remedy", "explain"]


@dataclass(frozen=True, slots=True)
class Remedy:
    """What a message means.

    Attributes:
        kind: One word for machines: `unreachable`, `sudo`, `packages`, ...
        meaning: What happened, in words.
        action: What to do.
        transient: Whether the same run may succeed later without anybody doing anything.
    """

    kind: str
    meaning: str
    action: str
    transient: bool = False


_KNOWN: tuple[tuple[str, Remedy], ...] = (
    (
        (
            r"incorrect (sudo |become |su )?password|sorry, try again|sudo: \d+ incorrect password"
            r"|authentication failure.*\bsu\b|duplicate become password prompt"
        ),
        Remedy("sudo", "the sudo password is wrong", "give the right one with --ask-become-pass or in the vault"),
    ),
    (
        (
            r"missing sudo password|a password is required|a terminal is required to (read the password|authenticate)"
            r"|waiting for privilege escalation prompt|not in the sudoers file|is not allowed to (run|execute)"
        ),
        Remedy(
            "sudo",
            "the user may not become root without a password",
            "add --ask-become-pass, or let the user run sudo without one",
        ),
    ),
    (
        r"remote host identification has changed|host key verification failed",
        Remedy(
            "host-key",
            "the machine shows another host key than before",
            "if it was reinstalled, forget the old key with ssh-keygen -R; if not, somebody stands between",
        ),
    ),
    (
        r"permission denied \(|too many authentication failures|no supported authentication|invalid/incorrect password",
        Remedy("login", "ssh lets this user not in", "check ansible_user and the key that ssh offers (ssh -v)"),
    ),
    (
        r"could not resolve hostname|name or service not known|temporary failure in name resolution.*ssh",
        Remedy("name", "the name is not known here", "set ansible_host to an address, or fix the name server"),
    ),
    (
        (
            r"temporary failure resolving|failed to fetch|unable to fetch some archives"
            r"|some index files failed to download"
            r"|cannot initiate the connection to|could not connect to .*(:80|:443|:3128|:3142)"
            r"|connection failed \[ip"
            r"|failed to update apt cache|hash sum mismatch"
        ),
        Remedy(
            "packages",
            "the package mirror does not answer",
            "check the mirror and the proxy from that node (apt-get update), then run again",
            transient=True,
        ),
    ),
    (
        r"no packages? matching|unable to locate package|has no installation candidate",
        Remedy(
            "no-package",
            "the node's package lists do not have it",
            "see which sources apt-get update reads on that node; a bare image has no lists before the first run",
        ),
    ),
    (
        r"no space left on device|you don't have enough free space|disk quota exceeded|errno 28",
        Remedy("disk", "a disk is full", "make room on the node, then run again"),
    ),
    (
        r"could not get lock|unable to (acquire|lock)|dpkg was interrupted|dpkg frontend lock",
        Remedy(
            "packages-busy",
            "another package manager is at work",
            "wait for it; after an interruption run dpkg --configure -a on the node",
            transient=True,
        ),
    ),
    (
        r"connection refused",
        Remedy("unreachable", "nothing listens on the ssh port", "start sshd, or set ansible_port", transient=True),
    ),
    (
        r"no route to host|network is unreachable",
        Remedy("unreachable", "there is no way to it from here", "check the route, the VPN and power", transient=True),
    ),
    (
        r"connection timed out|operation timed out|timed out during banner|timeout, server .* not responding",
        Remedy("unreachable", "it does not answer", "check power, the firewall and the address", transient=True),
    ),
    (
        (
            r"connection (reset|closed)|broken pipe|kex_exchange_identification|control socket"
            r"|shared connection .* closed"
            r"|failed to connect to the host via ssh|data could not be sent to remote host"
        ),
        Remedy("unreachable", "the connection broke", "look at the node, then run again", transient=True),
    ),
    (
        r"python.*(not found|no such file)|no such file or directory.*python|interpreter .* was not found",
        Remedy("python", "the node has no Python", "install python3, or set ansible_python_interpreter"),
    ),
    (
        r"read-only file system",
        Remedy("disk", "a disk is mounted read-only", "look at the node's kernel log, then run again"),
    ),
    (
        r"no vault secrets found|decryption failed|vault password",
        Remedy("vault", "the vault password is missing or wrong", "give --vault-password-file"),
    ),
)
_COMPILED = tuple((re.compile(pattern, re.IGNORECASE | re.DOTALL), remedy) for pattern, remedy in _KNOWN)


def explain(message: str) -> Remedy | None:
    """The remedy for a message, or None where none is known; the message must then speak for itself."""
    for pattern, remedy in _COMPILED:
        if pattern.search(message):
            return remedy
    return None
