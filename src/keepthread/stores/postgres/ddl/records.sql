-- Records. Those of a session have its sid; those of an owner and of the tenant have 0.

-- The checksum of a record.
CREATE FUNCTION keepthread.guard_of_record(
    _tenant integer, _sid bigint, _owner bytea, _kind bytea, _key bytea, _version bigint,
    _value bytea, _made_of bytea, _firsts bigint[], _lasts bigint[]
) RETURNS bytea
LANGUAGE sql STABLE PARALLEL SAFE AS $$
    SELECT substr(sha256(
        int4send(_tenant) || int8send(_sid) || int8send(_version)
        || int4send(length(_owner)) || _owner || int4send(length(_kind)) || _kind
        || int4send(length(_key)) || _key || int4send(length(_value)) || _value
        || coalesce(_made_of || array_send(_firsts) || array_send(_lasts), '')
    ), 1, 8)
$$;

-- A record as it is read; `intact` says whether it is what was written.
CREATE TYPE keepthread.record AS (
    version bigint, owner bytea, kind bytea, key bytea, value bytea, made_of bytea, intact boolean
);

-- Put a record if it and its sources are as the caller saw them. The outcome is `put` and the new
-- version; or `gone`, `version` or `epoch` and the number that is in force.
CREATE FUNCTION keepthread.put(
    _tenant integer, _sid bigint, _whose bytea, _owner bytea, _kind bytea, _key bytea, _value bytea,
    _made_of bytea, _firsts bigint[], _lasts bigint[], _node bigint, _place bytea, _sources bigint[],
    _nodes bigint[], _seen bigint, _sessions bigint[], _epochs bigint[], _change integer,
    OUT outcome text, OUT number bigint
)
LANGUAGE plpgsql AS $$
DECLARE
    source record;
BEGIN
    PERFORM set_config('keepthread.tenant', _tenant::text, true);
    -- In order, so that two who lock several sessions never wait for each other.
    FOR source IN SELECT DISTINCT place FROM unnest(_sid || _sessions) AS place ORDER BY place LOOP
        PERFORM FROM keepthread.sessions s
        WHERE s.tenant = _tenant AND s.sid = source.place FOR NO KEY UPDATE;
    END LOOP;
    IF NOT keepthread.is_there(_tenant, _sid) THEN
        outcome := 'gone';
        RETURN;
    END IF;
    IF _seen IS NOT NULL THEN
        SELECT r.version INTO number FROM keepthread.records r
        WHERE r.tenant = _tenant AND r.sid = _sid AND r.whose = _whose AND r.kind = _kind AND r.key = _key
        FOR UPDATE;
        number := coalesce(number, 0);
        IF number <> _seen THEN
            outcome := 'version';
            RETURN;
        END IF;
    END IF;
    FOR source IN
        SELECT o.seen, (
            SELECT s.epoch FROM keepthread.sessions s WHERE s.tenant = _tenant AND s.sid = o.place)
        FROM unnest(_sessions, _epochs) AS o (place, seen)
    LOOP
        IF source.epoch IS NULL OR source.epoch <> source.seen THEN
            outcome := CASE WHEN source.epoch IS NULL THEN 'gone' ELSE 'epoch' END;
            number := source.epoch;
            RETURN;
        END IF;
    END LOOP;

    number := keepthread.next_of('keepthread.versions');
    INSERT INTO keepthread.records AS r (
        sid, version, tenant, whose, kind, key, owner, guard, value, made_of, firsts, lasts, node
    ) VALUES (
        _sid, number, _tenant, _whose, _kind, _key, _owner,
        keepthread.guard_of_record(
            _tenant, _sid, _owner, _kind, _key, number, _value, _made_of, _firsts, _lasts),
        _value, _made_of, _firsts, _lasts, _node
    ) ON CONFLICT (tenant, sid, whose, kind, key) DO UPDATE
    SET version = excluded.version, owner = excluded.owner, guard = excluded.guard,
        value = excluded.value, made_of = excluded.made_of, firsts = excluded.firsts,
        lasts = excluded.lasts, node = excluded.node
    WHERE _seen IS NULL OR r.version = _seen;
    IF FOUND THEN
        outcome := 'put';
        IF _sid = 0 OR _sources IS NOT NULL THEN
            DELETE FROM keepthread.sources s
            WHERE s.tenant = _tenant AND s.sid = _sid AND s.place = _place;
            INSERT INTO keepthread.sources (sid, source, node, tenant, place, whose, kind, key)
            SELECT _sid, o.source, o.node, _tenant, _place, _whose, _kind, _key
            FROM unnest(_sources, _nodes) AS o (source, node)
            ON CONFLICT DO NOTHING;
        END IF;
        PERFORM keepthread.note_change_of_record(_tenant, _change, _sid, _whose, _owner, _kind, _key);
    ELSE  -- somebody put it first, just now
        outcome := 'version';
        SELECT r.version INTO number FROM keepthread.records r
        WHERE r.tenant = _tenant AND r.sid = _sid AND r.whose = _whose AND r.kind = _kind AND r.key = _key;
        number := coalesce(number, 0);
    END IF;
