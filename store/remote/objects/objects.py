"""Objects of a bucket as bytes under names, as a store has files.

Every call ends within its stated time: with what was asked for, whole, or with a named error. What
can be repeated is repeated; a conditional write is not, since the first may have been done though
its answer was lost (`store.remote.transfer.commit`). An `Objects` may be used by many threads, and
not in a child that was forked after its parent used one: there every call raises StoreError.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from mmap import mmap
from typing import Any, NamedTuple, TypeVar

from store.errors import CorruptError, NotFoundError
from store.remote.objects.address import (
    ENDPOINTS,
    TIMEOUT_VARIABLE,
    TRUSTED,
    check_endpoint,
    parse_url,
    source_settings,
)
from store.remote.objects.faults import SHORTER, ConflictError, NoBucketError, TransientFault
from store.remote.objects.obstore_client import Client
from store.remote.objects.retry import READ_LIMIT_S, RetryPolicy, limit_of

__all__ = [
    "Head",
    "Objects",
    "open_objects",
]


T = TypeVar("T")


class Head(NamedTuple):
    """An object without its bytes; `etag` and `version` name its content for conditions."""

    size: int
    etag: str | None
    version: str | None = None


OPEN_S = 9.0  # an address that leads nowhere is refused within 10 s
OPEN_ATTEMPT_S = 4.0
ATTEMPT_S = 50.0  # of one request
STALL_S = 10.0  # without a byte
SMALL_BYTES = 64 * 1024 * 1024  # what `get` holds in memory, unless told
N_PARALLEL = 64

# for emulators; with `skip_signature` the client would still ask for a token before it writes
ANONYMOUS = '{"disable_oauth": true, "client_email": "", "private_key": "", "private_key_id": ""}'


def open_objects(
    url: str,
    *,
    endpoint: str | None = None,
    usual_s: float = READ_LIMIT_S,
    more_s: float = 0.0,
    settings: Mapping[str, str] | None = None,
) -> "Objects":
    """Open the objects under an address, and look whether its bucket answers.

    Parameters
    ----------
    url
        s3://, gs:// or az://BUCKET/PATH; or https://HOST/PATH, of which objects are only read.
    endpoint
        Address of the server, if not the provider's (default: one of `ENDPOINTS`). One of GCS is
        asked without a signature, unless the environment names credentials.
    usual_s
        Seconds that an operation takes at most with all attempts, unless the settings say.
    more_s
        Those that each attempt gets in addition. A server answers a write when it has all of it:
        until then no byte comes.
    settings
        Variables as `source_settings` gives them, in place of the environment's.

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
    options = source_settings(url) if settings is None else dict(settings)
    limit_s = limit_of(options.pop(TIMEOUT_VARIABLE, None), usual_s)
    found = [options.pop(name, None) for name in ENDPOINTS.get(location.scheme, ())]
    endpoint = endpoint or next(filter(None, found), None)
    if endpoint is not None:
        check_endpoint(endpoint)
        if location.scheme == "gs" and not options.keys() - {*TRUSTED}:
            options["service_account_key"] = ANONYMOUS
        options["endpoint"] = endpoint
    attempt_s = min(ATTEMPT_S, limit_s / 2.5)
    quick = Client(location, options, min(attempt_s, OPEN_ATTEMPT_S), STALL_S)
    _check_bucket(Objects(quick, RetryPolicy(min(limit_s, OPEN_S), quick.attempt_s)))
    attempt_s += more_s
    client = Client(location, options, attempt_s, STALL_S + more_s)
    return Objects(client, RetryPolicy(limit_s + 2 * more_s, attempt_s))


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

    def __init__(self, client: Client, policy: RetryPolicy) -> None:
        self.client = client
        self.location = client.location
        self.where = client.where
        self.policy = policy

    def _do(self, key: str, work: Callable[[Any, Any], T]) -> T:
        """What `work` makes of obstore and its object for the bucket."""
        return self.policy(self.where(key), partial(self.client.attempt, key, work))

    def head(self, key: str) -> Head:
        """Size and identity of an object; raises NotFoundError."""
        return self._do(key, lambda obs, store: _head_of(obs.head(store, key)))

    def list(self) -> dict[str, Head]:
        """Key -> head of all objects."""

        def work(obs: Any, store: Any) -> dict[str, Head]:
            return {meta["path"]: _head_of(meta) for part in obs.list(store) for meta in part}

        return self._do("", work)

    def heads(self, keys: Collection[str]) -> dict[str, Head]:
        """Key -> head of those of some objects that are there."""
        if not self.location.is_read_only:
            listed = self.list()
            return {key: listed[key] for key in keys if key in listed}
        found: dict[str, Head] = {}

        def ask(key: str) -> None:
            with suppress(NotFoundError):
                found[key] = self.head(key)

        with ThreadPoolExecutor(N_PARALLEL) as pool:
            list(pool.map(ask, keys))
        return found

    def get(self, key: str, max_bytes: int = SMALL_BYTES) -> bytes:
        """The bytes of a small object, in one request; raises NotFoundError, CorruptError."""
        return self.get_with_head(key, max_bytes)[0]

    def get_with_head(self, key: str, max_bytes: int = SMALL_BYTES) -> tuple[bytes, Head]:
        """As `get`, and the identity of just these bytes."""

        def work(obs: Any, store: Any) -> tuple[bytes, Head]:
            answer = obs.get(store, key)
            head = _head_of(answer.meta)
            if head.size > max_bytes:
                raise CorruptError(
                    f"{self.where(key)}: expected at most {max_bytes:,} bytes, found {head.size:,}"
                )
            return bytes(_whole(answer.bytes(), head.size)), head

        return self._do(key, work)

    def get_tail(self, key: str, n_bytes: int) -> tuple[memoryview, int]:
        """The last bytes of an object, fewer if it is shorter, and its size."""
        if self.location.scheme == "az":  # which knows no ranges from the end
            size = self.head(key).size
            return self.get_range(key, max(0, size - n_bytes), size), size

        def work(obs: Any, store: Any) -> tuple[memoryview, int]:
            answer = obs.get(store, key, options={"range": {"suffix": n_bytes}})
            size = answer.meta["size"]
            return _whole(answer.bytes(), min(size, n_bytes)), size

        return self._do(key, work)

    def get_range(self, key: str, start: int, end: int, etag: str | None = None) -> memoryview:
        """The bytes `start:end` of an object, exactly, as a read-only view.

        Raises ConflictError if the object is not that of `etag` any more, NotFoundError if it is
        not there, CorruptError if it is shorter, UnreachableError if it did not come whole within
        the stated time.
        """
        if start == end:
            return memoryview(b"")

        def work(obs: Any, store: Any) -> memoryview:
            options: dict[str, Any] = {"range": (start, end)}
            if etag and not etag.startswith("W/"):  # a weak one fulfils no condition
                options["if_match"] = etag
            answer = obs.get(store, key, options=options)
            found = answer.meta["e_tag"]
            if etag and found and found.strip('"') != etag.strip('"'):  # it knows no conditions
                raise ConflictError(f"{self.where(key)}: expected {etag}, found another object")
            if answer.meta["size"] < end:
                raise CorruptError(f"{self.where(key)}: {SHORTER}")
            return _whole(answer.bytes(), end - start)

        return self._do(key, work)

    async def fetch_ranges(
        self, key: str, starts: Sequence[int], ends: Sequence[int]
    ) -> Sequence[memoryview]:
        """Byte ranges of one object, in an event loop: one call of the client for all of them.

        A thread that waits takes more processor time, and a call each up to twice as much.
        """
        attempt = partial(self.client.attempt_ranges, key, starts, ends)
        return await self.policy.wait_for(self.where(key), attempt)

    def put(self, key: str, data: bytes | mmap, expected: Head | None = None) -> Head:
        """Write an object where just that of a head is; None: where none is. In one attempt.

        Raises ConflictError if it is not so, TransientFault if it may have been written, or not.
        """
        mode: Any = "create"
        if expected is not None:
            named = {"e_tag": expected.etag, "version": self._version(key, expected)}
            mode = {name: value for name, value in named.items() if value is not None}

        def work(obs: Any, store: Any) -> Head:
            found = obs.put(store, key, data, mode=mode, use_multipart=False)
            return Head(len(data), found["e_tag"], found["version"])

        return self.client.attempt(key, work)

    def _version(self, key: str, expected: Head) -> str | None:
        """The version of an object; GCS has its conditions on that, and its lists do not tell."""
        if self.location.scheme != "gs" or expected.version is not None:
            return expected.version
        found = self.head(key)
        if found.etag != expected.etag:
            raise ConflictError(f"{self.where(key)}: another writer was first")
        return found.version

    def delete(self, key: str) -> None:
        """Remove an object; it is no error if there is none."""
        with suppress(NotFoundError):
            self._do(key, lambda obs, store: obs.delete(store, key))


def _head_of(meta: Any) -> Head:
    etag = meta["e_tag"]
    if etag and not etag.endswith('"'):  # lists of Azure have none of the quotes of conditions
        etag = f'"{etag}"'
    return Head(meta["size"], etag, meta["version"])


def _whole(data: Any, n_bytes: int) -> memoryview:
    """A view of an answer, which has to have so many bytes."""
    if len(data) != n_bytes:
        raise TransientFault(f"{len(data):,} bytes of {n_bytes:,}")
    return memoryview(data)
