"""A signed source of STUB PACKAGES: the names and files of vendors' packages, with stand-ins inside.

They let roles that install what this machine cannot run be run to their end. No package of a vendor is here.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from support.layers import skip

__all__ = ["DCGM", "Stub", "driver_stubs", "make_source", "runtime_stubs", "spank_stub"]

DCGM = "1:4.4.1-1stub1"


@dataclass(frozen=True, slots=True)
class Stub:
    """A stub package.

    Attributes:
        name: The name of the package that it stands in for.
        version: A version that says stub.
        depends: Its dependencies.
        files: Path -> content; text, or a file of this machine.
        units: Units that only wait, as services.
    """

    name: str
    version: str
    depends: Sequence[str] = ()
    files: Mapping[str, str | Path] = field(default_factory=dict)
    units: Sequence[str] = ()


def driver_stubs(version: str, library: Path) -> list[Stub]:
    """NVIDIA's driver, its daemons and DCGM; `library` answers as libnvidia-ml.so.1."""
    place = "/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1"
    return [
        Stub("nvidia-open", version, [f"libnvidia-ml1 (= {version})", f"nvidia-persistenced (= {version})"]),
        Stub("libnvidia-ml1", version, files={place: library}),
        Stub("nvidia-persistenced", version, units=["nvidia-persistenced"]),
        Stub("nvidia-fabricmanager", version, units=["nvidia-fabricmanager"]),
        Stub("datacenter-gpu-manager-4-core", DCGM, units=["nvidia-dcgm"]),
    ]


def runtime_stubs(plugin: Path | None = None) -> list[Stub]:
    """enroot, which knows `version` only, and pyxis, whose plugin has one option that does nothing."""
    enroot = '#!/bin/sh\n# A stub.\ntest "$1" = version && echo 4.0.1-stub\n'
    stubs = [
        Stub("enroot", "4.0.1-1stub1", files={"/usr/bin/enroot": enroot, "/etc/enroot/enroot.conf": "# A stub.\n"})
    ]
    stubs.append(Stub("enroot+caps", "4.0.1-1stub1", ["enroot"]))
    if plugin is not None:
        place = "/usr/lib/x86_64-linux-gnu/slurm/spank_pyxis.so"
        stubs.append(Stub("nvslurm-plugin-pyxis", "0.21.0-1stub1", ["enroot"], files={place: plugin}))
    return stubs


# One option and nothing behind it. Slurm takes a plugin only if this number is its own.
_SPANK = """
#include <stddef.h>
const char plugin_name[] = "pyxis_stub", plugin_type[] = "spank";
const unsigned int plugin_version = VERSION, spank_plugin_version = 1;
int slurm_spank_init(void *spank, int count, char **words) { (void)spank; (void)count; (void)words; return 0; }
static int taken(int value, const char *text, int remote) { (void)value; (void)text; (void)remote; return 0; }
struct { char *name, *argument, *usage; int has_argument, value; int (*call)(int, const char *, int); }
    spank_options[] = {{"container-image", "IMAGE", "A stub.", 1, 0, taken}, {NULL, NULL, NULL, 0, 0, NULL}};
"""


def spank_stub(folder: Path, slurm: str) -> Path:
    """A SPANK plugin with pyxis's option, for one version of Slurm such as `22.05.8`."""
    major, minor, micro = (int(part) for part in slurm.split("."))
    target = folder / "spank_pyxis.so"
    number = (major << 16) | (minor << 8) | micro
    command = ["gcc", "-shared", "-fPIC", "-Wall", "-Werror", f"-DVERSION={number}", "-o", str(target), "-x", "c", "-"]
    done = subprocess.run(command, input=_SPANK, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return target


def make_source(folder: Path, stubs: Sequence[Stub]) -> Path:
    """Build packages and a signed source of them, without suites.

    Args:
        folder: Where the source lies.
        stubs: The packages.

    Returns:
        The public key that signs it.
    """
    for tool in ("dpkg-deb", "gpg"):
        if shutil.which(tool) is None:
            skip(
                f"{tool} is not here", run=f"apt-get install {tool.replace('dpkg-deb', 'dpkg').replace('gpg', 'gnupg')}"
            )
    folder.mkdir(parents=True, exist_ok=True)
    listed = [_build(folder, stub) for stub in stubs]
    (folder / "Packages").write_text("\n".join(listed), encoding="utf-8")
    content = (folder / "Packages").read_bytes()
    release = "Origin: stubs\nLabel: stubs\nSuite: stable\nDate: Mon, 01 Jun 2026 00:00:00 UTC\nSHA256:\n"
    release += f" {hashlib.sha256(content).hexdigest()} {len(content)} Packages\n"
    (folder / "Release").write_text(release, encoding="utf-8")
    key = folder.parent / "stubs.asc"
    home = folder.parent / "gnupg"
    home.mkdir(mode=0o700, exist_ok=True)
    base = ["gpg", "--homedir", str(home), "--batch", "--yes", "--quiet"]
    try:
        if not key.is_file():
            _call([*base, "--passphrase", "", "--quick-generate-key", "Stub packages", "ed25519", "sign", "never"])
            key.write_text(_call([*base, "--armor", "--export"]), encoding="ascii")
        _call([*base, "--clearsign", "--output", str(folder / "InRelease"), str(folder / "Release")])
    finally:
        subprocess.run(["gpgconf", "--homedir", str(home), "--kill", "all"], timeout=300, check=False)
    for path in [folder, *folder.iterdir()]:
        path.chmod(0o755 if path.is_dir() else 0o644)
    return key


def _build(folder: Path, stub: Stub) -> str:
    root = folder / f".{stub.name}"
    control = root / "DEBIAN"
    control.mkdir(parents=True)
    fields = [
        f"Package: {stub.name}",
        f"Version: {stub.version}",
        "Architecture: all",
        "Maintainer: tests <root@localhost>",
    ]
    if stub.depends:
        fields.append(f"Depends: {', '.join(stub.depends)}")
    fields.append(f"Description: STUB of {stub.name} for tests")
    (control / "control").write_text("\n".join(fields) + "\n", encoding="utf-8")
    (control / "postinst").write_text("#!/bin/sh\nset -e\nldconfig\nsystemctl daemon-reload\n", encoding="utf-8")
    (control / "postinst").chmod(0o755)
    files = dict(stub.files)
    for unit in stub.units:
        text = f"[Unit]\nDescription=Stub of {unit}\n[Service]\nExecStart=/usr/bin/sleep infinity\n"
        files[f"/lib/systemd/system/{unit}.service"] = f"{text}[Install]\nWantedBy=multi-user.target\n"
    for place, content in files.items():
        path = root / place.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, Path):
            shutil.copyfile(content, path)
        else:
            path.write_text(content, encoding="utf-8")
        path.chmod(0o755 if content_is_program(content) else 0o644)
    name = f"{stub.name}_{stub.version.replace(':', '%3a')}_all.deb"
    _call(["dpkg-deb", "--root-owner-group", "-Znone", "--build", str(root), str(folder / name)])
    shutil.rmtree(root)
    deb = (folder / name).read_bytes()
    fields += [f"Filename: ./{name}", f"Size: {len(deb)}", f"SHA256: {hashlib.sha256(deb).hexdigest()}"]
    return "\n".join(fields) + "\n"


def content_is_program(content: str | Path) -> bool:
    """Whether a stub's file is run: a script, or a library of this machine."""
    return isinstance(content, Path) or content.startswith("#!")


def _call(command: Sequence[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, f"{command[0]}: {done.stderr}"
    return done.stdout
