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
SELECT * FROM sessions WHERE tenant = ? AND owner = ? AND id = ?

-- name: session_by_sid
SELECT * FROM sessions WHERE sid = ? AND tenant = ?

-- name: latest_sessions
SELECT * FROM sessions
WHERE tenant = ? AND ready AND kind <> 2 AND (active_at, sid) < (?, ?)
ORDER BY active_at DESC, sid DESC LIMIT ?

-- name: latest_sessions_of_owner
SELECT * FROM sessions
WHERE tenant = ? AND owner = ? AND ready AND kind <> 2 AND (active_at, sid) < (?, ?)
ORDER BY active_at DESC, sid DESC LIMIT ?

-- name: earliest_sessions
SELECT * FROM sessions
WHERE tenant = ? AND ready AND kind <> 2 AND (active_at, sid) > (?, ?)
ORDER BY active_at, sid LIMIT ?

-- name: earliest_sessions_of_owner
SELECT * FROM sessions
WHERE tenant = ? AND owner = ? AND ready AND kind <> 2 AND (active_at, sid) > (?, ?)
ORDER BY active_at, sid LIMIT ?

-- name: unlisted_sessions
SELECT * FROM sessions
WHERE tenant = ? AND NOT (ready AND kind <> 2) AND (active_at, sid) > (?, ?)
ORDER BY active_at, sid LIMIT ?

-- name: session_copies
SELECT s.*
FROM messages f
CROSS JOIN messages m ON m.seq = 1 AND m.id = f.id AND m.created_at = f.created_at AND m.sid <> f.sid
CROSS JOIN sessions s ON s.sid = m.sid
WHERE f.sid = ? AND f.seq = 1 AND s.tenant = ? AND s.owner = ?

-- name: sessions_naming
SELECT s.* FROM naming n CROSS JOIN sessions s ON s.sid = n.sid
WHERE n.tenant = ? AND n.owner = ? AND n.id = ?
ORDER BY n.sid

-- name: insert_naming
INSERT OR IGNORE INTO naming (tenant, owner, id, sid)
SELECT tenant, owner, ?, sid FROM sessions WHERE sid = ?

-- name: delete_naming
DELETE FROM naming WHERE sid = ?

-- name: sessions_behind
SELECT * FROM sessions NOT INDEXED WHERE tenant = ? AND sid > ? ORDER BY sid LIMIT ?

-- name: sessions_of_owner_behind
SELECT * FROM sessions INDEXED BY sessions_of_owner WHERE tenant = ? AND owner = ? AND sid > ? ORDER BY sid LIMIT ?

-- name: session_exists
SELECT epoch FROM sessions WHERE sid = ? AND tenant = ?

-- name: delete_session
DELETE FROM sessions WHERE sid = ? AND tenant = ?

-- name: delete_messages
DELETE FROM messages WHERE sid = ?

-- name: delete_records_of_session
DELETE FROM records WHERE tenant = ? AND sid = ?

-- name: head
SELECT s.owner, s.id, CASE WHEN s.ready THEN NULL ELSE s.details END,
    m.seq, m.tokens, m.counter, m.turn, m.turns, m.total, m.created_at, m.digest, m.guard
FROM sessions s LEFT JOIN messages m ON m.sid = s.sid
WHERE s.sid = ? AND s.tenant = ?
ORDER BY m.seq DESC LIMIT 1

-- name: last
SELECT seq, tokens, counter, turn, turns, total, created_at, digest, guard
FROM messages WHERE sid = ? ORDER BY seq DESC LIMIT 1

-- name: newest_of
SELECT seq, id, role, content, extra, tokens, counter, turn, turns, total, created_at, digest, guard
FROM messages WHERE sid = ? AND seq < ? ORDER BY seq DESC

-- name: insert_message
INSERT INTO messages
    (sid, seq, id, role, content, extra, tokens, counter, turn, turns, total, created_at, digest, guard)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)

-- name: newest
SELECT m.seq, m.id, m.role, m.content, m.extra, m.tokens, m.counter, m.turn, m.turns, m.total,
       m.created_at, m.digest, m.guard
FROM sessions s CROSS JOIN messages m ON m.sid = s.sid
WHERE s.sid = ? AND s.tenant = ? AND m.seq < ? AND m.seq > ?
ORDER BY m.seq DESC

-- name: oldest
SELECT m.seq, m.id, m.role, m.content, m.extra, m.tokens, m.counter, m.turn, m.turns, m.total,
       m.created_at, m.digest, m.guard
