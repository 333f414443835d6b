"""Readers of one node whose environments name different servers, or different users of one."""

import os
import pickle
import re
from pathlib import Path

import pytest
from object_server import ObjectServer
from oracle import SCHEMA, assert_batch, write_store
from pushing import pull, push
from small import complaint

from store import SchemaError, StoreError, TraceStore, UnreachableError
from store.cli.main import main
from store.remote.objects.address import SETTINGS, UNSIGNED, source_name, source_settings
from store.remote.objects.faults import ConflictError
from store.remote.objects.objects import open_objects

GS_URL = "gs://bucket/traces.zarr"
S3_URL = "s3://bucket/traces.zarr"


@pytest.fixture(autouse=True)
def trusted(monkeypatch):
    """Whom this machine trusts is no matter here."""
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    monkeypatch.delenv("SSL_CERT_DIR", raising=False)


@pytest.fixture
def open_at(tmp_path, monkeypatch):
    """Opens what the environment names, with one cache directory for all."""
    pytest.importorskip("obstore", reason="pip install '.[remote]'")

    def open_at(url, **environment):
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        return TraceStore.open(url, 10**8, cache_dir=tmp_path / "cache")

    return open_at


@pytest.fixture
def pushed(bucket, rows, tmp_path):
    """The values of a store that is in the bucket."""
    push(write_store(tmp_path / "t.zarr", SCHEMA, rows[:4]), bucket.open())
    return [row for _, row in rows[:4]]


def test_two_servers_with_the_same_url_are_two_sources(open_at, rows, tmp_path):
    """Also while the process that fetches from the first lives, and where nobody listens."""
    open_stores = []
    for first in (0, 4):
        gcs = ObjectServer("bucket")
        local = write_store(tmp_path / f"{first}.zarr", SCHEMA, rows[first : first + 4])
        push(local, open_objects(GS_URL, endpoint=gcs.url))
        open_stores.append(open_at(GS_URL, GOOGLE_BASE_URL=gcs.url))
    for store, first in zip(open_stores, (0, 4), strict=True):
        assert_batch(store.read(range(4)), [row for _, row in rows[first : first + 4]])
    with pytest.raises(UnreachableError, match="refuses connections"):
        open_at(GS_URL, GOOGLE_BASE_URL="http://127.0.0.1:9")


@pytest.mark.parametrize("token", ["", "TOKEN"])
def test_who_may_not_read_gets_nothing_of_the_mirror(bucket, open_at, pushed, token):
    """Of one who may, and whose process fetches: with long-lived keys, and with passing ones."""
    bucket.server.key = "AKIASECRET"
    at = {"AWS_ENDPOINT_URL": bucket.server.url, "AWS_SESSION_TOKEN": token}
    store = open_at(bucket.url(), **at)
    store.read(range(4))
    with pytest.raises(StoreError, match="expected permission"):
        open_at(bucket.url(), AWS_ACCESS_KEY_ID="AKIAOTHER")
    assert_batch(store.read(range(4)), pushed)


def test_keys_that_are_renewed_keep_the_mirror(bucket, open_at, pushed):
    """Whoever has read goes on with the newer ones."""
    tokens = {"AWS_SESSION_TOKEN": "1"}, {"AWS_SESSION_TOKEN": "2"}
    old = open_at(bucket.url(), AWS_ENDPOINT_URL=bucket.server.url, **tokens[0])
    bucket.server.key = "AKIANEW"
    new = open_at(bucket.url(), AWS_ACCESS_KEY_ID="AKIANEW", **tokens[1])
    assert new.path == old.path
    for store in (old, new):
        assert_batch(store.read(range(4)), pushed)


def test_a_reader_sends_its_own_settings_not_those_of_a_pickle(bucket, open_at, pushed, tmp_path):
    """Nothing of a secret is written, neither into the cache directory nor by pickle."""
    store = open_at(bucket.url(), AWS_ENDPOINT_URL=bucket.server.url)
    store.read(range(4))
    text = pickle.dumps(store)
    files = [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]
    assert len(files) > 10
    assert b"SECRET" not in text + b"".join(path.read_bytes() for path in files)
    assert_batch(pickle.loads(text).read([1]), pushed[1:2])  # noqa: S301, our own


