// Package fencing holds three programs in which a lock holder sleeps too long, loses the lock
// and writes anyway: to a file, to a row of a database, and to an HTTP endpoint. Each resource
// checks the fencing token and refuses the write. The package itself has only tests.
package fencing
