package main

import (
	"fmt"
	"html"
	"math"
	"strings"
)

// The drawing: a bar for each way and condition, from the first way's speed (1) to its own, on a logarithmic scale.
const (
	svgLeft, svgWidth  = 330, 560 // of the names, and of the bars
	svgBar, svgGap     = 9, 7
	svgLowest, svgHigh = 1.0 / 4, 512.0
)

func (p page) svg() string {
	var b strings.Builder
	y := 40
	text := func(x, y int, anchor, style, s string) {
		fmt.Fprintf(&b, `<text x="%d" y="%d" text-anchor="%s" %s>%s</text>`+"\n",
			x, y, anchor, style, html.EscapeString(strings.ReplaceAll(s, "`", "")))
	}
	x := func(ratio float64) float64 {
		ratio = min(max(ratio, svgLowest), svgHigh)
		return svgLeft + svgWidth*math.Log(ratio/svgLowest)/math.Log(svgHigh/svgLowest)
	}
	colours := []string{"#1f6f8b", "#e08e45", "#7a5195"}
	text(svgLeft, 20, "start", `font-size="15" font-weight="bold"`,
		"How many times as fast as the first way of each group")
	for _, r := range p.results {
		top := y
		text(10, y+10, "start", `font-weight="bold"`, r.title)
		y += 18
		for i, w := range r.ways {
			text(svgLeft-8, y+(svgBar*len(r.conditions)+svgBar)/2, "end", "", w.name)
			for n, f := range r.figures[i] {
				from, to := min(x(1), x(f.ratio)), max(x(1), x(f.ratio))
				fmt.Fprintf(&b, `<rect x="%.1f" y="%d" width="%.1f" height="%d" fill="%s"><title>%s</title></rect>`+"\n",
					from, y, max(to-from, 1), svgBar-1, colours[n%len(colours)],
					html.EscapeString(fmt.Sprintf("%s, %s: %s, p50 %v, p99 %v",
						w.name, r.conditions[n], times(f.ratio), rounded(f.p50), rounded(f.p99))))
				if i > 0 {
					text(int(max(to, x(1)))+4, y+svgBar-1, "start", `font-size="9"`, times(f.ratio))
				}
				y += svgBar
			}
			y += svgGap
		}
		for _, mark := range []float64{0.5, 1, 2, 10, 100} {
			fmt.Fprintf(&b, `<line x1="%.1f" x2="%.1f" y1="%d" y2="%d" `+
				`stroke="#999" stroke-width="%.1f" stroke-dasharray="2 3"/>`+"\n",
				x(mark), x(mark), top+14, y-svgGap, map[bool]float64{true: 1.5, false: 0.5}[mark == 1])
			text(int(x(mark)), y+5, "middle", `font-size="9" fill="#666"`, fmt.Sprintf("%g ×", mark))
		}
		y += 24
	}
	if len(p.results) > 0 {
		for n, c := range p.results[0].conditions {
			fmt.Fprintf(&b, `<rect x="%d" y="%d" width="12" height="8" fill="%s"/>`+"\n",
				svgLeft+n*190, y, colours[n%len(colours)])
			text(svgLeft+16+n*190, y+8, "start", "", c)
		}
		y += 22
	}
	for _, s := range append([]string{p.date.Format("2006-01-02")}, p.about...) {
		text(10, y+8, "start", `font-size="9" fill="#666"`, s)
		y += 13
	}
	return fmt.Sprintf(`<svg xmlns="http://www.w3.org/2000/svg" `+
		`width="%d" height="%d" viewBox="0 0 %[1]d %[2]d" `+
		`font-family="sans-serif" font-size="11">
<rect width="100%%" height="100%%" fill="white"/>
%s</svg>
`, svgLeft+svgWidth+60, y+12, b.String())
}
