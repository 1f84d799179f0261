-- The schema of pgelect, version 1. Safe to run again. One statement: all of it or nothing, however it is run.
-- Lock sessions need USAGE on the schema, SELECT, INSERT, UPDATE on token and on closed, USAGE on token_seq.
-- Writers of fenced transactions need USAGE on the schema and EXECUTE on check_token, nothing else.
-- It runs under anybody's search_path: whatever could be found elsewhere is qualified, operators and types as well.

DO $schema$
DECLARE
    stranger pg_catalog.text;
    intruder pg_catalog.text;
BEGIN

-- IF NOT EXISTS would ask for the right to create even where the schema exists.
IF NOT EXISTS (SELECT 1 FROM pg_catalog.pg_namespace AS n WHERE n.nspname OPERATOR(pg_catalog.=) 'pgelect') THEN
    CREATE SCHEMA pgelect;
END IF;

-- Whoever owns a table can have code of theirs run with the rights of everybody who writes to it, and now these are ours.
stranger := (SELECT pg_catalog.min(pg_catalog.pg_get_userbyid(o.owner)::pg_catalog.text) FROM pg_catalog.pg_namespace AS n CROSS JOIN LATERAL (SELECT n.nspowner UNION ALL SELECT c.relowner FROM pg_catalog.pg_class AS c WHERE c.relnamespace OPERATOR(pg_catalog.=) n.oid AND c.relname OPERATOR(pg_catalog.=) ANY (ARRAY['schema_version', 'token', 'token_seq', 'closed']::pg_catalog.name[]) UNION ALL SELECT p.proowner FROM pg_catalog.pg_proc AS p WHERE p.pronamespace OPERATOR(pg_catalog.=) n.oid AND p.proname OPERATOR(pg_catalog.=) ANY (ARRAY['check_token', 'guard']::pg_catalog.name[])) AS o (owner) WHERE n.nspname OPERATOR(pg_catalog.=) 'pgelect' AND pg_catalog.pg_get_userbyid(o.owner) OPERATOR(pg_catalog.<>) current_user AND NOT pg_catalog.pg_has_role(o.owner, (SELECT d.datdba FROM pg_catalog.pg_database AS d WHERE d.datname OPERATOR(pg_catalog.=) pg_catalog.current_database()), 'USAGE'));
IF stranger IS NOT NULL THEN
    RAISE EXCEPTION 'the schema pgelect, or a part of it, belongs to the role %, which is neither this role nor has the '
        'rights of the owner of this database', pg_catalog.quote_ident(stranger)
        USING ERRCODE = 'PGE03', HINT = 'Look at what is in it before anything uses it.';
END IF;
intruder := (SELECT pg_catalog.min(i.removal) FROM pg_catalog.pg_namespace AS n JOIN pg_catalog.pg_class AS c ON c.relnamespace OPERATOR(pg_catalog.=) n.oid AND c.relname OPERATOR(pg_catalog.=) ANY (ARRAY['schema_version', 'token', 'token_seq', 'closed']::pg_catalog.name[]) CROSS JOIN LATERAL (SELECT pg_catalog.format('DROP TRIGGER %I ON pgelect.%I', g.tgname, c.relname) FROM pg_catalog.pg_trigger AS g WHERE g.tgrelid OPERATOR(pg_catalog.=) c.oid AND NOT g.tgisinternal UNION ALL SELECT pg_catalog.format('DROP RULE %I ON pgelect.%I', r.rulename, c.relname) FROM pg_catalog.pg_rewrite AS r WHERE r.ev_class OPERATOR(pg_catalog.=) c.oid UNION ALL SELECT pg_catalog.format('ALTER TABLE pgelect.%I DISABLE ROW LEVEL SECURITY', c.relname) WHERE c.relrowsecurity) AS i (removal) WHERE n.nspname OPERATOR(pg_catalog.=) 'pgelect');
IF intruder IS NOT NULL THEN
    RAISE EXCEPTION 'something that does not belong there acts on what is written to the tables of pgelect'
        USING ERRCODE = 'PGE03', HINT = pg_catalog.format('Find out who made it, then: %s;', intruder);
END IF;

