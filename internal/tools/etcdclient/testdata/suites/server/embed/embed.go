// Package embed has what etcd's tests use of its server.
package embed

// DefaultMaxTxnOps is the number of operations of a transaction.
const DefaultMaxTxnOps = uint(128)
