-- Appending: one call stores a message, or answers that it is known.
--
-- What is refused has a code of ours: KT001 the session is gone, KT002 something moved,
-- KT003 another body under a known id, KT004 an exchange that was never opened or too many tokens.

-- What a row's guard must be; Python computes the same when it reads.
CREATE FUNCTION keepthread.guard_of(
    _place bigint, _seq bigint, _tokens bigint, _counter bytea, _exchange bigint,
    _exchanges bigint, _total bigint, _created_at double precision, _digest bytea
) RETURNS bytea
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT substr(sha256(
        _digest || int8send(_place) || int8send(_seq) || int8send(_tokens) || int8send(_exchange)
        || int8send(_exchanges) || int8send(_total) || float8send(_created_at) || _counter
    ), 1, 8)
$$;

-- The end of a log whose last row is damaged: behind the last sound one; damaged ones behind that
-- count where they stand in place.
CREATE FUNCTION keepthread.head_before_damage(
    _tenant integer, _sid bigint, OUT seq bigint, OUT exchanges bigint, OUT total bigint
)
LANGUAGE plpgsql STABLE AS $$
DECLARE
    m       record;
    damaged bigint[] := '{}';
BEGIN
    seq := 0; exchanges := 0; total := 0;
    FOR m IN
        SELECT o.seq, o.tokens, o.counter, o.exchange, o.exchanges, o.total, o.created_at, o.digest, o.guard
        FROM keepthread.messages o
        WHERE o.tenant = _tenant AND o.sid = _sid
        ORDER BY o.seq DESC
    LOOP
        IF m.guard = keepthread.guard_of(
            _sid, m.seq, m.tokens, m.counter, m.exchange, m.exchanges, m.total, m.created_at, m.digest
        ) THEN
            seq := m.seq; exchanges := m.exchanges; total := m.total;
            EXIT;
        END IF;
        damaged := damaged || m.seq;
    END LOOP;
    seq := seq + (
        SELECT count(*) FROM unnest(damaged) AS place WHERE place <= seq + cardinality(damaged));
END
$$;

-- Where a log ends.
CREATE FUNCTION keepthread.head(
    _tenant integer, _sid bigint, OUT seq bigint, OUT exchanges bigint, OUT total bigint
)
LANGUAGE plpgsql STABLE AS $$
DECLARE
    m record;
BEGIN
    SELECT l.seq, l.tokens, l.counter, l.exchange, l.exchanges, l.total, l.created_at, l.digest, l.guard
    INTO m
    FROM keepthread.messages l
    WHERE l.tenant = _tenant AND l.sid = _sid
    ORDER BY l.seq DESC LIMIT 1;
    IF NOT FOUND THEN
        seq := 0; exchanges := 0; total := 0;
    ELSIF m.guard = keepthread.guard_of(
        _sid, m.seq, m.tokens, m.counter, m.exchange, m.exchanges, m.total, m.created_at, m.digest
    ) THEN
        seq := m.seq; exchanges := m.exchanges; total := m.total;
    ELSE
        SELECT h.seq, h.exchanges, h.total INTO seq, exchanges, total
        FROM keepthread.head_before_damage(_tenant, _sid) h;
    END IF;
END
$$;

-- The position of an id, or NULL.
CREATE FUNCTION keepthread.seq_of(_tenant integer, _sid bigint, _id bytea) RETURNS bigint
LANGUAGE sql STABLE AS $$
    SELECT m.seq FROM keepthread.messages m
    WHERE m.tenant = _tenant AND m.sid = _sid AND m.id BETWEEN _id AND _id AND m.seq > 0
    ORDER BY m.id LIMIT 1
$$;

-- A message whose id may be known, or behind a log that is empty or damaged.
CREATE FUNCTION keepthread.append_with_care(
    _tenant integer, _sid bigint, _id bytea, _role bigint, _content bytea, _extra bytea,
    _tokens bigint, _counter bytea, _created_at double precision, _digest bytea,
    _expect bigint, _exchange bigint, _now double precision,
    OUT known boolean, OUT seq bigint, OUT exchange bigint, OUT total bigint
)
LANGUAGE plpgsql AS $$
DECLARE
    active    double precision;
    head      record;
    same      record;
    exchanges bigint;