FROM sessions s CROSS JOIN messages m ON m.sid = s.sid
WHERE s.sid = ? AND s.tenant = ? AND m.seq > ? AND m.seq <= ?
ORDER BY m.seq LIMIT ?

-- name: message_by_id
SELECT seq, id, role, content, extra, tokens, counter, turn, turns, total, created_at, digest, guard
FROM messages WHERE sid = ? AND id = ?

-- name: message_by_seq
SELECT seq, id, role, content, extra, tokens, counter, turn, turns, total, created_at, digest, guard
FROM messages WHERE sid = ? AND seq = ?

-- name: messages_at
SELECT m.sid, m.seq, m.id, m.role, m.content, m.extra, m.tokens, m.counter, m.turn, m.turns, m.total, m.created_at, m.digest, m.guard
FROM json_each(?) j CROSS JOIN messages m ON m.sid = j.value >> 22 AND m.seq = j.value & 4194303

-- name: messages_in_spans
SELECT m.seq, m.id, m.role, m.content, m.extra, m.tokens, m.counter, m.turn, m.turns, m.total, m.created_at, m.digest, m.guard
FROM json_each(?) j CROSS JOIN messages m
ON m.sid = ? AND m.seq BETWEEN json_extract(j.value, '$[0]') AND json_extract(j.value, '$[1]')

-- name: replace_message
UPDATE messages
SET id = ?, role = ?, content = ?, extra = ?, tokens = ?, counter = ?, turn = ?, turns = ?, total = ?,
    created_at = ?, digest = ?, guard = ?
WHERE sid = ? AND seq = ?

-- name: last_position
SELECT coalesce(max(seq), 0) FROM messages WHERE sid = ?

-- name: counts
SELECT seq, tokens, counter, turn, turns, total, created_at, digest, guard
FROM messages WHERE sid = ? AND seq > ? ORDER BY seq LIMIT ?

-- name: recount_message
UPDATE messages SET tokens = ?, counter = ?, total = ?, guard = ? WHERE sid = ? AND seq = ?

-- name: record
SELECT * FROM records WHERE tenant = ? AND sid = ? AND owner = ? AND kind = ? AND key = ?

-- name: records
SELECT * FROM records WHERE tenant = ? AND sid = ? AND owner = ? AND kind IS NOT ? ORDER BY kind, key

-- name: records_of_kind
SELECT * FROM records WHERE tenant = ? AND sid = ? AND owner = ? AND kind = ? ORDER BY key

-- name: last_records
SELECT * FROM records
WHERE tenant = ? AND sid = ? AND owner = ? AND kind = ? AND key > ? AND key < ?
ORDER BY key DESC LIMIT ?

-- name: records_at_nodes
SELECT r.*
FROM json_each(?) j
CROSS JOIN sources s ON s.sid = ? AND s.node = j.value
CROSS JOIN records r ON r.version = s.version
WHERE r.tenant = ?

-- name: records_from_session
SELECT r.* FROM sources s CROSS JOIN records r ON r.version = s.version
WHERE s.sid = ? AND r.tenant = ?

-- name: insert_source
INSERT OR IGNORE INTO sources (sid, node, version) VALUES (?, ?, ?)

-- name: newest_records
SELECT * FROM records INDEXED BY records_by_version
WHERE tenant = ? AND sid = ? AND owner = ? AND kind = ?
ORDER BY version DESC LIMIT ?

-- name: record_changes
SELECT tenant, owner, kind, recent, guard FROM record_changes WHERE tenant = ? AND owner = ? AND kind = ?

-- name: put_record_changes
INSERT OR REPLACE INTO record_changes (tenant, owner, kind, recent, guard) VALUES (?, ?, ?, ?, ?)

-- name: delete_record_changes
DELETE FROM record_changes WHERE tenant = ?

-- name: records_of_sessions
SELECT * FROM records
WHERE tenant = ? AND sid IN (SELECT value FROM json_each(?)) AND owner = '' AND kind = ?
ORDER BY sid, key

-- name: owners
SELECT DISTINCT owner FROM records WHERE tenant = ? AND sid = 0 AND owner <> '' ORDER BY owner

-- name: blob_owners
SELECT DISTINCT owner FROM records
WHERE tenant = ? AND sid = 0 AND kind IN ('blob_upload', 'blob_use') ORDER BY owner

-- name: delete_record
DELETE FROM records WHERE tenant = ? AND sid = ? AND owner = ? AND kind = ? AND key = ?

