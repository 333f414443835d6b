"""Helpers that the tests of one folder share."""

import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from character_tokenizer import build_tokenizer

from store.sources.huggingface.source import HuggingFaceSource


@pytest.fixture(scope="session")
def tokenizer():
    """One token per character."""
    return build_tokenizer()


@pytest.fixture
def stop_after(monkeypatch):
    """Interrupt extractions before a row, counted in each run, for a while."""
    rows = HuggingFaceSource.rows

    @contextmanager
    def stopped(n_rows):
        def stopping(self, start=0):
            for i, row in enumerate(rows(self, start)):
                if i == n_rows:
                    raise KeyboardInterrupt
                yield row

        with monkeypatch.context() as patched:
            patched.setattr(HuggingFaceSource, "rows", stopping)
            yield

    return stopped
