"""The API of the page against NumPy: what it says of a store, its table, traces and scores."""

import json
from concurrent.futures import ThreadPoolExecutor
from threading import Event

import numpy as np
import pytest
from small import one_column, store_columns
from view_traces import (
    ADDRESS,
    HOSTILE,
    N_LAYERS,
    N_ROWS,
    SCHEMA,
    array_of,
    client_of,
    write_traces,
)

from store import Column, StoreWriter
from store.traces.notes import Note, notes_path, read_notes

ROWS = [0, 1, 2, 7]  # of some tokens, none, one
API = "/api/0/1/"


@pytest.fixture(scope="module")
def get(client):
    """Asks the API of the store, and takes JSON."""

    def ask(path, **query):
        answer = client.get(API + path, params=query)
        assert answer.status_code == 200, answer.text
        return answer.json()

    return ask


@pytest.fixture(scope="module")
def get_array(client):
    return lambda path, **query: array_of(client.get(API + path, params=query))


def values_of(traces, name):
    return [row[name] for _, row in traces]


def test_a_store_says_what_it_has(client, traces_path, run_path, golden):
    """Columns with one value a row, scores and thresholds of runs, columns of tokens, pictures,
    layers, maps."""
    text = json.dumps(client.get("/api/stores").json(), indent=1)
    (store,) = client.get("/api/stores").json()["stores"]
    for name, found in (("UUID", store["uuid"]), ("TRACES", traces_path), ("RUN", run_path)):
        text = text.replace(str(found), name)
    golden("stores.json", f"{text}\n")


def test_a_table_has_the_rows_asked_for(get, traces):
    """In their order; NaN is null, infinity a text; scores are joined by id, None where the run
    has none."""
    found = get("table", start=5, count=3, columns="trace_id,question,score,exact")
    assert (found["total"], found["rows"]) == (N_ROWS, [5, 6, 7])
    chosen, columns = traces[5:8], found["columns"]
    assert columns["trace_id"] == [trace_id for trace_id, _ in chosen]
    assert columns["question"] == values_of(chosen, "question")
    assert columns["score"] == [None, *values_of(chosen[1:], "score")]
    assert columns["exact"][1] == "inf"
    scores = [None if i % 2 or i == 6 else float(np.float32(i / 40)) for i in range(N_ROWS)]
    assert get("table", columns="score_gvae", count=N_ROWS)["columns"] == {"score_gvae": scores}


def test_a_filter_and_an_order_apply_together(get, traces):
    """Numbers with NaN last, texts as Python sorts them, in both directions."""
    found = get("table", filter="label >= 0", sort="score", descending="1", count=500)["rows"]
    labelled = [i for i, label in enumerate(values_of(traces, "label")) if label >= 0]
    scores = {i: float(traces[i][1]["score"]) for i in labelled}
    present = [i for i in labelled if scores[i] == scores[i]]
    missing = [i for i in labelled if scores[i] != scores[i]]
    assert found == sorted(present, key=lambda i: -scores[i]) + missing
    answers = values_of(traces, "answer")
    for descending in (False, True):
        found = get("table", sort="answer", descending=int(descending), count=500)["rows"]
        assert found == sorted(range(N_ROWS), key=answers.__getitem__, reverse=descending)


@pytest.mark.parametrize("path", ["levels/label", "map/map_pca"])
def test_a_column_is_sent_once(client, path):
    """The second time the browser's copy is good."""
    etag = client.get(API + path).headers["ETag"]
    again = client.get(API + path, headers={"If-None-Match": etag})
    assert (again.status_code, again.content) == (304, b"")


@pytest.mark.parametrize("path", ["/page/main.js", "/api/stores", "/api/0/1/map/map_pca"])
def test_texts_are_compressed(client, path):
    """For who takes it; not numbers."""
    plain = client.get(path, headers={"Accept-Encoding": "identity"})
    answer = client.get(path)
    assert answer.content == plain.content
    assert "content-encoding" not in plain.headers
    assert (answer.headers.get("content-encoding") == "gzip") is ("map" not in path)
    assert int(answer.headers["content-length"]) <= len(plain.content)


def test_find_goes_on_from_a_position_and_around(get, traces):
    """By id, by text, by row."""
    capitals = [i for i, text in enumerate(values_of(traces, "question")) if "Capital" in text]
    found = get("find", text="capital of", after=capitals[0])
    assert found == {"position": capitals[1], "row": capitals[1], "n": len(capitals)}
    assert get("find", text="capital of", after=capitals[-1])["row"] == capitals[0]
    assert get("find", text="trace-17")["position"] == 17
    assert get("find", text="nowhere at all")["position"] is None
    assert get("find", row=9, filter="label >= 0")["position"] is None
    assert get("find", row=10, filter="label >= 0")["row"] == 10


