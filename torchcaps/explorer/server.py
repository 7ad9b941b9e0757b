"""The explorer's web server, for this machine only. Paths begin with the token of its address.

    GET    /api/runs                        models by id
    GET    /api/runs/ID                     facts about one model
    GET    /api/runs/ID/images              test images and labels
    POST   /api/runs/ID/QUESTION            tensors in, tensors out (explorer/questions.py)
    POST   /api/runs/ID/nearest             an image in, its nearest training images out
    POST   /api/runs/ID/image               an image file, scaled to the model's input size
    POST   /api/jobs, GET and DELETE /api/jobs/ID     accuracy curves in the background

Every error is {"error": message, "code": word}.
"""

import asyncio
import io
import json
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from threading import Event, Thread
from typing import Annotated, Any

import torch
from fastapi import FastAPI, HTTPException, Path, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, StreamingResponse
from starlette.exceptions import HTTPException as AnyHTTPException

from torchcaps.data.images import read_image
from torchcaps.errors import TorchcapsError
from torchcaps.explorer.files import static_files
from torchcaps.explorer.guard import Guard
from torchcaps.explorer.jobs import CURVES, Busy, Job, Jobs
from torchcaps.explorer.questions import QUESTIONS
from torchcaps.explorer.shelf import Computing, Shelf, Unknown, shown
from torchcaps.explorer.wire import pack, unpack

WORKERS, WAITING, SECONDS = 2, 16, 20
"""Number of threads, length of their queue, and time limit of a request."""
PIXELS = 16_000_000
"""Largest number of pixels of an uploaded image."""
BINARY = "application/octet-stream"
Beside = Callable[[dict[str, Any]], list[dict[str, Any]]]
"""Rows of the paper's table to show beside a run's record."""


class Work:
    """A thread pool for models with a bounded queue."""

    def __init__(self):
        self.pool = ThreadPoolExecutor(WORKERS, "model")
        self.busy = 0

    async def do(self, function: Callable[[], Any]) -> Any:
        """Run a function in the pool; 503 if the queue is full, 504 after the time limit."""
        if self.busy >= WORKERS + WAITING:
            raise HTTPException(
                503, "The explorer is busy; the page tries again.", {"retry-after": "1"}
            )
        self.busy += 1
        future = asyncio.get_running_loop().run_in_executor(self.pool, function)

        def finish(_: object) -> None:  # a thread that timed out counts until it ends
            self.busy -= 1

        future.add_done_callback(finish)
        try:
            return await asyncio.wait_for(asyncio.shield(future), SECONDS)
        except TimeoutError:
            raise HTTPException(
                504, f"This takes more than {SECONDS} seconds; the explorer stopped waiting."
            ) from None