-- name: delete_version
DELETE FROM records WHERE version = ?

-- name: insert_record
INSERT INTO records (tenant, sid, owner, kind, key, value, made_of, guard) VALUES (?, ?, ?, ?, ?, ?, ?, 0)

-- name: guard_record
UPDATE records SET guard = ? WHERE version = ?

-- name: last_change
SELECT number, at FROM changes WHERE tenant = ? ORDER BY number DESC LIMIT 1

-- name: last_change_of_owner
SELECT number, at FROM changes WHERE tenant = ? AND owner = ? ORDER BY number DESC LIMIT 1

-- name: time_of_change
SELECT at FROM changes WHERE tenant = ? AND number = ?

-- name: insert_change
INSERT INTO changes (tenant, number, at, owner, sid, kind, session, ids) VALUES (?, ?, ?, ?, ?, ?, ?, ?)

-- name: changes
SELECT number, at, owner, sid, kind, session, ids FROM changes
WHERE tenant = ? AND number > ? ORDER BY number LIMIT ?

-- name: changes_of_owner
SELECT number, at, owner, sid, kind, session, ids FROM changes
WHERE tenant = ? AND owner = ? AND number > ? ORDER BY number LIMIT ?

-- name: earliest_recent_time
SELECT min(at) FROM (SELECT at FROM changes WHERE tenant = ? ORDER BY number DESC LIMIT ?)

-- name: oldest_times
SELECT number, at FROM changes WHERE tenant = ? AND at <= ? ORDER BY number LIMIT ?

-- name: old_changes
SELECT number, owner FROM changes WHERE tenant = ? AND number <= ? ORDER BY number LIMIT ?

-- name: delete_changes
DELETE FROM changes WHERE tenant = ? AND number <= ?

-- name: delete_changes_of_tenant
DELETE FROM changes
WHERE tenant = ? AND number IN (SELECT number FROM changes WHERE tenant = ? ORDER BY number LIMIT ?)

-- name: delete_trimmed
DELETE FROM trimmed WHERE tenant = ?

-- name: trimmed
SELECT coalesce(max(number), 0) FROM trimmed WHERE tenant = ? AND owner = ?

-- name: note_trimmed
INSERT OR REPLACE INTO trimmed (tenant, owner, number) VALUES (?, ?, ?)

-- name: owner_and_id
SELECT owner, id FROM sessions WHERE sid = ?

-- name: every_session
SELECT * FROM sessions NOT INDEXED

-- name: every_message
SELECT rowid, sid, seq, id, role, content, extra, tokens, counter, turn, turns, total, created_at, digest, guard
FROM messages NOT INDEXED

-- name: count_messages
SELECT count(*) FROM messages

-- name: positions
SELECT rowid, sid, seq FROM messages NOT INDEXED

-- name: every_record
SELECT * FROM records NOT INDEXED

-- name: never_read_of_tenant
SELECT s.sid, 0, s.epoch FROM sessions s
WHERE s.tenant = ? AND s.ready AND s.kind <> 2 AND EXISTS (SELECT 1 FROM messages WHERE sid = s.sid)
ORDER BY s.active_at DESC, s.sid DESC

-- name: never_read_of_owner
SELECT s.sid, 0, s.epoch FROM sessions s
WHERE s.tenant = ? AND s.owner = ? AND s.ready AND s.kind <> 2
    AND EXISTS (SELECT 1 FROM messages WHERE sid = s.sid)
ORDER BY s.active_at DESC, s.sid DESC

-- name: unread_of_tenant
SELECT s.sid, coalesce(k.upto, 0), s.epoch, s.active_at
FROM unread u
CROSS JOIN sessions s ON s.sid = u.sid AND s.tenant = u.tenant AND s.owner = u.owner
LEFT JOIN watermarks k ON k.sid = u.sid AND k.view = u.view
WHERE u.view = ? AND u.tenant = ? AND s.ready AND s.kind <> 2

-- name: unread_of_owner
SELECT s.sid, coalesce(k.upto, 0), s.epoch, s.active_at
FROM unread u
CROSS JOIN sessions s ON s.sid = u.sid AND s.tenant = u.tenant AND s.owner = u.owner
LEFT JOIN watermarks k ON k.sid = u.sid AND k.view = u.view
WHERE u.view = ? AND u.tenant = ? AND u.owner = ? AND s.ready AND s.kind <> 2

