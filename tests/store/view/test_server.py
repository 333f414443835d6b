"""The API of the page against NumPy, and what it refuses."""

import csv
import json
from concurrent.futures import ThreadPoolExecutor
from threading import Event

import numpy as np
import pytest
from view_traces import (
    ADDRESS,
    HOSTILE,
    N_LAYERS,
    N_ROWS,
    SCHEMA,
    TOKEN,
    array_of,
    client_of,
    write_traces,
)

from store import Column, Schema, TraceStore

pytest.importorskip("starlette", reason="the extra view is not installed: pip install '.[view]'")
pytest.importorskip("httpx2", reason="the test client needs the extra test")

from store.view.safety import HEADERS, check_request


class Words:
    """A tokenizer whose tokens are words."""

    def texts(self, ids):
        return [f"<{token}>" for token in ids]


@pytest.fixture(scope="module")
def generation(traces_path):
    return TraceStore.open(traces_path).generation


@pytest.fixture(scope="module")
def get(client, generation):
    """Asks the API of the store, and takes JSON."""

    def ask(path, **query):
        answer = client.get(f"/api/0/{generation}/{path}", params=query)
        assert answer.status_code == 200, answer.text
        return answer.json()

    return ask


@pytest.fixture(scope="module")
def get_array(client, generation):
    return lambda path, **query: array_of(client.get(f"/api/0/{generation}/{path}", params=query))


def error_of(client, path, **query):
    answer = client.get(path, params=query or None)
    assert 400 <= answer.status_code < 500
    return answer.json()["error"]