def test_a_name_differs_with_what_the_server_is_told(monkeypatch, tmp_path):
    """Server, region, account, key; and the account that lies in a file; nothing else."""
    file = tmp_path / "account.json"
    file.write_text("first")
    base = {"AWS_REGION": "a", "AWS_ACCESS_KEY_ID": "AKIA", "AWS_SECRET_ACCESS_KEY": "k"}
    names = [source_name(S3_URL, base), source_name(GS_URL, base), source_name(S3_URL, {})]
    changes = (*base, "AWS_ENDPOINT_URL")
    names += [source_name(S3_URL, base | {change: "other"}) for change in changes]
    of_file = {"GOOGLE_APPLICATION_CREDENTIALS": str(file)}
    names.append(source_name(GS_URL, of_file))
    file.write_text("second")
    names.append(source_name(GS_URL, of_file))
    assert len({*names}) == len(names)
    assert all(len(name) == 16 and "AKIA" not in name for name in names)
    monkeypatch.setenv("AWS_BATCH_JOB_ID", "1")
    assert "AWS_BATCH_JOB_ID" not in source_settings(S3_URL)


def test_how_long_readers_wait_is_a_setting(bucket, monkeypatch):
    """It comes before what is usual for a command."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", bucket.server.url)
    assert open_objects(bucket.url()).policy.limit_s == 600
    monkeypatch.setenv("TRACE_STORE_TIMEOUT", "33")
    assert open_objects(bucket.url(), usual_s=9).policy.limit_s == 33


@pytest.mark.parametrize(
    "stub, scheme, forms",
    [
        ("_aws", "s3", ["AWS_{}"]),
        ("_gcs", "gs", ["GOOGLE_{}"]),
        ("_azure", "az", ["AZURE_{}", "AZURE_STORAGE_{}"]),
    ],
)
def test_every_option_of_the_client_is_of_its_reader(monkeypatch, stub, scheme, forms):
    """None is left to the environment of whoever started the fetching process."""
    obstore = pytest.importorskip("obstore", reason="the extra remote is not installed")
    text = Path(obstore.__file__).with_name("_store").joinpath(f"{stub}.pyi").read_text()
    config = re.search(r"Config\(TypedDict.*?(?=\nclass )", text, re.DOTALL)[0]
    options = set(re.findall(r"^    (?!aws_)([a-z]\w+):", config, re.MULTILINE))
    for name in options - {"bucket", "container_name", "sts_endpoint"}:
        names = {form.format(name.upper()) for form in forms}
        for one in names:
            monkeypatch.setenv(one, "1")
        assert names & source_settings(f"{scheme}://b/t.zarr").keys(), name
        assert all(map(SETTINGS.fullmatch, names))


def test_files_that_settings_name_are_of_the_readers_directory(monkeypatch, tmp_path):
    """The process that opens them may be at work in another one."""
    for name in ("GOOGLE_APPLICATION_CREDENTIALS", "SERVICE_ACCOUNT"):
        monkeypatch.setenv(name, "key.json")
    found = []
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "key.json").write_text(folder)
        monkeypatch.chdir(tmp_path / folder)
        settings = source_settings(GS_URL)
        assert set(settings.values()) == {str(tmp_path / folder / "key.json")}
        found.append(source_name(GS_URL, settings))
    assert found[0] != found[1]


PROFILES = {
    "config": "[default]\nregion = eu-west-1\n[profile lab]\nregion = us-west-2\n"
    "endpoint_url = http://127.0.0.1:9\n[profile single]\nsso_session = lab\n",
    "credentials": "[default]\naws_access_key_id = AKIADEFAULT\naws_secret_access_key = %x\n"
    "[lab]\naws_access_key_id = AKIALAB\naws_secret_access_key = y\naws_session_token = z\n",
}


@pytest.fixture
def profiles(monkeypatch, tmp_path):
    """A home with profiles of AWS, and an environment without keys."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".aws").mkdir()
    for name, text in PROFILES.items():
        (tmp_path / ".aws" / name).write_text(text)
    return tmp_path / ".aws"