END
$$;

-- Delete a record; it need not be sound for that. The outcome is `dropped` and how many; or `gone` or
-- `version` and the number that is in force.
CREATE FUNCTION keepthread.drop(
    _tenant integer, _sid bigint, _whose bytea, _kind bytea, _key bytea, _place bytea, _seen bigint,
    _change integer, OUT outcome text, OUT number bigint
)
LANGUAGE plpgsql AS $$
DECLARE
    theirs bytea;
BEGIN
    PERFORM set_config('keepthread.tenant', _tenant::text, true);
    IF _change IS NOT NULL AND _sid <> 0 THEN  -- the changes of a session are in order
        PERFORM FROM keepthread.sessions s WHERE s.tenant = _tenant AND s.sid = _sid FOR NO KEY UPDATE;
    END IF;
    IF NOT keepthread.is_there(_tenant, _sid) THEN
        outcome := 'gone';
        RETURN;
    END IF;
    SELECT r.version, r.owner INTO number, theirs FROM keepthread.records r
    WHERE r.tenant = _tenant AND r.sid = _sid AND r.whose = _whose AND r.kind = _kind AND r.key = _key
    FOR UPDATE;
    number := coalesce(number, 0);
    IF number <> _seen THEN
        outcome := 'version';
        RETURN;
    END IF;
    DELETE FROM keepthread.records r
    WHERE r.tenant = _tenant AND r.sid = _sid AND r.whose = _whose AND r.kind = _kind AND r.key = _key;
    outcome := 'dropped';
    IF number > 0 THEN
        DELETE FROM keepthread.sources s
        WHERE s.tenant = _tenant AND s.sid = _sid AND s.place = _place;
        PERFORM keepthread.note_change_of_record(_tenant, _change, _sid, _whose, theirs, _kind, _key);
    END IF;
    number := (number > 0)::integer;
END
$$;

-- Add the change that a record announces when it is written or deleted; NULL: nothing is announced.
-- The last 32 changes of an owner's records of a kind are known by their numbers.
CREATE FUNCTION keepthread.note_change_of_record(
    _tenant integer, _change integer, _sid bigint, _whose bytea, _owner bytea, _kind bytea, _key bytea
) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    IF _change IS NULL THEN
        RETURN;
    ELSIF _sid = 0 THEN
        PERFORM keepthread.note_change(_tenant, _change, _owner, 0, '', ARRAY[_key]);
        INSERT INTO keepthread.record_changes AS c (tenant, whose, kind, numbers, keys)
        VALUES (_tenant, _whose, _kind, ARRAY[keepthread.next_of('keepthread.versions')], ARRAY[_key])
        ON CONFLICT (tenant, whose, kind) DO UPDATE
        SET numbers = (c.numbers || greatest(
                c.numbers[cardinality(c.numbers)] + 1, excluded.numbers[1]
            ))[cardinality(c.numbers) - 30 :],
            keys = (c.keys || excluded.keys)[cardinality(c.numbers) - 30 :];
    ELSE
        PERFORM keepthread.note_change_of_session(_tenant, _change, _sid, '{}');
    END IF;
END
$$;