CREATE TABLE IF NOT EXISTS pgelect.schema_version (
    version integer PRIMARY KEY,
    installed_at timestamp with time zone NOT NULL DEFAULT pg_catalog.clock_timestamp()
);

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
-- A token counts on the timeline of its minting only: after a promotion, the row of a later term may have been lost.
CREATE OR REPLACE FUNCTION pgelect.check_token(key1 integer, key2 integer, token bigint) RETURNS pg_catalog.void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $pgelect$
BEGIN
    PERFORM 1 FROM pgelect.token AS t
    WHERE t.key1 = $1 AND t.key2 = $2 AND t.token = $3 AND t.released_at IS NULL
    AND t.timeline = ('x' || pg_catalog.substr(
        pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_lsn()), 1, 8))::bit(32)::bigint
    AND t.token IS DISTINCT FROM (SELECT c.token FROM pgelect.closed AS c WHERE c.key1 = $1 AND c.key2 = $2)
    FOR SHARE OF t;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'token % of lock (%, %) is stale: that term is over', $3, $1, $2
            USING ERRCODE = 'PGE01', HINT = 'Roll back and stop the work of this term; do not try it again.';
    END IF;
    PERFORM pg_catalog.set_config(
        pg_catalog.format('pgelect.fence_%s_%s', $1::bigint & 4294967295, $2::bigint & 4294967295), $3::text, true);
END
$pgelect$;

-- Statement trigger of guarded tables; arguments: key1, key2, and the lock's name where it has one.
CREATE OR REPLACE FUNCTION pgelect.guard() RETURNS pg_catalog.trigger
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $pgelect$
DECLARE
    k1 CONSTANT integer := TG_ARGV[0];
    k2 CONSTANT integer := TG_ARGV[1];
    lock_label CONSTANT text := pg_catalog.concat_ws(' ', pg_catalog.quote_literal(TG_ARGV[2]),
                                                pg_catalog.format('(%s, %s)', k1, k2));
    bound CONSTANT text := pg_catalog.current_setting(
        pg_catalog.format('pgelect.fence_%s_%s', k1::bigint & 4294967295, k2::bigint & 4294967295), true);
BEGIN
    -- The setting says which token was checked; only the row says that it is still that of the current term.
    IF bound ~ '^[0-9]{1,18}$' THEN
        PERFORM 1 FROM pgelect.token AS t
        WHERE t.key1 = k1 AND t.key2 = k2 AND t.token = bound::bigint AND t.released_at IS NULL
        AND t.timeline = ('x' || pg_catalog.substr(
            pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_lsn()), 1, 8))::bit(32)::bigint
        AND t.token IS DISTINCT FROM (SELECT c.token FROM pgelect.closed AS c WHERE c.key1 = k1 AND c.key2 = k2)
        FOR SHARE OF t;
        IF FOUND THEN
            RETURN NULL;
        END IF;
        -- It may well be fenced, and have come to its next write too late: "not fenced" would lead astray.
        IF EXISTS (SELECT 1 FROM pgelect.closed AS c WHERE c.key1 = k1 AND c.key2 = k2 AND c.token = bound::bigint) THEN
            RAISE EXCEPTION '% on %.% refused: token % of lock % is stale: that term is over',
                TG_OP, pg_catalog.quote_ident(TG_TABLE_SCHEMA), pg_catalog.quote_ident(TG_TABLE_NAME), bound, lock_label
                USING ERRCODE = 'PGE01', HINT = 'Roll back and stop the work of this term; do not try it again.';
        END IF;
    END IF;
    RAISE EXCEPTION '% on %.% refused: this transaction is not fenced by the current term of lock %',
        TG_OP, pg_catalog.quote_ident(TG_TABLE_SCHEMA), pg_catalog.quote_ident(TG_TABLE_NAME), lock_label
        USING ERRCODE = 'PGE02',
            HINT = pg_catalog.format('Write inside "async with lock.fence(conn)", or call '
                'pgelect.check_token(%s, %s, token) first in the same transaction.', k1, k2);
END
$pgelect$;

-- Nobody has a right that was not granted by name. Functions and types would be PUBLIC's to use, and an administrator
-- may have set other defaults. A type that strangers put into tables of their own could not be changed any more.
REVOKE ALL ON SCHEMA pgelect FROM PUBLIC;
REVOKE ALL ON ALL TABLES IN SCHEMA pgelect FROM PUBLIC;
REVOKE ALL ON ALL SEQUENCES IN SCHEMA pgelect FROM PUBLIC;
REVOKE ALL ON ALL ROUTINES IN SCHEMA pgelect FROM PUBLIC;
REVOKE ALL ON TYPE pgelect.schema_version, pgelect.token, pgelect.closed FROM PUBLIC;

INSERT INTO pgelect.schema_version (version) VALUES (1) ON CONFLICT DO NOTHING;

END
$schema$;
