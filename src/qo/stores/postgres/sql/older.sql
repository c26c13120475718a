-- What version 3 calls, for as long as it works on this schema: the short paths of then, which lead to the general ones.

CREATE TYPE qo.plain_wants AS (
    tokens text[],
    queues text[],
    groups text[],
    messages integer[],
    leases double precision[],
    owners text[],
    fresh boolean
);

CREATE FUNCTION qo.claim(p_wants jsonb, p_plain qo.plain_wants, p_moved boolean, p_now timestamptz) RETURNS SETOF qo.served LANGUAGE sql AS $$
    SELECT * FROM qo.claim(p_wants, NULL::qo.plain_claims, p_moved, p_now);
$$;

CREATE FUNCTION qo.claim_one(p_wants jsonb, p_token text, p_queue text, p_group text, p_messages integer, p_lease double precision,
                             p_owner text, p_fresh boolean, p_moved boolean, p_now timestamptz) RETURNS SETOF qo.served LANGUAGE sql AS $$
    SELECT * FROM qo.claim(p_wants, NULL::qo.plain_claims, p_moved, p_now);
$$;

-- Say it item by item.
CREATE FUNCTION qo.settle_done(p_tokens text[], p_lanes bigint[], p_done int8multirange[], p_wants jsonb, p_plain qo.plain_wants, p_now timestamptz)
RETURNS SETOF qo.served LANGUAGE plpgsql AS $$
DECLARE
    v_answer qo.served;
BEGIN
    v_answer.signal := 'items';
    RETURN NEXT v_answer;
END $$;
