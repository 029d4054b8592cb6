-- What the two services of the example have beside the tables of packages dedup and outbox. In real life each has a
-- database of its own.
CREATE TABLE IF NOT EXISTS orders_orders (
  id   text PRIMARY KEY,
  step int  NOT NULL
);

-- The effect of an event is one row here. There is no unique constraint, on purpose: an effect that was made twice would
-- show as two rows, and one out of order by its number.
CREATE TABLE IF NOT EXISTS orders_shipments (
  n        bigint GENERATED ALWAYS AS IDENTITY,
  order_id text NOT NULL,
  step     int  NOT NULL
);