class TestWhatIsShown:
    """Numbers and texts are those of the store."""

    def test_a_store_says_what_it_has(self, client):
        """Columns with one value a row, scores of runs, columns of tokens, pictures, layers."""
        (store,) = client.get("/api/stores").json()["stores"]
        names = {column["name"]: column for column in store["columns"]}
        single = [name for name, column in SCHEMA.columns.items() if column.is_single]
        assert set(names) == {"trace_id", *single, "score_gvae", "score_my_model"}
        flags = {"is_score": True, "is_of_run": True}
        assert names["score_gvae"] == {"name": "score_gvae", "kind": "number", **flags}
        assert store["rows"] == N_ROWS
        assert store["tokens"] == [
            "logprob", "token_label", "attn_colsum", "topk_logprob", "lens_entropy",
        ]  # fmt: skip
        assert store["pictures"] == ["norm", "cosine", "lens_entropy"]
        assert store["attention"] == list(range(1, N_LAYERS + 1))
        assert store["newest"] == store["generation"]

    def test_a_table_has_the_rows_asked_for(self, get, traces):
        """In their order; NaN is null, infinity a text."""
        found = get("table", start=5, count=3, columns="trace_id,question,score,exact,score_gvae")
        assert found["total"] == N_ROWS
        assert found["rows"] == [5, 6, 7]
        chosen = traces[5:8]
        columns = found["columns"]
        assert columns["trace_id"] == [trace_id for trace_id, _ in chosen]
        assert columns["question"] == [row["question"] for _, row in chosen]
        assert columns["score"][0] is None
        np.testing.assert_array_equal(columns["score"][1:], [r["score"] for _, r in chosen[1:]])
        assert columns["exact"][1] == "inf"
        assert columns["score_gvae"] == [None, None, None]  # 6: no score; 5 and 7: not in the run

    def test_a_filter_and_an_order_apply_together(self, get, traces):
        """Rows that the filter means, sorted; NaN last."""
        found = get("table", filter="label >= 0", sort="score", descending="1", count=500)
        labelled = [i for i, (_, row) in enumerate(traces) if row["label"] >= 0]
        scores = {i: float(traces[i][1]["score"]) for i in labelled}
        present = [i for i in labelled if scores[i] == scores[i]]
        missing = [i for i in labelled if scores[i] != scores[i]]
        assert found["rows"] == sorted(present, key=lambda i: -scores[i]) + missing

    def test_texts_sort_as_python_sorts_them(self, get, traces):
        """In both directions."""
        answers = [row["answer"] for _, row in traces]
        found = get("table", sort="answer", count=500)
        assert found["rows"] == sorted(range(N_ROWS), key=answers.__getitem__)
        found = get("table", sort="answer", descending="1", count=500)
        assert [answers[row] for row in found["rows"]] == sorted(answers, reverse=True)

    def test_scores_are_joined_by_id(self, get, run_path, traces):
        """None where the run has none."""
        expected = [None] * N_ROWS
        with (run_path / "scores.csv").open(newline="") as file:
            for line in csv.DictReader(file):
                row = [trace_id for trace_id, _ in traces].index(line["trace_id"])
                expected[row] = float(np.float32(line["gvae"])) if line["gvae"] else None
        found = get("table", columns="score_gvae", count=N_ROWS)
        assert found["columns"]["score_gvae"] == expected

    @pytest.mark.parametrize("path", ["levels/label", "map/map_pca"])
    def test_a_column_is_sent_once(self, client, generation, path):
        """The second time the browser's copy is good."""
        path = f"/api/0/{generation}/{path}"
        etag = client.get(path).headers["ETag"]
        again = client.get(path, headers={"If-None-Match": etag})
        assert again.status_code == 304
        assert again.content == b""

    @pytest.mark.parametrize("path", ["/page/main.js", "/api/stores", "/api/0/1/map/map_pca"])
    def test_texts_are_compressed(self, client, path):
        """For who takes it; not numbers."""
        plain = client.get(path, headers={"Accept-Encoding": "identity"})
        answer = client.get(path)
        assert answer.content == plain.content
        assert "content-encoding" not in plain.headers
        assert (answer.headers.get("content-encoding") == "gzip") is ("map" not in path)
        assert int(answer.headers["content-length"]) <= len(plain.content)

    def test_find_goes_on_from_a_position_and_around(self, get, traces):
        """By id, by text, by row."""
        assert get("find", text="trace-17")["position"] == 17
        rows = [i for i, (_, row) in enumerate(traces) if "fox" in json.dumps(row["question"])]
        assert rows == []
        capitals = [i for i, (_, row) in enumerate(traces) if "Capital" in row["question"]]
        found = get("find", text="capital of", after=capitals[0])
        assert found == {"position": capitals[1], "row": capitals[1], "n": len(capitals)}
        assert get("find", text="capital of", after=capitals[-1])["row"] == capitals[0]
        assert get("find", text="nowhere at all")["position"] is None
        assert get("find", row=9, filter="label >= 0")["position"] is None
        assert get("find", row=10, filter="label >= 0")["row"] == 10

    def test_a_histogram_counts_each_label(self, get, traces):
        """Of the rows of the filter."""
        found = get("histogram", column="exact", filter="score != nan")
        chosen = [row for _, row in traces if row["score"] == row["score"]]
        for name, wanted in (("0", 0), ("1", 1), ("none", -1)):
            finite = [r for r in chosen if r["label"] == wanted and np.isfinite(r["exact"])]
            assert sum(found["counts"][name]) == len(finite)
        assert found["missing"] == sum(not np.isfinite(row["exact"]) for row in chosen)

    def test_a_trace_has_its_texts_as_they_are(self, get, traces):
        """Hostile ones too: the page makes text nodes of them."""
        for row, (trace_id, values) in enumerate(traces[:9]):
            found = get(f"trace/{row}")
            assert found["texts"]["trace_id"] == trace_id
            assert found["texts"]["question"] == values["question"]
            assert found["references"] == ["Paris", HOSTILE[0]]
            assert found["tokens"] == values["tokens"].tolist()
            assert found["token_texts"] == json.loads(values["token_texts"])
            assert found["prompt_len"] == values["prompt_len"]

    @pytest.mark.parametrize("row", [0, 1, 2, 7])
    def test_columns_of_tokens_have_a_number_each(self, get_array, traces, row):
        """Arrays are averaged; attention received is an average over those who attend."""
        values = traces[row][1]
        np.testing.assert_array_equal(get_array(f"trace/{row}/tokens/logprob"), values["logprob"])
        received = values["attn_colsum"].astype(np.float32)
        n = len(received)
        means = received.reshape(n, 2 * N_LAYERS).mean(1) / np.arange(n, 0, -1)
        found = get_array(f"trace/{row}/tokens/attn_colsum")
        np.testing.assert_allclose(found, means, rtol=1e-6)
        of_layer = received[:, 1].mean(1) / np.arange(n, 0, -1)
        found = get_array(f"trace/{row}/tokens/attn_colsum", layer=1)
        np.testing.assert_allclose(found, of_layer, rtol=1e-6)

    def test_candidates_have_the_texts_that_the_store_knows(self, get, traces):
        """Of the tokens of any trace; others have none."""
        texts = {}
        for _, row in traces:
            texts |= zip(row["tokens"].tolist(), json.loads(row["token_texts"]), strict=True)
        found = [item for token in range(2) for item in get(f"trace/7/candidates/{token}")]
        assert found
        for item in found:
            assert (item["text"] is None) == (item["id"] not in texts)

    def test_candidates_are_those_of_the_token(self, get, traces):
        """Ids below 0 are none."""
        values = traces[7][1]
        found = get("trace/7/candidates/1")
        known = values["topk_id"][1] >= 0
        assert [item["id"] for item in found] == values["topk_id"][1][known].tolist()
        expected = values["topk_logprob"][1][known].astype(np.float32)
        np.testing.assert_array_equal([item["logprob"] for item in found], expected)

    @pytest.mark.parametrize("row", [0, 1, 2, 7])
    def test_pictures_are_reductions_of_the_states(self, get_array, traces, row):
        """Norms, cosines to the layer below, and the stored entropies."""
        states = traces[row][1]["hidden_states"].astype(np.float64)
        norms = np.linalg.norm(states, axis=2)
        np.testing.assert_allclose(get_array(f"trace/{row}/layers/norm"), norms, rtol=1e-5)
        cosines = get_array(f"trace/{row}/layers/cosine")
        expected = (states[:, 1:] * states[:, :-1]).sum(2) / (norms[:, 1:] * norms[:, :-1])
        np.testing.assert_allclose(cosines[:, 1:], expected, rtol=1e-4, atol=1e-6)
        assert np.isnan(cosines[:, 0]).all()
        lens = get_array(f"trace/{row}/layers/lens_entropy")
        np.testing.assert_array_equal(lens, traces[row][1]["lens_entropy"])

    @pytest.mark.parametrize("row", [0, 1, 2, 7])
    def test_edges_are_the_strongest_of_the_layer(self, get, traces, row):
        """Between different tokens, above the threshold."""
        values = traces[row][1]
        n = len(values["tokens"])
        weights = np.zeros((n, n))
        weights[np.tril_indices(n)] = values["attn_mean"][:, 2]
        found = get(f"trace/{row}/attention/2", threshold=0.25, skip_first=1)
        expected = sorted(
            (-weights[i, j], i, j) for i in range(n) for j in range(1, i) if weights[i, j] >= 0.25
        )
        assert found["n_above"] == len(expected)
        np.testing.assert_array_equal(found["weights"], [-weight for weight, _, _ in expected])
        pairs = set(zip(found["queries"], found["keys"], strict=True))
        assert pairs == {(i, j) for _, i, j in expected}

    def test_a_map_comes_as_bytes(self, client, get_array, traces):
        """Its first two coordinates; the store says of what they are."""
        points = get_array("map/map_pca")
        expected = np.array([row["map_pca"][:2] for _, row in traces])
        assert points.dtype == np.float32
        np.testing.assert_array_equal(points, expected)
        (found,) = client.get("/api/stores").json()["stores"][0]["maps"]
        assert found == {
            "name": "map_pca", "column": "hs_last", "layer": 2, "method": "pca",
            "variance": [0.5, 0.25],
        }  # fmt: skip

    def test_colours_are_levels_between_percentiles(self, client, generation, get_array, traces):
        """255 where there is no value; whole numbers are classes, with their values in a header."""
        scores = np.array([row["score"] for _, row in traces])
        low, high = np.nanpercentile(scores, [1, 99])
        levels = get_array("levels/score").astype(float)
        assert (levels == 255).tolist() == np.isnan(scores).tolist()
        expected = np.clip((scores - low) / (high - low), 0, 1) * 254
        np.testing.assert_allclose(levels[levels < 255], expected[levels < 255], atol=0.51)
        labels = client.get(f"/api/0/{generation}/levels/label")
        assert labels.headers["x-classes"] == "-1,0,1"
        assert list(labels.content) == [row["label"] + 1 for _, row in traces]

    def test_a_mask_has_a_bit_for_each_row(self, get_array, traces):
        """Of the rows that a filter means, whatever the order."""
        bits = get_array("mask", filter='inside(map_pca, "0,-9 9,-9 9,9 0,9")', sort="score")
        mask = np.unpackbits(bits, count=N_ROWS, bitorder="little").astype(bool)
        assert mask.tolist() == [bool(row["map_pca"][0] > 0) for _, row in traces]

    @pytest.mark.parametrize("threshold", [-0.7, 0.0, 0.7])
    def test_mistakes_lie_beyond_the_threshold(self, get, traces, threshold):
        """All of them are counted; those farthest from it are listed first."""
        found = get("mistakes", column="score", threshold=threshold)
        scores = {i: float(row["score"]) for i, (_, row) in enumerate(traces)}
        rising = sorted((i for i in scores if scores[i] == scores[i]), key=scores.__getitem__)
        right = [i for i in rising if traces[i][1]["label"] == 0 and scores[i] >= threshold]
        wrong = [i for i in rising if traces[i][1]["label"] == 1 and scores[i] < threshold]
        for kind, rows in (("false_alarms", right[::-1]), ("misses", wrong)):
            assert found[kind]["n"] == len(rows)
            assert found[kind]["rows"] == rows[:25]

    def test_a_density_counts_rows_with_both_scores(self, get_array, traces):
        """By rank, so equal orders lie on the diagonal."""
        counts = get_array("density", x="score", y="score")
        assert counts.sum() == sum(row["score"] == row["score"] for _, row in traces)
        assert np.trace(counts) == counts.sum()

    def test_completions_are_those_of_the_filter(self, get):
        """The page asks while one types."""
        assert get("complete", text="score_g") == ["score_gvae"]

    def test_a_tokenizer_gives_texts_that_the_store_lacks(self, tmp_path):
        """Ids stay ids where one is unknown."""
        schema = Schema({"tokens": Column("int32", axis="tokens")})
        rows = [("a", {"tokens": np.array([5, 6], np.int32)})]
        rows.append(("b", {"tokens": np.array([-1, 6], np.int32)}))
        path = write_traces(tmp_path / "ids.zarr", schema, rows)
        client = client_of([path], tokenizer=Words())
        assert client.get("/api/0/1/trace/0").json()["token_texts"] == ["<5>", "<6>"]
        assert client.get("/api/0/1/trace/1").json()["token_texts"] is None

    def test_who_waits_keeps_nobody_waiting(self, traces_path, generation):
        """As for a trace from far away, while somebody else looks at the table."""
        begun, others = Event(), Event()

        class Slow:
            def texts(self, ids):
                begun.set()
                return [str(others.wait(10)) for _ in ids]

        about = f"/api/0/{generation}"
        with client_of([traces_path], tokenizer=Slow()) as client, ThreadPoolExecutor() as pool:
            slow = pool.submit(client.get, f"{about}/trace/0/candidates/0")
            assert begun.wait(10)
            assert client.get(f"{about}/table").json()["total"] == N_ROWS
            assert not slow.done()
            others.set()
            assert slow.result().status_code == 200


