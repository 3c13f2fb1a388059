-- The log of a session: appending and reading messages.
--
-- Errors have codes of our own: KT001 the session is gone, KT002 something moved, KT003 another body
-- under a known id, KT004 a turn that was never opened or too many tokens.
--
-- Every function that reads names one tenant and one session, and so one partition. All of them are
-- STABLE: what one call returns is of one moment.

-- The checksum of a row; Python computes the same when it reads.
CREATE FUNCTION keepthread.guard_of(
    _place bigint, _seq bigint, _tokens bigint, _counter bytea, _turn bigint,
    _turns bigint, _total bigint, _created_at double precision, _digest bytea
) RETURNS bytea
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT substr(sha256(
        _digest || int8send(_place) || int8send(_seq) || int8send(_tokens) || int8send(_turn)
        || int8send(_turns) || int8send(_total) || float8send(_created_at) || _counter
    ), 1, 8)
$$;

-- The end of a log whose last row is damaged: after the last sound row; damaged rows after that count
-- where they are in place.
CREATE FUNCTION keepthread.head_before_damage(
    _tenant integer, _sid bigint, OUT seq bigint, OUT turns bigint, OUT total bigint
)
LANGUAGE plpgsql STABLE AS $$
DECLARE
    m       record;
    damaged bigint[] := '{}';
BEGIN
    seq := 0; turns := 0; total := 0;
    FOR m IN
        SELECT o.seq, o.tokens, o.counter, o.turn, o.turns, o.total, o.created_at, o.digest, o.guard
        FROM keepthread.messages o
        WHERE o.tenant = _tenant AND o.sid = _sid
        ORDER BY o.seq DESC
    LOOP
        IF m.guard = keepthread.guard_of(
            _sid, m.seq, m.tokens, m.counter, m.turn, m.turns, m.total, m.created_at, m.digest
        ) THEN
            seq := m.seq; turns := m.turns; total := m.total;
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
    _tenant integer, _sid bigint, OUT seq bigint, OUT turns bigint, OUT total bigint
)
LANGUAGE plpgsql STABLE AS $$
DECLARE
    m record;
BEGIN
    SELECT l.seq, l.tokens, l.counter, l.turn, l.turns, l.total, l.created_at, l.digest, l.guard
    INTO m
    FROM keepthread.messages l
    WHERE l.tenant = _tenant AND l.sid = _sid
    ORDER BY l.seq DESC LIMIT 1;
    IF NOT FOUND THEN
        seq := 0; turns := 0; total := 0;
    ELSIF m.guard = keepthread.guard_of(
        _sid, m.seq, m.tokens, m.counter, m.turn, m.turns, m.total, m.created_at, m.digest
    ) THEN
        seq := m.seq; turns := m.turns; total := m.total;
    ELSE
        SELECT h.seq, h.turns, h.total INTO seq, turns, total
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

-- Append a message whose id may be known, or to a log that is empty or damaged.
CREATE FUNCTION keepthread.append_with_care(
    _tenant integer, _sid bigint, _id bytea, _role bigint, _content bytea, _extra bytea,
    _tokens bigint, _counter bytea, _created_at double precision, _digest bytea,
    _expect bigint, _turn bigint, _now double precision,
    OUT known boolean, OUT seq bigint, OUT turn bigint, OUT total bigint
)
LANGUAGE plpgsql AS $$
DECLARE
    active    double precision;
    forgotten boolean;
    theirs    bytea;
    session   bytea;
    head      record;
    same      record;
    turns bigint;
