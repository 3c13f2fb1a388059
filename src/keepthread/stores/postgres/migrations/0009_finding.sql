-- Finding: where words stand, and vectors of what was said. All of it is made from the log and can be
-- made again, so nothing here is guarded.
--
-- `at` is a place without its session: position, piece and length in one number, as
-- `keepthread.recall.places` has it. `whose` stands for the owner's name, `view` for the view's: an
-- index is asked for by these, and names may be long.

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

CREATE TABLE keepthread.sittings (
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

-- One row a piece of a message. What its words become is eight letters each: five for the word in
-- this view of this tenant, three for the owner. So an index reads the words of one owner side by
-- side, or by the first five of all owners; any database's encoding has them; and what is erased
-- leaves no word in an index that keeps its entries until it is made anew.
--
-- `asked` is the same rows behind another door, for who looks for words: see the wall below.
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

-- Vectors of a piece, each dimension a byte: one for all of it, or one for each of its tokens.
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

ALTER TABLE keepthread.vectors ALTER COLUMN data SET STORAGE EXTERNAL;  -- it would hardly shrink

DO $$
DECLARE
    partitions CONSTANT integer := current_setting('keepthread.partitions');
BEGIN
    FOR n IN 0 .. partitions - 1 LOOP
        EXECUTE format(
            'CREATE TABLE keepthread.words_%s PARTITION OF keepthread.asked'
            ' FOR VALUES WITH (MODULUS %s, REMAINDER %s)', n, partitions, n);
        EXECUTE format(
            'CREATE TABLE keepthread.vectors_%s PARTITION OF keepthread.vectors'
            ' FOR VALUES WITH (MODULUS %s, REMAINDER %s)', n, partitions, n);
    END LOOP;
END
$$;

-- Partial, so that only who says `at > 0` may use them: who looks for words or for what is near has
-- but the other index to take, whatever the planner believes of the tables.
CREATE INDEX words_by_place ON keepthread.words (sid, at) WHERE at > 0;
CREATE UNIQUE INDEX vectors_by_place ON keepthread.vectors (tenant, view, whose, sid, at) WHERE at > 0;

-- What is written goes into its place at once: a list of what is pending would be read with every
-- question, and hold what was erased.
CREATE INDEX words_by_word ON keepthread.words USING gin (words) WITH (fastupdate = off);

-- The walls, as around all other rows. Behind a wall no index is asked whether a row holds a word: the
-- operator might tell of rows that are not the tenant's, as far as PostgreSQL knows, so that each row
-- would be looked at. Only what a wall itself asks may use an index. So this door's wall asks it: rows
-- of the tenant that the transaction has named and that hold what it has named, and no others.
DO $$
DECLARE
    wall  CONSTANT text :=
        'tenant = (SELECT nullif(current_setting(''keepthread.tenant'', true), '''')::integer)';
    asked CONSTANT text :=
        'words @@ (SELECT nullif(current_setting(''keepthread.asked'', true), '''')::tsquery)';
    one record;
BEGIN
    FOR one IN
        SELECT oid::regclass AS place, relname FROM pg_class
        WHERE relnamespace = 'keepthread'::regnamespace AND relkind IN ('r', 'p')
          AND (relname IN ('readings', 'sittings', 'asked') OR relname ~ '^(words|vectors)')
    LOOP
        EXECUTE format('ALTER TABLE %s ENABLE ROW LEVEL SECURITY', one.place);
        EXECUTE format('ALTER TABLE %s FORCE ROW LEVEL SECURITY', one.place);
        EXECUTE format('CREATE POLICY wall ON %s USING (%s)', one.place, concat_ws(
            ' AND ', wall, CASE WHEN one.relname = 'asked' THEN asked END));
    END LOOP;
END
$$;

DO $$
BEGIN
    IF EXISTS (SELECT FROM pg_roles WHERE rolname = 'keepthread_app') THEN
        GRANT SELECT ON keepthread.asked TO keepthread_app;
        GRANT SELECT, INSERT, UPDATE, DELETE
            ON keepthread.readings, keepthread.sittings, keepthread.words, keepthread.vectors
            TO keepthread_app;
    END IF;
END
$$;
