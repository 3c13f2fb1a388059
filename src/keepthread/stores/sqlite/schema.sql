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
    UNIQUE (tenant, owner, id)
);

CREATE INDEX sessions_by_activity ON sessions (tenant, active_at) WHERE ready AND kind <> 2;
CREATE INDEX sessions_by_owner ON sessions (tenant, owner, active_at) WHERE ready AND kind <> 2;
CREATE INDEX sessions_of_owner ON sessions (tenant, owner);
CREATE INDEX sessions_unlisted ON sessions (tenant, active_at) WHERE NOT (ready AND kind <> 2);

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

-- Copies of a session have its first message, even if that is erased.
CREATE INDEX messages_by_first ON messages (id, created_at) WHERE seq = 1;

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

-- The newest records of a session, kind by kind: a context reads no more of them than it may show.
CREATE INDEX records_by_version ON records (tenant, sid, kind, version);

-- The last changes of an owner's records of a kind, for readers that keep what they have read.
CREATE TABLE record_changes (
    tenant TEXT    NOT NULL,
    owner  TEXT    NOT NULL,
    kind   TEXT    NOT NULL,
    recent TEXT    NOT NULL,  -- JSON: [number, key] …, latest last
    guard  INTEGER NOT NULL,
    PRIMARY KEY (tenant, owner, kind)
) WITHOUT ROWID;

CREATE INDEX records_of_blobs ON records (tenant, owner) WHERE sid = 0 AND kind IN ('blob_upload', 'blob_use');

-- Where to look for what was made of a message; see `links.py`. Entries may be out of date. Each span of
-- a record's `made_of` has a row: `sid` is the session, `node` the block of positions around the span.
CREATE TABLE sources (
    sid     INTEGER NOT NULL,
    node    INTEGER NOT NULL,
    version INTEGER NOT NULL,
    PRIMARY KEY (sid, node, version)
) WITHOUT ROWID;

CREATE INDEX sources_by_record ON sources (version);

CREATE TRIGGER sources_end AFTER DELETE ON records WHEN old.made_of IS NOT NULL
BEGIN
    DELETE FROM sources WHERE version = old.version;
END;

-- Sessions that name another session of their owner by its id: as parent or fork point, in an answer or
-- in an explanation.
CREATE TABLE naming (
    tenant TEXT    NOT NULL,
    owner  TEXT    NOT NULL,
    id     TEXT    NOT NULL,
    sid    INTEGER NOT NULL,
    PRIMARY KEY (tenant, owner, id, sid)
) WITHOUT ROWID;

CREATE INDEX naming_by_session ON naming (sid);

-- The feed of changes. A number is one more than that of the tenant's last change, and says nothing about
-- time: clocks may be wrong. A change contains no text: it says what to read again.
CREATE TABLE changes (
    tenant  TEXT    NOT NULL,
    number  INTEGER NOT NULL,
    at      REAL    NOT NULL,  -- seconds since 1970
    owner   TEXT    NOT NULL,
    sid     INTEGER NOT NULL,
    kind    INTEGER NOT NULL,
    session TEXT    NOT NULL,  -- its id
    ids     TEXT    NOT NULL,  -- one in each line
    PRIMARY KEY (tenant, number)
) WITHOUT ROWID;

CREATE INDEX changes_by_owner ON changes (tenant, owner, number);

-- The last change of each owner that was deleted for its age; without a name, that of the tenant.
CREATE TABLE trimmed (
    tenant TEXT    NOT NULL,
    owner  TEXT    NOT NULL,
    number INTEGER NOT NULL,
    PRIMARY KEY (tenant, owner)
) WITHOUT ROWID;

-- The indexes of the search. All of it is derived from the log and can be derived again, so nothing here
-- is guarded.

-- Whose words they are: every word in the index has the numbers of its tenant and its owner after it, so
-- that a query reads the words of one of them alone. The row without an owner is the tenant's. A number
-- is never given twice. `changes` counts the changes of a scope's segments, and `recent` has the sessions
-- of the last ones, eight bytes each, so that a process reads again only what has changed.
CREATE TABLE scopes (
    number  INTEGER PRIMARY KEY AUTOINCREMENT,
    tenant  TEXT    NOT NULL,
    owner   TEXT    NOT NULL,
    changes INTEGER NOT NULL,
    recent  BLOB    NOT NULL,
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
    number   INTEGER PRIMARY KEY AUTOINCREMENT,
    name     TEXT    NOT NULL UNIQUE,
    of_words INTEGER NOT NULL
);

