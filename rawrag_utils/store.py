"""One sqlite file as a cache: written whole or not at all, shared by processes, begun anew when it is damaged."""

import contextlib
import os
import sqlite3
import sys
import time
import zlib

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
        except (sqlite3.DatabaseError, UnicodeDecodeError) as error:  # sqlite quotes what it cannot read
            if _of_the_place(error, path):
                raise
            for file in path.parent.glob(f"{path.name}*"):  # its journal too
                os.replace(file, path.parent / f"damaged-{file.name}")
            print(f"{path.name}: the cache was damaged, its contents are made again", file=sys.stderr)
            return _connected(path, schema, work, durable)
    except (OSError, sqlite3.Error) as error:
        raise BadInput(
            f"cache {path.name}: {error}; free space or set RAWRAG_CACHE to a folder that can be written"
        ) from error


def _of_the_place(error, path):
    """Whether an error of sqlite comes from what is around the file, locked, full or not writable: then it is whole."""
    if not isinstance(error, sqlite3.OperationalError):
        return False
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_FULL) & 0xFF
    if code == sqlite3.SQLITE_READONLY:  # said of a file too whose header claims a later format
        return not (os.access(path, os.W_OK) and os.access(path.parent, os.W_OK))
    return code not in (sqlite3.SQLITE_ERROR, sqlite3.SQLITE_SCHEMA)  # a table or column that is not there


def _connected(path, schema, work, durable):
    with contextlib.closing(sqlite3.connect(path, timeout=60)) as connection, connection:
        connection.text_factory = bytes  # a flipped bit makes a text of bytes, which need be no UTF-8
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


def checksum(key, *blobs, start=0):
    """What a row keeps to be believed later. The key is part of it: a damaged index leads to another key's row.

    >>> checksum(b"key", b"vector") == checksum(b"kez", b"vector")
    False
    """
    return zlib.crc32(key, _sum(blobs, start))


def vouched(crc, key, *blobs, start=0):
    """Whether a row is as it was written. Older caches hold sums without the key."""
    return crc in (checksum(key, *blobs, start=start), _sum(blobs, start))


def _sum(blobs, crc):
    for blob in blobs:
        crc = zlib.crc32(blob, crc)
    return crc
