"""The routes: HTTP to questions, answers to JSON. What keeps the server safe stands before them, in the gate."""

import asyncio
import json
import logging
import traceback
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from functools import cache
from importlib import resources
from typing import Any, TypeVar

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.exceptions import HTTPException

from headstart.config.merge import closest_name
from headstart.predict.generate import Sampling
from headstart.serve.middleware import ERRORS, LOG, HTTPError, ServiceMiddleware
from headstart.serve.payloads import (
    ANSWER_TYPES,
    ErrorBody,
    ExplainAnswer,
    ExplainRequest,
    GenerateAnswer,
    GenerateRequest,
    NextAnswer,
    NextRequest,
    PredictAnswer,
    PredictRequest,
    Weight,
)
from headstart.serve.service import Service, report_path, run_curves, run_result
from headstart.version import __version__

T = TypeVar("T")
PAGE = {
    "/": ("index.html", "text/html"),
    "/page.css": ("page.css", "text/css"),
    "/page.js": ("page.js", "text/javascript"),
}
REPORT_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data: 'self'; frame-ancestors 'none'; sandbox"
"""A report is one file with its styles and figures inside; scripts it may not run."""
PROBLEMS: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorBody, "description": ERRORS[status]}
    for status in (400, 401, 403, 404, 408, 413, 415, 422, 429, 500, 503, 504)
}
logging.getLogger("asyncio").setLevel(logging.CRITICAL)  # its lines would quote what was asked


def build_app(service: Service, key: str | None = None) -> ServiceMiddleware:
    """The app of one model, behind its gate."""

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        service.start()
        yield
        service.stop()

    app = FastAPI(
        title="headstart serve",
        version=__version__,
        description="A classifier or a language model over HTTP. Errors are `{error, detail}`.",
        docs_url=None,
        redoc_url=None,
        lifespan=lifespan,
        redirect_slashes=False,  # an address that is not in the document is not there
    )
    gate = ServiceMiddleware(app, service.config, service.metrics, key)
    _answers(app, service)
    _continuations(app, service)
    _about(app, service, gate)
    _pages(app, service)
    app.add_exception_handler(HTTPError, _refused)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(Exception, _unexpected)
    return gate


def _answers(app: FastAPI, service: Service) -> None:
    @app.post("/predict", response_model=PredictAnswer, responses=PROBLEMS)
    async def predict(asked: PredictRequest, request: Request) -> Response:
        """Labels and calibrated probabilities."""
        answers = await _while_there(request, service.predict(asked.all(), asked.abstain, deadline(request, service)))
        told: Any = [ANSWER_TYPES[answer.kind].model_construct(**vars(answer)) for answer in answers]
        return _json(PredictAnswer.model_construct(labels=list(service.labels), predictions=told))

    @app.post("/explain", response_model=ExplainAnswer, responses=PROBLEMS)
    async def explain(asked: ExplainRequest, request: Request) -> Response:
        """How much each word spoke for a label."""
        text = asked.text if asked.pair is None else (asked.text, asked.pair)
        found, cut = await _while_there(request, service.explain(text, asked.label, deadline(request, service)))
        words = [Weight(text=word.text, weight=word.weight) for word in found.words]
        told = ExplainAnswer(
            label=found.label,
            words=words,
            margin=found.margin,
            baseline=found.baseline,
            error=found.error,
            truncated=cut,
        )
        return _json(told)


def _continuations(app: FastAPI, service: Service) -> None:
    events: dict[int | str, dict[str, Any]] = {200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}}}

    @app.post("/generate", response_model=GenerateAnswer, responses=PROBLEMS | events)
    async def generate(asked: GenerateRequest, request: Request) -> Response:
        """How the language model goes on from a prompt."""
        sampling = Sampling(asked.tokens, asked.temperature, asked.top_k, asked.top_p, asked.seed)
        pieces = await service.generate(asked.prompt, sampling, deadline(request, service))
        if not asked.stream:
            text, done = await _while_there(request, _gathered(pieces))
            return _json(GenerateAnswer(text=text, done=done))
        return StreamingResponse(_events(pieces), media_type="text/event-stream")

    @app.post("/next", response_model=NextAnswer, responses=PROBLEMS)
    async def next_(asked: NextRequest, request: Request) -> Response:
        """The likeliest pieces of text that come next."""
        found = await _while_there(request, service.next(asked.prompt, asked.count, deadline(request, service)))
        return _json(NextAnswer(pieces=[Weight(text=text, weight=share) for text, share in found]))


def _about(app: FastAPI, service: Service, gate: ServiceMiddleware) -> None:
    @app.get("/health")
    async def health() -> JSONResponse:
        """Whether the process does its work."""
        good = service.healthy
        return JSONResponse({"status": "ok" if good else "the model's thread has ended"}, 200 if good else 503)

    @app.get("/ready")
    async def ready() -> JSONResponse:
        """Whether requests should be sent here."""
        return JSONResponse({"status": "stopping" if gate.draining else "ready"}, 503 if gate.draining else 200)

    @app.get("/metrics", response_class=PlainTextResponse)
    async def metrics() -> Response:
        """Counts, for Prometheus."""
        return Response(service.metrics.text(), media_type="text/plain; version=0.0.4")

    @app.get("/about")
    async def about() -> JSONResponse:
        """What the server holds, and how much it takes."""
        bundle, config, run = service.bundle, service.config, service.run_folder
        calibration = bundle.about.get("calibration") or {}
        return JSONResponse(
            {
                "name": bundle.path.resolve().parent.name if run else bundle.path.resolve().name,
                "version": __version__,
                "head_type": bundle.head_type,
                "labels": list(bundle.labels),
                "task": bundle.task.facts(),
                "context": bundle.config.context,
                "windows": bundle.windows,
                "precisions": [row["wanted"] for row in calibration.get("thresholds", [])],
                "limits": {
                    "texts": config.texts,
                    "characters": config.characters,
                    "body": config.body,
                    "tokens": config.tokens,
                },
                "result": run_result(run),
                "curves": run_curves(run),
                "report": report_path(run) is not None,
            }
        )


