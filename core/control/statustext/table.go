package statustext

import (
	"strings"

	"rallypoint/internal/wording"
)

// Table is text in columns. The last column takes the remaining width, and is cut to it.
type Table struct {
	Columns      []Column
	rows         []row
	StyledColumn int // whose cells have their row's colour
}

type Column struct {
	Head  string
	Right bool // numbers
}

type row struct {
	style Style
	cells []string
}

// Add appends a row with a cell for each column.
func (t *Table) Add(p Style, cells ...string) { t.rows = append(t.rows, row{p, cells}) }

// gap is between two columns.
const gap = "  "

// Write writes the table with its heads. Columns without any text are left out.
func (t *Table) Write(b *strings.Builder, term Terminal) {
	widths, heads := make([]int, len(t.Columns)), make([]string, len(t.Columns))
	for i, c := range t.Columns {
		heads[i] = c.Head
		for _, r := range t.rows {
			widths[i] = max(widths[i], wording.Columns.StringWidth(r.cells[i]))
		}
		if widths[i] > 0 {
			widths[i] = max(widths[i], len(c.Head))
		}
	}
	t.line(b, term, widths, row{bold, heads}, true)
	for _, r := range t.rows {
		t.line(b, term, widths, r, false)
	}
}

func (t *Table) line(b *strings.Builder, term Terminal, widths []int, r row, head bool) {
	var line strings.Builder
	used, last := 0, len(t.Columns)-1
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
			cell, width = cut(cell, max(term.Width-used, 10)), 0
		case t.Columns[i].Right:
			width = -width
		}
		text := pad(cell, width)
		used += wording.Columns.StringWidth(text)
		if head || i == t.StyledColumn {
			text = term.apply(r.style, text)
		}
		line.WriteString(text)
	}
	text := line.String()
	if !term.Colour {
		text = strings.TrimRight(text, " ")
	}
	b.WriteString(text + "\n")
}
