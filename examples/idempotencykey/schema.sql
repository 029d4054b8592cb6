CREATE TABLE IF NOT EXISTS idempotencykey_payments (
  id      bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  account text NOT NULL,
  cents   bigint NOT NULL CHECK (cents > 0)
);
