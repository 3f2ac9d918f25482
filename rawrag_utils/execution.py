"""Execute one notebook through papermill: its own kernel, visible progress, a limit on silence instead of on length."""

import asyncio
import contextlib
import logging
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

from rawrag_utils import paths

STARTS = 3  # times a kernel is started before giving up: kernels that start together can race for a port
TICK = 0.5  # seconds between two looks at a running cell
PULSE = 60  # seconds between two lines about a long cell, where lines cannot be drawn over
NOTE = ".kernel"  # file in a run's folder: name of the kernel's own, private one


class Dry(Exception):
    """A notebook that was only to say what it would ask. The message is what it said."""


class Failed(Exception):
    """A notebook that began and did not end well. The message is one line."""

    def __init__(self, message):
        super().__init__(paths.printable(message))


class Died(Failed):
    """A notebook whose kernel was killed: another time it may end well."""


def execute(path, parameters, folder, silence):
    """Run the notebook at `path` with all its `parameters` from the repository root; copy and log go to `folder`.

    What `results` saves goes to `folder` too. Raises `Dry` for a dry run, `Failed` when a cell fails or says nothing
    for `silence` seconds, `Died` when its kernel dies; what was executed by then is in the copy.
    """
    import papermill
    from nbclient.exceptions import DeadKernelError
    from papermill.engines import papermill_engines

    # Their loggers say what is said here as well, and call a parameter with `=` in its default unknown.
    logging.getLogger("papermill").addHandler(logging.NullHandler())
    logging.getLogger("papermill").propagate = False
    copy, places, fault = folder / path.name, {}, Failed
    with (
        _private(folder) as private,
        open(folder / "log.txt", "w", encoding="utf-8", errors="replace", buffering=1) as log,
    ):
        environment = {
            **os.environ,
            "RAWRAG_RUN_FOLDER": str(folder),
            "IPYTHONDIR": str(private),  # the user's start-up files change no result, and histories are not locked
            "JUPYTER_PREFER_ENV_PATH": "1",
            "PYTHONHASHSEED": "0",
            "TQDM_DISABLE": "1",  # bars flood logs; progress is printed lines
        }
        launch = {"cwd": str(paths.ROOT), "env": environment, "stdout": subprocess.DEVNULL, "stderr": log}
        papermill_engines.register("rawrag", _engine(log, places, silence, private, launch))
        try:
            # papermill formats paths with the parameters: braces of a folder's name are no fields.
            papermill.execute_notebook(
                *(str(p).replace("{", "{{").replace("}", "}}") for p in (path, copy)),
                parameters,
                engine_name="rawrag",
                kernel_name="python3",
                language="python",
                progress_bar=False,
            )
        except papermill.PapermillExecutionError as error:
            if error.ename == "DryRun":
                raise Dry(error.evalue) from None
            last = [line for line in f"{error.ename}: {error.evalue}".splitlines() if line.strip()][-1]
            place, message = places.get(error.cell_index), error.evalue if error.ename == "BadInput" else last
        except DeadKernelError:
            place, message, fault = None, "the kernel died, perhaps for want of memory", Died
        except Failed as error:
            place, message = None, error
        else:
            return
    place = place or places[max(places)] if places else "before the first cell"
    raise fault(f"{path.stem}: {place}: {' '.join(str(message).split())}; see {where(copy)}")


@contextlib.contextmanager
def _private(folder):
    """A folder of this kernel alone, among the system's temporary ones: where runs lie, files may know no owner.

    `folder` notes its name, so that `clear` finds what a killed run leaves there.
    """
    private = pathlib.Path(tempfile.gettempdir()) / f"rawrag-{os.urandom(16).hex()}"
    (folder / NOTE).write_text(private.name, encoding="ascii")
    private.mkdir(mode=0o700)
    try:
        yield private
    finally:
        clear(folder)


def clear(folder):
    """Remove the private folder of the kernel whose run in `folder` is over, or was killed."""
    with contextlib.suppress(OSError, ValueError):
        if re.fullmatch(r"rawrag-[0-9a-f]{32}", private := (folder / NOTE).read_text(encoding="ascii")):
            shutil.rmtree(pathlib.Path(tempfile.gettempdir()) / private, ignore_errors=True)
        (folder / NOTE).unlink()


