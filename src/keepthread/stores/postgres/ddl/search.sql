-- Searching the indexes. All functions are STABLE: what one call returns is of one moment.

-- A scope as the tables have it: whose, and between which sids; no row if the session does not exist.
CREATE FUNCTION keepthread.scope(_tenant integer, _owner bytea, _sid bigint)
RETURNS TABLE (whose bigint, low bigint, high bigint)
LANGUAGE plpgsql STABLE AS $$
BEGIN
    IF _sid IS NULL THEN
        RETURN QUERY SELECT keepthread.whose(_owner), 0::bigint, 9223372036854775807;
    ELSE
        RETURN QUERY
            SELECT keepthread.whose(s.owner), s.sid, s.sid
            FROM keepthread.readable(_tenant, _owner, _sid) s;
    END IF;
END
$$;

-- The segments of a scope, in rows of number 0 by session. Of an owner's, a row of number -1 first has the
-- count of changes; if the caller knows the segments at a count not long ago, only the sessions that have
-- changed since are returned, and `data` of that row says so: 1.
CREATE FUNCTION keepthread.segments_since(
    _tenant integer, _view integer, _whose bigint, _low bigint, _high bigint, _known bigint
) RETURNS TABLE (word bigint, sid bigint, data bytea)
LANGUAGE plpgsql STABLE AS $$
DECLARE
    corpus record;
    new    bigint;
BEGIN
    IF _whose IS NOT NULL AND _low < _high THEN
        SELECT c.changes, c.recent INTO corpus FROM keepthread.corpora c
        WHERE c.tenant = _tenant AND c.whose = _whose AND c.view = _view;
        new := corpus.changes - _known;
        IF new BETWEEN 0 AND cardinality(corpus.recent) THEN
            RETURN QUERY SELECT -1::bigint, corpus.changes, '1'::bytea;
            RETURN QUERY
                SELECT 0::bigint, r.sid, coalesce((
                    SELECT string_agg(keepthread.packed(t), ''::bytea) FROM keepthread.segments t
                    WHERE t.tenant = _tenant AND t.view = _view AND t.whose = _whose AND t.sid = r.sid), '')
                FROM (
                    SELECT DISTINCT unnest(corpus.recent[cardinality(corpus.recent) - new + 1:]) AS sid
                ) r;
            RETURN;
        ELSIF corpus.changes IS NOT NULL THEN
            RETURN QUERY SELECT -1::bigint, corpus.changes, ''::bytea;
        END IF;
    END IF;
    RETURN QUERY SELECT 0::bigint, t.* FROM keepthread.segments_of(_tenant, _view, _whose, _low, _high) t;
END
$$;

-- What `unread` returns, as rows of number -2.
CREATE FUNCTION keepthread.unread_packed(
    _tenant integer, _view bytea, _owner bytea, _sid bigint, _end bigint
) RETURNS TABLE (word bigint, sid bigint, data bytea)
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN QUERY
        SELECT -2::bigint, u.sid, int8send(u.upto) || int8send(u.last) || int8send(u.epoch) || coalesce(
            int8send(u.first) || float8send(u.started_at) || float8send(u.ended_at) || int8send(u.parts)
                || int8send(u.length) || int8send(u.answers), '')
        FROM keepthread.unread(_tenant, _view, _owner, _sid, _end) u;
END
$$;

-- Where words are: for each word by its number and each session, the positions there, eight bytes each,
-- or as a row of session 0 for many sessions, where each position comes after its session's number; of a
-- word at more positions than are asked for, at least the last ones. Before them, rows of number 0
-- and -1 are what `segments_since` returns, and those of number -2 what `unread` does. In rows of lower
-- numbers, -3 for the first word, are earlier positions of a frequent word where a rarer one is, too. A
-- word with a mark after it is not looked for if the plain one, whose number is given with it, is nowhere.
CREATE FUNCTION keepthread.places(
    _tenant integer, _view bytea, _words text[], _plain bigint[], _owner bytea, _sid bigint, _most bigint,
    _known bigint, _end bigint
) RETURNS TABLE (word bigint, sid bigint, data bytea)
LANGUAGE plpgsql STABLE SET enable_bitmapscan = on AS $$
DECLARE
    number CONSTANT integer := keepthread.view_of(_view);
    walled CONSTANT boolean := row_security_active('keepthread.asked');
    behind text := '';
    scope  record;
    asked  tsquery;
    seen   boolean[] := '{}';
