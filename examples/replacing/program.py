"""Accounts that change: every change is an insert, and a merge keeps the newest row of each account."""

from __future__ import annotations

from collections.abc import Sequence

import icedb

__all__ = ["change", "close", "create", "newest", "newest_as_of"]


def create(uri: str) -> icedb.Table:
    """The table: `account_id`, `version`, `plan`, `seats`, `closed`."""
    return icedb.Table.create(
        uri,
        # Keys are unique within a partition: partition by what never changes for a key, such as a bucket of the key.
        partition_by=["account_id % 4 AS bucket"],
        sort_by=["account_id"],
        merging=icedb.Replacing(by=("account_id",), version="version"),
    )


def change(accounts: icedb.Table, message: int, version: int, rows: Sequence[tuple[int, str, int]]) -> icedb.Commit:
    """New states of some accounts: (account_id, plan, seats). However late it comes, an older version never wins.

    `message` counts what this program sends: it is what makes a repetition one, so it only ever grows. A version that
    comes late has a new message, and an old version.
    """
    return accounts.insert(
        [
            {"account_id": account, "version": version, "plan": plan, "seats": seats, "closed": False}
            for account, plan, seats in rows
        ],
        txn=("accounts", message),
    )


def close(accounts: icedb.Table, message: int, version: int, account_ids: Sequence[int]) -> icedb.Commit:
    """An account that is closed is one more version, too; readers leave it out."""
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
    """Accounts by plan. `final` has one row for each account, before, between and after merges."""
    return accounts.query(_BY_PLAN)


def newest_as_of(accounts: icedb.Table, as_of_ms: int) -> icedb.QueryResult:
    """The same, as it was at a time, in unix milliseconds: as long as cleanup has not deleted what that needs."""
    return accounts.query(_BY_PLAN, as_of=as_of_ms)
