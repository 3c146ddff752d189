"""The browser of these tests."""

import shutil

import pytest

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


@pytest.fixture(scope="module")
def browser():
    """A headless Chromium."""
    if CHROMIUM is None:
        # What a page looks like can be measured in a browser alone. What it says is held by tests/render.
        pytest.skip("no Chromium on this machine")
    from playwright import sync_api

    with sync_api.sync_playwright() as play:
        flags = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
        browser = play.chromium.launch(executable_path=CHROMIUM, args=flags)
        yield browser
        browser.close()