BEGIN
    PERFORM set_config('keepthread.tenant', _tenant::text, true);
    SELECT * INTO scope FROM keepthread.scope(_tenant, _owner, _sid);
    IF scope.low IS NULL THEN
        RETURN;
    ELSIF scope.whose IS NOT NULL THEN
        behind := keepthread.letters_of(scope.whose);
    END IF;
    RETURN QUERY
        SELECT s.* FROM keepthread.segments_since(
            _tenant, number, scope.whose, scope.low, scope.high, _known) s;
    RETURN QUERY SELECT u.* FROM keepthread.unread_packed(_tenant, _view, _owner, _sid, _end) u;
    IF scope.whose IS NOT NULL AND NOT (
        _sid IS NOT NULL AND keepthread.is_small(_tenant, number, scope.whose, _sid)
    ) THEN
        RETURN QUERY
            SELECT f.* FROM keepthread.places_by_era(
                _tenant, number, scope.whose, scope.low, scope.high, _words, _plain, behind, _most) f;
        RETURN;
    END IF;
    IF _sid IS NOT NULL THEN
        RETURN QUERY
            SELECT f.word, _sid, f.data
            FROM keepthread.places_in(_tenant, number, scope.whose, _sid, _words, behind) f;
        RETURN;
    END IF;
    FOR n IN 1 .. cardinality(_words) LOOP
        CONTINUE WHEN NOT seen[_plain[n]];
        asked := _words[n] || ':*';
        PERFORM set_config('keepthread.asked', asked::text, true);
        RETURN QUERY
            SELECT n::bigint, f.sid, string_agg(int8send(f.at), ''::bytea)
            FROM (
                SELECT w.sid, w.at FROM keepthread.asked w
                WHERE w.tenant = _tenant AND w.view = number AND (walled OR w.words @@ asked)
                ORDER BY w.sid DESC, w.at DESC LIMIT _most
            ) f
            GROUP BY f.sid;
        seen[n] := FOUND;
    END LOOP;
END
$$;

-- Where words of an owner are: the newest ranges of positions are looked at first, then as many as seem
-- necessary to find enough of a word; or all the rest, if it is rare. A word with a mark after it is looked
-- for where the plain one was. In ranges that were not looked at for a frequent word, it is looked for
-- beside the rarer ones.
CREATE FUNCTION keepthread.places_by_era(
    _tenant integer, _view integer, _whose bigint, _low bigint, _high bigint, _words text[], _plain bigint[],
    _behind text, _most bigint
) RETURNS TABLE (word bigint, sid bigint, data bytea)
LANGUAGE plpgsql STABLE SET enable_bitmapscan = on AS $$
DECLARE
    walled CONSTANT boolean := row_security_active('keepthread.asked');
    few    CONSTANT bigint := 8192;  -- chunks to look at first
    named  CONSTANT integer := 32;  -- ranges that a query names; for more, it reads the word in all
    asked  tsquery;
    seen   boolean[] := '{}';
    depths integer[] := '{}';
    rare   tsquery;
    sids   bigint[];
    ats    bigint[];
    parts  double precision[];  -- those of the ranges up to each
    eras   text[];
    looked double precision;
    wanted double precision;
    found  bigint;
    places bigint;
    depth  integer;
    k      integer;
    j      integer;
