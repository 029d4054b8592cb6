-- The tables of the example, beside the one of package dedup. This text can be run again, and by several programs at
-- once: IF NOT EXISTS alone is not safe then, so they take turns. The lock ends with the statement.
SELECT pg_advisory_xact_lock(hashtextextended('pgonce quickstart', 0));

-- The effect of an event is one row here. There is no unique constraint, on purpose: an effect that was made twice
-- would show as two rows.
CREATE TABLE IF NOT EXISTS quickstart_ledger (
    provider    text        NOT NULL,
    event_id    text        NOT NULL,
    recorded_at timestamptz NOT NULL DEFAULT now()
);

-- The newest known state of each subscription. occurred_at and rank come from the event, never from the clock here.
CREATE TABLE IF NOT EXISTS quickstart_subscriptions (
    stripe_subscription_id text        PRIMARY KEY,
    status                 text        NOT NULL,
    occurred_at            timestamptz NOT NULL,
    rank                   integer     NOT NULL
);
