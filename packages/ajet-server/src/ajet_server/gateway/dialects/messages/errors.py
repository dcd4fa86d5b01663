"""Errors as this API tells them, in a response or in the middle of a stream."""

from typing import Any

from ajet_core.ids import new_request_id

_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    410: "permission_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}


def error_body(message: str, code: str, status: int) -> dict[str, Any]:
    """Returns the body of an error.

    Args:
        message: a sentence for a person.
        code: machine-readable; SDKs give it as `error_code`.
        status: the HTTP status that it has, or would have had. 503 stays 503, since the SDKs retry it like the API's
            own 529.
    """
    kind = _TYPES.get(status, "invalid_request_error" if status < 500 else "api_error")
    error = {"type": kind, "message": message, "details": {"error_code": code}}
    return {"type": "error", "error": error, "request_id": new_request_id()}
