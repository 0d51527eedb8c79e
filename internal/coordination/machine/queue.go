package machine

import (
	"cmp"
	"slices"

	"github.com/blackhole/blackhole/pkg/coord"
)

// queue is the claims on one lock, in the order of their tokens. Its holders are its longest
// beginning whose claims may hold together: a function of the claims, nothing else.
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

// admits reports whether a new claim would hold at once: nobody waits, and it agrees with the holders.
func (q *queue) admits(c *coord.Claim) bool { return q.held == len(q.claims) && q.joins(c, q.held) }

// joins reports whether a claim may hold beside the first n. All of those are of one mode.
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

// advance grants the lock to the next claim if it may hold, and returns it.
func (q *queue) advance() *coord.KeyValue {
	if q.held == len(q.claims) || !q.joins(q.claims[q.held].LockClaim, q.held) {
		return nil
	}
	q.held++
	return q.claims[q.held-1]
}
