"""Objects of a bucket as bytes under names, as a store has files.

Every call ends within its stated time: with what was asked for, whole, or with a named error. What
can be repeated is repeated; a conditional write is not, since the first may have been done though
its answer was lost (`store.remote.commit`). An `Objects` may be used by many threads, and not in a
child that was forked after its parent used one: there every call raises StoreError.
"""

import random
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, TypeVar

from store.errors import NotFoundError, UnreachableError
from store.remote.client import Client, Head
from store.remote.faults import NoBucketError, TransientFault
from store.remote.range_reader import RangeReader
from store.remote.source import ENDPOINTS, TRUSTED, check_endpoint, parse_url, source_settings

__all__ = [
    "Head",
    "Objects",
    "Patience",
    "open_objects",
]


FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 5.0
T = TypeVar("T")


@dataclass(frozen=True)
class Patience:
    """How long to try: within `limit_s` seconds there is a result or an error.

    One attempt takes `attempt_s` at most; none begins that could end after the limit.
    """

    limit_s: float
    attempt_s: float
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep

    def __call__(self, where: str, attempt: Callable[[], T]) -> T:
        """Return what an attempt returns; raise UnreachableError, about `where`, if none succeeds.

        Another StoreError of an attempt is raised at once: more of them would not help.
        """
        began = self.clock()
        n = 0
        while True:
            n += 1
            try:
                return attempt()
            except TransientFault as fault:
                cause = str(fault)
            # "full jitter": clients that failed together do not come again together
            # https://aws.amazon.com/blogs/architecture/exponential-backoff-and-jitter
            pause_s = random.uniform(0, min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2**n))  # noqa: S311
            spent_s = self.clock() - began
            if spent_s + pause_s + self.attempt_s > self.limit_s:
                raise UnreachableError(
                    f"{where}: expected an answer within {self.limit_s:g} s, found {cause}, in "
                    f"{n} attempts and {spent_s:.1f} s, and another may take {self.attempt_s:g} s; "
                    "try again later, or check the address"
                )
            self.sleep(pause_s)


OPEN_S = 9.0  # an address that leads nowhere is refused within 10 s
OPEN_ATTEMPT_S = 4.0
LIMIT_S = 120.0  # of an operation with all its attempts
ATTEMPT_S = 50.0  # of one request; of a large file it is that of each part
STALL_S = 10.0  # without a byte
SLOW_RATE = 1e6  # bytes a second: a large file to be written has so much more time
SMALL_BYTES = 64 * 1024 * 1024  # what `get` holds in memory, unless told
N_PARALLEL = 64

# for emulators; with `skip_signature` the client would still ask for a token before it writes
ANONYMOUS = '{"disable_oauth": true, "client_email": "", "private_key": "", "private_key_id": ""}'


def open_objects(
    url: str,
    *,
    endpoint: str | None = None,
    limit_s: float = LIMIT_S,
    attempt_s: float = ATTEMPT_S,
    stall_s: float = STALL_S,
    settings: Mapping[str, str] | None = None,
    **options: Any,
) -> "Objects":
    """Open the objects under an address, and look whether its bucket answers.

    Parameters
    ----------
    url
        s3://, gs:// or az://BUCKET/PATH; or https://HOST/PATH, of which objects are only read.
    endpoint
        Address of the server, if not the provider's (default: one of `ENDPOINTS`). One of GCS is
        asked without a signature, unless the environment names credentials.
    limit_s, attempt_s, stall_s
        Seconds that an operation takes at most with all attempts; one request; and those without
        a byte of an answer.
    settings
        Variables as `source_settings` gives them, in place of the environment's.
    options
        Further settings of obstore's store, e.g. `region`.

    Raises
    ------
    SchemaError
        The address or a setting is wrong.
    NotFoundError
        The bucket does not exist, or obstore is not installed.
    StoreError
        No answer within 10 s, or the credentials do not allow to look.
    """
    location = parse_url(url)
    given = source_settings(url) if settings is None else dict(settings)
    trusted = {name: given.pop(name) for name in TRUSTED if name in given}
    found = [given.pop(name, None) for name in ENDPOINTS.get(location.scheme, ())]
    endpoint = endpoint or next(filter(None, found), None)
    if endpoint is not None:
        check_endpoint(endpoint)
        options["endpoint"] = endpoint
        if location.scheme == "gs" and not given:
            options["service_account_key"] = ANONYMOUS
    for name, value in given.items():  # what the caller says counts
        if name.lower().removeprefix("aws_") not in options:
            options[name] = value
    quick = Client(location, options, min(attempt_s, OPEN_ATTEMPT_S), stall_s, trusted)
    _check_bucket(Objects(quick, Patience(min(limit_s, OPEN_S), quick.attempt_s)))
    attempt_s = min(attempt_s, limit_s / 2)
    client = Client(location, options, attempt_s, stall_s, trusted)
    return Objects(client, Patience(limit_s, attempt_s))


