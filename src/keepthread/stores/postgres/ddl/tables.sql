-- The schema of the PostgreSQL store, in files by subject: this one comes first, then `security`, then
-- the functions, then the views. Until the first release these files are edited in place: an edit raises `FORMAT` in
-- `schema.py`, and databases of an earlier format are refused. From the first release on, changes are
-- migrations that only add.
--
-- Names are bytes, not text: they sort by code point whatever the database's collation, and content
-- may hold NUL and lone surrogates, which text cannot.
--
-- Plans are kept, and may be made while a table is empty, when every index looks as good as another.
-- So each statement leaves only one index to choose. An index by id is partial, although it covers
-- every row: only a query that says `seq > 0` may use it. Such a query asks for a range of ids in
-- their order, which the primary key does not have.

-- The formats that were created here; the highest is the one in force.
CREATE TABLE keepthread.migrations (
    number     integer PRIMARY KEY,
    applied_at timestamptz NOT NULL DEFAULT now()
);

-- Tenants by number: eight bytes less in every row and index entry than a name. The number is derived
-- from the name, so a failover that loses a row does not give its number to another tenant. For the
-- same reason a deleted tenant keeps its row: other processes remember its number.
CREATE TABLE keepthread.tenants (
    tenant   integer PRIMARY KEY,
    name     bytea   NOT NULL UNIQUE,
    dropping boolean NOT NULL DEFAULT false  -- it is being deleted
);

-- A session's `sid` and a record's version are never given twice, so nothing of a deleted session can
-- apply to a new one, and a version never returns.
CREATE SEQUENCE keepthread.places;
CREATE SEQUENCE keepthread.versions;

-- The next number of a sequence. A standby that takes over, or a restored backup, may have an older
-- counter and return numbers again; so the last twenty bits of each are random.
CREATE FUNCTION keepthread.next_of(_sequence regclass) RETURNS bigint
LANGUAGE sql VOLATILE AS $$
    SELECT nextval(_sequence) * 1048576 + floor(random() * 1048576)::bigint
$$;

-- One row per session; an append holds its lock. `guard` covers all columns but `active_at` and
-- `active_guard`, which alone change while messages arrive.
CREATE TABLE keepthread.sessions (
    sid          bigint           NOT NULL,
    epoch        bigint           NOT NULL,
    created_at   double precision NOT NULL,
    active_at    double precision NOT NULL,
    tenant       integer          NOT NULL,
    kind         smallint         NOT NULL,  -- 0 main, 1 fork, 2 delegate
    ready        boolean          NOT NULL,
    id           bytea            NOT NULL,
    owner        bytea            NOT NULL,
    active_guard bytea            NOT NULL,
    guard        bytea            NOT NULL,
    details      bytea            NOT NULL,  -- JSON
    PRIMARY KEY (tenant, sid)
) WITH (fillfactor = 80);

CREATE UNIQUE INDEX sessions_by_id ON keepthread.sessions (id, owner, tenant) WHERE sid > 0;
CREATE INDEX sessions_by_activity ON keepthread.sessions (tenant, active_at, sid)
    WHERE ready AND kind <> 2;
CREATE INDEX sessions_by_owner ON keepthread.sessions (tenant, owner, active_at, sid)
    WHERE ready AND kind <> 2;
CREATE INDEX sessions_of_owner ON keepthread.sessions (tenant, owner, sid) WHERE sid > 0;
CREATE INDEX sessions_unlisted ON keepthread.sessions (tenant, active_at, sid)
    WHERE NOT (ready AND kind <> 2);

