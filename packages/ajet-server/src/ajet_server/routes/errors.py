"""Errors on the wire: every refusal in the shape that the caller's side of the API expects, never a traceback."""

import logging
import math
from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from ajet_core.errors import AjetError, RequestError, to_wire
from ajet_server.gateway.dialects import messages
from ajet_server.gateway.dialects.chat.answer import error_body
from ajet_server.routes.disconnect import CLIENT_GONE

log = logging.getLogger("ajet.http")

_HTTP_CODES = {400: "invalid_request", 404: "not_found", 405: "method_not_allowed", 413: "request_too_large"}


def install_error_handlers(app: FastAPI) -> None:
    """Makes `app` answer every error in the right shape."""
    for known in (AjetError, HTTPException, ClientDisconnect):
        app.add_exception_handler(known, _on_known)
    app.add_exception_handler(RequestValidationError, _on_invalid_body)
    app.add_exception_handler(Exception, _on_bug)


def response_to(request: Request, error: AjetError | HTTPException | ClientDisconnect) -> Response:
    """Returns the response for what a route may raise, and tells the log of it where that is news."""
    if isinstance(error, HTTPException):
        return http_error_response(request, error)
    if isinstance(error, ClientDisconnect):  # before its body was whole; no mistake of anybody
        return Response(status_code=CLIENT_GONE)
    response = error_response(request, error)
    if error.status >= 500 and error.retry_after_s is None:  # "try again" is no news
        log.warning("%s %s: %s", request.method, request.url.path, _told(error, response))
    return response


def error_response(request: Request, error: AjetError) -> JSONResponse:
    """Returns the response for an error."""
    headers = {} if error.retry_after_s is None else {"Retry-After": str(math.ceil(error.retry_after_s))}
    return _respond(request, to_wire(error)["error"], error.status, headers)


def _respond(request: Request, inner: dict[str, Any], status: int, headers: Mapping[str, str]) -> JSONResponse:
    body = _shape(request.url.path, inner, status)
    if "request_id" in body:
        headers = {**headers, "request-id": body["request_id"]}
    return JSONResponse(body, status, headers)


def _shape(path: str, inner: dict[str, Any], status: int) -> dict[str, Any]:
    """Anthropic's shape under `/v1/messages`, OpenAI's under the rest of `/v1`, ours elsewhere."""
    inner = {key: _encodable(value) for key, value in inner.items()}
    if not path.startswith("/v1"):
        return {"error": inner}
    if path.startswith("/v1/messages"):
        return messages.error_body(inner["message"], inner["code"], status)
    return error_body(inner["message"], inner["code"], status, inner.get("field"))


def _encodable(value: object) -> object:
    r"""JSON may name half a surrogate pair ("\ud800"), which no UTF-8 answer can quote as it is."""
    return value.encode("utf-8", "backslashreplace").decode() if isinstance(value, str) else value


async def _on_bug(request: Request, error: Exception) -> JSONResponse:
    return bug_response(request, error)


def bug_response(request: Request, error: Exception) -> JSONResponse:
    """A mistake of ours: the traceback goes to the log (it is raised again), the caller gets a sentence."""
    message = f"{request.method} {request.url.path}: a mistake in the server ({type(error).__name__}); see its log"
    return _respond(request, {"code": "internal", "message": message, "field": None}, 500, {})


async def _on_known(request: Request, error: Exception) -> Response:
    """What routes raise, and routing's own errors: no such path, wrong method, body too large."""
    if not isinstance(error, AjetError | HTTPException | ClientDisconnect):
        raise error
    return response_to(request, error)


def _told(error: AjetError, response: JSONResponse) -> str:
    """The message for the log, with the id by which the caller knows it, if there is one."""
    named = response.headers.get("request-id")
    return error.message if named is None else f"{error.message} ({named})"


async def _on_invalid_body(request: Request, error: Exception) -> JSONResponse:
    if not isinstance(error, RequestValidationError):
        raise error
    return error_response(request, _describe(error))


def _describe(error: RequestValidationError) -> RequestError:
    item = error.errors()[0]
    if item["type"] == "json_invalid":
        return RequestError(f"the body is not JSON: {item['ctx']['error']}")
    path = ".".join(str(part) for part in item["loc"][1:]) or "body"
    if item["type"] == "extra_forbidden":
        return RequestError(f"{path}: unknown field", field=path)
    if item["type"] == "missing":
        return RequestError(f"{path}: required, but not given", field=path)
    value = repr(item.get("input"))
    shown = value if len(value) <= 120 else f"{value[:117]}..."
    return RequestError(f"{path}: got {shown}; {item['msg'].removeprefix('Value error, ')}", field=path)


def http_error_response(request: Request, error: HTTPException) -> JSONResponse:
    """Returns the response for an error of the framework."""
    inner: dict[str, Any] = {
        "code": _HTTP_CODES.get(error.status_code, "http_error"),
        "message": f"{request.method} {request.url.path}: {error.detail}",
        "field": None,
        "retry_after_s": None,
    }
    return _respond(request, inner, error.status_code, error.headers or {})
