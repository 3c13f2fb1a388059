-- Finding among the messages of some times and roles: the filter is applied before the last places, or
-- the nearest vectors, are taken. A role is a bit by its number.

-- Where words stand, as `places` returns it, in messages of a time and of some roles. Sessions of which
-- no sitting is of that time are not looked at; inside a sitting, times may go back by up to six hours.
CREATE FUNCTION keepthread.places_within(
    _tenant integer, _view bytea, _words text[], _plain bigint[], _owner bytea, _sid bigint, _most bigint,
    _since double precision, _until double precision, _roles integer
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
        behind := keepthread.letters_of(scope.whose);
    END IF;
    RETURN QUERY
        SELECT 0::bigint, t.*
        FROM keepthread.sittings_of(_tenant, number, scope.whose, scope.low, scope.high) t;
    SELECT coalesce(array_agg(DISTINCT t.sid), '{}') INTO sids
    FROM keepthread.sittings_within(_tenant, number, scope.whose, scope.low, scope.high, _since, _until) t;
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

-- The sessions of a scope that have a sitting of a time.
CREATE FUNCTION keepthread.sittings_within(
    _tenant integer, _view integer, _whose bigint, _low bigint, _high bigint, _since double precision,
    _until double precision
) RETURNS TABLE (sid bigint)
LANGUAGE plpgsql STABLE AS $$
BEGIN
    IF _whose IS NULL THEN
        RETURN QUERY
            SELECT t.sid FROM keepthread.sittings t
            WHERE t.tenant = _tenant AND t.view = _view
              AND t.ended_at >= _since AND t.started_at - 21600 < _until;
    ELSE
        RETURN QUERY
            SELECT t.sid FROM keepthread.sittings t
            WHERE t.tenant = _tenant AND t.view = _view AND t.whose = _whose
              AND t.sid BETWEEN _low AND _high
              AND t.ended_at >= _since AND t.started_at - 21600 < _until;
    END IF;
END
$$;

-- Single vectors of a scope after a place, in messages of a time and of some roles.
CREATE FUNCTION keepthread.points_within(
    _tenant integer, _view bytea, _owner bytea, _sid bigint, _dims bigint, _whose bigint, _after bigint,
    _at bigint, _limit bigint, _since double precision, _until double precision, _roles integer
) RETURNS TABLE (whose bigint, sid bigint, at bigint, data bytea)
LANGUAGE plpgsql STABLE AS $$
DECLARE
    number CONSTANT integer := keepthread.view_of(_view);
    scope  record;
BEGIN
    PERFORM set_config('keepthread.tenant', _tenant::text, true);
    SELECT * INTO scope FROM keepthread.scope(_tenant, _owner, _sid);
    IF scope.low IS NULL THEN
        RETURN;
    END IF;
    IF scope.whose IS NULL THEN
        RETURN QUERY
            SELECT v.whose, v.sid, v.at, v.data
            FROM keepthread.vectors v,
            LATERAL (
                SELECT FROM keepthread.messages m
                WHERE m.tenant = _tenant AND m.sid = v.sid AND m.seq = v.at >> 19
                  AND m.created_at >= _since AND m.created_at < _until
                  AND 1 << m.role::integer & _roles <> 0
                OFFSET 0
            ) m
            WHERE v.tenant = _tenant AND v.view = number
              AND (v.whose, v.sid, v.at) > (_whose, _after, _at)
              AND v.dims = _dims AND v.ids = '' AND v.at > 0
            ORDER BY v.whose, v.sid, v.at LIMIT _limit;
    ELSE
        RETURN QUERY
            SELECT v.whose, v.sid, v.at, v.data
            FROM keepthread.vectors v,
            LATERAL (
                SELECT FROM keepthread.messages m
                WHERE m.tenant = _tenant AND m.sid = v.sid AND m.seq = v.at >> 19
                  AND m.created_at >= _since AND m.created_at < _until
                  AND 1 << m.role::integer & _roles <> 0
                OFFSET 0
            ) m
            WHERE v.tenant = _tenant AND v.view = number AND v.whose = scope.whose
              AND v.sid BETWEEN scope.low AND scope.high AND (v.sid, v.at) > (_after, _at)
              AND v.dims = _dims AND v.ids = '' AND v.at > 0
            ORDER BY v.sid, v.at LIMIT _limit;
    END IF;
END
$$;
