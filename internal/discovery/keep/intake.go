package keep

import (
	"log/slog"
	"time"

	"github.com/blackhole/blackhole/internal/discovery/index"
	"github.com/blackhole/blackhole/internal/discovery/protocol"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/records"
)

const (
	maxKeptOut = 4096             // records that a limit of this peer kept out
	keptOutFor = 15 * time.Minute // publishers announce a refused record again within that time
)

// Intake adds records to the index. It remembers those that a limit of this peer kept out. It is safe for concurrent use.
type Intake struct {
	index   *index.Index
	now     func() time.Time
	refused func(reason string) // counts what providers do wrong
	logger  *slog.Logger
	kept    protocol.TimedSet[records.Name]
}

// NewIntake returns an intake into an index. It counts by refused what providers do wrong.
func NewIntake(x *index.Index, now func() time.Time, refused func(reason string), logger *slog.Logger) *Intake {
	return &Intake{index: x, now: now, refused: refused, logger: logger, kept: protocol.NewTimedSet[records.Name](maxKeptOut)}
}

// Put adds a verified record to the index. An equal version is not an error; a newer version in
// the index is Exists. Sequence is the highest sequence of the record in the index.
func (in *Intake) Put(r *records.Record) (sequence uint64, err error) {
	known, ok := in.index.Latest(r.Name())
	if ok && known.Equivocates(r) {
		in.refused("equivocation") // whichever of the two wins
		in.logger.Debug("provider signed two different records with the same sequence", "record", r.Name(), "sequence", r.Sequence())
	}
	if ok && known.Digest() == r.Digest() {
		return known.Sequence(), nil
	}
	_, err = in.index.Put(r, in.now())
	if fault.KindOf(err) == fault.LimitReached {
		in.keepOut(r.Name())
	} else {
		in.kept.Remove(r.Name())
	}
	if latest, ok := in.index.Latest(r.Name()); ok {
		sequence = latest.Sequence()
	}
	return sequence, err
}

// keepOut remembers a record that was refused for a limit.
func (in *Intake) keepOut(n records.Name) { in.kept.Add(n, in.now().Add(keptOutFor)) }

// KeptOut reports whether a limit kept a record out a short time ago.
func (in *Intake) KeptOut(n records.Name) bool { return in.kept.Has(n, in.now()) }
