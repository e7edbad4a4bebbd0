"""A real S3 server (moto's) behind a proxy that fails as networks, and S3, do.

The proxy hands requests on one at a time: moto checks If-None-Match and If-Match, but not in one step with the write.
"""

import http.client
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace

import boto3
import pytest
from moto.moto_server.threaded_moto_server import ThreadedMotoServer

from workers import store

ERRORS = {
    "500": (500, "InternalError", "We encountered an internal error."),
    "503": (503, "SlowDown", "Please reduce your request rate."),
    "expired": (400, "ExpiredToken", "The provided token has expired."),
    "wrong": (403, "InvalidAccessKeyId", "The key does not exist."),
}
Fault = Callable[[str, str], str | None]  # (method, path) -> what goes wrong


class Proxy(ThreadingHTTPServer):
    """Stands before the server at `port`. `fault` chooses what becomes of a request.

    A key of ERRORS is that answer. "silence" never answers; "torn" hangs up in the middle of the body; "lost" does what
    is asked, and hangs up without an answer; "cut" hangs up in the middle of its answer.
    """

    daemon_threads = True

    def __init__(self, port: int) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.behind, self.one_at_a_time, self.ended = port, threading.Lock(), threading.Event()
        self.fault: Fault = lambda method, path: None
        self.seen: list[tuple[str, str]] = []

    def handle_error(self, *_: object) -> None: ...


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Proxy

    def handle_one_request(self) -> None:
        self.close_connection = True
        super().handle_one_request()

    def _handle(self) -> None:
        fault = self.server.fault(self.command, self.path)
        length = int(self.headers.get("Content-Length", 0))
        body = self.rfile.read(length // 2 if fault == "torn" else length)
        self.server.seen.append((self.command, self.path))
        if fault in ERRORS:
            status, code, message = ERRORS[fault]
            self._answer(status, {}, f"<Error><Code>{code}</Code><Message>{message}</Message></Error>".encode())
            return
        if fault == "silence":
            self.server.ended.wait()
        if fault in ("silence", "torn"):
            self.close_connection = True
            return
        status, headers, data = self._forward(body)
        if fault == "lost":
            self.close_connection = True
            return
        self._answer(status, headers, data[: len(data) // 2] if fault == "cut" else data, len(data))
        self.close_connection = self.close_connection or fault == "cut"

    def _forward(self, body: bytes) -> tuple[int, dict[str, str], bytes]:
        with self.server.one_at_a_time:
            connection = http.client.HTTPConnection("127.0.0.1", self.server.behind)
            connection.request(self.command, self.path, body, dict(self.headers.items()))
            answer = connection.getresponse()
            found = answer.status, dict(answer.getheaders()), answer.read()
            connection.close()
        return found

    def _answer(self, status: int, headers: dict[str, str], data: bytes, length: int | None = None) -> None:
        self.send_response_only(status)
        for name, value in headers.items():
            if name.lower() not in ("connection", "transfer-encoding", "content-length"):
                self.send_header(name, value)
        self.send_header("Content-Length", headers.get("Content-Length", str(length or len(data))))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _handle


@contextmanager
def proxy_before(port: int) -> Iterator[Proxy]:
    """A proxy for the server at `port`."""
    proxy = Proxy(port)
    threading.Thread(target=proxy.serve_forever, args=(0.05,), daemon=True).start()
    try:
        yield proxy
    finally:
        proxy.ended.set()
        proxy.shutdown()
        proxy.server_close()


@contextmanager
def serving() -> Iterator[Proxy]:
    """A proxy with an empty server, a thread of this process, behind it."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    try:
        with proxy_before(server.get_host_and_port()[1]) as proxy:
            yield proxy
    finally:
        server.stop()


def access(proxy: Proxy) -> dict[str, str]:
    """The environment of who uses it."""
    keys = {"AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "testing", "AWS_DEFAULT_REGION": "us-east-1"}
    return keys | {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{proxy.server_port}"}


@pytest.fixture(scope="session")
def s3_server() -> Iterator[Proxy]:
    with serving() as proxy:
        yield proxy


@pytest.fixture
def s3(s3_server, tmp_path, monkeypatch) -> Iterator[Proxy]:
    """An S3 with an empty bucket `bucket`, as the environment says where; retries do not wait."""
    for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_MAX_ATTEMPTS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("SPOT_CACHE", str(tmp_path / "cache"))
    for name, value in access(s3_server).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("botocore.endpoint.time", SimpleNamespace(sleep=lambda seconds: None))
    monkeypatch.setattr(store, "READ_SECONDS", 1)
    s3_server.fault = lambda method, path: None
    client = boto3.client("s3")
    client.create_bucket(Bucket="bucket")
    s3_server.seen.clear()
    yield s3_server
    s3_server.fault = lambda method, path: None
    for entry in client.list_objects_v2(Bucket="bucket").get("Contents", []):
        client.delete_object(Bucket="bucket", Key=entry["Key"])
