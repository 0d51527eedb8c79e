// Package mvcc has what etcd's tests use of its server.
package mvcc

import "errors"

// ChanBufLen is the number of answers that a stream of watches holds.
func ChanBufLen() int { return 128 }

// Errors of the store.
var (
	ErrCompacted = errors.New("mvcc: required revision has been compacted")
	ErrFutureRev = errors.New("mvcc: required revision is a future revision")
)
