"""Run a notebook from its first to its last cell, in its own kernel and folder."""

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
#: The metadata key of cells that draw a picture in docs/images. Its value is the file name.
PICTURE = "picture"


class NotebookFailed(Exception):
    """A cell raised an error. The message names the cell and the error."""


def execute(path: Path, folder: Path) -> Any:
    """Run a notebook in the folder with its tables, and return it with outputs. Raises NotebookFailed.

    Values that vary between runs without meaning are removed: times, versions, names of kernels.
    """
    notebook = nbformat.read(path, as_version=4)  # type: ignore[no-untyped-call]
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "ICEDB_"))}
    # Unix sockets with short names, because a kernel executes everything that it receives: it must not listen on
    # a port.
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
            client.execute(env=environment | {"IPYTHONDIR": sockets})
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
    """Return the text of a notebook file."""
    written: str = nbformat.writes(notebook)  # type: ignore[no-untyped-call]
    return written.rstrip("\n") + "\n"


def pictures(notebook: Any) -> dict[str, bytes]:
    """Return file name -> PNG for the pictures in the documentation."""
    images = {}
    for cell in notebook.cells:
        for output in cell.get("outputs", ()):
            if PICTURE in cell.metadata and "image/png" in output.get("data", {}):
                images[str(cell.metadata[PICTURE])] = base64.b64decode(output["data"]["image/png"])
    return images
