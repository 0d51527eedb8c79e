// Package mvcc has what etcd's tests use of its server.
package mvcc

// ChanBufLen is the number of answers that a stream of watches holds.
func ChanBufLen() int { return 128 }
