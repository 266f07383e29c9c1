"""Errors of the gateway, in the shapes of OpenAI's and Anthropic's APIs."""

from __future__ import annotations

from typing import Any

from starlette.responses import JSONResponse

_TYPES = {401: "authentication_error", 404: "not_found_error", 500: "api_error"}


class ApiError(Exception):
    """An error response."""

    def __init__(self, message: str, *, status: int = 400, code: str | None = None, param: str | None = None) -> None:
        """Create the error.

        Args:
            message: What was requested, what is supported, and what to do next.
            status: HTTP status. Clients repeat requests after 429 and 5xx, but not after other 4xx.
            code: Machine-readable code, such as `context_length_exceeded`.
            param: The parameter of the request at fault.
        """
        super().__init__(message)
        self.message, self.status, self.code, self.param = message, status, code, param

    def response(self, *, anthropic: bool) -> JSONResponse:
        """Return the HTTP response, in Anthropic's shape or in OpenAI's."""
        kind = _TYPES.get(self.status, "invalid_request_error")
        error: dict[str, Any] = {"message": self.message, "type": kind}
        if anthropic:
            return JSONResponse({"type": "error", "error": error}, self.status)
        return JSONResponse({"error": error | {"param": self.param, "code": self.code}}, self.status)


def unsupported(what: str, instead: str, param: str) -> ApiError:
    """Return the error for a parameter or a kind of content that the gateway doesn't support."""
    return ApiError(f"{what} isn't supported by this gateway. {instead}", code="unsupported", param=param)