class TestAwkwardStores:
    """Nothing that a store may lack is an error."""

    @pytest.mark.parametrize("n", [0, 1])
    def test_few_rows(self, tmp_path, traces, n):
        """None, and one."""
        client = client_of([write_traces(tmp_path / "few.zarr", SCHEMA, traces[:n])])
        (store,) = client.get("/api/stores").json()["stores"]
        base = f"/api/0/{store['generation']}"
        assert store["rows"] == n
        found = client.get(f"{base}/table", params={"columns": "label,question"}).json()
        assert found["total"] == n
        for path in ("histogram?column=score", "mistakes?column=score", "find?text=a", "save/ids"):
            assert client.get(f"{base}/{path}").status_code == 200, path
        assert client.get(f"{base}/density?x=score&y=exact").status_code == 200

    def test_no_labels_no_texts(self, tmp_path):
        """A store of one column of numbers."""
        schema = Schema({"x": Column("float16")})
        rows = [(f"r{i}", {"x": np.float16(i)}) for i in range(5)]
        client = client_of([write_traces(tmp_path / "bare.zarr", schema, rows)])
        found = client.get("/api/0/1/histogram?column=x").json()
        assert list(found["counts"]) == ["all"]
        trace = client.get("/api/0/1/trace/3").json()
        assert (trace["tokens"], trace["token_texts"], trace["references"]) == ([], None, [])
        assert client.get("/api/0/1/trace/3/candidates/0").json() == []
        assert "label" in error_of(client, "/api/0/1/mistakes?column=x")
        assert "expected the column attn_mean" in error_of(client, "/api/0/1/trace/3/attention/0")

    def test_a_newer_generation_is_offered_and_the_old_one_stays(self, tmp_path, traces):
        """The page goes on with what it opened."""
        from store import StoreWriter

        path = write_traces(tmp_path / "grows.zarr", SCHEMA, traces[:3])
        client = client_of([path])
        with StoreWriter.open(path) as writer:
            writer.append(*traces[3])
        (store,) = client.get("/api/stores").json()["stores"]
        assert (store["generation"], store["newest"], store["rows"]) == (1, 2, 3)
        assert client.get("/api/0/1/table").json()["total"] == 3
        assert client.get("/api/0/2/table").json()["total"] == 4
        (store,) = client.get("/api/stores?newest=1").json()["stores"]
        assert (store["generation"], store["rows"]) == (2, 4)
        for i in range(4, 8):
            with StoreWriter.open(path) as writer:
                writer.append(*traces[i])
            assert client.get(f"/api/0/{i - 1}/table").json()["total"] == i + 1
        assert client.get("/api/0/1/table").json()["total"] == 3
        assert "load the page again" in error_of(client, "/api/0/3/table")


