-- Which sessions name which, and which are copies; see `links.py`.

CREATE FUNCTION keepthread.name_of(_owner bytea, _id bytea) RETURNS bytea
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT substr(sha256(int4send(length(_owner)) || _owner || _id), 1, 16)
$$;

-- Note that a session names others of its owner. The lock is for a session that is deleted at this moment.
CREATE FUNCTION keepthread.name_sessions(_tenant integer, _sid bigint, _names bytea[]) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    theirs bytea;
BEGIN
    IF cardinality(_names) = 0 THEN
        RETURN;
    END IF;
    PERFORM set_config('keepthread.tenant', _tenant::text, true);
    SELECT s.owner INTO theirs FROM keepthread.sessions s
    WHERE s.tenant = _tenant AND s.sid = _sid FOR KEY SHARE;
    IF FOUND THEN
        INSERT INTO keepthread.naming (sid, tenant, name)
        SELECT _sid, _tenant, keepthread.name_of(theirs, one) FROM unnest(_names) AS one
        ON CONFLICT DO NOTHING;
    END IF;
END
$$;

-- Forget where a session's records came from, and what it names.
CREATE FUNCTION keepthread.unlink(_tenant integer, _sid bigint) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM keepthread.sources s WHERE s.tenant = _tenant AND s.sid = _sid;
    DELETE FROM keepthread.naming n WHERE n.tenant = _tenant AND n.sid = _sid;
END
$$;

-- The sessions of the same owner that have the same first message, and those that name this one.
CREATE FUNCTION keepthread.relatives(_tenant integer, _sid bigint)
RETURNS TABLE (is_copy boolean, session keepthread.session)
LANGUAGE plpgsql STABLE AS $$
DECLARE
    mine  record;
    begun record;
BEGIN
    PERFORM set_config('keepthread.tenant', _tenant::text, true);
    SELECT s.owner, s.id INTO mine FROM keepthread.sessions s WHERE s.tenant = _tenant AND s.sid = _sid;
    SELECT m.id, m.created_at INTO begun FROM keepthread.messages m
    WHERE m.tenant = _tenant AND m.sid = _sid AND m.seq = 1;
    RETURN QUERY
        SELECT true, keepthread.described(s) FROM (
            SELECT m.sid FROM keepthread.messages m
            WHERE m.id BETWEEN begun.id AND begun.id AND m.created_at = begun.created_at
              AND m.tenant = _tenant AND m.seq = 1
            ORDER BY m.id, m.created_at OFFSET 0
        ) c, keepthread.sessions s
        WHERE s.tenant = _tenant AND s.sid = c.sid AND s.sid <> _sid AND s.owner = mine.owner;
    RETURN QUERY
        SELECT false, keepthread.described(s) FROM (
            SELECT n.sid FROM keepthread.naming n
            WHERE n.name = keepthread.name_of(mine.owner, mine.id) AND n.tenant = _tenant AND n.sid > 0
            ORDER BY n.sid OFFSET 0
        ) c, keepthread.sessions s
        WHERE s.tenant = _tenant AND s.sid = c.sid;
END
$$;
