-- Deciding and writing in one transaction: a session is deleted only if it is as the caller requires,
-- and changed only if it is as the caller saw it.

DROP FUNCTION keepthread.delete_session(integer, bigint);
DROP FUNCTION keepthread.update_session(integer, bigint, boolean, bytea, double precision);

-- Remove a session with all it has. `_unready` requires that it is not ready, `_idle_since` that it
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
    -- Appends hold the same lock: whoever comes first, the other sees what it did.
    SELECT s.ready, s.active_at, s.guard = keepthread.guard_of_session(s)
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
    PERFORM keepthread.unindex_session(_tenant, _sid);
    DELETE FROM keepthread.messages WHERE tenant = _tenant AND sid = _sid;
    DELETE FROM keepthread.shelf WHERE tenant = _tenant AND sid = _sid;
    DELETE FROM keepthread.sessions WHERE tenant = _tenant AND sid = _sid;
    RETURN 'deleted';
END
$$;

-- Replace what may change of a session, if its record is the one that the caller read. The outcome is
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
    SELECT s.epoch, s.ready, s.details, s.guard = keepthread.guard_of_session(s) AS intact INTO known
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
        PERFORM keepthread.unindex_session(_tenant, _sid);
    END IF;
    IF known.ready THEN
        PERFORM keepthread.touch(_tenant, _sid, _now);
    END IF;
    RETURN 'updated';
END
$$;
