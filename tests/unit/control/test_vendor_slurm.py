"""The way into a vendor's Slurm is found without a change to the vendor's files, or refused with what to ask for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kinemill.control.vendor_slurm import HEADER, plan
from support.ansible import ROLES, load_module

SITE = "/etc/slurm/site.conf"
POLICY = {"AccountingStorageEnforce": "associations,limits,qos", "PriorityWeightQOS": "1", "PreemptType": "preempt/qos"}


def look(stated: dict[str, list[str]] | None = None, **change: Any) -> dict[str, Any]:
    running = {"clustername": ["west"], "slurmctldhost": ["head(10.0.0.1)"], "slurm_version": ["24.11.5"]}
    running |= change.pop("running", {})
    return {
        "answers": True,
        "said": "",
        "running": running,
        "has_file": True,
        "stated": stated or {},
        "includes": [SITE],
        "include_text": "# Left to the customer.\n",
        **change,
    }


def ask(seen: dict[str, Any], **said: Any) -> dict[str, Any]:
    return plan(seen, **{"host": "n1", "hooks_dir": "/opt/hooks", **said})


@pytest.mark.parametrize(
    ("pattern", "path"),
    [
        ("/etc/slurm/prolog.d/*", "/etc/slurm/prolog.d/50-kinemill"),
        ("/etc/slurm/prolog.d/*.sh", "/etc/slurm/prolog.d/50-kinemill.sh"),
        ("/etc/slurm/prolog.d/[0-9][0-9]-*", "/etc/slurm/prolog.d/50-kinemill"),
        ("/etc/slurm/hooks/prolog-*", "/etc/slurm/hooks/prolog-50-kinemill"),
    ],
)
def test_a_pattern_takes_a_file_beside_the_vendors_own(pattern: str, path: str) -> None:
    found = ask(look({"prolog": [pattern], "epilog": ["/e/*"]}))
    assert found["faults"] == []
    assert [one["path"] for one in found["drop_ins"]] == [path, "/e/50-kinemill"]
    assert "exec /opt/hooks/prolog" in found["drop_ins"][0]["content"]
    assert found["text"] == ""


def test_an_included_file_takes_lines_and_is_the_same_in_a_second_run() -> None:
    first = ask(look(), include=SITE)
    assert first["text"] == f"{HEADER}\nProlog=/opt/hooks/prolog\nEpilog=/opt/hooks/epilog\n"
    running = {"prolog": ["/opt/hooks/prolog"], "epilog": ["/opt/hooks/epilog"]}
    second = ask(look(include_text=first["text"], running=running), include=SITE)
    assert second == first


def test_several_hooks_add_up_from_the_release_on_where_that_was_seen() -> None:
    one = {"prolog": ["/vendor/prolog"], "epilog": ["/vendor/epilog"]}
    assert ask(look(one), include=SITE)["lines"] == ["Prolog=/opt/hooks/prolog", "Epilog=/opt/hooks/epilog"]
    # before it, ours would replace the vendor's
    old = ask(look(one, running={"slurm_version": ["23.11.1"]}), include=SITE)
    assert old["lines"] == []
    assert len(old["faults"]) == 2


def test_no_way_in_says_what_to_ask_for_and_a_named_folder_is_one() -> None:
    seen = look({"prolog": ["/vendor/prolog"]})
    prolog, epilog = ask(seen)["faults"]
    assert prolog.startswith("n1: Slurm's Prolog is /vendor/prolog")
    assert "Prolog=/etc/slurm/prolog.d/*" in prolog
    assert "vendor_slurm_prolog" in prolog
    assert "Slurm's Epilog is not set" in epilog
    found = ask(seen, given={"prolog": "/vendor/prolog.d", "epilog": "/vendor/epilog.d/*.sh"})
    assert [one["path"] for one in found["drop_ins"]] == [
        "/vendor/prolog.d/50-kinemill",
        "/vendor/epilog.d/50-kinemill.sh",
    ]


def test_a_vendor_who_named_our_hook_needs_nothing() -> None:
    named = {"prolog": ["/opt/hooks/prolog"], "epilog": ["/opt/hooks/epilog"]}
    found = ask(look(named))
    assert (found["drop_ins"], found["lines"], found["faults"]) == ([], [], [])


@pytest.mark.parametrize(
    ("seen", "words"),
    [
        (look(answers=False, said="Unable to contact slurm controller"), "no controller answers (Unable to contact"),
        (look(running={"clustername": ["east"]}), "is cluster 'east', the inventory's is 'west'"),
        (look(running={"slurmctldhost": ["other"]}), "Slurm's controller is other, which is not in the group"),
        (look(includes=[]), "does not include it; ask the vendor for the line 'Include /etc/slurm/site.conf'"),
        (look(include_text="NodeName=n9\n"), "holds lines that are not ours ('NodeName=n9')"),
    ],
)
def test_what_contradicts_the_inventory_is_told(seen: dict[str, Any], words: str) -> None:
    (fault,) = ask(seen, include=SITE, cluster_name="west", controllers=["head"])["faults"]
    assert words in fault


def test_a_policy_fills_what_the_vendor_leaves_open_and_overrules_nothing() -> None:
    open_ = {"prolog": ["/p/*"], "epilog": ["/e/*"], "priorityweightqos": ["7"]}
    found = ask(look(open_), include=SITE, policy=POLICY)
    assert found["lines"] == ["AccountingStorageEnforce=associations,limits,qos", "PreemptType=preempt/qos"]
    # the vendor's own words win; where they are not enough, they are told
    told = {**open_, "accountingstorageenforce": ["qos,limits,associations,safe"], "preempttype": ["preempt/none"]}
    found = ask(look(told), include=SITE, policy=POLICY)
    assert found["lines"] == []
    (fault,) = found["faults"]
    assert "says PreemptType=preempt/none, the policy needs preempt/qos" in fault
    # and where nothing can be written, it is asked for
    assert len(ask(look(open_), policy=POLICY)["faults"]) == 2


def test_a_node_without_files_is_judged_by_what_the_controller_says() -> None:
    seen = look(has_file=False, includes=[], running={"prolog": ["/p/*"], "epilog": ["/opt/hooks/epilog"]})
    found = ask(seen, include=SITE)
    assert (found["faults"], found["text"]) == ([], "")
    assert [one["path"] for one in found["drop_ins"]] == ["/p/50-kinemill"]


def test_a_vendors_slurm_conf_is_read_with_its_includes(tmp_path: Path) -> None:
    module = load_module(ROLES / "platform_defaults" / "library" / "kinemill_slurm_look.py")
    ours = tmp_path / "site.conf"
    ours.write_text("Prolog=/opt/ours\n")
    (tmp_path / "more.conf").write_text("EPILOG = /e/*  # the vendor's\n")
    (tmp_path / "slurm.conf").write_text(
        f"ClusterName=west\nprolog=/p/*\ninclude more.conf\nInclude {ours}\nTaskPlugin=a ProctrackType=b\n"
        "SchedulerParameters=bf_continue,\\\nnohold\nNodeName=n[1-2] CPUs=2 Prolog=/not\nInclude gone.conf\n"
    )
    settings, includes = module.stated(tmp_path / "slurm.conf", apart=str(ours))
    assert settings["prolog"] == ["/p/*"]
    assert settings["epilog"] == ["/e/*"]
    assert settings["proctracktype"] == ["b"]
    assert includes == [str(tmp_path / "more.conf"), str(ours), str(tmp_path / "gone.conf")]
    shown = "Configuration data as of now\nProlog[0]    = /p/*\nProlog[1]    = /q\nEpilog       = (null)\n"
    assert module.running(shown) == {"prolog": ["/p/*", "/q"]}


def test_an_include_that_includes_itself_ends(tmp_path: Path) -> None:
    module = load_module(ROLES / "platform_defaults" / "library" / "kinemill_slurm_look.py")
    path = tmp_path / "slurm.conf"
    path.write_text("Include slurm.conf\n")
    assert len(module.stated(path, apart="")[1]) < 20
