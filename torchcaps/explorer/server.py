"""The explorer's page and its answers, on this machine alone.

    GET    /api/runs                        models, by id
    GET    /api/runs/ID                     what a page must know of one
    GET    /api/runs/ID/images              test images and labels
    POST   /api/runs/ID/QUESTION            tensors in, tensors out (explorer/questions.py)
    POST   /api/runs/ID/image               a picture file as the model takes it
    POST   /api/jobs, GET and DELETE /api/jobs/ID     accuracy curves in the background

Every error is {"error": a sentence, "code": a word}.
"""

import asyncio
import io
import json
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Annotated, Any

import torch
from fastapi import FastAPI, HTTPException, Path, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, StreamingResponse
from starlette.exceptions import HTTPException as AnyHTTPException

from torchcaps.data.pictures import read_image
from torchcaps.errors import TorchcapsError
from torchcaps.explorer.files import static_files
from torchcaps.explorer.guard import Guard
from torchcaps.explorer.jobs import CURVES, Busy, Job, Jobs
from torchcaps.explorer.questions import QUESTIONS
from torchcaps.explorer.shelf import Shelf, Unknown, shown
from torchcaps.explorer.wire import pack, unpack

WORKERS, WAITING, SECONDS = 2, 16, 20
"""Threads that compute, requests that may wait for them, and how long one may take."""
PIXELS = 16_000_000
"""The most pixels of a picture that is dropped on the page."""
BINARY = "application/octet-stream"
Beside = Callable[[dict[str, Any]], list[dict[str, Any]]]
"""Rows to show beside a run's record: what its paper's table has."""


class Work:
    """A few threads for what models compute, and a bound on how many requests wait for them."""

    def __init__(self):
        self.pool = ThreadPoolExecutor(WORKERS, "model")
        self.busy = 0

    async def do(self, function: Callable[[], Any]) -> Any:
        if self.busy >= WORKERS + WAITING:
            raise HTTPException(503, "The explorer is busy.", {"retry-after": "1"})
        self.busy += 1
        future = asyncio.get_running_loop().run_in_executor(self.pool, function)

        def ended(_: object) -> None:  # a thread goes on after its time: it counts until it ends
            self.busy -= 1

        future.add_done_callback(ended)
        try:
            return await asyncio.wait_for(asyncio.shield(future), SECONDS)
        except TimeoutError:
            raise HTTPException(504, f"This took more than {SECONDS} seconds.") from None


