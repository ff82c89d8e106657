"""Tables that each round changes: a new copy of the same table for each way and round."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.harness.slow_store import BUCKET, SlowStore, storage_options
from benchmarks.writes.peers import WRITERS, TablePlace

__all__ = ["TableCopies"]


@dataclass(slots=True)
class TableCopies:
    """Copies of the tables that writers of `benchmarks.writes.peers` write.

    `write` fills a table. `store` has a delaying proxy, and the address of its S3 server. Without it, tables
    are in the folder.
    """

    folder: Path
    write: Callable[[str, TablePlace], None]
    store: tuple[SlowStore, str] | None = None
    _number: int = 0

    @contextmanager
    def table(self, writer: str) -> Iterator[tuple[TablePlace, TablePlace]]:
        """Create a table, and yield its place and the one without delay. In a folder it is copied from the first."""
        self._number += 1
        beside = self.folder / str(self._number if self.store is not None else list(WRITERS).index(writer))
        if self.store is not None:
            beside.mkdir(parents=True)
            slowed, direct = (
                TablePlace(f"s3://{BUCKET}/{self.folder.name}/{beside.name}", beside, storage_options(endpoint))
                for endpoint in (self.store[0].endpoint, self.store[1])
            )
            self.write(writer, direct)
            yield slowed, direct
        else:
            saved, place = beside.with_name(f"{beside.name}-saved"), TablePlace(str(beside / "table"), beside)
            if not saved.exists():
                (beside / "table").mkdir(parents=True)
                self.write(writer, place)
                beside.rename(saved)
            shutil.copytree(saved, beside)
            yield place, place
        shutil.rmtree(beside)
