-- What every function is protected with, whoever calls it.

-- Names are looked for in the system's catalog alone: nobody's own schema, in whatever search path, can put another operator or
-- function in place of the system's. Functions with a body of standard SQL have had theirs looked up already, and stay plain, so
-- that they are still merged into what calls them.
DO $$
DECLARE
    f regprocedure;
BEGIN
    FOR f IN SELECT p.oid FROM pg_proc p WHERE p.pronamespace = (SELECT relnamespace FROM pg_class WHERE oid = 'qo.queues'::regclass)
             AND p.prosqlbody IS NULL LOOP
        EXECUTE format('ALTER FUNCTION %s SET search_path = pg_catalog, pg_temp', f);
    END LOOP;
END $$;
