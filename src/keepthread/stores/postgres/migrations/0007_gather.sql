-- All that a context is made of, in one call and of one moment.

-- Rows of one shape. Part 1 are the newest messages, the last one first; 0 is the session (content:
-- its details, seq: where the newest messages begin); 2 records in any order (seq: version, id: key,
-- counter: kind, content: value, extra: made_of); 3 the messages that followed records are made of.
-- `intact` is of the session or the record.
CREATE TYPE keepthread.gathered AS (
    part integer, intact boolean, seq bigint, id bytea, role smallint, content bytea, extra bytea,
    tokens bigint, counter bytea, exchange bigint, exchanges bigint, total bigint,
    created_at double precision, digest bytea, guard bytea
);

CREATE FUNCTION keepthread.gather(
    _tenant integer, _sid bigint, _tokens bigint, _least bigint, _kinds bytea[], _follow bytea[]
) RETURNS SETOF keepthread.gathered
LANGUAGE plpgsql STABLE AS $$
DECLARE
    one   keepthread.gathered;
    first bigint := 1;
    newer bigint;
    room  bigint := _tokens;
    taken bigint := 0;
BEGIN
    PERFORM set_config('keepthread.tenant', _tenant::text, true);
    FOR one IN  -- stepping back as `first_of_tail` does, but reading the rows as well
        SELECT 1, true, m.seq, m.id, m.role, m.content, nullif(m.extra, ''), m.tokens, m.counter,
               m.exchange, m.exchanges, m.total, m.created_at, m.digest, m.guard
        FROM keepthread.messages m
        WHERE m.tenant = _tenant AND m.sid = _sid
        ORDER BY m.seq DESC
    LOOP
        IF one.tokens > room AND taken >= _least THEN
            IF one.guard = keepthread.guard_of(
                _sid, one.seq, one.tokens, one.counter, one.exchange, one.exchanges, one.total,
                one.created_at, one.digest
            ) THEN
                first := coalesce(newer, one.seq + 1);
                EXIT;
            END IF;
        ELSE
            room := room - one.tokens;
        END IF;
        newer := one.seq;
        taken := taken + 1;
        RETURN NEXT one;
    END LOOP;

    RETURN QUERY
        SELECT 0, s.guard = keepthread.guard_of_session(s), first, s.id, 0::smallint, s.details,
               NULL::bytea, 0::bigint, NULL::bytea, 0::bigint, 0::bigint, 0::bigint,
               0::double precision, NULL::bytea, NULL::bytea
        FROM keepthread.sessions s
        WHERE s.tenant = _tenant AND s.sid = _sid;
    IF NOT FOUND OR cardinality(_kinds) = 0 THEN
        RETURN;
    END IF;

    RETURN QUERY
        SELECT 2, r.guard = keepthread.guard_of_record(
                   r.tenant, r.sid, r.owner, r.kind, r.key, r.version, r.value, r.made_of,
                   r.firsts, r.lasts),
               r.version, r.key, 0::smallint, r.value, r.made_of, 0::bigint, r.kind, 0::bigint,
               0::bigint, 0::bigint, 0::double precision, NULL::bytea, NULL::bytea
        FROM keepthread.shelf r
        WHERE r.tenant = _tenant AND r.sid = _sid AND r.whose = '' AND r.kind = ANY (_kinds);
    IF FOUND AND cardinality(_follow) > 0 THEN
        RETURN QUERY
            SELECT 3, true, m.seq, m.id, m.role, m.content, nullif(m.extra, ''), m.tokens, m.counter,
                   m.exchange, m.exchanges, m.total, m.created_at, m.digest, m.guard
            FROM (
                SELECT DISTINCT span.low, span.high
                FROM keepthread.shelf r, unnest(r.firsts, r.lasts) AS span (low, high)
                WHERE r.tenant = _tenant AND r.sid = _sid AND r.whose = '' AND r.kind = ANY (_follow)
            ) span,
            LATERAL (
                SELECT * FROM keepthread.messages m
                WHERE m.tenant = _tenant AND m.sid = _sid AND m.seq BETWEEN span.low AND span.high
                OFFSET 0  -- never the other way round: the whole log, held against the spans
            ) m;
    END IF;
END
$$;
