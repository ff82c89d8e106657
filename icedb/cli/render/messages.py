"""Messages of the library in terms of the command: a verb or an option instead of a method or an argument.

`with_options` replaces the names of arguments for which the running verb has an option. `PHRASES` has the rest.
"""

import re
from collections.abc import Mapping

__all__ = ["PHRASES", "in_the_shell", "with_options"]

#: A pattern that occurs in the source of the library, and the text that the command prints instead.
PHRASES = (
    (r"Open it with Table\.open\.", "Choose another address, or use that table."),
    (r"Open it with Table\.open, and import with import_files\.", "Leave --create out."),
    (r"Create one with Table\.create", "List those below an address with icedb list, create one with icedb create"),
    (r"Declare it: Table\.create\(\.\.\., schema=\{\.\.\.\}\), or alter\.", "Declare it: icedb alter --column."),
    (r"cannot take rows from a builtins\.str that is no path of Parquet", "this is no name of a file of Parquet"),
    (r"Table\.insert takes paths", "icedb insert takes files"),
    (r"insert\(path, on_conflict='cast'\)", "icedb insert --on-conflict cast"),
    (r"Correct AWS_PROFILE", "Correct --profile (or AWS_PROFILE)"),
    (r" \(min_age_ms=\d+\)", ""),
    (r"drop_partitions", "icedb drop"),
    (r"snapshot\(\)\.partitions\(\) or (?=icedb partitions)", ""),
    (r"; pass missing_ok=True if one may be gone already", ", or give a condition with --where"),
    (r"delete\(where\)", "icedb delete --where"),
    (r"delete_orphans deletes", "icedb orphans --delete deletes"),
    (r"as snapshot\(\)\.partitions\(\) lists them", "as icedb partitions lists them"),
    (r"the name of a profile \(AWS_PROFILE\)", "give --profile (or AWS_PROFILE)"),
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


# What is not before the name of an argument: another part of a name, of an option, of a path or of a quoted text.
_BEFORE = r"(?<![\w'./-])"


def with_options(message: str, options: Mapping[str, str]) -> str:
    """Replace arguments in a message by the options of the running verb, `options`: argument -> option.

    An argument is recognised by an equals sign after it, by an underscore in its name, or at the begin of a sentence
    about it ("on names 'id'"). Names in quotes are those of the caller.
    """
    message = re.sub(r"^Table\.\w+: ", "", message)
    for argument, option in options.items():
        name = f"{_BEFORE}{argument}"
        message = re.sub(rf"{name}='([^']*)'", rf"{option} \1", message)
        message = re.sub(rf"{name}=True\b", option, message)
        message = re.sub(rf"{name}=(?=[\d[])", f"{option} ", message)
        message = re.sub(rf"{name}=", option, message)
        about = rf"{name}(?![\w'/(-])" if "_" in argument else rf"(?:^|(?<=: )){argument}(?= (?:is|names|must) )"
        message = re.sub(about, option, message)
    return message
