// Package bootstrap holds how the coordination group of a network begins, and what a peer remembers of it.
//
// Its rules are in "Group bootstrap" of ../DESIGN.md.
//
// A restored backup of the state is a loss that the peer cannot detect: exclude it from backups.
package bootstrap
