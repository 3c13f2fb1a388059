-- Sessions: their rows, and where their logs end.

-- The checksums of a session's row and of its activity.
CREATE FUNCTION keepthread.guard_of_session(s keepthread.sessions) RETURNS bytea
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT substr(sha256(
        int8send(s.sid) || int4send(s.tenant) || int8send(s.epoch) || float8send(s.created_at)
        || int2send(s.kind) || boolsend(s.ready) || int4send(length(s.id)) || s.id
        || int4send(length(s.owner)) || s.owner || s.details
    ), 1, 8)
$$;

CREATE FUNCTION keepthread.guard_of_activity(_sid bigint, _active_at double precision) RETURNS bytea
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT substr(sha256(int8send(_sid) || float8send(_active_at)), 1, 8)
$$;

CREATE FUNCTION keepthread.seal_session(_tenant integer, _sid bigint) RETURNS void
LANGUAGE sql AS $$
    UPDATE keepthread.sessions s SET guard = keepthread.guard_of_session(s)
    WHERE s.tenant = _tenant AND s.sid = _sid
$$;

-- Note activity; a clock that stepped back changes nothing.
CREATE FUNCTION keepthread.touch(_tenant integer, _sid bigint, _now double precision) RETURNS void
LANGUAGE sql AS $$
    UPDATE keepthread.sessions
    SET active_at = _now, active_guard = keepthread.guard_of_activity(_sid, _now)
    WHERE tenant = _tenant AND sid = _sid AND active_at < _now
$$;

-- A session as it is read; `intact` says whether the row is what was written.
CREATE TYPE keepthread.session AS (
    sid bigint, id bytea, owner bytea, kind smallint, ready boolean, epoch bigint,
    created_at double precision, active_at double precision, details bytea, intact boolean,
    messages bigint, turns bigint, tokens bigint
);

CREATE FUNCTION keepthread.described(s keepthread.sessions) RETURNS keepthread.session
LANGUAGE sql STABLE AS $$
    SELECT s.sid, s.id, s.owner, s.kind, s.ready, s.epoch, s.created_at, s.active_at, s.details,
           s.guard = keepthread.guard_of_session(s)
               AND s.active_guard = keepthread.guard_of_activity(s.sid, s.active_at),
           h.seq, h.turns, h.total
    FROM keepthread.head(s.tenant, s.sid) h
$$;

-- The sid of a new session, or NULL if its id is taken.
CREATE FUNCTION keepthread.create_session(
    _tenant integer, _id bytea, _owner bytea, _kind bigint, _ready boolean,
    _created_at double precision, _active_at double precision, _details bytea, _names bytea[]
) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    place bigint;
BEGIN
    PERFORM set_config('keepthread.tenant', _tenant::text, true);
    INSERT INTO keepthread.sessions (
        sid, epoch, created_at, active_at, tenant, kind, ready, id, owner, active_guard, guard, details
    ) VALUES (
        keepthread.next_of('keepthread.places'), 0, _created_at, '-infinity', _tenant, _kind, _ready, _id, _owner,
        '', '', _details
    ) ON CONFLICT (id, owner, tenant) WHERE sid > 0 DO NOTHING
    RETURNING sid INTO place;
    PERFORM keepthread.seal_session(_tenant, place), keepthread.touch(_tenant, place, _active_at);
    IF place IS NOT NULL THEN
        PERFORM keepthread.name_sessions(_tenant, place, _names);
        PERFORM keepthread.note_change(_tenant, 0, _owner, place, _id, '{}');
    END IF;
    RETURN place;
END
$$;

-- Replace what may change of a session, if its row is the one that the caller read. The outcome is
-- `updated`, `gone`, `damaged` or `moved`.
CREATE FUNCTION keepthread.update_session(
    _tenant integer, _sid bigint, _ready boolean, _details bytea, _now double precision,
    _seen_epoch bigint, _seen_ready boolean, _seen_details bytea
) RETURNS text
LANGUAGE plpgsql AS $$
DECLARE
    known record;
