package admin

import (
	"bytes"
	"embed"
	"fmt"
	"html/template"
	"slices"
	"time"

	"tenure/claim"
	"tenure/kvlock"
)

// A view is what a page shows: a group and the locks beside it at one moment.
type view struct {
	pool   *Pool
	group  string
	status claim.Status
	locks  []kvlock.LockStatus
	at     time.Time // when it was read
	err    error     // why the group could not be read
	noLock error     // why the locks could not
}

// maxLocks is how many locks a page shows, and maxWaiters how many names of those who
// wait for one.
const (
	maxLocks   = 200
	maxWaiters = 5
)

// A block is an element of the page that changes as a whole: its id and its HTML.
type block [2]string

// A section is a part of the page: a block that may have blocks of its own within,
// between the two parts of its HTML.
type section struct {
	id         string
	head, tail string
	kids       []block
}

func (s *section) html() string {
	var b bytes.Buffer
	b.WriteString(s.head)
	for _, k := range s.kids {
		b.WriteString(k[1])
	}
	b.WriteString(s.tail)
	return b.String()
}

// changes returns the blocks that make a page that shows before show now: only the
// elements of a section that differ, if they are the same elements otherwise.
func changes(before, now []section) (all []block) {
	for i := range now {
		n := &now[i]
		if i < len(before) {
			b := &before[i]
			sameKids := slices.EqualFunc(b.kids, n.kids, func(x, y block) bool { return x[0] == y[0] })
			if b.id == n.id && b.head == n.head && b.tail == n.tail && sameKids {
				for j := range n.kids {
					if n.kids[j] != b.kids[j] {
						all = append(all, n.kids[j])
					}
				}
				continue
			}
		}
		all = append(all, block{n.id, n.html()})
	}
	return all
}

//go:embed static
var static embed.FS

var templates = template.Must(template.New("").Funcs(template.FuncMap{
	"stamp": stamp,
	"when":  when,
	"mark":  func(state string) string { return marks[state] },
}).ParseFS(static, "static/*.html"))

// marks stand beside the colours of states, which not everybody sees.
var marks = map[string]string{
	claim.StateRunning:     "",
	claim.StateStalled:     "…",
	claim.StateDraining:    "↓",
	claim.StateMoving:      "→",
	claim.StateOrphan:      "!",
	claim.StatePaused:      "‖",
	claim.StateQuarantined: "×",
	claim.StateUnassigned:  "○",
}

// legend are the states that have a mark, with what they mean.
var legend = []struct{ State, Text string }{
	{claim.StateRunning, "as planned"},
	{claim.StateStalled, "makes no progress"},
	{claim.StateDraining, "its worker leaves"},
	{claim.StateMoving, "goes to another worker"},
	{claim.StateOrphan, "its worker has died"},
	{claim.StatePaused, "by an operator"},
	{claim.StateQuarantined, "it failed too often"},
	{claim.StateUnassigned, "nobody's"},
}

// stamp and when render a time, for programs and for people without JavaScript.
func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339Nano) }
func when(t time.Time) string  { return t.UTC().Format("Jan 2 15:04:05 UTC") }

// render executes a template, which cannot fail: it has all it needs, and writes to
// memory.
func render(name string, data any) string {
	var b bytes.Buffer
	if err := templates.ExecuteTemplate(&b, name, data); err != nil {
		panic("admin: " + err.Error())
	}
	return b.String()
}

// A cell is a partition on the map, and its row in the table.
type cell struct {
	ID string // of the row
	claim.PartitionStatus
}

// A card is a worker with its partitions, or those that nobody has.
type card struct {
	ID     string
	Nobody bool
	Here   bool // of this process
	claim.WorkerStatus
	Cells []cell
}