def _pages(app: FastAPI, service: Service) -> None:
    for path, (name, kind) in PAGE.items():
        app.add_api_route(path, _asset(name, kind), include_in_schema=False, methods=["GET"])

    @app.get("/report", include_in_schema=False)
    async def report() -> Response:
        page = report_path(service.run_folder)
        if page is None:
            raise HTTPError(404, "there is no report beside this model")
        return FileResponse(page, media_type="text/html", headers={"Content-Security-Policy": REPORT_POLICY})


def _asset(name: str, kind: str) -> Any:
    async def asset() -> Response:
        return Response(_content(name), media_type=kind, headers={"Cache-Control": "no-cache"})

    return asset


@cache
def _content(name: str) -> bytes:
    return resources.files("headstart.serve").joinpath("page", name).read_bytes()


def deadline(request: Request, service: Service) -> float:
    """When a request is given up: after the server's own time, or earlier where the client says so."""
    seconds = service.config.deadline
    if (asked := request.headers.get("x-deadline-ms")) is not None:
        if not (asked.isascii() and asked.isdigit() and len(asked) < 10):
            raise HTTPError(422, "X-Deadline-Ms must be a whole number of milliseconds")
        seconds = min(seconds, int(asked) / 1000)
    started: float = request.scope["headstart.started"]
    return started + seconds


async def _while_there(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """Work for a client; given up when the client leaves."""
    task, gone = asyncio.ensure_future(work), asyncio.ensure_future(_left(request))
    try:
        await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise HTTPError(400, "the client left before there was an answer")
        return task.result()
    finally:
        task.cancel()
        gone.cancel()


async def _left(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _gathered(pieces: AsyncIterator[tuple[str, str | None]]) -> tuple[str, str]:
    texts, done = [], "end"
    async for piece, reason in pieces:
        texts.append(piece)
        done = reason or done
    return "".join(texts), done


async def _events(pieces: AsyncIterator[tuple[str, str | None]]) -> AsyncIterator[str]:
    async for piece, reason in pieces:
        if piece:
            yield f"data: {json.dumps({'text': piece}, ensure_ascii=False)}\n\n"
        if reason:
            yield f"data: {json.dumps({'done': reason})}\n\n"


def _json(told: PredictAnswer | ExplainAnswer | GenerateAnswer | NextAnswer) -> Response:
    return Response(told.model_dump_json(), media_type="application/json")


async def _refused(_request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPError)
    return JSONResponse(error.body(), error.status, error.headers())


async def _invalid(request: Request, error: Exception) -> JSONResponse:
    """What is wrong with a body, without quoting it."""
    assert isinstance(error, RequestValidationError)
    fault = error.errors()[0]
    if fault["type"] == "json_invalid":
        detail = "the body is not valid JSON"
    elif fault["type"] == "extra_forbidden" and len(fault["loc"]) == 2:
        known = _names_of(request)
        close = closest_name(str(fault["loc"][1]), known)
        hint = f"did you mean {close}? " if close else ""
        detail = f"{fault['loc'][1]} is not asked for here; {hint}known are {', '.join(known)}"
    else:
        name = ".".join(str(part) for part in fault["loc"][1:])
        words = fault["msg"].removeprefix("Value error, ")
        detail = f"{name}: {words}" if name else words
    return JSONResponse(HTTPError(422, detail).body(), 422)


def _names_of(request: Request) -> list[str]:
    """What the body of a request may hold."""
    asked = [field.field_info.annotation for field in request.scope["route"].dependant.body_params]
    return [name for kind in asked if kind is not None for name in kind.model_fields]


async def _http(_request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    details = {
        404: "there is nothing here",
        405: "this path is asked with another method",
        400: "the body cannot be read",
    }
    refusal = HTTPError(error.status_code, details.get(error.status_code, str(error.detail)))
    return JSONResponse(refusal.body(), error.status_code, error.headers)


async def _unexpected(_request: Request, error: Exception) -> JSONResponse:
    """A fault of ours: where it happened goes to the log, which holds no text of a request; the client hears one line."""
    where = traceback.extract_tb(error.__traceback__)[-1]
    LOG.error("unexpected %s in %s, line %s", type(error).__name__, where.filename.rsplit("/", 1)[-1], where.lineno)
    if isinstance(error, MemoryError) or "memory" in str(error).lower():
        refusal = HTTPError(503, "the model ran out of memory; ask for fewer or shorter texts", 5)
    else:
        refusal = HTTPError(500, "the server failed on this request")
    return JSONResponse(refusal.body(), refusal.status, refusal.headers())
