module github.com/pgonce/pgonce/examples

go 1.26.0

require (
	github.com/jackc/pgx/v5 v5.13.0
	github.com/pgonce/pgonce v0.0.0
)

replace github.com/pgonce/pgonce => ../
