// Package fencing holds three programs in which a holder of a lock sleeps past its end and
// writes all the same: to a file, to a row of a database, to an HTTP endpoint. What it writes to
// checks the fencing token and refuses. The package itself has only tests.
package fencing
