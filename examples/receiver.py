"""A callback receiver that checks signatures. It needs one package beside the standard library."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from queue import Queue
from types import TracebackType

from standardwebhooks.webhooks import Webhook, WebhookVerificationError


class Receiver:
    """`with Receiver(secret) as receiver:` listens on a free port of 127.0.0.1."""

    def __init__(self, secret: str) -> None:
        """`secret` is the webhook secret of the API key, `whsec_...`."""
        self.bodies: Queue[bytes] = Queue()
        """The bodies with a valid signature, in the order of arrival. Repeated callbacks are left
        out.
        """
        seen: set[str] = set()
        bodies, webhook = self.bodies, Webhook(secret)

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                try:
                    webhook.verify(body, dict(self.headers))
                except WebhookVerificationError:
                    self.send_error(401)
                    return
                if self.headers["webhook-id"] not in seen:
                    seen.add(self.headers["webhook-id"])
                    bodies.put(body)
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Print nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/task_completed"

    def __enter__(self) -> Receiver:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