-- One row per message. The last row of a session is its head: position, turns and token total
-- are read from there, so that an append updates nothing. Wide columns come first, so that no
-- byte is lost between them, and no column is NULL in a living row, which saves its null bitmap.
CREATE TABLE keepthread.messages (
    sid        bigint           NOT NULL,
    seq        bigint           NOT NULL,
    tokens     bigint           NOT NULL,
    turn       bigint           NOT NULL,
    turns      bigint           NOT NULL,  -- running count of the log
    total      bigint           NOT NULL,  -- running tokens of the log
    created_at double precision NOT NULL,
    tenant     integer          NOT NULL,
    role       smallint         NOT NULL,  -- 0 system, 1 user, 2 assistant, 3 tool
    id         bytea            NOT NULL,  -- 16 bytes for 32 hexadecimal digits, else the name
    counter    bytea            NOT NULL,
    digest     bytea            NOT NULL,  -- over id, role, content and extra; travels with copies
    guard      bytea            NOT NULL,  -- over digest, place and numbers of this row
    extra      bytea            NOT NULL,  -- JSON: all else the caller wrote; empty if there is none
    content    bytea,                      -- NULL: erased
    PRIMARY KEY (tenant, sid, seq)
) PARTITION BY HASH (tenant, sid);

CREATE UNIQUE INDEX messages_by_id ON keepthread.messages (id, sid, tenant) WHERE seq > 0;
-- Copies of a session have its first message, even if that is erased.
CREATE INDEX messages_by_first ON keepthread.messages (id, created_at, tenant) WHERE seq = 1;

-- One row per record. Those of a session have its sid, those of an owner its name, the tenant's neither.
-- `whose` is the owner's name, or a digest of a long one: three long names do not fit an index.
-- `firsts` and `lasts` are the positions of the record's own session that `made_of` names, `node` the
-- block around them; see `links.py`.
CREATE TABLE keepthread.records (
    sid     bigint   NOT NULL,
    version bigint   NOT NULL,
    tenant  integer  NOT NULL,
    whose   bytea    NOT NULL,
    kind    bytea    NOT NULL,
    key     bytea    NOT NULL,
    owner   bytea    NOT NULL,
    guard   bytea    NOT NULL,
    value   bytea    NOT NULL,  -- JSON
    made_of bytea,              -- JSON: [session, first, last] …
    firsts  bigint[],
    lasts   bigint[],
    node    bigint,
    PRIMARY KEY (tenant, sid, whose, kind, key)
) PARTITION BY HASH (tenant, sid);

-- The newest records of a session, kind by kind: a context reads no more of them than it may show.
CREATE INDEX records_by_version ON keepthread.records (tenant, sid, kind, version) WHERE sid > 0;

-- The last changes of an owner's records of a kind, latest last, for readers that keep what they have
-- read. The transaction that changes a record adds to it and holds its lock, so numbers are in the order of
-- commits.
CREATE TABLE keepthread.record_changes (
    tenant  integer  NOT NULL,
    whose   bytea    NOT NULL,
    kind    bytea    NOT NULL,
    numbers bigint[] NOT NULL,
    keys    bytea[]  NOT NULL,
    PRIMARY KEY (tenant, whose, kind)
) WITH (fillfactor = 50);
CREATE INDEX records_of_blobs ON keepthread.records (owner, tenant)
    WHERE sid = 0 AND kind IN ('blob_upload', 'blob_use');
CREATE INDEX records_by_node ON keepthread.records (tenant, sid, node) WHERE node IS NOT NULL;

-- Where to look for what was made of a message of another session, or of an owner's: one row per span
-- of `made_of`. `source` is the session, `node` the block of positions around the span, and the rest is
-- where the record is; `place` is a digest of its names. Rows may be out of date.
CREATE TABLE keepthread.sources (
    sid    bigint  NOT NULL,
    source bigint  NOT NULL,
    node   bigint  NOT NULL,
    tenant integer NOT NULL,
    place  bytea   NOT NULL,
    whose  bytea   NOT NULL,
    kind   bytea   NOT NULL,
    key    bytea   NOT NULL,
    PRIMARY KEY (tenant, sid, place, source, node)
);

CREATE INDEX sources_by_node ON keepthread.sources (source, node, tenant) WHERE node >= 0;

-- Sessions that name another session of their owner: as parent or fork point, in an answer or in an
-- explanation. `name` is a digest of owner and id.
CREATE TABLE keepthread.naming (
    sid    bigint  NOT NULL,
    tenant integer NOT NULL,
    name   bytea   NOT NULL,
    PRIMARY KEY (tenant, sid, name)
);

CREATE INDEX naming_by_name ON keepthread.naming (name, tenant, sid) WHERE sid > 0;

