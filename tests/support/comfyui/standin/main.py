"""A stand-in for ComfyUI: it is started like ComfyUI, speaks its HTTP and websocket interface, and
misbehaves on request.

It has nodes of its own. `Picture`, `Video`, `Note` and `Preview` write outputs. `Read` writes an
input file. Of the core nodes of ComfyUI, only `SaveImage` does something: it writes a picture.
`Wait` takes `seconds`, and can be interrupted unless it is `deaf`. `Raise` fails with
`kind` and `text`. `Crash` ends the process, `Forget` loses the prompt, `Cut` closes the websockets
and sends nothing more, `Silent` waits without a message, and `Mute` lets no HTTP request be
answered. After `Errors`, the next `answers` requests are answered with status 500. `Missing` names
a file that does not exist. A graph with `Half` is accepted with errors. Uploads of more than 1 MiB
are refused.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import os
import sys
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import uvicorn
from PIL import Image
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

NODES = (
    "Cut",
    "Crash",
    "Errors",
    "Forget",
    "Half",
    "Missing",
    "Mute",
    "Note",
    "Picture",
    "Preview",
)
NODES += ("CheckpointLoaderSimple", "CLIPTextEncode", "EmptyLatentImage", "ImageScale", "KSampler")
NODES += ("LoadImage", "SaveImage", "VAEDecode", "VAEEncode")
NODES += ("Raise", "Read", "Silent", "Video", "Wait")
_MOST_UPLOAD_BYTES = 2**20


class Interrupted(Exception):
    pass


class Forgotten(Exception):
    pass


class Standin:
    def __init__(self, folders: dict[str, Path]) -> None:
        self.folders = folders
        self.pending: list[dict[str, Any]] = []
        self.running: dict[str, Any] | None = None
        self.history: dict[str, Any] = {}
        self.sockets: dict[str, WebSocket] = {}
        self.is_cut = False
        self.is_mute = False
        self.errors = 0
        self.is_interrupted = False
        self.added = asyncio.Event()
        self.requests: list[str] = []
        self.extra_data: list[dict[str, Any]] = []
        """The extra data of each prompt."""

    async def work(self) -> None:
        while True:
            await self.added.wait()
            while self.pending:
                self.running = self.pending.pop(0)
                with suppress(Forgotten):
                    await self.execute(self.running)
                self.running = None
            self.added.clear()

    async def execute(self, item: dict[str, Any]) -> None:
        prompt_id, graph = item["prompt_id"], item["prompt"]
        self.is_interrupted = False
        outputs: dict[str, Any] = {}
        messages: list[Any] = []
        for node_id in graph:
            await self.send(item, "executing", {"node": node_id})
            node = graph[node_id]
            try:
                made = await self.run(item, node["class_type"], node["inputs"])
            except Interrupted:
                messages.append(["execution_interrupted", {"node_id": node_id}])
                break
            except RuntimeError as error:
                kind, text = error.args
                failed = {"node_id": node_id, "node_type": node["class_type"]}
                failed |= {"exception_type": kind, "exception_message": text}
                messages.append(["execution_error", failed])
                break
            if made:
                outputs[node_id] = made
        name = messages[0][0] if messages else "execution_success"
        await self.send(item, name, {})
        await asyncio.sleep(0.05)  # ComfyUI, too, writes the history after its message.
        status = {"status_str": "error" if messages else "success", "messages": messages}
        self.history[prompt_id] = {"outputs": outputs, "status": status}

    async def run(self, item: dict[str, Any], class_type: str, inputs: dict[str, Any]) -> Any:
        prefix = inputs.get("filename_prefix", "ComfyUI")
        match class_type:
            case "Picture" | "SaveImage":
                file = io.BytesIO()
                Image.new("RGB", (32, 16), inputs.get("color", "red")).save(file, "PNG")
                return {"images": [self.write("output", f"{prefix}_00001_.png", file.getvalue())]}
            case "Video":
                return {"gifs": [self.write("output", f"{prefix}_00001_.mp4", b"a video")]}
            case "Preview":
                return {"images": [self.write("temp", "preview.png", b"a preview")]}
            case "Missing":
                return {"images": [{"filename": "a.png", "subfolder": "", "type": "output"}]}
            case "Note":
                return {"text": [inputs["text"]]}
            case "Read":
                read = self.folders["input"] / inputs["image"]
                name = f"{prefix}_00001_{read.suffix or '.png'}"
                return {"images": [self.write("output", name, read.read_bytes())]}
            case _:
                await self.misbehave(item, class_type, inputs)
                return None

    async def misbehave(
        self, item: dict[str, Any], class_type: str, inputs: dict[str, Any]
    ) -> None:
        match class_type:
            case "Wait":
                await self.wait(item, inputs)
            case "Raise":
                raise RuntimeError(inputs["kind"], inputs["text"])
            case "Crash":
                os._exit(1)
            case "Forget":
                raise Forgotten
            case "Silent":
                await asyncio.sleep(inputs["seconds"])
            case "Cut":
                self.is_cut = True
                for socket in self.sockets.values():
                    await socket.close()
            case "Errors":
                self.errors = inputs["answers"]
            case "Mute":
                self.is_mute = True
                await asyncio.Event().wait()

    async def wait(self, item: dict[str, Any], inputs: dict[str, Any]) -> None:
        steps = round(inputs["seconds"] * 20)
        for step in range(steps):
            await asyncio.sleep(0.05)
            await self.send(item, "progress", {"value": step + 1, "max": steps})
            if self.is_interrupted and not inputs.get("deaf"):
                raise Interrupted

    def write(self, folder: str, name: str, content: bytes) -> dict[str, str]:
        path = self.folders[folder] / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        subfolder = str(path.parent.relative_to(self.folders[folder]))
        subfolder = "" if subfolder == "." else subfolder
        return {"filename": path.name, "subfolder": subfolder, "type": folder}

    async def send(self, item: dict[str, Any], type: str, data: dict[str, Any]) -> None:
        socket = self.sockets.get(item["client_id"])
        if socket is not None and not self.is_cut:
            with suppress(RuntimeError, WebSocketDisconnect):
                await socket.send_json(
                    {"type": type, "data": data | {"prompt_id": item["prompt_id"]}}
                )

    # The routes

    async def submit(self, request: Request) -> Response:
        body = await request.json()
        for node_id, node in body["prompt"].items():
            if node["class_type"] not in NODES:
                message = f"Node {node['class_type']} does not exist."
                error = {"type": "invalid_prompt", "message": message, "details": f"#{node_id}"}
                return JSONResponse({"error": error, "node_errors": {}}, 400)
            name = node["inputs"].get("image")
            if isinstance(name, str) and not (self.folders["input"] / name).is_file():
                error = {"type": "prompt_outputs_failed_validation", "message": "Invalid"}
                wrong = {"type": "value_not_in_list", "message": "Value not in list"}
                wrong["details"] = f"image: {name}"
                errors = {node_id: {"errors": [wrong], "class_type": node["class_type"]}}
                return JSONResponse({"error": error, "node_errors": errors}, 400)
        self.extra_data.append(body["extra_data"])
        self.pending.append(body)
        self.added.set()
        halves = {id for id, node in body["prompt"].items() if node["class_type"] == "Half"}
        errors = {id: {"errors": [], "class_type": "Half"} for id in halves}
        return JSONResponse({"prompt_id": body["prompt_id"], "number": 1, "node_errors": errors})

    async def queue(self, request: Request) -> Response:
        if request.method == "POST":
            deleted = (await request.json()).get("delete", ())
            self.pending = [each for each in self.pending if each["prompt_id"] not in deleted]
            return Response()
        # Entries are lists, or objects in a distribution of ComfyUI.
        running = [] if self.running is None else [[0, self.running["prompt_id"]]]
        pending = [{"priority": 0, "prompt_id": each["prompt_id"]} for each in self.pending]
        return JSONResponse({"queue_running": running, "queue_pending": pending})

    async def interrupt(self, request: Request) -> Response:
        self.requests.append(f"interrupt {(await request.json()).get('prompt_id')}")
        self.is_interrupted = True
        return Response()

    async def one_history(self, request: Request) -> Response:
        prompt_id = request.path_params["prompt_id"]
        found = self.history.get(prompt_id)
        return JSONResponse({} if found is None else {prompt_id: found})

    async def forget_history(self, request: Request) -> Response:
        for prompt_id in (await request.json()).get("delete", ()):
            self.history.pop(prompt_id, None)
        return Response()

    async def view(self, request: Request) -> Response:
        query = request.query_params
        path = self.folders[query["type"]] / query["subfolder"] / query["filename"]
        return FileResponse(path) if path.is_file() else Response(status_code=404)

    async def upload(self, request: Request) -> Response:
        async with request.form() as form:
            file: Any = form["image"]
            if file.size > _MOST_UPLOAD_BYTES:
                return Response(status_code=413)
            (self.folders["input"] / file.filename).write_bytes(await file.read())
            return JSONResponse({"name": file.filename, "subfolder": "", "type": "input"})

    async def free(self, request: Request) -> Response:
        self.requests.append("free")
        return Response()

    async def system_stats(self, request: Request) -> Response:
        return JSONResponse({"system": {"argv": sys.argv, "comfyui_version": "stand-in"}})

    async def object_info(self, request: Request) -> Response:
        declared = {"input": {}, "output": [], "output_node": True, "python_module": "nodes"}
        return JSONResponse(dict.fromkeys(NODES, declared))

    async def seen(self, request: Request) -> Response:
        """Return requests that only tests look at."""
        seen = {"requests": self.requests, "extra_data": self.extra_data}
        return JSONResponse(seen | {"history": list(self.history)})

    async def websocket(self, socket: WebSocket) -> None:
        if self.is_cut:
            await socket.close()
            return
        await socket.accept()
        self.sockets[socket.query_params["clientId"]] = socket
        with suppress(WebSocketDisconnect):
            while True:
                await socket.receive_text()

    def app(self) -> Any:
        routes = [
            Route("/prompt", self.submit, methods=["POST"]),
            Route("/queue", self.queue, methods=["GET", "POST"]),
            Route("/interrupt", self.interrupt, methods=["POST"]),
            Route("/history/{prompt_id}", self.one_history),
            Route("/history", self.forget_history, methods=["POST"]),
            Route("/view", self.view),
            Route("/upload/image", self.upload, methods=["POST"]),
            Route("/free", self.free, methods=["POST"]),
            Route("/system_stats", self.system_stats),
            Route("/object_info", self.object_info),
            Route("/seen", self.seen),
            WebSocketRoute("/ws", self.websocket),
        ]

        @asynccontextmanager
        async def lifespan(_: Starlette) -> Any:
            working = asyncio.create_task(self.work())
            yield
            working.cancel()

        app = Starlette(routes=routes, lifespan=lifespan)

        async def answer(scope: Any, receive: Any, send: Any) -> None:
            if self.is_mute and scope["type"] == "http":
                await asyncio.Event().wait()
            if self.errors and scope["type"] == "http":
                self.errors -= 1
                await Response(status_code=500)(scope, receive, send)
                return
            await app(scope, receive, send)

        return answer


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--listen")
    parser.add_argument("--port", type=int, default=8188)
    for name in ("output", "input", "temp", "user"):
        parser.add_argument(f"--{name}-directory", type=Path)
    parser.add_argument("--cpu", action="store_true")
    parser.add_argument("--disable-auto-launch", action="store_true")
    parser.add_argument("--disable-api-nodes", action="store_true")
    parser.add_argument("--fail-start", action="store_true")
    arguments = parser.parse_args()
    sys.stdout.write("   0.1 seconds (IMPORT FAILED): /packs/broken-pack\n")
    sys.stdout.flush()
    if arguments.fail_start:
        sys.exit("the device is not available")
    folders = {
        name: getattr(arguments, f"{name}_directory") for name in ("output", "input", "temp")
    }
    app = Standin(folders).app()
    uvicorn.run(app, host="127.0.0.1", port=arguments.port, log_level="warning", ws="websockets")


if __name__ == "__main__":
    main()
