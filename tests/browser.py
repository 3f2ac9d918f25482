"""JupyterLab on this machine's loopback, and a Chromium that uses it as a person would: helpers of browser tests.

The fixtures over them, `lab` and `tab`, are in conftest.py. Nothing may leave the machine: addresses other than
loopback and files are refused and remembered, and `tab` fails its test for each of them. What is not here is
Playwright's own: `tab.screenshot(path=...)`, `tab.set_viewport_size(...)`, locators.
"""

import contextlib
import importlib.util
import json
import os
import pathlib
import shutil
import subprocess
import sys
import time
import typing
import urllib.parse

import nbformat

from rawrag_utils import paths

VIEWPORT = {"width": 1280, "height": 800}
LIGHT, DARK = "JupyterLab Light", "JupyterLab Dark"
PATIENCE = 60  # seconds for what takes two or three on an idle machine
# In a tag, an attribute, a style, a link, a formula, a template; with marks that reorder text, and addresses outside.
HOSTILE = (
    "<script>window.ran=1</script>",
    "<img src=x onerror=window.ran=1>",
    "</style></textarea></table><svg onload=window.ran=1>",
    "\"'><iframe srcdoc='<script>top.ran=1</script>'></iframe>",
    "<img src=http://outside.invalid/a.png>",
    "[press](javascript:window.ran=1)",
    "javascript:window.ran=1",
    r"$\href{javascript:window.ran=1}{press}$",
    "{{ 7 * 7 }} ${ran=1} &lt;b&gt;",
    "\u202eright to left\u202c \u2067so is this\u2069",
)
# No news, no look at newer releases; the theme is added by `open_notebook`. A cell that is not rendered, because it
# lies outside of what is seen, has no text to be read, so all are rendered.
SETTINGS = {
    "@jupyterlab/notebook-extension:tracker": {"windowingMode": "none"},
    "@jupyterlab/apputils-extension:notification": {"fetchNews": "false", "checkForUpdates": False},
    "@jupyterlab/apputils-extension:themes": {"adaptive-theme": False},
}


class Lab(typing.NamedTuple):
    """A running JupyterLab: its address, its token, the folder it shows, its settings, and where runs leave files."""

    url: str
    token: str
    folder: pathlib.Path
    settings: pathlib.Path
    runs: pathlib.Path


def missing():
    """Why browser tests cannot run here and what to do about it, or None.

    >>> missing() is None or "install" in missing()
    True
    """
    if not importlib.util.find_spec("playwright"):
        return "no Playwright for Python: make setup, or pip install playwright (none of its browsers is needed)"
    if not shutil.which("chromium"):
        return "no chromium on PATH: apt-get install chromium, or install it by other means under that name"
    return None


# ---------------------------------------------------------------------------------------------------------- JupyterLab