-- The feed of changes. `place` is a transaction that ended before this change was made, or made it: all
-- changes before the oldest transaction under way are known, so a reader stops there and passes over
-- none that is committed late. `number` orders the changes of one place. See `changes.sql`.
CREATE SEQUENCE keepthread.change_numbers;

CREATE TABLE keepthread.changes (
    place   xid8             NOT NULL,
    number  bigint           NOT NULL,
    sid     bigint           NOT NULL,
    at      double precision NOT NULL,
    tenant  integer          NOT NULL,
    kind    smallint         NOT NULL,
    owner   bytea            NOT NULL,
    session bytea            NOT NULL,  -- its id
    ids     bytea[]          NOT NULL,
    PRIMARY KEY (tenant, place, number)
);

CREATE INDEX changes_by_owner ON keepthread.changes (tenant, owner, place, number);

-- The last change of each owner that was deleted for its age; without a name, that of the tenant.
CREATE TABLE keepthread.trimmed (
    number bigint  NOT NULL,
    place  xid8    NOT NULL,
    tenant integer NOT NULL,
    owner  bytea   NOT NULL,
    PRIMARY KEY (tenant, owner)
);

-- The indexes of the search: where words are, and vectors of messages. All of it is derived from the log
-- and can be derived again, so nothing here is guarded.
--
-- `at` is a position without its session: position, chunk and length in one number, as
-- `keepthread.recall.positions` packs it. `whose` is the hash of the owner's name, `view` that of the
-- view's: names may be long, and an index is asked for by these.

CREATE FUNCTION keepthread.whose(_owner bytea) RETURNS bigint
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT ('x' || encode(substr(sha256(_owner), 1, 8), 'hex'))::bit(64)::bigint
$$;

CREATE FUNCTION keepthread.view_of(_name bytea) RETURNS integer
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT ('x' || encode(substr(sha256(_name), 1, 4), 'hex'))::bit(32)::integer
$$;

-- How far each view has read each session.
CREATE TABLE keepthread.readings (
    sid      bigint  NOT NULL,
    upto     bigint  NOT NULL,
    tenant   integer NOT NULL,
    view     integer NOT NULL,
    of_words boolean NOT NULL,
    PRIMARY KEY (tenant, sid, view)
);

CREATE TABLE keepthread.segments (
    sid        bigint           NOT NULL,
    whose      bigint           NOT NULL,
    first      bigint           NOT NULL,
    started_at double precision NOT NULL,
    ended_at   double precision NOT NULL,
    parts      bigint           NOT NULL,
    length     bigint           NOT NULL,
    answers    bigint           NOT NULL,
    tenant     integer          NOT NULL,
    view       integer          NOT NULL,
    PRIMARY KEY (tenant, view, whose, sid, first)
);

-- The state of the indexes of an owner. `view` is the view of words that has read its sessions, 0 if none has;
-- `vectors` are the views of vectors. `changes` counts the changes of its segments from an arbitrary number
-- on, and `recent` has the sessions of the last ones, so that a client reads again only what has changed.
CREATE TABLE keepthread.corpora (
    whose   bigint    NOT NULL,
    changes bigint    NOT NULL,
    tenant  integer   NOT NULL,
    view    integer   NOT NULL,
    recent  bigint[]  NOT NULL,
    vectors integer[] NOT NULL,
    PRIMARY KEY (tenant, whose)
) WITH (fillfactor = 50);  -- every change updates a row

CREATE INDEX corpora_by_view ON keepthread.corpora (tenant, view);

-- The sessions that a view has not read to the end. Every append notes its session with view 0. The view of
-- words removes that row when it has read all, and then notes the session for the views of vectors. So a
-- view of vectors has the rows of view 0 and its own to look at, and no append needs to know the views.
CREATE TABLE keepthread.unread (
    whose  bigint  NOT NULL,
    sid    bigint  NOT NULL,
    tenant integer NOT NULL,
    view   integer NOT NULL,
    PRIMARY KEY (tenant, whose, view, sid)
);

