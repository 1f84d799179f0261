-- The schema of pgelect, version {version}. Safe to run again, and while locks are led. One statement: all of it or nothing,
-- however it is run. A later version only adds to an earlier one, so that processes of both work side by side.
-- Lock sessions need USAGE on the schema, SELECT, INSERT, UPDATE on token and on closed, USAGE on token_seq; and
-- EXECUTE on announce, report_lost and asked_to_step_down, without which they lead all the same.
-- Writers of fenced transactions need USAGE on the schema and EXECUTE on check_token, nothing else.
-- Onlookers need USAGE on the schema and SELECT on leaders and history.
-- It runs under anybody's search_path: whatever could be found elsewhere is qualified, operators and types as well.

DO $schema$
DECLARE
    stranger pg_catalog.text;
    intruder pg_catalog.text;
    newer pg_catalog.int4;
BEGIN

-- IF NOT EXISTS would ask for the right to create even where the schema exists.
IF NOT EXISTS (SELECT 1 FROM pg_catalog.pg_namespace AS n WHERE n.nspname OPERATOR(pg_catalog.=) 'pgelect') THEN
    CREATE SCHEMA pgelect;
END IF;

-- Whoever owns a table can have code of theirs run with the rights of everybody who writes to it, and now these are ours.
stranger := {stranger};
IF stranger IS NOT NULL THEN
    RAISE EXCEPTION 'the schema pgelect, or a part of it, belongs to the role %, which is neither this role nor has the '
        'rights of the owner of this database', pg_catalog.quote_ident(stranger)
        USING ERRCODE = 'PGE03', HINT = 'Look at what is in it before anything uses it.';
END IF;
intruder := {intruder};
IF intruder IS NOT NULL THEN
    RAISE EXCEPTION 'something that does not belong there acts on what is written to the tables of pgelect'
        USING ERRCODE = 'PGE03', HINT = pg_catalog.format('Find out who made it, then: %s;', intruder);
END IF;

-- Version 1: tokens and the fence.

CREATE TABLE IF NOT EXISTS pgelect.schema_version (
    version integer PRIMARY KEY,
    installed_at timestamp with time zone NOT NULL DEFAULT pg_catalog.clock_timestamp()
);

-- Its functions may have been changed since, and must not be set back.
newer := (SELECT pg_catalog.max(v.version) FROM pgelect.schema_version AS v);
IF newer OPERATOR(pg_catalog.>) {version} THEN
    RAISE EXCEPTION 'the schema pgelect in this database is of version %, and this is version {version}', newer
        USING ERRCODE = 'PGE04', HINT = 'Nothing was changed. Upgrade pgelect, or leave the schema as it is.';
END IF;

-- A cache would hand sessions ranges of numbers, and tokens would not grow from term to term.
CREATE SEQUENCE IF NOT EXISTS pgelect.token_seq AS bigint CACHE 1 NO CYCLE;

-- One row a lock, never deleted: a token is never given out twice. Half of each page stays free so that updates are HOT.
CREATE TABLE IF NOT EXISTS pgelect.token (
    key1 integer NOT NULL,
    key2 integer NOT NULL,
    name pg_catalog.text,
    token bigint NOT NULL,
    timeline bigint NOT NULL,
    holder pg_catalog.text NOT NULL,
    metadata pg_catalog.jsonb NOT NULL,
    acquired_at timestamp with time zone NOT NULL,
    released_at timestamp with time zone,
    terms bigint NOT NULL,
    lease_s double precision NOT NULL,
    backend_pid integer NOT NULL,
    backend_start timestamp with time zone NOT NULL,
    PRIMARY KEY (key1, key2)
) WITH (fillfactor = 50);

-- A token that lets no more transactions in, while the next one waits for those that are in. FOR SHARE does not queue
-- behind whoever waits for the row, so without this, transactions that overlap would keep the next token away for ever.
-- Nobody who is fenced ever locks a row of this table: it can be written while they go on.
CREATE TABLE IF NOT EXISTS pgelect.closed (
    key1 integer NOT NULL,
    key2 integer NOT NULL,
    token bigint NOT NULL,
    PRIMARY KEY (key1, key2)
);

