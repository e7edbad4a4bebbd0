"""Small byte files by name: in a folder, or under an `s3://bucket/prefix`.

    open_store("s3://my-bucket/traces").put("a.safetensors", data)

A file is written whole or not at all, and names are flat. S3 takes endpoint, region, credentials, addressing style and
retries from where the AWS tools do (AWS_ENDPOINT_URL, AWS_PROFILE, ~/.aws). On S3 alone a file can be created only if
it is absent, or replaced only if it is still what was read: what a lease and a log of several drivers rest on.
"""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple, Protocol
from uuid import uuid4

PARTIAL = ".partial"  # what a file is called while it is being written
CONNECT_SECONDS, READ_SECONDS, ATTEMPTS = 5, 20, 5  # of one request to S3; with backoff, a minute or two in all
_EXPIRED = {"ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired", "RequestExpired", "InvalidToken"}
_REFUSED = {"InvalidAccessKeyId", "SignatureDoesNotMatch", "AccessDenied", "403", "AllAccessDisabled"}
_REMEDIES = {
    "expired": "the credentials have expired; renew them (aws sso login, ~/.aws/credentials), then go on",
    "refused": "check AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, and what they may do",
    "bucket": "create the bucket, or name another one",
    "silent": "check the network and AWS_ENDPOINT_URL",
}


# ---- where


@dataclass(frozen=True)
class S3Path:
    """`s3://bucket/key`, with as much of pathlib as a place for files needs."""

    bucket: str
    key: str = ""

    def __truediv__(self, name: str) -> "S3Path":
        return S3Path(self.bucket, f"{self.key}/{name}".strip("/"))

    def __str__(self) -> str:
        return f"s3://{self.bucket}/{self.key}".rstrip("/")

    @property
    def name(self) -> str:
        return self.key.rpartition("/")[2]

    @property
    def parent(self) -> "S3Path":
        return S3Path(self.bucket, self.key.rpartition("/")[0])


Place = Path | S3Path
"""A folder or file on disk, or on S3. What is there is read through `open_store`."""


def place(where: str) -> Place:
    """`where` as a Place. Raises ValueError for an address without a bucket or of another kind than s3://."""
    scheme, separator, rest = where.partition("://")
    if not separator:
        return Path(where)
    bucket, _, key = rest.partition("/")
    if scheme != "s3" or not bucket:
        raise ValueError("no such kind of store; a folder or s3://bucket/prefix expected")
    return S3Path(bucket, key.strip("/"))


def cache_folder() -> Path:
    """This machine's own folder for what comes from S3 or has still to go there; SPOT_CACHE, or ~/.cache/spot-sweeps.

    Weights and segments in it can be fetched again; journals (orchestrator/segments.py) cannot.
    """
    return Path(os.environ.get("SPOT_CACHE") or "~/.cache/spot-sweeps").expanduser()


# ---- stores


class Store(Protocol):
    """Named byte files. Whatever goes wrong is an OSError of one line, FileNotFoundError for a name that is absent."""

    def put(self, name: str, data: bytes) -> None:
        """Write a file, durably, in the place of an older one of that name."""

    def get(self, name: str) -> bytes:
        """The content of a file."""
        ...

    def names(self) -> list[str]:
        """Every file, sorted; nothing where nothing was ever put."""
        ...

    def folders(self) -> list[str]:
        """The names of the folders in this one, sorted."""
        ...

    def clear(self) -> None:
        """Delete every file."""


class Tag(NamedTuple):
    """What tells one content of a name from another, and its length in bytes."""

    etag: str
    size: int


class Object(NamedTuple):
    """A file's content, its ETag, and how many seconds ago, by the store's own clock, it was written."""

    data: bytes
    etag: str
    age: float


