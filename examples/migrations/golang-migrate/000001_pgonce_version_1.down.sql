-- What was remembered is gone: a message that comes again runs again.
DROP TABLE processed_events;
