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
from typing import Any, TypeVar
from urllib.parse import quote

from store.errors import SchemaError, StoreError
from store.extras import needs_extra
from store.remote.faults import TransientFault, fault_of
from store.remote.source import ENDPOINTS, TRUSTED, UNSIGNED, Location

__all__ = ["Client"]

CONNECT_S = 4.0
STORES = {"s3": "S3Store", "gs": "GCSStore", "az": "AzureStore"}  # others: HTTPStore
SIGNED = timedelta(hours=1)
NOT_SIGNED = UNSIGNED["s3"].lower()
NO_KEYS = {"aws_access_key_id": "none", "aws_secret_access_key": "none"}
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
        self.stall_s = stall_s
        self.trusted = {name: options[name] for name in TRUSTED if name in options}
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
        if self.trusted:
            limits["root_certificate"] = _certificates(self.trusted)
        self._is_public = config.get(NOT_SIGNED, "").lower() == "true"
        try:
            self._store = self._open(config, limits)
            self._signer = self._store
            if self._is_public:  # any keys: they give the address, without what they sign
                self._signer = self._open({**config, NOT_SIGNED: "false", **NO_KEYS}, limits)
        except (obstore.exceptions.BaseError, ValueError, TypeError) as error:
            # not `from error`: the client's text may show what it was configured with
            names = ", ".join(options) or "the environment"
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

    def attempt(self, key: str, work: Callable[[Any, Any], T]) -> T:
        """What `work` makes of the module obstore and its object for the bucket, in one attempt.

        It is about the object `key`. Raises StoreError, or TransientFault.
        """
        _check_process()
        try:
            return work(self._obs, self._store)
        except self._faults as error:
            # not `from error`: the client's text may have a signed address
            raise fault_of(error, self.where(key)) from None
        except BaseException as error:
            if type(error).__name__ != "PanicException":  # of Rust: it cannot be imported
                raise
            found = f"{self.where(key)}: the client failed on its settings"
            raise StoreError(f"{found}; check endpoint and credentials") from None

    def sign(self, key: str) -> str | None:
        """A URL of an object for whoever has it, for an hour; None: there is none."""
        if self.location.is_read_only:
            return f"{self.location}/{quote(key)}"
        with suppress(StoreError, TransientFault):  # not with every kind of credentials
            url = self.attempt(key, lambda obs, _: obs.sign(self._signer, "GET", key, SIGNED))
            return url.partition("?")[0] if self._is_public else url
        return None


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
