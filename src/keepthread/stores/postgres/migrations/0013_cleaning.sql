-- Forgetting.

-- The planner's statistics hold samples of what is in a column, and keep them when the rows are gone.
-- No statement asks for what is said by its value, so none are taken of it.
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

-- As before, but once something was erased in a session it appends with care: a row that an index
-- refuses stays in the table's file, with the text that was to be gone from there.
CREATE OR REPLACE FUNCTION keepthread.append(
    _tenant integer, _sid bigint, _id bytea, _role bigint, _content bytea, _extra bytea,
    _tokens bigint, _counter bytea, _created_at double precision, _digest bytea,
    _expect bigint, _exchange bigint, _now double precision,
    OUT known boolean, OUT seq bigint, OUT exchange bigint, OUT total bigint
)
LANGUAGE plpgsql AS $$
DECLARE
    active double precision;
    epoch  bigint;
BEGIN
    PERFORM set_config('keepthread.tenant', _tenant::text, true);
    SELECT s.active_at, s.epoch INTO active, epoch FROM keepthread.sessions s
    WHERE s.tenant = _tenant AND s.sid = _sid FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RAISE EXCEPTION USING ERRCODE = 'KT001', MESSAGE = 'the session was deleted';
    END IF;

    INSERT INTO keepthread.messages AS new (
        sid, seq, tokens, exchange, exchanges, total, created_at, tenant, role, id, counter, digest,
        guard, extra, content
    )
    SELECT _sid, n.seq, _tokens, n.exchange, n.exchanges, n.total, _created_at, _tenant, _role, _id,
           _counter, _digest,
           keepthread.guard_of(
               _sid, n.seq, _tokens, _counter, n.exchange, n.exchanges, n.total, _created_at, _digest),
           _extra, _content
    FROM (
        SELECT h.seq + 1 AS seq, h.total + _tokens AS total,
               coalesce(_exchange, h.exchanges + (_role = 1)::integer) AS exchange,
               h.exchanges + (_exchange IS NULL AND _role = 1)::integer AS exchanges
        FROM (
            SELECT l.seq, l.tokens, l.counter, l.exchange, l.exchanges, l.total, l.created_at, l.digest,
                   l.guard
            FROM keepthread.messages l
            WHERE l.tenant = _tenant AND l.sid = _sid
            ORDER BY l.seq DESC LIMIT 1
        ) h
        WHERE h.guard = keepthread.guard_of(
            _sid, h.seq, h.tokens, h.counter, h.exchange, h.exchanges, h.total, h.created_at, h.digest)
          AND coalesce(_exchange BETWEEN 1 AND h.exchanges, true) AND coalesce(_expect = h.seq, true)
          AND epoch = 0 AND h.total + _tokens <= 9007199254740991
    ) n
    RETURNING false, new.seq, new.exchange, new.total INTO known, seq, exchange, total;
    IF NOT FOUND THEN
        SELECT a.known, a.seq, a.exchange, a.total INTO known, seq, exchange, total
        FROM keepthread.append_with_care(
            _tenant, _sid, _id, _role, _content, _extra, _tokens, _counter, _created_at, _digest,
            _expect, _exchange, _now) a;
    ELSIF _now >= active + 1 THEN  -- once a second: the indexes of lists are written as well
        UPDATE keepthread.sessions s  -- as `touch` does, but planned once
        SET active_at = _now, active_guard = keepthread.guard_of_activity(_sid, _now)
        WHERE s.tenant = _tenant AND s.sid = _sid;
    END IF;
END
$$;
