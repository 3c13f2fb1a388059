-- The walls: every row belongs to a tenant, and only rows of the tenant that a transaction has
-- named are there for it. Forced, so that the tables' owner is held back as well; only superusers
-- and roles with BYPASSRLS are not, which is why keepthread takes the role below once connected.

DO $$
DECLARE
    wall CONSTANT text :=
        'tenant = (SELECT nullif(current_setting(''keepthread.tenant'', true), '''')::integer)';
    one regclass;
BEGIN
    FOR one IN
        SELECT oid FROM pg_class
        WHERE relnamespace = 'keepthread'::regnamespace AND relkind IN ('r', 'p')
          AND (relname = 'sessions' OR relname ~ '^(messages|shelf)')
    LOOP
        EXECUTE format('ALTER TABLE %s ENABLE ROW LEVEL SECURITY', one);
        EXECUTE format('ALTER TABLE %s FORCE ROW LEVEL SECURITY', one);
        EXECUTE format('CREATE POLICY wall ON %s USING (%s)', one, wall);
    END LOOP;
END
$$;

-- The number of a tenant's name, 0 if it has none; made if asked to: from the name, and if that
-- number is another's, the one behind it. The names themselves are nobody's to read.
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

-- A role that owns nothing. Roles belong to the whole server: another database may have made it
-- already, and whoever migrates may not be allowed to. Then the walls hold by being forced.
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
        GRANT SELECT ON keepthread.migrations TO keepthread_app;
        GRANT USAGE ON SEQUENCE keepthread.places, keepthread.versions TO keepthread_app;
        GRANT SELECT, INSERT, UPDATE, DELETE
            ON keepthread.sessions, keepthread.messages, keepthread.shelf TO keepthread_app;
    END IF;
END
$$;
