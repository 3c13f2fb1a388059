-- Reading the log into the indexes, and removing what is erased.
--
-- A reader moves the mark first, so that of two the second waits and is refused; then it writes, and at
-- the end locks the session and checks whether anything was erased. So appends do not wait for an index
-- that is being written, and an erasure either finds what was written or has it refused.

-- Ready sessions, without delegates: one, an owner's or all.
CREATE FUNCTION keepthread.readable(_tenant integer, _owner bytea, _sid bigint)
RETURNS TABLE (sid bigint, epoch bigint, owner bytea, active_at double precision)
LANGUAGE plpgsql STABLE AS $$
BEGIN
    IF _sid IS NOT NULL THEN
        RETURN QUERY
            SELECT s.sid, s.epoch, s.owner, s.active_at FROM keepthread.sessions s
            WHERE s.tenant = _tenant AND s.sid = _sid AND s.ready AND s.kind <> 2
              AND s.owner = coalesce(_owner, s.owner);
    ELSIF _owner IS NOT NULL THEN
        RETURN QUERY
            SELECT s.sid, s.epoch, s.owner, s.active_at FROM keepthread.sessions s
            WHERE s.tenant = _tenant AND s.owner BETWEEN _owner AND _owner AND s.ready AND s.kind <> 2
            ORDER BY s.owner DESC, s.active_at DESC, s.sid DESC;
    ELSE
        RETURN QUERY
            SELECT s.sid, s.epoch, s.owner, s.active_at FROM keepthread.sessions s
            WHERE s.tenant = _tenant AND s.ready AND s.kind <> 2
            ORDER BY s.active_at DESC, s.sid DESC;
    END IF;
END
$$;

-- Sessions that a view has not read to the end, latest activity first, and each one's last segment. The
-- position in the last row is good enough to pass a session over, but not to name its end.
CREATE FUNCTION keepthread.unread(
    _tenant integer, _view bytea, _owner bytea, _sid bigint, _most bigint
) RETURNS TABLE (
    sid bigint, upto bigint, last bigint, epoch bigint, first bigint, started_at double precision,
    ended_at double precision, parts bigint, length bigint, answers bigint
)
LANGUAGE plpgsql STABLE AS $$
DECLARE
    number CONSTANT integer := keepthread.view_of(_view);
BEGIN
    PERFORM set_config('keepthread.tenant', _tenant::text, true);
    RETURN QUERY
        SELECT u.sid, u.upto, least(h.seq, _most), u.epoch, t.first, t.started_at, t.ended_at, t.parts,
               t.length, t.answers
        FROM (
            SELECT s.sid, s.epoch, s.owner, coalesce(r.upto, 0) AS upto
            FROM keepthread.readable(_tenant, _owner, _sid) s
            LEFT JOIN LATERAL (
                SELECT r.upto FROM keepthread.readings r
                WHERE r.tenant = _tenant AND r.sid = s.sid AND r.view = number
                OFFSET 0
            ) r ON true,
            LATERAL (
                SELECT m.seq FROM keepthread.messages m
                WHERE m.tenant = _tenant AND m.sid = s.sid
                ORDER BY m.seq DESC LIMIT 1
            ) e
            WHERE e.seq > coalesce(r.upto, 0)
            OFFSET 0
        ) u
        CROSS JOIN LATERAL keepthread.head(_tenant, u.sid) h
        LEFT JOIN LATERAL (
            SELECT * FROM keepthread.segments t
            WHERE t.tenant = _tenant AND t.view = number AND t.whose = keepthread.whose(u.owner)
              AND t.sid = u.sid
            ORDER BY t.first DESC LIMIT 1
        ) t ON true
        WHERE least(h.seq, _most) > u.upto;
END
$$;

-- Remove from the indexes what one view has of a session.
CREATE FUNCTION keepthread.unread_view(_tenant integer, _sid bigint, _whose bigint, _view integer)
RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM keepthread.words w
    WHERE w.tenant = _tenant AND w.view = _view AND w.whose = _whose AND w.sid = _sid AND w.at > 0;
    DELETE FROM keepthread.vectors v
    WHERE v.tenant = _tenant AND v.view = _view AND v.whose = _whose AND v.sid = _sid AND v.at > 0;
    DELETE FROM keepthread.segments t
    WHERE t.tenant = _tenant AND t.view = _view AND t.whose = _whose AND t.sid = _sid;
    DELETE FROM keepthread.readings r
    WHERE r.tenant = _tenant AND r.view = _view AND r.sid = _sid;
END
$$;

-- Move the mark of a view, if it is where the caller saw it; return whose session it is. A session is in
-- one index of words only: what another tokenization has made of it is removed.
CREATE FUNCTION keepthread.begin_reading(
    _tenant integer, _view integer, _of_words boolean, _sid bigint, _after bigint, _upto bigint
) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    theirs bigint;
    last   bigint;
    other  record;
