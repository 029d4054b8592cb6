CREATE TABLE IF NOT EXISTS stores_purchases (
  store       text COLLATE "C" NOT NULL, -- app_store, google_play, stripe
  purchase_id text COLLATE "C" NOT NULL, -- what the store calls the purchase, the same in all its notifications
  product     text NOT NULL,
  status      text NOT NULL,
  updated_at  timestamptz NOT NULL,      -- the version: the store's own time
  rank        integer NOT NULL,          -- the tie-breaker: how final a status is
  CONSTRAINT stores_purchases_pkey PRIMARY KEY (store, purchase_id)
);

-- One row for each notification, in no constraint of its own: that there is one is the dedup table's doing.
CREATE TABLE IF NOT EXISTS stores_history (
  store       text COLLATE "C" NOT NULL,
  purchase_id text COLLATE "C" NOT NULL,
  kind        text NOT NULL,
  status      text NOT NULL
);
