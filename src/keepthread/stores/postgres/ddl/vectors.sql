-- Vectors. The nearest are found by pgvector where the server has it, else by the caller, who gets the
-- vectors themselves.

CREATE FUNCTION keepthread.vectors_at(_tenant integer, _view bytea, _sids bigint[], _ats bigint[])
RETURNS TABLE (sid bigint, at bigint, dims integer, ids bytea, data bytea)
LANGUAGE plpgsql STABLE AS $$
DECLARE
    number CONSTANT integer := keepthread.view_of(_view);
BEGIN
    PERFORM set_config('keepthread.tenant', _tenant::text, true);
    RETURN QUERY
        SELECT v.*
        FROM keepthread.owned(_tenant, _sids, _ats) o,
        LATERAL (
            SELECT v.sid, v.at, v.dims, v.ids, v.data FROM keepthread.vectors v
            WHERE v.tenant = _tenant AND v.view = number AND v.whose = o.whose AND v.sid = o.sid
              AND v.at >= o.at AND v.at <= o.last AND v.at > 0
            OFFSET 0
        ) v;
END
$$;

-- Single vectors of a scope after a position, in no meaningful order.
CREATE FUNCTION keepthread.points_behind(
    _tenant integer, _view bytea, _owner bytea, _sid bigint, _dims bigint, _whose bigint, _after bigint,
    _at bigint, _limit bigint
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
    ELSIF scope.whose IS NULL THEN
        RETURN QUERY
            SELECT v.whose, v.sid, v.at, v.data FROM keepthread.vectors v
            WHERE v.tenant = _tenant AND v.view = number AND (v.whose, v.sid, v.at) > (_whose, _after, _at)
              AND v.dims = _dims AND v.ids = '' AND v.at > 0
            ORDER BY v.whose, v.sid, v.at LIMIT _limit;
    ELSE
        RETURN QUERY
            SELECT v.whose, v.sid, v.at, v.data FROM keepthread.vectors v
            WHERE v.tenant = _tenant AND v.view = number AND v.whose = scope.whose
              AND v.sid BETWEEN scope.low AND scope.high AND (v.sid, v.at) > (_after, _at)
              AND v.dims = _dims AND v.ids = '' AND v.at > 0
            ORDER BY v.sid, v.at LIMIT _limit;
    END IF;
END
$$;

-- Single vectors of a scope after a position, in messages of a time and of some roles; a role is a bit by
-- its number.
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

-- The nearest positions, nearest first. Without pgvector one row of NULLs: it cannot be computed here.
CREATE FUNCTION keepthread.nearest(
    _tenant integer, _view bytea, _owner bytea, _sid bigint, _dims bigint, _to bytea, _limit bigint
) RETURNS TABLE (sid bigint, at bigint)
LANGUAGE sql STABLE AS $$
    SELECT NULL::bigint, NULL::bigint
$$;

-- Create an index of near vectors of N dimensions, if a tenant's view has come to have many and the table
-- is still small. To put a vector into it takes thirty times as long as to store the vector alone, and
-- only large scopes gain; to create it late keeps everybody waiting.
CREATE FUNCTION keepthread.index_nearest(_tenant integer, _view bytea, _dims bigint) RETURNS void
LANGUAGE sql AS $$
$$;

-- Use pgvector, once it is installed. Vectors that are stored already become points as well.
CREATE FUNCTION keepthread.use_pgvector() RETURNS boolean
LANGUAGE plpgsql AS $use$
DECLARE
    place CONSTANT text := (
        SELECT quote_ident(n.nspname) FROM pg_extension e, pg_namespace n
        WHERE e.extname = 'vector' AND n.oid = e.extnamespace
          AND string_to_array(regexp_replace(e.extversion, '[^0-9.].*', ''), '.')::integer[] >= '{0,8}');
BEGIN
    IF place IS NULL THEN
        RETURN false;
    END IF;

    -- 4000 dimensions are what an index of pgvector's takes; more are compared one by one elsewhere.
    EXECUTE format($sql$
        CREATE FUNCTION keepthread.point_of(_ids bytea, _data bytea) RETURNS %1$s.halfvec
        LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
            SELECT CASE WHEN _ids = '' AND length(_data) BETWEEN 1 AND 4000 THEN ARRAY(
                SELECT (get_byte(_data, n) + 128) %% 256 - 128 FROM generate_series(0, length(_data) - 1) n
            )::%1$s.halfvec END
        $$
    $sql$, place);
    EXECUTE format(
        'ALTER TABLE keepthread.vectors ADD COLUMN point %s.halfvec'
        ' GENERATED ALWAYS AS (keepthread.point_of(ids, data)) STORED', place);
    -- Nor does the planner take samples, which would outlive what is erased.
    ALTER TABLE keepthread.vectors ALTER COLUMN point SET STATISTICS 0;

    EXECUTE format($sql$
        CREATE OR REPLACE FUNCTION keepthread.index_nearest(_tenant integer, _view bytea, _dims bigint)
        RETURNS void
        LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog SET lock_timeout = '2s' AS $$
        DECLARE
            many  CONSTANT bigint := 10000;
            large CONSTANT bigint := 256 * 1024 * 1024;
            name  CONSTANT text := 'vectors_nearest_' || _dims;
            one   regclass;
        BEGIN
            PERFORM set_config('keepthread.tenant', _tenant::text, true);
            IF _dims NOT BETWEEN 1 AND 4000 OR to_regclass('keepthread.' || name) IS NOT NULL
               OR coalesce((
                   SELECT sum(r.upto) FROM keepthread.readings r
                   WHERE r.tenant = _tenant AND r.view = keepthread.view_of(_view)), 0) < many
               OR large < (
                   SELECT sum(pg_relation_size(i.inhrelid)) FROM pg_inherits i
                   WHERE i.inhparent = 'keepthread.vectors'::regclass) THEN
                RETURN;
            END IF;
            EXECUTE format(
                'CREATE INDEX %%2$I ON keepthread.vectors USING hnsw'
                ' ((point::%1$s.halfvec(%%1$s)) %1$s.halfvec_ip_ops) WHERE dims = %%1$s', _dims, name);
            FOR one IN
                SELECT i.inhrelid FROM pg_inherits i
                WHERE i.inhparent = ('keepthread.' || name)::regclass
            LOOP
                EXECUTE format('ALTER INDEX %%s ALTER COLUMN 1 SET STATISTICS 0', one);
            END LOOP;
        END
        $$
    $sql$, place);

    -- The index finds the nearest vectors of the whole table, and those outside the scope are skipped.
    -- That works well for a large scope; a small one is compared row by row, and so is a scope of which
    -- the index found too few.
    EXECUTE format($sql$
        CREATE OR REPLACE FUNCTION keepthread.nearest(
            _tenant integer, _view bytea, _owner bytea, _sid bigint, _dims bigint, _to bytea, _limit bigint
        ) RETURNS TABLE (sid bigint, at bigint)
        LANGUAGE plpgsql STABLE AS $$
        DECLARE
            few    CONSTANT bigint := 20000;
            number CONSTANT integer := keepthread.view_of(_view);
            near   CONSTANT %1$s.halfvec := keepthread.point_of('', _to);
            scope  record;
            sids   bigint[];
            ats    bigint[];
        BEGIN
            PERFORM set_config('keepthread.tenant', _tenant::text, true);
            SELECT * INTO scope FROM keepthread.scope(_tenant, _owner, _sid);
            IF scope.low IS NULL THEN
                RETURN;
            ELSIF near IS NULL THEN
                RETURN QUERY SELECT NULL::bigint, NULL::bigint;
                RETURN;
            ELSIF _sid IS NULL AND keepthread.are_many(_tenant, number, scope.whose, few)
                  AND to_regclass('keepthread.vectors_nearest_' || _dims) IS NOT NULL THEN
                PERFORM set_config('hnsw.iterative_scan', 'strict_order', true),
                        set_config('hnsw.ef_search', greatest(80, least(2 * _limit, 1000))::text, true);
                EXECUTE format(
                    'SELECT array_agg(f.sid), array_agg(f.at) FROM ('
                    ' SELECT v.sid, v.at FROM keepthread.vectors v'
                    ' WHERE v.tenant = $1 AND v.view = $2 AND %%2$s AND v.dims = %%1$s AND v.point IS NOT NULL'
                    ' ORDER BY v.point::%1$s.halfvec(%%1$s) OPERATOR(%1$s.<#>) $4 LIMIT $5) f',
                    _dims, CASE WHEN scope.whose IS NULL THEN 'true' ELSE 'v.whose = $3' END)
                INTO sids, ats USING _tenant, number, scope.whose, near, _limit;
                IF cardinality(sids) >= _limit THEN
                    RETURN QUERY SELECT * FROM unnest(sids, ats);
                    RETURN;
                END IF;
            END IF;
            IF scope.whose IS NULL THEN
                RETURN QUERY
                    SELECT v.sid, v.at FROM keepthread.vectors v
                    WHERE v.tenant = _tenant AND v.view = number AND v.dims = _dims
                      AND v.point IS NOT NULL AND v.at > 0
                    ORDER BY v.point OPERATOR(%1$s.<#>) near LIMIT _limit;
            ELSE
                RETURN QUERY
                    SELECT v.sid, v.at FROM keepthread.vectors v
                    WHERE v.tenant = _tenant AND v.view = number AND v.whose = scope.whose
                      AND v.sid BETWEEN scope.low AND scope.high AND v.dims = _dims
                      AND v.point IS NOT NULL AND v.at > 0
                    ORDER BY v.point OPERATOR(%1$s.<#>) near LIMIT _limit;
            END IF;
        END
        $$
    $sql$, place);
    RETURN true;
END
$use$;

-- Whether a scope has more than N vectors.
CREATE FUNCTION keepthread.are_many(_tenant integer, _view integer, _whose bigint, _few bigint)
RETURNS boolean
LANGUAGE plpgsql STABLE AS $$
BEGIN
    IF _whose IS NULL THEN
        RETURN _few < (
            SELECT count(*) FROM (
                SELECT FROM keepthread.vectors v
                WHERE v.tenant = _tenant AND v.view = _view AND v.at > 0 LIMIT _few + 1) s);
    END IF;
    RETURN _few < (
        SELECT count(*) FROM (
            SELECT FROM keepthread.vectors v
            WHERE v.tenant = _tenant AND v.view = _view AND v.whose = _whose AND v.at > 0
            LIMIT _few + 1) s);
END
$$;

-- The extension may be missing, or not ours to create; everything works without it.
DO $$
BEGIN
    CREATE EXTENSION IF NOT EXISTS vector;
EXCEPTION
    WHEN insufficient_privilege OR undefined_file OR feature_not_supported OR unique_violation THEN NULL;
END
$$;

SELECT keepthread.use_pgvector();
