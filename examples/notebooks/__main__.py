"""Run the notebooks again, and write them with what they say and draw now.

python -m examples.notebooks                  all of them, and the pictures that docs/examples.md shows
python -m examples.notebooks first_look       this one
python -m examples.notebooks --check          write nothing: do they run?
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

IMAGES = Path(__file__).parents[2] / "docs" / "images"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run notebooks; returns the exit status."""
    if missing := [name for name in ("nbclient", "ipykernel", "matplotlib") if importlib.util.find_spec(name) is None]:
        print(f"There is no {', '.join(missing)} here: pip install 'icedb-dagster[notebooks]'", file=sys.stderr)
        return 1
    from examples.notebooks.execution import NOTEBOOKS, NotebookFailed, execute, pictures, text_of

    names = {path.stem: path for path in NOTEBOOKS}
    parser = argparse.ArgumentParser(prog="python -m examples.notebooks", description="Run the notebooks again.")
    parser.add_argument("name", nargs="*", help=f"those to run, of {', '.join(names)}; all when none is given")
    parser.add_argument("--check", action="store_true", help="write nothing")
    given = parser.parse_args(arguments)
    if unknown := [name for name in given.name if name not in names]:
        parser.error(f"there is no notebook {', '.join(unknown)}; there are {', '.join(names)}.")
    for name in given.name or names:
        with tempfile.TemporaryDirectory(prefix="icedb-notebook-") as folder:
            try:
                notebook = execute(names[name], Path(folder))
            except NotebookFailed as error:
                print(error, file=sys.stderr)
                return 1
        if not given.check:
            names[name].write_text(text_of(notebook))
            for file, picture in pictures(notebook).items():
                (IMAGES / file).write_bytes(picture)
        print(f"{name}: ok")
    return 0


if __name__ == "__main__":
    sys.exit(main())
