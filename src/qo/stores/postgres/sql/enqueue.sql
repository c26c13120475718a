-- enqueue: from a user's own transaction. It writes intake, and takes no lock that another producer could wait for: not
-- the queue's, not the lane's, not a dedupe key's. Rolled back means never there; committed means it will run.

-- A new UUIDv7.
CREATE FUNCTION qo.new_id() RETURNS uuid LANGUAGE sql VOLATILE AS $$
    SELECT encode(set_bit(set_bit(overlay(uuid_send(gen_random_uuid())
        PLACING substring(int8send((extract(epoch FROM clock_timestamp()) * 1000)::bigint) FROM 3) FROM 1 FOR 6), 52, 1), 53, 1), 'hex')::uuid;
$$;

CREATE FUNCTION qo.enqueue(p_id uuid, p_queue text, p_payload bytea, p_kind text, p_key text, p_priority integer, p_headers text,
                           p_due timestamptz, p_delay double precision, p_ttl double precision, p_dedupe jsonb, p_notify boolean)
RETURNS uuid LANGUAGE plpgsql AS $$
DECLARE
    v_rules jsonb := coalesce((SELECT rules FROM qo.queues WHERE name = p_queue), (SELECT rules FROM qo.defaults));
    v_limit bigint := (v_rules ->> 'max_payload')::bigint;
BEGIN
    IF v_rules ->> 'encrypt' = 'true' THEN
        RAISE invalid_parameter_value USING MESSAGE = format(
            'queue: ''%s'' seals its payloads, which a database cannot; push with a client of qo', p_queue);
    END IF;
    IF octet_length(p_payload) > v_limit THEN
        RAISE invalid_parameter_value USING MESSAGE = format(
            'payload: has %s bytes; queue ''%s'' allows %s (setting max_payload)', octet_length(p_payload), p_queue, v_limit);
    END IF;
    INSERT INTO qo.intake (id, queue, key, kind, priority, payload, headers, created_at, due_at, ttl, dedupe)
    VALUES (p_id, p_queue, p_key, p_kind, p_priority, p_payload, p_headers, clock_timestamp(),
            coalesce(p_due, clock_timestamp() + make_interval(secs => coalesce(p_delay, 0))), p_ttl, p_dedupe);
    IF p_notify THEN PERFORM qo.hint(ARRAY[p_queue]); END IF;
    RETURN p_id;
END $$;

-- Push from plain SQL: SELECT qo.push('queue', '{"a": 1}'). The payload is JSON text. Answers the message's id.
CREATE FUNCTION qo.push(queue text, payload text, kind text DEFAULT 'default', key text DEFAULT NULL, priority integer DEFAULT 0,
                        delay interval DEFAULT NULL, due_at timestamptz DEFAULT NULL, ttl interval DEFAULT NULL, headers jsonb DEFAULT NULL,
                        dedupe text DEFAULT NULL, dedupe_window interval DEFAULT NULL, notify boolean DEFAULT true)
RETURNS uuid LANGUAGE plpgsql AS $$
BEGIN
    IF queue IS NULL OR queue <> btrim(queue) OR queue = '' OR length(queue) > {name_limit} OR queue ~ '[[:cntrl:]]' THEN
        RAISE invalid_parameter_value USING MESSAGE = 'queue: must be a name of 1 to {name_limit} characters';
    ELSIF kind IS NULL OR kind = '' OR length(kind) > {name_limit} THEN
        RAISE invalid_parameter_value USING MESSAGE = 'kind: must be a name of 1 to {name_limit} characters';
    ELSIF key = '' OR length(key) > {key_limit} THEN
        RAISE invalid_parameter_value USING MESSAGE = 'key: must have 1 to {key_limit} characters';
    ELSIF priority IS NULL OR abs(priority) > {priority_limit} THEN
        RAISE invalid_parameter_value USING MESSAGE = 'priority: must be from -{priority_limit} to {priority_limit}';
    ELSIF delay IS NOT NULL AND due_at IS NOT NULL THEN
        RAISE invalid_parameter_value USING MESSAGE = 'delay: give a delay or a due time, not both';
    ELSIF delay < interval '0' THEN
        RAISE invalid_parameter_value USING MESSAGE = 'delay: must not be negative';
    ELSIF jsonb_typeof(headers) NOT IN ('object', 'null') THEN
        RAISE invalid_parameter_value USING MESSAGE = 'headers: must be an object of texts';
    END IF;
    IF jsonb_typeof(headers) = 'null' THEN headers := NULL; END IF;
    IF EXISTS (SELECT FROM jsonb_each(headers) h WHERE jsonb_typeof(h.value) <> 'string' OR h.key = '') THEN
        RAISE invalid_parameter_value USING MESSAGE = 'headers: must be an object of texts';
    ELSIF EXISTS (SELECT FROM jsonb_object_keys(headers) name WHERE starts_with(name, 'qo-')) THEN
        RAISE invalid_parameter_value USING MESSAGE = 'headers: names that begin with ''qo-'' are for qo itself';
    ELSIF (SELECT count(*) > {header_count_limit} OR sum(length(h.key) + length(h.value)) > {header_bytes_limit} FROM jsonb_each_text(headers) h) THEN
        RAISE invalid_parameter_value USING MESSAGE = 'headers: must be at most {header_count_limit}, with at most {header_bytes_limit} characters in all';
    END IF;
    PERFORM payload::json;  -- refuses what is not JSON
    RETURN qo.enqueue(qo.new_id(), queue, convert_to(payload, 'UTF8'), kind, key, priority, headers::text,
                      due_at, extract(epoch FROM delay)::double precision, extract(epoch FROM ttl)::double precision,
                      CASE WHEN dedupe IS NOT NULL THEN jsonb_build_object('key', dedupe, 'scope', 'queue',
                          'window', extract(epoch FROM dedupe_window)) END, notify);
END $$;