-- Locks the row FOR SHARE until the caller's transaction ends: the next token cannot be minted before. A plain read
-- would let a stale write commit, and FOR KEY SHARE does not hold off the mint.
-- So to read `closed` alone would not do: who has read it may commit long after it was written, an older snapshot does
-- not see it at all, and a crash may undo it. It only keeps newcomers out; the row is what decides.
-- All of them share one row. Tried: many rows, of which each session shares one. With 16 writers on two cores that
-- saves 4 of 100, and it does not hold off the mint of an earlier version of the library, which knows one row.
-- A token counts on the timeline of its minting only: after a promotion, the row of a later term may have been lost.
-- Every fenced transaction runs it, so what needs no table is an expression, for which no executor is started.
CREATE OR REPLACE FUNCTION pgelect.check_token(key1 integer, key2 integer, token bigint) RETURNS pg_catalog.void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $pgelect$
DECLARE
    -- On a standby, which has none to tell, the lock below is what is refused.
    here CONSTANT bigint := CASE WHEN NOT pg_catalog.pg_is_in_recovery() THEN ('x' || pg_catalog.substr(
        pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_lsn()), 1, 8))::bit(32)::bigint END;
    bound text;
BEGIN
    PERFORM FROM pgelect.token AS t
    WHERE t.key1 = $1 AND t.key2 = $2 AND t.token = $3 AND t.released_at IS NULL AND t.timeline = here
    AND t.token IS DISTINCT FROM (SELECT c.token FROM pgelect.closed AS c WHERE c.key1 = $1 AND c.key2 = $2)
    FOR SHARE OF t;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'token % of lock (%, %) is stale: that term is over', $3, $1, $2
            USING ERRCODE = 'PGE01', HINT = 'Roll back and stop the work of this term; do not try it again.';
    END IF;
    bound := pg_catalog.set_config(
        'pgelect.fence_' || ($1::bigint & 4294967295) || '_' || ($2::bigint & 4294967295), $3::text, true);
END
$pgelect$;

-- Statement trigger of guarded tables; arguments: key1, key2, and the lock's name where it has one.
CREATE OR REPLACE FUNCTION pgelect.guard() RETURNS pg_catalog.trigger
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $pgelect$
DECLARE
    k1 CONSTANT integer := TG_ARGV[0];
    k2 CONSTANT integer := TG_ARGV[1];
    here CONSTANT bigint := ('x' || pg_catalog.substr(
        pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_lsn()), 1, 8))::bit(32)::bigint;
    bound CONSTANT text := pg_catalog.current_setting(
        'pgelect.fence_' || (k1::bigint & 4294967295) || '_' || (k2::bigint & 4294967295), true);
    lock_label text;
    too_late boolean := false;
