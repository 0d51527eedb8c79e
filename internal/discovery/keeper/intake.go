package keeper

import (
	"time"

	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/records"
)

const (
	maxKeptOut = 4096             // records that a limit of this peer kept out
	keptOutFor = 15 * time.Minute // a record waits that long at most for a place in a nearly full cell
)

// intake adds records to the index. It remembers those that a limit of this peer kept out. It is safe for concurrent use.
type intake struct {
	*Env
	kept timedSet[records.Name]
}

func newIntake(e *Env) *intake { return &intake{e, newTimedSet[records.Name](maxKeptOut)} }

// put adds a verified record to the index. An equal version is not an error; a newer version in
// the index is Exists. Sequence is the highest sequence of the record in the index.
func (in *intake) put(r *records.Record) (sequence uint64, err error) {
	known, ok := in.Index.Latest(r.Name())
	if ok && known.Equivocates(r) {
		in.Recorder.Refused("equivocation") // whichever of the two wins
		in.Logger.Debug("provider signed two different records with the same sequence", "record", r.Name(), "sequence", r.Sequence())
	}
	if ok && known.Digest() == r.Digest() {
		return known.Sequence(), nil
	}
	_, err = in.Index.Put(r, in.Now())
	if fault.KindOf(err) == fault.LimitReached {
		in.keepOut(r.Name())
	} else {
		in.kept.remove(r.Name())
	}
	if latest, ok := in.Index.Latest(r.Name()); ok {
		sequence = latest.Sequence()
	}
	return sequence, err
}

// keepOut remembers a record that was refused for a limit.
func (in *intake) keepOut(n records.Name) { in.kept.add(n, in.Now().Add(keptOutFor)) }

// keptOut reports whether a limit kept a record out a short time ago.
func (in *intake) keptOut(n records.Name) bool { return in.kept.has(n, in.Now()) }
