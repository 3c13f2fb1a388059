-- The feed of changes.

-- The position of a change in the feed. A transaction that changes a session has locked it, so every earlier
-- change of it is committed and has an earlier place: the feed has the changes of a session in their
-- order. The number of the transaction itself is not enough, because it may be given before the lock is.
CREATE FUNCTION keepthread.change_place() RETURNS xid8
LANGUAGE sql VOLATILE AS $$
    SELECT greatest(pg_current_xact_id(), pg_snapshot_xmax(pg_current_snapshot()))
$$;

-- Add a change; sometimes delete a few that are too old.
CREATE FUNCTION keepthread.note_change(
    _tenant integer, _kind integer, _owner bytea, _sid bigint, _session bytea, _ids bytea[]
) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    number CONSTANT bigint := nextval('keepthread.change_numbers');
BEGIN
    INSERT INTO keepthread.changes (place, number, sid, at, tenant, kind, owner, session, ids)
    VALUES (
        keepthread.change_place(), number, _sid, date_part('epoch', clock_timestamp()), _tenant, _kind,
        _owner, _session, _ids);
    IF number % 64 = 0 THEN
        PERFORM keepthread.trim_changes(_tenant);
    END IF;
END
$$;

-- Add a change of an existing session.
CREATE FUNCTION keepthread.note_change_of_session(
    _tenant integer, _kind integer, _sid bigint, _ids bytea[]
) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    one record;
BEGIN
    FOR one IN
        SELECT s.owner, s.id FROM keepthread.sessions s WHERE s.tenant = _tenant AND s.sid = _sid
    LOOP
        PERFORM keepthread.note_change(_tenant, _kind, one.owner, _sid, one.id, _ids);
    END LOOP;
    IF _kind = 3 THEN
        PERFORM keepthread.note_unread(_tenant, _sid);
    END IF;
END
$$;

-- Note that a session has messages which no view has read; its caller has locked it.
CREATE FUNCTION keepthread.note_unread(_tenant integer, _sid bigint) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO keepthread.unread (whose, sid, tenant, view)
    SELECT keepthread.whose(n.owner), _sid, _tenant, 0
    FROM (
        SELECT s.owner FROM keepthread.sessions s
        WHERE s.tenant = _tenant AND s.sid = _sid AND s.ready AND s.kind <> 2
          AND EXISTS (SELECT FROM keepthread.messages m WHERE m.tenant = _tenant AND m.sid = _sid)
    ) n
    ON CONFLICT DO NOTHING;
END
$$;

-- Delete some of the changes that are older than seven days, and note how far. One at a time does it, so
-- that nobody waits. The server's clock may be wrong for a while, so nothing is deleted by one reading of
-- it: it is as late as the earliest time of the last 64 changes. A change with a later time was written
-- while the clock was ahead, and is deleted with the next one, which is younger.
CREATE FUNCTION keepthread.trim_changes(_tenant integer) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    present     double precision;
    one         record;
    last_place  xid8;
    last_number bigint;
BEGIN
    IF NOT pg_try_advisory_xact_lock(hashtextextended('keepthread.changes', _tenant)) THEN
        RETURN;
    END IF;
    present := (
        SELECT min(r.at) FROM (
            SELECT c.at FROM keepthread.changes c
            WHERE c.tenant = _tenant ORDER BY c.place DESC, c.number DESC LIMIT 64
        ) r);
    FOR one IN
        SELECT c.place, c.number, c.at FROM keepthread.changes c
        WHERE c.tenant = _tenant AND c.at <= present ORDER BY c.place, c.number LIMIT 256
    LOOP
        EXIT WHEN one.at >= present - 604800;
        last_place := one.place;
        last_number := one.number;
    END LOOP;
    IF last_place IS NULL THEN
        RETURN;
    END IF;
    FOR one IN
        SELECT c.place, c.number, c.owner FROM keepthread.changes c
        WHERE c.tenant = _tenant AND (c.place, c.number) <= (last_place, last_number)
        ORDER BY c.place, c.number LIMIT 256
    LOOP
        DELETE FROM keepthread.changes c
        WHERE c.tenant = _tenant AND c.place = one.place AND c.number = one.number;
        INSERT INTO keepthread.trimmed AS t (tenant, owner, place, number)
        SELECT _tenant, whose, one.place, one.number
        FROM unnest(ARRAY[''::bytea] || array_remove(ARRAY[one.owner], '')) AS whose
        ON CONFLICT (tenant, owner) DO UPDATE SET place = excluded.place, number = excluded.number;
    END LOOP;
