"""Run the notebooks, and write them with their current outputs.

python -m examples.notebooks                  all notebooks, and the pictures in docs/examples.md
python -m examples.notebooks first_look       this notebook
python -m examples.notebooks --check          only check that they run
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
    """Run notebooks, and return the exit status."""
    if missing := [name for name in ("nbclient", "ipykernel", "matplotlib") if importlib.util.find_spec(name) is None]:
        print(f"{', '.join(missing)} is not installed. Run: pip install 'icedb-dagster[notebooks]'", file=sys.stderr)
        return 1
    from examples.notebooks.execution import NOTEBOOKS, NotebookFailed, execute, pictures, text_of

    names = {path.stem: path for path in NOTEBOOKS}
    parser = argparse.ArgumentParser(
        prog="python -m examples.notebooks", description="Run the notebooks, and write their outputs."
    )
    parser.add_argument("name", nargs="*", help=f"notebooks to run: {', '.join(names)} (default: all)")
    parser.add_argument("--check", action="store_true", help="do not write")
    options = parser.parse_args(arguments)
    if unknown := [name for name in options.name if name not in names]:
        parser.error(f"unknown notebook {', '.join(unknown)}. The notebooks are {', '.join(names)}.")
    for name in options.name or names:
        with tempfile.TemporaryDirectory(prefix="icedb-notebook-") as folder:
            try:
                notebook = execute(names[name], Path(folder))
            except NotebookFailed as error:
                print(error, file=sys.stderr)
                return 1
        if not options.check:
            names[name].write_text(text_of(notebook))
            for file, picture in pictures(notebook).items():
                (IMAGES / file).write_bytes(picture)
        print(f"{name}: ok")
    return 0


if __name__ == "__main__":
    sys.exit(main())
