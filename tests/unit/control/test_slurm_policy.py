"""What sacctmgr is told follows from the difference between what is asked for and what is there."""

from __future__ import annotations

from support.ansible import ROLES, load_module

policy = load_module(ROLES / "slurm_policy" / "library" / "kinemill_slurm_policy.py")

QOS = [
    {"name": "pretrain", "preempt_mode": "requeue", "grace_s": 90, "group_tres": {"gres/gpu": 16}},
    {"name": "eval", "priority": 1000, "preempt": ["pretrain"], "max_wall_minutes": 120},
]
FOUND = (
    "normal|0||cluster|00:00:00|||\n"
    "pretrain|0||requeue|00:01:30|gres/gpu=16||\n"
    "eval|1000|pretrain|cluster|00:00:00||02:00:00|\n"
)
ACCOUNTS = [
    {"name": "research", "fairshare": 10, "qos": ["eval", "pretrain"], "default_qos": "pretrain", "users": ["kim"]}
]


def found(text: str) -> list[dict[str, str]]:
    return list(policy.rows(text, policy.QOS_COLUMNS))


def test_from_nothing_qos_are_made_before_one_names_another() -> None:
    commands = policy.plan_qos(QOS, found("normal|0||cluster|00:00:00|||\n"))
    assert commands[:2] == [["add", "qos", "pretrain"], ["add", "qos", "eval"]]
    text = " ".join(commands[2])
    assert "preemptmode=requeue" in text
    assert "gracetime=90" in text
    assert "grptres=gres/gpu=16" in text
    assert "preempt=pretrain" in " ".join(commands[3])


def test_what_is_there_is_left_alone_and_so_is_what_nobody_named() -> None:
    assert policy.plan_qos(QOS, found(FOUND)) == []
    rows = policy.rows(
        "research||10|pretrain,eval|pretrain\nresearch|kim|1|eval|eval\nother||5|normal|\n", policy.ASSOCIATION_COLUMNS
    )
    assert policy.plan_accounts("west", ACCOUNTS, rows) == []


def test_a_limit_that_is_no_longer_asked_for_is_taken_away() -> None:
    wanted = [{"name": "pretrain", "preempt_mode": "requeue", "grace_s": 90}, {**QOS[1], "max_wall_minutes": 0}]
    assert [command[-1] for command in policy.plan_qos(wanted, found(FOUND))] == ["grptres=gres/gpu=-1", "maxwall=-1"]


def test_accounts_and_users_are_added_to_their_cluster() -> None:
    commands = policy.plan_accounts("west", ACCOUNTS, [])
    assert commands[0] == ["add", "account", "research", "cluster=west"]
    assert commands[1][-3:] == ["fairshare=10", "qos=eval,pretrain", "defaultqos=pretrain"]
    assert commands[2] == ["add", "user", "kim", "account=research", "cluster=west"]


def test_times_are_written_as_sacctmgr_prints_them() -> None:
    assert policy.clock(90) == "01:30:00"
    assert policy.clock(3 * 24 * 60 + 61) == "3-01:01:00"


def test_a_policy_that_nothing_enforces_is_seen() -> None:
    good = "PreemptType             = preempt/qos\nAccountingStorageEnforce = associations,limits,qos\n"
    assert policy.enforced(good)
    assert not policy.enforced(good.replace("preempt/qos", "preempt/none"))
    assert not policy.enforced("")
