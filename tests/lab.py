"""JupyterLab for the tests of tests/browser: a server, a notebook, and what a user does with both."""

import json
import os
import re
import socket
import subprocess
import sys
import time
import urllib.request
from contextlib import contextmanager

from playwright import sync_api

WAIT_MS = 1000 * int(
    os.environ.get("BROWSER_WAIT_S", "120")
)  # for a machine that is busy; nothing waits so long
PHONE_PX = 420


def notebook(*sources):
    cells = [
        {
            "cell_type": "code",
            "id": f"cell{i}",
            "metadata": {},
            "execution_count": None,
            "outputs": [],
            "source": s.strip(),
        }
        for i, s in enumerate(sources)
    ]
    kernel = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
    return json.dumps({"cells": cells, "metadata": kernel, "nbformat": 4, "nbformat_minor": 5})


@contextmanager
def serving(home, theme):
    """A server of its own, without any configuration of the user's, for the notebooks in the folder `work`."""
    settings = home / "settings" / "@jupyterlab"
    (settings / "apputils-extension").mkdir(parents=True)
    (settings / "notebook-extension").mkdir()
    name = {"theme": "JupyterLab Dark" if theme == "dark" else "JupyterLab Light"}
    (settings / "apputils-extension" / "themes.jupyterlab-settings").write_text(json.dumps(name))
    # Every cell is in the page, also those that are not in view.
    (settings / "notebook-extension" / "tracker.jupyterlab-settings").write_text('{"windowingMode": "none"}')
    (home / "config" / "labconfig").mkdir(parents=True)
    (home / "config" / "labconfig" / "page_config.json").write_text(
        json.dumps({"disabledExtensions": {"@jupyterlab/apputils-extension:announcements": True}})
    )
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    env = {
        **os.environ,
        "JUPYTER_CONFIG_DIR": str(home / "config"),
        "JUPYTERLAB_SETTINGS_DIR": str(home / "settings"),
        "JUPYTERLAB_WORKSPACES_DIR": str(home / "workspaces"),
        "JUPYTER_RUNTIME_DIR": str(home / "runtime"),
        "IPYTHONDIR": str(home / "ipython"),
    }
    words = ["--ip=127.0.0.1", f"--port={port}", "--no-browser", "--allow-root"]
    words += [f"--ServerApp.root_dir={home / 'work'}", "--IdentityProvider.token=", "--ServerApp.password="]
    with (home / "log").open("w") as log:
        server = subprocess.Popen(
            [sys.executable, "-m", "jupyterlab", *words], env=env, stdout=log, stderr=log
        )
    address = f"http://127.0.0.1:{port}"
    deadline_s = time.monotonic() + WAIT_MS / 1000
    try:
        while True:
            try:
                urllib.request.urlopen(f"{address}/api/status", timeout=5).close()
                break
            except OSError:
                assert server.poll() is None and time.monotonic() < deadline_s, (home / "log").read_text()
                time.sleep(0.2)
        yield address
    finally:
        server.terminate()
        server.wait(30)


def open_notebook(page, address, name):
    page.goto(f"{address}/lab/tree/{name}?reset")
    page.wait_for_selector(".jp-Notebook .jp-CodeCell")
    page.get_by_text("| Idle").wait_for()  # in the status bar: the kernel is there


def run_cells(page):
    page.get_by_role("menubar").get_by_text("Run", exact=True).click()
    page.locator(".lm-Menu-itemLabel", has_text=re.compile("^Run All Cells$")).click()


def cell_of(page, source):
    return page.locator(".jp-CodeCell", has=page.locator(".jp-Editor", has_text=source)).first


def wait_for_prompt(page, source):
    prompt = cell_of(page, source).locator(".jp-InputPrompt")
    sync_api.expect(prompt).to_have_text(re.compile(r"\[\d+\]"), timeout=WAIT_MS)
