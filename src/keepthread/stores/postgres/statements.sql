-- Every statement of the PostgreSQL store, by name. `-- name:` starts one. Most call one function,
-- which names the tenant first: in autocommit a call is a transaction, and the tenant's name ends
-- with it.

-- name: tenant_number
SELECT keepthread.tenant_number(%s, %s)

-- name: create_session
SELECT keepthread.create_session(%s::integer, %s, %s, %s, %s, %s, %s, %s, %s::bytea[])

-- name: update_session
SELECT keepthread.update_session(%s::integer, %s, %s, %s, %s, %s, %s, %s)

-- name: delete_session
SELECT keepthread.delete_session(%s::integer, %s, %s, %s)

-- name: session_by_id
SELECT * FROM keepthread.session_by_id(%s::integer, %s, %s)

-- name: session_by_sid
SELECT * FROM keepthread.session_by_sid(%s::integer, %s)

-- name: list_sessions
SELECT * FROM keepthread.list_sessions(%s::integer, %s, %s, %s, %s, %s)

-- name: unlisted_sessions
SELECT * FROM keepthread.unlisted_sessions(%s::integer, %s, %s, %s)

-- name: relatives
SELECT is_copy, (session).* FROM keepthread.relatives(%s::integer, %s)

-- name: name_sessions
SELECT keepthread.name_sessions(%s::integer, %s, %s::bytea[])

-- name: sessions_behind
SELECT * FROM keepthread.sessions_behind(%s::integer, %s, %s, %s)

-- name: append
SELECT * FROM keepthread.append(%s::integer, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s)

-- name: append_with_care
SELECT * FROM keepthread.append_with_care(
    %s::integer, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s)

-- name: append_all
SELECT * FROM keepthread.append_all(%s::integer, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s)

-- name: append_naming
SELECT a.* FROM keepthread.name_sessions(%s::integer, %s, %s::bytea[]) n, keepthread.append_all(
    %s::integer, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s) a

-- name: tail
SELECT * FROM keepthread.tail(%s::integer, %s, %s, %s, %s, %s, %s)

-- name: gather
SELECT * FROM keepthread.gather(%s::integer, %s, %s, %s, %s::bytea[], %s::bytea[], %s)

-- name: read
SELECT * FROM keepthread.read(%s::integer, %s, %s, %s, %s)

-- name: find
SELECT * FROM keepthread.find(%s::integer, %s, %s, %s)

-- name: put
SELECT * FROM keepthread.put(
    %s::integer, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s::bigint[], %s::bigint[], %s, %s, %s,
    %s::integer)

-- name: get
SELECT * FROM keepthread.get(%s::integer, %s, %s, %s, %s)

-- name: scan
SELECT * FROM keepthread.scan(%s::integer, %s, %s, %s, %s, %s, %s)

-- name: drop
SELECT * FROM keepthread.drop(%s::integer, %s, %s, %s, %s, %s, %s, %s::integer)

-- name: made_of
SELECT * FROM keepthread.made_of(%s::integer, %s, %s::bigint[])

-- name: updates
SELECT * FROM keepthread.updates(%s::integer, %s, %s, %s)

-- name: owners
SELECT * FROM keepthread.owners(%s::integer)

-- name: blob_owners
SELECT * FROM keepthread.blob_owners(%s::integer)

-- name: feed_holder
SELECT * FROM keepthread.feed_holder()

-- name: changes
SELECT * FROM keepthread.changes(%s::integer, %s, %s::text, %s, %s)

-- name: unread
SELECT * FROM keepthread.unread(%s::integer, %s, %s, %s, %s)

-- name: index_words
SELECT keepthread.index_words(
    %s::integer, %s, %s, %s, %s, %s, %s::bigint[], %s::bigint[], %s::bigint[], %s::bytea[], %s::text[],
    %s::bigint[], %s::double precision[], %s::double precision[], %s::bigint[], %s::bigint[],
    %s::bigint[])