class Bucket(Store, Protocol):
    """A store whose files several writers may contend for."""

    def read(self, name: str) -> Object:
        """A file with its ETag."""
        ...

    def create(self, name: str, data: bytes) -> str | None:
        """Write a file that is not there yet, and return its ETag; None, and nothing written, where it is."""

    def swap(self, name: str, data: bytes, etag: str) -> str | None:
        """Replace the file that has this ETag, and return the new one; None, and nothing written, for any other."""

    def tags(self) -> dict[str, Tag]:
        """Every file by name, sorted."""
        ...


class StoreError(OSError):
    """What S3 refuses, or does not answer: one line with the address, and a remedy where there is one."""


def open_store(where: str | Place) -> "FolderStore | S3Store":
    """The store at `where`: `s3://bucket/prefix`, or else a folder, made when a first file is put.

    Raises ValueError for an address without a bucket or of another kind. Connects to nothing yet.
    """
    at = place(where) if isinstance(where, str) else where
    return S3Store(at) if isinstance(at, S3Path) else FolderStore(at)


class FolderStore:
    """Files of one folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def put(self, name: str, data: bytes) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        partial = self._folder / f"{name}.{uuid4().hex}{PARTIAL}"  # two writers of one name do not meet
        try:
            with partial.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            partial.replace(self._folder / name)
        finally:
            partial.unlink(missing_ok=True)
        sync_folder(self._folder)

    def get(self, name: str) -> bytes:
        return (self._folder / name).read_bytes()

    def names(self) -> list[str]:
        if not self._folder.exists():
            return []
        return sorted(f.name for f in self._folder.iterdir() if f.is_file() and f.suffix != PARTIAL)

    def folders(self) -> list[str]:
        return sorted(f.name for f in self._folder.iterdir() if f.is_dir()) if self._folder.is_dir() else []

    def clear(self) -> None:
        for name in self.names():
            (self._folder / name).unlink()
        if self._folder.exists() and not any(self._folder.iterdir()):
            self._folder.rmdir()


def sync_folder(folder: Path) -> None:
    """Make the names in `folder` durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class S3Store:
    """Objects directly under one prefix of a bucket."""

    def __init__(self, at: S3Path) -> None:
        self._at, self._bucket, self._prefix = at, at.bucket, f"{at.key}/" if at.key else ""

    def put(self, name: str, data: bytes) -> None:
        with self._errors(name):
            self._client.put_object(**self._key(name), Body=data)

    def get(self, name: str) -> bytes:
        return self.read(name).data

    def start(self, name: str, size: int) -> bytes:
        """The first `size` bytes of a file, or all of a shorter one."""
        with self._errors(name):
            return self._get(name, Range=f"bytes=0-{size - 1}")[1]

    def download(self, name: str, path: Path) -> None:
        """Write a file of any size to `path`."""
        with self._errors(name):
            self._client.download_file(self._bucket, self._prefix + name, str(path))

    def read(self, name: str) -> Object:
        with self._errors(name):
            answer, data = self._get(name)
        return Object(data, answer["ETag"], _age(answer))

    def _get(self, name: str, attempts: int = ATTEMPTS, **asked: str) -> tuple[dict[str, Any], bytes]:
        """An object's answer and content. botocore makes a request again, but not for a body that breaks off."""
        from botocore.exceptions import IncompleteReadError, ReadTimeoutError, ResponseStreamingError

        answer = self._client.get_object(**self._key(name), **asked)
        try:
            return answer, answer["Body"].read()
        except (IncompleteReadError, ReadTimeoutError, ResponseStreamingError):
            if attempts == 1:
                raise
            return self._get(name, attempts - 1, **asked)

    def create(self, name: str, data: bytes) -> str | None:
        return self._put_if(name, data, IfNoneMatch="*")

    def swap(self, name: str, data: bytes, etag: str) -> str | None:
        return self._put_if(name, data, IfMatch=etag)

    def _put_if(self, name: str, data: bytes, **condition: str) -> str | None:
        from botocore.exceptions import ClientError

        with self._errors(name):
            try:
                etag: str = self._client.put_object(**self._key(name), Body=data, **condition)["ETag"]
                return etag
            except ClientError as error:
                if error.response["Error"]["Code"] in ("PreconditionFailed", "412", "NoSuchKey"):
                    return None
                raise

    def tags(self) -> dict[str, Tag]:
        entries = (entry for page in self._pages() for entry in page.get("Contents", ()))
        found = {entry["Key"].removeprefix(self._prefix): Tag(entry["ETag"], entry["Size"]) for entry in entries}
        return {name: found[name] for name in sorted(found) if name}  # S3's console marks a folder by a file without

    def names(self) -> list[str]:
        return list(self.tags())

    def folders(self) -> list[str]:
        found = (entry["Prefix"] for page in self._pages() for entry in page.get("CommonPrefixes", ()))
        return sorted(prefix.removeprefix(self._prefix).rstrip("/") for prefix in found)

    def clear(self) -> None:
        for name in self.names():
            with self._errors(name):
                self._client.delete_object(**self._key(name))

    def _pages(self) -> Iterator[dict[str, Any]]:
        with self._errors():
            paginator = self._client.get_paginator("list_objects_v2")
            yield from paginator.paginate(Bucket=self._bucket, Prefix=self._prefix, Delimiter="/")

    def _key(self, name: str) -> dict[str, str]:
        return {"Bucket": self._bucket, "Key": self._prefix + name}

    @property
    def _client(self) -> Any:
        return _client(frozenset(item for item in os.environ.items() if item[0].startswith("AWS_")))

    @contextmanager
    def _errors(self, name: str = "") -> Iterator[None]:
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            yield
        except (BotoCoreError, ClientError) as error:
            code = error.response["Error"]["Code"] if isinstance(error, ClientError) else ""
            said, remedy = " ".join(str(error).split()), _remedy(error, code)
            if remedy in ("expired", "refused"):
                _client.cache_clear()  # the next request looks for credentials anew
            line = re.sub(r"//[^/\s]+@", "//", f"{self._at / name}: {said}")  # keys in AWS_ENDPOINT_URL
            if code in ("NoSuchKey", "404"):
                raise FileNotFoundError(line) from None
            raise StoreError(line + (f"; {_REMEDIES[remedy]}" if remedy else "")) from None


