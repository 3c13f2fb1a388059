-- The tables of a server, for all tenants: no row-level security, but rights. Only their owner and the
-- role below may use them; the role that keepthread takes for a tenant's data may not. `tables.py` of all
-- stores says what `data` and `head` hold: a checksum, then JSON.

-- Of a key itself only the digest is here.
CREATE TABLE keepthread.api_keys (
    id     bytea NOT NULL PRIMARY KEY,
    tenant bytea NOT NULL,  -- its name
    data   bytea NOT NULL
);

CREATE INDEX api_keys_of_tenant ON keepthread.api_keys (tenant, id);

CREATE TABLE keepthread.secrets (
    name bytea NOT NULL PRIMARY KEY,
    data bytea NOT NULL
);

-- Requests that a client may send again, for a day. An answer's body may repeat messages, so it is deleted
-- once its tenant forgets anything. The empty body of a request in flight says that there was such a moment.
CREATE TABLE keepthread.requests (
    id       bytea            NOT NULL PRIMARY KEY,
    tenant   bytea            NOT NULL,
    digest   bytea            NOT NULL,
    token    bytea            NOT NULL,  -- of the worker that does it
    begun_at double precision NOT NULL,
    head     bytea,                      -- the answer without its body; NULL: in flight
    body     bytea
);

CREATE INDEX requests_by_time ON keepthread.requests (begun_at);
CREATE INDEX requests_of_tenant ON keepthread.requests (tenant);

-- The planner takes no samples of it, which would outlive what is erased.
ALTER TABLE keepthread.requests ALTER COLUMN body SET STATISTICS 0;

CREATE TABLE keepthread.audit (
    number bigint NOT NULL PRIMARY KEY,
    tenant bytea  NOT NULL,
    data   bytea  NOT NULL
);

CREATE INDEX audit_of_tenant ON keepthread.audit (tenant, number);

-- Claim a request, or return what is known of it; no row means that it is the caller's now. The same token
-- may arrive twice, after a lost connection.
CREATE FUNCTION keepthread.begin_request(
    _id bytea, _name bytea, _digest bytea, _token bytea, _at double precision, _dead double precision,
    _old double precision
) RETURNS TABLE (digest bytea, head bytea, body bytea)
LANGUAGE plpgsql AS $$
BEGIN
    LOOP
        INSERT INTO keepthread.requests AS r (id, tenant, digest, token, begun_at)
        VALUES (_id, _name, _digest, _token, _at)
        ON CONFLICT (id) DO UPDATE
        SET digest = _digest, token = _token, begun_at = _at, head = NULL, body = NULL
        WHERE r.begun_at <= _old
           OR (r.head IS NULL AND r.digest = _digest AND (r.begun_at <= _dead OR r.token = _token));
        IF FOUND THEN
            RETURN;
        END IF;
        RETURN QUERY SELECT r.digest, r.head, r.body FROM keepthread.requests r WHERE r.id = _id;
        IF FOUND THEN
            RETURN;
        END IF;
    END LOOP;
END
$$;

-- Append to the audit log. One at a time, so that a reader never passes over a lower number that is
-- committed later.
CREATE FUNCTION keepthread.append_entry(_name bytea, _data bytea) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    last bigint;
BEGIN
    PERFORM pg_advisory_xact_lock(hashtextextended('keepthread.audit', 0));
    SELECT a.number INTO last FROM keepthread.audit a ORDER BY a.number DESC LIMIT 1;
    INSERT INTO keepthread.audit (number, tenant, data) VALUES (coalesce(last, 0) + 1, _name, _data);
    RETURN coalesce(last, 0) + 1;
END
$$;

-- Delete a tenant's requests and keys; return whether there were keys.
CREATE FUNCTION keepthread.drop_keys(_name bytea) RETURNS boolean
LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM keepthread.requests r WHERE r.tenant = _name;
    DELETE FROM keepthread.api_keys k WHERE k.tenant = _name;
    RETURN FOUND;
END
$$;

-- Delete the bodies of answers to a tenant's requests, also of those in flight, once they are answered. Any role
-- that can forget may call this.
CREATE FUNCTION keepthread.drop_answers(_name bytea) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog AS $$
BEGIN
    UPDATE keepthread.requests SET body = CASE WHEN head IS NULL THEN ''::bytea END
    WHERE tenant = _name AND (body IS NOT NULL OR head IS NULL);
END
$$;

-- Delete entries of the audit log up to a number, and return how many. The role of servers may delete no others:
-- not the newest, from which numbers continue, and none of the last 30 days.
CREATE FUNCTION keepthread.prune_entries(_until bigint) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog AS $$
DECLARE
    gone bigint;
BEGIN
    DELETE FROM keepthread.audit a
    WHERE a.number <= least(_until, (SELECT max(b.number) - 1 FROM keepthread.audit b))
      AND coalesce(substring(encode(a.data, 'escape') FROM '"at":([0-9]{1,12})')::bigint, 0)
          < extract(epoch FROM now()) - 30 * 86400;
    GET DIAGNOSTICS gone = ROW_COUNT;
    RETURN gone;
END
$$;

REVOKE ALL ON FUNCTION keepthread.prune_entries(bigint) FROM PUBLIC;

-- A role for servers whose login does not own the tables.
DO $$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'keepthread_server') THEN
        CREATE ROLE keepthread_server NOLOGIN;
    END IF;
EXCEPTION
    WHEN duplicate_object OR unique_violation OR insufficient_privilege THEN NULL;
END
$$;

DO $$
BEGIN
    GRANT keepthread_server TO CURRENT_USER;
EXCEPTION
    WHEN undefined_object OR insufficient_privilege OR invalid_grant_operation THEN NULL;
END
$$;

DO $$
BEGIN
    IF EXISTS (SELECT FROM pg_roles WHERE rolname = 'keepthread_server') THEN
        GRANT USAGE ON SCHEMA keepthread TO keepthread_server;
        GRANT SELECT, INSERT, UPDATE, DELETE
            ON keepthread.api_keys, keepthread.secrets, keepthread.requests TO keepthread_server;
        GRANT SELECT, INSERT ON keepthread.audit TO keepthread_server;
        GRANT EXECUTE ON FUNCTION keepthread.prune_entries(bigint) TO keepthread_server;
    END IF;
END
$$;
