"""The command `icedb` as `python -m icedb.cli`."""

from icedb.cli import main

main()
