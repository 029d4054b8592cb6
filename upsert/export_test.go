package upsert

// Texts returns the statements that s sends, once it has been used: for one row, and for many.
func Texts(s Statement) (one string, many func(withRows, distinct bool) string) {
	t := s.plan().use.Load()
	return t.one, func(withRows, distinct bool) string { return t.many[shape{withRows, distinct}] }
}
