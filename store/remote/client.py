"""The client of object stores, obstore: the only module that knows it. One attempt a call.

What fails is raised as an error of ours or as a TransientFault, in words that hold no credentials;
those come from the environment. In a forked child whose parent used the client it would hang for
ever, so there every call raises at once.
"""

import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from types import MappingProxyType
from typing import Any, BinaryIO, NamedTuple, TypeVar
from urllib.parse import quote

from store.errors import CorruptError, SchemaError, StoreError
from store.extras import needs_extra
from store.remote.faults import ConflictError, TransientFault, fault_of
from store.remote.source import ENDPOINTS, UNSIGNED, Location

__all__ = ["Client", "Head", "check_process", "part_bytes"]

CONNECT_S = 4.0
PART_BYTES = 8 * 1024 * 1024
STORES = {"s3": "S3Store", "gs": "GCSStore", "az": "AzureStore"}  # others: HTTPStore
SIGNED = timedelta(hours=1)
NOT_SIGNED = UNSIGNED["s3"].lower()
NO_KEYS = {"aws_access_key_id": "none", "aws_secret_access_key": "none"}
MAX_PARTS = 9_000  # S3 has at most 10,000
T = TypeVar("T")
_used_by: int | None = None  # the process that has the client's threads


class Head(NamedTuple):
    """An object without its bytes; `etag` and `version` name its content for conditions."""

    size: int
    etag: str | None
    version: str | None = None


