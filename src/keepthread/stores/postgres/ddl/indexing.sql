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

-- Sessions that a view may not have read to the end, latest activity first: those that are noted as unread,
-- or all if the view's number is not known for the owner.
CREATE FUNCTION keepthread.maybe_unread(_tenant integer, _view integer, _owner bytea, _sid bigint)
RETURNS TABLE (sid bigint, epoch bigint, owner bytea, active_at double precision)
LANGUAGE plpgsql STABLE AS $$
DECLARE
    theirs CONSTANT bigint := keepthread.whose(_owner);
    views  integer[];
BEGIN
    IF _sid IS NULL AND _owner IS NULL THEN
        -- Sessions of an owner that no view of words has read are all noted.
        views := CASE WHEN EXISTS (
            SELECT FROM keepthread.corpora c WHERE c.tenant = _tenant AND c.view = _view
        ) AND NOT EXISTS (
            SELECT FROM keepthread.corpora c WHERE c.tenant = _tenant AND c.view > _view AND c.view <> 0
        ) AND NOT EXISTS (
            SELECT FROM keepthread.corpora c WHERE c.tenant = _tenant AND c.view < _view AND c.view <> 0
        ) THEN ARRAY[0] END;
    ELSIF _sid IS NULL THEN
        views := (
            SELECT CASE WHEN c.view = _view THEN ARRAY[0] WHEN _view = ANY (c.vectors) THEN ARRAY[0, _view] END
            FROM keepthread.corpora c WHERE c.tenant = _tenant AND c.whose = theirs);
    END IF;
    IF views IS NULL THEN
        RETURN QUERY SELECT * FROM keepthread.readable(_tenant, _owner, _sid);
    ELSIF _owner IS NULL THEN
        RETURN QUERY
            SELECT s.* FROM (
                SELECT u.sid FROM keepthread.unread u WHERE u.tenant = _tenant AND u.view = ANY (views)
            ) u, LATERAL keepthread.readable(_tenant, _owner, u.sid) s
            ORDER BY s.active_at DESC, s.sid DESC;
    ELSE
        RETURN QUERY
            SELECT s.* FROM (
                SELECT DISTINCT u.sid FROM keepthread.unread u
                WHERE u.tenant = _tenant AND u.whose = theirs AND u.view = ANY (views)
            ) u, LATERAL keepthread.readable(_tenant, _owner, u.sid) s
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
            FROM keepthread.maybe_unread(_tenant, number, _owner, _sid) s
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

-- Note that a view has read a session up to a position. The caller has locked the session, so nobody appends
-- to it; the owner's row is locked here, so one reader of an owner after another decides which sessions are
-- unread. Nothing else may be locked after it.
CREATE FUNCTION keepthread.note_indexed(
    _tenant integer, _view integer, _of_words boolean, _whose bigint, _sid bigint, _upto bigint
) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    known record;
BEGIN
    INSERT INTO keepthread.corpora AS c (whose, changes, tenant, view, recent, vectors)
    VALUES (_whose, date_part('epoch', clock_timestamp()) * 1000000, _tenant, 0, ARRAY[_sid], '{}')
    ON CONFLICT (tenant, whose) DO UPDATE
    SET changes = c.changes + _of_words::integer,
        recent = CASE WHEN _of_words THEN (c.recent || _sid)[greatest(1, cardinality(c.recent) - 30):]
                 ELSE c.recent END
    RETURNING c.view, c.vectors INTO known;
    IF _of_words AND known.view <> _view THEN
        IF known.view <> 0 THEN  -- another tokenization: what that has read is unread
            PERFORM keepthread.note_all_unread(_tenant, _view, _whose, _sid, 0);
        END IF;
        UPDATE keepthread.corpora c SET view = _view WHERE c.tenant = _tenant AND c.whose = _whose;
    ELSIF NOT _of_words AND _view <> ALL (known.vectors) THEN
        PERFORM keepthread.note_all_unread(_tenant, _view, _whose, _sid, _view);
        UPDATE keepthread.corpora c SET vectors = c.vectors || _view
        WHERE c.tenant = _tenant AND c.whose = _whose;
    END IF;
    IF _upto < least((SELECT h.seq FROM keepthread.head(_tenant, _sid) h), 4194303) THEN
        RETURN;
    END IF;
    DELETE FROM keepthread.unread u
    WHERE u.tenant = _tenant AND u.whose = _whose AND u.sid = _sid
      AND u.view = CASE WHEN _of_words THEN 0 ELSE _view END;
    IF _of_words AND known.vectors <> '{}' THEN
        INSERT INTO keepthread.unread (whose, sid, tenant, view)
        SELECT _whose, _sid, _tenant, v.view FROM unnest(known.vectors) AS v (view)
        WHERE _upto > coalesce((
            SELECT r.upto FROM keepthread.readings r
            WHERE r.tenant = _tenant AND r.sid = _sid AND r.view = v.view), 0)
        ON CONFLICT DO NOTHING;
    END IF;
