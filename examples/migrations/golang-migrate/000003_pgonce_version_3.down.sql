-- An older version of the table keeps what a newer one added.
SELECT;
