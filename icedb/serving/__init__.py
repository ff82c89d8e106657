"""What programs that serve over HTTP have in common: their file, their connections, their logs, their end.

The S3 proxy and the ingest service stand on it. `settings`, `documents` and `config` need no more than the library, so
that a file can be checked where no server is installed; `connections` and `process` are the server.
"""

from __future__ import annotations
