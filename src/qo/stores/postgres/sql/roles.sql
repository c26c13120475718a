-- Who may what. The roles are the operator's to create (`CREATE ROLE qo_worker`); those that exist, named for the schema, are given
-- their rights with every migration, and by `qo migrate`. Verbs run with the rights of the schema's owner, so that whoever may call
-- one needs no right to a table; all functions else run with the caller's own.
--
--   producer  pushes, also from SQL; sees no message
--   worker    a producer that also claims, settles and extends, and is in the registry
--   server    everything but the schema itself
--   reader    looks; sees no secrets, and changes nothing
--
-- A caller who does not own the schema changes nothing here.
DO $$
DECLARE
    v_schema text := (SELECT n.nspname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = 'qo.queues'::regclass);
    v_pushing text[] := '{enqueue,push,push_one,push_plain,push_any,queue_to_use,lock_unit,lapse_over,tidy_lanes,tidy_rest,next_tidy}';
    v_working text[] := '{claim,claim_one,claimed,settle,settle_done,extend,enter_due,lapse,join_group,watch,read_wants}';
    v_reading text[] := '{as_text,tail_of,position_of,heads,head_from,place_of,id_number,size_of,queues_of,unpaused,joins_by_filter,is_unnoted,still_ready,unsettled_under_leases,first_entered}';
    v_telling text[] := '{hint,to_tidy}';
    v_role text;
    f record;
BEGIN
    IF NOT pg_has_role((SELECT relowner FROM pg_class WHERE oid = 'qo.queues'::regclass), 'USAGE') THEN RETURN; END IF;
    EXECUTE format('REVOKE ALL ON ALL FUNCTIONS IN SCHEMA %I FROM PUBLIC', v_schema);
    FOR f IN SELECT p.oid::regprocedure AS call, p.proname::text AS name FROM pg_proc p WHERE p.pronamespace = v_schema::regnamespace LOOP
        IF f.name = ANY (v_pushing || v_working) THEN EXECUTE format('ALTER FUNCTION %s SECURITY DEFINER', f.call); END IF;
    END LOOP;
    FOR v_role IN SELECT r.rolname FROM pg_roles r WHERE r.rolname IN
            (v_schema || '_producer', v_schema || '_worker', v_schema || '_server', v_schema || '_reader') LOOP
        EXECUTE format('GRANT USAGE ON SCHEMA %I TO %I', v_schema, v_role);
        EXECUTE format('GRANT SELECT ON qo.migrations TO %I', v_role);
        FOR f IN SELECT p.oid::regprocedure AS call, p.proname::text AS name FROM pg_proc p WHERE p.pronamespace = v_schema::regnamespace LOOP
            IF v_role = v_schema || '_server'
                    OR f.name = ANY (v_reading) AND v_role <> v_schema || '_producer'
                    OR f.name = ANY (v_pushing) AND v_role <> v_schema || '_reader'
                    OR f.name = ANY (v_working || v_telling) AND v_role = v_schema || '_worker' THEN
                EXECUTE format('GRANT EXECUTE ON FUNCTION %s TO %I', f.call, v_role);
            END IF;
        END LOOP;
        CASE v_role
            WHEN v_schema || '_server' THEN
                EXECUTE format('GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA %I TO %I', v_schema, v_role);
                EXECUTE format('GRANT USAGE ON ALL SEQUENCES IN SCHEMA %I TO %I', v_schema, v_role);
                EXECUTE format('REVOKE INSERT, UPDATE, DELETE ON qo.migrations, qo.defaults FROM %I', v_role);
            WHEN v_schema || '_reader' THEN
                EXECUTE format('GRANT SELECT ON ALL TABLES IN SCHEMA %I TO %I', v_schema, v_role);
                EXECUTE format('REVOKE SELECT ON qo.sealing_keys, qo.records, qo.nonces FROM %I', v_role);
            ELSE
                EXECUTE format('GRANT SELECT ON qo.sealing_keys TO %I', v_role);
                EXECUTE format('GRANT SELECT, INSERT ON qo.nonces TO %I', v_role);
        END CASE;
        IF v_role = v_schema || '_worker' THEN
            EXECUTE format('GRANT SELECT ON qo.queues, qo.groups, qo.lanes TO %I', v_role);
            EXECUTE format('GRANT SELECT, INSERT ON qo.group_filters TO %I', v_role);
            EXECUTE format('GRANT SELECT (queue, canceled_at, due_at) ON qo.intake TO %I', v_role);
            EXECUTE format('GRANT SELECT, INSERT, UPDATE, DELETE ON qo.workers TO %I', v_role);
        END IF;
    END LOOP;
END $$;