-- All records of a session, an owner or the tenant, or those of a kind, by kind and key. With bounds,
-- those of a kind between two keys, the last first and up to a limit; without, all, because a damaged
-- key may sort anywhere. Of all kinds, `_after` is one to leave out.
CREATE FUNCTION keepthread.scan(
    _tenant integer, _sid bigint, _whose bytea, _kind bytea, _after bytea, _before bytea, _limit bigint
) RETURNS SETOF keepthread.record
LANGUAGE plpgsql STABLE AS $$
BEGIN
    PERFORM set_config('keepthread.tenant', _tenant::text, true);
    IF _kind IS NULL THEN
        RETURN QUERY
            SELECT r.version, r.owner, r.kind, r.key, r.value, r.made_of, r.guard = keepthread.guard_of_record(
                r.tenant, r.sid, r.owner, r.kind, r.key, r.version, r.value, r.made_of, r.firsts, r.lasts)
            FROM keepthread.records r
            WHERE r.tenant = _tenant AND r.sid = _sid AND r.whose = _whose AND r.kind IS DISTINCT FROM _after
            ORDER BY r.kind, r.key;
    ELSIF _limit IS NULL THEN
        RETURN QUERY
            SELECT r.version, r.owner, r.kind, r.key, r.value, r.made_of, r.guard = keepthread.guard_of_record(
                r.tenant, r.sid, r.owner, r.kind, r.key, r.version, r.value, r.made_of, r.firsts, r.lasts)
            FROM keepthread.records r
            WHERE r.tenant = _tenant AND r.sid = _sid AND r.whose = _whose AND r.kind = _kind
            ORDER BY r.key;
    ELSE
        RETURN QUERY
            SELECT r.version, r.owner, r.kind, r.key, r.value, r.made_of, r.guard = keepthread.guard_of_record(
                r.tenant, r.sid, r.owner, r.kind, r.key, r.version, r.value, r.made_of, r.firsts, r.lasts)
            FROM keepthread.records r
            WHERE r.tenant = _tenant AND r.sid = _sid AND r.whose = _whose AND r.kind = _kind
              AND r.key > _after AND r.key < _before
            ORDER BY r.key DESC LIMIT _limit;
    END IF;
    IF NOT FOUND AND _sid <> 0 THEN  -- version 0 says that the session exists and has none
        RETURN QUERY
            SELECT 0::bigint, ''::bytea, ''::bytea, ''::bytea, ''::bytea, NULL::bytea, true
            FROM keepthread.sessions s WHERE s.tenant = _tenant AND s.sid = _sid;
    END IF;
END
$$;

-- The records of an owner or of the tenant that changed after a number. The first row is not a record:
-- `version` is the number of the last change, and `intact` says that all records follow, because it is
-- not known which ones changed. A record that was dropped has the version 0.
CREATE FUNCTION keepthread.updates(_tenant integer, _whose bytea, _kind bytea, _since bigint)
RETURNS SETOF keepthread.record
LANGUAGE plpgsql STABLE AS $$
DECLARE
    known   keepthread.record_changes;
    place   integer;
BEGIN
    PERFORM set_config('keepthread.tenant', _tenant::text, true);
    SELECT * INTO known FROM keepthread.record_changes c
    WHERE c.tenant = _tenant AND c.whose = _whose AND c.kind = _kind;
    place := array_position(known.numbers, _since);
    RETURN QUERY
        SELECT coalesce(known.numbers[cardinality(known.numbers)], 0), NULL::bytea, NULL::bytea, NULL::bytea,
               NULL::bytea, NULL::bytea, place IS NULL;
    IF place IS NULL THEN
        RETURN QUERY SELECT * FROM keepthread.scan(_tenant, 0, _whose, _kind, NULL, NULL, NULL);
    ELSIF place < cardinality(known.numbers) THEN
        RETURN QUERY
            SELECT coalesce(r.version, 0), r.owner, _kind, changed.key, r.value, r.made_of,
                   r.guard = keepthread.guard_of_record(
                       r.tenant, r.sid, r.owner, r.kind, r.key, r.version, r.value, r.made_of, r.firsts,
                       r.lasts)
            FROM (SELECT DISTINCT unnest(known.keys[place + 1 :]) AS key) changed
            LEFT JOIN LATERAL (
                SELECT * FROM keepthread.records r
                WHERE r.tenant = _tenant AND r.sid = 0 AND r.whose = _whose AND r.kind = _kind
                  AND r.key = changed.key
                OFFSET 0  -- one by one: never all records, held against the list
            ) r ON true;
    END IF;
END
$$;

CREATE FUNCTION keepthread.get(_tenant integer, _sid bigint, _whose bytea, _kind bytea, _key bytea)
RETURNS SETOF keepthread.record
LANGUAGE plpgsql STABLE AS $$
BEGIN
    PERFORM set_config('keepthread.tenant', _tenant::text, true);
    RETURN QUERY
        SELECT r.version, r.owner, r.kind, r.key, r.value, r.made_of, r.guard = keepthread.guard_of_record(
            r.tenant, r.sid, r.owner, r.kind, r.key, r.version, r.value, r.made_of, r.firsts, r.lasts)
        FROM keepthread.records r
        WHERE r.tenant = _tenant AND r.sid = _sid AND r.whose = _whose AND r.kind = _kind AND r.key = _key;
END
$$;

CREATE FUNCTION keepthread.owners(_tenant integer) RETURNS SETOF bytea
LANGUAGE plpgsql STABLE AS $$
BEGIN
    PERFORM set_config('keepthread.tenant', _tenant::text, true);
    RETURN QUERY
        SELECT DISTINCT r.owner FROM keepthread.records r
        WHERE r.tenant = _tenant AND r.sid = 0 AND r.owner <> '' ORDER BY r.owner;