def test_a_histogram_counts_each_label(get, traces):
    """Of the rows of the filter."""
    found = get("histogram", column="exact", filter="score != nan")
    chosen = [row for _, row in traces if row["score"] == row["score"]]
    for name, wanted in (("0", 0), ("1", 1), ("none", -1)):
        finite = [r for r in chosen if r["label"] == wanted and np.isfinite(r["exact"])]
        assert sum(found["counts"][name]) == len(finite)
    assert found["missing"] == sum(not np.isfinite(row["exact"]) for row in chosen)


def test_a_trace_has_its_texts_as_they_are(get, traces):
    """Hostile ones too: the page makes text nodes of them."""
    for row, (trace_id, values) in enumerate(traces[:9]):
        found = get(f"trace/{row}")
        assert found["texts"]["trace_id"] == trace_id
        assert found["texts"]["question"] == values["question"]
        assert found["references"] == ["Paris", HOSTILE[0]]
        assert found["tokens"] == values["tokens"].tolist()
        assert found["token_texts"] == json.loads(values["token_texts"])
        assert found["prompt_len"] == values["prompt_len"]


@pytest.mark.parametrize("row", ROWS)
def test_columns_of_tokens_have_a_number_each(get_array, traces, row):
    """Arrays are averaged; attention received is an average over those who attend; of a head it
    is that of each layer, and of a trace the first token's."""
    values = traces[row][1]
    np.testing.assert_array_equal(get_array(f"trace/{row}/tokens/logprob"), values["logprob"])
    n = len(values["tokens"])
    received = values["attn_colsum"].astype(np.float32) / np.arange(n, 0, -1)[:, None, None]
    for kind, query, expected in (
        ("tokens", {}, received.mean((1, 2))),
        ("tokens", {"layer": 1}, received[:, 1].mean(1)),
        ("heads", {"layer": 2}, received[:, 2]),
        ("heads", {}, received[0] if n else np.full((N_LAYERS, 2), np.nan)),
    ):
        found = get_array(f"trace/{row}/{kind}/attn_colsum", **query)
        np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_candidates_are_those_of_the_token(get, traces):
    """Ids below 0 are none; they have the texts that the tokens of any trace have."""
    texts = {}
    for _, row in traces:
        texts |= zip(row["tokens"].tolist(), json.loads(row["token_texts"]), strict=True)
    values = traces[7][1]
    for token in range(2):
        found = get(f"trace/7/candidates/{token}")
        known = values["topk_id"][token] >= 0
        assert [item["id"] for item in found] == values["topk_id"][token][known].tolist()
        expected = values["topk_logprob"][token][known].astype(np.float32)
        np.testing.assert_array_equal([item["logprob"] for item in found], expected)
        assert [item["text"] is None for item in found] == [i["id"] not in texts for i in found]


@pytest.mark.parametrize("row", ROWS)
def test_pictures_are_reductions_of_the_states(get_array, traces, row):
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


def strongest(square, threshold):
    """Edges between different tokens, without the first, the strongest first: (weight, i, j)."""
    edges = [(-square[i, j], i, j) for i in range(len(square)) for j in range(1, i)]
    return sorted(edge for edge in edges if -edge[0] >= threshold)


def assert_edges(found, expected):
    assert found["n_above"] == len(expected)
    assert found["weights"] == [-weight for weight, _, _ in expected]
    assert list(zip(found["queries"], found["keys"], strict=True)) == [e[1:] for e in expected]


@pytest.mark.parametrize("row", ROWS)
def test_edges_are_the_strongest_of_the_layer(get, traces, row):
    """Between different tokens, above the threshold."""
    values = traces[row][1]
    n = len(values["tokens"])
    weights = np.zeros((n, n))
    weights[np.tril_indices(n)] = values["attn_mean"][:, 2]
    found = get(f"trace/{row}/attention/2", threshold=0.25, skip_first=1)
    assert_edges(found, strongest(weights, 0.25))