-- name: note_unread
INSERT OR IGNORE INTO unread (view, tenant, owner, sid)
SELECT v.number, s.tenant, s.owner, s.sid FROM sessions s CROSS JOIN views v ON v.number > 0
WHERE s.sid = ? AND s.ready AND s.kind <> 2 AND EXISTS (SELECT 1 FROM messages WHERE sid = s.sid)

-- name: every_session_is_unread
INSERT OR IGNORE INTO unread (view, tenant, owner, sid)
SELECT ?, s.tenant, s.owner, s.sid FROM sessions s
WHERE s.ready AND s.kind <> 2 AND EXISTS (SELECT 1 FROM messages WHERE sid = s.sid)

-- name: note_tenant_unread
INSERT OR IGNORE INTO unread (view, tenant, owner, sid)
SELECT ?, s.tenant, s.owner, s.sid FROM sessions s
WHERE s.tenant = ? AND s.ready AND s.kind <> 2 AND EXISTS (SELECT 1 FROM messages WHERE sid = s.sid)

-- name: note_read
DELETE FROM unread WHERE view = ? AND tenant = ? AND owner = ? AND sid = ?

-- name: delete_unread
DELETE FROM unread
WHERE (view, tenant, owner, sid) IN (
    SELECT v.number, s.tenant, s.owner, s.sid FROM sessions s CROSS JOIN views v ON v.number > 0 WHERE s.sid = ?)

-- name: drop_unread
DELETE FROM unread WHERE view = ?

-- name: unread_of_session
SELECT s.sid, coalesce(k.upto, 0), s.epoch
FROM sessions s LEFT JOIN watermarks k ON k.sid = s.sid AND k.view = ?
WHERE s.sid = ? AND s.tenant = ? AND s.owner = coalesce(?, s.owner) AND s.ready AND s.kind <> 2

-- name: session_to_read
SELECT owner, epoch, ready AND kind <> 2 FROM sessions WHERE sid = ? AND tenant = ?

-- name: view
SELECT number, of_words FROM views WHERE name = ?

-- name: every_view
SELECT number, name, of_words FROM views

-- name: insert_view
INSERT INTO views (name, of_words) VALUES (?, ?)

-- name: delete_view
DELETE FROM views WHERE number = ?

-- name: drop_unused_view
DELETE FROM views WHERE number = ? AND NOT EXISTS (SELECT 1 FROM watermarks WHERE view = ?)

-- name: watermark
SELECT upto FROM watermarks WHERE sid = ? AND view = ?

-- name: put_watermark
INSERT OR REPLACE INTO watermarks (sid, view, upto) VALUES (?, ?, ?)

-- name: has_watermarks
SELECT 1 FROM watermarks WHERE sid = ? LIMIT 1

-- name: delete_watermarks
DELETE FROM watermarks WHERE sid = ?

-- name: drop_watermarks_of_tenant
DELETE FROM watermarks WHERE view = ? AND sid IN (SELECT sid FROM sessions WHERE tenant = ?)

-- name: drop_watermarks
DELETE FROM watermarks WHERE view = ?

-- name: scope
SELECT number, changes, recent FROM scopes WHERE tenant = ? AND owner = ?

-- name: scopes
SELECT number FROM scopes WHERE tenant = ? AND owner <> '' LIMIT ?

-- name: insert_scope
INSERT INTO scopes (tenant, owner, changes, recent) VALUES (?, ?, 0, x'')

-- name: note_scope_changed
UPDATE scopes SET changes = ?, recent = ? WHERE number = ?

-- name: owner_of_session
SELECT tenant, owner FROM sessions WHERE sid = ?

-- name: drop_scopes
DELETE FROM scopes

-- name: delete_scope
DELETE FROM scopes
WHERE tenant = ? AND owner = ?
    AND NOT EXISTS (SELECT 1 FROM sessions WHERE tenant = ? AND owner = ? AND ready AND kind <> 2)

-- name: delete_scope_of_tenant
DELETE FROM scopes
WHERE tenant = ? AND owner = '' AND NOT EXISTS (SELECT 1 FROM scopes WHERE tenant = ? AND owner <> '')

-- name: delete_scopes_of_tenant
DELETE FROM scopes WHERE tenant = ?

-- name: next_tenant
SELECT min(tenant) FROM (
    SELECT * FROM (SELECT tenant FROM sessions WHERE tenant > ? ORDER BY tenant LIMIT 1)
    UNION ALL
    SELECT * FROM (SELECT tenant FROM records WHERE tenant > ? ORDER BY tenant LIMIT 1)
)