CREATE TABLE watermarks (
    sid  INTEGER NOT NULL,
    view INTEGER NOT NULL,
    upto INTEGER NOT NULL,
    PRIMARY KEY (sid, view)
) WITHOUT ROWID;

-- The sessions that a view has not read to the end; written with every message, so that a question need
-- not compare all sessions of its owner.
CREATE TABLE unread (
    view   INTEGER NOT NULL,
    tenant TEXT    NOT NULL,
    owner  TEXT    NOT NULL,
    sid    INTEGER NOT NULL,
    PRIMARY KEY (view, tenant, owner, sid)
) WITHOUT ROWID;

CREATE TABLE vectors (
    place      INTEGER NOT NULL,
    view       INTEGER NOT NULL,
    dimensions INTEGER NOT NULL,
    tokens     BLOB    NOT NULL,  -- their numbers, four bytes each, the lowest first
    data       BLOB    NOT NULL,
    UNIQUE (place, view)
);

-- The tables of a server, for all tenants. `tables.py` of all stores says what `data` and `head` hold:
-- a checksum, then JSON.

-- Of a key itself only the digest is here.
CREATE TABLE api_keys (
    id     TEXT NOT NULL PRIMARY KEY,
    tenant TEXT NOT NULL,
    data   BLOB NOT NULL
) WITHOUT ROWID;

CREATE INDEX api_keys_of_tenant ON api_keys (tenant, id);

CREATE TABLE secrets (
    name TEXT NOT NULL PRIMARY KEY,
    data BLOB NOT NULL
) WITHOUT ROWID;

-- Requests that a client may send again, for a day. An answer's body may repeat messages, so it is deleted
-- once its tenant forgets anything.
CREATE TABLE requests (
    id       BLOB NOT NULL PRIMARY KEY,
    tenant   TEXT NOT NULL,
    digest   BLOB NOT NULL,
    token    BLOB NOT NULL,  -- of the worker that does it
    begun_at REAL NOT NULL,
    head     BLOB,           -- the answer without its body; NULL: in flight
    body     BLOB
);

CREATE INDEX requests_by_time ON requests (begun_at);
CREATE INDEX requests_of_tenant ON requests (tenant);

CREATE TABLE audit (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    tenant TEXT NOT NULL,
    data   BLOB NOT NULL
);

CREATE INDEX audit_of_tenant ON audit (tenant, number);

-- Views for people and reporting tools: the log by plain names. keepthread itself does not use them.
-- Erased messages, delegated tasks, and sessions that are not complete or were forgotten are left out.
-- Times are in UTC.
CREATE VIEW v_sessions AS
SELECT id,
       strftime('%Y-%m-%d %H:%M:%f', created_at, 'unixepoch') AS created_at,
       strftime('%Y-%m-%d %H:%M:%f', active_at, 'unixepoch') AS updated_at,
       json_extract(json, '$.meta') AS metadata,
       json_extract(json, '$.system_prompt') AS system_prompt,
       owner,
       json_extract(json, '$.title') AS title,
       json_extract(json, '$.tags') AS tags,
       tenant
FROM (
    SELECT *, CASE WHEN json_valid(CAST(details AS TEXT)) THEN CAST(details AS TEXT) END AS json
    FROM sessions
)
WHERE ready AND kind <> 2;

CREATE VIEW v_messages AS
SELECT CASE WHEN typeof(m.id) = 'blob' THEN lower(hex(m.id)) ELSE m.id END AS id,
       s.id AS session_id,
       CASE m.role WHEN 0 THEN 'system' WHEN 1 THEN 'user' WHEN 2 THEN 'assistant' WHEN 3 THEN 'tool' END AS role,
       CAST(m.content AS TEXT) AS content,
       json_extract(m.json, '$.tool_calls') AS tool_calls,
       json_extract(m.json, '$.tool_call_id') AS tool_call_id,
       json_extract(m.json, '$.name') AS name,
       strftime('%Y-%m-%d %H:%M:%f', m.created_at, 'unixepoch') AS created_at,
       m.seq,
       m.turn,
       m.tokens,
       json_extract(m.json, '$.author') AS author,
       s.owner,
       s.tenant
FROM (
    SELECT *, CASE WHEN json_valid(CAST(extra AS TEXT)) THEN CAST(extra AS TEXT) END AS json
    FROM messages
) AS m
JOIN sessions AS s ON s.sid = m.sid
WHERE s.ready AND s.kind <> 2 AND m.content IS NOT NULL;
