"""The cookie among those of other servers, and the file that opens the browser."""

import pytest

pytest.importorskip("starlette", reason="the extra view is not installed: pip install '.[view]'")

from store.view.safety import check_request
from store.view.serve import redirect_file

FOREIGN = ['prefs={"theme": "dark"}', "foo=bar baz", "theme[dark]=1", "noequals", "é=1", "path=/"]


@pytest.mark.parametrize("foreign", [*FOREIGN, "; ".join(FOREIGN), "view2=x", " ;;=;"])
def test_cookies_of_other_servers_do_not_matter(foreign):
    """Whatever their form, before ours and after it; alone they open nothing."""

    def status(cookies):
        headers = {"host": "127.0.0.1:80", "cookie": cookies}
        refusal = check_request("GET", headers, None, "right", "view")
        return 200 if refusal is None else refusal.status

    assert status(f"{foreign}; view=right") == 200
    assert status(f"view=right; {foreign}") == 200
    assert status(f"{foreign}; view=wrong") == 401
    assert status(foreign) == 401


def test_a_browser_is_led_to_the_page_by_a_private_file():
    """It is there as long as the server."""
    with redirect_file('http://127.0.0.1:1/?token=a"&b#row=1') as path:
        assert path.stat().st_mode & 0o777 == 0o600
        assert "token=a&quot;&amp;b#row=1" in path.read_text()
    assert not path.exists()