BEGIN
    PERFORM set_config('keepthread.tenant', _tenant::text, true);
    IF NOT _ready THEN
        PERFORM keepthread.lock_readings(_tenant, _sid);
    END IF;
    SELECT s.epoch, s.ready, s.details, s.owner, s.id, s.guard = keepthread.guard_of_session(s) AS intact
    INTO known
    FROM keepthread.sessions s
    WHERE s.tenant = _tenant AND s.sid = _sid FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RETURN 'gone';
    ELSIF NOT known.intact THEN
        RETURN 'damaged';
    ELSIF (known.epoch, known.ready, known.details) <> (_seen_epoch, _seen_ready, _seen_details) THEN
        RETURN 'moved';
    END IF;
    UPDATE keepthread.sessions SET ready = _ready, details = _details
    WHERE tenant = _tenant AND sid = _sid;
    PERFORM keepthread.seal_session(_tenant, _sid);
    IF NOT _ready THEN
        PERFORM keepthread.unindex_session(_tenant, _sid),
                keepthread.note_changed(_tenant, keepthread.whose(known.owner), _sid);
    ELSIF NOT known.ready THEN
        PERFORM keepthread.note_unread(_tenant, _sid);
    END IF;
    IF known.ready THEN
        PERFORM keepthread.touch(_tenant, _sid, _now);
    END IF;
    PERFORM keepthread.note_change(_tenant, 1, known.owner, _sid, known.id, '{}');
    RETURN 'updated';
END
$$;

-- Delete a session with all it has. `_unready` requires that it is not ready, `_idle_since` that it
-- was not active at or after that time. The outcome is `deleted`, `gone`, `damaged`, `ready` or `active`.
CREATE FUNCTION keepthread.delete_session(
    _tenant integer, _sid bigint, _unready boolean, _idle_since double precision
) RETURNS text
LANGUAGE plpgsql AS $$
DECLARE
    known record;
BEGIN
    PERFORM set_config('keepthread.tenant', _tenant::text, true);
    PERFORM keepthread.lock_readings(_tenant, _sid);
    -- Appends hold the same lock, so each sees the result of the one before it.
    SELECT s.ready, s.active_at, s.owner, s.guard = keepthread.guard_of_session(s)
               AND s.active_guard = keepthread.guard_of_activity(s.sid, s.active_at) AS intact
    INTO known
    FROM keepthread.sessions s
    WHERE s.tenant = _tenant AND s.sid = _sid FOR UPDATE;
    IF NOT FOUND THEN
        RETURN 'gone';
    ELSIF (_unready OR _idle_since IS NOT NULL) AND NOT known.intact THEN
        RETURN 'damaged';
    ELSIF _unready AND known.ready THEN
        RETURN 'ready';
    ELSIF known.active_at >= _idle_since THEN
        RETURN 'active';
    END IF;
    PERFORM keepthread.note_change_of_session(_tenant, 2, _sid, '{}');
    PERFORM keepthread.unindex_session(_tenant, _sid);
    DELETE FROM keepthread.messages WHERE tenant = _tenant AND sid = _sid;
    DELETE FROM keepthread.records WHERE tenant = _tenant AND sid = _sid;
    PERFORM keepthread.unlink(_tenant, _sid);
    DELETE FROM keepthread.sessions WHERE tenant = _tenant AND sid = _sid;
    PERFORM keepthread.note_changed(_tenant, keepthread.whose(known.owner), _sid);
    RETURN 'deleted';
END
$$;

CREATE FUNCTION keepthread.session_by_id(_tenant integer, _owner bytea, _id bytea)
RETURNS SETOF keepthread.session
LANGUAGE plpgsql STABLE AS $$
BEGIN
    PERFORM set_config('keepthread.tenant', _tenant::text, true);
    RETURN QUERY
        SELECT d.* FROM (
            SELECT * FROM keepthread.sessions
            WHERE tenant = _tenant AND id BETWEEN _id AND _id AND owner BETWEEN _owner AND _owner AND sid > 0
            ORDER BY id, owner LIMIT 1
        ) s, keepthread.described(s::keepthread.sessions) d;
END
$$;

CREATE FUNCTION keepthread.session_by_sid(_tenant integer, _sid bigint)
RETURNS SETOF keepthread.session
LANGUAGE plpgsql STABLE AS $$
BEGIN
    PERFORM set_config('keepthread.tenant', _tenant::text, true);
    RETURN QUERY
        SELECT d.* FROM keepthread.sessions s, keepthread.described(s) d
        WHERE s.tenant = _tenant AND s.sid = _sid;
END
$$;