BEGIN
    SELECT array_agg(e.sid), array_agg(e.at), array_agg(e.parts), array_agg(keepthread.era_letters(e.number))
    INTO sids, ats, parts, eras
    FROM (
        SELECT e.sid, e.at, e.number,
               1 + sum(abs(e.parts)) OVER (ORDER BY e.sid DESC, e.at DESC) AS parts
        FROM keepthread.eras e
        WHERE e.tenant = _tenant AND e.view = _view AND e.whose = _whose AND e.sid <= _high
          AND (e.sid, e.at) >= coalesce((
              SELECT (b.sid, b.at) FROM keepthread.eras b
              WHERE b.tenant = _tenant AND b.view = _view AND b.whose = _whose AND (b.sid, b.at) <= (_low, 0)
              ORDER BY b.sid DESC, b.at DESC LIMIT 1), (0::bigint, 0::bigint))
        ORDER BY e.sid DESC, e.at DESC
    ) e;
    FOR n IN 1 .. cardinality(_words) LOOP
        CONTINUE WHEN NOT seen[_plain[n]];
        depth := coalesce(depths[_plain[n]], cardinality(sids));
        k := 1; found := 0; looked := 0;
        WHILE k <= depth AND found < _most LOOP
            IF found * (parts[depth] / greatest(looked, 1)) > 2 * _most OR looked = 0 THEN
                wanted := CASE WHEN looked = 0 THEN few ELSE 1.2 * looked * _most / found END;
                j := least(depth, k + named - 1, greatest(k, width_bucket(wanted, parts) + 1));
            ELSE
                j := depth;
            END IF;
            looked := parts[j];
            IF j - k < named THEN
                asked := (SELECT string_agg(_words[n] || _behind || e, ' | ') FROM unnest(eras[k:j]) AS e);
            ELSE
                asked := _words[n] || _behind || ':*';
            END IF;
            PERFORM set_config('keepthread.asked', asked::text, true);
            SELECT string_agg(int8send(w.sid) || int8send(w.at), ''::bytea), count(*) INTO data, places
            FROM keepthread.asked w
            WHERE w.tenant = _tenant AND w.whose = _whose AND w.view = _view
              AND w.sid BETWEEN _low AND _high AND (walled OR w.words @@ asked)
              AND (w.sid, w.at) >= (sids[j], ats[j])
              AND (k = 1 OR (w.sid, w.at) < (sids[k - 1], ats[k - 1]));
            IF places > 0 THEN
                word := n; sid := 0;
                found := found + places;
                RETURN NEXT;
            END IF;
            k := j + 1;
        END LOOP;
        depths[n] := k - 1;
        seen[n] := found > 0;
        IF found BETWEEN 1 AND _most - 1 AND _plain[n] = 0 THEN
            asked := _words[n] || _behind || ':*';
            rare := coalesce(rare || asked, asked);
        END IF;
    END LOOP;
    FOR n IN 1 .. cardinality(_words) LOOP
        CONTINUE WHEN rare IS NULL OR _plain[n] <> 0 OR NOT depths[n] BETWEEN 1 AND cardinality(sids) - 1;
        asked := (_words[n] || _behind || ':*')::tsquery && rare;
        PERFORM set_config('keepthread.asked', asked::text, true);
        RETURN QUERY
            SELECT -2 - n::bigint, 0::bigint, string_agg(int8send(f.sid) || int8send(f.at), ''::bytea)
            FROM (
                SELECT w.sid, w.at FROM keepthread.asked w
                WHERE w.tenant = _tenant AND w.whose = _whose AND w.view = _view
                  AND w.sid BETWEEN _low AND _high AND (walled OR w.words @@ asked)
                  AND (w.sid, w.at) < (sids[depths[n]], ats[depths[n]])
                ORDER BY w.sid DESC, w.at DESC LIMIT _most
            ) f
            HAVING count(*) > 0;
    END LOOP;
END
$$;

-- Where words are, as `places` returns it, in messages of a time and of some roles; a role is a bit by its
-- number. The filter is applied before the last positions are taken. Sessions without a segment of that
-- time are skipped; inside a segment, times may go back by up to six hours.
CREATE FUNCTION keepthread.places_within(
    _tenant integer, _view bytea, _words text[], _plain bigint[], _owner bytea, _sid bigint, _most bigint,
    _known bigint, _end bigint, _since double precision, _until double precision, _roles integer
) RETURNS TABLE (word bigint, sid bigint, data bytea)
LANGUAGE plpgsql STABLE SET enable_bitmapscan = on AS $$
DECLARE
    number CONSTANT integer := keepthread.view_of(_view);
    walled CONSTANT boolean := row_security_active('keepthread.asked');
    behind text := ':*';
    scope  record;
    asked  tsquery;
    sids   bigint[];
    seen   boolean[] := '{}';
