package cli

import (
	"strings"

	"rallypoint/internal/wording"
)

// table is text in columns. The last column takes what room is left, and is cut
// there.
type table struct {
	columns      []column
	rows         []row
	styledColumn int // whose cells have their row's colour
}

type column struct {
	head  string
	right bool // numbers
}

type row struct {
	style style
	cells []string
}

// add appends a row with a cell for each column.
func (t *table) add(p style, cells ...string) { t.rows = append(t.rows, row{p, cells}) }

// gap is between two columns.
const gap = "  "

// write writes the table with its heads. Columns without any text are left out.
func (t *table) write(b *strings.Builder, term terminal) {
	widths := make([]int, len(t.columns))
	for i, c := range t.columns {
		for _, r := range t.rows {
			widths[i] = max(widths[i], wording.Columns.StringWidth(r.cells[i]))
		}
		if widths[i] > 0 {
			widths[i] = max(widths[i], len(c.head))
		}
	}
	heads := make([]string, len(t.columns))
	for i, c := range t.columns {
		heads[i] = c.head
	}
	t.line(b, term, widths, row{bold, heads}, true)
	for _, r := range t.rows {
		t.line(b, term, widths, r, false)
	}
}

func (t *table) line(b *strings.Builder, term terminal, widths []int, r row, head bool) {
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
			cell, width = cut(cell, max(term.width-used, 10)), 0
		case t.columns[i].right:
			width = -width
		}
		text := pad(cell, width)
		used += wording.Columns.StringWidth(text)
		if head || i == t.styledColumn {
			text = term.apply(r.style, text)
		}
		line.WriteString(text)
	}
	text := line.String()
	if !term.colour {
		text = strings.TrimRight(text, " ")
	}
	b.WriteString(text + "\n")
}
