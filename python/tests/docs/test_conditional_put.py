"""The example of docs/checkpoint.md for object stores, against a server that has conditions."""

from __future__ import annotations

import hashlib
import io
import re
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from conftest import REPOSITORY

torch = pytest.importorskip("torch")


class Objects(BaseHTTPRequestHandler):
    """What S3 does with If-Match and If-None-Match."""

    objects: dict[str, bytes]

    def _tag(self) -> str | None:
        held = self.objects.get(self.path)
        return None if held is None else f'"{hashlib.md5(held).hexdigest()}"'

    def _answer(self, status: int, body: bytes = b"") -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        if tag := self._tag():
            self.send_header("ETag", tag)
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:
        held = self.objects.get(self.path)
        self._answer(404 if held is None else 200, held or b"")

    def do_PUT(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        match, none = self.headers["If-Match"], self.headers["If-None-Match"]
        if (match and match != self._tag()) or (none == "*" and self._tag()):
            self._answer(412)
            return
        self.objects[self.path] = body
        self._answer(200)

    def log_message(self, *_: object) -> None:
        pass


class ClientError(Exception):
    pass


class NoSuchKey(ClientError):
    pass


class Client:
    """The two calls of boto3's client, with their arguments and answers."""

    exceptions = SimpleNamespace(NoSuchKey=NoSuchKey)

    def __init__(self, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}"

    def _ask(self, method: str, bucket: str, key: str, body: bytes | None, **headers: str) -> Any:
        url = f"{self._url}/{bucket}/{key}"
        request = urllib.request.Request(url, body, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return {"ETag": answer.headers["ETag"], "Body": io.BytesIO(answer.read())}
        except urllib.error.HTTPError as e:
            raise (NoSuchKey if e.code == 404 else ClientError)(str(e.code)) from None

    def get_object(self, *, Bucket: str, Key: str) -> Any:
        return self._ask("GET", Bucket, Key, None)

    def put_object(
        self, *, Bucket: str, Key: str, Body: bytes, IfMatch: str = "", IfNoneMatch: str = ""
    ) -> Any:
        conditions = {"If-Match": IfMatch, "If-None-Match": IfNoneMatch}
        given = {name: value for name, value in conditions.items() if value}
        return self._ask("PUT", Bucket, Key, Body, **given)


@pytest.fixture
def port() -> Iterator[int]:
    handler = type("Handler", (Objects,), {"objects": {}})
    server = HTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server.server_port
    server.shutdown()
    thread.join()
    server.server_close()


def test_who_has_not_loaded_it_is_refused(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    boto3 = ModuleType("boto3")
    boto3.client = lambda _: Client(port)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "boto3", boto3)
    page = (REPOSITORY / "docs" / "checkpoint.md").read_text()
    (program,) = re.findall(r"^```python\n(import io\nimport boto3\n.*?)^```$", page, re.M | re.S)

    def job() -> dict[str, Any]:
        names: dict[str, Any] = {}
        exec(program, names)
        return names

    first, second = job(), job()
    assert first["state"] == {"step": 0}
    first["save"]({"step": 1})
    with pytest.raises(ClientError, match="412"):
        second["save"]({"step": 7})
    first["save"]({"step": 2})
    third = job()
    assert third["state"] == {"step": 2}
    third["save"]({"step": 3})
    with pytest.raises(ClientError, match="412"):
        first["save"]({"step": 7})
    assert job()["state"] == {"step": 3}
