"""Outputs of ops that are no assets, such as the inner ops of a `dg.graph_asset`: they have no table.

They are pickled into the storage folder of the Dagster instance, which is Dagster's own default.
"""

import dagster as dg

from icedb.errors import InvalidOption

__all__ = ["op_output_manager"]


def op_output_manager(context: dg.OutputContext | dg.InputContext) -> dg.IOManager:
    """Return Dagster's default IO manager for an output that is no asset.

    Raises InvalidOption for a context without an instance, which a test has built.
    """
    try:
        instance = context.step_context.instance
    except dg.DagsterInvariantViolationError:
        raise InvalidOption(
            f"the output '{context.name}' is no asset, so it has no table, and the context has no Dagster instance to "
            "store it. Give the context an asset_key."
        ) from None
    return dg.FilesystemIOManager().create_io_manager(dg.build_init_resource_context(instance=instance))
