"""`python -m examples.replacing`: account changes arrive late and twice; each account keeps its newest state."""

from __future__ import annotations

import sys
from collections import Counter

from examples.replacing.program import change, close, create, newest, newest_as_of
from examples.shared.alone import Stage, run_alone
from examples.shared.numbers import agree

PLANS = ("free", "pro", "team")
ACCOUNTS = range(500)
#: Version -> changed accounts, each with plan and seats.
CHANGES = {
    version: [(n, PLANS[n * version % 7 % 3], version + n % 5) for n in ACCOUNTS if n % version == 0]
    for version in range(1, 8)
}
CLOSED = [n for n in ACCOUNTS if n % 9 == 0]
#: The version in which they are closed.
LAST = max(CHANGES) + 1


def story(stage: Stage) -> None:
    """Change accounts, close some, merge."""
    accounts = create(stage.uri("accounts"))
    for message, version in enumerate((1, 2, 4, 3, 5, 6, 7)):  # 3 arrives late
        change(accounts, message, version, CHANGES[version])
        again = change(accounts, message, version, CHANGES[version])
        agree("a retried message", again.repeated, True, source="the exactly-once guarantee")
    before_closing = accounts.snapshot().as_of_ms
    close(accounts, len(CHANGES), LAST, CLOSED)

    stage.show("Accounts by plan", newest(accounts))
    expected = _by_plan(closed=CLOSED)
    agree("accounts by plan", newest(accounts).fetchall(), expected, source="the changes")

    stored = accounts.snapshot().rows or 0
    accounts.merge()
    kept = accounts.snapshot().rows or 0
    stage.say(f"{stored:,} rows before the merge, {kept} afterwards: one for each account, including closed ones.")
    agree("rows after the merge", kept, len(ACCOUNTS), source="the accounts")
    agree("accounts by plan after the merge", newest(accounts).fetchall(), expected, source="the changes")

    stage.show("Before any account was closed", newest_as_of(accounts, before_closing))
    agree("accounts before", newest_as_of(accounts, before_closing).fetchall(), _by_plan(), source="the changes")


def _by_plan(closed: list[int] | None = None) -> list[tuple[str, int, int]]:
    states = {account: (plan, seats) for version in sorted(CHANGES) for account, plan, seats in CHANGES[version]}
    count: Counter[str] = Counter()
    seats_of: Counter[str] = Counter()
    for account, (plan, seats) in states.items():
        if account not in (closed or ()):
            count[plan] += 1
            seats_of[plan] += seats
    return [(plan, count[plan], seats_of[plan]) for plan in sorted(count)]


if __name__ == "__main__":
    sys.exit(run_alone(story))