END
$$;

-- Note the sessions of the owner of a session that a view has not read to the end.
CREATE FUNCTION keepthread.note_all_unread(
    _tenant integer, _view integer, _whose bigint, _sid bigint, _as integer
) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO keepthread.unread (whose, sid, tenant, view)
    SELECT _whose, s.sid, _tenant, _as
    FROM keepthread.sessions o,
    LATERAL keepthread.readable(_tenant, o.owner, NULL) s,
    LATERAL (
        SELECT m.seq FROM keepthread.messages m
        WHERE m.tenant = _tenant AND m.sid = s.sid
        ORDER BY m.seq DESC LIMIT 1
    ) e
    WHERE o.tenant = _tenant AND o.sid = _sid
      AND e.seq > coalesce((
          SELECT r.upto FROM keepthread.readings r
          WHERE r.tenant = _tenant AND r.sid = s.sid AND r.view = _view), 0)
    ON CONFLICT DO NOTHING;
END
$$;

-- Note that the segments of a session have changed.
CREATE FUNCTION keepthread.note_changed(_tenant integer, _whose bigint, _sid bigint) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    UPDATE keepthread.corpora c
    SET changes = c.changes + 1, recent = (c.recent || _sid)[greatest(1, cardinality(c.recent) - 30):]
    WHERE c.tenant = _tenant AND c.whose = _whose;
END
$$;

-- The era of a position, and two letters for it.
CREATE FUNCTION keepthread.era_of(_tenant integer, _view integer, _whose bigint, _sid bigint, _at bigint)
RETURNS integer
LANGUAGE sql STABLE AS $$
    SELECT coalesce((
        SELECT e.number FROM keepthread.eras e
        WHERE e.tenant = _tenant AND e.view = _view AND e.whose = _whose AND (e.sid, e.at) <= (_sid, _at)
        ORDER BY e.sid DESC, e.at DESC LIMIT 1), 0)
$$;

CREATE FUNCTION keepthread.era_letters(_number integer) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT substr(encode(int8send(_number::bigint << 52), 'base64'), 1, 2)
$$;

-- The eras of a session's positions between two.
CREATE FUNCTION keepthread.eras_between(
    _tenant integer, _view integer, _whose bigint, _sid bigint, _low bigint, _high bigint
) RETURNS integer[]
LANGUAGE plpgsql AS $$
BEGIN
    RETURN keepthread.era_of(_tenant, _view, _whose, _sid, _low) || ARRAY(
        SELECT e.number FROM keepthread.eras e
        WHERE e.tenant = _tenant AND e.view = _view AND e.whose = _whose AND e.sid = _sid
          AND e.at > _low AND e.at < _high
        ORDER BY e.at);
END
$$;

