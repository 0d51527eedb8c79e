package agents

import (
	"fmt"
	"io"
	"text/tabwriter"
)

// Row is what became of the edits in one way. Times are seconds.
type Row struct {
	Locks       string  `json:"locks"`
	Files       string  `json:"files"`
	Edits       int     `json:"edits"`  // accepted lines, each in one file
	Pushes      int     `json:"pushes"` // accepted changes of one to three files
	Found       int     `json:"found"`  // lines of agents in the files
	Lost        int     `json:"lost"`
	Foreign     int     `json:"foreign"` // lines in the files that were refused, or that stand there twice
	Older       int     `json:"older"`   // accepted changes of a file whose token was below the last one
	Refused     int     `json:"refused"` // changes, for such a token
	Changed     int     `json:"changed"` // changes that git could not merge: their agents read again
	Frozen      int     `json:"frozen"`
	Died        int     `json:"died"`
	Left        int     `json:"left"` // files that stay held
	WaitMedian  float64 `json:"wait_median"`
	WaitLongest float64 `json:"wait_longest"`
	Seconds     float64 `json:"seconds"`
}

// Held reports whether no edit was lost, no stale one accepted, and nothing stays held.
func (r Row) Held() bool {
	return r.Edits > 0 && r.Edits == r.Found && r.Lost == 0 && r.Foreign == 0 && r.Older == 0 && r.Left == 0
}

// Show prints rows for people.
func Show(w io.Writer, rows []Row) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "\nHOLDS\tFILES\tEDITS\tIN THE FILES\tLOST\tSTALE ACCEPTED\tSTALE REFUSED\tFROZEN\tDIED\tWAIT MEDIAN, LONGEST\tTOOK\n")
	for _, r := range rows {
		fmt.Fprintf(t, "%s\t%s\t%d\t%d\t%d\t%d\t%d\t%d\t%d\t%.2f s, %.1f s\t%.0f s\n",
			r.Locks, r.Files, r.Edits, r.Found, r.Lost, r.Older, r.Refused, r.Frozen, r.Died, r.WaitMedian, r.WaitLongest, r.Seconds)
	}
	return t.Flush()
}
