"""Accounts that change: each change is an insert, and a merge keeps the newest row of each account."""

from __future__ import annotations

from collections.abc import Sequence

import icedb

__all__ = ["change", "close", "create", "newest", "newest_as_of"]


def create(uri: str) -> icedb.Table:
    """Create the table: `account_id`, `version`, `plan`, `seats`, `closed`."""
    return icedb.Table.create(
        uri,
        # Keys are unique within a partition. Partition by an expression that never changes for a key, such as a bucket.
        partition_by=["account_id % 4 AS bucket"],
        sort_by=["account_id"],
        merging=icedb.Replacing(by=("account_id",), version="version"),
    )


def change(accounts: icedb.Table, message: int, version: int, rows: Sequence[tuple[int, str, int]]) -> icedb.Commit:
    """Insert new states of accounts: (account_id, plan, seats). An older version never wins, however late it arrives.

    `message` numbers the program's messages and must only grow: a message with the same number is a retry. A version
    that arrives late has a new message number and an old version.
    """
    return accounts.insert(
        [
            {"account_id": account, "version": version, "plan": plan, "seats": seats, "closed": False}
            for account, plan, seats in rows
        ],
        txn=("accounts", message),
    )


def close(accounts: icedb.Table, message: int, version: int, account_ids: Sequence[int]) -> icedb.Commit:
    """Close accounts. A closed account is one more version, which readers filter out."""
    return accounts.insert(
        [
            {"account_id": account, "version": version, "plan": None, "seats": 0, "closed": True}
            for account in account_ids
        ],
        txn=("accounts", message),
    )


_BY_PLAN = """
    SELECT plan, count(*) AS accounts, sum(seats)::BIGINT AS seats
    FROM final WHERE NOT closed GROUP BY plan ORDER BY plan
"""


def newest(accounts: icedb.Table) -> icedb.QueryResult:
    """Return accounts by plan. `final` has one row for each account, merged or not."""
    return accounts.query(_BY_PLAN)


def newest_as_of(accounts: icedb.Table, as_of_ms: int) -> icedb.QueryResult:
    """Return accounts by plan as of a time in unix milliseconds, if cleanup has not deleted its parts."""
    return accounts.query(_BY_PLAN, as_of=as_of_ms)
