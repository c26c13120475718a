-- Records: what is arranged rather than moved. No body: remove it. `expected` is the version that it must have, 0 that it must not
-- exist; NULL: whatever it is. Answers, for each change, the version there was, and the one that was written or removed; NULL: it was
-- not as expected, and the caller undoes all of it. `version_of` is the same in Python.
CREATE FUNCTION qo.change_records(p_kinds text[], p_names text[], p_bodies bytea[], p_dues timestamptz[], p_expected bigint[],
                                  p_now timestamptz)
RETURNS TABLE (number bigint, before bigint, version bigint) LANGUAGE plpgsql AS $$
DECLARE
    v_now timestamptz := coalesce(p_now, clock_timestamp());
    v_changed text[] := '{}';
    r record;
BEGIN
    FOR r IN SELECT * FROM unnest(p_kinds, p_names, p_bodies, p_dues, p_expected) WITH ORDINALITY
             AS c (kind, name, body, due, expected, number) ORDER BY c.kind COLLATE "C", c.name COLLATE "C", c.number LOOP
        number := r.number;
        IF r.body IS NOT NULL THEN  -- what is not there cannot be locked; without a version it is as if it were not
            INSERT INTO qo.records AS x (kind, name, version, body) VALUES (r.kind, r.name, 0, '') ON CONFLICT DO NOTHING;
        END IF;
        SELECT x.version INTO before FROM qo.records x WHERE x.kind = r.kind AND x.name = r.name FOR UPDATE;
        before := coalesce(before, 0);
        version := NULL;
        IF r.expected IS NULL OR r.expected = before THEN
            IF r.body IS NULL THEN
                version := before;
                DELETE FROM qo.records x WHERE x.kind = r.kind AND x.name = r.name;
            ELSE
                version := CASE WHEN before = 0 THEN (extract(epoch FROM v_now) * 1000000)::bigint ELSE before + 1 END;
                UPDATE qo.records x SET version = change_records.version, due_at = r.due, body = r.body
                WHERE x.kind = r.kind AND x.name = r.name;
            END IF;
        END IF;
        IF version <> 0 THEN v_changed := v_changed || r.kind::text; END IF;
        RETURN NEXT;
    END LOOP;
    PERFORM pg_notify('qo', json_build_object('records', json_build_array(k))::text) FROM (SELECT DISTINCT unnest(v_changed) AS k) kinds;
END $$;
