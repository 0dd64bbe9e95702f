"""JupyterLab in a browser: a server, and a page that shows one notebook and is driven as a person would."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

import nbformat

from mqlab.contract.processes import gone
from mqlab.contract.waiting import until_sync

if TYPE_CHECKING:
    from playwright.sync_api import Browser, ConsoleMessage, Page, ViewportSize

TOKEN = "browser-tests"
VIEW: ViewportSize = {"width": 1280, "height": 900}
RUN_S = 240.0
"""The longest that a shipped notebook may take here; waits for events use it, so a quick machine never spends it."""

SETTINGS = {
    # Cells outside the viewport must be in the DOM too.
    "notebook-extension/tracker": {"windowingMode": "none"},
    "apputils-extension/notification": {"fetchNews": "false", "checkForUpdates": False},
}
READY = """() => {
    const kernel = window.jupyterapp?.shell.currentWidget?.sessionContext?.session?.kernel;
    return kernel?.connectionStatus === "connected" && kernel.status === "idle";
}"""
FAILURES = """() => [...window.jupyterapp.shell.currentWidget.content.model.cells]
    .flatMap(cell => cell.toJSON().outputs ?? [])
    .filter(output => output.output_type === "error")
    .map(output => `${output.ename}: ${output.evalue}`)"""
ADDRESS = re.compile(r"http://127\.0\.0\.1:(\d+)/lab")
NOT_OURS = (
    # The page asks for a favicon and a workspace that a new server does not have yet.
    "favicon.ico",
    "/api/workspaces/",
    # Chromium's own, on a machine without a graphics card.
    "GPU stall due to ReadPixels",
)
"""Console errors that JupyterLab and Chromium write on an empty page."""


@dataclass(frozen=True)
class Lab:
    """A JupyterLab server and the folder that it shows."""

    url: str
    root: Path
    pid: int


@contextmanager
def jupyterlab(folder: Path) -> Iterator[Lab]:
    """A server over ``folder``/root, whose settings are its own; it is gone afterwards, with its kernels."""
    root, settings, log = folder / "root", folder / "settings", folder / "server.log"
    root.mkdir()
    for name, values in SETTINGS.items():
        path = settings / "@jupyterlab" / f"{name}.jupyterlab-settings"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(values))
    environment = {
        "JUPYTERLAB_SETTINGS_DIR": settings,
        "JUPYTERLAB_WORKSPACES_DIR": folder / "workspaces",
        "IPYTHONDIR": folder / "ipython",
    }
    options = ["--no-browser", "--allow-root", "--ip=127.0.0.1", "--port=0", f"--IdentityProvider.token={TOKEN}"]
    options += [f"--ServerApp.root_dir={root}", "--LabApp.expose_app_in_browser=True", "--LabApp.news_url=None"]
    options += ["--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate"]
    command = [sys.executable, "-m", "jupyter", "lab", *options]
    environ = {**os.environ, "JUPYTER_PREFER_ENV_PATH": "1", **{name: str(value) for name, value in environment.items()}}
    with log.open("wb") as sink:
        server = subprocess.Popen(command, stdout=sink, stderr=subprocess.STDOUT, env=environ)
    try:
        until_sync(lambda: ADDRESS.search(log.read_text()) or server.poll() is not None, timeout=60)
        found = ADDRESS.search(log.read_text())
        assert found, log.read_text()
        yield Lab(f"http://127.0.0.1:{found[1]}", root, server.pid)
    finally:
        server.terminate()
        server.wait(30)


@dataclass
class Notebook:
    """One notebook, open in a page. Cells are counted as code cells, from 0."""

    page: Page
    lab: Lab
    errors: list[str] = field(default_factory=list)

    def run_all(self) -> None:
        """Run > Run All Cells; returns when every code cell has its number and the kernel idles."""
        self.menu("Run", "Run All Cells")
        self.until(lambda: all(re.search(r"\[\d+\]", prompt) for prompt in self.prompts()), RUN_S)
        self.until_idle()

    def run(self, cell: int, *, wait: bool = True) -> None:
        """Run one cell, and wait for its end."""
        self.page.locator(".jp-CodeCell .cm-content").nth(cell).click()
        before = self.prompts()[cell]
        self.page.keyboard.press("Control+Enter")
        if wait:
            self.until(lambda: self.prompts()[cell] != before and "*" not in self.prompts()[cell])

    def prompts(self) -> list[str]:
        """What stands before each cell: ``[3]:`` when it has run, ``[*]:`` while it runs."""
        return self.page.locator(".jp-CodeCell .jp-InputArea-prompt").all_inner_texts()

    def output(self, cell: int) -> str:
        """The text below a cell."""
        return self.page.locator(".jp-CodeCell").nth(cell).locator(".jp-Cell-outputArea").inner_text().strip()

    def failures(self) -> list[str]:
        """Every error output, as name and message."""
        return self.page.evaluate(FAILURES)

    def menu(self, name: str, item: str) -> None:
        """Choose an item of the menu bar."""
        self.page.get_by_role("menuitem", name=name, exact=True).first.click()
        self.page.locator(".lm-Menu-item", has_text=item).first.click()

    def until_idle(self, timeout: float = 60.0) -> None:
        """Wait until the kernel has nothing to do."""
        self.page.wait_for_function(READY, timeout=timeout * 1000)

    def until(self, predicate: Callable[[], object], timeout: float = 60.0) -> None:
        """Wait while the page lives on: ``waiting.until_sync`` would leave its events unread."""
        deadline = time.monotonic() + timeout
        while not predicate():
            if time.monotonic() > deadline:
                raise TimeoutError(f"not within {timeout:g} s; prompts {self.prompts()}, errors {self.failures()}")
            self.page.wait_for_timeout(50)

    def theme(self, name: str) -> None:
        """``light`` or ``dark``."""
        self.page.evaluate(
            "name => window.jupyterapp.commands.execute('apputils:change-theme', {theme: name})", f"JupyterLab {name.title()}"
        )
        self.page.locator(f"body[data-jp-theme-light='{'true' if name == 'light' else 'false'}']").wait_for(state="attached")

    def screenshot(self, path: Path) -> None:
        """All of the notebook, however long."""
        path.parent.mkdir(parents=True, exist_ok=True)
        height = self.page.evaluate("Math.max(...[...document.querySelectorAll('.jp-WindowedPanel-outer')].map(one => one.scrollHeight))")
        whole: ViewportSize = {"width": VIEW["width"], "height": min(int(height) + 150, 16_000)}
        self.page.set_viewport_size(whole)
        self.page.evaluate("document.querySelectorAll('.jp-WindowedPanel-outer').forEach(one => one.scrollTo(0, 0))")
        self.page.wait_for_function("[...document.querySelectorAll('.jp-WindowedPanel-outer')].every(one => one.scrollTop === 0)")
        self.page.screenshot(path=path)
        self.page.set_viewport_size(VIEW)

    def kernels(self) -> list[str]:
        """Ids of the kernels that the server runs."""
        answer = self.page.request.get(f"{self.lab.url}/api/kernels?token={TOKEN}")
        return [kernel["id"] for kernel in answer.json()]

    def end(self) -> None:
        """Shut the kernels down and leave the page, unsaved."""
        for kernel in self.kernels():
            self.page.request.delete(f"{self.lab.url}/api/kernels/{kernel}?token={TOKEN}")
        self.page.goto("about:blank")


@contextmanager
def opened(browser: Browser, lab: Lab, name: str) -> Iterator[Notebook]:
    """A notebook of the server's folder with its kernel ready. Errors of the console fail it at the end."""
    context = browser.new_context(viewport=VIEW)
    page = context.new_page()
    page.on("dialog", lambda dialog: dialog.accept())
    notebook = Notebook(page, lab)
    page.on("console", lambda message: notebook.errors.extend(_complaint(message)))
    page.on("pageerror", lambda error: notebook.errors.append(f"exception: {error}"))
    try:
        page.goto(f"{lab.url}/lab/tree/{quote(name)}?token={TOKEN}&reset")
        page.locator(".jp-CodeCell").first.wait_for(timeout=60_000)
        page.wait_for_function(READY, timeout=60_000)
        yield notebook
        assert notebook.errors == []
    finally:
        notebook.end()
        context.close()


def _complaint(message: ConsoleMessage) -> list[str]:
    text = f"{message.text} ({message.location.get('url', '')})"
    return [text] if message.type == "error" and not any(known in text for known in NOT_OURS) else []


def write_notebook(path: Path, *cells: str) -> str:
    """A notebook of code cells; returns its name."""
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
    nbformat.write(notebook, path)
    return path.name


def wait_until_gone(notebook: Notebook, pid: int, timeout: float = 15.0) -> None:
    """Return when the process has ended."""
    notebook.until(lambda: gone(pid), timeout)
