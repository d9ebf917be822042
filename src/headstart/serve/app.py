"""The routes of the server, behind the checks of `ServiceMiddleware`."""

import asyncio
import json
import logging
import re
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
from headstart.errors import DataError
from headstart.predict.generate import Sampling
from headstart.serve.middleware import ERRORS, HTTPError, ServiceMiddleware, unexpected_error
from headstart.serve.payloads import (
    ANSWER_TYPES,
    BlankAnswer,
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
from headstart.serve.service import Service, report_path, run_curves, run_result, training_columns
from headstart.version import __version__

T = TypeVar("T")
PAGE = {
    "/": ("index.html", "text/html"),
    "/page.css": ("page.css", "text/css"),
    "/page.js": ("page.js", "text/javascript"),
}
REPORT_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data: 'self'; frame-ancestors 'none'; sandbox"
"""A report is one file with inline styles and figures, and without scripts."""
ERROR_RESPONSES: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorBody, "description": ERRORS[status]}
    for status in (400, 401, 403, 404, 408, 413, 415, 422, 429, 500, 503, 504)
}
logging.getLogger("asyncio").setLevel(logging.CRITICAL)  # its messages would quote requests


def build_app(service: Service, key: str | None = None) -> ServiceMiddleware:
    """Build the app of one model, behind its middleware."""

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
        redirect_slashes=False,  # a path that is not in the OpenAPI document does not exist
    )
    middleware = ServiceMiddleware(app, service.config, service.metrics, key)
    _add_classifier_routes(app, service)
    _add_language_routes(app, service)
    _add_status_routes(app, service, middleware)
    _add_pages(app, service)
    app.add_exception_handler(HTTPError, _handle_http_error)
    app.add_exception_handler(RequestValidationError, _handle_invalid_body)
    app.add_exception_handler(HTTPException, _handle_framework_error)
    app.add_exception_handler(DataError, _handle_bad_text)
    app.add_exception_handler(Exception, _handle_unexpected)
    return middleware


def _add_classifier_routes(app: FastAPI, service: Service) -> None:
    @app.post("/predict", response_model=PredictAnswer, responses=ERROR_RESPONSES)
    async def predict(body: PredictRequest, request: Request) -> Response:
        """Labels and calibrated probabilities; a blank text among `texts` has an error instead."""
        work = service.predict(body.text_inputs(), body.abstain, deadline(request, service))
        predictions = await _while_connected(request, work)
        if body.text is not None and predictions[0] is None:
            raise HTTPError(422, f"{'text or pair' if body.pair is not None else 'text'} is empty")
        answers: Any = [
            ANSWER_TYPES[prediction.kind].model_construct(**vars(prediction)) if prediction else BlankAnswer()
            for prediction in predictions
        ]
        return _json(PredictAnswer.model_construct(labels=list(service.labels), predictions=answers))

    @app.post("/explain", response_model=ExplainAnswer, responses=ERROR_RESPONSES)
    async def explain(body: ExplainRequest, request: Request) -> Response:
        """Weights of the words for and against a label."""
        text = body.text if body.pair is None else (body.text, body.pair)
        work = service.explain(text, body.label, deadline(request, service))
        explanation, truncated = await _while_connected(request, work)
        answer = ExplainAnswer(
            label=explanation.label,
            words=[Weight(text=word.text, weight=word.weight) for word in explanation.words],
            margin=explanation.margin,
            baseline=explanation.baseline,
            error=explanation.error,
            truncated=truncated,
        )
        return _json(answer)


def _add_language_routes(app: FastAPI, service: Service) -> None:
    events: dict[int | str, dict[str, Any]] = {200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}}}

    @app.post("/generate", response_model=GenerateAnswer, responses=ERROR_RESPONSES | events)
    async def generate(body: GenerateRequest, request: Request) -> Response:
        """Continue a prompt with the language model."""
        sampling = Sampling(body.tokens, body.temperature, body.top_k, body.top_p, body.seed)
        pieces = await service.generate(body.prompt, sampling, deadline(request, service))
        if not body.stream:
            text, reason = await _while_connected(request, _collect(pieces))
            return _json(GenerateAnswer(text=text, done=reason))
        return StreamingResponse(_events(pieces), media_type="text/event-stream")

    @app.post("/next", response_model=NextAnswer, responses=ERROR_RESPONSES)
    async def next_(body: NextRequest, request: Request) -> Response:
        """The most probable next pieces of text."""
        work = service.next(body.prompt, body.count, deadline(request, service))
        candidates = await _while_connected(request, work)
        return _json(NextAnswer(pieces=[Weight(text=text, weight=probability) for text, probability in candidates]))


def _add_status_routes(app: FastAPI, service: Service, middleware: ServiceMiddleware) -> None:
    @app.get("/health")
    async def health() -> JSONResponse:
        """Liveness: 200 while the model's thread runs."""
        healthy = service.healthy
        status = "ok" if healthy else "the model's thread has ended"
        return JSONResponse({"status": status}, 200 if healthy else 503)

    @app.get("/ready")
    async def ready() -> JSONResponse:
        """Readiness: 200 unless the server is stopping."""
        return JSONResponse(
            {"status": "stopping" if middleware.draining else "ready"}, 503 if middleware.draining else 200
        )

    @app.get("/metrics", response_class=PlainTextResponse)
    async def metrics() -> Response:
        """Metrics for Prometheus."""
        return Response(service.metrics.text(), media_type="text/plain; version=0.0.4")

    @app.get("/about")
    async def about() -> JSONResponse:
        """The model, its limits, and the metrics of its run."""
        bundle, network, config, run = service.bundle, service.network, service.config, service.run_folder
        calibration = bundle.about.get("calibration") or {}
        return JSONResponse(
            {
                "name": bundle.path.resolve().parent.name if run else bundle.path.resolve().name,
                "version": __version__,
                "head_type": "classify" if service.predictor else "language",
                "classifier": service.classifier_kind,
                "labels": list(bundle.labels),
                "task": bundle.task.facts(),
                "context": network.config.context if network else None,
                "windows": network is not None and network.windows,
                "columns": training_columns(bundle.about),
                "precisions": [row["wanted"] for row in calibration.get("thresholds", [])],
                "limits": {
                    "texts": config.texts,
                    "characters": config.characters,
                    "body": config.body,
                    "tokens": config.tokens,
                },
                "quality": bundle.about.get("quality"),
                "result": run_result(run),
                "curves": run_curves(run),
                "report": report_path(run) is not None,
            }
        )


