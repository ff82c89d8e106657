"""A process that serves: its streams, its sockets, its signals, and its end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import resource
import signal
import socket
import threading
from collections.abc import AsyncIterator, Coroutine, Iterator
from dataclasses import dataclass
from io import FileIO

from icedb.services.http.connections import HttpServer
from icedb.services.http.log_lines import LineWriter, TextLines
from icedb.services.http.server_settings import ListenSettings

__all__ = [
    "Listeners",
    "allow_connections",
    "background_task",
    "schedule_forced_exit",
    "install_signal_handlers",
    "open_line_writer",
    "open_listeners",
    "configure_logging",
]

#: The end of the process waits so long for threads that are asking a store which does not answer.
_THREADS_SECONDS = 3.0
#: Beside a connection's own: those to the store, files and what Python has open.
_OTHER_FILES = 256


@contextlib.contextmanager
def open_line_writer(descriptor: int, name: str) -> Iterator[LineWriter]:
    """A writer to one of the process's streams, which in the end has written what it could."""
    # Without a buffer: of a pipe that broke, nothing is left that the interpreter would fail to flush at its end.
    lines = LineWriter(FileIO(descriptor, "wb", closefd=False), name)
    try:
        yield lines
    finally:
        lines.close()


def configure_logging(lines: LineWriter, logger: str) -> None:
    """Write the process's log there: of the program whose logger that is what informs, of all else warnings."""
    layout = "%(asctime)s %(levelname)s %(name)s: %(message)s"
    logging.basicConfig(format=layout, level=logging.WARNING, stream=TextLines(lines))
    logging.getLogger(logger).setLevel(logging.INFO)
    uvicorn_log = logging.getLogger("uvicorn.error")
    uvicorn_log.setLevel(logging.ERROR)  # its warnings are of requests that are none: anybody could fill a disk
    # An answer that is cut off when the process has to end is no error of the application.
    uvicorn_log.addFilter(lambda record: not (record.exc_info and record.exc_info[0] is asyncio.CancelledError))


def install_signal_handlers(server: HttpServer, reload: asyncio.Event) -> None:
    """SIGTERM and SIGINT stop the server, the second ends the process at once; SIGHUP sets `reload`."""
    loop = asyncio.get_running_loop()
    ending = (signal.SIGTERM, signal.SIGINT)

    def stop() -> None:
        server.should_exit = True
        for number in ending:  # the system's own way: it works whatever this process is doing
            loop.remove_signal_handler(number)
            signal.signal(number, signal.SIG_DFL)

    for number in ending:
        loop.add_signal_handler(number, stop)
    loop.add_signal_handler(signal.SIGHUP, reload.set)


@contextlib.asynccontextmanager
async def background_task(work: Coroutine[object, object, None]) -> AsyncIterator[None]:
    """Something that goes on until the block ends."""
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


def schedule_forced_exit() -> None:
    """Threads are joined when the interpreter ends; one that asks a store which does not answer must not hold it."""
    impatient = threading.Timer(_THREADS_SECONDS, os._exit, (0,))
    impatient.daemon = True
    impatient.start()


# ------------------------------------------------------------------------------------------------ sockets


@dataclass(frozen=True, slots=True)
class Listeners:
    """The sockets of a server: for its clients, and for who asks for health and metrics, if anybody may."""

    clients: socket.socket
    admin: socket.socket | None
    #: Where they listen, for people.
    text: str


@contextlib.contextmanager
def open_listeners(settings: ListenSettings) -> Iterator[Listeners]:
    """Sockets that clients can already connect to, so that it is known before anything else that they can.

    Raises OSError, which names the address, when nothing can listen there.
    """
    with contextlib.ExitStack() as closing:
        clients = closing.enter_context(_listening_socket(settings.host, settings.port))
        admin = None
        scheme = "http" if settings.tls_certificate is None else "https"
        text = f"listening on {scheme}://{_address_text(clients)}"
        if settings.admin_host is not None and settings.admin_port is not None:
            admin = closing.enter_context(_listening_socket(settings.admin_host, settings.admin_port))
            text += f", health and metrics on http://{_address_text(admin)}"
        yield Listeners(clients, admin, text)


def _listening_socket(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        number = error.errno or 0
        why = os.strerror(number) if number > 0 else error.strerror  # below 0: no host has that name
        raise OSError(f"{host}:{port}: cannot listen there: {why}") from None


def _address_text(listener: socket.socket) -> str:
    """Where a socket listens, as addresses of the web say it."""
    host, port = listener.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def allow_connections(connections: int) -> None:
    """As many open files as they need, if the system lets us: its usual 1,024 are of the days of select()."""
    wanted = 2 * connections + _OTHER_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
