"""Plays the vendor of scenario `ready`: hands over a running Slurm on nodes that reach no packages.

    python vendor.py NAME WHEELHOUSES      prints the sandbox as one JSON object

The prolog is a pattern, as vendors who expect customers write it; the epilog is not set; one file is included and left
to the customer. All else of Slurm's is the vendor's own, and its sha256 goes to /var/lib/vendor.sha256.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

from kinemill.control.sandbox.cluster import Cluster
from kinemill.control.sandbox.furnish import File, NodeSpec

SETTINGS = {
    "slurm_controller_cluster_name": "readyvendor",
    "slurm_controller_prolog": "/etc/slurm/prolog.d/*.sh",
    "slurm_controller_epilog": "",
    "slurm_controller_health_program": "",
}
PROLOG = "#!/bin/sh\n# The vendor's own.\ntouch /run/vendor-prolog-ran\n"
# What the vendor made and we may not touch: its files, and the list of installed packages.
FINGERPRINT = """
find /etc/slurm /etc/munge /etc/default /etc/mysql /etc/nftables.conf /usr/lib/systemd/system \
  /etc/systemd/system/slurm*.d /var/lib/dpkg/status -type f \
  ! -path /etc/slurm/site.conf ! -path '/etc/slurm/prolog.d/*kinemill*' -print0 | sort -z | xargs -0 sha256sum
"""


def handed_over(spec: NodeSpec) -> NodeSpec:
    """A node of the test bed as this vendor configures it."""
    files = dict(spec.files)
    slurm = files["/etc/slurm/slurm.conf"]
    files["/etc/slurm/slurm.conf"] = replace(slurm, text=f"{slurm.text}\nInclude /etc/slurm/site.conf\n")
    files["/etc/slurm/site.conf"] = File("# Left to the customer.\n")
    files["/etc/slurm/prolog.d/10-vendor.sh"] = File(PROLOG, 0o755)
    accounting = files.get("/etc/slurm/hooks/accounting")
    if accounting is not None:
        text = accounting.text.replace("sandbox", SETTINGS["slurm_controller_cluster_name"])
        files["/etc/slurm/hooks/accounting"] = replace(accounting, text=text)
    return replace(spec, files=files)


def main(name: str, wheelhouses: str) -> None:
    """Bring the vendor's cluster up."""
    cluster = Cluster.up(
        "ctl",
        ["n1", "n2"],
        image="trixie-slurm",
        name=name,
        settings=SETTINGS,
        wheelhouses=Path(wheelhouses),
        change=handed_over,
        say=lambda line: print(line, file=sys.stderr),
    )
    for node in ("ctl", "n1", "n2"):
        text = cluster.box.exec(node, ["/bin/sh", "-euc", FINGERPRINT]).stdout
        (cluster.box.root(node) / "var/lib/vendor.sha256").write_text(text, encoding="utf-8")
    print(json.dumps({"ssh_config": str(cluster.box.places.ssh_config)}))


if __name__ == "__main__":
    main(*sys.argv[1:])
