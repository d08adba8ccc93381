package cli

import (
	"strings"
	"unicode/utf8"
)

// table is text in columns. The last column takes what room is left, and is cut
// there.
type table struct {
	columns      []column
	rows         []row
	colourColumn int // whose cells have their row's colour
}

type column struct {
	head  string
	right bool // numbers
}

type row struct {
	paint paint
	cells []string
}

// add appends a row with a cell for each column.
func (t *table) add(p paint, cells ...string) { t.rows = append(t.rows, row{p, cells}) }

// gap is between two columns.
const gap = "  "

// write writes the table with its heads. Columns without any text are left out.
func (t *table) write(b *strings.Builder, scr screen) {
	widths := make([]int, len(t.columns))
	for i, c := range t.columns {
		for _, r := range t.rows {
			widths[i] = max(widths[i], utf8.RuneCountInString(r.cells[i]))
		}
		if widths[i] > 0 {
			widths[i] = max(widths[i], len(c.head))
		}
	}
	heads := make([]string, len(t.columns))
	for i, c := range t.columns {
		heads[i] = c.head
	}
	t.line(b, scr, widths, row{bold, heads}, true)
	for _, r := range t.rows {
		t.line(b, scr, widths, r, false)
	}
}

func (t *table) line(b *strings.Builder, scr screen, widths []int, r row, head bool) {
	var line strings.Builder
	used, last := 0, len(t.columns)-1
	for i, cell := range r.cells {
		if widths[i] == 0 {
			continue
		}
		if used > 0 {
			line.WriteString(gap)
			used += len(gap)
		}
		width := widths[i]
		switch {
		case i == last:
			cell, width = cut(cell, max(scr.width-used, 10)), 0
		case t.columns[i].right:
			width = -width
		}
		text := pad(cell, width)
		used += utf8.RuneCountInString(text)
		if head || i == t.colourColumn {
			text = scr.paint(r.paint, text)
		}
		line.WriteString(text)
	}
	text := line.String()
	if !scr.colour {
		text = strings.TrimRight(text, " ")
	}
	b.WriteString(text + "\n")
}
