CREATE TABLE IF NOT EXISTS stripewebhook_subscriptions (
  id         text COLLATE "C" PRIMARY KEY,
  customer   text NOT NULL,
  status     text NOT NULL,
  updated_at timestamptz NOT NULL, -- the version: the event's own time, in whole seconds
  rank       integer     NOT NULL  -- the tie-breaker: how final a status is
);
