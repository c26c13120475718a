-- What version 4 calls, for as long as it works on this schema: the short paths of then, which lead to the general ones.

CREATE TYPE qo.plain_claims AS (
    tokens text[],
    queues text[],
    groups text[],
    messages integer[],
    leases double precision[],
    owners text[],
    fresh boolean,
    kinds text[]
);

CREATE FUNCTION qo.claim(p_wants jsonb, p_plain qo.plain_claims, p_moved boolean, p_now timestamptz) RETURNS SETOF qo.served LANGUAGE sql AS $$
    SELECT * FROM qo.claim(p_wants, NULL::qo.short_claims, p_moved, p_now);
$$;

CREATE FUNCTION qo.claim_one(p_wants jsonb, p_token text, p_queue text, p_group text, p_messages integer, p_lease double precision,
                             p_owner text, p_fresh boolean, p_kinds text, p_moved boolean, p_now timestamptz)
RETURNS SETOF qo.served LANGUAGE sql AS $$
    SELECT * FROM qo.claim(p_wants, NULL::qo.short_claims, p_moved, p_now);
$$;

-- Say it item by item.
CREATE FUNCTION qo.settle_done(p_tokens text[], p_lanes bigint[], p_done int8multirange[], p_offsets text[], p_starts text[],
                               p_base timestamptz, p_wants jsonb, p_plain qo.plain_claims, p_now timestamptz)
RETURNS SETOF qo.served LANGUAGE plpgsql AS $$
DECLARE
    v_answer qo.served;
BEGIN
    v_answer.signal := 'items';
    RETURN NEXT v_answer;
END $$;

CREATE FUNCTION qo.push_any(p_queues text[], p_keys text[], p_kinds text[], p_priorities integer[], p_ids uuid[], p_payloads bytea[],
                        p_headers text[], p_dues timestamptz[], p_ttls double precision[], p_dedupes jsonb[], p_own text[], p_now timestamptz)
RETURNS TABLE (answer text, other text) LANGUAGE sql AS $$
    SELECT * FROM qo.push_any(p_queues, p_keys, p_kinds, p_priorities, p_ids, p_payloads, p_headers, p_dues, NULL, p_ttls, p_dedupes, p_own, p_now);
$$;

CREATE FUNCTION qo.enqueue(p_id uuid, p_queue text, p_payload bytea, p_kind text, p_key text, p_priority integer, p_headers text,
                           p_due timestamptz, p_ttl double precision, p_dedupe jsonb, p_notify boolean) RETURNS uuid LANGUAGE sql AS $$
    SELECT qo.enqueue(p_id, p_queue, p_payload, p_kind, p_key, p_priority, p_headers, p_due, NULL, p_ttl, p_dedupe, p_notify);
$$;
