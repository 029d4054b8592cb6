package upsert

// Texts returns the statements that s sends, once it has been used.
func Texts(s Statement) (one, many string) {
	t := s.plan().use.Load()
	return t.one, t.manyRows
}

func Bare(s Statement) string { return s.plan().use.Load().many }
