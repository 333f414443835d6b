"""The source of a store: its address, and the settings with which the client asks for it.

Readers that share a fetching process may have different environments. So each sends its own
settings, and mirrors are named by them: what one source may read is never served to another.
"""

import hashlib
import json
import os
import re
from collections.abc import Mapping
from configparser import ConfigParser
from configparser import Error as ConfigParserError
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from store.errors import SchemaError

__all__ = [
    "ENDPOINTS",
    "SCHEMES",
    "SETTINGS",
    "TIMEOUT_VARIABLE",
    "TRUSTED",
    "UNSIGNED",
    "Location",
    "check_endpoint",
    "parse_url",
    "source_name",
    "source_settings",
]

ENDPOINTS = {  # the first that is set counts
    "s3": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"),
    "gs": ("GOOGLE_BASE_URL",),
    "az": ("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT"),
}
UNSIGNED = {  # set to "true": no credentials are looked for, as public buckets need none
    "s3": "AWS_SKIP_SIGNATURE",
    "gs": "GOOGLE_SKIP_SIGNATURE",
    "az": "AZURE_SKIP_SIGNATURE",
}
_NAMES = {  # variables that the client reads to know the server, and as whom to ask it
    "s3": r"AWS_(ENDPOINT(_URL(_S3)?)?|(DEFAULT_)?REGION|ACCESS_KEY_ID|SECRET_ACCESS_KEY|ROLE_ARN"
    r"|(SESSION_)?TOKEN|WEB_IDENTITY_TOKEN_FILE|CONTAINER_CREDENTIALS_(RELATIVE|FULL)_URI"
    r"|CONTAINER_AUTHORIZATION_TOKEN_FILE|METADATA_ENDPOINT|SERVER_SIDE_ENCRYPTION"
    r"|SSE_(CUSTOMER_KEY_BASE64|KMS_KEY_ID|BUCKET_KEY_ENABLED)|SKIP_SIGNATURE|ENDPOINT_URL_STS"
    r"|ROLE_SESSION_NAME|REQUEST_PAYER|VIRTUAL_HOSTED_STYLE_REQUEST|UNSIGNED_PAYLOAD|S3_EXPRESS"
    r"|IMDSV1_FALLBACK|CHECKSUM_ALGORITHM|CONDITIONAL_PUT|COPY_IF_NOT_EXISTS"
    r"|DISABLE_(TAGGING|BULK_DELETE))",
    "gs": r"SERVICE_ACCOUNT|GOOGLE_(SERVICE_ACCOUNT(_PATH|_KEY)?|APPLICATION_CREDENTIALS|BASE_URL"
    r"|BEARER_TOKEN|SKIP_SIGNATURE)",
    "az": r"AZURE_(STORAGE_(ACCOUNT_(NAME|KEY)|(ACCESS|MASTER|SAS)_KEY|(SAS_)?TOKEN|USE_EMULATOR)"
    r"|(STORAGE_)?(CLIENT_(ID|SECRET)|TENANT_ID|AUTHORITY_(ID|HOST)|ENDPOINT)|OBJECT_ID"
    r"|MSI_(ENDPOINT|RESOURCE_ID)|FEDERATED_TOKEN_FILE|USE_AZURE_CLI|SKIP_SIGNATURE"
    r"|USE_FABRIC_ENDPOINT|FABRIC_(TOKEN_SERVICE_URL|WORKLOAD_HOST|SESSION_TOKEN"
    r"|CLUSTER_IDENTIFIER)|CREDENTIAL_TYPE|STORAGE_ENCRYPTION_KEY|DISABLE_TAGGING)",
}
TRUSTED = ("SSL_CERT_FILE", "SSL_CERT_DIR")  # whose certificates
TIMEOUT_VARIABLE = "TRACE_STORE_TIMEOUT"  # of a reader's requests
_IS_CREDENTIAL = re.compile(
    r"AWS_(ACCESS_KEY_ID|WEB_IDENTITY_TOKEN_FILE|CONTAINER_CREDENTIALS_\w+)"
)
_PROFILE = {  # of its keys, those that the client has settings for
    "aws_access_key_id": "AWS_ACCESS_KEY_ID",
    "aws_secret_access_key": "AWS_SECRET_ACCESS_KEY",
    "aws_session_token": "AWS_SESSION_TOKEN",
    "region": "AWS_REGION",
    "endpoint_url": "AWS_ENDPOINT_URL",
}
SETTINGS = re.compile(r"(AWS|AZURE|GOOGLE|SSL_CERT)_\w+|SERVICE_ACCOUNT")  # of any source
_FILE = re.compile(r"\w+_(FILE|PATH|DIR|CREDENTIALS)|(GOOGLE_)?SERVICE_ACCOUNT")
_AWS_TOKENS = ("AWS_SESSION_TOKEN", "AWS_TOKEN")
_PASSING = r"AWS_(SESSION_)?TOKEN|AZURE_STORAGE_(SAS_KEY|(SAS_)?TOKEN)|GOOGLE_BEARER_TOKEN|SSL_\w+"
_PASSING += f"|{TIMEOUT_VARIABLE}"


