-- The tables. Names are bytes, not text: they sort by code point whatever the database's collation,
-- and content may hold NUL and lone surrogates, which text cannot.
--
-- Plans are kept, and may be made while a table is empty, when every index seems as good as another.
-- So each statement leaves but one to take. An index by id is partial, though nothing is outside of
-- it: only who looks for an id says `seq > 0`, and may use it. Who does asks for a range of ids in
-- their order, which the primary key does not have.

-- The wall between customers, by number: eight bytes less in every row and index entry than a name.
-- The number follows from the name, so that a failover that loses it does not give it to another.
CREATE TABLE keepthread.tenants (
    tenant integer PRIMARY KEY,
    name   bytea NOT NULL UNIQUE
);

-- Neither a session's place nor a record's version is ever given twice, so nothing of a deleted
-- session can apply to a new one, and a version never returns.
CREATE SEQUENCE keepthread.places;
CREATE SEQUENCE keepthread.versions;

-- The next of a sequence. A standby that takes over, or a backup that is restored, may be behind, and
-- count numbers again that were given out; so the last twenty bits of each are drawn by chance.
CREATE FUNCTION keepthread.next_of(_sequence regclass) RETURNS bigint
LANGUAGE sql VOLATILE AS $$
    SELECT nextval(_sequence) * 1048576 + floor(random() * 1048576)::bigint
$$;

-- One row a session; who appends holds its lock. `guard` covers all columns but the last two,
-- which alone change while messages arrive.
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

CREATE UNIQUE INDEX sessions_by_id ON keepthread.sessions (id, tenant) WHERE sid > 0;
CREATE INDEX sessions_by_activity ON keepthread.sessions (tenant, active_at, sid)
    WHERE ready AND kind <> 2;
CREATE INDEX sessions_by_owner ON keepthread.sessions (tenant, owner, active_at, sid)
    WHERE ready AND kind <> 2;

-- One row a message. The last row of a session is its head: position, exchanges and token total
-- are read from there, so that an append updates nothing. Wide columns come first, so that no
-- byte is lost between them, and no column is NULL in a living row, which saves its null bitmap.
CREATE TABLE keepthread.messages (
    sid        bigint           NOT NULL,
    seq        bigint           NOT NULL,
    tokens     bigint           NOT NULL,
    exchange   bigint           NOT NULL,
    exchanges  bigint           NOT NULL,  -- running count of the log
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

-- One row a record. A session's shelf has its sid, an owner's its name, the tenant's neither.
-- `whose` is the owner's name, or a digest of a long one: three long names do not fit an index.
-- `firsts` and `lasts` are the positions of the shelf's own session that `made_of` names.
CREATE TABLE keepthread.shelf (
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
    PRIMARY KEY (tenant, sid, whose, kind, key)
) PARTITION BY HASH (tenant, sid);

DO $$
DECLARE
    partitions CONSTANT integer := current_setting('keepthread.partitions');
BEGIN
    FOR n IN 0 .. partitions - 1 LOOP
        EXECUTE format(
            'CREATE TABLE keepthread.messages_%s PARTITION OF keepthread.messages'
            ' FOR VALUES WITH (MODULUS %s, REMAINDER %s)', n, partitions, n);
        EXECUTE format(
            'CREATE TABLE keepthread.shelf_%s PARTITION OF keepthread.shelf'
            ' FOR VALUES WITH (MODULUS %s, REMAINDER %s)', n, partitions, n);
    END LOOP;
END
$$;