BEGIN
    -- The setting says which token was checked; only the row says that it is still that of the current term.
    IF bound ~ '^[0-9]{1,18}$' THEN
        PERFORM FROM pgelect.token AS t
        WHERE t.key1 = k1 AND t.key2 = k2 AND t.token = bound::bigint AND t.released_at IS NULL AND t.timeline = here
        AND t.token IS DISTINCT FROM (SELECT c.token FROM pgelect.closed AS c WHERE c.key1 = k1 AND c.key2 = k2)
        FOR SHARE OF t;
        IF FOUND THEN
            RETURN NULL;
        END IF;
        -- It may well be fenced, and have come to its next write too late: "not fenced" would lead astray.
        too_late := EXISTS (
            SELECT 1 FROM pgelect.closed AS c WHERE c.key1 = k1 AND c.key2 = k2 AND c.token = bound::bigint);
    END IF;
    lock_label := pg_catalog.concat_ws(
        ' ', pg_catalog.quote_literal(TG_ARGV[2]), pg_catalog.format('(%s, %s)', k1, k2));
    IF too_late THEN
        RAISE EXCEPTION '% on %.% refused: token % of lock % is stale: that term is over',
            TG_OP, pg_catalog.quote_ident(TG_TABLE_SCHEMA), pg_catalog.quote_ident(TG_TABLE_NAME), bound, lock_label
            USING ERRCODE = 'PGE01', HINT = 'Roll back and stop the work of this term; do not try it again.';
    END IF;
    RAISE EXCEPTION '% on %.% refused: this transaction is not fenced by the current term of lock %',
        TG_OP, pg_catalog.quote_ident(TG_TABLE_SCHEMA), pg_catalog.quote_ident(TG_TABLE_NAME), lock_label
        USING ERRCODE = 'PGE02',
            HINT = pg_catalog.format('Write inside "async with lock.fence(conn)", or call '
                'pgelect.check_token(%s, %s, token) first in the same transaction.', k1, k2);
END
$pgelect$;

-- Version 2: who led, and requests to step down. Nothing that an election depends on.

-- The last thousand terms of each lock. `ending` is NULL while a term lasts, and when nobody has told how it ended.
CREATE TABLE IF NOT EXISTS pgelect.history (
    key1 integer NOT NULL,
    key2 integer NOT NULL,
    token bigint NOT NULL,
    name pg_catalog.text,
    holder pg_catalog.text NOT NULL,
    metadata pg_catalog.jsonb NOT NULL,
    term bigint NOT NULL,
    began_at timestamp with time zone NOT NULL,
    ended_at timestamp with time zone,
    ending pg_catalog.text CONSTRAINT history_ending CHECK (ending IN ('released', 'lost', 'superseded')),
    reason pg_catalog.text,
    PRIMARY KEY (key1, key2, token)
);

-- The last request of each lock. It is for one token, and means nothing once that term is over.
CREATE TABLE IF NOT EXISTS pgelect.step_down (
    key1 integer NOT NULL,
    key2 integer NOT NULL,
    token bigint NOT NULL,
    requested_by pg_catalog.text NOT NULL,
    requested_at timestamp with time zone NOT NULL,
    PRIMARY KEY (key1, key2)
);

-- Writes down that the term of a token has begun, and how the one before it ended, of which the caller knows the row.
-- Safe to run again.
CREATE OR REPLACE FUNCTION pgelect.announce(
    key1 integer, key2 integer, token bigint, prior_token bigint, prior_name pg_catalog.text,
    prior_holder pg_catalog.text, prior_metadata pg_catalog.jsonb, prior_term bigint,
    prior_began_at timestamp with time zone, prior_released_at timestamp with time zone
) RETURNS pg_catalog.void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $pgelect$
#variable_conflict use_column
DECLARE
    ours pgelect.token;
BEGIN
    SELECT t.* INTO ours FROM pgelect.token AS t WHERE t.key1 = $1 AND t.key2 = $2 AND t.token = $3;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    IF $4 < $3 THEN
        INSERT INTO pgelect.history AS h
            (key1, key2, token, name, holder, metadata, term, began_at, ended_at, ending)
        VALUES ($1, $2, $4, $5, $6, $7, $8, $9, coalesce($10, ours.acquired_at),
            CASE WHEN $10 IS NULL THEN 'superseded' ELSE 'released' END)
        ON CONFLICT (key1, key2, token) DO UPDATE SET ended_at = excluded.ended_at, ending = excluded.ending
        WHERE h.ending IS NULL;
    END IF;
    INSERT INTO pgelect.history (key1, key2, token, name, holder, metadata, term, began_at)
    VALUES ($1, $2, $3, ours.name, ours.holder, ours.metadata, ours.terms, ours.acquired_at)
    ON CONFLICT (key1, key2, token) DO NOTHING;
    IF ours.terms % 16 = 0 THEN
        DELETE FROM pgelect.history AS h WHERE h.key1 = $1 AND h.key2 = $2 AND h.token <= (
            SELECT o.token FROM pgelect.history AS o WHERE o.key1 = $1 AND o.key2 = $2
            ORDER BY o.token DESC OFFSET 1000 LIMIT 1);
    END IF;
