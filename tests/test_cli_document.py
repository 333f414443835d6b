"""docs/cli.md says what `--help` says."""

import sys

import pytest

from tests.cli_document import DOCUMENT, render


@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="argparse has another layout")
def test_the_document_of_the_commands_is_up_to_date():
    """If it is not, run `make docs`."""
    assert DOCUMENT.read_text() == render(), "run make docs"
