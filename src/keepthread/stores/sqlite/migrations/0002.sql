-- Format 2: finding. All of it is made from the log and can be made again; nothing here is guarded.

-- Whose words they are: every word in the index has the number of its scope before it, so that a
-- question reads the words of one owner alone. A number is never given twice.
CREATE TABLE scopes (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    tenant TEXT    NOT NULL,
    owner  TEXT    NOT NULL,
    UNIQUE (tenant, owner)
);

-- Where words stand: the rowid is the place of a piece of a message (session, position, piece,
-- length). The text itself is not kept, so a piece is taken out by giving its words once more.
CREATE VIRTUAL TABLE words USING fts5 (text, content = '', columnsize = 0, detail = none, tokenize = 'ascii');

-- What else is known of a piece.
CREATE TABLE pieces (
    place   INTEGER PRIMARY KEY,
    tokens  INTEGER NOT NULL,
    flags   INTEGER NOT NULL,
    speaker BLOB    NOT NULL
);

CREATE TABLE sittings (
    sid        INTEGER NOT NULL,
    first      INTEGER NOT NULL,
    started_at REAL    NOT NULL,
    ended_at   REAL    NOT NULL,
    parts      INTEGER NOT NULL,
    length     INTEGER NOT NULL,
    answers    INTEGER NOT NULL,
    PRIMARY KEY (sid, first)
) WITHOUT ROWID;

-- The views of the log, and how far each has read. There is one of words at most.
CREATE TABLE views (
    number    INTEGER PRIMARY KEY AUTOINCREMENT,
    name      TEXT    NOT NULL UNIQUE,
    of_words  INTEGER NOT NULL,
    forgotten INTEGER NOT NULL  -- how often something was taken out of it
);

CREATE TABLE marks (
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