def _add_pages(app: FastAPI, service: Service) -> None:
    for path, (name, media_type) in PAGE.items():
        app.add_api_route(path, _asset_route(name, media_type), include_in_schema=False, methods=["GET"])

    @app.get("/report", include_in_schema=False)
    async def report() -> Response:
        page = report_path(service.run_folder)
        if page is None:
            raise HTTPError(404, "this model has no report")
        return FileResponse(page, media_type="text/html", headers={"Content-Security-Policy": REPORT_POLICY})


def _asset_route(name: str, media_type: str) -> Any:
    async def asset() -> Response:
        return Response(_asset(name), media_type=media_type, headers={"Cache-Control": "no-cache"})

    return asset


@cache
def _asset(name: str) -> bytes:
    return resources.files("headstart.serve").joinpath("page", name).read_bytes()


def deadline(request: Request, service: Service) -> float:
    """Return the time at which a request expires: after the server's limit, or earlier if the client says so."""
    seconds = service.config.deadline
    if (milliseconds := request.headers.get("x-deadline-ms")) is not None:
        if not (milliseconds.isascii() and milliseconds.isdigit() and len(milliseconds) < 10):
            raise HTTPError(422, "X-Deadline-Ms must be a whole number of milliseconds")
        seconds = min(seconds, int(milliseconds) / 1000)
    started: float = request.scope["headstart.started"]
    return started + seconds


async def _while_connected(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """Run work for a client; cancel it if the client disconnects."""
    task, disconnected = asyncio.ensure_future(work), asyncio.ensure_future(_wait_for_disconnect(request))
    try:
        await asyncio.wait((task, disconnected), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise HTTPError(400, "the client disconnected before the response was ready")
        return task.result()
    finally:
        task.cancel()
        disconnected.cancel()


async def _wait_for_disconnect(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _collect(pieces: AsyncIterator[tuple[str, str | None]]) -> tuple[str, str]:
    texts, last_reason = [], "end"
    async for piece, reason in pieces:
        texts.append(piece)
        last_reason = reason or last_reason
    return "".join(texts), last_reason


async def _events(pieces: AsyncIterator[tuple[str, str | None]]) -> AsyncIterator[str]:
    async for piece, reason in pieces:
        if piece:
            yield f"data: {json.dumps({'text': piece}, ensure_ascii=False)}\n\n"
        if reason:
            yield f"data: {json.dumps({'done': reason})}\n\n"


def _json(answer: PredictAnswer | ExplainAnswer | GenerateAnswer | NextAnswer) -> Response:
    return Response(answer.model_dump_json(), media_type="application/json")


async def _handle_http_error(_request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPError)
    return JSONResponse(error.body(), error.status, error.headers())


async def _handle_invalid_body(request: Request, error: Exception) -> JSONResponse:
    """Describe what is wrong with a body without quoting it."""
    assert isinstance(error, RequestValidationError)
    fault = error.errors()[0]
    if fault["type"] == "json_invalid":
        detail = "the request body is not valid JSON"
    elif fault["type"] == "missing":
        detail = f"{fault['loc'][-1]} is missing" if len(fault["loc"]) > 1 else "the request body is empty"
    elif fault["type"] == "model_attributes_type":
        detail = "the request body must be a JSON object"
    elif fault["type"] == "extra_forbidden" and len(fault["loc"]) == 2:
        names = _field_names(request)
        closest = closest_name(str(fault["loc"][1]), names)
        hint = f"did you mean {closest}? " if closest else ""
        detail = f"{fault['loc'][1]} is not a known field; {hint}the fields are {', '.join(names)}"
    else:
        name = ".".join(str(part) for part in fault["loc"][1:])
        problem = fault["msg"].removeprefix("Value error, ").removesuffix(" after validation, not 0")
        problem = re.sub(r"^(Input|List) should ", "must ", problem)
        detail = f"{name} {problem}" if problem.startswith("must ") else f"{name}: {problem}" if name else problem
    return JSONResponse(HTTPError(422, detail).body(), 422)


def _field_names(request: Request) -> list[str]:
    """Return the fields that the body of a request may have."""
    models = [field.field_info.annotation for field in request.scope["route"].dependant.body_params]
    return [name for model in models if model is not None for name in model.model_fields]


async def _handle_framework_error(_request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    details = {
        404: "not found",
        405: "method not allowed for this path",
        400: "the request body cannot be read",
    }
    detail = details.get(error.status_code, str(error.detail))
    return JSONResponse(HTTPError(error.status_code, detail).body(), error.status_code, error.headers)


async def _handle_bad_text(_request: Request, error: Exception) -> JSONResponse:
    """A text that cannot be tokenized."""
    return JSONResponse(HTTPError(422, str(error)).body(), 422)


async def _handle_unexpected(_request: Request, error: Exception) -> JSONResponse:
    response = unexpected_error(error)
    return JSONResponse(response.body(), response.status, response.headers())