@contextlib.contextmanager
def serving(place):
    """A JupyterLab over a copy of the notebooks in the folder `place`, apart from the user's; ends with the block."""
    folder, settings, runs = (place / name for name in ("notebooks", "settings", "runs"))
    shutil.copytree(paths.ROOT / "notebooks", folder, ignore=shutil.ignore_patterns(".ipynb_checkpoints"))
    settings.mkdir()
    token, log = os.urandom(16).hex(), place / "log.txt"
    own = {f"JUPYTER_{kind}_DIR": str(place / kind.lower()) for kind in ("CONFIG", "DATA", "RUNTIME")}
    environment = {
        **{name: value for name, value in os.environ.items() if name not in ("MPLBACKEND", "RAWRAG_RUN_FOLDER")},
        **own,
        "IPYTHONDIR": str(place / "ipython"),
        "JUPYTER_PREFER_ENV_PATH": "1",
        "PYTHONPATH": str(paths.ROOT),
        "RAWRAG_RUNS": str(runs),
    }
    options = {
        "ServerApp.ip": "127.0.0.1",
        "ServerApp.port": 0,  # the system knows one that is free
        "ServerApp.root_dir": folder,
        "IdentityProvider.token": token,
        "LabApp.app_settings_dir": settings,
        "LabApp.expose_app_in_browser": True,  # `idle` asks it
        "LabApp.extension_manager": "readonly",
        "LabApp.news_url": "None",
        "LabApp.check_for_updates_class": "jupyterlab.NeverCheckForUpdate",
        # Should these tests be killed, kernels and then the server end by themselves.
        "MappingKernelManager.cull_idle_timeout": 300,
        "MappingKernelManager.cull_connected": True,
        "ServerApp.shutdown_no_activity_timeout": 300,
    }
    command = [sys.executable, "-m", "jupyterlab", "--no-browser", *(f"--{k}={v}" for k, v in options.items())]
    command += ["--allow-root"] if os.geteuid() == 0 else []
    with log.open("wb") as output, subprocess.Popen(command, env=environment, stdout=output, stderr=output) as process:
        try:
            yield Lab(_address(process, place / "runtime", log), token, folder, settings, runs)
        finally:
            process.terminate()  # it ends its kernels first
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()


def _address(process, runtime, log):
    """The address of a server that just started, from the file that it writes once its port is bound."""
    file, end = runtime / f"jpserver-{process.pid}.json", time.monotonic() + PATIENCE
    while time.monotonic() < end and process.poll() is None:
        with contextlib.suppress(FileNotFoundError, json.JSONDecodeError):  # not there yet, or half-written
            return json.loads(file.read_text(encoding="utf-8"))["url"]
        time.sleep(0.05)
    raise AssertionError(f"JupyterLab did not start:\n{log.read_text(encoding='utf-8')}")


def put(lab, name, *sources):
    """Write a notebook with these code cells where `lab` shows it; returns its name."""
    cells = [nbformat.v4.new_code_cell(source) for source in sources]
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata={"kernelspec": kernel}), lab.folder / name)
    return name


# ------------------------------------------------------------------------------------------------------------ Chromium


@contextlib.contextmanager
def chromium():
    """A headless Chromium, the system's own, that knows no name but loopback's."""
    from playwright.sync_api import sync_playwright

    arguments = ["--disable-background-networking", "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"]
    arguments += ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=arguments)
        try:
            yield browser
        finally:
            browser.close()


@contextlib.contextmanager
def watched(browser, strayed):
    """A new tab; asking other machines and opening dialogs or windows is noted in the list `strayed`."""
    context = browser.new_context(viewport=VIEWPORT, service_workers="block")
    context.set_default_timeout(1000 * PATIENCE)

    def route(request):
        if _stays(request.request.url):
            request.continue_()
        else:
            strayed.append(request.request.url)
            request.abort()

    def dialog(shown):
        if shown.type == "beforeunload":  # the Lab's own, about changes that are not saved
            shown.accept()
        else:
            strayed.append(f"dialog: {shown.message}")
            shown.dismiss()

    try:
        context.route("**/*", route)
        page = context.new_page()
        page.on("dialog", dialog)
        page.on("popup", lambda opened: strayed.append(f"window: {opened.url}"))
        page.on("websocket", lambda socket: None if _stays(socket.url) else strayed.append(socket.url))
        yield page
    finally:
        context.close()


def _stays(url):
    """Is this an address on this machine?

    >>> [_stays(u) for u in ("http://127.0.0.1:8888/lab", "file:///tmp/a.html", "data:,x", "http://127.0.0.1.a.org/")]
    [True, True, True, False]
    """
    parts = urllib.parse.urlsplit(url)
    return parts.scheme in ("file", "data", "blob", "about") or parts.hostname == "127.0.0.1"


def ran(page):
    """Did a text of `HOSTILE` become a program in this page?"""
    return page.evaluate("window.ran !== undefined")


# ----------------------------------------------------------------------------------------------- a notebook in the Lab


