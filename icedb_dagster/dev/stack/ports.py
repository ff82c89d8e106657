"""Ports of the loopback address.

A port that was free may be taken a moment later, so a server must handle a port that is taken.
"""

import socket

__all__ = ["free_port", "port_is_free"]


def port_is_free(port: int) -> bool:
    """Return whether a server could listen on that port of the loopback address."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def free_port() -> int:
    """Return a port that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
