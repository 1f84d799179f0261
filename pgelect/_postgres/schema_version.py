"""Of which version the schema in a database is, as far as the catalogs tell, which every role may read.

From version 3 on it stands in the comment of the schema, so that also what adds no part can be told from what was
before it. The table ``schema_version`` says the same, to the owner only.
"""

from __future__ import annotations

from psycopg.sql import SQL, Literal

# Operators are qualified because this runs with the user's search_path, too.
SEEN = SQL(
    "coalesce((SELECT pg_catalog.substring(d.description, {}::pg_catalog.text)::pg_catalog.int4 "
    "FROM pg_catalog.pg_description AS d WHERE d.objoid OPERATOR(pg_catalog.=) n.oid "
    "AND d.classoid OPERATOR(pg_catalog.=) 'pg_catalog.pg_namespace'::pg_catalog.regclass::pg_catalog.oid "
    "AND d.objsubid OPERATOR(pg_catalog.=) 0), "
    "CASE WHEN EXISTS (SELECT 1 FROM pg_catalog.pg_class AS c WHERE c.relnamespace OPERATOR(pg_catalog.=) n.oid "
    "AND c.relname OPERATOR(pg_catalog.=) 'history') THEN 2 ELSE 1 END)"
).format(Literal(r"\yversion ([0-9]{1,9})\y"))
"""The version of the schema that is the row ``n`` of pg_namespace, as SQL."""

OWNED = SQL(
    "(pg_catalog.pg_has_role(n.nspowner, 'USAGE') "
    "AND NOT EXISTS (SELECT 1 FROM pg_catalog.pg_class AS c WHERE c.relnamespace OPERATOR(pg_catalog.=) n.oid "
    "AND NOT pg_catalog.pg_has_role(c.relowner, 'USAGE')) "
    "AND NOT EXISTS (SELECT 1 FROM pg_catalog.pg_proc AS p WHERE p.pronamespace OPERATOR(pg_catalog.=) n.oid "
    "AND NOT pg_catalog.pg_has_role(p.proowner, 'USAGE')))"
)
"""Whether this role may change all that is in that schema, as SQL."""