-- Ready sessions of one owner or of all: the latest activity before a position first, or, if `_up`, the
-- earliest after it.
CREATE FUNCTION keepthread.list_sessions(
    _tenant integer, _owner bytea, _at double precision, _sid bigint, _up boolean, _limit bigint
) RETURNS SETOF keepthread.session
LANGUAGE plpgsql STABLE AS $$
BEGIN
    PERFORM set_config('keepthread.tenant', _tenant::text, true);
    IF _owner IS NULL AND _up THEN
        RETURN QUERY
            SELECT d.* FROM (
                SELECT * FROM keepthread.sessions
                WHERE tenant = _tenant AND ready AND kind <> 2 AND (active_at, sid) > (_at, _sid)
                ORDER BY active_at, sid LIMIT _limit
            ) s, keepthread.described(s::keepthread.sessions) d;
    ELSIF _owner IS NULL THEN
        RETURN QUERY
            SELECT d.* FROM (
                SELECT * FROM keepthread.sessions
                WHERE tenant = _tenant AND ready AND kind <> 2 AND (active_at, sid) < (_at, _sid)
                ORDER BY active_at DESC, sid DESC LIMIT _limit
            ) s, keepthread.described(s::keepthread.sessions) d;
    ELSIF _up THEN
        RETURN QUERY
            SELECT d.* FROM (
                SELECT * FROM keepthread.sessions
                WHERE tenant = _tenant AND owner BETWEEN _owner AND _owner AND ready AND kind <> 2 AND (active_at, sid) > (_at, _sid)
                ORDER BY owner, active_at, sid LIMIT _limit
            ) s, keepthread.described(s::keepthread.sessions) d;
    ELSE
        RETURN QUERY
            SELECT d.* FROM (
                SELECT * FROM keepthread.sessions
                WHERE tenant = _tenant AND owner BETWEEN _owner AND _owner AND ready AND kind <> 2 AND (active_at, sid) < (_at, _sid)
                ORDER BY owner DESC, active_at DESC, sid DESC LIMIT _limit
            ) s, keepthread.described(s::keepthread.sessions) d;
    END IF;
END
$$;

-- Sessions that are not listed: delegates and those that are not ready, the earliest activity after a
-- position first.
CREATE FUNCTION keepthread.unlisted_sessions(
    _tenant integer, _at double precision, _sid bigint, _limit bigint
) RETURNS SETOF keepthread.session
LANGUAGE plpgsql STABLE AS $$
BEGIN
    PERFORM set_config('keepthread.tenant', _tenant::text, true);
    RETURN QUERY
        SELECT d.* FROM (
            SELECT * FROM keepthread.sessions
            WHERE tenant = _tenant AND NOT (ready AND kind <> 2) AND (active_at, sid) > (_at, _sid)
            ORDER BY active_at, sid LIMIT _limit
        ) s, keepthread.described(s::keepthread.sessions) d;
END
$$;

-- Every session after a sid, of one owner or of all, in the order they were created.
CREATE FUNCTION keepthread.sessions_behind(_tenant integer, _owner bytea, _after bigint, _limit bigint)
RETURNS SETOF keepthread.session
LANGUAGE plpgsql STABLE AS $$
BEGIN
    PERFORM set_config('keepthread.tenant', _tenant::text, true);
    IF _owner IS NULL THEN
        RETURN QUERY
            SELECT d.* FROM (
                SELECT * FROM keepthread.sessions
                WHERE tenant = _tenant AND sid > _after
                ORDER BY sid LIMIT _limit
            ) s, keepthread.described(s::keepthread.sessions) d;
    ELSE
        RETURN QUERY
            SELECT d.* FROM (
                SELECT * FROM keepthread.sessions
                WHERE tenant = _tenant AND owner BETWEEN _owner AND _owner AND sid > _after AND sid > 0
                ORDER BY owner, sid LIMIT _limit
            ) s, keepthread.described(s::keepthread.sessions) d;
    END IF;
END
$$;

-- Begin work on a session that nobody else may change until it ends; return its epoch, and whether its
-- row is what was written. No row: it is gone.
CREATE FUNCTION keepthread.lock_session(_tenant integer, _sid bigint)
RETURNS TABLE (epoch bigint, intact boolean)
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM set_config('keepthread.tenant', _tenant::text, true);
    RETURN QUERY
        SELECT s.epoch, s.guard = keepthread.guard_of_session(s) FROM keepthread.sessions s
        WHERE s.tenant = _tenant AND s.sid = _sid FOR NO KEY UPDATE;
END
$$;