def test_profiles_of_aws_are_read(profiles, monkeypatch):
    """The usual one, or the one that is named; what the environment says counts."""
    keys = {"AWS_ACCESS_KEY_ID": "AKIADEFAULT", "AWS_SECRET_ACCESS_KEY": "%x"}
    assert source_settings(S3_URL) == {"AWS_REGION": "eu-west-1"} | keys
    assert source_settings(GS_URL) == {}
    monkeypatch.setenv("AWS_PROFILE", "lab")
    monkeypatch.setenv("AWS_REGION", "eu-north-1")
    assert source_settings(S3_URL) == {
        "AWS_ACCESS_KEY_ID": "AKIALAB",
        "AWS_SECRET_ACCESS_KEY": "y",
        "AWS_SESSION_TOKEN": "z",
        "AWS_REGION": "eu-north-1",
        "AWS_ENDPOINT_URL": "http://127.0.0.1:9",
    }
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAENV")
    assert source_settings(S3_URL)["AWS_ACCESS_KEY_ID"] == "AKIAENV"
    assert "AWS_SESSION_TOKEN" not in source_settings(S3_URL)
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.setenv("AWS_SKIP_SIGNATURE", "true")
    without_keys = {"AWS_SKIP_SIGNATURE", "AWS_REGION", "AWS_ENDPOINT_URL"}
    assert source_settings(S3_URL).keys() == without_keys


@pytest.mark.parametrize(
    "name, credentials, found",
    [
        ("nobody", "", "none of the name 'nobody'"),
        ("single", "", "export-credentials"),
        ("default", "hidden\n", "credentials: expected profiles"),
    ],
)
def test_what_is_wrong_with_a_profile_is_named(profiles, monkeypatch, name, credentials, found):
    """And nothing of it is shown."""
    (profiles / "credentials").write_text(credentials)
    monkeypatch.setenv("AWS_PROFILE", name)
    text = complaint(SchemaError, source_settings, S3_URL)
    assert found in text
    assert "hidden" not in text


def test_who_has_no_credentials_is_told_of_public_buckets(bucket, profiles, monkeypatch):
    """Not that whoever tells of the machine's role does not answer."""
    for path in profiles.iterdir():
        path.unlink()
    monkeypatch.setenv("AWS_METADATA_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(StoreError, match="found none in the environment"):
        open_objects(bucket.url(), endpoint=bucket.server.url)


def test_a_public_bucket_is_read_without_credentials(
    bucket, open_at, pushed, tmp_path, monkeypatch
):
    """No request has a signature: not those of the client, nor the plain ones for chunks."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    bucket.server.refuses_signed = True
    store = open_at(bucket.url(), AWS_ENDPOINT_URL=bucket.server.url, AWS_SKIP_SIGNATURE="true")
    assert_batch(store.read(range(4)), pushed)
    path = tmp_path / "copy.zarr"
    monkeypatch.delenv("AWS_SKIP_SIGNATURE")
    monkeypatch.setenv("AWS_ENDPOINT_URL", bucket.server.url)
    for name in UNSIGNED.values():  # which the command sets
        monkeypatch.setenv(name, "")
    assert main(["pull", bucket.url(), str(path), "--anonymous"]) == 0
    assert_batch(TraceStore.open(path).read(range(4)), pushed)


def test_a_bucket_whose_objects_are_elsewhere_is_read(bucket, open_at, pushed, tmp_path):
    """Every read is sent on to a server that knows neither conditions nor signatures."""
    bucket.server.faults = lambda method, path: "moved"
    store = open_at(bucket.url(), AWS_ENDPOINT_URL=bucket.server.url)
    assert_batch(store.read(range(4)), pushed)
    pull(bucket.open(), tmp_path / "copy.zarr")
    copy = TraceStore.open(tmp_path / "copy.zarr")
    assert_batch(copy.read(range(4)), pushed)
    (key,) = [key for key in bucket.open().list() if key.startswith("label/c/")]
    with pytest.raises(ConflictError):
        bucket.open().get_range(key, 0, 1, etag='"of another state"')
