-- The schema of a SQLite file, created in one transaction; PRAGMA user_version is its format. Until the
-- first release this file is edited in place: an edit raises `FORMAT` in `schema.py`, and files of an
-- earlier format are refused. From the first release on, changes are migrations that only add.

-- One row per session. `sid` is its number inside: never reused, so nothing of a deleted session can
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

-- One row per message. The last row of a session is its head: position, turns and token total
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
    turn       INTEGER NOT NULL,
    turns      INTEGER NOT NULL,  -- running count of the log
    total      INTEGER NOT NULL,  -- running tokens of the log
    created_at REAL    NOT NULL,
    digest     BLOB    NOT NULL,  -- over id, role, content and extra; travels with copies
    guard      INTEGER NOT NULL,  -- over digest, place and numbers of this row
    UNIQUE (sid, seq),
    UNIQUE (sid, id)
);

-- One row per record. Those of a session have its sid, those of an owner its name, the tenant's neither.
-- Every put makes a new row, so a version never returns.
CREATE TABLE records (
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

-- The indexes of the search. All of it is derived from the log and can be derived again, so nothing here
-- is guarded.

-- Whose words they are: every word in the index has the number of its scope before it, so that a
-- query reads the words of one owner alone. A number is never given twice.
CREATE TABLE scopes (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    tenant TEXT    NOT NULL,
    owner  TEXT    NOT NULL,
    UNIQUE (tenant, owner)
);

-- Where words are: the rowid is the position of a chunk of a message (session, position, chunk,
-- length). The text itself is not stored, so a chunk is removed by giving its words once more.
CREATE VIRTUAL TABLE words USING fts5 (text, content = '', columnsize = 0, detail = none, tokenize = 'ascii');

-- What else is known of a chunk.
CREATE TABLE pieces (
    place   INTEGER PRIMARY KEY,
    tokens  INTEGER NOT NULL,
    flags   INTEGER NOT NULL,
    speaker BLOB    NOT NULL
);

CREATE TABLE segments (
    sid        INTEGER NOT NULL,
    first      INTEGER NOT NULL,
    started_at REAL    NOT NULL,
    ended_at   REAL    NOT NULL,
    parts      INTEGER NOT NULL,
    length     INTEGER NOT NULL,
    answers    INTEGER NOT NULL,
    PRIMARY KEY (sid, first)
) WITHOUT ROWID;

-- The views of the log, and how far each has read. At most one is of words.
CREATE TABLE views (
    number    INTEGER PRIMARY KEY AUTOINCREMENT,
    name      TEXT    NOT NULL UNIQUE,
    of_words  INTEGER NOT NULL,
    forgotten INTEGER NOT NULL  -- how often something was taken out of it
);

CREATE TABLE watermarks (
    sid  INTEGER NOT NULL,
    view INTEGER NOT NULL,
    upto INTEGER NOT NULL,
    PRIMARY KEY (sid, view)
) WITHOUT ROWID;

CREATE TABLE vectors (
    place      INTEGER NOT NULL,
    view       INTEGER NOT NULL,
    dimensions INTEGER NOT NULL,
    tokens     BLOB    NOT NULL,  -- their numbers, four bytes each, the lowest first
    data       BLOB    NOT NULL,
    UNIQUE (place, view)
);
