package query

import (
	"github.com/blackhole/blackhole/pkg/records"
)

// EventKind is the kind of an event.
type EventKind string

// The kinds of events of a watch.
const (
	Added     EventKind = "added"     // matches now
	Updated   EventKind = "updated"   // still matches, with new content
	Withdrawn EventKind = "withdrawn" // its provider ended it
	Expired   EventKind = "expired"   // its provider did not renew it
	Removed   EventKind = "removed"   // alive, but no longer a match: new content, or an unreachable provider
	Progress  EventKind = "progress"  // no change of the matches: the cursor is current
	Reset     EventKind = "reset"     // the cursor is too old: drop all records, the current matches follow
)

// Event is one change of a watch's matches.
type Event struct {
	Kind   EventKind
	Cursor string          // resumes after this event; empty within a state in several parts, until its Progress, and among changes that come together because the viewer is slow
	Record *records.Record // nil for Progress and Reset
	// Of a Progress: the last search missed no match, so the watch has them all. Later changes of it are told at once.
	Complete bool
	Reason   string   // of a Removed event; of a Progress that is not complete
	Beyond   *LeftOut // of a Progress: records that the watch leaves out because they need a newer version; nil for none
}