END
$pgelect$;

-- Writes down that a term was lost, and why, as the process that led says when it is connected again.
CREATE OR REPLACE FUNCTION pgelect.report_lost(
    key1 integer, key2 integer, token bigint, reason pg_catalog.text, seconds_ago double precision
) RETURNS pg_catalog.void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $pgelect$
#variable_conflict use_column
BEGIN
    -- A term is over at the latest when the next one begins, whatever its holder believed.
    UPDATE pgelect.history AS h SET ending = 'lost', reason = $4, ended_at = greatest(h.began_at, least(
        h.ended_at, pg_catalog.clock_timestamp() - pg_catalog.make_interval(secs => $5)))
    WHERE h.key1 = $1 AND h.key2 = $2 AND h.token = $3 AND h.ending IS DISTINCT FROM 'released';
END
$pgelect$;

-- Asks the leader to step down: that of a token, or whoever leads now. Gives the token that was asked; NULL: that term
-- is over, or nobody leads. Who may ask is who may execute this: the row is what counts. Anybody can notify.
CREATE OR REPLACE FUNCTION pgelect.request_step_down(key1 integer, key2 integer, token bigint DEFAULT NULL)
RETURNS bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $pgelect$
#variable_conflict use_column
DECLARE
    asked bigint;
BEGIN
    SELECT t.token INTO asked FROM pgelect.token AS t
    WHERE t.key1 = $1 AND t.key2 = $2 AND t.released_at IS NULL AND ($3 IS NULL OR t.token = $3);
    IF asked IS NULL THEN
        RETURN NULL;
    END IF;
    INSERT INTO pgelect.step_down (key1, key2, token, requested_by, requested_at)
    VALUES ($1, $2, asked, session_user, pg_catalog.clock_timestamp())
    ON CONFLICT (key1, key2) DO UPDATE SET token = excluded.token, requested_by = excluded.requested_by,
        requested_at = excluded.requested_at;
    PERFORM pg_catalog.pg_notify(pg_catalog.format(
        'pgelect_step_down_%s_%s', $1::bigint & 4294967295, $2::bigint & 4294967295), asked::text);
    RETURN asked;
END
$pgelect$;

-- Who asked the leader of this token to step down; NULL: nobody.
CREATE OR REPLACE FUNCTION pgelect.asked_to_step_down(key1 integer, key2 integer, token bigint)
RETURNS pg_catalog.text
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $pgelect$
    SELECT s.requested_by FROM pgelect.step_down AS s WHERE s.key1 = $1 AND s.key2 = $2 AND s.token = $3
$pgelect$;

