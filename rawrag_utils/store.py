"""One sqlite file as a cache: written whole or not at all, shared by processes, begun anew when it is damaged."""

import contextlib
import os
import sqlite3
import sys
import time

from rawrag_utils.paths import BadInput

BATCH = 500  # keys a query; sqlite takes some thousands


def in_database(path, schema, work, durable=False):
    """What `work(connection)` returns on the sqlite file at `path`, whose tables `schema` makes; committed at the end.

    `durable` is for what was paid for: it survives a power cut too, and readers do not wait for writers.

    A damaged file is set aside as `damaged-…` and begun anew: what is in a cache can be made again. Raises `BadInput`
    when the folder cannot be written or the disk is full.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            return _connected(path, schema, work, durable)
        except sqlite3.OperationalError:  # locked, full, not writable: the file is whole
            raise
        except sqlite3.DatabaseError:
            for file in path.parent.glob(f"{path.name}*"):  # its journal too
                os.replace(file, path.parent / f"damaged-{file.name}")
            print(f"{path.name}: the cache was damaged, its contents are made again", file=sys.stderr)
            return _connected(path, schema, work, durable)
    except (OSError, sqlite3.Error) as error:
        raise BadInput(
            f"cache {path.name}: {error}; free space or set RAWRAG_CACHE to a folder that can be written"
        ) from error


def _connected(path, schema, work, durable):
    with contextlib.closing(sqlite3.connect(path, timeout=60)) as connection, connection:
        if durable:
            _switch_to_wal(connection)
            connection.execute("PRAGMA synchronous=FULL")
        else:  # killed processes do no harm; what a power cut may damage is noticed and made again: no wait for disks
            connection.execute("PRAGMA synchronous=OFF")
        connection.execute(schema)
        return work(connection)


def _switch_to_wal(connection):
    """The one statement that does not wait for others by itself, and only matters to who opens a new file first."""
    for _ in range(600):
        try:
            connection.execute("PRAGMA journal_mode=WAL")
            return
        except sqlite3.OperationalError as error:
            if "locked" not in str(error):
                raise
            time.sleep(0.1)
    raise sqlite3.OperationalError("locked for a minute by another program")


def rows(connection, query, keys):
    """Rows of `query`, which has `key IN ({})`, for all `keys`, some hundred at a time.

    >>> connection = sqlite3.connect(":memory:")
    >>> _ = connection.execute("CREATE TABLE t (key INT)")
    >>> _ = connection.executemany("INSERT INTO t VALUES (?)", [(i,) for i in range(2000)])
    >>> len(list(rows(connection, "SELECT * FROM t WHERE key IN ({})", range(1500))))
    1500
    """
    keys = list(keys)
    for start in range(0, len(keys), BATCH):
        some = keys[start : start + BATCH]
        yield from connection.execute(query.format(",".join("?" * len(some))), some)
