CREATE TABLE IF NOT EXISTS /*leaf*/processed_events_h0 PARTITION OF /*table*/processed_events
  FOR VALUES WITH (MODULUS /*modulus*/8, REMAINDER /*remainder*/0)
  WITH (autovacuum_vacuum_scale_factor = 0.02);
