"""Requests to the web server: whether it answers, code that it cannot load, and pools of jobs."""

import http.client
import json
from typing import Any

__all__ = ["location_errors", "pools", "request"]

_LOCATIONS_QUERY = """{ workspaceOrError { ... on PythonError { message } ... on Workspace { locationEntries {
name locationOrLoadError { __typename ... on PythonError { message } } } } } }"""

_POOLS_QUERY = """{ repositoriesOrError { ... on RepositoryConnection { nodes { usedSolids { definition {
... on SolidDefinition { pool } } } } } } }"""


def location_errors(port: int) -> tuple[str, ...]:
    """Return one line for each code location that the web server cannot load and therefore does not show."""
    response: Any = request(port, "POST", "/graphql", {"query": _LOCATIONS_QUERY})
    workspace = ((response or {}).get("data") or {}).get("workspaceOrError") or {}
    problems = [("the workspace", workspace)] if "message" in workspace else []
    for entry in workspace.get("locationEntries", ()):
        loaded = entry["locationOrLoadError"] or {}
        if loaded.get("__typename") == "PythonError":
            problems.append((f"code location {entry['name']}", loaded))
    return tuple(f"{what} cannot be loaded: {_first_line(problem['message'])}" for what, problem in problems)


def _first_line(message: str) -> str:
    return next((line.strip() for line in message.splitlines() if line.strip()), "no reason given")


def pools(port: int) -> tuple[str, ...]:
    """Return the pools that jobs of the loaded code locations use."""
    response: Any = request(port, "POST", "/graphql", {"query": _POOLS_QUERY})
    repositories = ((response or {}).get("data") or {}).get("repositoriesOrError") or {}
    used = [solid["definition"] for node in repositories.get("nodes", ()) for solid in node["usedSolids"]]
    return tuple(sorted({d["pool"] for d in used if d.get("pool")}))


def request(port: int, method: str, path: str, body: object = None) -> object:
    """Request JSON from the web server, without HTTP proxies, which cannot reach it; None if it does not answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        content = None if body is None else json.dumps(body)
        connection.request(method, path, body=content, headers={"Content-Type": "application/json"})
        response = connection.getresponse()
        document = json.loads(response.read())
    except (OSError, http.client.HTTPException, ValueError):
        return None
    finally:
        connection.close()
    return document if response.status == http.client.OK else None