BEGIN
    PERFORM set_config('keepthread.tenant', _tenant::text, true);
    SELECT * INTO scope FROM keepthread.scope(_tenant, _owner, _sid);
    IF scope.low IS NULL THEN
        RETURN;
    ELSIF scope.whose IS NOT NULL THEN
        behind := keepthread.letters_of(scope.whose) || ':*';
    END IF;
    RETURN QUERY
        SELECT s.* FROM keepthread.segments_since(
            _tenant, number, scope.whose, scope.low, scope.high, _known) s;
    RETURN QUERY SELECT u.* FROM keepthread.unread_packed(_tenant, _view, _owner, _sid, _end) u;
    SELECT coalesce(array_agg(DISTINCT t.sid), '{}') INTO sids
    FROM keepthread.segments_within(_tenant, number, scope.whose, scope.low, scope.high, _since, _until) t;
    FOR n IN 1 .. cardinality(_words) LOOP
        CONTINUE WHEN NOT seen[_plain[n]];
        asked := _words[n] || behind;
        PERFORM set_config('keepthread.asked', asked::text, true);
        IF scope.whose IS NULL THEN
            RETURN QUERY
                SELECT n::bigint, f.sid, string_agg(int8send(f.at), ''::bytea)
                FROM (
                    SELECT w.sid, w.at
                    FROM keepthread.asked w,
                    LATERAL (
                        SELECT FROM keepthread.messages m
                        WHERE m.tenant = _tenant AND m.sid = w.sid AND m.seq = w.at >> 19
                          AND m.created_at >= _since AND m.created_at < _until
                          AND 1 << m.role::integer & _roles <> 0
                        OFFSET 0  -- one by one: never the whole log, held against the list
                    ) m
                    WHERE w.tenant = _tenant AND w.view = number AND w.sid = ANY (sids)
                      AND (walled OR w.words @@ asked)
                    ORDER BY w.sid DESC, w.at DESC LIMIT _most
                ) f
                GROUP BY f.sid;
        ELSE
            RETURN QUERY
                SELECT n::bigint, f.sid, string_agg(int8send(f.at), ''::bytea)
                FROM (
                    SELECT w.sid, w.at
                    FROM keepthread.asked w,
                    LATERAL (
                        SELECT FROM keepthread.messages m
                        WHERE m.tenant = _tenant AND m.sid = w.sid AND m.seq = w.at >> 19
                          AND m.created_at >= _since AND m.created_at < _until
                          AND 1 << m.role::integer & _roles <> 0
                        OFFSET 0  -- one by one: never the whole log, held against the list
                    ) m
                    WHERE w.tenant = _tenant AND w.whose = scope.whose AND w.view = number AND w.sid = ANY (sids)
                      AND (walled OR w.words @@ asked)
                    ORDER BY w.sid DESC, w.at DESC LIMIT _most
                ) f
                GROUP BY f.sid;
        END IF;
        seen[n] := FOUND;
    END LOOP;
END
$$;

-- Whether a session has so little of its owner's words that reading all of it is less work than passing
-- over those in the other sessions.
CREATE FUNCTION keepthread.is_small(_tenant integer, _view integer, _whose bigint, _sid bigint)
RETURNS boolean
LANGUAGE plpgsql STABLE AS $$
DECLARE
    own CONSTANT bigint := (
        SELECT coalesce(sum(t.parts), 0) FROM keepthread.segments t
        WHERE t.tenant = _tenant AND t.view = _view AND t.whose = _whose AND t.sid = _sid);
BEGIN
    RETURN own < 100 OR 16 * own < (
        SELECT sum(t.parts) FROM keepthread.segments t
        WHERE t.tenant = _tenant AND t.view = _view AND t.whose = _whose);
END
$$;

