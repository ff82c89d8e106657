"""`python -m icedb.cli` is the command `icedb`."""

from icedb.cli import main

main()
