package machine

import (
	"cmp"
	"slices"

	"github.com/blackhole/blackhole/internal/contract/coord"
)

// queue is the claims on one lock, by token. Its holders are its longest compatible beginning: a
// function of the claims alone.
type queue struct {
	claims []*coord.KeyValue
	held   int // claims[:held] hold the lock
}

// find gives the position of a token, or false.
func (q *queue) find(token coord.Token) (int, bool) {
	return slices.BinarySearchFunc(q.claims, token, func(kv *coord.KeyValue, t coord.Token) int {
		return cmp.Compare(kv.Token(), t)
	})
}

func (q *queue) holds(token coord.Token) bool {
	i, ok := q.find(token)
	return ok && i < q.held
}

// admits reports whether a new claim would hold at once: without waiting claims, and compatible.
func (q *queue) admits(c *coord.Claim) bool { return q.held == len(q.claims) && q.joins(c, q.held) }

// joins reports whether a claim is compatible with the first n, all of one mode.
func (q *queue) joins(c *coord.Claim, n int) bool {
	if n == 0 {
		return true
	}
	if c.Mode != q.claims[0].LockClaim.Mode {
		return false
	}
	return c.Mode == coord.Shared || c.Mode == coord.Permit && n < int(c.Permits)
}

// push adds the last claim.
func (q *queue) push(kv *coord.KeyValue) { q.claims = append(q.claims, kv) }

// replace puts a newer version of a claim in its place.
func (q *queue) replace(kv *coord.KeyValue) {
	if i, ok := q.find(kv.Token()); ok {
		q.claims[i] = kv
	}
}

// remove takes a claim out.
func (q *queue) remove(token coord.Token) {
	i, ok := q.find(token)
	if !ok {
		return
	}
	if i < q.held {
		q.held--
	}
	if i == 0 { // the usual case, without moving those behind
		q.claims[0] = nil
		q.claims = q.claims[1:]
		return
	}
	q.claims = slices.Delete(q.claims, i, i+1)
}

// advance grants the lock to the next compatible claim and returns it.
func (q *queue) advance() *coord.KeyValue {
	if q.held == len(q.claims) || !q.joins(q.claims[q.held].LockClaim, q.held) {
		return nil
	}
	q.held++
	return q.claims[q.held-1]
}

// room checks that an owner may have one more claim in the queue.
func (q *queue) room(owner string, most uint64) error {
	n, own := uint64(len(q.claims)), uint64(0)
	if n >= most-most/4 { // before, nobody can have more than a share
		for _, kv := range q.claims {
			if kv.LockClaim.Holder == owner {
				own++
			}
		}
	}
	return take("queue", own, 1, n, most)
}
