-- name: OpenAccount :exec
INSERT INTO sqlcservice_accounts (id, balance) VALUES (@id, @balance) ON CONFLICT (id) DO NOTHING;

-- name: Withdraw :execrows
UPDATE sqlcservice_accounts SET balance = balance - @amount WHERE id = @id AND balance >= @amount;

-- name: Deposit :execrows
UPDATE sqlcservice_accounts SET balance = balance + @amount WHERE id = @id;

-- name: Balance :one
SELECT balance FROM sqlcservice_accounts WHERE id = @id;
