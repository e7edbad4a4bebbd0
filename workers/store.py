"""Small byte files by name: in a folder, or under an `s3://bucket/prefix`.

    open_store("s3://my-bucket/traces").put("a.safetensors", data)

A file is written whole or not at all, and names are flat. S3 takes endpoint, region and profile from where the AWS
tools do (AWS_ENDPOINT_URL, AWS_PROFILE, ~/.aws). No locks, no partial reads, no listing of anything deeper.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol
from uuid import uuid4

PARTIAL = ".partial"  # what a file is called while it is being written


class Store(Protocol):
    """Named byte files. Whatever goes wrong is an OSError of one line, FileNotFoundError for a name that is absent."""

    def put(self, name: str, data: bytes) -> None:
        """Write a file, in the place of an older one of that name."""

    def get(self, name: str) -> bytes:
        """The content of a file."""
        ...

    def names(self) -> list[str]:
        """Every file, sorted; nothing where nothing was ever put."""
        ...

    def clear(self) -> None:
        """Delete every file."""


def open_store(where: str) -> Store:
    """The store at `where`: `s3://bucket/prefix`, or else a folder, made when a first file is put.

    Raises ValueError for an address without a bucket or of another kind. Connects to nothing yet.
    """
    scheme, separator, rest = where.partition("://")
    if not separator:
        return FolderStore(Path(where))
    bucket, _, prefix = rest.partition("/")
    if scheme != "s3" or not bucket:
        raise ValueError("no such kind of store; a folder or s3://bucket/prefix expected")
    return S3Store(bucket, prefix.strip("/"))


class FolderStore:
    """Files of one folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def put(self, name: str, data: bytes) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        partial = self._folder / f"{name}.{uuid4().hex}{PARTIAL}"  # two writers of one name do not meet
        try:
            partial.write_bytes(data)
            partial.replace(self._folder / name)
        finally:
            partial.unlink(missing_ok=True)

    def get(self, name: str) -> bytes:
        return (self._folder / name).read_bytes()

    def names(self) -> list[str]:
        if not self._folder.exists():
            return []
        return sorted(f.name for f in self._folder.iterdir() if f.is_file() and f.suffix != PARTIAL)

    def clear(self) -> None:
        for name in self.names():
            (self._folder / name).unlink()
        if self._folder.exists() and not any(self._folder.iterdir()):
            self._folder.rmdir()


class S3Store:
    """Objects directly under one prefix of a bucket."""

    def __init__(self, bucket: str, prefix: str) -> None:
        self._bucket, self._prefix = bucket, f"{prefix}/" if prefix else ""

    def put(self, name: str, data: bytes) -> None:
        with self._errors(name):
            self._client.put_object(Bucket=self._bucket, Key=self._prefix + name, Body=data)

    def get(self, name: str) -> bytes:
        with self._errors(name):
            content: bytes = self._client.get_object(Bucket=self._bucket, Key=self._prefix + name)["Body"].read()
            return content

    def names(self) -> list[str]:
        with self._errors():
            pages = self._client.get_paginator("list_objects_v2").paginate(
                Bucket=self._bucket, Prefix=self._prefix, Delimiter="/"
            )
            keys = [entry["Key"] for page in pages for entry in page.get("Contents", ())]
        return sorted(name for key in keys if (name := key.removeprefix(self._prefix)))

    def clear(self) -> None:
        for name in self.names():
            with self._errors(name):
                self._client.delete_object(Bucket=self._bucket, Key=self._prefix + name)

    @cached_property
    def _client(self) -> Any:
        import boto3

        return boto3.client("s3")

    @contextmanager
    def _errors(self, name: str = "") -> Iterator[None]:
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            yield
        except (BotoCoreError, ClientError) as error:
            absent = isinstance(error, ClientError) and error.response["Error"]["Code"] == "NoSuchKey"
            kind = FileNotFoundError if absent else OSError
            said = " ".join(str(error).split())
            raise kind(f"s3://{self._bucket}/{self._prefix}{name}: {said}") from None
