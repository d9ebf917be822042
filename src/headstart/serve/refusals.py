"""What a client is told when it gets no answer: one JSON shape, `{error, detail}`, and a status."""

ERRORS = {
    400: "bad_request",
    401: "no_key",
    403: "forbidden",
    404: "not_found",
    405: "method_not_allowed",
    408: "slow_body",
    413: "too_large",
    415: "not_json",
    422: "invalid",
    429: "too_many_requests",
    500: "internal",
    503: "busy",
    504: "deadline",
}
"""The word for each status, for programs; the detail is for people."""


class Refusal(Exception):
    """A request that is not answered, and why.

    Args:
        retry_after: seconds after which it may be tried again.
    """

    def __init__(self, status: int, detail: str, retry_after: int | None = None) -> None:
        super().__init__(detail)
        self.status, self.detail, self.retry_after = status, detail, retry_after

    def body(self) -> dict[str, str]:
        """What the client reads."""
        return {"error": ERRORS.get(self.status, "error"), "detail": self.detail}

    def headers(self) -> dict[str, str]:
        """What goes with it."""
        headers = {} if self.retry_after is None else {"Retry-After": str(self.retry_after)}
        return headers | ({"WWW-Authenticate": "Bearer"} if self.status == 401 else {})


def too_late() -> Refusal:
    """For whatever could not be answered in time."""
    return Refusal(504, "the deadline passed before there was an answer; ask for less, or allow more time")