BEGIN
    PERFORM set_config('keepthread.tenant', _tenant::text, true);
    SELECT s.active_at, NOT s.ready AND position('"forgotten":true'::bytea IN s.details) > 0, s.owner, s.id
    INTO active, forgotten, theirs, session FROM keepthread.sessions s
    WHERE s.tenant = _tenant AND s.sid = _sid FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RAISE EXCEPTION USING ERRCODE = 'KT001', MESSAGE = 'the session was deleted';
    END IF;

    head := keepthread.head(_tenant, _sid);
    IF _turn NOT BETWEEN 1 AND head.turns THEN
        RAISE EXCEPTION USING ERRCODE = 'KT004', MESSAGE = format(
            'turn %s was never opened; there are %s', _turn, head.turns);
    END IF;
    IF forgotten AND keepthread.seq_of(_tenant, _sid, _id) IS NULL THEN
        RAISE EXCEPTION USING ERRCODE = 'KT001',
            MESSAGE = 'the session was forgotten; get it by its id to begin again';
    END IF;
    IF _expect <> head.seq AND keepthread.seq_of(_tenant, _sid, _id) IS NULL THEN
        RAISE EXCEPTION USING ERRCODE = 'KT002', MESSAGE = format(
            'the log ends at %s, not at %s', head.seq, _expect);
    END IF;

    seq := head.seq + 1;
    turns := head.turns + (_turn IS NULL AND _role = 1)::integer;
    turn := coalesce(_turn, turns);
    total := head.total + _tokens;
    known := false;
    INSERT INTO keepthread.messages (
        sid, seq, tokens, turn, turns, total, created_at, tenant, role, id, counter, digest,
        guard, extra, content
    ) VALUES (
        _sid, seq, _tokens, turn, turns, total, _created_at, _tenant, _role, _id, _counter, _digest,
        keepthread.guard_of(
            _sid, seq, _tokens, _counter, turn, turns, total, _created_at, _digest),
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
        PERFORM keepthread.note_change(_tenant, 3, theirs, _sid, session, ARRAY[_id]);
        PERFORM keepthread.note_unread(_tenant, _sid);
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

-- Append a message, or answer that it is known. The session's own row is locked first, so a log has one
-- writer at a time and no gaps. Then one statement reads where the log ends and writes after it. It does
-- not check whether the id is known: the index does, and the caller who gets unique_violation appends
-- with care. Once something was erased in a session, every append is made with care, and so it is while
-- the session is not ready, since it may be forgotten: a row that an index
-- refuses stays in the table's file, with the text that was to be gone from there.
CREATE FUNCTION keepthread.append(
    _tenant integer, _sid bigint, _id bytea, _role bigint, _content bytea, _extra bytea,
    _tokens bigint, _counter bytea, _created_at double precision, _digest bytea,
    _expect bigint, _turn bigint, _now double precision,
    OUT known boolean, OUT seq bigint, OUT turn bigint, OUT total bigint
)
LANGUAGE plpgsql AS $$
DECLARE
    active  double precision;
    plain   boolean;
    listed  boolean;
    theirs  bytea;
    session bytea;
    change  bigint;
BEGIN
    PERFORM set_config('keepthread.tenant', _tenant::text, true);
    SELECT s.active_at, s.epoch = 0 AND s.ready, s.kind <> 2, s.owner, s.id
    INTO active, plain, listed, theirs, session
    FROM keepthread.sessions s
    WHERE s.tenant = _tenant AND s.sid = _sid FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RAISE EXCEPTION USING ERRCODE = 'KT001', MESSAGE = 'the session was deleted';
    END IF;

    INSERT INTO keepthread.messages AS new (
        sid, seq, tokens, turn, turns, total, created_at, tenant, role, id, counter, digest,
        guard, extra, content
    )
    SELECT _sid, n.seq, _tokens, n.turn, n.turns, n.total, _created_at, _tenant, _role, _id,
           _counter, _digest,
           keepthread.guard_of(
               _sid, n.seq, _tokens, _counter, n.turn, n.turns, n.total, _created_at, _digest),
           _extra, _content
    FROM (
        SELECT h.seq + 1 AS seq, h.total + _tokens AS total,
               coalesce(_turn, h.turns + (_role = 1)::integer) AS turn,
               h.turns + (_turn IS NULL AND _role = 1)::integer AS turns
        FROM (
            SELECT l.seq, l.tokens, l.counter, l.turn, l.turns, l.total, l.created_at, l.digest,
                   l.guard
            FROM keepthread.messages l
            WHERE l.tenant = _tenant AND l.sid = _sid
            ORDER BY l.seq DESC LIMIT 1
        ) h
        WHERE h.guard = keepthread.guard_of(
            _sid, h.seq, h.tokens, h.counter, h.turn, h.turns, h.total, h.created_at, h.digest)
          AND coalesce(_turn BETWEEN 1 AND h.turns, true) AND coalesce(_expect = h.seq, true)
          AND plain AND h.total + _tokens <= 9007199254740991
    ) n
    RETURNING false, new.seq, new.turn, new.total INTO known, seq, turn, total;
    IF NOT FOUND THEN
        SELECT a.known, a.seq, a.turn, a.total INTO known, seq, turn, total
        FROM keepthread.append_with_care(
            _tenant, _sid, _id, _role, _content, _extra, _tokens, _counter, _created_at, _digest,
            _expect, _turn, _now) a;
        RETURN;
    END IF;
    IF _now >= active + 1 THEN  -- once a second: the indexes of lists are written as well
        UPDATE keepthread.sessions s  -- as `touch` does, but planned once
        SET active_at = _now, active_guard = keepthread.guard_of_activity(_sid, _now)
        WHERE s.tenant = _tenant AND s.sid = _sid;
    END IF;
    IF listed THEN  -- as `note_unread` does
        INSERT INTO keepthread.unread (whose, sid, tenant, view)
        VALUES (keepthread.whose(theirs), _sid, _tenant, 0) ON CONFLICT DO NOTHING;
    END IF;
    change := nextval('keepthread.change_numbers');
    INSERT INTO keepthread.changes (place, number, sid, at, tenant, kind, owner, session, ids)  -- as `note_change`
    VALUES (
        greatest(pg_current_xact_id(), pg_snapshot_xmax(pg_current_snapshot())), change, _sid,
        date_part('epoch', clock_timestamp()), _tenant, 3, theirs, session, ARRAY[_id]);
    IF change % 64 = 0 THEN
        PERFORM keepthread.trim_changes(_tenant);
    END IF;
END
$$;

-- Append several messages, all or none.
CREATE FUNCTION keepthread.append_all(
    _tenant integer, _sid bigint, _ids bytea[], _roles bigint[], _contents bytea[], _extras bytea[],
    _tokens bigint[], _counters bytea[], _times double precision[], _digests bytea[],
    _expect bigint, _turn bigint, _now double precision
) RETURNS TABLE (known boolean, seq bigint, turn bigint, total bigint)
LANGUAGE plpgsql AS $$
DECLARE
    one record;
BEGIN
    FOR one IN
        SELECT * FROM unnest(_ids, _roles, _contents, _extras, _tokens, _counters, _times, _digests)
            AS o (id, role, content, extra, tokens, counter, created_at, digest)
    LOOP
        SELECT a.known, a.seq, a.turn, a.total INTO known, seq, turn, total
        FROM keepthread.append_with_care(
            _tenant, _sid, one.id, one.role, one.content, one.extra, one.tokens, one.counter,
            one.created_at, one.digest, _expect, _turn, _now) a;
        RETURN NEXT;
        IF NOT known THEN
            _expect := _expect + 1;
        END IF;
    END LOOP;
END
$$;

-- A message as it is read, in the order of codec.Row.
CREATE TYPE keepthread.message AS (
    seq bigint, id bytea, role smallint, content bytea, extra bytea, tokens bigint, counter bytea,
    turn bigint, turns bigint, total bigint, created_at double precision, digest bytea,
    guard bytea
);

-- Whether a session exists, so that it may have records; owners and tenants always may.
CREATE FUNCTION keepthread.is_there(_tenant integer, _sid bigint) RETURNS boolean
LANGUAGE sql STABLE AS $$
    SELECT _sid = 0 OR EXISTS (
        SELECT FROM keepthread.sessions s WHERE s.tenant = _tenant AND s.sid = _sid)
$$;

-- Whether the numbers of a row are what was written.
CREATE FUNCTION keepthread.sound(_tenant integer, _sid bigint, _seq bigint) RETURNS boolean
LANGUAGE sql STABLE AS $$
    SELECT m.guard = keepthread.guard_of(
        m.sid, m.seq, m.tokens, m.counter, m.turn, m.turns, m.total, m.created_at, m.digest)
    FROM keepthread.messages m
    WHERE m.tenant = _tenant AND m.sid = _sid AND m.seq = _seq
$$;

-- Where the newest messages begin that fit, stepping back from the end; after `_after` if all do.
-- The row that ends the window must be sound: a damaged row costs nothing, whatever it claims.
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

-- The newest messages that fit, oldest first, after a row that has only the position where they begin.
-- No row at all: the session is gone.
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
        SELECT m.seq, m.id, m.role, m.content, nullif(m.extra, ''), m.tokens, m.counter, m.turn,
               m.turns, m.total, m.created_at, m.digest, m.guard
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
        SELECT m.seq, m.id, m.role, m.content, nullif(m.extra, ''), m.tokens, m.counter, m.turn,
               m.turns, m.total, m.created_at, m.digest, m.guard
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
            SELECT m.seq, m.id, m.role, m.content, nullif(m.extra, ''), m.tokens, m.counter, m.turn,
                   m.turns, m.total, m.created_at, m.digest, m.guard
            FROM keepthread.messages m
            WHERE m.tenant = _tenant AND m.sid = _sid AND m.seq = o.seq
            OFFSET 0  -- one by one: never the whole log, held against the list
        ) m;
