-- Changing rows in place: for erasing, and for recounting. Each row is looked up by its position; the
-- whole log is never compared with a list.

CREATE FUNCTION keepthread.replace_messages(
    _tenant integer, _sid bigint, _seqs bigint[], _ids bytea[], _roles bigint[], _contents bytea[],
    _extras bytea[], _tokens bigint[], _counters bytea[], _turns bigint[], _runs bigint[],
    _totals bigint[], _times double precision[], _digests bytea[], _guards bytea[]
) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    n record;
BEGIN
    FOR n IN
        SELECT * FROM unnest(
            _seqs, _ids, _roles, _contents, _extras, _tokens, _counters, _turns, _runs, _totals,
            _times, _digests, _guards
        ) AS o (seq, id, role, content, extra, tokens, counter, turn, turns, total, created_at,
                digest, guard)
    LOOP
        UPDATE keepthread.messages m
        SET id = n.id, role = n.role, content = n.content, extra = n.extra, tokens = n.tokens,
            counter = n.counter, turn = n.turn, turns = n.turns, total = n.total,
            created_at = n.created_at, digest = n.digest, guard = n.guard
        WHERE m.tenant = _tenant AND m.sid = _sid AND m.seq = n.seq;
    END LOOP;
END
$$;

CREATE FUNCTION keepthread.recount_messages(
    _tenant integer, _sid bigint, _seqs bigint[], _tokens bigint[], _counters bytea[], _totals bigint[],
    _guards bytea[]
) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    n record;
BEGIN
    FOR n IN
        SELECT * FROM unnest(_seqs, _tokens, _counters, _totals, _guards)
            AS o (seq, tokens, counter, total, guard)
    LOOP
        UPDATE keepthread.messages m
        SET tokens = n.tokens, counter = n.counter, total = n.total, guard = n.guard
        WHERE m.tenant = _tenant AND m.sid = _sid AND m.seq = n.seq;
    END LOOP;
END
$$;