@pytest.mark.parametrize("column", ["attentions", "attn_edges"])
def test_edges_of_one_head(tmp_path, column):
    """From the whole maps, or from the edges that were kept."""
    rng = np.random.default_rng(8)
    n = 6
    maps = np.tril(rng.random((2, 3, n, n))).astype(np.float16)
    ends = np.array([(i, j) for i in range(n) for j in range(i)], np.int32)
    heads = {"item_shape": (2, 3), "axis_names": ("layers", "heads")}
    squares = maps.transpose(2, 3, 0, 1).reshape(-1, 2, 3)
    edges = maps[:, :, ends[:, 0], ends[:, 1]].transpose(2, 0, 1)
    columns = {"tokens": (Column("int32", axis="tokens"), [np.arange(n, dtype=np.int32)])}
    if column == "attentions":
        columns[column] = (Column("float16", axis="squares", **heads), [squares])
    else:
        columns[column] = (Column("float16", axis="edges", **heads), [edges])
        columns["attn_edge_ends"] = (Column("int32", (2,), "edges", ("ends",)), [ends])
    path = store_columns(tmp_path / "s.zarr", columns).path
    client = client_of([path])
    (store,) = client.get("/api/stores").json()["stores"]
    assert store["head_edges"] == {"column": column, "layers": [1, 2], "heads": 3}
    query = {"head": 2, "threshold": 0.3, "skip_first": 1}
    found = client.get(f"{API}trace/0/attention/1", params=query).json()
    expected = strongest(maps[1, 2].astype(np.float32), 0.3)
    assert expected
    assert_edges(found, expected)
    answer = client.get(f"{API}trace/0/attention/1", params={"head": 3})
    assert "head: expected 0 to 2, found 3" in answer.text


@pytest.mark.parametrize("column, layer", [("hs", 1), ("hs", None), ("plain", None)])
def test_nearest_traces_have_the_most_alike_states(tmp_path, column, layer):
    """Of the rows asked for; the trace itself, and states that are not finite, are left out."""
    rng = np.random.default_rng(6)
    hs = rng.standard_normal((30, 2, 5)).astype(np.float16)
    plain = rng.standard_normal((30, 4)).astype(np.float32)
    hs[14, :, 0], plain[14] = np.nan, 0
    columns = {
        "hs": (Column("float16", (2, 5), axis_names=("layers", "hidden")), hs),
        "plain": (Column("float32", (4,)), plain),
        "x": ("float32", np.arange(30, dtype=np.float32)),
    }
    client = client_of([store_columns(tmp_path / "s.zarr", columns).path])
    states = columns[column][1].astype(np.float32)
    states = (states if layer is None else states[:, layer]).reshape(30, -1)
    with np.errstate(invalid="ignore"):
        states /= np.linalg.norm(states, axis=1, keepdims=True)
    asked = [i for i in range(10, 30) if i not in (12, 14)]
    expected = sorted(asked, key=lambda i: -(states[i] @ states[12]))[:8]
    query = {"filter": "x >= 10", "layer": -1 if layer is None else layer}
    found = client.get(f"{API}trace/12/near/{column}", params=query).json()
    assert found["rows"] == expected
    cosines = [states[i] @ states[12] for i in expected]
    np.testing.assert_allclose(found["scores"], cosines, rtol=1e-3)
    assert found["columns"]["trace_id"] == [f"t{i}" for i in expected]
    assert "expected a column of states" in client.get(f"{API}trace/1/near/x").text


def test_a_map_comes_as_bytes(get_array, traces):
    """Its first two coordinates; a mask has a bit for each row that a filter means."""
    points = get_array("map/map_pca")
    assert points.dtype == np.float32
    np.testing.assert_array_equal(points, [p[:2] for p in values_of(traces, "map_pca")])
    bits = get_array("mask", filter='inside(map_pca, "0,-9 9,-9 9,9 0,9")', sort="score")
    mask = np.unpackbits(bits, count=N_ROWS, bitorder="little").astype(bool)
    np.testing.assert_array_equal(mask, points[:, 0] > 0)


def test_colours_are_levels_between_percentiles(client, get_array, traces):
    """255 where there is no value; whole numbers are classes, with their values in a header."""
    scores = np.array(values_of(traces, "score"))
    low, high = np.nanpercentile(scores, [1, 99])
    levels = get_array("levels/score").astype(float)
    assert (levels == 255).tolist() == np.isnan(scores).tolist()
    expected = np.clip((scores - low) / (high - low), 0, 1) * 254
    np.testing.assert_allclose(levels[levels < 255], expected[levels < 255], atol=0.51)
    labels = client.get(f"{API}levels/label")
    assert labels.headers["x-classes"] == "-1,0,1"
    assert list(labels.content) == [label + 1 for label in values_of(traces, "label")]


@pytest.mark.parametrize("threshold", [-0.7, 0.0, 0.7])
def test_mistakes_lie_beyond_the_threshold(get, traces, threshold):
    """All of them are counted; those farthest from it are listed first."""
    found = get("mistakes", column="score", threshold=threshold)
    scores = {i: float(score) for i, score in enumerate(values_of(traces, "score"))}
    rising = sorted((i for i in scores if scores[i] == scores[i]), key=scores.__getitem__)
    right = [i for i in rising if traces[i][1]["label"] == 0 and scores[i] >= threshold]
    wrong = [i for i in rising if traces[i][1]["label"] == 1 and scores[i] < threshold]
    for kind, rows in (("false_alarms", right[::-1]), ("misses", wrong)):
        assert found[kind]["n"] == len(rows)
        assert found[kind]["rows"] == rows[:25]