BEGIN
    PERFORM set_config('keepthread.tenant', _tenant::text, true);
    SELECT s.active_at INTO active FROM keepthread.sessions s
    WHERE s.tenant = _tenant AND s.sid = _sid FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RAISE EXCEPTION USING ERRCODE = 'KT001', MESSAGE = 'the session was deleted';
    END IF;

    head := keepthread.head(_tenant, _sid);
    IF _exchange NOT BETWEEN 1 AND head.exchanges THEN
        RAISE EXCEPTION USING ERRCODE = 'KT004', MESSAGE = format(
            'exchange %s was never opened; there are %s', _exchange, head.exchanges);
    END IF;
    IF _expect <> head.seq AND keepthread.seq_of(_tenant, _sid, _id) IS NULL THEN
        RAISE EXCEPTION USING ERRCODE = 'KT002', MESSAGE = format(
            'the log ends at %s, not at %s', head.seq, _expect);
    END IF;

    seq := head.seq + 1;
    exchanges := head.exchanges + (_exchange IS NULL AND _role = 1)::integer;
    exchange := coalesce(_exchange, exchanges);
    total := head.total + _tokens;
    known := false;
    INSERT INTO keepthread.messages (
        sid, seq, tokens, exchange, exchanges, total, created_at, tenant, role, id, counter, digest,
        guard, extra, content
    ) VALUES (
        _sid, seq, _tokens, exchange, exchanges, total, _created_at, _tenant, _role, _id, _counter, _digest,
        keepthread.guard_of(
            _sid, seq, _tokens, _counter, exchange, exchanges, total, _created_at, _digest),
        _extra, _content
    ) ON CONFLICT (id, sid, tenant) WHERE messages.seq > 0 DO NOTHING;
    IF FOUND THEN
        IF total > 9007199254740991 THEN
            RAISE EXCEPTION USING ERRCODE = 'KT004', MESSAGE = format(
                'the log would count %s tokens; it can count %s at most', total, 9007199254740991);
        END IF;
        IF _now >= active + 1 THEN
            PERFORM keepthread.touch(_tenant, _sid, _now);
        END IF;
        RETURN;
    END IF;

    known := true;
    seq := keepthread.seq_of(_tenant, _sid, _id);
    SELECT m.digest, m.content IS NULL AS erased INTO same FROM keepthread.messages m
    WHERE m.tenant = _tenant AND m.sid = _sid AND m.seq = append_with_care.seq;
    IF same.digest <> _digest AND NOT same.erased THEN
        RAISE EXCEPTION USING ERRCODE = 'KT003', MESSAGE = 'another body under a known id',
            DETAIL = encode(_id, 'hex');
    END IF;
END
$$;

-- The session's own row is locked first, so a log has one writer at a time and no gaps. Then one
-- statement reads where the log ends and writes behind it. It does not ask whether the id is known:
-- the index does, and whoever is told so (unique_violation) appends with care.
CREATE FUNCTION keepthread.append(
    _tenant integer, _sid bigint, _id bytea, _role bigint, _content bytea, _extra bytea,
    _tokens bigint, _counter bytea, _created_at double precision, _digest bytea,
    _expect bigint, _exchange bigint, _now double precision,
    OUT known boolean, OUT seq bigint, OUT exchange bigint, OUT total bigint
)
LANGUAGE plpgsql AS $$
DECLARE
    active double precision;
BEGIN
    PERFORM set_config('keepthread.tenant', _tenant::text, true);
    SELECT s.active_at INTO active FROM keepthread.sessions s
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

-- Several messages, all or none.
CREATE FUNCTION keepthread.append_all(
    _tenant integer, _sid bigint, _ids bytea[], _roles bigint[], _contents bytea[], _extras bytea[],
    _tokens bigint[], _counters bytea[], _times double precision[], _digests bytea[],
    _expect bigint, _exchange bigint, _now double precision
) RETURNS TABLE (known boolean, seq bigint, exchange bigint, total bigint)
LANGUAGE plpgsql AS $$
DECLARE
    one record;
BEGIN
    FOR one IN
        SELECT * FROM unnest(_ids, _roles, _contents, _extras, _tokens, _counters, _times, _digests)
            AS o (id, role, content, extra, tokens, counter, created_at, digest)
    LOOP
        SELECT a.known, a.seq, a.exchange, a.total INTO known, seq, exchange, total
        FROM keepthread.append_with_care(
            _tenant, _sid, one.id, one.role, one.content, one.extra, one.tokens, one.counter,
            one.created_at, one.digest, _expect, _exchange, _now) a;
        RETURN NEXT;
        IF NOT known THEN
            _expect := _expect + 1;
        END IF;
    END LOOP;
END
$$;