END
$$;

-- All that a context is made of, in one call and of one moment, in rows of one shape. Part 1 are the
-- newest messages, the last one first; 0 is the session (content: its details, seq: where the newest
-- messages begin); 2 records in any order (seq: version, id: key, counter: kind, content: value, extra:
-- made_of); 3 the messages that followed records are made of. `intact` is of the session or the record.
-- Of each followed kind, the records that were put last are returned, one more than the limit if there
-- are more.
CREATE TYPE keepthread.gathered AS (
    part integer, intact boolean, seq bigint, id bytea, role smallint, content bytea, extra bytea,
    tokens bigint, counter bytea, turn bigint, turns bigint, total bigint,
    created_at double precision, digest bytea, guard bytea
);

CREATE FUNCTION keepthread.gather(
    _tenant integer, _sid bigint, _tokens bigint, _least bigint, _kinds bytea[], _follow bytea[],
    _limit bigint
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
               m.turn, m.turns, m.total, m.created_at, m.digest, m.guard
        FROM keepthread.messages m
        WHERE m.tenant = _tenant AND m.sid = _sid
        ORDER BY m.seq DESC
    LOOP
        IF one.tokens > room AND taken >= _least THEN
            IF one.guard = keepthread.guard_of(
                _sid, one.seq, one.tokens, one.counter, one.turn, one.turns, one.total,
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
    IF NOT FOUND THEN
        RETURN;
    END IF;

    RETURN QUERY
        SELECT 2, r.guard = keepthread.guard_of_record(
                   r.tenant, r.sid, r.owner, r.kind, r.key, r.version, r.value, r.made_of,
                   r.firsts, r.lasts),
               r.version, r.key, 0::smallint, r.value, r.made_of, 0::bigint, r.kind, 0::bigint,
               0::bigint, 0::bigint, 0::double precision, NULL::bytea, NULL::bytea
        FROM keepthread.records r
        WHERE r.tenant = _tenant AND r.sid = _sid AND r.whose = '' AND r.kind = ANY (_kinds);
    RETURN QUERY
        SELECT 2, r.guard = keepthread.guard_of_record(
                   r.tenant, r.sid, r.owner, r.kind, r.key, r.version, r.value, r.made_of,
                   r.firsts, r.lasts),
               r.version, r.key, 0::smallint, r.value, r.made_of, 0::bigint, r.kind, 0::bigint,
               0::bigint, 0::bigint, 0::double precision, NULL::bytea, NULL::bytea
        FROM unnest(_follow) AS followed (kind), LATERAL (
            SELECT * FROM keepthread.records r
            WHERE r.tenant = _tenant AND r.sid = _sid AND r.kind = followed.kind AND r.sid > 0
            ORDER BY r.version DESC LIMIT _limit + 1
        ) r;
    IF FOUND THEN
        RETURN QUERY
            SELECT 3, true, m.seq, m.id, m.role, m.content, nullif(m.extra, ''), m.tokens, m.counter,
                   m.turn, m.turns, m.total, m.created_at, m.digest, m.guard
            FROM (
                SELECT DISTINCT span.low, span.high
                FROM unnest(_follow) AS followed (kind), LATERAL (
                    SELECT r.firsts, r.lasts FROM keepthread.records r
                    WHERE r.tenant = _tenant AND r.sid = _sid AND r.kind = followed.kind AND r.sid > 0
                    ORDER BY r.version DESC LIMIT _limit
                ) r, unnest(r.firsts, r.lasts) AS span (low, high)
            ) span,
            LATERAL (
                SELECT * FROM keepthread.messages m
                WHERE m.tenant = _tenant AND m.sid = _sid AND m.seq BETWEEN span.low AND span.high
                OFFSET 0  -- never the other way round: the whole log, held against the spans
            ) m;
    END IF;
END
$$;
