CREATE TABLE IF NOT EXISTS stripeorder_subscriptions (
  id         text COLLATE "C" PRIMARY KEY,
  status     text NOT NULL,
  plan       text,
  created_at timestamptz NOT NULL, -- of the event that arrived first
  updated_at timestamptz NOT NULL, -- the version: the event's own time, in whole seconds
  rank       integer     NOT NULL  -- the tie-breaker: how final a status is
);