-- Give sessions that are still to be indexed eras of their own, where enough of them follow one another in the
-- range that begins at a position: an import, or all that a new view has to read. `_sid` is the session that
-- is being indexed, with new chunks. What else is in the range keeps its era, and is full if the range is. No
-- session with words comes into another era.
CREATE FUNCTION keepthread.divide_ahead(
    _tenant integer, _view integer, _whose bigint, _sid bigint, _parts bigint, _low bigint, _at bigint,
    _is_full boolean, _many bigint
) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    high CONSTANT bigint := coalesce((
        SELECT e.sid + (e.at > 0)::integer FROM keepthread.eras e
        WHERE e.tenant = _tenant AND e.view = _view AND e.whose = _whose AND (e.sid, e.at) > (_low, _at)
        ORDER BY e.sid, e.at LIMIT 1), 9223372036854775807);
BEGIN
    INSERT INTO keepthread.eras AS e (whose, sid, at, parts, tenant, view, number)
    WITH known AS (  -- sessions with words
        SELECT o.sid, sum(o.parts) AS parts
        FROM (
            SELECT t.sid, t.parts FROM keepthread.segments t
            WHERE t.tenant = _tenant AND t.view = _view AND t.whose = _whose AND t.sid >= _low AND t.sid < high
            UNION ALL
            SELECT _sid, _parts
        ) o
        GROUP BY o.sid
    ), ahead AS (  -- sessions without; a message is about a chunk
        SELECT u.sid, m.seq AS parts
        FROM keepthread.unread u,
        LATERAL (
            SELECT m.seq FROM keepthread.messages m
            WHERE m.tenant = _tenant AND m.sid = u.sid
            ORDER BY m.seq DESC LIMIT 1
        ) m
        WHERE u.tenant = _tenant AND u.whose = _whose AND u.view = 0 AND u.sid >= _low AND u.sid < high
          AND NOT EXISTS (SELECT FROM known k WHERE k.sid = u.sid)
    ), runs AS (  -- those ahead with the same number follow one another
        SELECT o.sid, o.parts, o.is_ahead,
               count(*) FILTER (WHERE NOT o.is_ahead) OVER (ORDER BY o.sid) AS run
        FROM (
            SELECT k.sid, k.parts, false AS is_ahead FROM known k
            UNION ALL
            SELECT a.sid, a.parts, true FROM ahead a
        ) o
    ), sums AS (
        SELECT r.sid, r.parts, r.is_ahead, r.run,
               sum(r.parts) OVER (PARTITION BY r.run, r.is_ahead) AS whole,
               sum(r.parts) OVER (PARTITION BY r.run, r.is_ahead ORDER BY r.sid) - r.parts AS before
        FROM runs r
    ), pieces AS (  -- a long run in pieces; all else keeps the era
        SELECT s.sid, s.parts, s.is_ahead,
               CASE WHEN s.is_ahead AND s.whole >= _many
                    THEN ARRAY[s.run, div(s.before, _many)] ELSE '{}' END AS piece
        FROM sums s
    ), ends AS (
        SELECT p.*, p.piece IS DISTINCT FROM lag(p.piece) OVER (ORDER BY p.sid) AS is_first FROM pieces p
    ), ranges AS (  -- sessions side by side of the same piece
        SELECT r.range, min(r.sid) AS sid, r.piece, sum(r.parts) FILTER (WHERE NOT r.is_ahead) AS parts
        FROM (
            SELECT n.*, count(*) FILTER (WHERE n.is_first) OVER (ORDER BY n.sid) AS range FROM ends n
        ) r
        GROUP BY r.range, r.piece
    )
    SELECT _whose, CASE WHEN r.range = 1 THEN _low ELSE r.sid END, CASE WHEN r.range = 1 THEN _at ELSE 0 END,
           CASE WHEN r.piece <> '{}' THEN 0
                WHEN _is_full THEN -greatest(r.parts, 1)
                ELSE coalesce(r.parts, 0) END,
           _tenant, _view,
           CASE WHEN r.piece = '{}' THEN (
               SELECT e.number FROM keepthread.eras e
               WHERE e.tenant = _tenant AND e.view = _view AND e.whose = _whose AND e.sid = _low AND e.at = _at)
           ELSE row_number() OVER (PARTITION BY r.piece = '{}' ORDER BY r.range) + (
               SELECT max(e.number) FROM keepthread.eras e
               WHERE e.tenant = _tenant AND e.view = _view AND e.whose = _whose) END
    FROM ranges r
    WHERE EXISTS (SELECT FROM ranges o WHERE o.piece <> '{}')
    ON CONFLICT (tenant, view, whose, sid, at) DO UPDATE
    SET parts = excluded.parts, number = excluded.number;