BEGIN
    SELECT keepthread.whose(s.owner) INTO theirs FROM keepthread.sessions s
    WHERE s.tenant = _tenant AND s.sid = _sid;
    IF NOT FOUND THEN
        RAISE EXCEPTION USING ERRCODE = 'KT001', MESSAGE = 'the session was deleted';
    END IF;
    IF _after > 0 THEN
        UPDATE keepthread.readings r SET upto = _upto
        WHERE r.tenant = _tenant AND r.sid = _sid AND r.view = _view AND r.upto = _after;
    ELSE
        INSERT INTO keepthread.readings (sid, upto, tenant, view, of_words)
        VALUES (_sid, _upto, _tenant, _view, _of_words)
        ON CONFLICT (tenant, sid, view) DO UPDATE SET upto = excluded.upto WHERE readings.upto = 0;
    END IF;
    IF NOT FOUND THEN
        RAISE EXCEPTION USING ERRCODE = 'KT002', MESSAGE = 'another has read the session on';
    END IF;
    last := (SELECT h.seq FROM keepthread.head(_tenant, _sid) h);
    IF _upto NOT BETWEEN _after AND last THEN
        RAISE EXCEPTION USING ERRCODE = 'KT004', MESSAGE = format(
            'there is nothing to read from %s to %s: the log ends at %s', _after, _upto, last);
    END IF;
    IF _of_words THEN
        FOR other IN
            SELECT r.view FROM keepthread.readings r
            WHERE r.tenant = _tenant AND r.sid = _sid AND r.of_words AND r.view <> _view
        LOOP
            PERFORM keepthread.unread_view(_tenant, _sid, theirs, other.view);
        END LOOP;
    END IF;
    RETURN theirs;
END
$$;

-- Lock a session until the end, and refuse what was made from an earlier state of it.
CREATE FUNCTION keepthread.end_reading(_tenant integer, _sid bigint, _epoch bigint) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    now record;
BEGIN
    SELECT s.epoch, s.ready AND s.kind <> 2 AS is_read INTO now FROM keepthread.sessions s
    WHERE s.tenant = _tenant AND s.sid = _sid FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RAISE EXCEPTION USING ERRCODE = 'KT001', MESSAGE = 'the session was deleted';
    ELSIF now.epoch <> _epoch THEN
        RAISE EXCEPTION USING ERRCODE = 'KT002', MESSAGE = format(
            'something was erased in the session: its epoch is %s, not %s', now.epoch, _epoch);
    ELSIF NOT now.is_read THEN
        RAISE EXCEPTION USING ERRCODE = 'KT002', MESSAGE =
            'the session is a delegate, or not ready: no view reads it';
    END IF;
END
$$;

CREATE FUNCTION keepthread.index_words(
    _tenant integer, _view bytea, _sid bigint, _epoch bigint, _after bigint, _upto bigint,
    _ats bigint[], _tokens bigint[], _flags bigint[], _speakers bytea[], _words text[],
    _firsts bigint[], _starts double precision[], _ends double precision[], _parts bigint[],
    _lengths bigint[], _answers bigint[]
) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    number CONSTANT integer := keepthread.view_of(_view);
    theirs bigint;
    behind text;
BEGIN
    PERFORM set_config('keepthread.tenant', _tenant::text, true);
    theirs := keepthread.begin_reading(_tenant, number, true, _sid, _after, _upto);
    behind := keepthread.letters_of(theirs) || ' ';
    INSERT INTO keepthread.words (sid, at, whose, tenant, view, tokens, flags, speaker, words)
    SELECT _sid, o.at, theirs, _tenant, number, o.tokens, o.flags, o.speaker,
           replace(o.words, ' ', behind)::tsvector
    FROM unnest(_ats, _tokens, _flags, _speakers, _words) AS o (at, tokens, flags, speaker, words);
    PERFORM keepthread.end_reading(_tenant, _sid, _epoch);
    INSERT INTO keepthread.segments (
        sid, whose, first, started_at, ended_at, parts, length, answers, tenant, view
    )
    SELECT _sid, theirs, o.*, _tenant, number
    FROM unnest(_firsts, _starts, _ends, _parts, _lengths, _answers) AS o
    ON CONFLICT (tenant, view, whose, sid, first) DO UPDATE
    SET started_at = excluded.started_at, ended_at = excluded.ended_at, parts = excluded.parts,
        length = excluded.length, answers = excluded.answers;
END
$$;

CREATE FUNCTION keepthread.put_vectors(
    _tenant integer, _view bytea, _sid bigint, _epoch bigint, _after bigint, _upto bigint,
    _ats bigint[], _dims bigint[], _ids bytea[], _data bytea[]
) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    number CONSTANT integer := keepthread.view_of(_view);
    theirs bigint;