def open_notebook(page, lab, name, theme=LIGHT):
    """Open `name` (a path in the Lab's folder) as `/lab/tree/<name>` in `theme` and wait until its kernel is idle.

    The kernel is a new one: the Lab would give a notebook the one that it had before.
    """
    headers = {"Authorization": f"token {lab.token}"}
    for session in page.request.get(f"{lab.url}api/sessions", headers=headers).json():
        page.request.delete(f"{lab.url}api/sessions/{session['id']}", headers=headers)
    themed = {**SETTINGS["@jupyterlab/apputils-extension:themes"], "theme": theme}
    overrides = {**SETTINGS, "@jupyterlab/apputils-extension:themes": themed}
    (lab.settings / "overrides.json").write_text(json.dumps(overrides), encoding="utf-8")  # read with every page
    page.goto(f"{lab.url}lab/tree/{urllib.parse.quote(name)}?reset&token={lab.token}")
    page.locator(f"body[data-jp-theme-name='{theme}']").wait_for(state="attached")
    page.locator(".jp-NotebookPanel:visible .jp-Cell").first.wait_for()
    idle(page)


def idle(page):
    """Wait until the kernel of the notebook in front is there and idle, and none of its cells waits for it."""
    page.wait_for_function(
        """() => {
            const kernel = window.jupyterapp?.shell.currentWidget?.sessionContext?.session?.kernel;
            const prompts = [...document.querySelectorAll(".jp-CodeCell .jp-InputPrompt")];
            const waiting = prompts.some(prompt => prompt.textContent.includes("*"));
            return kernel?.connectionStatus === "connected" && kernel.status === "idle" && !waiting;
        }"""
    )


def run_all(page):
    """Run > Run All Cells, as a person does; returns when the last cell has run, or the first one that failed."""
    first = page.locator(".jp-CodeCell .jp-InputPrompt").first
    before = first.text_content()
    page.get_by_role("menuitem", name="Run", exact=True).click()
    page.get_by_role("menuitem", name="Run All Cells", exact=True).click()
    # Its number comes when it has run, or when it has failed.
    page.wait_for_function(
        "([prompt, before]) => prompt.textContent !== before && /[0-9]/.test(prompt.textContent)",
        arg=[first.element_handle(), before],
    )
    idle(page)


def set_parameters(page, **values):
    """Write other values into the parameters cell of the open notebook, as a user does before running all again."""
    tagged = "cell => cell.model.getMetadata('tags')?.includes('parameters')"
    index = page.evaluate(f"window.jupyterapp.shell.currentWidget.content.widgets.findIndex({tagged})")
    editor = page.locator(".jp-Notebook .jp-Cell").nth(index).locator(".cm-content")
    lines = editor.locator(".cm-line").all_text_contents()
    for name, value in values.items():
        (place,) = [i for i, line in enumerate(lines) if line.startswith(f"{name} = ")]
        lines[place] = f"{name} = {value!r}  #{lines[place].rpartition('  #')[2]}"
    editor.fill("\n".join(lines))


def outputs(page):
    """What stands below each code cell as text, in the order of the cells; "" where nothing does."""
    return page.locator(".jp-CodeCell").evaluate_all(
        "cells => cells.map(c => [...c.querySelectorAll('.jp-OutputArea-output')].map(o => o.innerText).join('\\n'))"
    )


def errors(page):
    """Tracebacks and what was written to stderr, as text."""
    kinds = "[data-mime-type='application/vnd.jupyter.error'], [data-mime-type='application/vnd.jupyter.stderr']"
    return page.locator(kinds).all_inner_texts()


def pictures(page):
    """(width, height) in pixels of each figure shown, once all are decoded."""
    images = page.locator(".jp-OutputArea-output img")
    return images.evaluate_all(
        "all => Promise.all(all.map(async i => { await i.decode(); return [i.naturalWidth, i.naturalHeight]; }))"
    )
