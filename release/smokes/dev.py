"""What lints, types and tests is there."""

import subprocess
import sys
from pathlib import Path

programs = Path(sys.executable).parent
for name in ("ruff", "mypy", "pytest", "pre-commit", "check-jsonschema", "mkdocs", "dg", "aws", "uv"):
    subprocess.run([programs / name, "--version"], check=True)
