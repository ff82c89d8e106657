"""A notebook with a query is run, without what draws progress in notebooks."""

import importlib.util

from nbclient import NotebookClient
from nbformat.v4 import new_code_cell, new_notebook

assert importlib.util.find_spec("ipywidgets") is None
cell = new_code_cell(  # type: ignore[no-untyped-call]
    "import icedb\n"
    "import matplotlib.pyplot\n"
    "table = icedb.Table.create('events', partition_by=['day'])\n"
    "table.insert([{'day': f'2026-11-{day:02}', 'n': day} for day in range(1, 29)])\n"
    "table.merge()\n"
    "table.query('SELECT sum(n)::BIGINT FROM t').fetchall()"
)
notebook = new_notebook(cells=[cell])  # type: ignore[no-untyped-call]
NotebookClient(notebook, kernel_name="python3", timeout=120).execute()
assert notebook.cells[0].outputs[0]["data"]["text/plain"] == "[(406,)]"