-- name: places
SELECT * FROM keepthread.places(%s::integer, %s, %s::text[], %s::bigint[], %s, %s, %s, %s, %s)

-- name: places_within
SELECT * FROM keepthread.places_within(
    %s::integer, %s, %s::text[], %s::bigint[], %s, %s, %s, %s, %s, %s, %s, %s::integer)

-- name: parts
SELECT * FROM keepthread.parts(%s::integer, %s, %s::bigint[], %s::bigint[])

-- name: fetch
SELECT * FROM keepthread.fetch(%s::integer, %s::bigint[], %s::bigint[], %s::bytea[], %s)

-- name: put_vectors
SELECT keepthread.put_vectors(
    %s::integer, %s, %s, %s, %s, %s, %s::bigint[], %s::bigint[], %s::bytea[], %s::bytea[])

-- name: vectors_at
SELECT * FROM keepthread.vectors_at(%s::integer, %s, %s::bigint[], %s::bigint[])

-- name: nearest
SELECT * FROM keepthread.nearest(%s::integer, %s, %s, %s, %s, %s, %s)

-- name: points_behind
SELECT * FROM keepthread.points_behind(%s::integer, %s, %s, %s, %s, %s, %s, %s, %s)

-- name: points_within
SELECT * FROM keepthread.points_within(%s::integer, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s::integer)

-- name: index_nearest
SELECT keepthread.index_nearest(%s::integer, %s, %s)

-- name: drop_view
SELECT keepthread.drop_view(%s::integer, %s, %s, %s)

-- The rest is for longer work, inside a transaction that has named its tenant.

-- name: name_tenant
SELECT set_config('keepthread.tenant', %s, true)

-- name: lock_session
SELECT * FROM keepthread.lock_session(%s::integer, %s)

-- name: head
SELECT * FROM keepthread.head(%s::integer, %s)

-- name: newest
SELECT seq, id, role, content, nullif(extra, ''), tokens, counter, turn, turns, total, created_at,
       digest, guard
FROM keepthread.messages
WHERE tenant = %s::integer AND sid = %s AND seq < %s AND seq > %s
ORDER BY seq DESC LIMIT %s

-- name: insert_messages
INSERT INTO keepthread.messages (
    tenant, sid, seq, id, role, content, extra, tokens, counter, turn, turns, total, created_at,
    digest, guard
)
SELECT %s::integer, %s, *
FROM unnest(
    %s::bigint[], %s::bytea[], %s::smallint[], %s::bytea[], %s::bytea[], %s::bigint[], %s::bytea[],
    %s::bigint[], %s::bigint[], %s::bigint[], %s::double precision[], %s::bytea[], %s::bytea[]
)

-- name: replace_messages
SELECT keepthread.replace_messages(
    %s::integer, %s, %s, %s, %s, %s::bytea[], %s, %s, %s, %s, %s, %s, %s, %s, %s)

-- name: counts
SELECT seq, tokens, counter, turn, turns, total, created_at, digest, guard
FROM keepthread.messages
WHERE tenant = %s::integer AND sid = %s AND seq > %s
ORDER BY seq LIMIT %s

-- name: recount_messages
SELECT keepthread.recount_messages(%s::integer, %s, %s, %s, %s, %s, %s)

-- name: drop_made_of
SELECT keepthread.drop_made_of(%s::integer, %s, %s::bigint[], %s::bigint[])

-- name: unindex
SELECT keepthread.unindex(%s::integer, %s, %s::bigint[])

-- name: next_epoch
UPDATE keepthread.sessions SET epoch = epoch + 1
WHERE tenant = %s::integer AND sid = %s
RETURNING epoch

-- name: note_change
SELECT keepthread.note_change_of_session(%s::integer, %s::integer, %s, %s::bytea[])

-- name: seal_session
SELECT keepthread.seal_session(%s::integer, %s)

-- name: one_moment
SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY

