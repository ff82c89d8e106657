"""What builds the site is there."""

import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

mkdocs = Path(sys.executable).with_name("mkdocs")
subprocess.run([mkdocs, "--version"], check=True)
assert version("mkdocs-material") and version("mkdocstrings-python") and version("griffe-sphinx")
