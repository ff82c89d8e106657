"""Runs a notebook from its first cell to its last, in a kernel and a folder of its own."""

from __future__ import annotations

import base64
import os
import tempfile
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError
from traitlets.config import Config

__all__ = ["FOLDER", "NOTEBOOKS", "NotebookFailed", "execute", "pictures", "text_of"]

FOLDER = Path(__file__).parent
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
CELL_SECONDS_MAX = 120
#: A cell with this in its metadata draws a picture of docs/images; its value is the name of the file.
PICTURE = "picture"


class NotebookFailed(Exception):
    """A cell raised an error. The message says which, and what it raised."""


def execute(path: Path, folder: Path) -> Any:
    """Run a notebook in a folder, where its tables are; returns it with the outputs. Raises NotebookFailed.

    What differs from run to run without meaning is left out: times, versions, names of kernels.
    """
    notebook = nbformat.read(path, as_version=4)  # type: ignore[no-untyped-call]
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "ICEDB_"))}
    # Over sockets of the file system, whose names are short: a kernel runs whatever it is sent, and listens nowhere.
    with tempfile.TemporaryDirectory(prefix="kernel-") as sockets:
        over_files = {"transport": "ipc", "connection_file": str(Path(sockets) / "kernel.json")}
        client = NotebookClient(
            notebook,
            kernel_name="python3",
            timeout=CELL_SECONDS_MAX,
            resources={"metadata": {"path": str(folder)}},
            config=Config({"KernelManager": over_files}),
        )
        try:
            client.execute(env=kept | {"IPYTHONDIR": sockets})
        except CellExecutionError as error:
            raise NotebookFailed(f"{path.name}: {error}") from None
    notebook.metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
    return notebook


def text_of(notebook: Any) -> str:
    """A notebook as its file has it."""
    written: str = nbformat.writes(notebook)  # type: ignore[no-untyped-call]
    return written.rstrip("\n") + "\n"


def pictures(notebook: Any) -> dict[str, bytes]:
    """Name of the file -> PNG, of the pictures that pages show."""
    found = {}
    for cell in notebook.cells:
        for output in cell.get("outputs", ()):
            if PICTURE in cell.metadata and "image/png" in output.get("data", {}):
                found[str(cell.metadata[PICTURE])] = base64.b64decode(output["data"]["image/png"])
    return found