def source_settings(url: str) -> dict[str, str]:
    """The settings for an address that the environment has; raises SchemaError.

    A line end in one would have the client panic. Values are not shown.
    """
    scheme = url.partition("://")[0]
    names = _NAMES.get(scheme, "")
    found = {
        k: value
        for k, value in os.environ.items()
        if value and (k in (*TRUSTED, TIMEOUT_VARIABLE) or re.fullmatch(names, k))
    }
    if scheme == "s3" and not any(map(_IS_CREDENTIAL.fullmatch, found)):
        is_public = found.get(UNSIGNED[scheme], "").lower() == "true"
        found = _of_profile(with_keys=not is_public) | found
    for name, value in found.items():
        if not value.isprintable() and not name.endswith("SERVICE_ACCOUNT_KEY"):  # that is JSON
            raise SchemaError(
                f"{name}: expected one line of text, found a line end or another character that "
                "no request can hold; set it again without"
            )
    # the process that opens a file may be at work in another directory
    return {k: str(Path(v).absolute()) if _FILE.fullmatch(k) else v for k, v in found.items()}


def _of_profile(*, with_keys: bool) -> dict[str, str]:
    """What the files of AWS's own programs say of the profile `AWS_PROFILE`, or the usual one.

    Raises SchemaError if there is none, or it says only where keys come from.
    https://docs.aws.amazon.com/sdkref/latest/guide/file-format.html
    """
    chosen = os.environ.get("AWS_PROFILE")
    name = chosen or "default"
    folder = Path.home() / ".aws"
    config = os.environ.get("AWS_CONFIG_FILE") or folder / "config"
    credentials = os.environ.get("AWS_SHARED_CREDENTIALS_FILE") or folder / "credentials"
    parser = ConfigParser(interpolation=None)
    try:
        parser.read([Path(config).expanduser(), Path(credentials).expanduser()])
    except (ConfigParserError, UnicodeDecodeError) as error:
        raise SchemaError(
            f"{config}, {credentials}: expected profiles of AWS, found another file "
            f"({type(error).__name__}); mend it, or set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
        ) from None
    profile: dict[str, str] = {}
    for section in (f"profile {name}", name):
        if section in parser:
            profile |= parser[section]
    if chosen and not profile:
        raise SchemaError(
            f"AWS_PROFILE: expected a profile of ~/.aws, found none of the name {chosen!r:.80}"
        )
    others = [key for key in profile if key.startswith(("sso_", "role_arn", "credential_process"))]
    if with_keys and others and "aws_access_key_id" not in profile:
        raise SchemaError(
            f"the profile {name!r:.80} of AWS: expected keys, found {others[0]}, which only AWS's "
            f'own program follows; run eval "$(aws configure export-credentials --profile {name} '
            '--format env)"'
        )
    named = {new: profile[old] for old, new in _PROFILE.items() if old in profile}
    return {k: v for k, v in named.items() if with_keys or k in ("AWS_REGION", "AWS_ENDPOINT_URL")}


