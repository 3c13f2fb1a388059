-- Listing and deleting tenants, for the operator of the store. Functions that read the table of tenants run
-- with the rights of the login: the role that keepthread takes for its other statements may not read it.

-- Whether a tenant has something, or is being deleted. Records of a session exist only with the session.
CREATE FUNCTION keepthread.has_data(_tenant integer) RETURNS boolean
LANGUAGE plpgsql SET enable_seqscan = off SET enable_bitmapscan = off AS $$
BEGIN
    PERFORM set_config('keepthread.tenant', _tenant::text, true);
    PERFORM FROM keepthread.sessions s WHERE s.tenant = _tenant ORDER BY s.sid LIMIT 1;
    IF NOT FOUND THEN
        PERFORM FROM keepthread.records r WHERE r.tenant = _tenant AND r.sid = 0 ORDER BY r.whose LIMIT 1;
    END IF;
    RETURN FOUND;
END
$$;

-- Look at some tenants after a name, by name: those of which nothing is left are not listed.
CREATE FUNCTION keepthread.list_tenants(_after bytea, _limit bigint)
RETURNS TABLE (name bytea, listed boolean)
LANGUAGE plpgsql AS $$
BEGIN
    RETURN QUERY
        SELECT t.name, t.dropping OR keepthread.has_data(t.tenant) FROM (
            SELECT * FROM keepthread.tenants n WHERE n.name > _after ORDER BY n.name LIMIT _limit
        ) t;
END
$$;

-- Begin to delete a tenant, or continue; return its number, 0 if it has nothing. Until the end it is
-- listed, so that somebody completes it if this process dies.
CREATE FUNCTION keepthread.begin_drop(_name bytea) RETURNS integer
LANGUAGE plpgsql AS $$
DECLARE
    known record;
BEGIN
    SELECT t.tenant, t.dropping INTO known FROM keepthread.tenants t WHERE t.name = _name FOR UPDATE;
    IF NOT FOUND OR NOT (known.dropping OR keepthread.has_data(known.tenant)) THEN
        RETURN 0;
    END IF;
    UPDATE keepthread.tenants SET dropping = true WHERE name = _name;
    RETURN known.tenant;
END
$$;

CREATE FUNCTION keepthread.end_drop(_name bytea) RETURNS void
LANGUAGE sql AS $$
    UPDATE keepthread.tenants SET dropping = false WHERE name = _name
$$;

-- Delete sessions of a tenant with their indexes; then, when none is left, their messages, the records, and
-- the feed of changes. Each call deletes about `_limit` rows, and returns how many; 0 means that nothing is left.
-- A session disappears as a whole: nobody sees one that has lost a part of its messages.
CREATE FUNCTION keepthread.drop_some(_tenant integer, _limit bigint) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    one     record;
    last    bigint;
    deleted bigint := 0;
BEGIN
    PERFORM set_config('keepthread.tenant', _tenant::text, true);
    FOR one IN
        SELECT s.sid FROM keepthread.sessions s WHERE s.tenant = _tenant ORDER BY s.sid LIMIT 100
    LOOP
        PERFORM keepthread.lock_readings(_tenant, one.sid);
        PERFORM FROM keepthread.sessions s WHERE s.tenant = _tenant AND s.sid = one.sid FOR UPDATE;
        PERFORM keepthread.unindex_session(_tenant, one.sid);
        PERFORM keepthread.unlink(_tenant, one.sid);
        DELETE FROM keepthread.sessions s WHERE s.tenant = _tenant AND s.sid = one.sid;
        SELECT m.seq INTO last FROM keepthread.messages m
        WHERE m.tenant = _tenant AND m.sid = one.sid ORDER BY m.seq DESC LIMIT 1;
        deleted := deleted + 1 + coalesce(last, 0);  -- each had up to a few rows in the indexes
        EXIT WHEN deleted >= _limit;
    END LOOP;
    DELETE FROM keepthread.corpora c WHERE c.tenant = _tenant;
    DELETE FROM keepthread.eras e WHERE e.tenant = _tenant AND deleted = 0;
    DELETE FROM keepthread.unread u WHERE u.tenant = _tenant AND deleted = 0;
    IF deleted = 0 THEN
        DELETE FROM keepthread.messages m USING (
            SELECT o.sid, o.seq FROM keepthread.messages o WHERE o.tenant = _tenant LIMIT _limit
        ) batch WHERE m.tenant = _tenant AND m.sid = batch.sid AND m.seq = batch.seq;
        GET DIAGNOSTICS deleted = ROW_COUNT;
    END IF;
    IF deleted = 0 THEN
        DELETE FROM keepthread.records r USING (
            SELECT o.sid, o.whose, o.kind, o.key FROM keepthread.records o
            WHERE o.tenant = _tenant LIMIT _limit
        ) batch
        WHERE r.tenant = _tenant AND r.sid = batch.sid AND r.whose = batch.whose
          AND r.kind = batch.kind AND r.key = batch.key;
        GET DIAGNOSTICS deleted = ROW_COUNT;
    END IF;
    IF deleted = 0 THEN
        DELETE FROM keepthread.sources s USING (
            SELECT o.sid, o.place, o.source, o.node FROM keepthread.sources o
            WHERE o.tenant = _tenant ORDER BY o.sid, o.place LIMIT _limit
        ) batch
        WHERE s.tenant = _tenant AND s.sid = batch.sid AND s.place = batch.place
          AND s.source = batch.source AND s.node = batch.node;
        GET DIAGNOSTICS deleted = ROW_COUNT;
    END IF;
    IF deleted = 0 THEN
        DELETE FROM keepthread.changes c USING (
            SELECT o.place, o.number FROM keepthread.changes o
            WHERE o.tenant = _tenant ORDER BY o.place, o.number LIMIT _limit
        ) batch WHERE c.tenant = _tenant AND c.place = batch.place AND c.number = batch.number;
        GET DIAGNOSTICS deleted = ROW_COUNT;
    END IF;
    IF deleted = 0 THEN
        DELETE FROM keepthread.trimmed t USING (
            SELECT o.owner FROM keepthread.trimmed o WHERE o.tenant = _tenant ORDER BY o.owner LIMIT _limit
        ) batch WHERE t.tenant = _tenant AND t.owner = batch.owner;
        GET DIAGNOSTICS deleted = ROW_COUNT;
    END IF;
    IF deleted = 0 THEN
        DELETE FROM keepthread.record_changes c USING (
            SELECT o.whose, o.kind FROM keepthread.record_changes o
            WHERE o.tenant = _tenant ORDER BY o.whose, o.kind LIMIT _limit
        ) batch WHERE c.tenant = _tenant AND c.whose = batch.whose AND c.kind = batch.kind;
        GET DIAGNOSTICS deleted = ROW_COUNT;
    END IF;
    RETURN deleted;
END
$$;
