// Package screen shows tables on a terminal, cut to its size and repainted.
package screen

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"unicode"

	"github.com/cognitora/dataplane/ctl/cli"
)

// Picture is the repeated output of a command: a headline, and pieces below it. Write prints it
// completely, and Fit cuts it to a terminal's size.
type Picture struct {
	Head   []string // parts of the headline, which is folded only between parts
	Pieces []Piece
	All    string // command that shows everything, printed if something is left out
}

// Piece is a table, or lines of text if it has no columns.
type Piece struct {
	Of      string // name of its rows, printed if some are left out
	Apart   bool   // an empty line precedes it
	Columns []Column
	Rows    [][]string // the most important first
}

// Column is a column of a piece.
type Column struct {
	Name  string
	Rank  int // on a narrow terminal, columns of a higher rank are left out first; 0: never
	Least int // cells are cut to this width before a column is left out; 0: never cut
}

// TextOf returns a piece of lines.
func TextOf(of string, text ...string) Piece {
	p := Piece{Of: of}
	for _, l := range text {
		p.Rows = append(p.Rows, []string{l})
	}
	return p
}

// TableOf returns a piece with columns in order of importance.
func TableOf(of string, names ...string) Piece {
	p := Piece{Of: of, Apart: true}
	for i, name := range names {
		p.Columns = append(p.Columns, Column{Name: name, Rank: i})
	}
	return p
}

// Row adds a row.
func (p *Piece) Row(cells ...any) { p.Rows = append(p.Rows, cli.Words(cells...)) }

// names returns the names of the columns.
func (p *Piece) names() []string {
	names := make([]string, len(p.Columns))
	for i, c := range p.Columns {
		names[i] = c.Name
	}
	return names
}

// Write prints the whole picture.
func (p *Picture) Write(t *cli.Table) {
	t.Line(strings.Join(p.Head, "; "))
	for _, piece := range p.Pieces {
		if piece.Apart {
			t.Line("")
		}
		if piece.Columns != nil {
			t.Words(piece.names())
		}
		for _, row := range piece.Rows {
			t.Words(row)
		}
	}
}

const (
	roomy    = 20 // from this number of rows on, there are empty lines
	headMost = 4  // the headline takes at most this fraction of the rows
)

// Fit formats the picture in at most this many columns and rows. The last row says what was left
// out.
func (p *Picture) Fit(columns, rows int) []string {
	columns, rows = max(columns, 1), max(rows, 1)
	head := fold(p.Head, columns, max(1, rows/headMost))
	pieces, hiddenColumns := p.narrow(columns)
	gap := 0
	if rows >= roomy {
		gap = 1
	}
	whole := len(head)
	for i := range pieces {
		whole += pieces[i].overhead(gap) + len(pieces[i].Rows)
	}
	room := rows - len(head)
	if whole > rows || hiddenColumns > 0 {
		room-- // for the row that says what was left out
	}
	shown := shares(pieces, gap, room)
	out := head
	for i := range pieces {
		out = append(out, pieces[i].draw(gap, shown[i], columns)...)
	}
	if note := p.leftOut(pieces, shown, hiddenColumns); note != "" && len(out) < rows {
		out = append(out, cut(note, columns))
	}
	return out
}

// overhead returns how many rows a piece takes in addition to its own rows.
func (p *Piece) overhead(gap int) int {
	rows := 0
	if p.Apart {
		rows += gap
	}
	if p.Columns != nil {
		rows++
	}
	return rows
}

// shares returns how many rows of each piece are shown in room rows; -1: neither its heading nor
// the pieces after it. Pieces get rows in turn.
func shares(pieces []Piece, gap, room int) []int {
	shown := make([]int, len(pieces))
	fits := true
	for i := range pieces {
		first := min(len(pieces[i].Rows), 1)
		least := pieces[i].overhead(gap) + first
		if fits = fits && least <= room; !fits {
			shown[i] = -1
			continue
		}
		shown[i] = first
		room -= least
	}
	for more := true; more; {
		more = false
		for i := range pieces {
			if room > 0 && shown[i] >= 0 && shown[i] < len(pieces[i].Rows) {
				shown[i]++
				room--
				more = true
			}
		}
	}
	return shown
}

// leftOut returns a text about the parts that are not shown; empty: none.
func (p *Picture) leftOut(pieces []Piece, shown []int, hiddenColumns int) string {
	var missing []string
	count := func(n int, of string) {
		if n > 0 {
			missing = append(missing, fmt.Sprintf("%d more %s", n, of))
		}
	}
	for i := range pieces {
		count(len(pieces[i].Rows)-max(shown[i], 0), pieces[i].Of)
	}
	count(hiddenColumns, "columns")
	if missing == nil {
		return ""
	}
	return "… " + strings.Join(missing, ", ") + ": enlarge the terminal or use " + p.All
}

