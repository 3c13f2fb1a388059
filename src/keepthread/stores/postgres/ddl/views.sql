-- Views for people and reporting tools: the log by plain names. Read-only, and keepthread itself does
-- not use them. Each names the tenant itself, so that it shows one tenant's rows even where it runs with
-- the rights of its owner, as before PostgreSQL 15. Erased messages, delegated tasks, and sessions that
-- are not complete or were forgotten are left out.

-- Bytes as text. Half characters and NUL, which text cannot hold, become U+FFFD; bytes that this
-- database's encoding does not have are escaped, so that one row does not end a query.
CREATE FUNCTION keepthread.readable(_data bytea) RETURNS text
LANGUAGE plpgsql IMMUTABLE STRICT AS $$
DECLARE
    pairs text;
BEGIN
    RETURN convert_from(_data, 'UTF8');
EXCEPTION WHEN OTHERS THEN
    pairs := regexp_replace(encode(_data, 'hex'), '(..)', '\1 ', 'g');
    pairs := regexp_replace(pairs, '\med [ab]. .. |\m00 ', 'ef bf bd ', 'g');
    BEGIN
        RETURN convert_from(decode(replace(pairs, ' ', ''), 'hex'), 'UTF8');
    EXCEPTION WHEN OTHERS THEN
        RETURN encode(_data, 'escape');
    END;
END
$$;

-- Bytes as JSON, with a question mark for each NUL; NULL if they are damaged.
CREATE FUNCTION keepthread.readable_json(_data bytea) RETURNS json
LANGUAGE plpgsql IMMUTABLE STRICT AS $$
BEGIN
    RETURN regexp_replace(keepthread.readable(_data), '(?<!\\)((?:\\\\)*)\\u0000', '\1?', 'g')::json;
EXCEPTION WHEN OTHERS THEN
    RETURN NULL;
END
$$;

CREATE VIEW keepthread.v_sessions WITH (security_barrier = true) AS
SELECT keepthread.readable(s.id) AS id,
       to_timestamp(least(s.created_at, 253402300799)) AS created_at,
       to_timestamp(least(s.active_at, 253402300799)) AS updated_at,
       d.details -> 'meta' AS metadata,
       d.details ->> 'system_prompt' AS system_prompt,
       keepthread.readable(s.owner) AS owner,
       d.details ->> 'title' AS title,
       d.details -> 'tags' AS tags
FROM keepthread.sessions s
CROSS JOIN LATERAL (SELECT keepthread.readable_json(s.details) AS details) d
WHERE s.tenant = (SELECT nullif(current_setting('keepthread.tenant', true), '')::integer)
  AND s.ready AND s.kind <> 2;

CREATE VIEW keepthread.v_messages WITH (security_barrier = true) AS
SELECT CASE WHEN length(m.id) = 16 THEN encode(m.id, 'hex')
            ELSE keepthread.readable(btrim(m.id, '\x00'::bytea)) END AS id,
       keepthread.readable(s.id) AS session_id,
       (ARRAY['system', 'user', 'assistant', 'tool'])[m.role + 1] AS role,
       keepthread.readable(m.content) AS content,
       e.extra -> 'tool_calls' AS tool_calls,
       e.extra ->> 'tool_call_id' AS tool_call_id,
       e.extra ->> 'name' AS name,
       to_timestamp(least(m.created_at, 253402300799)) AS created_at,
       m.seq,
       m.turn,
       m.tokens,
       e.extra ->> 'author' AS author,
       keepthread.readable(s.owner) AS owner
FROM keepthread.messages m
JOIN keepthread.sessions s ON s.tenant = m.tenant AND s.sid = m.sid
CROSS JOIN LATERAL (SELECT keepthread.readable_json(nullif(m.extra, ''::bytea)) AS extra) e
WHERE m.tenant = (SELECT nullif(current_setting('keepthread.tenant', true), '')::integer)
  AND s.tenant = m.tenant
  AND s.ready AND s.kind <> 2 AND m.content IS NOT NULL;

DO $$
BEGIN
    IF current_setting('server_version_num')::integer >= 150000 THEN
        ALTER VIEW keepthread.v_sessions SET (security_invoker = true);
        ALTER VIEW keepthread.v_messages SET (security_invoker = true);
    END IF;
    IF EXISTS (SELECT FROM pg_roles WHERE rolname = 'keepthread_app') THEN
        GRANT SELECT ON keepthread.v_sessions, keepthread.v_messages TO keepthread_app;
    END IF;
END
$$;