class TestWhatIsRefused:
    """Only this machine, only with the token, only reading."""

    @pytest.mark.parametrize(
        "headers, status",
        [
            ({"Host": "evil.example"}, 403),
            ({"Host": "evil.example:8000"}, 403),
            ({"Host": "127.0.0.1.evil.example"}, 403),
            ({"Host": "127.0.0.1:80@evil.example"}, 403),
            ({"Host": ""}, 403),
            ({"Origin": "http://evil.example"}, 403),
            ({"Origin": "http://127.0.0.1:9999"}, 403),
            ({"Origin": "null"}, 403),
            ({"Sec-Fetch-Site": "cross-site"}, 403),
            ({"Sec-Fetch-Site": "same-site"}, 403),  # another port of this machine
            ({"Sec-Fetch-Site": "same-origin"}, 200),
            ({"Origin": ADDRESS}, 200),
            ({"Host": "localhost:8000", "Origin": "http://localhost:8000"}, 200),
            ({"Host": "localhost:1234"}, 200),  # ssh -L
            ({"Host": "[::1]:8000"}, 200),
        ],
    )
    def test_other_hosts_and_origins(self, client, headers, status):
        """A foreign name that was bound to 127.0.0.1, and pages of others."""
        cookie = {"Cookie": f"view={TOKEN}"}
        answer = client.get("/api/stores", headers=headers | cookie)
        assert answer.status_code == status

    @pytest.mark.parametrize("path", ["/", "/page/main.js", "/api/stores", "/api/0/1/table"])
    @pytest.mark.parametrize("token", [None, "", "wrong", "ü"])
    def test_no_token(self, traces_path, path, token):
        """Nothing is handed out without it, not even the page."""
        client = client_of([traces_path], token=None)
        answer = client.get(path, params={} if token is None else {"token": token})
        assert answer.status_code == 401
        assert "set-cookie" not in answer.headers

    def test_the_token_becomes_a_cookie(self, traces_path):
        """That scripts and other sites cannot use."""
        client = client_of([traces_path], token=None)
        answer = client.get("/", params={"token": TOKEN})
        assert answer.status_code == 200
        cookie = answer.headers["set-cookie"]
        assert "HttpOnly" in cookie
        assert "SameSite=Strict" in cookie
        assert client.get("/api/stores").status_code == 200

    @pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
    def test_anything_but_reading(self, client, method):
        """Whatever the path."""
        origin = {"Origin": ADDRESS}
        assert client.request(method, "/api/stores", headers=origin).status_code == 405
        assert client.request(method, "/", headers=origin).status_code == 405

    @pytest.mark.parametrize(
        "path",
        [
            "/page/../server.py",
            "/page/%2e%2e/server.py",
            "/page/..%2fserver.py",
            "/page/%2e%2e%2fserver.py",
            "/page//etc/passwd",
            "/page/%2fetc%2fpasswd",
            "/page/",
            "/page/nothing.js",
            "/../../setup.cfg",
            "/api/0/1/trace/../../../../etc/passwd",
        ],
    )
    def test_other_files(self, client, path):
        """Only those of the page's folder have a name here."""
        answer = client.get(path)
        assert answer.status_code == 404
        assert b"import" not in answer.content

    def test_every_answer_is_guarded(self, client):
        """Refusals and errors too."""
        for path in ("/", "/page/main.js", "/api/stores", "/api/9/1/table", "/nothing"):
            answer = client.get(path)
            for name, value in HEADERS.items():
                assert answer.headers[name] == value, (path, name)

    def test_what_is_not_there(self, client, traces_path, golden_lines):
        """In one line that the page shows."""

        def refuse(address):
            return error_of(client, address).replace(str(traces_path), "STORE")

        golden_lines("not_there.txt", refuse)

    def test_a_filter_of_100_000_characters(self, client):
        """The URL is not even parsed."""
        refusal = check_request("GET", {"host": "localhost"}, TOKEN, TOKEN, "view", 100_000)
        assert refusal.status == 414
        assert client.get("/api/0/1/table?filter=" + "(" * 10_000).status_code == 414
        assert "at most 1000" in error_of(client, "/api/0/1/table?filter=" + "(" * 5000)
