"""Messages of the library in terms of the command: a verb or a flag instead of a method or an argument."""

import re

__all__ = ["PHRASES", "in_the_shell"]

#: A pattern that occurs in the source of the library, and the text that the command prints instead.
PHRASES = (
    (r"Open it with Table\.open\.", "Choose another address, or use that table."),
    (r"Open it with Table\.open, and import with import_files\.", "Leave --create out."),
    (r"Create one with Table\.create", "Create one with icedb create"),
    (r"Declare it: Table\.create\(\.\.\., schema=\{\.\.\.\}\), or alter\.", "Declare it: icedb alter --column."),
    (r"cannot take rows from a builtins\.str that is no path of Parquet", "this is no name of a file of Parquet"),
    (r"Table\.insert takes paths", "icedb insert takes files"),
    (r"insert\(path, on_conflict='cast'\)", "icedb insert --on-conflict cast"),
    (r"on_conflict='(\w+)'", r"--on-conflict \1"),
    (r"another on_conflict", "another --on-conflict"),
    (r"Correct AWS_PROFILE", "Correct --profile (or AWS_PROFILE)"),
    (r" \(min_age_ms=\d+\)", ""),
    (r"allow_short_grace=True", "--allow-short-grace"),
    (r"first_time=True", "--first-time"),
    (r"drop_partitions", "icedb drop"),
    (r"delete\(where\)", "icedb delete --where"),
    (r"delete_orphans deletes", "icedb orphans --delete deletes"),
    (r"as snapshot\(\)\.partitions\(\) lists them", "as icedb partitions lists them"),
    (r"the name of a profile \(AWS_PROFILE\)", "give --profile (or AWS_PROFILE)"),
    (r"\bexclude_columns\b", "--exclude-column"),
    (r"overwrite replaces what", "--overwrite replaces what"),
    (r"with overwrite\.", "with --overwrite."),
    (r"keep is (?=[-\d])", "--keep is "),
    (r"give a timedelta above 0, or None", "give a duration above 0"),
    (r"longer than keep\b", "longer than --keep"),
    (r"unpin\('([^']*)'\)", r"icedb unpin and the name \1"),
    (r"refresh_view\('([^']*)'\)", r"icedb refresh-view and the name \1"),
)


def in_the_shell(message: str) -> str:
    """Return a message of the library in terms of the command."""
    for pattern, words in PHRASES:
        message = re.sub(pattern, words, message)
    return message
