"""SQL in files: each statement is used, and each is served by an index."""

from __future__ import annotations

import re
from importlib.resources import files
from pathlib import Path

import apsw
import pytest

import qo.stores.sqlite
from qo.stores.sqlite import schema
from qo.stores.sqlite.statements import statements, wide

FOLDER = Path(str(files(qo.stores.sqlite)))
VERBS = sorted(path.stem for path in (FOLDER / "sql").glob("*.sql"))
HOT = ("lanes", "places", "push", "advance", "claim", "settle", "cancel", "tidy", "outcomes", "dead", "records")
SMALL_TABLES = {"group_filters", "sqlite_sequence"}
NEWEST = "SCAN messages"  # the newest row alone: checked below


@pytest.fixture(scope="module")
def connection():
    connection = apsw.Connection(":memory:")
    schema.bring_forward(connection, ":memory:", schema.migrations())
    yield connection
    connection.close()


@pytest.mark.parametrize("verb", VERBS)
def test_every_statement_is_used(verb):
    code = "\n".join(path.read_text() for path in FOLDER.glob("*.py"))
    unused = [name for name in statements(verb).texts if not re.search(rf"\.{name}\b", code)]
    assert unused == []


@pytest.mark.parametrize("engine", ["sqlite", "postgres"])
def test_no_two_statements_of_a_file_have_one_name(engine):
    for path in (FOLDER.parent / engine / "sql").glob("*.sql"):
        names = re.findall(r"^-- name: (\w+)$", path.read_text(), re.MULTILINE)
        assert len(names) == len(set(names)), path.name


@pytest.mark.parametrize("verb", HOT)
def test_no_hot_statement_scans_a_table(connection, verb):
    for name, sql in statements(verb).texts.items():
        holes = len(set(re.findall(r"\?\d*", sql))) if re.search(r"\?\d", sql) else sql.count("?")
        plan = connection.execute(f"EXPLAIN QUERY PLAN {sql}", (None,) * holes).fetchall()
        scans = [step[3] for step in plan if re.match(r"SCAN (?!CONSTANT|\(|\d)", step[3])]
        bad = [scan for scan in scans if not _bounded(scan)]
        assert bad == [], f"{verb}.{name}: {plan}"


def _bounded(scan: str) -> bool:
    """Reading one end of an index or of the log, a table that has a handful of rows, or the call's own list."""
    return "USING" in scan or scan.split()[1] in SMALL_TABLES or scan == NEWEST or "VIRTUAL TABLE INDEX" in scan


def test_only_the_newest_message_is_read_without_a_search():
    hot = {f"{verb}.{name}": sql for verb in HOT for name, sql in statements(verb).texts.items()}
    unsearched = [name for name, sql in hot.items() if re.search(r"FROM messages (ORDER|LIMIT|$)", sql)]
    assert unsearched == ["places.newest"]
    assert hot["places.newest"].endswith("ORDER BY row DESC LIMIT 1")


@pytest.mark.parametrize("name", ["job_in_lane", "job_in_intake"])
def test_a_job_is_found_without_a_scan(connection, name):
    sql = getattr(statements("inspect"), name)
    plan = [step[3] for step in connection.execute(f"EXPLAIN QUERY PLAN {sql}", (b"",)).fetchall()]
    assert [step for step in plan if step.startswith("SCAN")] == []


def test_a_claim_reads_messages_in_order_without_sorting(connection):
    sql = statements("claim").messages
    plan = [step[3] for step in connection.execute(f"EXPLAIN QUERY PLAN {sql}", (1, 1, 1)).fetchall()]
    assert [step for step in plan if "TEMP B-TREE" in step] == []


def test_a_wide_statement_shares_some_values_and_counts_on_the_others():
    sql = "INSERT INTO t (a, b, c) VALUES (?1, ?2 + 0, ?3)"
    assert wide(sql, shared=2, rows=2) == "INSERT INTO t (a, b, c) VALUES (?1, ?2 + 0, ?3), (?1, ?2 + 1, ?4)"


def test_an_unknown_statement_is_an_error():
    with pytest.raises(AttributeError, match="nonsense"):
        _ = statements("claim").nonsense