def source_name(url: str, settings: Mapping[str, str]) -> str:
    """The name of a source on the disk, 16 characters, of which no secret can be read."""
    # Tokens, and keys that come with one, are renewed every few hours, and do not say of which role
    # they are. Mirrors have to outlast that, so they are no part of the name: the fetching process
    # asks the server with each reader's own before it serves anything.
    with_token = r"|AWS_\w+_KEY(_ID)?" if any(map(settings.get, _AWS_TOKENS)) else ""
    named = {k: v for k, v in settings.items() if not re.fullmatch(_PASSING + with_token, k)}
    for name in [name for name in named if name.startswith(("GOOGLE_", "SERVICE_"))]:
        file = Path(named[name])
        if not name.endswith("_KEY") and file.is_file():  # another account's may come in its place
            named[name] = file.read_text()
    return _slow_digest(json.dumps(named, sort_keys=True), url)


@lru_cache
def _slow_digest(text: str, salt: str) -> str:
    """A digest that takes 50 ms and 16 MB, as whoever guesses at a password could compare it."""
    return hashlib.scrypt(text.encode(), salt=salt.encode(), n=2**14, r=8, p=1, dklen=8).hex()


SCHEMES = ("s3", "gs", "az", "https", "http")
EXPECTED = "expected s3://, gs:// or az://BUCKET/PATH, or https://HOST/PATH"
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,221}")
_PORT = r"([1-5]?\d{1,4}|6[0-4]\d{3}|65[0-4]\d\d|655[0-2]\d|6553[0-5])"
_HOST = re.compile(rf"(\[[0-9A-Fa-f:.]+\]|[\w.-]+)(:{_PORT})?", re.ASCII)
_PART = r"(?!\s|\.+(/|$))[^/?#%*\\\x00-\x1f\x7f]+(?<!\s)"
_PATH = re.compile(rf"({_PART}(/{_PART})*)?")
MAX_PATH = 512  # a key has at most 1024 bytes, and a store's own paths take some of them


class Location(NamedTuple):
    """Where a store is: one of `SCHEMES`, a bucket, and a path in it.

    The bucket is the container of Azure, or host and port of a web server. The `prefix` has no
    slashes at its ends, and may be empty.
    """

    scheme: str
    bucket: str
    prefix: str

    @property
    def is_read_only(self) -> bool:
        """Whether it is on a web server, where nothing is written or listed."""
        return self.scheme in ("http", "https")

    def __str__(self) -> str:
        return f"{self.scheme}://{self.bucket}/{self.prefix}".rstrip("/")


def parse_url(url: str) -> Location:
    """Take an address apart.

    Raises SchemaError if it is none of a store, or holds more than bucket and path, as a secret is.
    """
    scheme, _, rest = url.partition("://")
    bucket, _, path = rest.partition("/")
    location = Location(scheme.lower(), bucket, path.strip("/"))
    if "@" in bucket or "?" in url or "#" in url:
        raise SchemaError(
            f"{EXPECTED}, found more than that, which is not shown; "
            "give credentials in the environment"
        )
    place = _HOST if location.is_read_only else _BUCKET
    is_address = location.scheme in SCHEMES and place.fullmatch(bucket)
    is_short = len(path.encode(errors="replace")) <= MAX_PATH
    if not is_address or not is_short or not _PATH.fullmatch(location.prefix):
        raise SchemaError(
            f"{EXPECTED}, with a path of plain names of at most {MAX_PATH} bytes, found {url!r:.99}"
        )
    return location


def check_endpoint(endpoint: str) -> None:
    """Raise SchemaError unless a text is the address of a server; what it is may be a secret."""
    with suppress(SchemaError):
        if parse_url(endpoint).is_read_only:
            return
    raise SchemaError(
        "endpoint: expected http://HOST:PORT or https://HOST, found another text; check "
        "--endpoint, or the variable that names it"
    )