END
$$;

-- Count new chunks before a position of a session. If their range has come to have many, chunks of later
-- sessions are of a new era, and so are later chunks of this session if it has a good share of them. Chunks
-- of other sessions keep their era. The caller has locked the owner's row of `corpora`, so who indexes at
-- the same time sees the new eras when it has locked that row, and begins again.
CREATE FUNCTION keepthread.count_parts(
    _tenant integer, _view integer, _whose bigint, _sid bigint, _high bigint, _parts bigint
) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    many  CONSTANT bigint := 8192;
    long  CONSTANT bigint := 2048;  -- messages of one session
    one   record;
    next  integer;
    above integer;
BEGIN
    SELECT e.sid, e.at, e.parts, e.parts < 0 AS is_full INTO one FROM keepthread.eras e
    WHERE e.tenant = _tenant AND e.view = _view AND e.whose = _whose AND (e.sid, e.at) < (_sid, _high)
    ORDER BY e.sid DESC, e.at DESC LIMIT 1;
    IF NOT FOUND THEN
        INSERT INTO keepthread.eras (whose, sid, at, parts, tenant, view, number)
        VALUES (_whose, 0, 0, _parts, _tenant, _view, 0);
        PERFORM keepthread.divide_ahead(_tenant, _view, _whose, _sid, _parts, 0, 0, _parts >= many, many);
        RETURN;
    END IF;
    IF NOT one.is_full THEN
        UPDATE keepthread.eras e SET parts = e.parts + _parts
        WHERE e.tenant = _tenant AND e.view = _view AND e.whose = _whose AND e.sid = one.sid AND e.at = one.at;
        IF one.parts + _parts < many THEN
            RETURN;
        ELSIF one.parts < many THEN
            PERFORM keepthread.divide_ahead(
                _tenant, _view, _whose, _sid, _parts, one.sid, one.at, true, many);
        END IF;
    END IF;
    above := keepthread.era_of(_tenant, _view, _whose, _sid + 1, 0);
    next := (
        SELECT max(e.number) + 1 FROM keepthread.eras e
        WHERE e.tenant = _tenant AND e.view = _view AND e.whose = _whose);
    IF (_high >> 19) - (CASE WHEN one.sid = _sid THEN one.at >> 19 ELSE 0 END) > long THEN
        INSERT INTO keepthread.eras (whose, sid, at, parts, tenant, view, number)
        SELECT _whose, o.sid, o.at, o.parts, _tenant, _view, o.number
        FROM (VALUES (_sid, _high, 0, next), (_sid + 1, 0::bigint, -1, above)) AS o (sid, at, parts, number)
        ON CONFLICT DO NOTHING;
    END IF;
    IF NOT EXISTS (
        SELECT FROM keepthread.eras e
        WHERE e.tenant = _tenant AND e.view = _view AND e.whose = _whose AND e.sid > _sid + 1
    ) THEN
        INSERT INTO keepthread.eras (whose, sid, at, parts, tenant, view, number)
        VALUES (_whose, keepthread.next_of('keepthread.places'), 0, 0, _tenant, _view, next + 1);
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
    low    CONSTANT bigint := (_after + 1) << 19;
    high   CONSTANT bigint := (_upto + 1) << 19;
    theirs bigint;
    behind text;
    eras   integer[];