END
$$;

CREATE FUNCTION keepthread.blob_owners(_tenant integer) RETURNS SETOF bytea
LANGUAGE plpgsql STABLE AS $$
BEGIN
    PERFORM set_config('keepthread.tenant', _tenant::text, true);
    RETURN QUERY
        SELECT DISTINCT r.owner FROM keepthread.records r
        WHERE r.tenant = _tenant AND r.sid = 0 AND r.kind IN ('blob_upload', 'blob_use')
        ORDER BY r.owner;
END
$$;

-- A session's own records at some nodes, or at all: those that may be made of a position.
CREATE FUNCTION keepthread.records_at(_tenant integer, _sid bigint, _nodes bigint[])
RETURNS SETOF keepthread.records
LANGUAGE plpgsql STABLE AS $$
BEGIN
    IF _nodes IS NULL THEN
        RETURN QUERY
            SELECT r.* FROM keepthread.records r
            WHERE r.tenant = _tenant AND r.sid = _sid AND r.node IS NOT NULL ORDER BY r.node;
    ELSE
        RETURN QUERY
            SELECT r.* FROM unnest(_nodes) AS wanted, LATERAL (
                SELECT * FROM keepthread.records o
                WHERE o.tenant = _tenant AND o.sid = _sid AND o.node BETWEEN wanted AND wanted
                ORDER BY o.node OFFSET 0
            ) r;
    END IF;
END
$$;

-- Delete a session's records that are made of these positions of it, at the nodes above them. The sources of a
-- damaged record are unknown, so it is deleted too: nobody can read it, but its bytes may
-- contain erased text.
CREATE FUNCTION keepthread.drop_made_of(_tenant integer, _sid bigint, _seqs bigint[], _nodes bigint[])
RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    one record;
BEGIN
    FOR one IN
        SELECT r.whose, r.kind, r.key FROM keepthread.records_at(_tenant, _sid, _nodes) r
        WHERE EXISTS (
            SELECT FROM unnest(r.firsts, r.lasts) AS span (first, last), unnest(_seqs) AS place
            WHERE place BETWEEN span.first AND span.last)
        OR r.guard <> keepthread.guard_of_record(
            r.tenant, r.sid, r.owner, r.kind, r.key, r.version, r.value, r.made_of, r.firsts, r.lasts)
    LOOP
        DELETE FROM keepthread.records r
        WHERE r.tenant = _tenant AND r.sid = _sid AND r.whose = one.whose AND r.kind = one.kind
          AND r.key = one.key;
    END LOOP;
END
$$;

-- The other records that may be made of positions of a session: of other sessions, of owners, of the tenant.
CREATE FUNCTION keepthread.other_records_at(_tenant integer, _source bigint, _nodes bigint[])
RETURNS SETOF keepthread.records
LANGUAGE plpgsql STABLE AS $$
DECLARE
    one record;
BEGIN
    FOR one IN
        SELECT s.sid, s.whose, s.kind, s.key FROM unnest(coalesce(_nodes, '{-1}')) AS wanted, LATERAL (
            SELECT * FROM keepthread.sources o
            WHERE o.source = _source AND o.tenant = _tenant AND o.node >= 0
              AND o.node BETWEEN wanted AND CASE WHEN wanted < 0 THEN 9223372036854775807 ELSE wanted END
            ORDER BY o.node OFFSET 0
        ) s
    LOOP
        RETURN QUERY
            SELECT r.* FROM keepthread.records r
            WHERE r.tenant = _tenant AND r.sid = one.sid AND r.whose = one.whose AND r.kind = one.kind
              AND r.key = one.key;
    END LOOP;
END
$$;

CREATE FUNCTION keepthread.made_of(_tenant integer, _sid bigint, _nodes bigint[])
RETURNS TABLE (
    sid bigint, version bigint, owner bytea, kind bytea, key bytea, value bytea, made_of bytea,
    intact boolean
)
LANGUAGE plpgsql STABLE AS $$
BEGIN
    PERFORM set_config('keepthread.tenant', _tenant::text, true);
    RETURN QUERY
        SELECT r.sid, r.version, r.owner, r.kind, r.key, r.value, r.made_of,
               r.guard = keepthread.guard_of_record(
                   r.tenant, r.sid, r.owner, r.kind, r.key, r.version, r.value, r.made_of, r.firsts, r.lasts)
        FROM (
            SELECT * FROM keepthread.records_at(_tenant, _sid, _nodes)
            UNION ALL SELECT * FROM keepthread.other_records_at(_tenant, _sid, _nodes)
        ) r;
END
$$;
