package policy

const (
	inboxSQL  = "internal/inbox/sql.go"
	outboxSQL = "internal/outbox/sql.go"
)

// beside are the mechanisms of internal/PROMISES.md.
var beside = []mechanism{
	{
		"Of a batch, fn gets the new keys", "the places of the rows that were inserted", []edit{
			{"internal/claim/many.go", "return fn(ctx, tx, slices.Clone(fresh))", "return fn(ctx, tx, slices.Clone(b.sorted))"},
		}, "./idem", "^TestConformance$/^cache_statement$/^Many$/^Outcomes$",
	},
	{
		"Two batches with the same keys", "the order", []edit{
			{"internal/claim/many.go", "	b.sort(b.sorted)\n", ""},
		}, "./idem", "^TestBatchesInOppositeOrder$",
	},
	{
		"A message is stored once", "the primary key", []edit{
			{"internal/inbox/sql/0001.sql", "  PRIMARY KEY (message_id, operation, source),", "  CHECK (message_id <> ''),"},
			{inboxSQL, "ON CONFLICT (message_id, operation, source) DO NOTHING\n", ""},
		}, "./dedup/inbox", "^TestStoreAtOnce$",
	},
	{
		"What a failing handler wrote", "the roll back", []edit{
			{
				"internal/inbox/worker.go", "	_ = tx.Rollback(ctx)\n	a.Err = failed\n",
				"	_ = tx.Commit(ctx)\n	a.Err = failed\n",
			},
		}, "./dedup/inbox", "^TestFailing$",
	},
	{
		"A message has one handler at a time", "the lock", []edit{
			{inboxSQL, "AND due_at IS NOT NULL\n   FOR UPDATE SKIP LOCKED`)", "AND due_at IS NOT NULL`)"},
		}, "./dedup/inbox", "^TestLongerThanTheLease$",
	},
	{
		"Messages of one key are handled", "the look for an earlier one", []edit{
			{
				inboxSQL, "AND e.finished_at IS NULL AND e.seq < $2::int8)",
				"AND e.finished_at IS NULL AND e.seq < $2::int8 AND false)",
			},
		}, "./dedup/inbox", "^TestOrder$",
	},
	{
		"A relay that has lost its lane", "the token", []edit{
			{outboxSQL, "AND token = $2::int8 RETURNING lane\n", "AND $2::int8 IS NOT NULL RETURNING lane\n"},
		}, "./dedup/outbox", "^TestStaleRelay$",
	},
	{
		"No event is skipped", "all older transactions have ended", []edit{
			{"internal/outbox/low.go", "m.after[lane] != 0 && xmin >= m.after[lane]", "xmin != 0"},
		}, "./dedup/outbox", "^TestLateCommit$",
	},
	{
		"Behind a failed event", "what comes later is kept back", []edit{
			{"internal/outbox/publish.go", "		case r.behind || o.hasFailed(r):\n", "		case r.behind && r.Key == \"\":\n"},
		}, "./dedup/outbox", "^TestPoison$",
	},
	{
		"No caller gets", "the caller in the key", []edit{
			{"idem/idemhttp/request.go", "scope.Key(digest(caller), sent)", `scope.Key(digest(""), sent)`},
		}, "./idem/idemhttp", "^TestScope$",
	},
	{
		"A key with another request", "the request's hash", []edit{
			{"idem/idemhttp/request.go", ".WithPayload(sum)", ".WithPayload(sum[:0])"},
		}, "./idem/idemhttp", "^TestRefused$",
	},
	{
		"A response that was not committed", "the error's judgement", []edit{
			{"idem/idemhttp/middleware.go", "	case err != nil && x.stands(err):\n", "	case err != nil && x.answer != nil:\n"},
		}, "./idem/idemhttp", "^TestCommitFails$",
	},
	{
		"Nobody but the sender", "the HMAC", []edit{
			{"idem/webhook/sign.go", "	return found == 1\n", "	return found >= 0\n"},
		}, "./idem/webhook", "^TestVerify$",
	},
	{
		"A 200 is for what is committed", "the Sink's error", []edit{
			{
				"idem/webhook/handler.go", "	out, err := h.Sink.Accept(ctx, key, e)\n	return e, out, err\n",
				"	out, _ := h.Sink.Accept(ctx, key, e)\n	return e, out, nil\n",
			},
		}, "./idem/webhook", "^TestCommit$",
	},
}
