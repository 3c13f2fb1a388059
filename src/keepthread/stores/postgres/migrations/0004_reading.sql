-- Reading: every function names one tenant and one session, and so one partition. All are STABLE:
-- what one call returns is of one moment.

-- A message as it is read, in the order of codec.Row.
CREATE TYPE keepthread.message AS (
    seq bigint, id bytea, role smallint, content bytea, extra bytea, tokens bigint, counter bytea,
    exchange bigint, exchanges bigint, total bigint, created_at double precision, digest bytea,
    guard bytea
);

-- Whether a session is there, and its shelf with it; other shelves always are.
CREATE FUNCTION keepthread.is_there(_tenant integer, _sid bigint) RETURNS boolean
LANGUAGE sql STABLE AS $$
    SELECT _sid = 0 OR EXISTS (
        SELECT FROM keepthread.sessions s WHERE s.tenant = _tenant AND s.sid = _sid)
$$;

-- Whether the numbers of a row are what was written.
CREATE FUNCTION keepthread.sound(_tenant integer, _sid bigint, _seq bigint) RETURNS boolean
LANGUAGE sql STABLE AS $$
    SELECT m.guard = keepthread.guard_of(
        m.sid, m.seq, m.tokens, m.counter, m.exchange, m.exchanges, m.total, m.created_at, m.digest)
    FROM keepthread.messages m
    WHERE m.tenant = _tenant AND m.sid = _sid AND m.seq = _seq
$$;

-- Where the newest messages begin that fit, stepping back from the end; behind `_after` if all do.
-- What ends the window must be sound: a damaged row costs nothing, whatever it says of itself.
CREATE FUNCTION keepthread.first_of_tail(
    _tenant integer, _sid bigint, _tokens bigint, _limit bigint, _before bigint, _after bigint,
    _least bigint
) RETURNS bigint
LANGUAGE plpgsql STABLE AS $$
DECLARE
    one   record;
    first bigint := _before;
    room  bigint := _tokens;
    taken bigint := 0;
BEGIN
    FOR one IN
        SELECT m.seq, m.tokens FROM keepthread.messages m
        WHERE m.tenant = _tenant AND m.sid = _sid AND m.seq < _before AND m.seq > _after
        ORDER BY m.seq DESC
    LOOP
        IF taken = _limit THEN
            RETURN first;
        ELSIF one.tokens > room AND taken >= _least THEN
            IF keepthread.sound(_tenant, _sid, one.seq) THEN
                RETURN first;
            END IF;
        ELSE
            room := room - one.tokens;
        END IF;
        first := one.seq;
        taken := taken + 1;
    END LOOP;
    RETURN _after + 1;
END
$$;

-- The newest messages that fit, oldest first, behind a row that has no more than the position where
-- they begin. Nothing at all: the session is gone.
CREATE FUNCTION keepthread.tail(
    _tenant integer, _sid bigint, _tokens bigint, _limit bigint, _before bigint, _after bigint,
    _least bigint
) RETURNS SETOF keepthread.message
LANGUAGE plpgsql STABLE AS $$
DECLARE
    start keepthread.message;
BEGIN
    PERFORM set_config('keepthread.tenant', _tenant::text, true);
    IF NOT keepthread.is_there(_tenant, _sid) THEN
        RETURN;
    END IF;
    start.seq := keepthread.first_of_tail(_tenant, _sid, _tokens, _limit, _before, _after, _least);
    RETURN NEXT start;
    RETURN QUERY
        SELECT m.seq, m.id, m.role, m.content, nullif(m.extra, ''), m.tokens, m.counter, m.exchange,
               m.exchanges, m.total, m.created_at, m.digest, m.guard
        FROM keepthread.messages m
        WHERE m.tenant = _tenant AND m.sid = _sid AND m.seq >= start.seq AND m.seq < _before
        ORDER BY m.seq;
END
$$;

CREATE FUNCTION keepthread.read(
    _tenant integer, _sid bigint, _after bigint, _upto bigint, _limit bigint
) RETURNS SETOF keepthread.message
LANGUAGE plpgsql STABLE AS $$
BEGIN
    PERFORM set_config('keepthread.tenant', _tenant::text, true);
    RETURN QUERY
        SELECT m.seq, m.id, m.role, m.content, nullif(m.extra, ''), m.tokens, m.counter, m.exchange,
               m.exchanges, m.total, m.created_at, m.digest, m.guard
        FROM keepthread.messages m
        WHERE m.tenant = _tenant AND m.sid = _sid AND m.seq > _after AND m.seq <= _upto
        ORDER BY m.seq LIMIT _limit;
END
$$;

-- Messages by id and by position.
CREATE FUNCTION keepthread.find(_tenant integer, _sid bigint, _ids bytea[], _seqs bigint[])
RETURNS SETOF keepthread.message
LANGUAGE plpgsql STABLE AS $$
BEGIN
    PERFORM set_config('keepthread.tenant', _tenant::text, true);
    RETURN QUERY
        SELECT m.* FROM (
            SELECT unnest(_seqs) AS seq
            UNION SELECT keepthread.seq_of(_tenant, _sid, one) FROM unnest(_ids) AS one
        ) o,
        LATERAL (
            SELECT m.seq, m.id, m.role, m.content, nullif(m.extra, ''), m.tokens, m.counter, m.exchange,
                   m.exchanges, m.total, m.created_at, m.digest, m.guard
            FROM keepthread.messages m
            WHERE m.tenant = _tenant AND m.sid = _sid AND m.seq = o.seq
            OFFSET 0  -- one by one: never the whole log, held against the list
        ) m;
END
$$;