BEGIN
    PERFORM set_config('keepthread.tenant', _tenant::text, true);
    theirs := keepthread.begin_reading(_tenant, number, true, _sid, _after, _upto);
    behind := keepthread.letters_of(theirs);
    eras := keepthread.eras_between(_tenant, number, theirs, _sid, low, high);
    INSERT INTO keepthread.words (sid, at, whose, tenant, view, tokens, flags, speaker, words)
    SELECT _sid, o.at, theirs, _tenant, number, o.tokens, o.flags, o.speaker,
           replace(o.words, ' ', behind || keepthread.era_letters(
               CASE WHEN cardinality(eras) = 1 THEN eras[1]
                    ELSE keepthread.era_of(_tenant, number, theirs, _sid, o.at) END) || ' ')::tsvector
    FROM unnest(_ats, _tokens, _flags, _speakers, _words) AS o (at, tokens, flags, speaker, words);
    PERFORM keepthread.end_reading(_tenant, _sid, _epoch),
            keepthread.note_indexed(_tenant, number, true, theirs, _sid, _upto);
    IF eras <> keepthread.eras_between(_tenant, number, theirs, _sid, low, high) THEN
        RAISE EXCEPTION USING ERRCODE = '40001', MESSAGE = 'the eras were divided in the meantime';
    END IF;
    PERFORM keepthread.count_parts(_tenant, number, theirs, _sid, high, cardinality(_ats));
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
    PERFORM keepthread.end_reading(_tenant, _sid, _epoch),
            keepthread.note_indexed(_tenant, number, false, theirs, _sid, _upto);
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
    PERFORM keepthread.note_changed(_tenant, theirs, _sid);
END
$$;

-- Remove a session from every index; the caller has locked its marks, then the session.
CREATE FUNCTION keepthread.unindex_session(_tenant integer, _sid bigint) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    theirs bigint;
    views  integer[];
    number integer;
BEGIN
    SELECT keepthread.whose(s.owner) INTO theirs FROM keepthread.sessions s
    WHERE s.tenant = _tenant AND s.sid = _sid;
    PERFORM keepthread.unread_view(_tenant, _sid, theirs, r.view)
    FROM keepthread.readings r WHERE r.tenant = _tenant AND r.sid = _sid;
    SELECT c.vectors INTO views FROM keepthread.corpora c WHERE c.tenant = _tenant AND c.whose = theirs;
    FOREACH number IN ARRAY 0 || coalesce(views, '{}') LOOP  -- one by one: never all rows of the table
        DELETE FROM keepthread.unread u
        WHERE u.tenant = _tenant AND u.whose = theirs AND u.view = number AND u.sid = _sid;
    END LOOP;
END
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
    owners bigint[] := '{}';
BEGIN
    PERFORM set_config('keepthread.tenant', _tenant::text, true);
    FOR one IN
        SELECT r.sid, r.of_words, (
            SELECT keepthread.whose(s.owner) FROM keepthread.sessions s
            WHERE s.tenant = _tenant AND s.sid = r.sid) AS whose
        FROM keepthread.readings r
        WHERE r.tenant = _tenant AND r.sid > _after AND r.view = number
        ORDER BY r.sid LIMIT _limit
    LOOP
        PERFORM keepthread.unread_view(_tenant, one.sid, one.whose, number);
        IF one.of_words THEN
            PERFORM keepthread.note_unread(_tenant, one.sid);
        END IF;
        owners := owners || one.whose;
        last := one.sid;
    END LOOP;
    FOR one IN SELECT DISTINCT o.whose FROM unnest(owners) AS o (whose) ORDER BY 1 LOOP
        -- Every session of it may have changed, and a view of vectors has to read all of it again.
        UPDATE keepthread.corpora c
        SET changes = c.changes + 1000, recent = '{}', vectors = array_remove(c.vectors, number)
        WHERE c.tenant = _tenant AND c.whose = one.whose;
        DELETE FROM keepthread.unread u
        WHERE u.tenant = _tenant AND u.whose = one.whose AND u.view = number;
    END LOOP;
    RETURN last;
END
$$;
