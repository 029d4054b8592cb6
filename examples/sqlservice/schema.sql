CREATE TABLE IF NOT EXISTS sqlservice_accounts (
  id      text   PRIMARY KEY,
  balance bigint NOT NULL DEFAULT 0
);
INSERT INTO sqlservice_accounts (id) VALUES ('alice'), ('bob') ON CONFLICT (id) DO NOTHING;