END
$$;

-- The changes after a position, as they are read. The first row is not a change: `place` names the
-- history of the server, in which places have their meaning, and `number` is 1 if changes after the
-- position were deleted. Without a position and with a limit of 0, the second row is the last change.
CREATE FUNCTION keepthread.changes(
    _tenant integer, _owner bytea, _place text, _number bigint, _limit bigint
) RETURNS TABLE (
    place text, number bigint, at double precision, sid bigint, kind smallint, owner bytea,
    session bytea, ids bytea[]
)
LANGUAGE plpgsql STABLE AS $$
DECLARE
    top   CONSTANT xid8 := pg_snapshot_xmin(pg_current_snapshot());
    start CONSTANT xid8 := coalesce(_place, '0')::xid8;
BEGIN
    PERFORM set_config('keepthread.tenant', _tenant::text, true);
    place := keepthread.history();
    number := (
        SELECT count(*) FROM keepthread.trimmed t
        WHERE t.tenant = _tenant AND t.owner = coalesce(_owner, '') AND _place IS NOT NULL
          AND (t.place, t.number) > (start, _number));
    RETURN NEXT;
    IF _place IS NULL AND _limit = 0 AND _owner IS NULL THEN
        RETURN QUERY
            SELECT c.place::text, c.number, c.at, c.sid, c.kind, c.owner, c.session, c.ids
            FROM keepthread.changes c
            WHERE c.tenant = _tenant AND c.place < top
            ORDER BY c.place DESC, c.number DESC LIMIT 1;
    ELSIF _place IS NULL AND _limit = 0 THEN
        RETURN QUERY
            SELECT c.place::text, c.number, c.at, c.sid, c.kind, c.owner, c.session, c.ids
            FROM keepthread.changes c
            WHERE c.tenant = _tenant AND c.owner BETWEEN _owner AND _owner AND c.place < top
            ORDER BY c.owner DESC, c.place DESC, c.number DESC LIMIT 1;
    ELSIF _owner IS NULL THEN
        RETURN QUERY
            SELECT c.place::text, c.number, c.at, c.sid, c.kind, c.owner, c.session, c.ids
            FROM keepthread.changes c
            WHERE c.tenant = _tenant AND (c.place, c.number) > (start, _number) AND c.place < top
            ORDER BY c.place, c.number LIMIT _limit;
    ELSE
        RETURN QUERY
            SELECT c.place::text, c.number, c.at, c.sid, c.kind, c.owner, c.session, c.ids
            FROM keepthread.changes c
            WHERE c.tenant = _tenant AND c.owner BETWEEN _owner AND _owner
              AND (c.place, c.number) > (start, _number) AND c.place < top
            ORDER BY c.owner, c.place, c.number LIMIT _limit;
    END IF;
END
$$;

-- The oldest transaction that writes, in any database of the server: readers of the feed stop before it.
-- How long it has run is NULL if the owner of this function may not read that.
CREATE FUNCTION keepthread.feed_holder()
RETURNS TABLE (transaction text, database text, seconds double precision)
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog AS $$
    SELECT t.number::text, t.database::text, date_part('epoch', clock_timestamp() - t.began)
    FROM (
        SELECT l.transactionid, a.datname, a.xact_start
        FROM pg_locks l JOIN pg_stat_activity a ON a.pid = l.pid
        WHERE l.locktype = 'transactionid' AND l.mode = 'ExclusiveLock' AND l.granted
          AND l.pid <> pg_backend_pid()
        UNION ALL
        SELECT p.transaction, p.database, p.prepared FROM pg_prepared_xacts p
    ) t (number, database, began)
    ORDER BY age(t.number) DESC LIMIT 1
$$;

-- The history that the numbers of transactions belong to: another database server, or a standby that
-- took over and may have lost some, starts another one.
CREATE FUNCTION keepthread.history() RETURNS text
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN (SELECT s.system_identifier FROM pg_control_system() s) || '/' || CASE
        WHEN pg_is_in_recovery() THEN (
            SELECT upper(lpad(to_hex(c.timeline_id), 8, '0')) FROM pg_control_checkpoint() c)
        ELSE substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8) END;
END
$$;
