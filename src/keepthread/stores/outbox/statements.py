"""The outbox's tables and statements."""

from typing import Final

FORMAT: Final = 3
"""The format this keepthread reads and writes; every edit of the tables raises it."""

TABLES: Final = """
-- Whose outbox it is: tenant and target.
CREATE TABLE about (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;

-- Sessions that were seen, so that they can be opened while the store is away. No text of theirs.
CREATE TABLE sessions (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    id     TEXT NOT NULL,
    key    TEXT NOT NULL,
    owner  TEXT NOT NULL,
    kind   TEXT NOT NULL,
    UNIQUE (owner, id)
);

-- One row an append, in the order they were acknowledged.
CREATE TABLE batches (
    number    INTEGER PRIMARY KEY AUTOINCREMENT,
    key       TEXT NOT NULL,
    session   TEXT NOT NULL,
    turn      INTEGER,
    opened_by TEXT,
    reason    TEXT            -- why it was set aside; NULL while it waits
);
CREATE INDEX batches_by_session ON batches (key, number) WHERE reason IS NULL;

-- One row a message; `guard` is over its digest, its place and its numbers.
CREATE TABLE messages (
    batch      INTEGER NOT NULL,
    place      INTEGER NOT NULL,
    id         BLOB    NOT NULL,
    role       INTEGER NOT NULL,
    content    BLOB    NOT NULL,
    extra      BLOB,
    tokens     INTEGER NOT NULL,
    counter    BLOB    NOT NULL,
    created_at REAL    NOT NULL,
    digest     BLOB    NOT NULL,
    guard      INTEGER NOT NULL,
    PRIMARY KEY (batch, place)
);

-- What was not delivered because it had been deleted there: ids, no text.
CREATE TABLE dropped (
    number  INTEGER PRIMARY KEY AUTOINCREMENT,
    session TEXT NOT NULL,
    id      TEXT NOT NULL,
    reason  TEXT NOT NULL,
    at      REAL NOT NULL
);
"""

ABOUT: Final = "SELECT name, value FROM about"
NAME: Final = "INSERT INTO about (name, value) VALUES (?, ?)"

SESSIONS: Final = "SELECT id, key, owner, kind FROM sessions ORDER BY number"
FORGET_SESSION: Final = "DELETE FROM sessions WHERE owner = ? AND id = ?"
REMEMBER_SESSION: Final = "INSERT INTO sessions (id, key, owner, kind) VALUES (?, ?, ?, ?)"
FORGET_OLD_SESSIONS: Final = (
    "DELETE FROM sessions WHERE number <= (SELECT max(number) FROM sessions) - ?"
)

ADD_BATCH: Final = (
    "INSERT INTO batches (key, session, turn, opened_by) VALUES (?, ?, ?, ?) RETURNING number"
)
ADD_MESSAGE: Final = "INSERT INTO messages VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
WAITING: Final = "SELECT key, count(*) FROM batches WHERE reason IS NULL GROUP BY key"
OLDEST: Final = (
    "SELECT number, key, session, turn, opened_by FROM batches"
    " WHERE key = ? AND reason IS NULL ORDER BY number LIMIT ?"
)
MESSAGES: Final = (
    "SELECT place, id, role, content, extra, tokens, counter, 0, 0, 0, created_at, digest, guard"
    " FROM messages WHERE batch = ? ORDER BY place"
)
REMOVE_MESSAGES: Final = "DELETE FROM messages WHERE batch = ?"
REMOVE_MESSAGE: Final = "DELETE FROM messages WHERE batch = ? AND place = ?"
REMOVE_BATCH: Final = "DELETE FROM batches WHERE number = ?"
SET_ASIDE: Final = "UPDATE batches SET reason = ? WHERE number = ?"
DROPPED: Final = "INSERT INTO dropped (session, id, reason, at) VALUES (?, ?, ?, ?)"

SURVEY_WAITING: Final = (
    "SELECT session, count(*), sum(length(content) + coalesce(length(extra), 0))"
    " FROM batches JOIN messages ON batch = batches.number WHERE reason IS NULL"
    " GROUP BY key, session ORDER BY min(batches.number)"
)
SURVEY_DROPPED: Final = "SELECT session, id, reason, at FROM dropped ORDER BY number"
SURVEY_ASIDE: Final = (
    "SELECT number, session, reason FROM batches WHERE reason IS NOT NULL ORDER BY number"
)
ASIDE: Final = "SELECT number, key FROM batches WHERE reason IS NOT NULL"
CLEAR: Final = (
    "DELETE FROM messages WHERE batch IN (SELECT number FROM batches WHERE reason IS NOT NULL)",
    "DELETE FROM batches WHERE reason IS NOT NULL",
    "DELETE FROM dropped",
)
