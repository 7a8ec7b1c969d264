"""A stand-in for the hub on a port of this machine; a test says in `do_GET` what it answers."""

from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread


class HubServer(BaseHTTPRequestHandler):
    """What the answers of the hub share; `asked` and what else a test needs are set by `serving`."""

    commit = "c" * 40

    def log_message(self, *_):
        pass

    def do_HEAD(self):
        self.do_GET()

    def answer(self, body, status=200, **headers):
        self.send_response(status)
        for name, value in ({"Content-Length": len(body), "X-Repo-Commit": self.commit} | headers).items():
            self.send_header(name.replace("_", "-"), str(value))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def answer_gated(self):
        self.answer(b"{}", 403, X_Error_Code="GatedRepo", X_Error_Message="Access to this data set is restricted.")


@contextmanager
def serving(server, **attributes):
    """Give a class like `server` that answers at its `url` until the end of the block."""
    handler = type("Handler", (server,), {"asked": [], **attributes})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as running:
        Thread(target=running.serve_forever, daemon=True).start()
        handler.url = f"http://127.0.0.1:{running.server_port}"
        yield handler
        running.shutdown()
