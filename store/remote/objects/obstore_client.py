"""The client of object stores, obstore: the only module that knows it. One attempt a call.

What fails is raised as an error of ours or as a TransientFault, in words that hold no credentials;
those come from the environment. In a forked child whose parent used the client it would hang for
ever, so there every call raises at once.
"""

import asyncio
import os
import ssl
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import cached_property
from http.client import HTTPException
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote
from urllib.request import Request, urlopen

from store.errors import SchemaError, StoreError
from store.extras import needs_extra
from store.remote.objects.address import ENDPOINTS, TRUSTED, Location
from store.remote.objects.faults import fault_of

__all__ = ["Client"]

CONNECT_S = 4.0
STORES = {"s3": "S3Store", "gs": "GCSStore", "az": "AzureStore"}  # others: HTTPStore
MOVED_S = 600.0  # that objects are asked for where their server sends requests on
T = TypeVar("T")
_used_by: int | None = None  # the process that has the client's threads


class Client:
    """Requests to one bucket, for many threads. Keys are relative to its `location`.

    `options` are settings of obstore's store, e.g. `endpoint`; others are taken from the
    environment. Those of `TRUSTED` name a file and a folder of authorities, whose certificates
    servers may have beside those of the system. A request takes `attempt_s` seconds at most, and
    `stall_s` without a byte of an answer. Raises SchemaError if a setting is wrong, NotFoundError
    if obstore is not installed.
    """

    def __init__(
        self, location: Location, options: Mapping[str, str], attempt_s: float, stall_s: float
    ) -> None:
        _check_process()
        with needs_extra("remote"):
            import obstore
            import obstore.store
        self.location = location
        self.attempt_s = attempt_s
        self._authorities = _certificates(options)
        self._moved: dict[str, tuple[float, Any]] = {}  # until when, and what has the object
        self._obs: Any = obstore
        self._faults = (obstore.exceptions.BaseError, FileNotFoundError)
        # the most special name that the client has for it: others give way
        special = {"endpoint": ENDPOINTS.get(location.scheme, ("",))[0]}
        config = {special.get(k, k).lower(): v for k, v in options.items() if k not in TRUSTED}
        limits: dict[str, Any] = {
            # without an endpoint: a service account may name one
            "allow_http": location.scheme != "https"
            and not options.get("endpoint", "").startswith("https://"),
            "connect_timeout": timedelta(seconds=min(attempt_s, CONNECT_S)),
            "timeout": timedelta(seconds=attempt_s),
            "read_timeout": timedelta(seconds=min(attempt_s, stall_s)),
        }
        if self._authorities:
            limits["root_certificate"] = self._authorities
        once = {"max_retries": 0, "retry_timeout": timedelta(seconds=attempt_s)}  # others are ours
        self._given: dict[str, Any] = {"client_options": limits, "retry_config": once}
        try:
            self._store = self._open(config)
        except (obstore.exceptions.BaseError, ValueError, TypeError) as error:
            # not `from error`: the client's text may show what it was configured with
            names = ", ".join(options) or "the environment"
            raise SchemaError(
                f"{location}: expected settings that the client takes, found others "
                f"({type(error).__name__}); check {names}"
            ) from None

    def _open(self, config: dict[str, Any]) -> Any:
        """The client's object for the bucket."""
        location = self.location
        if location.is_read_only:
            return self._open_web(str(location))
        kind = getattr(self._obs.store, STORES[location.scheme])
        return kind(location.bucket, prefix=location.prefix or None, config=config, **self._given)

    def _open_web(self, url: str) -> Any:
        return self._obs.store.HTTPStore.from_url(url, **self._given)

    def where(self, key: str) -> str:
        """The address of an object, as messages have it."""
        return f"{self.location}/{key}" if key else str(self.location)

    def attempt(self, key: str, work: Callable[[Any, Any], T]) -> T:
        """What `work` makes of the module obstore and its object for the bucket, in one attempt.

        It is about the object `key`. Raises StoreError, or TransientFault.
        """
        with self._named_faults(key):
            return work(self._obs, self._store)

    async def attempt_ranges(
        self, key: str, starts: Sequence[int], ends: Sequence[int]
    ) -> list[memoryview]:
        """Byte ranges of an object, as they are asked for, in one attempt; raises as `attempt`."""
        with self._named_faults(key):
            if self.location.is_read_only:
                moved = await self._find_moved(key)
                if moved is not None:
                    with suppress(*self._faults):
                        return await self._get_ranges(moved, "", starts, ends)
                    self._moved.pop(key, None)  # its address may have ended
            return await self._get_ranges(self._store, key, starts, ends)

    async def _get_ranges(
        self, store: object, key: str, starts: Sequence[int], ends: Sequence[int]
    ) -> list[memoryview]:
        given = {"starts": starts, "ends": ends, "coalesce": 0}
        found = await self._obs.get_ranges_async(store, key, **given)
        return [memoryview(data) for data in found]

    async def _find_moved(self, key: str) -> Any:
        """What has an object whose server sends requests on; None: it does not.

        Servers count what they send on, and refuse who asks too often.
        """
        now = time.monotonic()
        until, moved = self._moved.get(key, (0.0, None))
        if now >= until:
            moved = None
            self._moved[key] = now + MOVED_S, moved
            url = f"{self.location}/{quote(key)}"
            where = await asyncio.to_thread(self._follow, url)
            if where != url and where.startswith(("https:", url[:5])):
                moved = self._open_web(where)
                self._moved[key] = now + MOVED_S, moved
        return moved

    @cached_property
    def _tls(self) -> ssl.SSLContext:
        """Whom to trust; to read the system's certificates takes a tenth of a second."""
        context = ssl.create_default_context()
        if self._authorities:
            context.load_verify_locations(cadata=self._authorities.decode())
        return context

    def _follow(self, url: str) -> str:
        """Where a server sends who asks for an address; if there is no answer, that address."""
        request = Request(url, headers={"Range": "bytes=0-0"})  # noqa: S310, of our schemes
        with (
            suppress(OSError, HTTPException, ValueError),
            urlopen(request, timeout=CONNECT_S, context=self._tls) as answer,  # noqa: S310
        ):
            return str(answer.url)
        return url

    @contextmanager
    def _named_faults(self, key: str) -> Iterator[None]:
        """Raise errors of the client, about an object, as our own."""
        _check_process()
        try:
            yield
        except self._faults as error:
            # not `from error`: the client's text may have a signed address
            raise fault_of(error, self.where(key)) from None
        except BaseException as error:
            if type(error).__name__ != "PanicException":  # of Rust: it cannot be imported
                raise
            found = f"{self.where(key)}: the client failed on its settings"
            raise StoreError(f"{found}; check endpoint and credentials") from None


def _check_process() -> None:
    """Raise StoreError in a child that was forked after its parent used the client."""
    global _used_by
    _used_by = _used_by or os.getpid()
    if _used_by != os.getpid():
        raise StoreError(
            "this process was forked from one that used an object store, and would wait for ever; "
            'start workers with the method "spawn" or "forkserver", e.g. '
            'DataLoader(..., multiprocessing_context="spawn")'
        )


def _certificates(options: Mapping[str, str]) -> bytes:
    """The certificates in a file or the files of a folder, PEM; raises SchemaError."""
    parts = []
    for name in TRUSTED & options.keys():
        path = Path(options[name])
        try:
            files = [one for one in path.iterdir() if one.is_file()] if path.is_dir() else [path]
            parts += [file.read_bytes() for file in files]
        except OSError as error:
            raise SchemaError(
                f"{name}: expected certificates (PEM), found: {error.strerror}; mend or unset it"
            ) from error
    return b"\n".join(parts)
