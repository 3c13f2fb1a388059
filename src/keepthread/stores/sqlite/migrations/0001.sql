-- Format 1. Applied in one transaction; PRAGMA user_version is the number of the last one applied.

-- One row a session. `sid` is its place inside: never reused, so nothing of a deleted session can
-- apply to a new one. `guard` covers the columns before it, `active_guard` covers active_at, which
-- alone changes while messages arrive.
CREATE TABLE sessions (
    sid          INTEGER PRIMARY KEY AUTOINCREMENT,
    tenant       TEXT    NOT NULL,
    id           TEXT    NOT NULL,
    owner        TEXT    NOT NULL,
    kind         INTEGER NOT NULL,  -- 0 main, 1 fork, 2 delegate
    ready        INTEGER NOT NULL,
    epoch        INTEGER NOT NULL,
    created_at   REAL    NOT NULL,
    details      BLOB    NOT NULL,  -- JSON
    guard        INTEGER NOT NULL,
    active_at    REAL    NOT NULL,
    active_guard INTEGER NOT NULL,
    UNIQUE (tenant, id)
);

CREATE INDEX sessions_by_activity ON sessions (tenant, active_at) WHERE ready AND kind <> 2;
CREATE INDEX sessions_by_owner ON sessions (tenant, owner, active_at) WHERE ready AND kind <> 2;

-- One row a message. The last row of a session is its head: position, exchanges and token total
-- are read from there, so that an append updates nothing. Text is kept as bytes: it may hold NUL
-- and lone surrogates, and a flipped bit must cost one row, not the query.
CREATE TABLE messages (
    sid        INTEGER NOT NULL,
    seq        INTEGER NOT NULL,
    id         BLOB    NOT NULL,  -- 16 bytes for 32 hexadecimal digits, else text
    role       INTEGER NOT NULL,  -- 0 system, 1 user, 2 assistant, 3 tool
    content    BLOB,              -- NULL: erased
    extra      BLOB,              -- JSON: all else the caller wrote
    tokens     INTEGER NOT NULL,
    counter    BLOB    NOT NULL,
    exchange   INTEGER NOT NULL,
    exchanges  INTEGER NOT NULL,  -- running count of the log
    total      INTEGER NOT NULL,  -- running tokens of the log
    created_at REAL    NOT NULL,
    digest     BLOB    NOT NULL,  -- over id, role, content and extra; travels with copies
    guard      INTEGER NOT NULL,  -- over digest, place and numbers of this row
    UNIQUE (sid, seq),
    UNIQUE (sid, id)
);

-- One row a record. A session's shelf has its sid, an owner's its name, the tenant's neither.
-- Every put makes a new row, so a version never returns.
CREATE TABLE shelf (
    version INTEGER PRIMARY KEY AUTOINCREMENT,
    tenant  TEXT    NOT NULL,
    sid     INTEGER NOT NULL,
    owner   TEXT    NOT NULL,
    kind    TEXT    NOT NULL,
    key     TEXT    NOT NULL,
    value   BLOB    NOT NULL,  -- JSON
    made_of BLOB,              -- JSON: [session, first, last] …
    guard   INTEGER NOT NULL,
    UNIQUE (tenant, sid, owner, kind, key)
);