-- Who leads, or led last, and what the server knows of it now. A lock is held by the session that the row names, or by
-- nobody who counts. The start of a session is hidden from most roles; then its pid must do. A standby does not know
-- who holds a lock on the primary: there `alive` and `followers` are NULL.
CREATE OR REPLACE VIEW pgelect.leaders AS
WITH here AS MATERIALIZED (
    SELECT d.oid, d.datname, pg_catalog.pg_is_in_recovery() AS standby FROM pg_catalog.pg_database AS d
    WHERE d.datname OPERATOR(pg_catalog.=) pg_catalog.current_database()
), locks AS MATERIALIZED (
    SELECT l.classid::pg_catalog.int8 AS classid, l.objid::pg_catalog.int8 AS objid, l.pid, l.granted, l.objsubid
    FROM pg_catalog.pg_locks AS l JOIN here ON l.database OPERATOR(pg_catalog.=) here.oid
    WHERE l.locktype OPERATOR(pg_catalog.=) 'advisory' AND (
        l.objsubid OPERATOR(pg_catalog.=) 2 AND l.mode OPERATOR(pg_catalog.=) 'ExclusiveLock'
        OR l.objsubid OPERATOR(pg_catalog.=) 1 AND l.mode OPERATOR(pg_catalog.=) 'ShareLock')
), holders AS MATERIALIZED (
    SELECT l.classid, l.objid, l.pid, a.backend_start, a.client_addr, a.application_name, a.state_change
    FROM locks AS l LEFT JOIN pg_catalog.pg_stat_activity AS a ON a.pid OPERATOR(pg_catalog.=) l.pid
    WHERE l.granted AND l.objsubid OPERATOR(pg_catalog.=) 2
), waiting AS MATERIALIZED (
    SELECT w.classid, w.objid, pg_catalog.count(*) AS followers FROM (
        SELECT l.classid, l.objid FROM locks AS l WHERE NOT l.granted
        UNION ALL
        -- Who stands aside holds a lock of this key, which is made of that of the lock.
        SELECT l.classid OPERATOR(pg_catalog.#) 4175984606, l.objid OPERATOR(pg_catalog.#) 3043954274
        FROM locks AS l WHERE l.granted AND l.objsubid OPERATOR(pg_catalog.=) 1
    ) AS w GROUP BY w.classid, w.objid
), keyed AS (
    SELECT t.*, t.key1::pg_catalog.int8 OPERATOR(pg_catalog.&) 4294967295 AS classid,
        t.key2::pg_catalog.int8 OPERATOR(pg_catalog.&) 4294967295 AS objid
    FROM pgelect.token AS t
)
SELECT k.name, k.key1, k.key2, k.token, k.holder, k.metadata, k.acquired_at, k.released_at, k.terms, k.lease_s,
    CASE WHEN NOT here.standby THEN h.pid IS NOT NULL AND k.released_at IS NULL END AS alive,
    k.backend_pid AS pid, h.client_addr, h.application_name, here.datname::pg_catalog.text AS database,
    h.state_change AS last_contact_at, CASE WHEN NOT here.standby THEN coalesce(w.followers, 0) END AS followers,
    k.backend_start
FROM keyed AS k CROSS JOIN here
LEFT JOIN holders AS h ON h.classid OPERATOR(pg_catalog.=) k.classid AND h.objid OPERATOR(pg_catalog.=) k.objid
    AND h.pid OPERATOR(pg_catalog.=) k.backend_pid
    AND (h.backend_start OPERATOR(pg_catalog.=) k.backend_start) IS NOT FALSE
LEFT JOIN waiting AS w ON w.classid OPERATOR(pg_catalog.=) k.classid AND w.objid OPERATOR(pg_catalog.=) k.objid;

-- Nobody has a right that was not granted by name. Functions and types would be PUBLIC's to use, and an administrator
-- may have set other defaults. A type that strangers put into tables of their own could not be changed any more.
REVOKE ALL ON SCHEMA pgelect FROM PUBLIC;
REVOKE ALL ON ALL TABLES IN SCHEMA pgelect FROM PUBLIC;
REVOKE ALL ON ALL SEQUENCES IN SCHEMA pgelect FROM PUBLIC;
REVOKE ALL ON ALL ROUTINES IN SCHEMA pgelect FROM PUBLIC;
REVOKE ALL ON TYPE pgelect.schema_version, pgelect.token, pgelect.closed, pgelect.history, pgelect.step_down,
    pgelect.leaders FROM PUBLIC;

-- Version 3: check_token and guard cost less, and who stands aside is a follower. It adds no part, so it is the comment that tells it from version 2; who
-- may not read the table below looks at that, too.
COMMENT ON SCHEMA pgelect IS 'The schema of pgelect, version {version}.';
INSERT INTO pgelect.schema_version (version) SELECT pg_catalog.generate_series(1, {version}) ON CONFLICT DO NOTHING;

END
$schema$;