-- name: delete_records_of_tenant
DELETE FROM records WHERE version IN (SELECT version FROM records WHERE tenant = ? LIMIT ?)

-- name: insert_words
INSERT INTO words (rowid, text) VALUES (?, ?)

-- name: delete_words
INSERT INTO words (words, rowid, text) VALUES ('delete', ?, ?)

-- name: drop_words
INSERT INTO words (words) VALUES ('delete-all')

-- name: places
SELECT json_group_array(rowid)
FROM (SELECT rowid FROM words WHERE words MATCH ? AND rowid BETWEEN ? AND ? ORDER BY rowid DESC LIMIT ?)

-- name: places_within
SELECT json_group_array(rowid)
FROM (
    SELECT w.rowid
    FROM words w CROSS JOIN messages m ON m.sid = w.rowid >> 41 AND m.seq = w.rowid >> 19 & 4194303
    WHERE w.words MATCH ? AND w.rowid BETWEEN ? AND ?
        AND m.created_at >= ? AND m.created_at < ? AND 1 << m.role & ?
    ORDER BY w.rowid DESC LIMIT ?
)

-- name: insert_piece
INSERT INTO pieces (place, tokens, flags, speaker) VALUES (?, ?, ?, ?)

-- name: pieces_at
SELECT p.place, p.tokens, p.flags, p.speaker
FROM json_each(?) j
CROSS JOIN sessions s ON s.sid = j.value >> 41 AND s.tenant = ?
CROSS JOIN pieces p ON p.place BETWEEN (j.value | 255) - 255 AND j.value | 255

-- name: pieces_between
SELECT place, flags FROM pieces WHERE place BETWEEN ? AND ? ORDER BY place

-- name: count_pieces
SELECT count(*) FROM pieces

-- name: delete_piece
DELETE FROM pieces WHERE place = ?

-- name: drop_pieces
DELETE FROM pieces

-- name: segments
SELECT CAST(sid AS TEXT), first, started_at, ended_at, parts, length, answers FROM segments
WHERE sid = ? ORDER BY first

-- name: segments_of_owner
SELECT CAST(g.sid AS TEXT), g.first, g.started_at, g.ended_at, g.parts, g.length, g.answers
FROM sessions s CROSS JOIN segments g ON g.sid = s.sid
WHERE s.tenant = ? AND s.owner = ? AND s.ready AND s.kind <> 2

-- name: segments_of_tenant
SELECT CAST(g.sid AS TEXT), g.first, g.started_at, g.ended_at, g.parts, g.length, g.answers
FROM sessions s CROSS JOIN segments g ON g.sid = s.sid
WHERE s.tenant = ? AND s.ready AND s.kind <> 2

-- name: last_segment
SELECT CAST(sid AS TEXT), first, started_at, ended_at, parts, length, answers FROM segments
WHERE sid = ? AND first <= ? ORDER BY first DESC LIMIT 1

-- name: put_segment
INSERT OR REPLACE INTO segments (sid, first, started_at, ended_at, parts, length, answers) VALUES (?, ?, ?, ?, ?, ?, ?)

-- name: delete_segment
DELETE FROM segments WHERE sid = ? AND first = ?

-- name: delete_segments
DELETE FROM segments WHERE sid = ?

-- name: drop_segments
DELETE FROM segments

-- name: insert_vector
INSERT INTO vectors (place, view, dimensions, tokens, data) VALUES (?, ?, ?, ?, ?)

-- name: vectors_at
SELECT j.value, v.dimensions, v.tokens, v.data
FROM json_each(?) j
CROSS JOIN sessions s ON s.sid = j.value >> 41 AND s.tenant = ?
CROSS JOIN vectors v ON v.place BETWEEN (j.value | 255) - 255 AND j.value | 255 AND v.view = ?

-- name: single_vectors_of_tenant
SELECT v.place, v.data
FROM sessions s CROSS JOIN vectors v ON v.place BETWEEN s.sid << 41 AND (s.sid + 1 << 41) - 1
WHERE s.tenant = ? AND s.ready AND s.kind <> 2 AND v.view = ? AND v.dimensions = ? AND v.tokens = x''
    AND (? OR EXISTS (
        SELECT 1 FROM messages m
        WHERE m.sid = v.place >> 41 AND m.seq = v.place >> 19 & 4194303
            AND m.created_at >= ? AND m.created_at < ? AND 1 << m.role & ?))