def _engine(log, places, silence, private, launch):
    """A papermill engine (a class): this Python as kernel, started again if need be, and a limit on silence.

    nbclient's own `timeout` counts a cell's length, so that a cell that reports progress for an hour and one that
    hangs look alike. Here each message of the kernel starts the count anew.
    """
    from jupyter_core.utils import ensure_async, ensure_event_loop, run_sync
    from papermill.clientwrap import PapermillNotebookClient
    from papermill.engines import Engine
    from papermill.log import logger

    def drop_tasks():  # what an interrupt leaves in the event loop would complain when the program ends
        loop = ensure_event_loop()
        if tasks := asyncio.all_tasks(loop):
            for task in tasks:
                task.cancel()
            loop.run_until_complete(asyncio.wait(tasks, timeout=5))
            for task in tasks:
                task.cancelled() or (task.done() and task.exception())  # seen, so not reported

    class Client(PapermillNotebookClient):
        begun, heard, said = False, 0.0, ""

        def create_kernel_manager(self):
            manager = super().create_kernel_manager()
            # With no folder to search, `python3` is the interpreter that runs this, whatever kernels a user has
            # installed under that name. JUPYTER_PREFER_ENV_PATH alone gives way to JUPYTER_PATH.
            manager.kernel_spec_manager.kernel_dirs = []
            manager.connection_file = str(private / "kernel.json")  # the home folder may be read-only
            return manager

        def execute(self, **kwargs):
            for attempt in range(1, STARTS + 1):
                try:
                    return super().execute(**launch)
                except RuntimeError as error:
                    if self.begun:
                        raise
                    say(f"  the kernel did not start ({error}), attempt {attempt} of {STARTS}", log)
                finally:
                    drop_tasks()
                    if self.km is not None and self.km.has_kernel:  # stopped before its first answer
                        ensure_event_loop().run_until_complete(ensure_async(self.km.shutdown_kernel(now=True)))
            raise Failed("the kernel did not start; log.txt beside the copy has what it said")

        def papermill_execute_cells(self):
            self.begun = True
            try:
                super().papermill_execute_cells()
            except BaseException:
                drop_tasks()
                self.shutdown_kernel = "immediate"
                last = max(places, default=0)
                self.nb_man.cell_exception(self.nb.cells[last], cell_index=last)
                raise

        def process_message(self, message, *args):
            self.heard = time.monotonic()
            self.said = (self.said + str(message["content"].get("text", "")))[-400:]
            return super().process_message(message, *args)

        async def async_execute_cell(self, cell, cell_index, *args, **kwargs):
            if cell.cell_type != "code" or not cell.source.strip():
                return cell
            places[cell_index], label = _place(self.nb, cell_index)
            print(f"---{label.rstrip()}", file=log)
            self.heard = started = pulse = time.monotonic()
            self.said = ""
            task = asyncio.ensure_future(super().async_execute_cell(cell, cell_index, *args, **kwargs))
            while not (await asyncio.wait([task], timeout=TICK))[0]:
                now = time.monotonic()
                if now - self.heard > silence:
                    # The interrupt's traceback in the executed copy shows where the cell hung.
                    await ensure_async(self.km.interrupt_kernel())
                    await asyncio.wait([task], timeout=10)
                    task.cancel()
                    await asyncio.gather(task, return_exceptions=True)
                    raise Failed(f"silent for {silence:g} s, stopped")
                if sys.stderr.isatty() or now - pulse >= PULSE:
                    pulse = now
                    if now - self.heard >= PULSE:
                        self.said = ""  # "26 of 26" for minutes of other work would mislead
                    line = self.said.rpartition("\n")[0].rstrip().rpartition("\n")[2]  # the last whole one
                    say(f"{label} {now - started:7.0f} s  {''.join(filter(str.isprintable, line))}", end="")
            fault = task.exception()
            end = "" if fault is None else "  dry run" if getattr(fault, "ename", "") == "DryRun" else "  failed"
            say(f"{label} {time.monotonic() - started:7.1f} s{end}")
            return task.result()

        execute_cell = run_sync(async_execute_cell)  # the one that papermill calls

    class SilenceEngine(Engine):
        @classmethod
        def execute_managed_notebook(cls, nb_man, kernel_name, **kwargs):
            streams = {"log": logger, "stdout_file": log, "stderr_file": log}
            Client(nb_man, kernel_name=kernel_name, iopub_timeout=60, **streams).execute()

    return SilenceEngine


def _place(nb, index):
    """Where a cell is, for messages (`cell 3 (Window sizes)`, counted as Jupyter counts) and for the progress line."""
    code = [i for i, c in enumerate(nb.cells) if c.cell_type == "code" and c.source.strip()]
    above = "\n".join(c.source for c in nb.cells[:index] if c.cell_type == "markdown")
    heading = (re.findall(r"^#+\s+(.+?)\s*$", above, re.MULTILINE) or ["no heading"])[-1]
    number = code.index(index) + 1
    return f"cell {number} ({heading})", f"  cell {number:>2}/{len(code)}  {heading[:50]:<50}"


@contextlib.contextmanager
def stoppable():
    """In this block Ctrl-C and SIGTERM raise KeyboardInterrupt, once; also a decorator.

    What runs is being shut down from then on, and impatience would leave it alone.
    """

    def stop(number, frame):
        for s in (signal.SIGINT, signal.SIGTERM):
            signal.signal(s, signal.SIG_IGN)
        raise KeyboardInterrupt

    before = {s: signal.signal(s, stop) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for s, handler in before.items():
            signal.signal(s, handler)


def where(path):
    """A path for the terminal: from the root where it lies below it, else whole. (Files get `paths.relative`.)"""
    path = pathlib.Path(path)
    return path.relative_to(paths.ROOT).as_posix() if path.is_relative_to(paths.ROOT) else str(path)


def say(text, log=None, end="\n"):
    """A line on stderr; with end="" one that the next is drawn over, where stderr is a terminal."""
    text = paths.printable(text)
    if sys.stderr.isatty():
        text = f"\r\x1b[K{text[: shutil.get_terminal_size().columns - 1] if not end else text}"
    print(text, file=sys.stderr, end=end if sys.stderr.isatty() else "\n", flush=True)
    if log:
        print(text, file=log)