def _check_bucket(objects: "Objects") -> None:
    """Raise StoreError unless the bucket exists and may be read; any object will do."""
    try:
        objects.get_range("zarr.json", 0, 1)
    except NoBucketError:
        raise
    except NotFoundError:
        pass


class Objects:
    """Objects under an address; see `open_objects`. Keys are relative to it, as in a store."""

    def __init__(self, client: Client, patience: Patience) -> None:
        self.client = client
        self.location = client.location
        self.patience = patience

    def where(self, key: str) -> str:
        """The address of an object, as messages have it."""
        return self.client.where(key)

    def head(self, key: str) -> Head:
        """Size and identity of an object; raises NotFoundError."""
        return self.patience(self.where(key), lambda: self.client.head(key))

    def list(self, prefix: str = "") -> dict[str, Head]:
        """Key -> head of all objects below a folder, e.g. "tokens/c"."""
        return self.patience(self.where(prefix), lambda: self.client.list(prefix))

    def heads(self, keys: Collection[str]) -> dict[str, Head]:
        """Key -> head of those of some objects that are there."""
        if not self.location.is_read_only:
            listed = self.list()
            return {key: listed[key] for key in keys if key in listed}
        found = {}

        def ask(key: str) -> None:
            with suppress(NotFoundError):
                found[key] = self.head(key)

        list(self._pool.map(ask, keys))
        return found

    def get_tail(self, key: str, n_bytes: int) -> tuple[memoryview, int]:
        """The last bytes of an object, fewer if it is shorter, and its size."""
        where = self.where(key)
        return self.patience(where, lambda: self.client.get_tail(key, n_bytes))

    def get(self, key: str, max_bytes: int = SMALL_BYTES) -> bytes:
        """The bytes of a small object, in one request; raises NotFoundError, CorruptError."""
        return self.get_with_head(key, max_bytes)[0]

    def get_with_head(self, key: str, max_bytes: int = SMALL_BYTES) -> tuple[bytes, Head]:
        """As `get`, and the identity of just these bytes."""
        return self.patience(self.where(key), lambda: self.client.get(key, max_bytes))

    def get_range(self, key: str, start: int, end: int, etag: str | None = None) -> memoryview:
        """The bytes `start:end` of an object, exactly, as a read-only view; see `get_ranges`."""
        if not 0 <= start <= end:
            raise ValueError(f"expected 0 <= start <= end, found {start} and {end}")
        if start == end:
            return memoryview(b"")
        return self.patience(self.where(key), lambda: self.client.get_range(key, start, end, etag))

    def get_ranges(
        self, key: str, starts: Sequence[int], ends: Sequence[int], etag: str | None = None
    ) -> Sequence[memoryview]:
        """Byte ranges of one object, read-only views, in parallel; neighbours are not joined.

        Raises ConflictError if the object is not that of `etag` any more, NotFoundError if it is
        not there, UnreachableError if a range did not come whole within the stated time.
        """
        get = partial(self.get_range, key, etag=etag)
        do = self._pool.map if len(starts) > 1 else map
        return [*do(get, map(int, starts), map(int, ends))]

    def reader(self) -> RangeReader:
        """What asks for ranges over plain connections, in one thread."""
        client = self.client
        return RangeReader(client.sign, client.attempt_s, client.stall_s, client.trusted)

    def put_new(self, key: str, data: bytes) -> Head:
        """Write an object that must not be there yet, in one attempt.

        Raises ConflictError if it is there, TransientFault if it may have been written, or not.
        """
        return self.client.put(key, data, "create")

    def put_if(self, key: str, data: bytes, head: Head) -> Head:
        """Replace just the object of `head`, in one attempt; raises as `put_new` does."""
        named = {"e_tag": head.etag, "version": head.version}
        return self.client.put(key, data, {k: v for k, v in named.items() if v is not None})

    def put_file(self, key: str, path: Path) -> Head:
        """Write a file's bytes under a key, whatever is there; large files in parts."""
        with path.open("rb") as file:
            more_s = path.stat().st_size / SLOW_RATE
            patience = replace(self.patience, limit_s=self.patience.limit_s + more_s)
            return patience(self.where(key), lambda: self.client.put_file(key, file))

    def delete(self, key: str) -> None:
        """Remove an object; it is no error if there is none."""
        with suppress(NotFoundError):
            self.patience(self.where(key), lambda: self.client.delete(key))

    @cached_property
    def _pool(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(N_PARALLEL, thread_name_prefix="objects")
