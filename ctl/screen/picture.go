// Package screen shows tables on a terminal that is looked at: cut to its size, and painted again
// and again.
package screen

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"unicode"

	"github.com/cognitora/dataplane/ctl/cli"
)

// Picture is what a command shows again and again: a headline, and pieces below it. It is written
// in full (Write), or cut to a terminal's size (Fit).
type Picture struct {
	Head   []string // the headline, in words that stay together where it is folded
	Pieces []Piece
	All    string // what shows everything, said where something is left out
}

// Piece is a table, or lines of text if it has no columns.
type Piece struct {
	Of      string // what its rows are, said where some are left out
	Apart   bool   // an empty line is above it
	Columns []Column
	Rows    [][]string // the important ones first
}

// Column is a column of a piece.
type Column struct {
	Name   string
	Rank   int  // columns of a higher one are left out first where the terminal is narrow; 0: never
	Least  int  // width down to which cells are cut before a column is left out; 0: they are not
	Middle bool // cells are cut in the middle: their ends tell them apart
}

// TextOf is a piece of lines.
func TextOf(of string, text ...string) Piece {
	p := Piece{Of: of}
	for _, l := range text {
		p.Rows = append(p.Rows, []string{l})
	}
	return p
}

// TableOf is a piece with columns, each more important than those after it.
func TableOf(of string, names ...string) Piece {
	p := Piece{Of: of, Apart: true}
	for i, name := range names {
		p.Columns = append(p.Columns, Column{Name: name, Rank: i})
	}
	return p
}

// Row adds a row.
func (p *Piece) Row(cells ...any) {
	words := make([]string, len(cells))
	for i, c := range cells {
		words[i] = fmt.Sprint(c)
	}
	p.Rows = append(p.Rows, words)
}

// Write shows all of it.
func (p *Picture) Write(t *cli.Table) {
	t.Line(strings.Join(p.Head, "; "))
	for _, piece := range p.Pieces {
		if piece.Apart {
			t.Line("")
		}
		if piece.Columns != nil {
			names := make([]any, len(piece.Columns))
			for i, c := range piece.Columns {
				names[i] = c.Name
			}
			t.Row(names...)
		}
		for _, row := range piece.Rows {
			cells := make([]any, len(row))
			for i, c := range row {
				cells[i] = c
			}
			t.Row(cells...)
		}
	}
}

const (
	roomy    = 20 // rows from which on there are empty lines
	headMost = 4  // of the rows, the headline takes one of as many at most
)

// Fit is the picture in as many rows of as many columns at most. The last row says what was left
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
		room-- // for the row that says so
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

// overhead is how many rows a piece takes beside its own.
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

// shares says how many rows of each piece are shown where there is room for so many in all; -1: not
// even its heading, nor of those after it. Each gets one row in turn.
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

// leftOut says what is not shown; empty: nothing.
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

// draw makes lines of a piece, which has been narrowed, with so many of its rows.
func (p *Piece) draw(gap, shown, columns int) []string {
	if shown < 0 {
		return nil
	}
	var out []string
	if p.Apart {
		out = slices.Repeat([]string{""}, gap)
	}
	if p.Columns != nil {
		names := make([]string, len(p.Columns))
		for i, c := range p.Columns {
			names[i] = c.Name
		}
		out = append(out, cut(p.aligned(names), columns))
	}
	for _, row := range p.Rows[:shown] {
		out = append(out, cut(p.aligned(row), columns))
	}
	return out
}

// aligned joins cells, each padded or cut to its column's width; text has no columns.
func (p *Piece) aligned(cells []string) string {
	if p.Columns == nil {
		return cells[0]
	}
	var b strings.Builder
	for i, c := range p.Columns {
		cell := cells[i]
		if c.Middle {
			cell = cutMiddle(cell, c.Least)
		} else {
			cell = cut(cell, c.Least)
		}
		b.WriteString(cell)
		b.WriteString(strings.Repeat(" ", c.Least-width(cell)+2))
	}
	return strings.TrimRight(b.String(), " ")
}

// narrow returns the pieces with the columns that fit, whose least is the width they get, and how
// many columns do not.
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

// choose takes the columns that fit, of those given, and returns how many do not.
func (p *Piece) choose(from []Column, room int) (hidden int) {
	natural, byRank := make([]int, len(from)), make([]int, len(from))
	for i, c := range from {
		byRank[i], natural[i] = i, width(c.Name)
		for _, row := range p.Rows {
			natural[i] = max(natural[i], width(row[i]))
		}
	}
	slices.SortStableFunc(byRank, func(a, b int) int { return cmp.Compare(from[a].Rank, from[b].Rank) })
	widths, room := make([]int, len(from)), room+2 // the last has no gap behind it
	for _, i := range byRank {
		least := natural[i]
		if from[i].Least > 0 {
			least = max(min(least, from[i].Least), width(from[i].Name))
		}
		if from[i].Rank > 0 && (hidden > 0 || least+2 > room) {
			hidden++ // and with it all that are less important, so that narrower ones do not come and go
			continue
		}
		widths[i] = least
		room -= least + 2
	}
	for _, i := range byRank { // what is left goes to those that were cut
		if more := min(natural[i]-widths[i], room); widths[i] > 0 && more > 0 {
			widths[i] += more
			room -= more
		}
	}
	p.take(from, widths)
	return hidden
}

// take keeps the columns that have a width.
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

// fold breaks a line between its words, and cuts what is longer than the last line that it may
// have.
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

// width is how many places of a terminal text takes.
func width(text string) int { return len([]rune(text)) }

// cut shortens text to a width, and shows that it did.
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

// cutMiddle shortens text to a width and keeps both ends.
func cutMiddle(text string, columns int) string {
	r := []rune(text)
	if len(r) <= columns {
		return text
	}
	if columns < 3 {
		return cut(text, columns)
	}
	end := (columns - 1) / 2
	return string(r[:columns-1-end]) + "…" + string(r[len(r)-end:])
}

// printable replaces what a terminal would obey instead of showing it: errors and names come from
// other hosts.
func printable(text string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return '·'
		}
		return r
	}, text)
}
