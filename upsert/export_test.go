package upsert

// Texts returns the statements that s sends, once it has been used: for one row, and for many.
func Texts(s Statement) (one string, many func(withRows, distinct bool) string) {
	t := s.plan().use.Load()
	return t.one, func(withRows, distinct bool) string { return t.many[shape{withRows, distinct}] }
}

// Update is the flag that writes golden files anew.
var Update = update

// Borrow spares s the reading of the catalog: from has been used on the same table. Where s does not fit the table, it
// is left to find that by itself.
func Borrow(s, from Statement) {
	if t, err := s.plan().textsFor(from.plan().use.Load().l); err == nil {
		s.plan().use.Store(t)
	}
}
