"""Stage 10: serve the page to this machine alone."""

import secrets
import socket
from collections.abc import Callable

from ..errors import InputError, MissingExtra
from .app import make_app
from .pages import ViewData

LOOPBACK = "127.0.0.1"


def serve(data: ViewData, *, port: int = 0, ready: Callable[[str], None]) -> None:
    """Serve the page on loopback until the process is interrupted.

    Args:
        data: The data of the page.
        port: Port of the server; 0: a free one.
        ready: Called with the address, which contains the token, once the port is open.

    Raises:
        InputError: the port is in use, or may not be used.
        MissingExtra: the server is not installed.
    """
    try:
        import uvicorn
    except ImportError as error:
        raise MissingExtra("uvicorn", "view") from error
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind((LOOPBACK, port))
        except (OSError, OverflowError) as error:
            raise InputError(f"--port {port} cannot be used ({error}): give another") from error
        port = listening.getsockname()[1]
        token = secrets.token_urlsafe(32)
        config = uvicorn.Config(
            make_app(data, token=token, port=port),
            log_level="warning",
            access_log=False,
            lifespan="off",
            server_header=False,
        )
        listening.listen()
        ready(f"http://{LOOPBACK}:{port}/?token={token}")
        uvicorn.Server(config).run(sockets=[listening])