class Client:
    """Requests to one bucket, for many threads. Keys are relative to its `location`.

    `options` are settings of obstore's store, e.g. `endpoint`; others are taken from the
    environment. A request takes `attempt_s` seconds at most, and `stall_s` without a byte of an
    answer. Servers may have certificates of the authorities in the file and the folder that
    `trusted` names as `SSL_CERT_FILE` and `SSL_CERT_DIR`, beside those of the system. Raises
    SchemaError if a setting is wrong, NotFoundError if obstore is not installed.
    """

    def __init__(
        self,
        location: Location,
        options: dict[str, Any],
        attempt_s: float,
        stall_s: float,
        trusted: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        check_process()
        with needs_extra("remote"):
            import obstore
            import obstore.store
        self.location = location
        self.attempt_s = attempt_s
        self.stall_s = stall_s
        self.trusted = trusted
        self._obs: Any = obstore
        self._faults = (obstore.exceptions.BaseError, FileNotFoundError)
        # the most special name that the client has for it: others give way
        special = {"endpoint": ENDPOINTS.get(location.scheme, ("",))[0]}
        config = {special.get(name, name).lower(): value for name, value in options.items()}
        limits: dict[str, Any] = {
            # without an endpoint: a service account may name one
            "allow_http": location.scheme != "https"
            and not str(options.get("endpoint", "")).startswith("https://"),
            "connect_timeout": timedelta(seconds=min(attempt_s, CONNECT_S)),
            "timeout": timedelta(seconds=attempt_s),
            "read_timeout": timedelta(seconds=min(attempt_s, stall_s)),
        }
        if trusted:
            limits["root_certificate"] = _certificates(trusted)
        self._is_public = config.get(NOT_SIGNED, "").lower() == "true"
        try:
            self._store = self._open(config, limits)
            self._signer = self._store
            if self._is_public:  # any keys: they give the address, without what they sign
                self._signer = self._open({**config, NOT_SIGNED: "false", **NO_KEYS}, limits)
        except (obstore.exceptions.BaseError, ValueError, TypeError) as error:
            # not `from error`: the client's text may show what it was configured with
            names = ", ".join([*options, *trusted]) or "the environment"
            raise SchemaError(
                f"{location}: expected settings that the client takes, found others "
                f"({type(error).__name__}); check {names}"
            ) from None

    def _open(self, config: dict[str, Any], limits: dict[str, Any]) -> Any:
        """The client's object for the bucket; repetitions are ours."""
        stores = self._obs.store
        once = {"max_retries": 0, "retry_timeout": timedelta(seconds=self.attempt_s)}
        given = {"client_options": limits, "retry_config": once}
        location = self.location
        if location.is_read_only:
            return stores.HTTPStore.from_url(str(location), **given)
        kind = getattr(stores, STORES[location.scheme])
        return kind(location.bucket, prefix=location.prefix or None, config=config, **given)

    def where(self, key: str) -> str:
        """The address of an object, as messages have it."""
        return f"{self.location}/{key}" if key else str(self.location)

    def head(self, key: str) -> Head:
        """Size and identity of an object."""
        return self._do(key, lambda: _head_of(self._obs.head(self._store, key)))

    def list(self, prefix: str) -> dict[str, Head]:
        """Key -> head of all objects below a folder."""

        def work() -> dict[str, Head]:
            parts = self._obs.list(self._store, prefix or None)
            return {meta["path"]: _head_of(meta) for part in parts for meta in part}

        return self._do(prefix, work)

    def get(self, key: str, max_bytes: int) -> tuple[bytes, Head]:
        """All bytes of an object of at most so many."""

        def work() -> tuple[bytes, Head]:
            answer = self._obs.get(self._store, key)
            head = _head_of(answer.meta)
            if head.size > max_bytes:
                raise CorruptError(
                    f"{self.where(key)}: expected at most {max_bytes:,} bytes, found {head.size:,}"
                )
            data = bytes(answer.bytes())
            _check_length(len(data), head.size)
            return data, head

        return self._do(key, work)

    def get_tail(self, key: str, n_bytes: int) -> tuple[memoryview, int]:
        """The last bytes of an object, fewer if it is shorter, and its size."""
        if self.location.scheme == "az":  # which knows no ranges from the end
            size = self.head(key).size
            return self.get_range(key, max(0, size - n_bytes), size, None), size

        def work() -> tuple[memoryview, int]:
            answer = self._obs.get(self._store, key, options={"range": {"suffix": n_bytes}})
            size = answer.meta["size"]
            data = answer.bytes()
            _check_length(len(data), min(size, n_bytes))
            return memoryview(data), size

        return self._do(key, work)

    def get_range(self, key: str, start: int, end: int, etag: str | None) -> memoryview:
        """Bytes `start:end`, exactly, of the object that `etag` names if it is given."""

        def work() -> memoryview:
            if etag is None:
                data = self._obs.get_range(self._store, key, start=start, end=end)
            else:
                options = {"range": (start, end), "if_match": etag}
                answer = self._obs.get(self._store, key, options=options)
                found = answer.meta["e_tag"]
                if found and found.strip('"') != etag.strip('"'):  # of a server without conditions
                    raise ConflictError(f"{self.where(key)}: expected {etag}, found another object")
                data = answer.bytes()
            _check_length(len(data), end - start)
            return memoryview(data)

        return self._do(key, work)

    def sign(self, key: str) -> str | None:
        """A URL of an object for whoever has it, for an hour; None: there is none."""
        if self.location.is_read_only:
            return f"{self.location}/{quote(key)}"
        with suppress(StoreError, TransientFault):  # not with every kind of credentials
            url = self._do(key, lambda: self._obs.sign(self._signer, "GET", key, SIGNED))
            return url.partition("?")[0] if self._is_public else url
        return None

    def put(self, key: str, data: bytes | memoryview, mode: Any) -> Head:
        """Write bytes under the condition `mode`: "create", or a version that must be there."""

        def work() -> Head:
            found = self._obs.put(self._store, key, data, mode=mode, use_multipart=False)
            return Head(len(data), found["e_tag"], found["version"])

        return self._do(key, work)

    def put_file(self, key: str, file: BinaryIO) -> Head:
        """Write a file whatever is there; a large one in parts of `part_bytes`."""
        n_bytes = os.fstat(file.fileno()).st_size
        part = part_bytes(n_bytes)

        def work() -> Head:
            file.seek(0)
            in_parts = {"use_multipart": n_bytes > part, "chunk_size": part, "max_concurrency": 4}
            found = self._obs.put(self._store, key, file, **in_parts)
            return Head(n_bytes, found["e_tag"], found["version"])

        return self._do(key, work)

    def delete(self, key: str) -> None:
        """Remove an object."""
        self._do(key, lambda: self._obs.delete(self._store, key))

    def _do(self, key: str, work: Callable[[], T]) -> T:
        check_process()
        try:
            return work()
        except self._faults as error:
            # not `from error`: the client's text may have a signed address
            raise fault_of(error, self.where(key)) from None
        except BaseException as error:
            if type(error).__name__ != "PanicException":  # of Rust: it cannot be imported
                raise
            found = f"{self.where(key)}: the client failed on its settings"
            raise StoreError(f"{found}; check endpoint and credentials") from None


def part_bytes(n_bytes: int) -> int:
    """The size of the parts that a file of so many bytes is written in; one if it is smaller."""
    return max(PART_BYTES, n_bytes // MAX_PARTS + 1)


def check_process() -> None:
    """Raise StoreError in a child that was forked after its parent used the client."""
    global _used_by
    _used_by = _used_by or os.getpid()
    if _used_by != os.getpid():
        raise StoreError(
            "this process was forked from one that used an object store, and would wait for ever; "
            'start workers with the method "spawn" or "forkserver", e.g. '
            'DataLoader(..., multiprocessing_context="spawn")'
        )


def _certificates(trusted: Mapping[str, str]) -> bytes:
    """The certificates in a file or the files of a folder, PEM; raises SchemaError."""
    parts = []
    for name, value in trusted.items():
        path = Path(value)
        try:
            files = [one for one in path.iterdir() if one.is_file()] if path.is_dir() else [path]
            parts += [file.read_bytes() for file in files]
        except OSError as error:
            raise SchemaError(
                f"{name}: expected certificates (PEM), found: {error.strerror}; mend or unset it"
            ) from error
    return b"\n".join(parts)


def _head_of(meta: Any) -> Head:
    return Head(meta["size"], meta["e_tag"], meta["version"])


def _check_length(found: int, expected: int) -> None:
    if found != expected:
        raise TransientFault(f"{found:,} bytes of {expected:,}")