def test_a_density_counts_rows_with_both_scores(get_array, traces):
    """By rank, so equal orders lie on the diagonal."""
    counts = get_array("density", x="score", y="score")
    assert counts.sum() == sum(score == score for score in values_of(traces, "score"))
    assert np.trace(counts) == counts.sum()


def test_completions_are_those_of_the_filter(get):
    """The page asks while one types."""
    assert get("complete", text="score_g") == ["score_gvae"]


def test_a_tokenizer_gives_texts_that_the_store_lacks(tmp_path):
    """Ids stay ids where one is unknown."""

    class Words:
        def texts(self, ids):
            return [f"<{token}>" for token in ids]

    tokens = [np.array(ids, np.int32) for ids in ([5, 6], [-1, 6])]
    path = one_column(tmp_path / "s.zarr", "tokens", Column("int32", axis="tokens"), tokens).path
    client = client_of([path], tokenizer=Words())
    found = [client.get(f"{API}trace/{row}").json()["token_texts"] for row in (0, 1)]
    assert found == [["<5>", "<6>"], None]


def test_who_waits_keeps_nobody_waiting(traces_path):
    """As for a trace from far away, while somebody else looks at the table."""
    begun, others = Event(), Event()

    class Slow:
        def texts(self, ids):
            begun.set()
            return [str(others.wait(10)) for _ in ids]

    with client_of([traces_path], tokenizer=Slow()) as client, ThreadPoolExecutor() as pool:
        slow = pool.submit(client.get, f"{API}trace/0/candidates/0")
        assert begun.wait(10)
        assert client.get(f"{API}table").json()["total"] == N_ROWS
        assert not slow.done()
        others.set()
        assert slow.result().status_code == 200


def test_what_is_noted_lies_beside_the_store(tmp_path, traces):
    """A label, tags and a text; nothing else is taken, and nothing from another page."""
    path = write_traces(tmp_path / "s.zarr", SCHEMA, traces[:9])
    client = client_of([path])

    def answer(note, origin=ADDRESS):
        headers = {"Origin": origin} if origin else {}
        return client.post(f"{API}trace/7/note", json=note, headers=headers)

    def post(*given):
        return answer(*given).status_code

    def noted():
        return client.get(f"{API}trace/7").json()["note"]

    nothing = {"label": "", "tags": "", "note": ""}
    given = {"label": "1", "tags": " odd  late ", "note": 'he said "no"\r\nthen, yes'}
    assert noted() == nothing
    assert [post(given, origin) for origin in (None, "http://127.0.0.1:9999")] == [403, 403]
    assert post({"note": "x" * 70_000}) == 413
    for wrong in (["label"], {"label": 1}, {"other": ""}, {"label": "2"}):
        assert post(wrong) == 400
    assert not notes_path(path).exists()
    assert post(given) == 200
    kept = {**given, "tags": "odd late"}
    assert noted() == kept
    assert read_notes(notes_path(path)) == {"trace-07": Note(**kept)}
    assert answer({"tags": "late"}).json() == noted() == kept | {"tags": "late"}
    assert answer(nothing).json() == nothing
    assert read_notes(notes_path(path)) == {}


@pytest.mark.parametrize("n", [0, 1])
def test_few_rows(tmp_path, traces, n):
    """None, and one."""
    client = client_of([write_traces(tmp_path / "few.zarr", SCHEMA, traces[:n])])
    (store,) = client.get("/api/stores").json()["stores"]
    base = f"/api/0/{store['generation']}"
    assert store["rows"] == n
    assert client.get(f"{base}/table?columns=label,question").json()["total"] == n
    for path in (
        "histogram?column=score",
        "mistakes?column=score",
        "find?text=a",
        "save/ids",
        "density?x=score&y=exact",
    ):
        assert client.get(f"{base}/{path}").status_code == 200, path


def test_no_labels_no_texts(tmp_path):
    """A store of one column of numbers."""
    values = [np.float16(i) for i in range(5)]
    client = client_of([one_column(tmp_path / "bare.zarr", "x", "float16", values).path])
    assert list(client.get(f"{API}histogram?column=x").json()["counts"]) == ["all"]
    trace = client.get(f"{API}trace/3").json()
    assert (trace["tokens"], trace["token_texts"], trace["references"]) == ([], None, [])
    assert client.get(f"{API}trace/3/candidates/0").json() == []
    assert "label" in client.get(f"{API}mistakes?column=x").json()["error"]
    said = client.get(f"{API}trace/3/attention/0").json()["error"]
    assert "expected the column attn_mean" in said


def test_a_newer_generation_is_offered_and_the_old_one_stays(tmp_path, traces):
    """The page goes on with what it opened."""
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
    assert "load the page again" in client.get("/api/0/3/table").json()["error"]
