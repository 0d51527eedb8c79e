// Package archtest holds the rules of the house as tests: who may import whom,
// who may hold whom, how wide a package may grow, what state it may keep. It
// contains no code that ships.
//
// The files to read are house_test.go (the floors and fences), owner_test.go
// (owners and widths) and exceptions_test.go (every permitted breach, each with
// its reason). The other files are one checker each. checkers_test.go feeds
// every checker small sources that break its rule, because a checker that
// cannot fail proves nothing.
//
// Sources are parsed, not compiled: the rules hold for every file of the
// module whatever its build constraints, and a package that does not compile
// does not hide the faults of the others.
package archtest