def make_app(shelf: Shelf, beside: Beside = lambda record: []) -> FastAPI:
    """The application, without the guard that stands before it."""
    work, jobs, known, pages = Work(), Jobs(), {}, static_files()
    an_id = {"enum": list(shelf.books)}  # for whoever reads the schema; the shelf checks it

    @asynccontextmanager
    async def life(_: FastAPI) -> AsyncIterator[None]:
        yield
        jobs.close()
        work.pool.shutdown(wait=False, cancel_futures=True)

    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None, lifespan=life)
    body = {"requestBody": {"required": True, "content": {BINARY: {
        "schema": {"type": "string", "format": "binary"}}}}}  # fmt: skip

    @app.exception_handler(AnyHTTPException)
    async def refused(_: Request, error: AnyHTTPException) -> Response:
        codes = {404: "unknown", 405: "method", 413: "large", 415: "kind", 422: "wrong",
                 503: "busy", 504: "slow"}  # fmt: skip
        code = codes.get(error.status_code, "error")
        said = {"error": str(error.detail), "code": code}
        return JSONResponse(said, error.status_code, error.headers)

    @app.exception_handler(RequestValidationError)
    async def wrong(_: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        said = f"{'.'.join(str(p) for p in first['loc'][1:])}: {first['msg']}."
        return JSONResponse({"error": said, "code": "wrong"}, 422)

    @app.exception_handler(TorchcapsError)
    async def told(_: Request, error: TorchcapsError) -> Response:
        status, code = (404, "unknown") if isinstance(error, Unknown) else (422, "wrong")
        return JSONResponse({"error": str(error), "code": code}, status)

    @app.get("/api/runs")
    def runs() -> list[dict[str, Any]]:
        return [
            {"id": b.id, "name": b.name, "recipe": b.record["recipe"]["name"], "data": b.data}
            for b in shelf.books.values()
        ]

    @app.get("/api/runs/{run}")
    async def one(run: Annotated[str, Path(json_schema_extra=an_id)]) -> dict[str, Any]:
        book = shelf.book(run)

        def look() -> dict[str, Any]:
            if book.id not in known:
                known[book.id] = shelf.about(book.id)
            return known[book.id]

        found = await work.do(look)
        named = {"data": book.data, "id": book.id, "name": book.name}
        return {**named, **found, "record": book.provenance, "beside": beside(book.record)}

    @app.get("/api/runs/{run}/images")
    async def images(
        run: Annotated[str, Path(json_schema_extra=an_id)],
        start: Annotated[int, Query(ge=0, le=10**7)] = 0,
        n: Annotated[int, Query(ge=1, le=64)] = 32,
    ) -> Response:
        def take() -> bytes:
            split = shelf.data(run).test
            return shown(split, torch.arange(len(split))[start : start + n], len(split))

        return Response(await work.do(take), media_type=BINARY)

    @app.post("/api/runs/{run}/image", openapi_extra=body)
    async def picture(
        run: Annotated[str, Path(json_schema_extra=an_id)], request: Request
    ) -> Response:
        content = await request.body()

        def read() -> bytes:
            channels, height, width = shelf.model(run).config.image_shape
            mode = "RGB" if channels == 3 else "L"
            pixels = read_image(io.BytesIO(content), (height, width), mode, PIXELS).float() / 255
            return pack({"image": pixels.expand(channels, -1, -1)})

        return Response(await work.do(read), media_type=BINARY)

    @app.post("/api/runs/{run}/{question}", openapi_extra=body)
    async def ask(
        run: Annotated[str, Path(json_schema_extra=an_id)],
        question: Annotated[str, Path(json_schema_extra={"enum": list(QUESTIONS)})],
        request: Request,
    ) -> Response:
        if question not in QUESTIONS:
            raise Unknown("There is no such question.")
        content = await request.body()

        @torch.no_grad()
        def compute() -> bytes:
            model, asked = shelf.model(run), QUESTIONS[question]
            reason = (
                asked.lacks(model)
                if run not in known
                else (known[run]["lacks"].get(asked.name, ""))
            )
            if reason:
                raise TorchcapsError(f"{reason}.")
            given = unpack(content, asked.takes(model))
            if "image" in given:
                given["image"] = given["image"].clamp(0, 1)
            return pack(asked.answer(model, given))

        return Response(await work.do(compute), media_type=BINARY)

    @app.post("/api/jobs")
    async def begin(
        run: Annotated[str, Query(json_schema_extra=an_id)],
        transformation: Annotated[str, Query(json_schema_extra={"enum": list(CURVES)})],
    ) -> dict[str, str]:
        if transformation not in CURVES:
            raise TorchcapsError(f"A transformation is one of {', '.join(CURVES)}.")

        def ready() -> tuple[Any, Any]:
            model = shelf.model(run)
            if "logits" not in model.provides:
                raise TorchcapsError("A curve of accuracy needs a model with classes.")
            return model, shelf.data(run).test

        model, split = await work.do(ready)
        try:
            return {"job": jobs.start(model, split, transformation).id}
        except Busy:
            raise HTTPException(503, "Other curves wait already.", {"retry-after": "5"}) from None

    def job_of(key: str) -> Job:
        if key not in jobs.known:
            raise HTTPException(404, "There is no such job.")
        return jobs.known[key]

    @app.get("/api/jobs/{job}")
    async def follow(job: str) -> Response:
        found = job_of(job)

        async def events() -> AsyncIterator[str]:
            said: dict[str, Any] | None = None
            try:
                while said is None or said["state"] in ("waiting", "running"):
                    now = found.told()
                    if now != said:
                        said = now
                        yield f"data: {json.dumps(said)}\n\n"
                    else:
                        await asyncio.sleep(0.1)
            finally:  # whoever listened has gone: nobody wants the rest
                if found.state in ("waiting", "running"):
                    jobs.cancel(found.id)

        return StreamingResponse(events(), media_type="text/event-stream")

    @app.delete("/api/jobs/{job}")
    async def stop(job: str) -> dict[str, str]:
        jobs.cancel(job_of(job).id)
        return {"state": "cancelled"}

    @app.get("/{path:path}", include_in_schema=False)
    async def page(path: str) -> Response:
        content, kind = pages.get(path or "index.html", (b"", ""))
        if not kind:
            raise HTTPException(404, "There is no such page.")
        return Response(content, media_type=kind, headers={"cache-control": "no-cache"})

    return app


def serve(shelf: Shelf, sock: Any, beside: Beside = lambda record: []) -> None:
    """Answer on a socket that is bound to the loopback, until Ctrl-C."""
    import uvicorn

    torch.set_num_threads(1)  # the pool's threads are what runs side by side
    port = sock.getsockname()[1]
    hosts = {f"{name}:{port}" for name in ("127.0.0.1", "localhost", "[::1]")}
    app = Guard(make_app(shelf, beside), hosts)
    config = uvicorn.Config(
        app, log_level="warning", access_log=False, limit_concurrency=256, timeout_keep_alive=30,
        server_header=False, timeout_graceful_shutdown=1,
    )  # fmt: skip
    uvicorn.Server(config).run(sockets=[sock])