@lru_cache(maxsize=1)
def _client(environment: frozenset[tuple[str, str]]) -> Any:
    """This process's client, for all threads: making one takes a good part of a second."""
    import boto3
    from botocore.config import Config

    attempts = {} if "AWS_MAX_ATTEMPTS" in dict(environment) else {"total_max_attempts": ATTEMPTS}
    retries = {"mode": "standard", **attempts}
    settings = Config(connect_timeout=CONNECT_SECONDS, read_timeout=READ_SECONDS, retries=retries)
    return boto3.session.Session().client("s3", config=settings)


def _remedy(error: Exception, code: str) -> str | None:
    """What to do about it, a key of _REMEDIES."""
    from botocore import exceptions as kinds

    if code in _EXPIRED or isinstance(error, kinds.SSOError | kinds.CredentialRetrievalError):
        return "expired"
    missing = kinds.NoCredentialsError | kinds.PartialCredentialsError | kinds.ProfileNotFound
    if code in _REFUSED or isinstance(error, missing):
        return "refused"
    if code == "NoSuchBucket":
        return "bucket"
    return "silent" if isinstance(error, kinds.ConnectionError | kinds.HTTPClientError) else None


def _age(answer: dict[str, Any]) -> float:
    """Seconds between an answer's own date and the last change of what it holds."""
    from email.utils import parsedate_to_datetime

    now = answer["ResponseMetadata"]["HTTPHeaders"].get("date")
    return (parsedate_to_datetime(now) - answer["LastModified"]).total_seconds() if now else 0.0
