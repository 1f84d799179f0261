"""All of psycopg and all of SQL."""
