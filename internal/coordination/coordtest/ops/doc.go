// Package ops calls a coord.Service with short operations, for tests and for the programs that test a whole network. What ships
// speaks in the messages of package coordv1.
package ops