-- Where words are in a session, by looking at every word of it.
CREATE FUNCTION keepthread.places_in(
    _tenant integer, _view integer, _whose bigint, _sid bigint, _words text[], _behind text
) RETURNS TABLE (word bigint, data bytea)
LANGUAGE sql STABLE AS $$
    SELECT a.n, string_agg(int8send(w.at), ''::bytea)
    FROM keepthread.words w
    CROSS JOIN LATERAL unnest(tsvector_to_array(w.words)) AS has (word)
    JOIN unnest(_words) WITH ORDINALITY AS a (word, n) ON a.word || _behind = substr(has.word, 1, 8)
    WHERE w.tenant = _tenant AND w.view = _view AND w.whose = _whose AND w.sid = _sid AND w.at > 0
    GROUP BY a.n
$$;

-- The segments of a scope as bytes, by session.
CREATE FUNCTION keepthread.segments_of(
    _tenant integer, _view integer, _whose bigint, _low bigint, _high bigint
) RETURNS TABLE (sid bigint, data bytea)
LANGUAGE plpgsql STABLE AS $$
BEGIN
    IF _whose IS NULL THEN
        RETURN QUERY
            SELECT t.sid, string_agg(keepthread.packed(t), ''::bytea)
            FROM keepthread.segments t
            WHERE t.tenant = _tenant AND t.view = _view
            GROUP BY t.sid;
    ELSE
        RETURN QUERY
            SELECT t.sid, string_agg(keepthread.packed(t), ''::bytea)
            FROM keepthread.segments t
            WHERE t.tenant = _tenant AND t.view = _view AND t.whose = _whose
              AND t.sid BETWEEN _low AND _high
            GROUP BY t.sid;
    END IF;
END
$$;

-- The sessions of a scope that have a segment of a time.
CREATE FUNCTION keepthread.segments_within(
    _tenant integer, _view integer, _whose bigint, _low bigint, _high bigint, _since double precision,
    _until double precision
) RETURNS TABLE (sid bigint)
LANGUAGE plpgsql STABLE AS $$
BEGIN
    IF _whose IS NULL THEN
        RETURN QUERY
            SELECT t.sid FROM keepthread.segments t
            WHERE t.tenant = _tenant AND t.view = _view
              AND t.ended_at >= _since AND t.started_at - 21600 < _until;
    ELSE
        RETURN QUERY
            SELECT t.sid FROM keepthread.segments t
            WHERE t.tenant = _tenant AND t.view = _view AND t.whose = _whose
              AND t.sid BETWEEN _low AND _high
              AND t.ended_at >= _since AND t.started_at - 21600 < _until;
    END IF;
END
$$;

CREATE FUNCTION keepthread.packed(t keepthread.segments) RETURNS bytea
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT int8send(t.first) || float8send(t.started_at) || float8send(t.ended_at)
        || int8send(t.parts) || int8send(t.length) || int8send(t.answers)
$$;

-- Positions, the last position that each chunk may have, and whose they are; a session is looked up once,
-- however many of its positions are given.
CREATE FUNCTION keepthread.owned(_tenant integer, _sids bigint[], _ats bigint[])
RETURNS TABLE (sid bigint, at bigint, last bigint, whose bigint)
LANGUAGE plpgsql STABLE AS $$
DECLARE
    n     integer;
    known bigint;
BEGIN
    FOR n, sid, at IN
        SELECT p.n, p.sid, p.at FROM unnest(_sids, _ats) WITH ORDINALITY AS p (sid, at, n)
    LOOP
        IF sid IS DISTINCT FROM known THEN
            SELECT keepthread.whose(s.owner) INTO whose FROM keepthread.sessions s
            WHERE s.tenant = _tenant AND s.sid = owned.sid;
            known := sid;
        END IF;
        last := at + 255;  -- computed here: beside a policy some planners make no index bound of it
        RETURN NEXT;
    END LOOP;
END
$$;

-- The indexed chunks at positions; for each, the caller gives the lowest position it may have.
CREATE FUNCTION keepthread.parts(_tenant integer, _view bytea, _sids bigint[], _ats bigint[])
RETURNS TABLE (sid bigint, at bigint, tokens integer, flags integer, speaker bytea)
LANGUAGE plpgsql STABLE AS $$
DECLARE
    number CONSTANT integer := keepthread.view_of(_view);
