"""A curation spec says what it says, and becomes the SQL that means it."""

from __future__ import annotations

import duckdb
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kinemill.errors import ConfigError, ContractError, KinemillError, UnknownKeyError
from kinemill.pipelines.curation.build import manifest_id
from kinemill.pipelines.curation.spec import CurationSpec, Filter, WeightRule, parse_spec
from kinemill.pipelines.curation.sql import chosen_sql, condition, literal

COLUMNS = """
  episode_id blob, profile varchar, seq bigint, state varchar, tombstone boolean, vendor varchar, robot varchar,
  task varchar, instruction varchar, site varchar, delivery varchar, sha256 blob, size_bytes bigint, t_first_ns bigint,
  duration_ns bigint, frames integer, fps float, topics varchar, layout blob, quality varchar, groups varchar[]
"""


def episodes(rows: int) -> duckdb.DuckDBPyConnection:
    """A warehouse table of made-up rows, each with an older version that must not count."""
    engine = duckdb.connect(":memory:")
    engine.execute(f"create table t ({COLUMNS})")
    for seq in (1, 2):
        engine.execute(
            f"""
            insert into t select unhex(md5(i::varchar)), 'vla', {seq} * 1000000 + i,
              case when {seq} = 1 then 'ingested' when i % 10 = 9 then 'quarantined' else 'published' end,
              i % 10 = 8, 'v' || (i % 3), 'r', 'task ' || (i % 7), '', 's' || (i % 4), 'd', unhex(sha256(i::varchar)),
              i * 1000, 0, 1000000000 * (i % 20 + 1), 30, 30.0, '{{}}', null,
              '{{"psnr_db:/cam/a": ' || (i % 40) || '}}',
              case when i % 2 = 0 then ['cameras', 'state'] else ['state'] end
            from range({rows}) r(i)
            """  # noqa: S608 - integers
        )
    return engine


def ask(
    engine: duckdb.DuckDBPyConnection, spec: CurationSpec, what: str = "count(*)", tail: str = ""
) -> list[tuple[object, ...]]:
    return engine.execute(f"select {what} from ({chosen_sql(spec, 't')}) {tail}").fetchall()  # noqa: S608 - the test's own


def test_only_current_published_rows_count() -> None:
    ((rows,),) = ask(episodes(1000), CurationSpec("x"))

    assert rows == 800, "neither older versions, nor quarantined, nor tombstones"


@pytest.mark.parametrize(
    ("asked", "rows"),
    [
        (Filter("vendor", equals="v1"), lambda i: i % 3 == 1),
        (Filter("vendor", any_of=("v0", "v2")), lambda i: i % 3 != 1),
        (Filter("vendor", none_of=("v0", "v2")), lambda i: i % 3 == 1),
        (Filter("duration_ns", at_least=5e9, at_most=9e9), lambda i: 5 <= i % 20 + 1 <= 9),
        (Filter("task", like="task 3%"), lambda i: i % 7 == 3),
        (Filter("groups", has="cameras"), lambda i: i % 2 == 0),
        (Filter("score:psnr_db:/cam/a", at_least=30), lambda i: i % 40 >= 30),
        (Filter("score:no_such", at_least=0), lambda i: False),
        (Filter("vendor", equals="v1'; drop table t; --"), lambda i: False),
    ],
    ids=lambda p: p.column if isinstance(p, Filter) else "",
)
def test_filters_mean_what_they_say(asked: Filter, rows) -> None:  # type: ignore[no-untyped-def]
    ((found,),) = ask(episodes(1000), CurationSpec("x", filters=(asked,)))

    assert found == sum(1 for i in range(1000) if i % 10 < 8 and rows(i))


@settings(max_examples=50, deadline=None)
@given(st.text(max_size=30).filter(lambda s: "\0" not in s))
def test_a_text_is_a_text_whatever_stands_in_it(text: str) -> None:
    assert duckdb.execute(f"select {literal(text)}").fetchone() == (text,)


@pytest.mark.parametrize("value", [0.1, 1e-300, 12345678901234567890.0, -2.5, 1.0, 3, True])
def test_numbers_come_back_exactly(value: float) -> None:
    assert duckdb.execute(f"select cast({literal(value)} as double)").fetchone() == (float(value),)


def test_splits_have_their_shares_and_never_overlap() -> None:
    spec = CurationSpec("x", splits={"train": 0.7, "val": 0.2, "test": 0.1})
    engine = episodes(20_000)

    shares = dict(ask(engine, spec, "split, count(*) / 16000.0", "group by 1"))

    assert set(shares) == {"train", "val", "test"}
    for name, wanted in spec.splits.items():
        assert shares[name] == pytest.approx(wanted, abs=0.012)


