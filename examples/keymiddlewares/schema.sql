CREATE TABLE IF NOT EXISTS keymiddlewares_payments (
  id    bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  cents bigint NOT NULL
);

-- What the other middlewares keep, so that a crash is survived by it.
CREATE TABLE IF NOT EXISTS keymiddlewares_seen (
  key   text PRIMARY KEY,
  value bytea NOT NULL
);