// draw formats shown rows of a piece, which has been narrowed.
func (p *Piece) draw(gap, shown, columns int) []string {
	if shown < 0 {
		return nil
	}
	var out []string
	if p.Apart {
		out = slices.Repeat([]string{""}, gap)
	}
	if p.Columns != nil {
		out = append(out, cut(p.aligned(p.names()), columns))
	}
	for _, row := range p.Rows[:shown] {
		out = append(out, cut(p.aligned(row), columns))
	}
	return out
}

// aligned joins cells, each padded or cut to the width of its column. Text has no columns.
func (p *Piece) aligned(cells []string) string {
	if p.Columns == nil {
		return cells[0]
	}
	var b strings.Builder
	for i, c := range p.Columns {
		cell := cut(cells[i], c.Least)
		b.WriteString(cell)
		b.WriteString(strings.Repeat(" ", c.Least-width(cell)+2))
	}
	return strings.TrimRight(b.String(), " ")
}

// narrow returns the pieces with the columns that fit, and the number of hidden columns. The
// columns' field least is their width.
func (p *Picture) narrow(columns int) (pieces []Piece, hidden int) {
	for _, full := range p.Pieces {
		n := Piece{Of: full.Of, Apart: full.Apart}
		for _, row := range full.Rows {
			clean := make([]string, len(row))
			for i := range row {
				clean[i] = printable(row[i])
			}
			n.Rows = append(n.Rows, clean)
		}
		if full.Columns != nil {
			hidden += n.choose(full.Columns, columns)
		}
		pieces = append(pieces, n)
	}
	return pieces, hidden
}

// choose selects the columns of from that fit, and returns the number of hidden columns.
func (p *Piece) choose(from []Column, room int) (hidden int) {
	natural, byRank := make([]int, len(from)), make([]int, len(from))
	for i, c := range from {
		byRank[i], natural[i] = i, width(c.Name)
		for _, row := range p.Rows {
			natural[i] = max(natural[i], width(row[i]))
		}
	}
	slices.SortStableFunc(byRank, func(a, b int) int { return cmp.Compare(from[a].Rank, from[b].Rank) })
	widths, room := make([]int, len(from)), room+2 // there is no gap after the last column
	for _, i := range byRank {
		least := natural[i]
		if from[i].Least > 0 {
			least = max(min(least, from[i].Least), width(from[i].Name))
		}
		if from[i].Rank > 0 && (hidden > 0 || least+2 > room) {
			hidden++ // hides all less important columns too, so that narrow ones do not appear and disappear
			continue
		}
		widths[i] = least
		room -= least + 2
	}
	for _, i := range byRank { // the remaining room goes to columns that were cut
		if more := min(natural[i]-widths[i], room); widths[i] > 0 && more > 0 {
			widths[i] += more
			room -= more
		}
	}
	p.take(from, widths)
	return hidden
}

// take keeps the columns with a width.
func (p *Piece) take(from []Column, widths []int) {
	for i, c := range from {
		if widths[i] > 0 {
			c.Least = widths[i]
			p.Columns = append(p.Columns, c)
		}
	}
	for i, row := range p.Rows {
		var kept []string
		for j, cell := range row {
			if widths[j] > 0 {
				kept = append(kept, cell)
			}
		}
		p.Rows[i] = kept
	}
}

// fold breaks a line between words into at most this many lines, and cuts the last.
func fold(words []string, columns, most int) []string {
	var out []string
	for i, word := range words {
		word = printable(word)
		if i < len(words)-1 {
			word += ";"
		}
		if last := len(out) - 1; i > 0 && (len(out) == most || width(out[last])+1+width(word) <= columns) {
			out[last] += " " + word
		} else {
			out = append(out, word)
		}
	}
	for i := range out {
		out[i] = cut(out[i], columns)
	}
	return out
}

// width returns the width of text on a terminal.
func width(text string) int { return len([]rune(text)) }

// cut shortens text to a width, and marks the cut.
func cut(text string, columns int) string {
	r := []rune(text)
	if len(r) <= columns {
		return text
	}
	if columns < 1 {
		return ""
	}
	return string(r[:columns-1]) + "…"
}

// printable replaces control characters, because errors and names come from other hosts.
func printable(text string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return '·'
		}
		return r
	}, text)
}