def test_another_order_moves_no_episode_to_another_split() -> None:
    engine = episodes(2000)
    splits = {"train": 0.5, "val": 0.5}
    first = dict(ask(engine, CurationSpec("x", splits=splits, seed=1), "hex(episode_id), split"))
    second = dict(ask(engine, CurationSpec("x", splits=splits, seed=2), "hex(episode_id), split"))
    third = dict(ask(engine, CurationSpec("x", splits=splits, split_seed=2), "hex(episode_id), split"))

    assert first == second
    assert first != third


def test_rows_that_share_a_task_share_a_split() -> None:
    spec = CurationSpec("x", splits={"train": 0.5, "val": 0.5}, split_by="task")

    counted = episodes(2000).execute(
        f"select max(n) from (select task, count(distinct split) n from ({chosen_sql(spec, 't')}) group by 1)"  # noqa: S608
    )
    assert counted.fetchone() == (1,)


def test_a_seed_changes_the_order_and_what_is_taken() -> None:
    engine = episodes(2000)

    def taken(seed: int) -> list[tuple[object, ...]]:
        return ask(
            engine, CurationSpec("x", max_rows=100, seed=seed), "hex(episode_id)", "order by order_key, episode_id"
        )

    assert len(taken(1)) == 100
    assert taken(1) == taken(1)
    assert set(taken(1)) != set(taken(2))


def test_weights_multiply_and_balance() -> None:
    heavy = WeightRule((Filter("vendor", equals="v1"),), 3.0)
    plain = dict(ask(episodes(900), CurationSpec("x", weights=(heavy,)), "vendor, max(weight)", "group by 1"))
    balanced = dict(ask(episodes(900), CurationSpec("x", balance_by="vendor"), "vendor, sum(weight)", "group by 1"))

    assert plain == {"v0": 1.0, "v1": 3.0, "v2": 1.0}
    assert balanced == pytest.approx({"v0": 1.0, "v1": 1.0, "v2": 1.0}, abs=1e-5)


@pytest.mark.parametrize(
    ("text", "error", "says"),
    [
        ("name: x\nfilter: []\n", UnknownKeyError, "did you mean 'filters'"),
        ("name: x\nfilters: [{column: vendr, equals: a}]\n", ContractError, "did you mean 'vendor'"),
        ("name: x\nfilters: [{column: vendor}]\n", ContractError, "asks for nothing"),
        ("name: x\nfilters: [{column: groups, equals: a}]\n", ContractError, "`has`"),
        ("name: x\nfilters: [{column: state, equals: ingested}]\n", ContractError, "not one of the warehouse's"),
        ("name: X Y\n", ContractError, "lower-case"),
        ("name: x\nsplits: {train: 0.5}\n", ContractError, "sum to 0.5"),
        ("name: x\nsplits: {}\n", ContractError, "share"),
        ("name: x\nmax_rows: 0\n", ContractError, "at least 1"),
        ("name: x\nweights: [{when: [], weight: 0}]\n", ContractError, "above 0"),
        ("name: x\nname: y\n", ConfigError, "given twice"),
        ("[]", ConfigError, "table of keys"),
        ("name: x\nfilters: [{column: 'score:a\"b', at_least: 1}]\n", ContractError, "no such name"),
    ],
)
def test_a_wrong_spec_is_refused_with_its_reason(text: str, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        parse_spec(text)


def test_an_id_follows_from_what_is_said_not_from_how() -> None:
    one = parse_spec("name: reach\nsplits: {train: 0.5, val: 0.5}\n")
    two = parse_spec("# a comment\nsplits:\n  val: 0.5\n  train: 0.5\nname: reach\n")
    other = parse_spec("name: reach\nsplits: {train: 0.5, val: 0.5}\nseed: 1\n")

    assert manifest_id(one, 5) == manifest_id(two, 5)
    assert len({manifest_id(one, 5), manifest_id(one, 6), manifest_id(other, 5)}) == 3


def test_a_condition_names_its_column_once_per_question() -> None:
    assert condition(Filter("frames", at_least=10.0)) == "(frames >= 10.0e0)"


@pytest.mark.parametrize("bad", ["layouts: outside", "statistics_episodes: -1", "statistics_episodes: 100001"])
def test_a_build_option_that_is_none_is_refused(bad: str) -> None:
    with pytest.raises(KinemillError):
        parse_spec(f"name: reach\n{bad}\n")