-- name: single_vectors_of_owner
SELECT v.place, v.data
FROM sessions s CROSS JOIN vectors v ON v.place BETWEEN s.sid << 41 AND (s.sid + 1 << 41) - 1
WHERE s.tenant = ? AND s.owner = ? AND s.ready AND s.kind <> 2 AND v.view = ? AND v.dimensions = ? AND v.tokens = x''
    AND (? OR EXISTS (
        SELECT 1 FROM messages m
        WHERE m.sid = v.place >> 41 AND m.seq = v.place >> 19 & 4194303
            AND m.created_at >= ? AND m.created_at < ? AND 1 << m.role & ?))

-- name: single_vectors_of_session
SELECT v.place, v.data
FROM sessions s CROSS JOIN vectors v ON v.place BETWEEN s.sid << 41 AND (s.sid + 1 << 41) - 1
WHERE s.sid = ? AND s.tenant = ? AND s.owner = coalesce(?, s.owner)
    AND v.view = ? AND v.dimensions = ? AND v.tokens = x''
    AND (? OR EXISTS (
        SELECT 1 FROM messages m
        WHERE m.sid = v.place >> 41 AND m.seq = v.place >> 19 & 4194303
            AND m.created_at >= ? AND m.created_at < ? AND 1 << m.role & ?))

-- name: delete_vectors
DELETE FROM vectors WHERE place BETWEEN ? AND ?

-- name: drop_vectors
DELETE FROM vectors WHERE view = ? AND place >> 41 IN (SELECT sid FROM sessions WHERE tenant = ?)

-- name: vocabulary
CREATE VIRTUAL TABLE temp.vocabulary USING fts5vocab(main, words, row)

-- name: count_words
SELECT sum(doc) FROM temp.vocabulary

-- name: insert_key
INSERT INTO api_keys (id, tenant, data) VALUES (?, ?, ?) ON CONFLICT DO NOTHING

-- name: key
SELECT data FROM api_keys WHERE id = ?

-- name: keys
SELECT id, data FROM api_keys WHERE id > ? ORDER BY id LIMIT ?

-- name: keys_of_tenant
SELECT id, data FROM api_keys WHERE tenant = ? AND id > ? ORDER BY id LIMIT ?

-- name: replace_key
UPDATE api_keys SET data = ? WHERE id = ? AND data = ?

-- name: delete_keys_of_tenant
DELETE FROM api_keys WHERE tenant = ?

-- name: insert_secret
INSERT INTO secrets (name, data) VALUES (?, ?) ON CONFLICT DO NOTHING

-- name: secret
SELECT data FROM secrets WHERE name = ?

-- name: begin_request
INSERT INTO requests (id, tenant, digest, token, begun_at) VALUES (?, ?, ?, ?, ?)
ON CONFLICT (id) DO UPDATE
SET digest = excluded.digest, token = excluded.token, begun_at = excluded.begun_at, head = NULL, body = NULL
WHERE begun_at <= ? OR (head IS NULL AND digest = excluded.digest AND begun_at <= ?)

-- name: request
SELECT digest, head, body FROM requests WHERE id = ?

-- name: end_request
UPDATE requests
SET head = coalesce(head, ?), body = CASE WHEN head IS NOT NULL THEN body WHEN body IS NULL THEN ? END
WHERE id = ? AND token = ?

-- name: renew_request
UPDATE requests SET begun_at = ? WHERE id = ? AND token = ? AND head IS NULL

-- name: abandon_request
DELETE FROM requests WHERE id = ? AND token = ? AND head IS NULL

-- name: purge_requests
DELETE FROM requests WHERE begun_at < ?

-- name: has_answers
SELECT 1 FROM requests WHERE tenant = ? AND (body IS NOT NULL OR head IS NULL) LIMIT 1

-- name: delete_answers
UPDATE requests SET body = CASE WHEN head IS NULL THEN x'' END
WHERE tenant = ? AND (body IS NOT NULL OR head IS NULL)

-- name: delete_requests_of_tenant
DELETE FROM requests WHERE tenant = ?

-- name: insert_entry
INSERT INTO audit (tenant, data) VALUES (?, ?)

-- name: entries
SELECT number, data FROM audit WHERE number > ? ORDER BY number LIMIT ?

-- name: entries_of_tenant
SELECT number, data FROM audit WHERE tenant = ? AND number > ? ORDER BY number LIMIT ?

-- name: prune_entries
DELETE FROM audit WHERE number <= ?

-- name: every_key
SELECT id, tenant, data FROM api_keys

-- name: every_entry
SELECT number, tenant, data FROM audit NOT INDEXED
