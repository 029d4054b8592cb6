-- The ledger of the example, beside the table of package dedup. This text can be run again, and by several programs at
-- once: IF NOT EXISTS alone is not safe then, so they take turns. The lock ends with the statement.
SELECT pg_advisory_xact_lock(hashtextextended('pgonce payments', 0));

-- A charge has an empty refund_id, a refund a negative amount. There is no unique constraint, on purpose: a payment that
-- was booked twice would show as two rows.
CREATE TABLE IF NOT EXISTS payments_ledger (
    order_id  text   NOT NULL,
    refund_id text   NOT NULL,
    receipt   text   NOT NULL,
    amount    bigint NOT NULL
);
