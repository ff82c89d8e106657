"""The output of a run: a line for each file when its last test is done, and failures without the logs of servers.

With `--no-skips`, as where changes are checked before they land, a skipped test or file counts as failed. A test that
a share has no time for is skipped.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

import pytest
from _pytest.terminal import TerminalReporter

from tests.support.scopes import SHARE_IS_OVER

#: The last lines of each captured text are printed: a server's log before them is rarely the cause.
CAPTURED_LINES_MAX = 20
CAUSE_CHARACTERS_MAX = 300


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("icedb", "what this project's runs have")
    group.addoption("--no-skips", action="store_true", help="a skipped test fails: the machine has all it needs")


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    terminal = config.pluginmanager.get_plugin("terminalreporter")
    if terminal is not None and not hasattr(config, "workerinput") and config.get_verbosity() == 0:
        config.pluginmanager.register(FileLines(terminal), "icedb-file-lines")


class FileLines:
    """Prints a line for each test file instead of a letter for each test."""

    def __init__(self, terminal: TerminalReporter) -> None:
        self._terminal = terminal
        self._left: Counter[str] = Counter()
        self._outcomes: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self._seconds: Counter[str] = Counter()
        self._done = self._files = 0
        terminal.showfspath = False
        terminal._show_progress_info = False  # its percentage counts letters that are not printed

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self._expect([item.nodeid for item in session.items])

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, node: Any, ids: Sequence[str]) -> None:
        if not self._left:  # all workers collect the same
            self._expect(ids)

    def _expect(self, ids: Sequence[str]) -> None:
        self._left.update(_file(nodeid) for nodeid in ids)
        self._files = len(self._left)

    @pytest.hookimpl(tryfirst=True)
    def pytest_report_teststatus(self, report: pytest.TestReport) -> tuple[str, str, str] | None:
        """Print no letter. The category is pytest's own, so that its summary counts as always."""
        if report.when == "call":
            return {"passed": ("passed", "", "PASSED"), "failed": ("failed", "", "FAILED")}.get(_kind(report))
        if report.passed:
            return "", "", ""
        return ("error", "", "ERROR") if report.failed else None

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        name = _file(report.nodeid)
        self._seconds[name] += report.duration
        if report.when == "call" or not report.passed:
            kind = _kind(report)
            self._outcomes[name]["errors" if kind == "failed" and report.when != "call" else kind] += 1
        if report.failed:
            self._terminal.write_line(f"FAILED {report.nodeid} ({report.when}): {_cause(report)}", red=True)

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        name = _file(nodeid)
        self._left[name] -= 1
        if self._left[name] == 0:
            self._done += 1
            counts = ", ".join(f"{n} {kind}" for kind, n in sorted(self._outcomes[name].items()))
            line = f"{self._done:>3}/{self._files}  {name:<44} {counts:<24} {self._seconds[name]:6.1f} s"
            self._terminal.write_line(line)


def _cause(report: pytest.TestReport) -> str:
    """Return the first line of the error, because its trace is printed at the end of the run only."""
    crash = getattr(report.longrepr, "reprcrash", None)
    if crash is not None:
        return str(crash.message).partition("\n")[0][:CAUSE_CHARACTERS_MAX]
    return report.longreprtext.strip().rpartition("\n")[2][:CAUSE_CHARACTERS_MAX]


def _file(nodeid: str) -> str:
    return nodeid.partition("::")[0]


def _kind(report: pytest.TestReport) -> str:
    if hasattr(report, "wasxfail"):
        return "xfailed" if report.skipped else "xpassed"
    return report.outcome


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Any:
    report: pytest.CollectReport = yield
    _reject_skip(report, "file", collector.config)
    return report


def _reject_skip(report: pytest.CollectReport | pytest.TestReport, what: str, config: pytest.Config) -> None:
    """Turn the report of what was skipped into that of a failure, with `--no-skips`."""
    if not report.skipped or not config.option.no_skips or hasattr(report, "wasxfail"):
        return
    reason = str(report.longrepr[-1] if isinstance(report.longrepr, tuple) else report.longrepr)
    if not reason.endswith(SHARE_IS_OVER):
        report.outcome, report.longrepr = "failed", f"A {what} was skipped, and --no-skips allows none. {reason}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Any:
    """Keep the end of what was captured of a test that failed."""
    report: pytest.TestReport = yield
    _reject_skip(report, "test", item.config)
    if report.failed:
        report.sections = [(title, _end(text)) for title, text in report.sections]
    return report


def _end(text: str) -> str:
    lines = text.splitlines()
    left_out = len(lines) - CAPTURED_LINES_MAX
    if left_out <= 0:
        return text
    return "\n".join([f"[{left_out} lines before these are not shown]", *lines[left_out:]])
