"""Commits of many writers: one winner each time, although answers are lost."""

import random
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial

import pytest

from store import Column, LockedError, Schema, UnreachableError, VersionError
from store.format.manifest import Manifest
from store.remote.pushed import PushRecord
from store.remote.transfer.commit import commit, read_remote

EMPTY = Manifest(Schema({"label": Column("int8")}))
RECORD = PushRecord()


@pytest.mark.parametrize(
    "n_committers, n_rounds", [(6, 3), pytest.param(16, 60, marks=pytest.mark.slow)]
)
def test_of_many_committers_one_wins_each_round(bucket, n_committers, n_rounds):
    """No false conflict, none lost, although a third of the answers does not come."""
    dice = random.Random(1)  # noqa: S311
    lock = threading.Lock()

    def faults(method, path):
        with lock:
            is_lost = method == "PUT" and dice.random() < 0.33
        return "lost" if is_lost else None

    bucket.server.faults = faults
    each = [bucket.open(limit_s=20.0, attempt_s=4.0) for _ in range(n_committers)]

    def run(n, base, number):
        by = {"by": number, "round": n}
        gate.wait()
        try:
            commit(each[number], replace(EMPTY, generation=n, provenance=by), base, RECORD)
        except LockedError:
            return None
        return by

    gate = threading.Barrier(n_committers)
    with ThreadPoolExecutor(n_committers) as pool:
        for n in range(n_rounds):
            base = read_remote(each[0])
            found = pool.map(partial(run, n, base), range(n_committers))
            winners = [winner for winner in found if winner]
            assert winners == [read_remote(each[0]).manifest.provenance]


def test_a_commit_that_another_replaced_is_not_said_to_be_done(bucket):
    """A server that compares and writes in two steps lets both through."""
    ours, theirs = bucket.open(), bucket.open()
    put = ours.put

    def overtaken(*args):
        head = put(*args)
        theirs.delete("zarr.json")
        commit(theirs, replace(EMPTY, generation=7), None, RECORD)
        return head

    ours.put = overtaken
    with pytest.raises(LockedError, match="another writer changed it meanwhile"):
        commit(ours, replace(EMPTY, generation=6), None, RECORD)
    assert read_remote(theirs).manifest.generation == 7


def test_a_commit_that_arrives_damaged_is_written_again(bucket):
    """By whoever wrote it, before it says that it is done."""
    objects = bucket.open()
    base = None
    for generation in range(2):
        flips = iter(["flip-unseen", "flip-unseen", "flip"])
        bucket.server.faults = lambda method, _, flips=flips: method == "PUT" and next(flips, None)
        commit(objects, replace(EMPTY, generation=generation), base, RECORD)
        bucket.server.faults = lambda *_: None
        base = read_remote(objects)
        assert base.manifest.generation == generation


def test_a_commit_without_any_answer_says_that_it_may_be_done(bucket):
    """And the same command finds out."""
    objects = bucket.open(limit_s=1.2, attempt_s=0.3)
    bucket.server.faults = lambda *_: "lost"
    with pytest.raises(UnreachableError) as caught:
        commit(objects, EMPTY, None, RECORD)
    assert "the same command finds out" in caught.value.__notes__[0]


def test_a_store_of_a_newer_format_is_refused(bucket):
    """As a local one is."""
    objects = bucket.open()
    text = b'{"node_type": "group", "attributes": {"trace_store": {"format_version": 9}}}'
    objects.put("zarr.json", text)
    with pytest.raises(VersionError, match="upgrade"):
        read_remote(objects)
