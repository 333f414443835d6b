"""What provenance says of where traces come from, and whether two such records agree."""

from store.traces.origin import Difference, find_difference, origins_of, records_of, share_equal

FULL = {
    "source": "huggingface",
    "weights_sha256": "a",
    "layers": [1, 2],
    "layer_convention": "l",
    "trace_convention": "t",
    "prompt_template": "{question}",
}
ORIGIN = {key: value for key, value in FULL.items() if key != "source"} | {"chat_template": None}


def test_the_origin_is_what_decides_whether_traces_are_comparable():
    assert origins_of(FULL) == [ORIGIN]
    monday, friday = (
        origins_of(FULL | {"chat_prompt": f"Today is {day}. {{question}}"})
        for day in ("Monday 3 May", "Friday 12 June")
    )
    assert monday == friday != [ORIGIN]
    assert monday != origins_of(FULL | {"chat_prompt": "Lie. {question}"})
    assert origins_of({}) == [{}]


def test_a_merged_store_has_the_origins_of_its_parts_each_once():
    """Through all merges."""
    other = FULL | {"weights_sha256": "b"}
    merged = {"source": "merge", "stores": [FULL, {"source": "merge", "stores": [other, FULL]}]}
    assert origins_of(merged) == [ORIGIN, ORIGIN | {"weights_sha256": "b"}]


def test_stores_of_somebody_else_s_are_no_merge():
    """Provenance is free: what is not as `merge` writes it says nothing of an origin."""
    assert origins_of(FULL | {"stores": ["a"]}) == [ORIGIN]
    assert origins_of({"source": "merge", "stores": []}) == [{}]


def test_the_first_difference_from_the_origin_most_like_it():
    known = [ORIGIN | {"weights_sha256": "b", "layers": [3]}, ORIGIN]
    assert find_difference(known, ORIGIN) is None
    changed = ORIGIN | {"layers": [2, 3]}
    assert find_difference(known, changed) == Difference("layers", [1, 2], [2, 3])
    assert find_difference(known, changed, read=[2]) is None


def test_what_one_side_does_not_record_is_not_compared():
    assert find_difference([ORIGIN], {}) is None
    assert find_difference([{}], ORIGIN) is None
    assert find_difference([], ORIGIN) is None


def test_what_all_parts_have_is_kept_once():
    """Each part is given back as it was: keys that one lacks, and 1 for True, are no equals."""
    parts = [
        {"uuid": "u", "rows": 1, "model": "m", "layers": [1], "is_chat": True, "note": None},
        {"uuid": "u", "rows": 1, "model": "m", "layers": [1], "is_chat": 1, "part": [2, 2]},
    ]
    common, rests = share_equal(parts, ("uuid", "rows"))
    assert common == {"model": "m", "layers": [1]}
    assert rests[1] == {"uuid": "u", "rows": 1, "is_chat": 1, "part": [2, 2]}
    merged = {"source": "merge", "stores": rests, "common": common}
    assert list(records_of(merged)) == parts
    assert list(records_of(merged | {"common": "mine"})) == rests
    nested = {"source": "merge", "stores": [{"stores": rests}], "common": merged | {"stores": 1}}
    assert list(records_of(nested)) == parts
