-- Row-level security: every row belongs to a tenant, and a transaction sees only rows of the tenant
-- that it has named. Forced, so that it holds for the tables' owner as well; only superusers and roles
-- with BYPASSRLS are exempt, which is why keepthread takes the role below once connected.
--
-- Under a policy, PostgreSQL asks no index whether a row holds a word: as far as it knows, the operator
-- might reveal rows of other tenants, so each row would be looked at. Only what a policy itself asks may
-- use an index. So the policy of `asked` asks it: rows of the tenant that the transaction has named and
-- that hold the words it has named, and no others.
DO $$
DECLARE
    wall  CONSTANT text :=
        'tenant = (SELECT nullif(current_setting(''keepthread.tenant'', true), '''')::integer)';
    asked CONSTANT text :=
        'words @@ (SELECT nullif(current_setting(''keepthread.asked'', true), '''')::tsquery)';
    one record;
BEGIN
    FOR one IN
        SELECT oid::regclass AS place, relname FROM pg_class
        WHERE relnamespace = 'keepthread'::regnamespace AND relkind IN ('r', 'p')
          AND relname NOT IN ('migrations', 'tenants')
    LOOP
        EXECUTE format('ALTER TABLE %s ENABLE ROW LEVEL SECURITY', one.place);
        EXECUTE format('ALTER TABLE %s FORCE ROW LEVEL SECURITY', one.place);
        EXECUTE format('CREATE POLICY wall ON %s USING (%s)', one.place, concat_ws(
            ' AND ', wall, CASE WHEN one.relname = 'asked' THEN asked END));
    END LOOP;
END
$$;

-- The number of a tenant's name, 0 if it has none; created if `_make` is set: from the name, and if
-- another tenant has that number, the next free one. Nobody may read the names themselves.
CREATE FUNCTION keepthread.tenant_number(_name bytea, _make boolean) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog AS $$
DECLARE
    number integer;
    free   integer := ('x' || encode(substr(sha256(_name), 1, 4), 'hex'))::bit(32)::bigint % 2147483646;
BEGIN
    LOOP
        SELECT t.tenant INTO number FROM keepthread.tenants t WHERE t.name = _name;
        EXIT WHEN FOUND OR NOT _make;
        free := free % 2147483647 + 1;
        INSERT INTO keepthread.tenants (tenant, name) VALUES (free, _name) ON CONFLICT DO NOTHING;
    END LOOP;
    RETURN coalesce(number, 0);
END
$$;

-- A role that owns nothing. Roles belong to the whole server: another database may have created it
-- already, and the role that creates the schema may not be allowed to. Then the policies hold by being
-- forced.
DO $$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'keepthread_app') THEN
        CREATE ROLE keepthread_app NOLOGIN;
    END IF;
EXCEPTION
    WHEN duplicate_object OR unique_violation OR insufficient_privilege THEN NULL;
END
$$;

DO $$
BEGIN
    GRANT keepthread_app TO CURRENT_USER;
EXCEPTION
    WHEN undefined_object OR insufficient_privilege OR invalid_grant_operation THEN NULL;
END
$$;

DO $$
BEGIN
    IF EXISTS (SELECT FROM pg_roles WHERE rolname = 'keepthread_app') THEN
        GRANT USAGE ON SCHEMA keepthread TO keepthread_app;
        GRANT SELECT ON keepthread.migrations, keepthread.asked TO keepthread_app;
        GRANT USAGE ON SEQUENCE keepthread.places, keepthread.versions,
            keepthread.change_numbers TO keepthread_app;
        GRANT SELECT, INSERT, UPDATE, DELETE
            ON keepthread.sessions, keepthread.messages, keepthread.records,
               keepthread.record_changes, keepthread.sources, keepthread.naming, keepthread.changes,
               keepthread.trimmed, keepthread.readings, keepthread.segments, keepthread.words,
               keepthread.vectors, keepthread.corpora, keepthread.unread, keepthread.eras
            TO keepthread_app;
    END IF;
END
$$;
