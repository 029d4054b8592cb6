CREATE TABLE IF NOT EXISTS sqlcservice_accounts (
  id      text   PRIMARY KEY,
  balance bigint NOT NULL CHECK (balance >= 0)
);
