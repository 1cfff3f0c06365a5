"""Stage 10: serve the page, which only this machine and its token may use.

Bags, tiles and patches are addressed by integers, and only the files of `static/` are read by name:
no path comes from a request.
"""

import secrets
import socket
from collections.abc import Awaitable, Callable
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import InputError, ProbSAError, imports_from
from ..maps import READ_ERRORS
from .pages import ADDRESSES, ViewData

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response

CallNext = Callable[["Request"], Awaitable["Response"]]
"""What a middleware hands a request on to."""
LOOPBACK = "127.0.0.1"
HOSTS = [LOOPBACK, "localhost"]
CSP = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; "
    "connect-src 'self'; base-uri 'none'; frame-ancestors 'none'; form-action 'none'"
)
HEADERS = {
    "Content-Security-Policy": CSP,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


def static_folder() -> Path:
    """Return the folder with the page, its scripts and its style sheet."""
    return Path(str(files("probsa.view") / "static"))


def make_app(data: ViewData, *, token: str, port: int) -> "Starlette":
    """Return the application.

    Args:
        data: The data of the page.
        token: The secret that the first request must bring as `?token=`; it is exchanged for a
            cookie.
        port: The port of the server, which is part of the cookie's name, since browsers share
            cookies between the ports of a host.

    Raises:
        MissingExtra: starlette is not installed.
    """
    with imports_from("view", "starlette"):
        from starlette.applications import Starlette
        from starlette.middleware import Middleware
        from starlette.middleware.base import BaseHTTPMiddleware
        from starlette.middleware.trustedhost import TrustedHostMiddleware
        from starlette.routing import BaseRoute, Mount, Route
        from starlette.staticfiles import StaticFiles
    page = (static_folder() / "index.html").read_bytes()
    routes: list[BaseRoute] = [Route("/", _endpoint(lambda: page, "text/html; charset=utf-8"))]
    for address, answer in ADDRESSES.items():
        path = "/data/" + address.replace("}", ":int}")  # all parts that vary are numbers
        endpoint = _endpoint(partial(answer.make, data), answer.media_type)
        routes.append(Route(path, endpoint))
    routes.append(Mount("/static", StaticFiles(directory=static_folder())))
    guard = _guard(token, cookie_name=f"probsa-view-{port}")
    # a request passes them in this order, so that refusals have the headers as well
    middleware = [
        Middleware(BaseHTTPMiddleware, dispatch=_with_headers),
        Middleware(TrustedHostMiddleware, allowed_hosts=HOSTS),
        Middleware(BaseHTTPMiddleware, dispatch=guard),
    ]
    return Starlette(routes=routes, middleware=middleware)


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
    with imports_from("view", "uvicorn"):
        import uvicorn
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as server_socket:
        server_socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            server_socket.bind((LOOPBACK, port))
        except (OSError, OverflowError) as error:
            raise InputError(f"--port {port} cannot be used ({error}): give another") from error
        port = server_socket.getsockname()[1]
        token = secrets.token_urlsafe(32)
        config = uvicorn.Config(
            make_app(data, token=token, port=port),
            log_level="warning",
            access_log=False,
            lifespan="off",
            server_header=False,
        )
        server_socket.listen()
        ready(f"http://{LOOPBACK}:{port}/?token={token}")
        uvicorn.Server(config).run(sockets=[server_socket])


async def _with_headers(request: "Request", call_next: CallNext) -> "Response":
    response = await call_next(request)
    response.headers.update(HEADERS)
    return response


def _guard(
    token: str, *, cookie_name: str
) -> Callable[["Request", CallNext], Awaitable["Response"]]:
    """Return the middleware that lets only requests with the token or its cookie pass."""
    from starlette.responses import PlainTextResponse, RedirectResponse

    async def guard(request: "Request", call_next: CallNext) -> "Response":
        if request.method not in ("GET", "HEAD"):
            return PlainTextResponse("Only GET and HEAD are allowed.", status_code=405)
        query_token = request.query_params.get("token")
        if query_token is not None and _same(query_token, token):
            response = RedirectResponse("/", status_code=303)
            response.set_cookie(cookie_name, token, httponly=True, samesite="strict", path="/")
            return response
        if _same(request.cookies.get(cookie_name, ""), token):
            return await call_next(request)
        return PlainTextResponse(
            "Open the address that `probsa view` printed: it holds a token.", status_code=403
        )

    return guard


def _same(text: str, token: str) -> bool:
    """Compare in a time that does not tell how many characters are right."""
    return secrets.compare_digest(text.encode(), token.encode())


def _endpoint(make: Callable[..., bytes], media_type: str) -> "Callable[[Request], Response]":
    """Return an endpoint that answers with the bytes of `make`, or with status 404 if it fails.

    Starlette runs it in a thread, because it is no coroutine. `make` receives the numbers in the
    address.
    """
    from starlette.responses import PlainTextResponse, Response

    def endpoint(request: "Request") -> Response:
        try:
            return Response(make(**request.path_params), media_type=media_type)
        except READ_ERRORS as error:
            # a stated reason helps the user of this machine; other errors may name paths
            reason = str(error) if isinstance(error, ProbSAError) else type(error).__name__
            return PlainTextResponse(reason, status_code=404)

    return endpoint