BEGIN
    PERFORM set_config('keepthread.tenant', _tenant::text, true);
    RETURN QUERY
        SELECT w.*
        FROM keepthread.owned(_tenant, _sids, _ats) o,
        LATERAL (
            SELECT w.sid, w.at, w.tokens, w.flags, w.speaker FROM keepthread.words w
            WHERE w.tenant = _tenant AND w.view = number AND w.whose = o.whose AND w.sid = o.sid
              AND w.at >= o.at AND w.at <= o.last AND w.at > 0
            OFFSET 0  -- one by one, never the other way round
        ) w;
END
$$;

-- Messages at positions and their sessions' records of some kinds, in rows of one shape: part 1 are
-- messages, 2 records (seq: version, id: key, counter: kind, content: value, extra: made_of; `intact`),
-- 3 the messages of session `_own` that have the same id as a message of another session. The records of
-- `_own` are returned, too.
CREATE FUNCTION keepthread.fetch(
    _tenant integer, _sids bigint[], _seqs bigint[], _kinds bytea[], _own bigint
)
RETURNS TABLE (
    part integer, sid bigint, session bytea, owner bytea, epoch bigint, intact boolean, seq bigint, id bytea, role smallint,
    content bytea, extra bytea, tokens bigint, counter bytea, turn bigint, turns bigint,
    total bigint, created_at double precision, digest bytea, guard bytea
)
LANGUAGE plpgsql STABLE AS $$
BEGIN
    PERFORM set_config('keepthread.tenant', _tenant::text, true);
    RETURN QUERY
        SELECT 1, s.*, true, m.*
        FROM unnest(_sids, _seqs) AS p (sid, seq),
        LATERAL (
            SELECT s.sid, s.id, s.owner, s.epoch FROM keepthread.sessions s
            WHERE s.tenant = _tenant AND s.sid = p.sid AND s.ready AND s.kind <> 2
            OFFSET 0
        ) s,
        LATERAL (
            SELECT m.seq, m.id, m.role, m.content, nullif(m.extra, ''), m.tokens, m.counter, m.turn,
                   m.turns, m.total, m.created_at, m.digest, m.guard
            FROM keepthread.messages m
            WHERE m.tenant = _tenant AND m.sid = p.sid AND m.seq = p.seq AND m.content IS NOT NULL
            OFFSET 0  -- one by one: never the whole log, held against the list
        ) m;
    IF _own IS NOT NULL THEN
        RETURN QUERY
            SELECT 3, s.sid, s.id, s.owner, s.epoch, true, c.*
            FROM keepthread.sessions s, keepthread.find(_tenant, _own, ARRAY(
                SELECT m.id
                FROM unnest(_sids, _seqs) AS p (sid, seq),
                LATERAL (
                    SELECT m.id FROM keepthread.messages m
                    WHERE m.tenant = _tenant AND m.sid = p.sid AND m.seq = p.seq AND m.content IS NOT NULL
                    OFFSET 0
                ) m
                WHERE p.sid <> _own
            ), '{}') c
            WHERE s.tenant = _tenant AND s.sid = _own;
    END IF;
    IF cardinality(_kinds) > 0 THEN
        RETURN QUERY
            SELECT 2, r.*, 0::bigint, 0::bigint,
                   0::double precision, NULL::bytea, NULL::bytea
            FROM (SELECT DISTINCT unnest(_sids || _own) AS sid) p,
            LATERAL (
                SELECT r.sid, NULL::bytea, NULL::bytea, NULL::bigint, r.guard = keepthread.guard_of_record(
                           r.tenant, r.sid, r.owner, r.kind, r.key, r.version, r.value, r.made_of,
                           r.firsts, r.lasts),
                       r.version, r.key, 0::smallint, r.value, r.made_of, 0::bigint, r.kind, 0::bigint
                FROM keepthread.records r
                WHERE r.tenant = _tenant AND r.sid = p.sid AND r.whose = '' AND r.kind = ANY (_kinds)
                OFFSET 0
            ) r;
    END IF;
END
$$;
