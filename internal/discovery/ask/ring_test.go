package ask

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/blackhole/blackhole/internal/discovery/index"
	pb "github.com/blackhole/blackhole/proto/blackhole/keeper/v1"
)

// Compared with an unbounded list: a position that is not lost misses no change.
func TestRingLosesNothing(t *testing.T) {
	x := index.New(index.Config{})
	rapid.Check(t, func(t *rapid.T) {
		r := newRing(x, 7)
		defer r.sub.Close()
		cursor, seen := r.place(r.last), r.last
		last := r.last
		for range rapid.IntRange(1, 30).Draw(t, "steps") {
			n := rapid.IntRange(0, ringSize).Draw(t, "changes")
			for range n {
				last++
				r.add(index.Change{Seq: last}, false)
			}
			some, wait, lost := r.after(cursor, rapid.IntRange(1, 2*ringSize).Draw(t, "most"))
			if lost != (last-seen > ringSize) {
				t.Fatalf("lost is %v with %d changes unread", lost, last-seen)
			}
			if lost {
				cursor, seen = r.place(0), last
				continue
			}
			for _, ch := range some {
				if seen++; ch.Seq != seen {
					t.Fatalf("change %d where %d was due", ch.Seq, seen)
				}
			}
			cursor = &pb.Cookie{Epoch: cursor.Epoch, Seq: seen}
			if wait == nil {
				t.Fatal("nothing to wait for")
			}
		}
		r.add(index.Change{Seq: last + 5}, true)
		if _, _, lost := r.after(cursor, 1); !lost {
			t.Fatal("a gap was not told")
		}
	})
}
