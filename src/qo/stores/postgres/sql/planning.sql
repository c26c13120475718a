-- How the verbs' statements are planned: once per connection, by index. Each reads a few rows by an index whatever its
-- values are; planning each anew took longer than running it, and without statistics a plan for any values scans.
-- Set on the functions that are called from outside, for all that they call, so that no session needs setting up. A verb that
-- waits for a lock for longer than any verb holds one gives up, with nothing done.
DO $$
DECLARE
    f regprocedure;
BEGIN
    FOR f IN SELECT p.oid FROM pg_proc p WHERE p.pronamespace = (SELECT relnamespace FROM pg_class WHERE oid = 'qo.queues'::regclass)
             AND p.proname IN ('push_one', 'push_plain', 'push_any', 'claim', 'claim_one', 'settle', 'settle_done', 'extend', 'enter_due', 'lapse', 'tidy_lanes', 'tidy_rest',
                               'cancel', 'seek', 'join_group', 'watch', 'lock_unit', 'retry_dead',
                               'lapse_over', 'resolve', 'seize') LOOP
        EXECUTE format('ALTER FUNCTION %s SET plan_cache_mode = force_generic_plan', f);
        EXECUTE format('ALTER FUNCTION %s SET enable_seqscan = off', f);
        EXECUTE format('ALTER FUNCTION %s SET enable_bitmapscan = off', f);
        EXECUTE format('ALTER FUNCTION %s SET enable_hashjoin = off', f);
        EXECUTE format('ALTER FUNCTION %s SET enable_mergejoin = off', f);
        EXECUTE format('ALTER FUNCTION %s SET jit = off', f);
        EXECUTE format('ALTER FUNCTION %s SET lock_timeout = %L', f, '20s');
    END LOOP;
END $$;