def make_app(shelf: Shelf, beside: Beside = lambda record: []) -> FastAPI:
    """The web application, without the guard."""
    work, jobs, facts, pages = Work(), Jobs(), {}, static_files()
    ids = {"enum": list(shelf.books)}  # for the schema only; the shelf checks ids

    @asynccontextmanager
    async def life(_: FastAPI) -> AsyncIterator[None]:
        yield
        jobs.close()
        work.pool.shutdown(wait=False, cancel_futures=True)

    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None, lifespan=life)
    body = {"requestBody": {"required": True, "content": {BINARY: {
        "schema": {"type": "string", "format": "binary"}}}}}  # fmt: skip

    @app.exception_handler(AnyHTTPException)
    async def http_error(_: Request, error: AnyHTTPException) -> Response:
        codes = {404: "unknown", 405: "method", 413: "large", 415: "kind", 422: "wrong",
                 503: "busy", 504: "slow"}  # fmt: skip
        code = codes.get(error.status_code, "error")
        content = {"error": str(error.detail), "code": code}
        return JSONResponse(content, error.status_code, error.headers)

    @app.exception_handler(RequestValidationError)
    async def invalid_request(_: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        message = f"{'.'.join(str(p) for p in first['loc'][1:])}: {first['msg']}."
        return JSONResponse({"error": message, "code": "wrong"}, 422)

    @app.exception_handler(TorchcapsError)
    async def torchcaps_error(_: Request, error: TorchcapsError) -> Response:
        status, code = (404, "unknown") if isinstance(error, Unknown) else (422, "wrong")
        return JSONResponse({"error": str(error), "code": code}, status)

    @app.get("/api/runs")
    def runs() -> list[dict[str, Any]]:
        return [
            {"id": b.id, "name": b.name, "recipe": b.record["recipe"]["name"], "data": b.data}
            for b in shelf.books.values()
        ]

    @app.get("/api/runs/{run}")
    async def run_facts(run: Annotated[str, Path(json_schema_extra=ids)]) -> dict[str, Any]:
        book = shelf.book(run)

        def compute() -> dict[str, Any]:
            if book.id not in facts:
                facts[book.id] = shelf.about(book.id)
            return facts[book.id]

        about = await work.do(compute)
        names = {"data": book.data, "id": book.id, "name": book.name}
        return {**names, **about, "record": book.provenance, "beside": beside(book.record)}

    @app.get("/api/runs/{run}/images")
    async def images(
        run: Annotated[str, Path(json_schema_extra=ids)],
        start: Annotated[int, Query(ge=0, le=10**7)] = 0,
        n: Annotated[int, Query(ge=1, le=64)] = 32,
    ) -> Response:
        def read() -> bytes:
            split = shelf.data(run).test
            return shown(split, torch.arange(len(split))[start : start + n], len(split))

        return Response(await work.do(read), media_type=BINARY)

    @app.post("/api/runs/{run}/image", openapi_extra=body)
    async def picture(
        run: Annotated[str, Path(json_schema_extra=ids)], request: Request
    ) -> Response:
        content = await request.body()

        def read() -> bytes:
            model = shelf.model(run)
            channels, height, width = model.config.image_shape
            mode = "RGB" if channels == 3 else "L"
            file = io.BytesIO(content)
            pixels = read_image(file, (height, width), mode, PIXELS, model.value_range)
            return pack({"image": (pixels.float() / 255).expand(channels, -1, -1)})

        return Response(await work.do(read), media_type=BINARY)

    @app.post("/api/runs/{run}/nearest", openapi_extra=body)
    async def nearest(
        run: Annotated[str, Path(json_schema_extra=ids)], request: Request
    ) -> Response:
        content = await request.body()

        def compute() -> bytes:
            inputs = unpack(content, {"image": shelf.model(run).config.image_shape})
            return pack(shelf.nearest(run, inputs["image"].clamp(0, 1)))

        try:
            return Response(await work.do(compute), media_type=BINARY)
        except Computing:  # the poses of the training images: no error, so a console stays empty
            return Response(status_code=202, headers={"retry-after": "1"})

    @app.post("/api/runs/{run}/{question}", openapi_extra=body)
    async def ask(
        run: Annotated[str, Path(json_schema_extra=ids)],
        question: Annotated[str, Path(json_schema_extra={"enum": list(QUESTIONS)})],
        request: Request,
    ) -> Response:
        if question not in QUESTIONS:
            raise Unknown(f"Unknown question {question!r}.")
        content = await request.body()

        @torch.no_grad()
        def compute() -> bytes:
            model, chosen = shelf.model(run), QUESTIONS[question]
            lacks = facts[run]["lacks"].get(question, "") if run in facts else chosen.lacks(model)
            if lacks:
                raise TorchcapsError(f"{lacks}.")
            inputs = unpack(content, chosen.input_shapes(model))
            if "image" in inputs:
                inputs["image"] = inputs["image"].clamp(0, 1)
            answer = chosen.answer(model, inputs)
            if not all(bool(t.isfinite().all()) for t in answer.values()):
                raise TorchcapsError("The answer is not finite; the values are too large.")
            return pack(answer)

        return Response(await work.do(compute), media_type=BINARY)

    @app.post("/api/jobs")
    async def start_job(
        run: Annotated[str, Query(json_schema_extra=ids)],
        transformation: Annotated[str, Query(json_schema_extra={"enum": list(CURVES)})],
    ) -> dict[str, str]:
        if transformation not in CURVES:
            raise TorchcapsError(f"{transformation!r} is not one of {', '.join(CURVES)}.")

        def load() -> tuple[Any, Any]:
            model = shelf.model(run)
            if "logits" not in model.provides:
                raise TorchcapsError("An accuracy curve needs a model with classes.")
            return model, shelf.data(run).test

        model, split = await work.do(load)
        try:
            return {"job": jobs.start(model, split, transformation).id}
        except Busy:
            raise HTTPException(
                503, "The queue of accuracy curves is full; try again later.", {"retry-after": "5"}
            ) from None

    def job_of(key: str) -> Job:
        if key not in jobs.known:
            raise HTTPException(404, f"Unknown job {key!r}.")
        return jobs.known[key]

    @app.get("/api/jobs/{job}")
    async def follow(job: str) -> Response:
        known = job_of(job)

        async def events() -> AsyncIterator[str]:
            sent: dict[str, Any] | None = None
            try:
                while sent is None or sent["state"] in ("waiting", "running"):
                    status = known.status()
                    if status != sent:
                        sent = status
                        yield f"data: {json.dumps(status)}\n\n"
                    else:
                        await asyncio.sleep(0.1)
            finally:  # the client has disconnected
                if known.state in ("waiting", "running"):
                    jobs.cancel(known.id)

        return StreamingResponse(events(), media_type="text/event-stream")

    @app.delete("/api/jobs/{job}")
    async def stop(job: str) -> dict[str, str]:
        jobs.cancel(job_of(job).id)
        return {"state": "cancelled"}

    @app.get("/{path:path}", include_in_schema=False)
    async def page(path: str) -> Response:
        content, kind = pages.get(path or "index.html", (b"", ""))
        if not kind:
            raise HTTPException(404, f"No such page: /{path}.")
        return Response(content, media_type=kind, headers={"cache-control": "no-cache"})

    return app


def make_server(shelf: Shelf, port: int, token: str, beside: Beside = lambda record: []) -> Any:
    """The uvicorn server of a shelf, at a port of the loopback address."""
    import uvicorn

    from torchcaps.explorer.connection import Connection

    hosts = {f"{name}:{port}" for name in ("127.0.0.1", "localhost", "[::1]")}
    app = Guard(make_app(shelf, beside), hosts, token)
    config = uvicorn.Config(
        app, http=Connection, ws="none", log_level="error", access_log=False,
        timeout_keep_alive=30, server_header=False, timeout_graceful_shutdown=1,
    )  # fmt: skip
    return uvicorn.Server(config)


def serve(shelf: Shelf, sock: Any, token: str, beside: Beside = lambda record: []) -> None:
    """Serve on a socket that is bound to the loopback address, until Ctrl-C."""
    torch.set_num_threads(1)  # the pool runs models in parallel
    server = make_server(shelf, sock.getsockname()[1], token, beside)
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return server.run(sockets=[sock])
    # a notebook has a loop in this thread, and a thread has one loop at a time
    ended = Event()

    def run() -> None:
        try:
            server.run(sockets=[sock])
        finally:
            ended.set()

    Thread(target=run).start()
    try:
        while not ended.wait(0.2):
            pass
    finally:
        server.should_exit = True
        ended.wait()