-- Ranges of an owner's positions, each from its first position to the next range. The words of a range have
-- the range's era after them, so that the newest places of a frequent word are read without the others.
-- A range is divided when it has many chunks; `parts` counts about how many it has, and is negative if it is
-- the rest of a range that was divided: its era is full.
CREATE TABLE keepthread.eras (
    whose  bigint  NOT NULL,
    sid    bigint  NOT NULL,
    at     bigint  NOT NULL,
    parts  bigint  NOT NULL,
    tenant integer NOT NULL,
    view   integer NOT NULL,
    number integer NOT NULL,
    PRIMARY KEY (tenant, view, whose, sid, at)
);

-- One row per chunk of a message. Each word becomes ten letters: five for the word in this view of this
-- tenant, three for the owner, two for the era. So an index reads the words of one owner side by side, or
-- by the first five those of all owners; any database's encoding has them; and an erased message leaves
-- no word in an index that keeps its entries until it is rebuilt.
--
-- `asked` has the same rows under another policy, for queries that look for words: see `security`.
CREATE TABLE keepthread.words (
    sid     bigint   NOT NULL,
    at      bigint   NOT NULL,
    whose   bigint   NOT NULL,
    tenant  integer  NOT NULL,
    view    integer  NOT NULL,
    tokens  integer  NOT NULL,
    flags   integer  NOT NULL,
    speaker bytea    NOT NULL,
    words   tsvector NOT NULL
) PARTITION BY RANGE (tenant);

CREATE TABLE keepthread.asked PARTITION OF keepthread.words
    FOR VALUES FROM (MINVALUE) TO (MAXVALUE) PARTITION BY HASH (tenant, whose);

-- Vectors of a chunk, each dimension a byte: one for all of it, or one for each of its tokens.
CREATE TABLE keepthread.vectors (
    sid    bigint  NOT NULL,
    at     bigint  NOT NULL,
    whose  bigint  NOT NULL,
    tenant integer NOT NULL,
    view   integer NOT NULL,
    dims   integer NOT NULL,
    ids    bytea   NOT NULL,  -- the tokens, four bytes each, the lowest first; empty: one for all
    data   bytea   NOT NULL
) PARTITION BY HASH (tenant, whose);

ALTER TABLE keepthread.vectors ALTER COLUMN data SET STORAGE EXTERNAL;  -- it would hardly compress

DO $$
DECLARE
    partitions CONSTANT integer := current_setting('keepthread.partitions');
    place text;
BEGIN
    FOREACH place IN ARRAY ARRAY['messages messages', 'records records', 'words asked', 'vectors vectors'] LOOP
        FOR n IN 0 .. partitions - 1 LOOP
            EXECUTE format(
                'CREATE TABLE keepthread.%s_%s PARTITION OF keepthread.%s'
                ' FOR VALUES WITH (MODULUS %s, REMAINDER %s)',
                split_part(place, ' ', 1), n, split_part(place, ' ', 2), partitions, n);
        END LOOP;
    END LOOP;
END
$$;

-- Partial, so that only a query that says `at > 0` may use them: one that looks for words or for near
-- vectors has only the other index to choose, whatever the planner assumes about the tables.
CREATE INDEX words_by_place ON keepthread.words (sid, at) WHERE at > 0;
CREATE UNIQUE INDEX vectors_by_place ON keepthread.vectors (tenant, view, whose, sid, at) WHERE at > 0;

-- New rows are indexed immediately: a list of pending ones would be read with every query, and keep
-- what was erased.
CREATE INDEX words_by_word ON keepthread.words USING gin (words) WITH (fastupdate = off);

-- The planner's statistics hold samples of a column, and keep them when the rows are gone. No
-- statement compares content by its value, so none are taken of it.
DO $$
DECLARE
    one record;
BEGIN
    FOR one IN
        SELECT c.oid::regclass AS place, a.attname AS name
        FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid
        WHERE c.relnamespace = 'keepthread'::regnamespace AND c.relkind IN ('r', 'p')
          AND a.attname IN ('content', 'extra', 'value', 'details', 'speaker', 'words', 'ids', 'data')
    LOOP
        EXECUTE format('ALTER TABLE %s ALTER COLUMN %I SET STATISTICS 0', one.place, one.name);
    END LOOP;
END
$$;
