"""A proxy that keeps what passes: clients talk to it, it talks to the server. One connection a request, bodies are read whole,
answers are passed on as they come."""
import gzip
import http.client
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit


class Exchange:
    def __init__(self, method, path, headers, body):
        self.method, self.path, self.headers, self.body = method, path, headers, body
        self.status, self.answer = 0, b""

    @property
    def text(self):
        return self.answer.decode("utf-8", "replace")

    @property
    def data(self):
        """The body as it was before the client compressed it."""
        return gzip.decompress(self.body) if self.headers.get("content-encoding") == "gzip" else self.body


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def read_body(self):
        if self.headers.get("transfer-encoding", "").lower() != "chunked":
            return self.rfile.read(int(self.headers.get("content-length", 0)))
        body = b""
        while size := int(self.rfile.readline().split(b";")[0], 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        while self.rfile.readline().strip():
            pass
        return body

    def pass_on(self):
        body = self.read_body()
        x = Exchange(self.command, self.path, {k.lower(): v for k, v in self.headers.items()}, body)
        self.server.exchanges.append(x)
        headers = {k: v for k, v in self.headers.items() if k.lower() not in ("host", "connection", "transfer-encoding", "content-length")}
        c = http.client.HTTPConnection("127.0.0.1", self.server.upstream, timeout=600)
        try:
            c.request(self.command, self.path, body if body else None, headers)
            r = c.getresponse()
            x.status = r.status
            self.answer(r, x)
        finally:
            c.close()

    def answer(self, r, x):
        self.send_response(r.status)
        for k, v in r.getheaders():
            if k.lower() not in ("connection", "transfer-encoding", "content-length", "date", "server"):
                self.send_header(k, v)
        self.send_header("connection", "close")
        self.end_headers()
        self.close_connection = True
        while piece := r.read1(65536):
            x.answer += piece
            self.wfile.write(piece)
            self.wfile.flush()

    do_GET = do_POST = do_HEAD = do_DELETE = do_OPTIONS = do_PUT = pass_on


class Proxy:
    """with Proxy(port) as p: p.port is where clients go, p.exchanges what passed."""

    def __init__(self, upstream):
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.server.upstream, self.server.exchanges = upstream, []
        self.server.handle_error = lambda *_: None  # a client that leaves
        self.port = self.server.server_address[1]
        self.thread = threading.Thread(target=self.server.serve_forever, daemon=True)

    @property
    def exchanges(self):
        return self.server.exchanges

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()
