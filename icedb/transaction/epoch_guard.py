"""Detection of log changes by programs that take no claims, before a commit builds upon them.

Epochs only rise, and a claim is created only for the epoch after the head. So a log has lost log files of exclusive
commits if its head is older than a claim, or than a head that was read before. The cause is a
person, or a merge or cleanup of IceDB v3, which must not run on a table that has epochs.
"""

from __future__ import annotations

from icedb.errors import UncoordinatedMaintenance
from icedb.format.replay import TableState
from icedb.transaction.table_handle import Handle

__all__ = ["claims_beyond", "foreign_maintenance", "refuse_foreign"]


def refuse_foreign(handle: Handle, state: TableState, newest_epoch: int) -> None:
    """Raise UncoordinatedMaintenance if a state that was read with `fresh` lacks log files of exclusive commits.

    `newest_epoch` is the newest epoch that the handle had seen before. Lists the claims only for a log without epochs.
    """
    if state.epoch < newest_epoch:
        raise foreign_maintenance(handle, state.epoch + 1)
    if state.epoch == 0 and state.files and claims_beyond(handle, 1) and handle.read(fresh=True).epoch == 0:
        raise foreign_maintenance(handle, 1)
    handle.cache.learn_epoch(state.epoch)


def claims_beyond(handle: Handle, epoch: int) -> bool:
    """Whether there are claims of epochs after this one."""
    claims = (handle.keys.parse_epoch_claim(i.key) for i in handle.store.list(handle.keys.claims_prefix))
    return any(claimed is not None and claimed > epoch for claimed in claims)


def foreign_maintenance(handle: Handle, epoch: int) -> UncoordinatedMaintenance:
    """Return the error, with its remedy, for a log whose next epoch would be this one."""
    return UncoordinatedMaintenance(
        f"{handle.table}: epoch {epoch} would be next, and there are claims or log files of later ones: log files of "
        "exclusive commits were removed by a program that takes no claims (IceDB v3's merge or cleanup, or a person). "
        "Nothing was published. Stop that program. Then restore the log files from a backup or earlier versions of the "
        "objects. If the present state of the log is right, delete all epoch-*.json in "
        f"'{handle.keys.claims_prefix}' instead, while no program writes. Run verify for details."
    )
