"""What the runs of all examples have in common: a Postgres to run on, steps that are timed, numbers that must agree."""
