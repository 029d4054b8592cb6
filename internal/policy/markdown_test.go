package policy

import (
	"regexp"
	"strings"
)

// table is a Markdown table.
type table struct {
	header []string
	rows   [][]string
}

// tables returns the tables of a Markdown text, outside of code blocks.
func tables(text string) []table {
	var all []table
	var lines [][]string // of the table that is being read
	flush := func() {
		if len(lines) >= 2 && isRule(lines[1]) {
			all = append(all, table{lines[0], lines[2:]})
		}
		lines = nil
	}
	for line := range strings.Lines(stripCode(text)) {
		line = strings.TrimSpace(line)
		if !strings.HasPrefix(line, "|") {
			flush()
			continue
		}
		lines = append(lines, cells(line))
	}
	flush()
	return all
}

// tableWith returns the first table that has all of the columns, and each column's place.
func tableWith(text string, columns ...string) (table, map[string]int, bool) {
next:
	for _, tb := range tables(text) {
		place := map[string]int{}
		for i, h := range tb.header {
			place[strings.ToLower(h)] = i
		}
		for _, c := range columns {
			if _, ok := place[c]; !ok {
				continue next
			}
		}
		return tb, place, true
	}
	return table{}, nil, false
}

// cell returns one cell of a row, empty when the row is too short.
func cell(row []string, i int) string {
	if i >= len(row) {
		return ""
	}
	return row[i]
}

// cells splits a line at its bars, save those that are escaped.
func cells(line string) []string {
	const bar = "\x00"
	line = strings.ReplaceAll(strings.Trim(line, " "), `\|`, bar)
	parts := strings.Split(strings.TrimSuffix(strings.TrimPrefix(line, "|"), "|"), "|")
	for i := range parts {
		parts[i] = strings.TrimSpace(strings.ReplaceAll(parts[i], bar, "|"))
	}
	return parts
}

func isRule(row []string) bool {
	for _, c := range row {
		if strings.Trim(c, "-: ") != "" || !strings.Contains(c, "-") {
			return false
		}
	}
	return true
}

// fence is one fenced code block.
type fence struct {
	line int    // of its first line
	lang string // "go", "sh", ...
	code string
}

// fences returns the fenced code blocks. One that is never closed reaches to the end.
func fences(text string) []fence {
	var all []fence
	open := false
	n := 0
	for line := range strings.Lines(text) {
		n++
		mark, isMark := strings.CutPrefix(strings.TrimSpace(line), "```")
		switch {
		case isMark && open:
			open = false
		case isMark:
			open = true
			all = append(all, fence{line: n + 1, lang: strings.TrimSpace(mark)})
		case open:
			all[len(all)-1].code += line
		}
	}
	return all
}

// stripCode empties the lines of fenced code blocks.
func stripCode(text string) string {
	var b strings.Builder
	open := false
	for line := range strings.Lines(text) {
		isMark := strings.HasPrefix(strings.TrimSpace(line), "```")
		if isMark {
			open = !open
		}
		if isMark || open {
			line = "\n"
		}
		b.WriteString(line)
	}
	return b.String()
}

// words returns the code spans of a text: what stands between backticks.
func words(text string) []string {
	var all []string
	for _, m := range codeSpan.FindAllStringSubmatch(text, -1) {
		all = append(all, m[1])
	}
	return all
}

// oneSpace makes each run of white space one blank.
func oneSpace(s string) string { return strings.Join(strings.Fields(s), " ") }

var (
	codeSpan = regexp.MustCompile("`([^`]+)`")
	link     = regexp.MustCompile(`\[[^\]]*\]\(([^)\s]+)\)`)
	heading  = regexp.MustCompile(`(?m)^#{1,6}\s+(.+?)\s*#*$`)
	testName = regexp.MustCompile(`\b(?:Test|Example|Fuzz)[A-Z_]\w*`)
)

// anchors returns the fragments that GitHub makes of a text's headings.
func anchors(text string) map[string]bool {
	all := map[string]bool{}
	for _, m := range heading.FindAllStringSubmatch(stripCode(text), -1) {
		var b strings.Builder
		for _, r := range strings.ToLower(m[1]) {
			switch {
			case r == ' ':
				b.WriteByte('-')
			case r == '-' || r == '_' || r >= '0' && r <= '9' || r >= 'a' && r <= 'z' || r > 127:
				b.WriteRune(r)
			}
		}
		all[b.String()] = true
	}
	return all
}
