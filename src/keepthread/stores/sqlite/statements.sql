-- Every statement of the SQLite store, by name. `-- name:` starts one.

-- name: insert_session
INSERT INTO sessions (tenant, id, owner, kind, ready, epoch, created_at, details, guard, active_at, active_guard)
VALUES (?, ?, ?, ?, ?, 0, ?, ?, 0, 0, 0)

-- name: update_session
UPDATE sessions SET ready = ?, details = ? WHERE sid = ?

-- name: next_epoch
UPDATE sessions SET epoch = epoch + 1 WHERE sid = ?

-- name: session_to_guard
SELECT sid, tenant, id, owner, kind, ready, epoch, created_at, details FROM sessions WHERE sid = ?

-- name: guard_session
UPDATE sessions SET guard = ? WHERE sid = ?

-- name: touch_session
UPDATE sessions SET active_at = ?, active_guard = ? WHERE sid = ? AND active_at < ?

-- name: session_by_id
SELECT * FROM sessions WHERE tenant = ? AND id = ?

-- name: session_by_sid
SELECT * FROM sessions WHERE sid = ? AND tenant = ?

-- name: sessions_by_activity
SELECT * FROM sessions
WHERE tenant = ? AND ready AND kind <> 2
ORDER BY active_at DESC, sid DESC LIMIT ?

-- name: sessions_by_owner
SELECT * FROM sessions
WHERE tenant = ? AND owner = ? AND ready AND kind <> 2
ORDER BY active_at DESC, sid DESC LIMIT ?

-- name: sessions_behind
SELECT * FROM sessions NOT INDEXED WHERE tenant = ? AND sid > ? ORDER BY sid LIMIT ?

-- name: session_exists
SELECT epoch FROM sessions WHERE sid = ? AND tenant = ?

-- name: delete_session
DELETE FROM sessions WHERE sid = ? AND tenant = ?

-- name: delete_messages
DELETE FROM messages WHERE sid = ?

-- name: delete_shelf
DELETE FROM shelf WHERE tenant = ? AND sid = ?

-- name: head
SELECT m.seq, m.tokens, m.counter, m.exchange, m.exchanges, m.total, m.created_at, m.digest, m.guard
FROM sessions s LEFT JOIN messages m ON m.sid = s.sid
WHERE s.sid = ? AND s.tenant = ?
ORDER BY m.seq DESC LIMIT 1

-- name: last
SELECT seq, tokens, counter, exchange, exchanges, total, created_at, digest, guard
FROM messages WHERE sid = ? ORDER BY seq DESC LIMIT 1

-- name: newest_of
SELECT seq, id, role, content, extra, tokens, counter, exchange, exchanges, total, created_at, digest, guard
FROM messages WHERE sid = ? AND seq < ? ORDER BY seq DESC

-- name: insert_message
INSERT INTO messages
    (sid, seq, id, role, content, extra, tokens, counter, exchange, exchanges, total, created_at, digest, guard)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)

-- name: newest
SELECT m.seq, m.id, m.role, m.content, m.extra, m.tokens, m.counter, m.exchange, m.exchanges, m.total,
       m.created_at, m.digest, m.guard
FROM sessions s CROSS JOIN messages m ON m.sid = s.sid
WHERE s.sid = ? AND s.tenant = ? AND m.seq < ? AND m.seq > ?
ORDER BY m.seq DESC

-- name: oldest
SELECT m.seq, m.id, m.role, m.content, m.extra, m.tokens, m.counter, m.exchange, m.exchanges, m.total,
       m.created_at, m.digest, m.guard
FROM sessions s CROSS JOIN messages m ON m.sid = s.sid
WHERE s.sid = ? AND s.tenant = ? AND m.seq > ? AND m.seq <= ?
ORDER BY m.seq LIMIT ?

-- name: message_by_id
SELECT seq, id, role, content, extra, tokens, counter, exchange, exchanges, total, created_at, digest, guard
FROM messages WHERE sid = ? AND id = ?

-- name: message_by_seq
SELECT seq, id, role, content, extra, tokens, counter, exchange, exchanges, total, created_at, digest, guard
FROM messages WHERE sid = ? AND seq = ?

-- name: messages_between
SELECT seq, id, role, content, extra, tokens, counter, exchange, exchanges, total, created_at, digest, guard
FROM messages WHERE sid = ? AND seq BETWEEN ? AND ?

-- name: replace_message
UPDATE messages
SET id = ?, role = ?, content = ?, extra = ?, tokens = ?, counter = ?, exchange = ?, exchanges = ?, total = ?,
    created_at = ?, digest = ?, guard = ?
WHERE sid = ? AND seq = ?

-- name: last_position
SELECT coalesce(max(seq), 0) FROM messages WHERE sid = ?

-- name: counts
SELECT seq, tokens, counter, exchange, exchanges, total, created_at, digest, guard
FROM messages WHERE sid = ? AND seq > ? ORDER BY seq LIMIT ?

-- name: recount_message
UPDATE messages SET tokens = ?, counter = ?, total = ?, guard = ? WHERE sid = ? AND seq = ?

-- name: record
SELECT * FROM shelf WHERE tenant = ? AND sid = ? AND owner = ? AND kind = ? AND key = ?

-- name: records
SELECT * FROM shelf WHERE tenant = ? AND sid = ? AND owner = ? ORDER BY kind, key

-- name: records_of_kind
SELECT * FROM shelf WHERE tenant = ? AND sid = ? AND owner = ? AND kind = ? ORDER BY key

-- name: last_records
SELECT * FROM shelf
WHERE tenant = ? AND sid = ? AND owner = ? AND kind = ? AND key > ? AND key < ?
ORDER BY key DESC LIMIT ?

-- name: records_made_of
SELECT * FROM shelf WHERE tenant = ? AND sid = ? AND made_of IS NOT NULL

-- name: records_of_four_kinds
SELECT * FROM shelf WHERE tenant = ? AND sid = ? AND owner = ? AND kind IN (?, ?, ?, ?) ORDER BY kind, key

-- name: owners
SELECT DISTINCT owner FROM shelf WHERE tenant = ? AND sid = 0 AND owner <> '' ORDER BY owner

-- name: delete_record
DELETE FROM shelf WHERE tenant = ? AND sid = ? AND owner = ? AND kind = ? AND key = ?

-- name: delete_version
DELETE FROM shelf WHERE version = ?

-- name: insert_record
INSERT INTO shelf (tenant, sid, owner, kind, key, value, made_of, guard) VALUES (?, ?, ?, ?, ?, ?, ?, 0)

-- name: guard_record
UPDATE shelf SET guard = ? WHERE version = ?

-- name: every_session
SELECT * FROM sessions NOT INDEXED

-- name: every_message
SELECT rowid, sid, seq, id, role, content, extra, tokens, counter, exchange, exchanges, total, created_at, digest, guard
FROM messages NOT INDEXED

-- name: count_messages
SELECT count(*) FROM messages

-- name: positions
SELECT rowid, sid, seq FROM messages NOT INDEXED

-- name: every_record
SELECT * FROM shelf NOT INDEXED
