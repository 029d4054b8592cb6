CREATE TABLE IF NOT EXISTS lookupfirst_accounts (
    account text   NOT NULL PRIMARY KEY,
    balance bigint NOT NULL DEFAULT 0
);

CREATE TABLE IF NOT EXISTS lookupfirst_payments (
    event_id text   COLLATE "C" NOT NULL,
    account  text   NOT NULL REFERENCES lookupfirst_accounts (account),
    amount   bigint NOT NULL CHECK (amount > 0),
    CONSTRAINT lookupfirst_payments_event_id_key UNIQUE (event_id)
);