-- name: count_messages
SELECT count(*) FROM keepthread.messages WHERE tenant = %s::integer

-- name: messages_behind
SELECT sid, seq, id, role, content, nullif(extra, ''), tokens, counter, turn, turns, total, created_at,
       digest, guard
FROM keepthread.messages
WHERE tenant = %s::integer AND (sid, seq) > (%s, %s)
ORDER BY sid, seq LIMIT %s

-- name: records_behind
SELECT sid, whose, kind, key, owner, guard = keepthread.guard_of_record(
    tenant, sid, owner, kind, key, version, value, made_of, firsts, lasts)
FROM keepthread.records
WHERE tenant = %s::integer AND (sid, whose, kind, key) > (%s, %s, %s, %s)
ORDER BY sid, whose, kind, key LIMIT %s

-- The following are of a connection.

-- name: has_schema
SELECT CASE WHEN to_regclass('keepthread.migrations') IS NULL THEN 0 ELSE 1 END

-- name: format
SELECT coalesce(max(number), 0) FROM keepthread.migrations

-- name: lock_schema
SELECT pg_advisory_xact_lock(hashtextextended('keepthread.migrations', 0))

-- name: create_schema
CREATE SCHEMA IF NOT EXISTS keepthread

-- name: set_partitions
SELECT set_config('keepthread.partitions', %s, true)

-- name: created
INSERT INTO keepthread.migrations (number) VALUES (%s)

-- Plans are made once and kept, perhaps while a table is empty; every statement has its index, and
-- is to go along it, in its order, from the first row on: nothing is read whole and then sorted.

-- name: settle
SELECT set_config('plan_cache_mode', 'force_generic_plan', false),
       set_config('enable_seqscan', 'off', false),
       set_config('enable_bitmapscan', 'off', false),
       set_config('enable_sort', 'off', false),
       set_config('jit', 'off', false),
       set_config('statement_timeout', %s, false),
       set_config('idle_in_transaction_session_timeout', %s, false),
       (SELECT set_config('role', 'keepthread_app', false) FROM pg_roles
        WHERE rolname = 'keepthread_app' AND pg_has_role(session_user, oid, 'MEMBER'))

-- name: isolation
-- Whether the policies hold for the role now and for the login, and the process that answers: a
-- pooler in between reports another one than it announced.
SELECT row_security_active('keepthread.sessions'), NOT (rolsuper OR rolbypassrls), pg_backend_pid()
FROM pg_roles WHERE rolname = session_user

-- name: durability
SELECT current_setting('fsync'), current_setting('synchronous_commit'),
       current_setting('synchronous_standby_names')

-- name: list_tenants
SELECT name, listed FROM keepthread.list_tenants(%s, %s)

-- name: begin_drop
SELECT keepthread.begin_drop(%s)

-- name: drop_some
SELECT keepthread.drop_some(%s::integer, %s)

-- name: end_drop
SELECT keepthread.end_drop(%s)

-- name: touched_tables
-- The tables that hold something of these sessions or their owners: of a partitioned one those parts
-- that the hash leads to, unless it is the whole tenant. With each, the file that it is in, and whether
-- this role may rewrite it.
SELECT c.oid::regclass::text, pg_relation_filenode(c.oid), pg_has_role(c.relowner, 'USAGE')
FROM pg_class c
LEFT JOIN pg_inherits i ON i.inhrelid = c.oid
LEFT JOIN pg_partitioned_table p ON p.partrelid = i.inhparent AND p.partstrat = 'h'
LEFT JOIN pg_attribute a ON a.attrelid = p.partrelid AND a.attnum = p.partattrs[1]
LEFT JOIN LATERAL regexp_match(pg_get_expr(c.relpartbound, c.oid), 'modulus (\d+), remainder (\d+)') b
    ON true
