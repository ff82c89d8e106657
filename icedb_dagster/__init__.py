"""IceDB in Dagster."""
