-- All that a context is made of, in one call and of one moment.

-- Rows of one shape. Part 0 is the session (content: its details, seq: where the newest messages
-- begin), 1 its newest messages,
-- 2 records in any order (seq: version, id: key, counter: kind, content: value, extra: made_of), 3 the messages
-- that followed records are made of. `intact` is of the session or the record.
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
    first bigint;
BEGIN
    PERFORM set_config('keepthread.tenant', _tenant::text, true);
    first := keepthread.first_of_tail(
        _tenant, _sid, _tokens, NULL, 9223372036854775807, 0, _least);
    RETURN QUERY
        SELECT 0, s.guard = keepthread.guard_of_session(s), first, s.id, 0::smallint, s.details,
               NULL::bytea, 0::bigint, NULL::bytea, 0::bigint, 0::bigint, 0::bigint,
               0::double precision, NULL::bytea, NULL::bytea
        FROM keepthread.sessions s
        WHERE s.tenant = _tenant AND s.sid = _sid;
    IF NOT FOUND THEN
        RETURN;
    END IF;

    RETURN QUERY
        SELECT 1, true, m.seq, m.id, m.role, m.content, nullif(m.extra, ''), m.tokens, m.counter,
               m.exchange, m.exchanges, m.total, m.created_at, m.digest, m.guard
        FROM keepthread.messages m
        WHERE m.tenant = _tenant AND m.sid = _sid AND m.seq >= first
        ORDER BY m.seq;

    IF cardinality(_kinds) > 0 THEN
        RETURN QUERY
            SELECT 2, r.guard = keepthread.guard_of_record(
                       r.tenant, r.sid, r.owner, r.kind, r.key, r.version, r.value, r.made_of,
                       r.firsts, r.lasts),
                   r.version, r.key, 0::smallint, r.value, r.made_of, 0::bigint, r.kind, 0::bigint,
                   0::bigint, 0::bigint, 0::double precision, NULL::bytea, NULL::bytea
            FROM keepthread.shelf r
            WHERE r.tenant = _tenant AND r.sid = _sid AND r.whose = '' AND r.kind = ANY (_kinds);
    END IF;
    IF cardinality(_follow) > 0 THEN
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