WHERE c.relnamespace = 'keepthread'::regnamespace AND c.relkind = 'r'
  AND c.relname NOT IN (
      'migrations', 'tenants', 'changes', 'trimmed', 'api_keys', 'secrets', 'audit')  -- these hold no text
  AND (%s OR a.attname IS NULL OR EXISTS (
      SELECT FROM unnest(CASE a.attname
          WHEN 'sid' THEN %s::bigint[]
          WHEN 'whose' THEN (SELECT array_agg(keepthread.whose(o)) FROM unnest(%s::bytea[]) o)
      END) AS value
      WHERE satisfies_hash_partition(
          p.partrelid::oid, b[1]::integer, b[2]::integer, %s::integer, value)))
ORDER BY c.relname

-- name: transactions
-- The transactions in this database that are under way, but for this one.
SELECT l.virtualtransaction FROM pg_locks l JOIN pg_stat_activity a ON a.pid = l.pid
WHERE l.locktype = 'virtualxid' AND l.pid <> pg_backend_pid()
  AND (a.datname IS NULL OR a.datname = current_database())

-- The following are of a server, on connections of their own.

-- name: settle_server
SELECT set_config('plan_cache_mode', 'force_generic_plan', false),
       set_config('enable_seqscan', 'off', false),
       set_config('enable_bitmapscan', 'off', false),
       set_config('enable_sort', 'off', false),
       set_config('jit', 'off', false),
       set_config('statement_timeout', %s, false),
       set_config('idle_in_transaction_session_timeout', %s, false),
       (SELECT set_config('role', 'keepthread_server', false) FROM pg_roles
        WHERE rolname = 'keepthread_server' AND pg_has_role(session_user, oid, 'MEMBER'))

-- name: insert_key
INSERT INTO keepthread.api_keys (id, tenant, data) VALUES (%s, %s, %s) ON CONFLICT DO NOTHING RETURNING 1

-- name: key
SELECT data FROM keepthread.api_keys WHERE id = %s

-- name: keys
SELECT id, data FROM keepthread.api_keys WHERE id > %s ORDER BY id LIMIT %s

-- name: keys_of_tenant
SELECT id, data FROM keepthread.api_keys WHERE tenant = %s AND id > %s ORDER BY id LIMIT %s

-- name: replace_key
UPDATE keepthread.api_keys SET data = %s WHERE id = %s AND data IN (%s, %s) RETURNING 1

-- name: drop_keys
SELECT keepthread.drop_keys(%s)

-- name: secret
SELECT data FROM keepthread.secrets WHERE name = %s

-- name: insert_secret
INSERT INTO keepthread.secrets (name, data) VALUES (%s, %s) ON CONFLICT DO NOTHING

-- name: begin_request
SELECT digest, head, body FROM keepthread.begin_request(%s, %s, %s, %s, %s, %s, %s)

-- name: end_request
-- A body without a head says that its tenant forgot something since: then none is kept. An answer stays.
UPDATE keepthread.requests
SET head = coalesce(head, %s), body = CASE WHEN head IS NOT NULL THEN body WHEN body IS NULL THEN %s END
WHERE id = %s AND token = %s RETURNING 1

-- name: renew_request
UPDATE keepthread.requests SET begun_at = %s WHERE id = %s AND token = %s AND head IS NULL RETURNING 1

-- name: abandon_request
DELETE FROM keepthread.requests WHERE id = %s AND token = %s AND head IS NULL RETURNING 1

-- name: purge_requests
WITH gone AS (DELETE FROM keepthread.requests WHERE begun_at < %s RETURNING 1) SELECT count(*) FROM gone

-- name: drop_answers
SELECT keepthread.drop_answers(%s)

-- name: append_entry
SELECT keepthread.append_entry(%s, %s)

-- name: entries
SELECT number, data FROM keepthread.audit WHERE number > %s ORDER BY number LIMIT %s

-- name: entries_of_tenant
SELECT number, data FROM keepthread.audit WHERE tenant = %s AND number > %s ORDER BY number LIMIT %s

-- name: prune_entries
SELECT keepthread.prune_entries(%s)