BEGIN
    PERFORM set_config('keepthread.tenant', _tenant::text, true);
    theirs := keepthread.begin_reading(_tenant, number, false, _sid, _after, _upto);
    INSERT INTO keepthread.vectors (sid, at, whose, tenant, view, dims, ids, data)
    SELECT _sid, o.at, theirs, _tenant, number, o.dims, o.ids, o.data
    FROM unnest(_ats, _dims, _ids, _data) AS o (at, dims, ids, data);
    PERFORM keepthread.end_reading(_tenant, _sid, _epoch);
END
$$;

-- The letters after every word of an owner.
CREATE FUNCTION keepthread.letters_of(_whose bigint) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT substr(encode(int8send(_whose), 'base64'), 1, 3)
$$;

-- Remove messages from every index, and what they added to their segments; 32 in `flags` says that an
-- assistant wrote it.
CREATE FUNCTION keepthread.unindex(_tenant integer, _sid bigint, _seqs bigint[]) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    theirs CONSTANT bigint := (
        SELECT keepthread.whose(s.owner) FROM keepthread.sessions s
        WHERE s.tenant = _tenant AND s.sid = _sid);
    one  record;
    less record;
BEGIN
    FOR one IN
        SELECT r.view, place AS seq, place << 19 AS low, (place + 1) << 19 AS high
        FROM keepthread.readings r, unnest(_seqs) AS place
        WHERE r.tenant = _tenant AND r.sid = _sid
    LOOP
        DELETE FROM keepthread.vectors v
        WHERE v.tenant = _tenant AND v.view = one.view AND v.whose = theirs AND v.sid = _sid
          AND v.at >= one.low AND v.at < one.high AND v.at > 0;
        WITH gone AS (
            DELETE FROM keepthread.words w
            WHERE w.tenant = _tenant AND w.view = one.view AND w.whose = theirs AND w.sid = _sid
              AND w.at >= one.low AND w.at < one.high AND w.at > 0
            RETURNING w.at & 255 AS length, w.flags >> 5 & 1 AS answers
        )
        SELECT count(*) AS parts, sum(g.length) AS length, sum(g.answers) AS answers INTO less FROM gone g;
        CONTINUE WHEN less.parts = 0;
        UPDATE keepthread.segments t
        SET parts = t.parts - less.parts, length = t.length - less.length,
            answers = t.answers - less.answers
        WHERE t.tenant = _tenant AND t.view = one.view AND t.whose = theirs AND t.sid = _sid
          AND t.first = (
              SELECT b.first FROM keepthread.segments b
              WHERE b.tenant = _tenant AND b.view = one.view AND b.whose = theirs AND b.sid = _sid
                AND b.first <= one.seq
              ORDER BY b.first DESC LIMIT 1);
        DELETE FROM keepthread.segments t
        WHERE t.tenant = _tenant AND t.view = one.view AND t.whose = theirs AND t.sid = _sid
          AND t.parts <= 0;
    END LOOP;
END
$$;

-- Remove a session from every index; the caller has locked its marks, then the session.
CREATE FUNCTION keepthread.unindex_session(_tenant integer, _sid bigint) RETURNS void
LANGUAGE sql AS $$
    SELECT keepthread.unread_view(_tenant, _sid, keepthread.whose(s.owner), r.view)
    FROM keepthread.readings r, keepthread.sessions s
    WHERE r.tenant = _tenant AND r.sid = _sid AND s.tenant = _tenant AND s.sid = _sid
$$;

-- Marks are locked before sessions, here as by readers, so that neither waits for the other.
CREATE FUNCTION keepthread.lock_readings(_tenant integer, _sid bigint) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM FROM keepthread.readings r WHERE r.tenant = _tenant AND r.sid = _sid FOR UPDATE;
END
$$;

-- Forget what a view has read of the sessions after a sid, some at a time; return the last sid, NULL if
-- there are no more.
CREATE FUNCTION keepthread.drop_view(_tenant integer, _view bytea, _after bigint, _limit bigint)
RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    number CONSTANT integer := keepthread.view_of(_view);
    one    record;
    last   bigint;
BEGIN
    PERFORM set_config('keepthread.tenant', _tenant::text, true);
    FOR one IN
        SELECT r.sid, (
            SELECT keepthread.whose(s.owner) FROM keepthread.sessions s
            WHERE s.tenant = _tenant AND s.sid = r.sid) AS whose
        FROM keepthread.readings r
        WHERE r.tenant = _tenant AND r.sid > _after AND r.view = number
        ORDER BY r.sid LIMIT _limit
    LOOP
        PERFORM keepthread.unread_view(_tenant, one.sid, one.whose, number);
        last := one.sid;
    END LOOP;
    RETURN last;
END
$$;
