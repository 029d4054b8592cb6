-- The tables of the example, beside the one of package dedup. This text can be run again, and by several programs at
-- once: IF NOT EXISTS alone is not safe then, so they take turns. The lock ends with the statement.
SELECT pg_advisory_xact_lock(hashtextextended('pgonce saga', 0));

-- card and address say how the payment and the shipment of an order end. state is where its saga stands.
CREATE TABLE IF NOT EXISTS saga_orders (
    id      text    PRIMARY KEY,
    product text    NOT NULL,
    amount  bigint  NOT NULL,
    card    text    NOT NULL,
    address text    NOT NULL,
    state   text    NOT NULL DEFAULT 'pending' CHECK (state IN ('pending', 'done', 'undone'))
);

-- One piece is taken for each order, and put back where it is undone. A step that is made twice shows in the sum.
CREATE TABLE IF NOT EXISTS saga_stock (
    product text    PRIMARY KEY,
    pieces  integer NOT NULL
);