// sections renders a view. What is rendered alike is taken from what was rendered
// before, if that is given: a row costs as much as all else together.
func (v *view) sections(before *rendered) *rendered {
	r := &rendered{rows: make(map[cell]string, len(v.status.Partitions))}
	r.sections = append(r.sections, section{id: "summary", head: render("summary", v.summary())})

	cards, byWorker := v.cards()
	workers := section{id: "workers", head: render("workers", nil), tail: render("legend", legend)}
	for i := range cards {
		workers.kids = append(workers.kids, block{cards[i].ID, render("worker", &cards[i])})
	}
	r.sections = append(r.sections, workers)
	r.sections = append(r.sections, section{id: "moves", head: render("moves", v.status.Moves)}, section{id: "locks", head: render("locks", v.lockList())})

	table := section{id: "partitions", head: render("partitions", nil), tail: "</tbody></table></section>"}
	for _, c := range byWorker {
		row, ok := "", false
		if before != nil {
			row, ok = before.rows[c]
		}
		if !ok {
			row = render("partition", c)
		}
		r.rows[c] = row
		table.kids = append(table.kids, block{c.ID, row})
	}
	r.sections = append(r.sections, table)
	return r
}

// rendered is a view as HTML.
type rendered struct {
	sections []section
	rows     map[cell]string
}

// summary is what stands at the top of a page.
func (v *view) summary() map[string]any {
	problem := ""
	if v.err != nil {
		problem = v.err.Error()
	}
	unwanted := 0 // partitions that have no worker though nobody asked for that
	for _, p := range v.status.Partitions {
		if p.Worker == "" && p.State != claim.StatePaused {
			unwanted++
		}
	}
	return map[string]any{
		"Group": v.group, "Groups": v.pool.groups(), "Bucket": v.pool.Bucket.Name(), "Problem": problem,
		"Workers": len(v.status.Workers), "Partitions": len(v.status.Partitions),
		"Unassigned": v.status.Unassigned, "Unwanted": unwanted, "Moving": v.status.Plan.Moving, "Plan": v.status.Plan.Revision,
	}
}

// cards returns the workers with their partitions, and all partitions in the order of
// the group's settings.
func (v *view) cards() (cards []card, all []cell) {
	here := make(map[string]bool)
	for _, c := range v.pool.Claimers {
		here[c.ID()] = here[c.ID()] || c.Group() == v.group
	}
	index := make(map[string]int)
	for i, w := range v.status.Workers {
		index[w.ID] = i
		cards = append(cards, card{ID: fmt.Sprintf("w%d", i), WorkerStatus: w, Here: here[w.ID]})
	}
	nobody := card{ID: "nobody", Nobody: true}
	for i, p := range v.status.Partitions {
		c := cell{fmt.Sprintf("p%d", i), p}
		all = append(all, c)
		if i, ok := index[p.Worker]; ok {
			cards[i].Cells = append(cards[i].Cells, c)
		} else {
			nobody.Cells = append(nobody.Cells, c)
		}
	}
	return append(cards, nobody), all
}

// A lockRow is a lock, semaphore, or lock for readers and writers, with one holder a
// row; a lock that is only waited for has a row too.
type lockRow struct {
	Name string
	kvlock.Holder
	Held    bool
	Waiters []kvlock.Waiter // at the first row only
	More    int             // who are not named
}

func (v *view) lockList() map[string]any {
	var rows []lockRow
	left := 0
	for _, l := range v.locks {
		if len(rows) >= maxLocks {
			left++
			continue
		}
		first := len(rows)
		for _, h := range l.Holders {
			rows = append(rows, lockRow{Name: h.Name, Holder: h, Held: true})
		}
		if len(l.Holders) == 0 {
			rows = append(rows, lockRow{Name: l.Name})
		}
		n := min(len(l.Waiters), maxWaiters)
		rows[first].Waiters, rows[first].More = l.Waiters[:n], len(l.Waiters)-n
	}
	problem := ""
	if v.noLock != nil && v.err == nil {
		problem = v.noLock.Error()
	}
	return map[string]any{"Rows": rows, "Left": left, "Problem": problem}
}
